"""The report: one HTML page with everything in it."""

from __future__ import annotations

import math
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from attnops_bench import files, names, plots, published, view
from attnops_bench.results import Results

NAME = "index.html"
PASSES = {"fwd": "forward", "bwd": "backward"}
KINDS = {"speed": "time", "memory": "memory"}


def number(value: float) -> str:
    """Three digits; nothing where there is no figure."""
    if math.isnan(value):
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if value < 10 else 1}f}" if value >= 1 else f"{value:.3f}"


def times(value: float) -> str:
    """A ratio."""
    return "" if math.isnan(value) else f"{value:.{1 if value >= 10 else 2}f}×"


def percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value * 100:.0f} %"


def _any(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def _quartiles(content: dict[str, Any]) -> str:
    if "error" in content:
        return content["error"]
    if "q1" in content:
        return f"quartiles {number(content['q1'])} and {number(content['q3'])}"
    return ""


def is_disturbed(data: view.Data, n: int) -> bool:
    """Whether noise is in the ratio of a row: in the time of attnops or of the best peer."""
    columns = [view.own(data), view.best_peer(data, n)]
    return any(view.disturbed(view.cell(data, n, c)) for c in columns if c is not None)


def _meanings(tables: list[view.Data]) -> dict[str, str]:
    """The columns of an operator's tables, in words."""
    columns = dict.fromkeys(column for data in tables for column in data["columns"])
    return {column: names.meaning(column) for column in columns}


def _table_html(id_: str, data: view.Data) -> Markup:
    """The frame with the published ratio behind the one measured here, and the ratios before the
    peers, where a narrow screen still shows them."""
    frame = view.frame(data)
    sizes = sorted(data["rows"])
    ratio = view.FASTER[data["kind"]]
    there = f"the same on the {published.machine()}"
    if ratio in frame and id_ in published.tables():
        ratios = view.ratios(id_, data)["there"]
        frame[there] = ratios.tolist()
    first = [data["size_name"], view.own(data), ratio, there, view.SHARE]
    first = [column for column in first if column in frame]
    frame = frame[first + [column for column in frame if column not in first]]
    classes = pd.DataFrame("", index=frame.index, columns=frame.columns)
    hints = classes.copy()
    frame = frame.astype(object)
    for index, n in enumerate(sizes):
        best = view.best_peer(data, n)
        if is_disturbed(data, n):
            classes.loc[index, data["size_name"]] = "noisy"
            hints.loc[index, data["size_name"]] = "disturbed: see the note below"
        for column, role in data["columns"].items():
            content = view.cell(data, n, column)
            problem = next((k for k in ("error", "budget") if k in content), "")
            mark = "best" if column == best else "own" if role == "attnops" else ""
            classes.loc[index, column] = problem or mark
            hints.loc[index, column] = _quartiles(content)
            if view.disturbed(content) and not problem:
                frame.loc[index, column] = f"~{number(content['value'])}"
    formats = {
        data["size_name"]: "{:.0f}",
        ratio: times,
        there: times,
        view.SHARE: percent,
        "plain/kept": times,
    }
    formats = {c: formats.get(c, _any) for c in frame.columns}
    if ratio in frame:
        classes[ratio] = ["loss" if v < 1 else "gain" for v in frame[ratio]]
        for index, n in enumerate(sizes):
            if is_disturbed(data, n):
                classes.loc[index, ratio] += " noisy"
    styler = frame.style.format(formats, escape="html", na_rep="").hide(axis="index")
    styler = styler.set_td_classes(classes).set_tooltips(hints, as_title_attribute=True)
    styler = styler.set_uuid(re.sub(r"\W", "_", id_)).format_index(escape="html", axis="columns")
    styler.cell_ids = False
    return Markup(styler.to_html())


def _summary_html(summary: pd.DataFrame) -> Markup:
    there = published.machine()
    table = pd.DataFrame(
        {
            "operator": summary["operator"],
            "pass": summary["pass"],
            "rows": summary["rows"],
            "faster than the best peer by": summary["faster"].map(times),
            "least to most": [
                f"{times(a)} to {times(b)}" if not math.isnan(a) else ""
                for a, b in zip(summary["least"], summary["most"], strict=True)
            ],
            f"fused against torch on the {there}": summary["there"].map(times),
            "share of the machine's limit": summary["share"].map(percent),
            "smaller than the leanest peer by": summary["memory"].map(times),
            f"the same on the {there} ": summary["memory there"].map(times),
        }
    )
    classes = pd.DataFrame("", index=table.index, columns=table.columns)
    classes["faster than the best peer by"] = [
        "loss" if v < 1 else "gain" for v in summary["faster"]
    ]
    links = {"operator": lambda name: f'<a href="#{name}">{name}</a>'}
    styler = table.style.format(links).hide(axis="index").set_td_classes(classes).set_uuid("s")
    styler.cell_ids = False
    return Markup(styler.to_html())


def _headline(results: Results) -> list[dict[str, str]]:
    """The three figures at the top, each over all rows of the run; means are geometric."""
    rows = [(data, n) for data in results.tables.values() for n in data["rows"]]
    figures = {
        kind: [v for d, n in rows if d["kind"] == kind and (v := view.faster(d, n)) > 0]
        for kind in KINDS
    }
    shares = [v for d, n in rows if d["kind"] == "speed" and not math.isnan(v := view.share(d, n))]
    found = []
    if figures["speed"]:
        mean = float(np.exp(np.mean(np.log(figures["speed"]))))
        text = f"faster than the best PyTorch form, mean of {len(figures['speed'])} rows"
        found.append({"figure": times(mean), "text": text})
    if shares:
        text = "of what copy bandwidth or arithmetic peaks of this machine allow, median"
        found.append({"figure": percent(float(np.median(shares))), "text": text})
    if figures["memory"]:
        mean = float(np.exp(np.mean(np.log(figures["memory"]))))
        text = f"less memory than the leanest PyTorch form, mean of {len(figures['memory'])} rows"
        found.append({"figure": times(mean), "text": text})
    return found


def _bf16_peak(limits: dict[str, float]) -> str | None:
    """None for results from before it was measured."""
    if "bf16" not in limits:
        return None
    peak = limits["bf16"]
    return f"{peak / 1e9:.0f} GFLOP/s" if peak else "no instructions"


def _facts(environment: dict[str, Any]) -> dict[str, str]:
    limits = environment.get("limits")
    facts = {
        "CPU": environment.get("cpu"),
        "threads": environment.get("threads"),
        "SIMD target": environment.get("target"),
        "copy bandwidth": limits and f"{limits['bandwidth'] / 1e9:.1f} GB/s",
        "FMA peak": limits and f"{limits['fma'] / 1e9:.0f} GFLOP/s",
        "bfloat16 peak": limits and _bf16_peak(limits),
        "versions": ", ".join(
            f"{name} {environment[name]}"
            for name in ("attnops", "torch", "python")
            if name in environment
        ),
        "commit": (environment.get("commit") or "")[:12],
        "date": datetime.fromisoformat(environment["date"]).strftime("%Y-%m-%d %H:%M"),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _card(id_: str, data: view.Data) -> dict[str, Any]:
    ratios = view.ratios(id_, data)
    has_ratio = bool(ratios[["here", "there"]].notna().any(axis=None))
    has_plot = any("value" in view.cell(data, n, c) for n in data["rows"] for c in data["columns"])
    return {
        "id": id_,
        "title": id_,
        "pass": PASSES[data["direction"]],
        "kind": KINDS[data["kind"]],
        "unit": data["unit"],
        "table": _table_html(id_, data),
        "plot": Markup(plots.table_plot(data)) if has_plot else None,
        "ratios": Markup(plots.ratio_plot(ratios, data["size_name"], published.machine()))
        if has_ratio
        else None,
        "errors": view.errors(data),
        "disturbed": [n for n in sorted(data["rows"]) if is_disturbed(data, n)],
        "size_name": data["size_name"],
    }


def html(results: Results) -> str:
    tables = {id_: data for id_, data in results.tables.items() if data["rows"]}
    summary = view.summary(tables)
    sections: dict[str, list[dict[str, Any]]] = {}
    for id_, data in tables.items():
        sections.setdefault(data["operator"], []).append(_card(id_, data))
    meanings = {
        operator: _meanings([tables[card["id"]] for card in cards])
        for operator, cards in sections.items()
    }
    missing: dict[str, list[str]] = {}
    for id_, operator in results.missing.items():
        missing.setdefault(operator, []).append(id_)
    loader = jinja2.PackageLoader("attnops_bench", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    has_overview = not summary.empty and bool(summary["faster"].notna().any())
    return environment.get_template("report.html").render(
        facts=_facts(results.environment),
        headline=_headline(results),
        summary=_summary_html(summary) if not summary.empty else None,
        overview=Markup(plots.overview_plot(summary, published.machine()))
        if has_overview
        else None,
        sections=sections,
        meanings=meanings,
        missing=missing,
        there=published.machine(),
        light=Markup(plots.css(plots.LIGHT)),
        dark=Markup(plots.css(plots.DARK)),
    )


def write(results: Results, directory: Path) -> Path:
    """Writes index.html into the directory, which is made; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / NAME
    files.write(page, html(results))
    return page
