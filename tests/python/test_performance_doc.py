"""scripts/performance_doc.py on made-up results: tables, pictures, and what it leaves alone; and
that the pages of the repository are what it makes of the results kept beside them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from bench_results import make_results

ROOT = Path(__file__).resolve().parents[2]
PAGE = "# Page\n\nBefore.\n\n<!-- tables -->\nold\n<!-- end -->\n\nAfter.\n"
# Of results and pictures together.
MOST_BYTES = 600_000


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import performance_doc
    finally:
        sys.path.pop(0)
    return performance_doc


def empty_pages(root: Path) -> Path:
    (root / "docs").mkdir(parents=True)
    for name in ("README.md", "docs/performance.md"):
        (root / name).write_text(PAGE)
    return root


def page_of(root: Path) -> str:
    return (root / "docs" / "performance.md").read_text()


def rows_of(text: str) -> list[dict[str, str]]:
    """The rows of all tables of a text, by column."""
    found: list[dict[str, str]] = []
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if cells and not header:
            header = cells
        elif cells and not cells[0].startswith(":-"):
            found.append(dict(zip(header, cells, strict=True)))
        elif not cells:
            header = []
    return found


@pytest.fixture(scope="module")
def root(script, tmp_path_factory) -> Path:
    """The pages of two machines, of which the second is README's."""
    root = empty_pages(tmp_path_factory.mktemp("root") / "pages")
    for name, operators in (("First <CPU> (one)", ("tpa_decode", "flao_fal")), ("Second", None)):
        directory = root / "runs" / name[:5]
        make_results(directory, operators).save()
        readme = [] if name == "First <CPU> (one)" else ["--readme"]
        script.main([str(directory), "--name", name, *readme], root)
    return root


def test_each_machine_has_a_section_with_every_operator(root):
    text = page_of(root)
    assert text.startswith("# Page\n\nBefore.")
    assert text.endswith("After.\n")
    assert "old" not in text
    assert "nan" not in text
    assert sorted(re.findall(r"^## (.*)$", text, re.MULTILINE)) == ["First <CPU> (one)", "Second"]
    for section in text.split("\n## ")[1:]:
        assert "SIMD target AVX2" in section
        assert "2026-01-02" in section
        assert "commit 0123456789ab" in section
        operators = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert set(operators) >= {"flao_fal", "tpa_decode"}
        assert len(operators) == (2 if section.startswith("First") else 5)
        assert len(re.findall(r"^\| pass", section, re.MULTILINE)) == len(operators)


def test_a_row_has_time_ratio_share_and_memory(root):
    text = page_of(root)
    rows = [row for row in rows_of(text) if row["case"] == "batch8 bf16"]
    assert len(rows) == 2 * 8
    for row in rows:
        assert row["best peer"]
        ratio = float(row["ratio"].rstrip("×"))
        figures = [float(row[key].replace(",", "")) for key in ("attnops, ms", "its ms")]
        assert ratio == pytest.approx(figures[1] / figures[0], rel=0.02)
        assert row["share of the limit"].endswith("%")
        assert row["toc_free / attnops"].endswith("×")
        assert row["attnops, MB"]
        assert row["leanest peer, MB"]


def test_the_pictures_are_there_and_small(root):
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page_of(root))
    assert len(images) == len(set(images)) == 2 + 5
    for image in images:
        svg = (root / "docs" / image).read_text()
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "prefers-color-scheme: dark" in svg
        assert len(svg) < 30_000
        markers = re.findall(r'<path id="[^"]*" d="[^"]*" style="([^"]*)"', svg)
        assert markers
        assert all(re.fullmatch(r"fill: (\S+); stroke: \1", style) for style in markers)


def test_the_readme_has_a_line_for_each_operator_and_pass(root):
    text = (root / "README.md").read_text()
    assert len(re.findall(r"^\| `flao_fal` ", text, re.MULTILINE)) == 2
    assert len(re.findall(r"^\| `tpa_decode` ", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^\| `lrpe_rotate` ", text, re.MULTILINE)) == 2
    assert "Second: Made-up CPU" in text
    assert "40.0 GB/s" in text


def test_the_kept_results_make_the_same_pages_again(script, root, tmp_path):
    kept = root / "docs" / "results"
    assert sorted(path.name for path in kept.iterdir()) == [
        "first-cpu-one-2026-01-02.json",
        "second-2026-01-02.json",
    ]
    assert not any(str(root) in path.read_text() for path in kept.iterdir())
    again = empty_pages(tmp_path / "again")
    shutil.copytree(kept, again / "docs" / "results")
    script.main(["--name", "Second", "--readme"], again)
    for name in ("README.md", "docs/performance.md"):
        assert (again / name).read_text() == (root / name).read_text()


def test_a_later_run_replaces_that_of_the_machine(script, tmp_path):
    root = empty_pages(tmp_path / "pages")
    run = make_results(tmp_path / "run", ("flao_fal", "tpa_decode"))
    run.save()
    script.main([str(tmp_path / "run"), "--name", "A (b)"], root)
    run = make_results(tmp_path / "run", ("tpa_decode",))
    run.environment["date"] = "2026-03-04T05:06:07+00:00"
    run.save()
    script.main([str(tmp_path / "run" / "results.json"), "--name", "a B"], root)
    assert [p.name for p in (root / "docs" / "results").iterdir()] == ["a-b-2026-03-04.json"]
    assert [p.name for p in (root / "docs" / "images").rglob("*.svg")] == ["tpa_decode.svg"]
    assert re.findall(r"^##+ (.*)$", page_of(root), re.MULTILINE) == ["a B", "tpa_decode"]
    assert "old" in (root / "README.md").read_text()


def test_peers_that_a_run_did_not_count_count(script, tmp_path):
    root = empty_pages(tmp_path / "pages")
    run = make_results(tmp_path / "run", ("flao_fal",))
    for data in run.tables.values():
        if data["kind"] == "speed":
            data["columns"] |= {"to": "extra", "toc": "extra"}
            for row in data["rows"].values():
                ours = row["cells"]["attnops"]["kept"]["value"]
                row["cells"]["toc"]["kept"] = {"value": ours / 2, "q1": ours / 2, "q3": ours / 2}
    run.save()
    script.main([str(tmp_path / "run"), "--name", "A", "--readme"], root)
    rows = rows_of(page_of(root))
    assert rows
    assert {row["best peer"] for row in rows} == {"toc"}
    assert {row["ratio"] for row in rows} == {"0.50×"}
    assert {row["best peer / attnops"] for row in rows_of((root / "README.md").read_text())} == {
        "0.50×"
    }


def test_times_with_wide_quartiles_are_marked(script, tmp_path):
    root = empty_pages(tmp_path / "pages")
    run = make_results(tmp_path / "run", ("tpa_decode",))
    wide = {"value": 10.0, "q1": 8.0, "q3": 11.0}
    for data in run.tables.values():
        if data["kind"] == "speed":
            data["rows"][256]["cells"]["attnops"]["kept"] = dict(wide)
            data["rows"][512]["cells"]["toc"]["kept"] = {"value": 0.001, "q1": 0.001, "q3": 0.002}
    run.save()
    script.main([str(tmp_path / "run"), "--name", "A"], root)
    for row in rows_of(page_of(root)):
        assert row["attnops, ms"].startswith("~") == (row["m"] == "256")
        assert row["its ms"].startswith("~") == (row["m"] == "512")


def test_what_is_missing_leaves_gaps_and_not_failures(script, tmp_path):
    root = empty_pages(tmp_path / "pages")
    run = make_results(tmp_path / "run", ("flao_fal", "lrpe_rotate"))
    tables = {}
    for id_, data in run.tables.items():
        if data["operator"] == "lrpe_rotate" and data["kind"] == "memory":
            continue  # speed alone
        if data["operator"] == "flao_fal" and data["kind"] == "speed":
            continue  # memory alone
        tables[id_] = data
        first, second, third = sorted(data["rows"])[:3]
        mode = "kept" if data["kind"] == "speed" else "memory"
        data["rows"][first]["cells"]["attnops"] = {mode: {"error": f"OSError: {tmp_path}/x"}}
        data["rows"][second]["cells"] = {
            "attnops": data["rows"][second]["cells"]["attnops"],
            "toc": {mode: {"budget": "~31 s > 12 s", "of": "time"}},
        }
        data["rows"][third]["limit"] = None
    empty = next(iter(tables.values()))
    tables["lrpe_rotate-speed-fwd-without-rows"] = {**empty, "rows": {}}
    run.tables = tables
    del run.environment["limits"], run.environment["torch"]
    run.save()
    script.main([str(tmp_path / "run"), "--name", "A", "--readme"], root)
    text = page_of(root)
    rows = rows_of(text)
    assert "without" not in text
    assert any(row.get("attnops, ms") == "error" for row in rows)
    assert not any("nan" in value for row in rows for value in row.values())
    assert len(re.findall(r"!\[", text)) == 1  # no picture of memory alone
    assert not any(str(tmp_path) in p.read_text() for p in (root / "docs" / "results").iterdir())
    lines = rows_of((root / "README.md").read_text())
    assert {line["operator"] for line in lines} == {"`flao_fal`", "`lrpe_rotate`"}


@pytest.mark.parametrize(
    ("recorded", "given", "expected"),
    [
        ("0123456789abcdef", None, "0123456789ab"),
        ("0123456789abcdef", "012345", "0123456789ab"),
        (None, "fedcba9876543210", "fedcba987654"),
        ("0123456789abcdef-dirty", "fedcba9876543210", "fedcba987654"),
        ("0123456789abcdef", "fedc", "the results are of commit 0123456789abcdef"),
        (None, None, "the results are without a commit"),
        ("0123456789abcdef-dirty", None, "a tree with changes"),
    ],
)
def test_the_commit_is_the_measured_one(script, tmp_path, recorded, given, expected):
    root = empty_pages(tmp_path / "pages")
    run = make_results(tmp_path / "run", ("tpa_decode",))
    run.environment["commit"] = recorded
    run.save()
    arguments = [str(tmp_path / "run"), "--name", "A", *(["--commit", given] if given else [])]
    if " " in expected:
        with pytest.raises(SystemExit, match=expected):
            script.main(arguments, root)
        assert page_of(root) == PAGE
    else:
        script.main(arguments, root)
        assert f"commit {expected}." in page_of(root)


def test_bad_calls_say_what_is_wrong(script, tmp_path, capsys):
    root = empty_pages(tmp_path / "pages")
    with pytest.raises(SystemExit):
        script.main([str(tmp_path)], root)
    assert "--name is missing" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="cannot read"):
        script.main([str(tmp_path / "nowhere.json"), "--name", "A"], root)
    with pytest.raises(SystemExit, match="no results of A are kept"):
        script.main(["--name", "A", "--readme"], root)


def test_the_pages_of_the_repository_are_made_from_their_results(script, tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "performance.md", tmp_path / "docs")
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    script.main([], tmp_path)
    assert page_of(tmp_path) == page_of(ROOT)
    machines = script.kept(ROOT / "docs" / "results")
    assert any(script.summary(m) in (ROOT / "README.md").read_text() for m in machines)
    images = [f"images/{p.parent.name}/{p.name}" for p in (ROOT / "docs" / "images").rglob("*.svg")]
    assert sorted(images) == sorted(re.findall(r"\]\((images/[^)]+)\)", page_of(ROOT)))


def test_results_and_pictures_stay_small():
    files = [p for name in ("results", "images") for p in (ROOT / "docs" / name).rglob("*.*")]
    assert sum(p.stat().st_size for p in files) < MOST_BYTES


def test_kept_results_hold_no_paths_and_say_their_commit():
    for path in (ROOT / "docs" / "results").iterdir():
        document = json.loads(path.read_text())
        assert set(document) == {"schema", "name", "environment", "tables"}
        assert re.fullmatch(r"[0-9a-f]{7,40}", document["environment"]["commit"])
