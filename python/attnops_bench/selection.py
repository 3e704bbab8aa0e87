"""Which tables a run has: the quick set, all of them, or those that match a pattern."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from attnops_bench import published
from attnops_bench.tables import PRECISIONS, Table, all_tables, operators

# Every operator, the published ones in both passes, time and memory, without the variants that tell
# little more. Three sizes each are to take less than ten minutes, much of it for the compiler: a
# test adds up the estimates of the cells.
QUICK = (
    "flao-*@none",
    "flao_fal-*-dim128-[bf]*",
    "linear_attention-*-fwd-scalar-*",
    "linear_attention-*-bwd-scalar-*",
    "lrpe_rotate-*-act_none-*",
    "md_lrpe_cosine-*-1d-l0",
    "rope-*-decode-*",
    "tpa-speed-fwd-*",
    "tpa_decode-*-batch8-head32-*",
)


@dataclass(frozen=True)
class Selection:
    """Tables that can be run, and the ids of those whose operator is not there, by operator."""

    tables: list[Table]
    missing: dict[str, str]

    def notes(self) -> list[str]:
        """A line for each operator that is not there."""
        counts = Counter(self.missing.values())
        return [f"{name}: {_reason(name)} ({k} tables)" for name, k in counts.items()]

    def listing(self) -> list[str]:
        """A line for each table."""
        lines = {t.id: t.id for t in self.tables}
        lines |= {id_: f"{id_}  {_reason(name)}" for id_, name in self.missing.items()}
        order = list(published.tables())
        # What is not published, another type or batch, keeps its place behind.
        return [lines[id_] for id_ in order if id_ in lines] + [
            line for id_, line in lines.items() if id_ not in published.tables()
        ]


def _reason(operator: str) -> str:
    return f"not available: attnops_bench.operators has no module {operator}"


def select(
    batch: int,
    dtypes: tuple[str, ...],
    precisions: tuple[str, ...],
    patterns: tuple[str, ...] | None,
) -> Selection:
    """Tables whose id or title matches one of the patterns, or all."""

    def wanted(table: Table | published.Published) -> bool:
        # A pattern for a table is one for its twins in other precisions too.
        twin_of, _, precision = table.id.rpartition("@")
        names = {table.id, table.title, twin_of if precision in PRECISIONS else table.id}
        return patterns is None or any(fnmatchcase(n, p) for n in names for p in patterns)

    known = operators()
    return Selection(
        [t for t in all_tables(batch, dtypes, precisions) if wanted(t)],
        {
            p.id: p.operator
            for p in published.tables().values()
            if p.operator not in known and wanted(p)
        },
    )
