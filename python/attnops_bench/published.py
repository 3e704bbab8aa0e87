"""The published A800 figures (published.json, made by scripts/published_tables.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Literal

from attnops_bench.tables import Direction, Kind

PublishedRole = Literal["fused", "torch"]


@dataclass(frozen=True)
class Published:
    """One table: ms or MB by size, in the order of the columns; None where it had an error."""

    id: str
    title: str
    operator: str
    kind: Kind
    direction: Direction
    size_name: str
    columns: dict[str, PublishedRole] = field(hash=False)
    rows: dict[int, tuple[float | None, ...]] = field(hash=False)

    def best(self, n: int, role: PublishedRole) -> float | None:
        """The smallest figure among the columns of the role."""
        row = self.rows.get(n, ())
        found = [v for c, v in zip(self.columns.values(), row, strict=False) if c == role and v]
        return min(found, default=None)

    def advantage(self, n: int) -> float | None:
        """How many times the best PyTorch figure exceeds that of the best fused operator."""
        torch, fused = self.best(n, "torch"), self.best(n, "fused")
        return torch / fused if torch and fused else None


@cache
def _document() -> dict:
    return json.loads(resources.files("attnops_bench").joinpath("published.json").read_text())


def machine() -> str:
    return _document()["machine"]


@cache
def tables() -> dict[str, Published]:
    """All tables by id, in published order."""
    found = {}
    for entry in _document()["tables"]:
        rows = {int(n): tuple(values) for n, values in entry["rows"].items()}
        found[entry["id"]] = Published(**{**entry, "rows": rows})
    return found
