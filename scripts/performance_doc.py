"""Writes the tables of docs/performance.md and README.md from results of attnops-bench.

    python scripts/performance_doc.py RESULTS_DIRECTORY...

Text between the marks `<!-- tables -->` and `<!-- end -->` is replaced. The README shows the
rows of n = 2048 of the first directory.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README_SIZE = "2048"


def value(row: dict, column: str, mode: str) -> float | None:
    """A cell's figure, or None where it has an error or was over its budget."""
    return row["cells"].get(column, {}).get(mode, {}).get("value")


def best_peer(table: dict, row: dict, mode: str) -> tuple[str, float] | None:
    """The name and figure of the peer with the smallest figure."""
    peers = [c for c, role in table["columns"].items() if role == "peer"]
    found = [(value(row, c, mode), c) for c in peers if value(row, c, mode) is not None]
    return (min(found)[1], min(found)[0]) if found else None


def speed_cells(table: dict, row: dict) -> list[str]:
    """ms, best peer, faster by, faster than the peer with free angles by, share, plain/kept."""
    ours = value(row, "attnops", "kept")
    peer = best_peer(table, row, "kept")
    free = value(row, "toc_free", "kept")
    plain = value(row, "attnops", "plain")
    return [
        f"{ours:.2f}",
        f"{peer[1]:.2f} ({peer[0]})" if peer else "",
        f"{peer[1] / ours:.2f}×" if peer else "",
        f"{free / ours:.2f}×" if free else "",
        f"{row['limit']['value'] / ours:.2f}",
        f"{plain / ours:.2f}" if plain else "",
    ]


def memory_cells(table: dict, row: dict) -> list[str]:
    """MB, inputs and output alone, best peer."""
    peer = best_peer(table, row, "memory")
    return [
        f"{value(row, 'attnops', 'memory'):.0f}",
        f"{row['limit']['value']:.0f}",
        f"{peer[1]:.0f} ({peer[0]})" if peer else "",
    ]


HEADS = {
    "speed": [
        "table",
        "n",
        "attnops, ms",
        "best peer, ms",
        "faster by",
        "than with free angles",
        "share of the limit",
        "plain / kept",
    ],
    "memory": ["table", "n", "attnops, MB", "inputs and output", "best peer, MB"],
}
CELLS = {"speed": speed_cells, "memory": memory_cells}


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def short(name: str) -> str:
    """The part of an id that tells the tables of one operator apart."""
    return re.sub(r"-(speed|memory)|-head12(-dim128)+", "", name)


def section(document: dict, kind: str, only: str | None = None) -> str:
    """All rows of one kind, or those of one size."""
    rows = [
        [short(name), n, *CELLS[kind](table, row)]
        for name, table in document["tables"].items()
        if table["kind"] == kind
        for n, row in table["rows"].items()
        if only in (None, n) and value(row, "attnops", "kept" if kind == "speed" else kind)
    ]
    return markdown(HEADS[kind], rows) if rows else ""


def machine(document: dict) -> str:
    """Where and when it was measured."""
    e = document["environment"]
    parts = [e["cpu"], f"{e['threads']} threads"]
    if "target" in e:
        parts.append(f"SIMD target {e['target']}")
    if "limits" in e:  # a run of memory tables alone has none
        parts.append(f"copy bandwidth {e['limits']['bandwidth'] / 1e9:.1f} GB/s")
        parts.append(f"FMA peak {e['limits']['fma'] / 1e9:.0f} GFLOP/s")
    return ", ".join([*parts, e["date"][:10]])


def replace(path: Path, text: str) -> None:
    """Puts the text between the marks."""
    before, rest = path.read_text().split("<!-- tables -->")
    _, after = rest.split("<!-- end -->")
    path.write_text(f"{before}<!-- tables -->\n{text}\n<!-- end -->{after}")


def main(directories: list[str]) -> None:
    """See the module's docstring."""
    documents = [json.loads((Path(d) / "results.json").read_text()) for d in directories]
    parts = []
    for document in documents:
        parts += [machine(document) + ":", section(document, "speed"), section(document, "memory")]
    replace(ROOT / "docs" / "performance.md", "\n\n".join(p for p in parts if p))
    first = documents[0]
    replace(ROOT / "README.md", f"{section(first, 'speed', README_SIZE)}\n\n{machine(first)}.")


if __name__ == "__main__":
    main(sys.argv[1:])
