"""The pictures of docs/performance.md: small SVG files of ratios and shares of the limit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from attnops_bench import plots, view
from attnops_bench.report import PASSES

Tables = dict[str, view.Data]

STYLE = {
    "font.size": 8,
    "lines.markersize": 3.5,
    "xtick.bottom": False,
    "ytick.left": False,
}


def case(id_: str) -> str:
    """The words of an id that tell the cases of an operator apart."""
    title = re.sub(r"^(fwd|bwd)-|-?vact_none_None|_None", "", view.short_title(id_))
    return re.sub(r"(?<!_)-|@", " ", title)


def labels(ids: list[str]) -> dict[str, str]:
    """For each table the words of its case that not all of them have."""
    words = {id_: case(id_).split() for id_ in ids}
    common = set.intersection(*(set(w) for w in words.values()))
    told = {id_: " ".join(w for w in found if w not in common) for id_, found in words.items()}
    return {id_: text or case(id_) for id_, text in told.items()}


def draw(axes: Axes, lines: dict[str, list[tuple[int, float]]], colours: dict[str, str]) -> None:
    """Values against the number of tokens, one line a case."""
    sizes = sorted({tokens for points in lines.values() for tokens, _ in points})
    for i, (label, points) in enumerate(lines.items()):
        x, y = zip(*points, strict=True)
        marker = plots.MARKERS[i % len(plots.MARKERS)]
        axes.plot(x, y, color=colours[label], marker=marker, label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sizes[:: math.ceil(len(sizes) / 5)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def points(data: view.Data, figure: Callable[[view.Data, int], float]) -> list[tuple[int, float]]:
    """Tokens and a figure, where there is one; the size of a grid is its side."""
    axes = data["options"].get("axes", 1)
    found = [(n**axes, figure(data, n)) for n in sorted(data["rows"])]
    return [(tokens, value) for tokens, value in found if not math.isnan(value)]


def picture(tables: Tables) -> str | None:
    """Ratio and share of the limit of an operator's cases, forward beside backward; as SVG."""
    speed = {id_: data for id_, data in tables.items() if data["kind"] == "speed"}
    names = labels(list(speed)) if speed else {}
    rows = (("best peer / attnops", view.faster), ("share of the limit", view.share))
    passes = list(dict.fromkeys(data["direction"] for data in speed.values()))
    colours = {
        name: plots.VARIABLES[f"peer{i % 8}"]
        for i, name in enumerate(dict.fromkeys(names.values()))
    }
    if not any(points(data, view.share) for data in speed.values()):
        return None
    with mpl.rc_context({**plots.STYLE, **STYLE}):
        figure = Figure(figsize=(8.4, 4.4), layout="constrained")
        figure.patch.set_alpha(0)
        grid = figure.subplots(len(rows), len(passes), squeeze=False, sharex="col", sharey="row")
        legend: dict[str, Any] = {}
        for row, (title, value) in enumerate(rows):
            highest = max(v for data in speed.values() for _, v in [(0, 1.0), *points(data, value)])
            for column, direction in enumerate(passes):
                axes = grid[row][column]
                axes.set_facecolor("none")
                lines = {
                    names[id_]: found
                    for id_, data in speed.items()
                    if data["direction"] == direction and (found := points(data, value))
                }
                if lines:
                    draw(axes, lines, colours)
                axes.axhline(1, color=plots.VARIABLES["muted"], linewidth=1)
                axes.set_ylim(0, 1.05 * highest)
                axes.set_title(f"{title}, {PASSES[direction]}", loc="left")
                handles, texts = axes.get_legend_handles_labels()
                legend |= dict(zip(texts, handles, strict=True))
        for axes in grid[-1]:
            axes.set_xlabel("tokens")
        figure.legend(legend.values(), legend.keys(), loc="outside upper left", ncols=6)
        return compact(plots.to_svg(figure, standalone=True))


def compact(svg: str) -> str:
    """The picture with one decimal, and what its parts have in common said once."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"-?\d+\.\d{2,}", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r' clip-path="[^"]*"|; stroke-line\w+: \w+| transform="rotate\(-0 [^"]*"', "", svg)
    # A marker has its colour once and not at every place.
    svg = re.sub(r'style="stroke: (var\(--\w+\))"', r'style="fill: \1; stroke: \1"', svg)
    svg = re.sub(r'(<use [^>]*?) style="[^"]*"', r"\1", svg)
    svg = re.sub(r" font-family: [^;]*;", "", svg)
    svg = svg.replace("<style>svg {", "<style>svg { font-family: system-ui, sans-serif;", 1)
    return re.sub(r"\s*\n\s*", "\n", svg.replace("\nL ", " L ").replace("\nz\n", "z"))
