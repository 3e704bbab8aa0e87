"""scripts/performance_doc.py on made-up results: tables, plots, and what it leaves alone; and that
the pages of the repository are what it makes of the results kept beside them."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench_results import make_results

ROOT = Path(__file__).resolve().parents[2]
PAGE = "# Page\n\nBefore.\n\n<!-- tables -->\nold\n<!-- end -->\n\nAfter.\n"


@pytest.fixture(scope="module")
def script():
    path = ROOT / "scripts" / "performance_doc.py"
    spec = importlib.util.spec_from_file_location("performance_doc", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def root(script, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("root")
    (root / "docs").mkdir()
    for name in ("README.md", "docs/performance.md"):
        (root / name).write_text(PAGE)
    directories = []
    for name, operators in (("first", ("tpa_decode", "flao_fal")), ("second", ("tpa_decode",))):
        make_results(root / name, operators).save()
        directories.append(str(root / name))
    script.main(directories, root)
    return root


def test_all_operators_and_rows_are_in_the_page(root):
    text = (root / "docs" / "performance.md").read_text()
    assert text.startswith("# Page\n\nBefore.")
    assert text.endswith("After.\n")
    assert "old" not in text
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert headings == ["flao_fal", "tpa_decode", "tpa_decode, bf16 (2)"]
    assert len(re.findall(r"^\| fwd-batch8-bf16 ", text, re.MULTILINE)) == 4 * 8
    assert "| best peer, ms" in text.replace("  ", "")
    assert "nan" not in text


def test_the_plots_are_there_and_are_pictures(root):
    text = (root / "docs" / "performance.md").read_text()
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(images) == len(set(images)) == 6
    for image in images:
        svg = (root / "docs" / image).read_text()
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "prefers-color-scheme: dark" in svg


def test_the_readme_has_a_line_for_each_operator_and_pass(root):
    text = (root / "README.md").read_text()
    assert len(re.findall(r"^\| `flao_fal` ", text, re.MULTILINE)) == 2
    assert len(re.findall(r"^\| `tpa_decode` ", text, re.MULTILINE)) == 1
    assert "40.0 GB/s" in text


def test_the_kept_results_make_the_same_pages_again(script, root, tmp_path):
    (tmp_path / "docs").mkdir()
    pages = ("README.md", "docs/performance.md")
    for name in pages:
        (tmp_path / name).write_text(PAGE)
    kept = sorted((root / "docs" / "results").glob("*.json"))
    assert len(kept) == 2
    assert not any(str(root) in path.read_text() for path in kept)
    script.main([str(path) for path in kept], tmp_path)
    for name in pages:
        assert (tmp_path / name).read_text() == (root / name).read_text()


def test_the_pages_of_the_repository_are_made_from_their_results(script, tmp_path):
    pages = ("README.md", "docs/performance.md")
    (tmp_path / "docs").mkdir()
    for name in pages:
        shutil.copy(ROOT / name, tmp_path / name)
    script.main(sorted(map(str, (ROOT / "docs" / "results").glob("*.json"))), tmp_path)
    for name in pages:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()
