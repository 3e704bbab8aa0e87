"""The report: what is in it, and how a real browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from attnops_bench import names, published, report, view
from attnops_bench.tables import operators
from bench_results import make_results

OPERATORS = ("tpa_decode", "flao", "flao_fal")
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: scripts/setup.sh debs chromium"
)
PHONE_WIDTH = 390
# Tells the page around it what the browser made of the report.
PROBE = """
<script>
addEventListener("load", () => {
  const sizes = (s) => [...document.querySelectorAll(s)].map((e) => e.getBoundingClientRect());
  const plots = sizes("figure svg");
  parent.postMessage(JSON.stringify({
    width: document.documentElement.clientWidth,
    contentWidth: document.documentElement.scrollWidth,
    articles: sizes("article").length,
    plots: plots.length,
    smallestPlot: Math.min(...plots.map((r) => Math.min(r.width, r.height))),
    widestPlot: Math.max(...plots.map((r) => r.right)),
    cutTexts: [...document.querySelectorAll("figure svg text")].filter((t) => {
      const text = t.getBoundingClientRect(), plot = t.closest("svg").getBoundingClientRect();
      return text.left < plot.left - 1 || text.right > plot.right + 1 || text.top < plot.top - 1 ||
             text.bottom > plot.bottom + 1;
    }).map((t) => t.textContent),
    scrolled: [...document.querySelectorAll("article .scroll")].filter(
      (e) => e.scrollWidth > e.clientWidth).map((e) => e.closest("article").id),
    cutTables: [...document.querySelectorAll("table")].filter(
      (t) => getComputedStyle(t.parentElement).overflowX !== "auto").length,
    lineColour: getComputedStyle(document.querySelector("article svg path[style*='--own']")).stroke,
    requests: performance.getEntriesByType("resource").length,
  }), "*");
});
</script>
"""
FRAME = """<!doctype html><body style="margin:0">
<iframe src="report.html" style="border:0;width:{width}px;height:800px"></iframe>
<script>addEventListener("message", (e) => {{ document.body.textContent = e.data; }});</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    return report.write(make_results(directory, OPERATORS), directory)


def chromium(*arguments: str) -> str:
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def probe(page: Path, width: int, directory: Path) -> dict:
    """What the browser says of the page in a window of this width."""
    (directory / "report.html").write_text(page.read_text() + PROBE)
    (directory / "frame.html").write_text(FRAME.format(width=width))
    dom = chromium(
        f"--user-data-dir={directory / 'profile'}",
        "--virtual-time-budget=5000",
        "--dump-dom",
        (directory / "frame.html").as_uri(),
    )
    found = re.search(r"\{.*\}", dom)
    assert found, dom
    return json.loads(found[0])


def test_everything_is_in_the_page(page):
    text = page.read_text()
    for table in published.tables().values():
        assert table.id in text
        shown = f'<article id="{table.id}">' in text
        assert shown == (table.operator in OPERATORS)
    assert "Made-up CPU &lt;16 cores&gt;" in text
    assert "off by 3 &lt;times&gt;" in text
    assert "~31 GB &gt; 22 GB" in text
    assert "40.0 GB/s" in text
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL).lower()


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert not re.search(r"<link|<script|<img|<iframe|@import|\ssrc=", text)
    links = re.findall(r'(?:href|url)\s*[=(]\s*"?([^")\s]*)', text)
    assert links
    assert all(link.startswith("#") for link in links)


def test_figures_of_the_summary():
    results = make_results(Path("unused"), ("tpa_decode",))
    (line,) = view.summary(results.tables).to_dict("records")
    speed = [t for t in published.tables().values() if t.id in results.tables and t.kind == "speed"]
    there = [t.advantage(n) for t in speed for n in t.rows]
    assert line["operator"] == "tpa_decode"
    assert line["rows"] == 16
    assert line["there"] == pytest.approx(np.exp(np.mean(np.log(there))))
    assert line["least"] <= line["faster"] <= line["most"]
    here = [view.faster(results.tables[t.id], n) for t in speed for n in t.rows]
    assert line["faster"] == pytest.approx(np.exp(np.mean(np.log(here))))


def test_a_disturbed_row_is_marked(tmp_path):
    results = make_results(tmp_path, ("tpa_decode",))
    id_, table = next((i, t) for i, t in results.tables.items() if t["kind"] == "speed")
    results.tables = {id_: table}
    assert "disturbed. The quartiles" not in report.html(results)
    n = sorted(table["rows"])[2]
    time = table["rows"][n]["cells"]["attnops"]["kept"]
    time |= {"q1": time["value"] * 0.8, "q3": time["value"] * 1.1}
    text = report.html(results)
    assert f"= {n}: disturbed. The quartiles" in text
    assert f"~{report.number(time['value'])}" in text
    assert len(re.findall(r'class="[^"]*\bnoisy\b', text)) == 2  # the size and the ratio


def test_every_column_is_explained(page):
    text = page.read_text()
    for operator in operators().values():
        for column in operator.columns:
            assert names.meaning(column.name)
    for column in ("toc_up", "toc_free"):
        assert f"<dt>{column}</dt><dd>{names.meaning(column)}</dd>" in text


def test_a_table_without_peers_or_published_figures(tmp_path):
    results = make_results(tmp_path, ("tpa_decode",))
    table = results.tables.pop(next(iter(results.tables)))
    table["columns"] = {"attnops": "attnops"}
    for row in table["rows"].values():
        row["cells"] = {"attnops": row["cells"]["attnops"]}
    results.tables = {"tpa_decode-speed-fwd-batch3-f32": table}
    text = report.html(results)
    assert "best peer plain" not in text
    assert "fused against torch" in text


def test_a_table_with_no_figure_at_all(tmp_path):
    results = make_results(tmp_path, ("tpa_decode",))
    id_, table = next(iter(results.tables.items()))
    for row in table["rows"].values():
        row["cells"] = {c: {"kept": {"error": "no such luck"}} for c in row["cells"]}
        row["limit"] = None
    results.tables = {id_: table}
    assert "no such luck" in report.html(results)
    results.tables = {}
    assert "Summary" in report.html(results)


@needs_chromium
@pytest.mark.parametrize("width", [PHONE_WIDTH, 1280])
def test_a_browser_shows_it_all(page, width, tmp_path):
    seen = probe(page, width, tmp_path)
    assert seen["width"] == width
    assert seen["contentWidth"] <= width, "the page scrolls sideways"
    assert seen["widestPlot"] <= width
    assert seen["articles"] == 24
    assert seen["plots"] == 2 * 24 + 1
    assert seen["smallestPlot"] > 100
    assert seen["cutTables"] == 0
    if width != PHONE_WIDTH:
        assert seen["scrolled"] == [], "columns are out of sight"
    assert seen["cutTexts"] == []
    assert seen["lineColour"].startswith("rgb("), "a colour of the plots is not defined"
    assert seen["requests"] == 0


@needs_chromium
def test_the_widest_tables_fit(tmp_path):
    """With all columns that a run has, at 1280 px."""
    results = make_results(tmp_path, ("tpa_decode", "flao", "md_lrpe_cosine"))
    for table in results.tables.values():
        known = operators()[table["operator"]].columns
        table["columns"] = {c.name: c.role for c in known if table["kind"] in c.kinds}
        for row in table["rows"].values():
            row["limit"]["precision"] = "highest"
            given = row["cells"]
            row["cells"] = {c: given.get(c, given["to"]) for c in table["columns"]}
    assert max(len(table["columns"]) for table in results.tables.values()) == 12
    seen = probe(report.write(results, tmp_path / "page"), 1280, tmp_path)
    assert seen["scrolled"] == [], "columns are out of sight"
    assert seen["contentWidth"] <= 1280
    assert seen["cutTexts"] == []


@needs_chromium
def test_light_and_dark(page, tmp_path):
    brightness = {}
    for name, scheme in (("dark", 0), ("light", 1)):
        picture = tmp_path / f"{name}.png"
        chromium(
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1000,1600",
            f"--screenshot={picture}",
            page.as_uri(),
        )
        pixels = matplotlib.image.imread(picture)[..., :3]
        brightness[name] = float(np.median(pixels))
        assert pixels.std() > 0.02, "the page is empty"
    assert brightness["dark"] < 0.3
    assert brightness["light"] > 0.85
