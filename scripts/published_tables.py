"""Makes python/attnops_bench/published.json from the published A800 tables.

    python scripts/published_tables.py DIRECTORY

The directory has one Markdown file per operator with tables as pandas prints them. A table's id is
its title; the tables of flao, which share titles, get the policy of their group behind it.
"""

import json
import re
import sys
from pathlib import Path

OUTPUT = Path(__file__).resolve().parent.parent / "python/attnops_bench/published.json"
TITLE = re.compile(r"^(\w+?)-(speed|memory)-(fwd|bwd)-\S+(?=:$)")
# Names have single blanks in them, columns at least two between them but for the first.
GAP = re.compile(r"\s{2,}")
# The columns that are one fused operator; the others are separate PyTorch operations.
FUSED = {
    "flao": re.compile("Flao "),
    "flao_fal": re.compile("Flao F "),
    "lrpe_rotate": re.compile("tr"),
    "md_lrpe_cosine": re.compile("Tri"),
    "tpa_decode": re.compile("tr"),
}
POLICIES = ("none", "kv", "kv_qkv")


def figure(text: str) -> float | None:
    """A published number; -1 stands for an error there."""
    return None if float(text) == -1 else float(text)


def tables(lines: list[str]) -> list[dict]:
    """The tables of one file, in order; the id is still the title."""
    found: list[dict] = []
    for number, line in enumerate(lines):
        if match := TITLE.match(line):
            operator, kind, direction = match.groups()
            size_name, *columns = GAP.split(lines[number + 1].strip())
            found.append(
                {
                    "id": match[0],
                    "title": match[0],
                    "operator": operator,
                    "kind": kind,
                    "direction": direction,
                    "size_name": size_name,
                    "columns": {
                        c: "fused" if FUSED[operator].match(c) else "torch" for c in columns
                    },
                    "rows": {},
                }
            )
        elif re.match(r"\d+ +\d", line):
            _, size, *values = line.split()
            if len(values) != len(found[-1]["columns"]):
                raise ValueError(f"{found[-1]['title']}: row {size} has {len(values)} values")
            found[-1]["rows"][str(int(float(size)))] = [figure(v) for v in values]
    return found


def with_policies(found: list[dict]) -> list[dict]:
    """The n-th table of a title belongs to the n-th policy."""
    seen: dict[str, int] = {}
    for table in found:
        if table["operator"] == "flao":
            index = seen.setdefault(table["title"], 0)
            table["id"] = f"{table['title']}@{POLICIES[index]}"
            seen[table["title"]] += 1
    return found


def main(directory: Path) -> None:
    """See the module's docstring."""
    found = [
        t for path in sorted(directory.glob("*.md")) for t in tables(path.read_text().splitlines())
    ]
    lines = ",\n".join(json.dumps(table) for table in with_policies(found))
    OUTPUT.write_text(f'{{"machine": "A800", "tables": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
