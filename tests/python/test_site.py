"""The documentation site: it is made without a warning, and has a page for each operator."""

import subprocess
import sys
from pathlib import Path

import pytest

import attnops
import attnops.nn

ROOT = Path(__file__).resolve().parents[2]
# What attnops has beside operators, and what is on the page of another.
OTHERS = {
    *("compiled_targets", "effective_precision", "empty_cache", "get_precision", "get_target"),
    *("info", "lrpe_table", "machine", "nn", "set_precision", "set_target", "supported_targets"),
    *("compat", "distributed", "flao_fal_kv", "flao_fal_out", "flao_kv", "flao_out", "hf"),
}
HEADINGS = ("Equations", "Shapes and options", "Accuracy", "Cost", "Example", "Python")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; mkdocs is strict, so that a broken link or anchor fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "scripts/site.py", folder]
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_site(site: Path):
    """One test, so that the site is made once."""
    operators = set(attnops.__all__) - OTHERS
    assert {"flao", "rope", "tpa"} <= operators
    for operator in operators:
        source = (ROOT / f"docs/operators/{operator}.md").read_text()
        assert [h for h in HEADINGS if f"\n## {h}\n" not in source] == [], operator
        assert "```python\n" in source, operator
        assert "```cpp\n" in source, operator
        page = (site / f"docs/operators/{operator}.html").read_text()
        assert f'id="attnops.{operator}.{operator}"' in page, operator

    # Every other public name has a place too.
    places = {f"nn.{name}": "reference/python" for name in attnops.nn.__all__}
    places |= {
        f"nn.{name}": "operators/tpa_decode" for name in ("TPACache", "TensorProductAttention")
    }
    places |= {f"flao_halves.{name}": "operators/flao" for name in ("flao_kv", "flao_out")}
    places |= {f"flao_halves.flao_fal_{name}": "operators/flao_fal" for name in ("kv", "out")}
    places |= {f"hf.{name}": "reference/python" for name in ("patch", "unpatch")}
    places |= {
        "runtime.info": "reference/python",
        "md_lrpe_cosine.lrpe_table": "operators/md_lrpe_cosine",
    }
    for name, place in places.items():
        assert f'id="attnops.{name}"' in (site / f"docs/{place}.html").read_text(), name

    # All headers are in the reference, whole; nothing is left of the marks.
    for page in ("cpp", "c"):
        text = (site / f"docs/reference/{page}.html").read_text()
        assert "header:" not in text
        headers = [p.name for p in (ROOT / "include/attnops").glob("*.h")]
        wanted = ["c.h"] if page == "c" else [h for h in headers if h not in ("c.h", "attnops.h")]
        assert [h for h in wanted if f"attnops/{h}" not in text] == []

    # It needs nothing from elsewhere.
    front = (site / "index.html").read_text()
    assert "fonts.googleapis.com" not in front
    assert "changelog.html" in front.lower()
