"""Which tables a run has: the quick set, all of them, or those that match a pattern."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from attnops.bench import published
from attnops.bench.tables import Table, all_tables, operators

# Every operator in both passes, time and memory, without the variants that tell little more.
QUICK = (
    "flao-*@none",
    "flao_fal-*-dim128-[bf]*",
    "lrpe_rotate-*-act_none-*",
    "lrpe_rotate-*-act_silu-*",
    "md_lrpe_cosine-*-1d-l0",
    "md_lrpe_cosine-*-2d-l10",
    "tpa_decode-*",
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
        absent = [f"{id_}  {_reason(name)}" for id_, name in self.missing.items()]
        return [t.id for t in self.tables] + absent


def _reason(operator: str) -> str:
    return f"not available: attnops.bench.operators has no module {operator}"


def select(batch: int, dtypes: tuple[str, ...], patterns: tuple[str, ...] | None) -> Selection:
    """Tables whose id matches one of the patterns, or all."""

    def wanted(id_: str) -> bool:
        return patterns is None or any(fnmatchcase(id_, p) for p in patterns)

    known = operators()
    return Selection(
        [t for t in all_tables(batch, dtypes) if wanted(t.id)],
        {
            p.id: p.operator
            for p in published.tables().values()
            if p.operator not in known and wanted(p.id)
        },
    )
