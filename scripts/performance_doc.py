"""Writes the figures of docs/performance.md and README.md from a run of attnops-bench.

    python scripts/performance_doc.py RESULTS --name "AMD EPYC (Zen 4)" --readme

RESULTS is a results.json or its directory. The run is kept in docs/results/ and becomes the
section of that machine in docs/performance.md, in place of an older one; its pictures are in
docs/images/. --readme also makes README's table from it. Without RESULTS the pages are made again
from what is kept. In both pages the text between `<!-- tables -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from performance_pictures import Tables, case, picture

from attnops_bench import published, view
from attnops_bench.report import PASSES, number, percent, times
from attnops_bench.results import SCHEMA, BadResults, Results
from attnops_bench.tables import operators

ROOT = Path(__file__).resolve().parent.parent
README_TEXT = """\
The time of the best PyTorch form over that of attnops: above 1 attnops is faster. Every form
counts: eager and compiled, in the tensors' type and upcast to float32, each with malloc told to
keep memory; where the CPU multiplies bfloat16, those that do so too. All are from one run, over
the tables and sizes of docs/performance.md; means are geometric. The limit is the time that the
machine's copy bandwidth or its multiply-adds allow. Memory, where it was measured, is that
of the leanest PyTorch form over that of attnops, inputs included. The last column is the first,
fused against PyTorch, in the published figures of a GPU."""
TEXT_COLUMNS = ("operator", "pass", "case", "best peer", "precision")
# What of a cell is kept: the figures, and why there are none.
CELL_KEYS = ("value", "q1", "q3", "error", "budget", "of")
# Of figures that are kept; the pages show three.
DIGITS = 4


def all_peers(data: view.Data) -> view.Data:
    """The table with every peer of its operator as a peer, also those that a run left out of the
    comparison because the CPU multiplies in their type."""
    operator = operators().get(data["operator"])
    peers = {c.name for c in operator.columns if c.role == "peer"} if operator else set()
    columns = {name: "peer" if name in peers else role for name, role in data["columns"].items()}
    return {**data, "columns": columns}


def usable(tables: Tables) -> Tables:
    """Those with rows and a column of attnops, in which all peers count."""
    return {
        id_: all_peers(data)
        for id_, data in tables.items()
        if data["rows"] and "attnops" in data["columns"].values()
    }


def slug(text: str) -> str:
    """The words of a text as part of a file name."""
    return "-".join(re.findall(r"[a-z0-9_]+", text.lower()))


def rounded(value: Any) -> Any:
    """A figure with a few digits; of a text the part before a colon, since what follows in an
    error may name a path of the machine."""
    if isinstance(value, str):
        return value.partition(":")[0]
    if not isinstance(value, float):
        return value
    value = float(f"{value:.{DIGITS}g}")
    return int(value) if value.is_integer() else value


def smaller(data: view.Data) -> view.Data:
    """The table with nothing but what the pages and `attnops-bench compare` need: quartiles are
    those of attnops and, of the peers, those that are wide apart."""

    def cell(column: str, content: dict[str, Any]) -> dict[str, Any]:
        quartiles = data["columns"].get(column) == "attnops" or view.disturbed(content)
        keys = [key for key in CELL_KEYS if quartiles or key not in ("q1", "q3")]
        return {key: rounded(content[key]) for key in keys if key in content}

    rows = {}
    for n, row in data["rows"].items():
        cells = {
            column: {mode: cell(column, content) for mode, content in modes.items()}
            for column, modes in row["cells"].items()
        }
        limit = row["limit"] and {"value": rounded(row["limit"]["value"])}
        if found := view.precision(data, n):
            limit["precision"] = found
        rows[n] = {"cells": cells, "limit": limit}
    return {**data, "rows": rows}


def commit_of(environment: dict[str, Any], given: str | None) -> str:
    """The commit that was measured: the recorded one, or the given one where there is none."""
    recorded = environment.get("commit")
    if recorded and not recorded.endswith("-dirty"):
        if given and not recorded.startswith(given):
            raise SystemExit(f"the results are of commit {recorded}; --commit is {given}")
        return recorded
    if not given:
        what = f"of {recorded}, a tree with changes" if recorded else "without a commit"
        raise SystemExit(f"the results are {what}: say which it was with --commit")
    return given


class Machine:
    """A run kept in docs/results/: the name of its machine, where it ran, and its tables."""

    def __init__(self, name: str, environment: dict[str, Any], tables: Tables):
        self.name = name
        self.environment = environment
        self.tables = tables

    @classmethod
    def load(cls, path: Path) -> Machine:
        run = Results.load(path)
        return cls(json.loads(path.read_text())["name"], run.environment, run.tables)

    def save(self, directory: Path) -> None:
        """Settings are left out: they name paths of the machine."""
        directory.mkdir(parents=True, exist_ok=True)
        document = {
            "schema": SCHEMA,
            "name": self.name,
            "environment": self.environment,
            "tables": {id_: smaller(data) for id_, data in self.tables.items()},
        }
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        text = re.sub(r'("columns":|"\d+":\{"cells")', r"\n\1", text)
        file = f"{slug(self.name)}-{self.environment['date'][:10]}.json"
        (directory / file).write_text(text + "\n")

    def __str__(self) -> str:
        """The CPU and what else the figures depend on."""
        e = self.environment
        parts = [e["cpu"], f"{e['threads']} threads"]
        if "target" in e:
            parts.append(f"SIMD target {e['target']}")
        if "limits" in e:  # a run of memory tables alone has none
            parts.append(f"copy bandwidth {e['limits']['bandwidth'] / 1e9:.1f} GB/s")
            parts.append(f"FMA peak {e['limits']['fma'] / 1e9:.0f} GFLOP/s")
            if e["limits"].get("bf16"):
                parts.append(f"bfloat16 peak {e['limits']['bf16'] / 1e9:.0f} GFLOP/s")
        if "torch" in e:
            parts.append(f"PyTorch {e['torch']}")
        return ", ".join([*parts, e["date"][:10], f"commit {e['commit'][:12]}"])


def kept(directory: Path) -> list[Machine]:
    """All machines, the latest run first."""
    found = [Machine.load(path) for path in sorted(directory.glob("*.json"))]
    return sorted(found, key=lambda machine: machine.environment["date"], reverse=True)


def add(path: Path, name: str, commit: str | None, directory: Path) -> None:
    """Keeps a run as that of the machine of this name, in place of an older one."""
    try:
        run = Results.load(path)
    except BadResults as error:
        raise SystemExit(str(error)) from error
    if not usable(run.tables):
        raise SystemExit(f"{path} has no rows")
    environment = {**run.environment, "commit": commit_of(run.environment, commit)}
    for old in directory.glob("*.json"):
        if slug(Machine.load(old).name) == slug(name):
            old.unlink()
    Machine(name, environment, run.tables).save(directory)


def time_text(data: view.Data, n: int, column: str) -> str:
    """A time, marked if its quartiles are wide apart; or what was in its way."""
    cell = view.cell(data, n, column)
    if "value" not in cell:
        return "error" if "error" in cell else "over budget" if "budget" in cell else ""
    return ("~" if view.disturbed(cell) else "") + number(cell["value"])


def speed_cells(data: view.Data, n: int) -> dict[str, str]:
    """What the page says of a size in a speed table."""
    own = view.own(data)
    ours = view.value(data, n, own)
    best = view.best_peer(data, n)
    found = {
        "attnops, ms": time_text(data, n, own),
        "best peer": best or "",
        "its ms": time_text(data, n, best) if best else "",
        "ratio": times(view.faster(data, n)),
        "share of the limit": percent(view.share(data, n)),
    }
    if precision := view.precision(data, n):
        found["precision"] = precision
    for column, role in data["columns"].items():
        if role != "peer" and column != own:
            found[f"{column} / attnops"] = times(view.value(data, n, column) / ours)
    plain = view.value(data, n, best, "plain") / view.value(data, n, own, "plain") if best else 0
    return {**found, "ratio, plain": times(plain or math.nan)}


def memory_cells(data: view.Data, n: int) -> dict[str, str]:
    """The same of a memory table."""
    best = view.best_peer(data, n)
    return {
        "attnops, MB": number(view.value(data, n, view.own(data))),
        "leanest peer, MB": number(view.value(data, n, best)) if best else "",
    }


CELLS: dict[str, Callable[[view.Data, int], dict[str, str]]] = {
    "speed": speed_cells,
    "memory": memory_cells,
}


def markdown(frame: pd.DataFrame) -> str:
    """The columns that have something in them, figures to the right."""
    frame = frame.fillna("")
    frame = frame.loc[:, (frame != "").any()]
    align = ["left" if name in TEXT_COLUMNS else "right" for name in frame]
    return frame.to_markdown(index=False, disable_numparse=True, colalign=align)


def different(tables: Tables) -> Tables:
    """The tables without those whose rows another one lent them, as flao's forwards do."""
    found: Tables = {}
    for id_, data in tables.items():
        same = (d for d in found.values() if d["direction"] == data["direction"])
        if not any(d["kind"] == data["kind"] and d["rows"] == data["rows"] for d in same):
            found[id_] = data
    return found


def operator_table(tables: Tables) -> str:
    """A row for each case and size of an operator: time, and memory where it was measured."""
    rows: dict[tuple[str, str, str, int], dict[str, str]] = {}
    for kind, cells in CELLS.items():
        for id_, data in tables.items():
            for n in sorted(data["rows"]) if data["kind"] == kind else ():
                key = (PASSES[data["direction"]], case(id_), data["size_name"], n)
                row = rows.setdefault(
                    key, {"pass": key[0], "case": key[1], data["size_name"]: str(n)}
                )
                row.update(cells(data, n))
    order = {id_key: i for i, id_key in enumerate(dict.fromkeys(key[:2] for key in rows))}
    lines = [rows[key] for key in sorted(rows, key=lambda key: (order[key[:2]], key[3]))]
    frame = pd.DataFrame(lines)
    memory = [name for name in frame if name.endswith("MB")]
    return markdown(frame[[name for name in frame if name not in memory] + memory])


def by_operator(tables: Tables) -> Iterator[tuple[str, Tables]]:
    for name in dict.fromkeys(data["operator"] for data in tables.values()):
        found = {id_: data for id_, data in tables.items() if data["operator"] == name}
        yield name, different(found)


def section(machine: Machine, images: Path) -> str:
    """A machine's part of the page; its pictures are written."""
    parts = [f"## {machine.name}", f"{machine}."]
    directory = images / slug(machine.name)
    if directory.exists():
        shutil.rmtree(directory)
    for name, tables in by_operator(usable(machine.tables)):
        parts.append(f"### {name}")
        if svg := picture(tables):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"{name}.svg").write_text(svg)
            link = f"{images.name}/{directory.name}/{name}.svg"
            parts.append(f"![{name} on {machine.name}: ratio and share of the limit]({link})")
        body = operator_table(tables)
        parts.append(f"<details><summary>All rows</summary>\n\n{body}\n\n</details>")
    return "\n\n".join(parts)


def summary(machine: Machine) -> str:
    """README's text: a line for each operator and pass over the published tables."""
    tables = usable(machine.tables)
    tables = {id_: data for id_, data in tables.items() if id_ in published.tables()} or tables
    found = view.summary(tables)
    found = found[found["faster"].notna() | found["share"].notna() | found["memory"].notna()]
    spans = [
        f"{times(a)} to {times(b)}" if not math.isnan(a) else ""
        for a, b in zip(found["least"], found["most"], strict=True)
    ]
    frame = pd.DataFrame(
        {
            "operator": [f"`{name}`" for name in found["operator"]],
            "pass": found["pass"],
            "best peer / attnops": found["faster"].map(times),
            "least to most": spans,
            "share of the limit": found["share"].map(percent),
            "memory": found["memory"].map(times),
            published.machine(): found["there"].map(times),
        }
    )
    return f"{README_TEXT}\n\n{markdown(frame)}\n\n{machine.name}: {machine}."


def replace(path: Path, text: str) -> None:
    """Puts the text between the marks."""
    before, rest = path.read_text().split("<!-- tables -->")
    _, after = rest.split("<!-- end -->")
    path.write_text(f"{before}<!-- tables -->\n{text}\n<!-- end -->{after}")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Writes the figures of the pages from a run.")
    parser.add_argument("results", nargs="?", type=Path, help="results.json or its directory")
    parser.add_argument("--name", help="of the machine, the heading of its section")
    parser.add_argument("--commit", help="that was measured, if the results do not say it")
    parser.add_argument("--readme", action="store_true", help="make README's table from it too")
    args = parser.parse_args(arguments)
    if (args.results or args.readme) and not args.name:
        parser.error("--name is missing")
    directory = root / "docs" / "results"
    if args.results:
        add(args.results, args.name, args.commit, directory)
    machines = kept(directory)
    sections = [section(machine, root / "docs" / "images") for machine in machines]
    replace(root / "docs" / "performance.md", "\n\n".join(sections))
    if args.readme:
        chosen = [machine for machine in machines if slug(machine.name) == slug(args.name)]
        if not chosen:
            raise SystemExit(f"no results of {args.name} are kept")
        replace(root / "README.md", summary(chosen[0]))


if __name__ == "__main__":
    main()
