"""Writes the figures of docs/performance.md and README.md from results of attnops-bench.

    python scripts/performance_doc.py RESULTS_DIRECTORY...

Text between the marks `<!-- tables -->` and `<!-- end -->` is replaced: in docs/performance.md by
the tables of all directories with their plots (docs/images/), in README.md by a summary of those
that were measured on the CPU of the first. The results themselves are kept in docs/results/, from
which the same pages can be made again (`python scripts/performance_doc.py docs/results/*.json`).
"""

import json
import math
import re
import sys
from pathlib import Path

import pandas as pd

from attnops_bench import plots, published, view
from attnops_bench.report import number, percent, times
from attnops_bench.results import SCHEMA, Results

ROOT = Path(__file__).resolve().parent.parent
README_TEXT = """\
Against the best of the PyTorch forms (eager and compiled, in the tensors' type and upcast to
float32), which run with memory kept by malloc; over the tables and sizes of docs/performance.md,
means geometric. The limit is the time that the machine's copy bandwidth or its multiply-adds
allow.
Memory, where it was measured, is that of the leanest PyTorch form over that of attnops, inputs
included. The last column is the first, fused against PyTorch, in the published figures of a GPU."""


def markdown(frame: pd.DataFrame) -> str:
    """A table, figures to the right."""
    align = ["left" if name in ("table", "operator", "pass") else "right" for name in frame]
    return frame.to_markdown(index=False, disable_numparse=True, colalign=align)


def measured(frame: pd.DataFrame) -> str:
    """The table without columns that have nothing in them."""
    return markdown(frame.loc[:, (frame != "").any()])


def speed_row(id_: str, data: view.Data, n: int) -> dict[str, str]:
    """What the tables of the page say of one size."""
    ours = view.value(data, n, view.own(data))
    best = view.best_peer(data, n)
    there = published.tables().get(id_)
    row = {
        "attnops, ms": number(ours),
        "best peer, ms": f"{number(view.value(data, n, best))} ({best})" if best else "",
        "faster by": times(view.faster(data, n)),
    }
    for extra in (c for c, role in data["columns"].items() if role == "extra"):
        row[f"than {extra} by"] = times(view.value(data, n, extra) / ours)
    row["share of the limit"] = percent(view.share(data, n))
    row["plain / kept"] = times(view.plain_to_kept(data, n))
    row[f"{published.machine()}, fused by"] = times((there and there.advantage(n)) or math.nan)
    return row


def memory_row(id_: str, data: view.Data, n: int) -> dict[str, str]:
    """The same for memory."""
    best = view.best_peer(data, n)
    limit = data["rows"][n]["limit"]
    return {
        "attnops, MB": number(view.value(data, n, view.own(data))),
        "inputs and outputs": number(limit["value"]) if limit else "",
        "best peer, MB": f"{number(view.value(data, n, best))} ({best})" if best else "",
        "smaller by": times(view.faster(data, n)),
    }


ROWS = {"speed": speed_row, "memory": memory_row}
HEADINGS = {"speed": "Time", "memory": "Memory"}


def section(tables: dict[str, view.Data], kind: str) -> str:
    """All rows of one kind with a figure of attnops."""
    rows = [
        {"table": view.short_title(id_), data["size_name"]: str(n), **ROWS[kind](id_, data, n)}
        for id_, data in tables.items()
        for n in sorted(data["rows"])
        if not math.isnan(view.value(data, n, view.own(data)))
    ]
    return measured(pd.DataFrame(rows).fillna("")) if rows else ""


def operator_part(results: Results, name: str, images: Path, suffix: str) -> list[str]:
    """Plots and folded tables of one operator."""
    parts = [f"### {name}{suffix}"]
    for kind, heading in HEADINGS.items():
        tables = {
            id_: data
            for id_, data in results.tables.items()
            if data["operator"] == name and data["kind"] == kind
        }
        body = section(tables, kind)
        if not body:
            continue
        file = "-".join(re.findall(r"\w+", f"{name} {kind} {suffix}")) + ".svg"
        images.mkdir(parents=True, exist_ok=True)
        (images / file).write_text(plots.grid_plot(tables))
        parts.append(f"![{heading} of {name} against the size]({images.name}/{file})")
        parts.append(f"<details><summary>{heading}, all rows</summary>\n\n{body}\n\n</details>")
    return parts if len(parts) > 1 else []


def machine(results: Results) -> str:
    """Where and when it was measured."""
    e = results.environment
    parts = [e["cpu"], f"{e['threads']} threads"]
    if "target" in e:
        parts.append(f"SIMD target {e['target']}")
    if "limits" in e:  # a run of memory tables alone has none
        parts.append(f"copy bandwidth {e['limits']['bandwidth'] / 1e9:.1f} GB/s")
        parts.append(f"FMA peak {e['limits']['fma'] / 1e9:.0f} GFLOP/s")
    if "torch" in e:
        parts.append(f"PyTorch {e['torch']}")
    return ", ".join([*parts, e["date"][:10]])


def summary(tables: dict[str, view.Data]) -> str:
    """A line for each operator and pass."""
    found = view.summary(tables)
    frame = pd.DataFrame(
        {
            "operator": [f"`{name}`" for name in found["operator"]],
            "pass": found["pass"],
            "faster by": found["faster"].map(times),
            "least to most": found["least"].map(times) + " to " + found["most"].map(times),
            "share of the limit": found["share"].map(percent),
            "memory": found["memory"].map(times),
            published.machine(): found["there"].map(times),
        }
    )
    return measured(frame)


def replace(path: Path, text: str) -> None:
    """Puts the text between the marks."""
    before, rest = path.read_text().split("<!-- tables -->")
    _, after = rest.split("<!-- end -->")
    path.write_text(f"{before}<!-- tables -->\n{text}\n<!-- end -->{after}")


def keep(runs: list[Results], directory: Path) -> None:
    """The results alone, without the settings, which name paths of the machine."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.json"):
        old.unlink()
    for i, run in enumerate(runs):
        document = {"schema": SCHEMA, "environment": run.environment, "tables": run.tables}
        text = json.dumps(document, separators=(",", ":")).replace('"columns":', '\n"columns":')
        (directory / f"{i + 1:02}.json").write_text(text + "\n")


def main(directories: list[str], root: Path = ROOT) -> None:
    """See the module's docstring."""
    runs = [Results.load(Path(d)) for d in directories]
    keep(runs, root / "docs" / "results")
    parts = []
    shown: set[str] = set()
    for i, run in enumerate(runs):
        types = ", ".join(dict.fromkeys(data["dtype"] for data in run.tables.values()))
        parts.append(f"{machine(run)}:")
        for name in dict.fromkeys(data["operator"] for data in run.tables.values()):
            suffix = f", {types} ({i + 1})" if name in shown else ""
            parts += operator_part(run, name, root / "docs" / "images", suffix)
            shown.add(name)
    replace(root / "docs" / "performance.md", "\n\n".join(parts))
    first = runs[0]
    tables: dict[str, view.Data] = {}
    for run in runs:  # of a table that several have, the first is taken
        if run.environment["cpu"] == first.environment["cpu"]:
            tables = {**run.tables, **tables}
    tables = {id_: data for id_, data in tables.items() if id_ in published.tables()}
    replace(root / "README.md", f"{README_TEXT}\n\n{summary(tables)}\n\n{machine(first)}.")


if __name__ == "__main__":
    main(sys.argv[1:])
