"""Made-up results in the form of a real run, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnops_bench import published
from attnops_bench.results import UNITS, Results

ROLES = {
    "attnops": "attnops",
    "to": "peer",
    "toc": "peer",
    "to_up": "peer",
    "toc_up": "peer",
    "toc_free": "extra",
}
ENVIRONMENT = {
    "cpu": "Made-up CPU <16 cores> @ 3 GHz",
    "threads": 16,
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "0123456789abcdef",
    "attnops": "0.1.0",
    "target": "AVX2",
    "torch": "2.13.0",
    "python": "3.11.7",
    "limits": {"bandwidth": 4e10, "fma": 4e11},
}


def cell(value: float, speed: bool) -> dict:
    return {"value": value, "q1": value * 0.98, "q3": value * 1.03} if speed else {"value": value}


def make_results(directory: Path, operators: tuple[str, ...] | None = None) -> Results:
    """All published tables, or those of some operators, with an error and a budget in each."""
    results = Results(directory, dict(ENVIRONMENT))
    random = np.random.default_rng(2024)
    for table in published.tables().values():
        if operators is not None and table.operator not in operators:
            results.missing[table.id] = table.operator
            continue
        speed = table.kind == "speed"
        roles = {c: r for c, r in ROLES.items() if speed or r != "extra"}
        rows = {}
        for n in table.rows:
            fused = table.best(n, "fused") * (30 if speed else 1)
            factors = {
                "attnops": 1.0,
                "to": 6,
                "toc": 2.2,
                "to_up": 9,
                "toc_up": 3,
                "toc_free": 1.8,
            }
            cells = {}
            for column in roles:
                value = fused * factors[column] * random.uniform(0.85, 1.2)
                cells[column] = {"kept" if speed else "memory": cell(value, speed)}
            if speed:
                cells["attnops"]["plain"] = cell(fused * 1.3, speed)
                cells["attnops"]["beside"] = cell(fused * 1.1, speed)
                cells["toc"]["plain"] = cell(fused * 4, speed)
            rows[n] = {"cells": cells, "limit": {"value": fused * 0.6}}
        first, last = min(rows), max(rows)
        mode = "kept" if speed else "memory"
        rows[first]["cells"]["toc_up"][mode] = {"error": "wrong result: off by 3 <times>"}
        rows[last]["cells"]["to_up"][mode] = {"budget": "~31 GB > 22 GB", "of": "memory"}
        results.tables[table.id] = {
            "title": table.title,
            "operator": table.operator,
            "kind": table.kind,
            "direction": table.direction,
            "dtype": "bf16",
            "options": {},
            "size_name": table.size_name,
            "unit": UNITS[table.kind],
            "columns": roles,
            "rows": rows,
        }
    return results
