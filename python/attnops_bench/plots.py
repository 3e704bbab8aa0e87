"""Plots as SVG whose colours are CSS variables, so that one picture serves light and dark pages."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable
from textwrap import fill

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from attnops_bench import view

# What is drawn with the colour of a key gets the CSS variable of that name.
VARIABLES = {
    "ink": "#010101",
    "muted": "#020202",
    "line": "#030303",
    "own": "#040404",
    "there": "#050505",
    **{f"peer{i}": f"#0606{i:02x}" for i in range(8)},
}
LIGHT = {
    "ink": "#1c2430",
    "muted": "#657083",
    "line": "#dde2ea",
    "own": "#0b63ce",
    "there": "#2f8f4e",
    "peer0": "#d9730d",
    "peer1": "#a8329e",
    "peer2": "#b08900",
    "peer3": "#c23a3a",
    "peer4": "#0f8b8d",
    "peer5": "#7a5cd6",
    "peer6": "#6b7a1f",
    "peer7": "#8a5a44",
}
DARK = {
    "ink": "#e7ecf3",
    "muted": "#98a4b6",
    "line": "#303947",
    "own": "#5aa9ff",
    "there": "#6cc98a",
    "peer0": "#ff9f4a",
    "peer1": "#e38bdb",
    "peer2": "#e5c453",
    "peer3": "#ff8080",
    "peer4": "#4cc9c9",
    "peer5": "#b3a0ff",
    "peer6": "#b9c95c",
    "peer7": "#cf9f88",
}
MARKERS = "sD^vPX<>"
LEGEND_COLUMNS = 3
# Letters that fit above a plot of a grid.
TITLE_WIDTH = 56
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "attnops",
    "font.size": 9,
    "axes.edgecolor": VARIABLES["line"],
    "axes.labelcolor": VARIABLES["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "axes.titlecolor": VARIABLES["ink"],
    "grid.color": VARIABLES["line"],
    "grid.linewidth": 0.6,
    "text.color": VARIABLES["ink"],
    "xtick.color": VARIABLES["line"],
    "ytick.color": VARIABLES["line"],
    "xtick.labelcolor": VARIABLES["muted"],
    "ytick.labelcolor": VARIABLES["muted"],
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
}


def css(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def short(value: float) -> str:
    """Three digits, as a person would write them."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _log_axis(axes: Axes, which: str, values: Iterable[float]) -> None:
    """Logarithmic, with the given values as ticks and no others."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FuncFormatter(lambda v, _: short(v)))
    axis.set_minor_locator(NullLocator())


def _size_axis(axes: Axes, sizes: list[int], name: str) -> None:
    """Every size has a tick, every second a label if there are many."""
    _log_axis(axes, "x", sizes)
    labelled = set(sizes[:: 2 if len(sizes) > 6 else 1])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0f}" if v in labelled else ""))
    axes.set_xlabel(name)


def _nice(low: float, high: float) -> list[float]:
    """Round values between the two for a logarithmic axis, few of them."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    digits = (1, 1.5, 2, 3, 5, 7) if high / low < 8 else (1, 2, 5) if high / low < 100 else (1,)
    found = [d * 10.0**e for e in decades for d in digits]
    return [v for v in found if low / 1.3 <= v <= high * 1.3] or [low, high]


def to_svg(figure: Figure, standalone: bool = False) -> str:
    """The picture with variables for colours; standalone, it brings their values along."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(
        buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for name, placeholder in VARIABLES.items():
        text = text.replace(placeholder, f"var(--{name})")
    # Several pictures share a page: names of their parts would be there more than once.
    text = re.sub(r' id="[a-z0-9_A-Z]+_\d+"', "", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    if standalone:
        dark = f"@media (prefers-color-scheme: dark) {{ svg {{ {css(DARK)} }} }}"
        style = f"<style>svg {{ {css(LIGHT)} }} {dark}</style>"
        return re.sub(r"(<svg[^>]*>)", rf"\1{style}", text, count=1)
    return re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)


def draw_table(axes: Axes, data: view.Data, legend: bool = True) -> None:
    """Time or memory against the size, one line a column, and the limit."""
    sizes = sorted(data["rows"])
    peers = 0
    ours = 0
    low, high = math.inf, 0.0
    for column, role in data["columns"].items():
        cells = [(n, view.cell(data, n, column)) for n in sizes]
        points = [(n, c["value"], c.get("q1"), c.get("q3")) for n, c in cells if "value" in c]
        if role == "attnops":
            colour, marker = VARIABLES["own"], "o"
            style = {"linewidth": 2.4, "linestyle": ("-", "--", "-.", ":")[ours % 4], "zorder": 4}
            ours += 1
        else:
            index = peers % 8
            colour, marker = VARIABLES[f"peer{index}"], MARKERS[index]
            style = {"linestyle": "-" if role == "peer" else ":"}
            peers += 1
        if not points:
            continue
        x, y, q1, q3 = zip(*points, strict=True)
        axes.plot(x, y, color=colour, marker=marker, label=column, **style)
        if None not in q1:
            axes.fill_between(x, q1, q3, color=colour, alpha=0.18, linewidth=0)
        low, high = min(low, *y), max(high, *y)
    limits = [(n, data["rows"][n]["limit"]["value"]) for n in sizes if data["rows"][n]["limit"]]
    if limits:
        x, y = zip(*limits, strict=True)
        label = "limit" if data["kind"] == "speed" else "tensors"
        axes.plot(x, y, color=VARIABLES["muted"], linestyle=(0, (2, 2)), linewidth=1.2, label=label)
        low, high = min(low, *y), max(high, *y)
    if high:
        _size_axis(axes, sizes, data["size_name"])
        _log_axis(axes, "y", _nice(low, high))
    axes.set_ylabel(data["unit"])
    if legend and high:
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=LEGEND_COLUMNS, columnspacing=1.2
        )


def draw_ratios(axes: Axes, ratios: pd.DataFrame, size_name: str, there: str) -> None:
    """The best PyTorch figure over the fused one against the size, here and there."""
    for name, label, colour, marker in (
        ("here", "here", "own", "o"),
        ("there", there, "there", "D"),
    ):
        known = ratios.dropna(subset=[name])
        if not known.empty:
            axes.plot(known["n"], known[name], color=VARIABLES[colour], marker=marker, label=label)
    axes.axhline(1, color=VARIABLES["muted"], linewidth=1)
    values = [v for name in ("here", "there") for v in ratios[name].dropna()] + [1.0]
    _size_axis(axes, ratios["n"].tolist(), size_name)
    _log_axis(axes, "y", _nice(min(values), max(values)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{short(v)}×"))
    axes.set_ylim(min(values) / 1.25, max(values) * 1.25)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, columnspacing=1.2)


def _figure(
    width: float, height: float, left: float = 0.95, legend_rows: int = 2
) -> tuple[Figure, Axes]:
    """One transparent plot with room for a legend above, sizes in inches."""
    figure = Figure(figsize=(width, height))
    figure.patch.set_alpha(0)
    bottom, top = 0.5, 0.15 + 0.2 * legend_rows
    rect = (left / width, bottom / height, 1 - (left + 0.15) / width, 1 - (bottom + top) / height)
    return figure, figure.add_axes(rect, facecolor="none")


def table_plot(data: view.Data) -> str:
    lines = len(data["columns"]) + 1  # and the limit
    rows = max(2, math.ceil(lines / LEGEND_COLUMNS))
    with mpl.rc_context(STYLE):
        figure, axes = _figure(5.0, 2.7 + 0.2 * rows, legend_rows=rows)
        draw_table(axes, data)
        return to_svg(figure)


def ratio_plot(ratios: pd.DataFrame, size_name: str, there: str) -> str:
    with mpl.rc_context(STYLE):
        figure, axes = _figure(3.6, 3.1)
        draw_ratios(axes, ratios, size_name, there)
        return to_svg(figure)


def overview_plot(summary: pd.DataFrame, there: str) -> str:
    """A line for each operator and pass: the range of `faster`, its mean, and that of there."""
    lines = summary.dropna(subset=["faster"]).iloc[::-1]
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure, axes = _figure(5.2, 1.2 + 0.3 * len(lines), left=1.75)
        y = range(len(lines))
        own, other = VARIABLES["own"], VARIABLES["there"]
        axes.hlines(y, lines["least"], lines["most"], color=own, alpha=0.3, linewidth=6)
        axes.plot(lines["faster"], y, "o", color=own, markersize=7, label="here (bar: all rows)")
        axes.plot(lines["there"], y, "D", color=other, markersize=6, fillstyle="none", label=there)
        axes.axvline(1, color=VARIABLES["muted"], linewidth=1)
        values = [*lines["least"], *lines["most"], *lines["there"].dropna(), 1.0]
        _log_axis(axes, "x", _nice(min(values), max(values)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{short(v)}×"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(min(values) / 1.15, max(values) * 1.15)
        axes.xaxis.grid(True)
        axes.set_yticks(y, lines["operator"] + " " + lines["pass"])
        axes.tick_params(axis="y", labelcolor=VARIABLES["ink"], length=0)
        axes.set_xlabel("the best PyTorch form takes … times as long")
        axes.set_ylim(-0.6, len(lines) - 0.4)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2)
        return to_svg(figure)


def grid_plot(tables: dict[str, view.Data]) -> str:
    """Small plots of several tables of one kind, forward beside backward, as a picture file."""
    columns = {
        direction: [id_ for id_, data in tables.items() if data["direction"] == direction]
        for direction in ("fwd", "bwd")
    }
    columns = {direction: ids for direction, ids in columns.items() if ids}
    if len(columns) == 1:  # forward only: two beside each other all the same
        (ids,) = columns.values()
        columns = {"even": ids[::2], "odd": ids[1::2]}
    rows = max(len(ids) for ids in columns.values())
    with mpl.rc_context({**STYLE, "font.size": 8}):
        figure = Figure(figsize=(8.4, 0.5 + 2.3 * rows), layout="constrained")
        figure.patch.set_alpha(0)
        grid = figure.subplots(rows, len(columns), squeeze=False)
        labels: dict[str, object] = {}
        for column, ids in enumerate(columns.values()):
            for row in range(rows):
                axes = grid[row][column]
                axes.set_facecolor("none")
                if row >= len(ids):
                    axes.set_axis_off()
                    continue
                draw_table(axes, tables[ids[row]], legend=False)
                axes.set_title(fill(view.short_title(ids[row]), TITLE_WIDTH), loc="left")
                handles, names = axes.get_legend_handles_labels()
                labels |= dict(zip(names, handles, strict=True))
        figure.legend(labels.values(), labels.keys(), loc="outside upper left", ncols=8)
        return to_svg(figure, standalone=True)
