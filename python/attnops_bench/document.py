"""The form of a result document, checked where one is read: `results.py` says what it means."""

from __future__ import annotations

import math
from typing import Any

KINDS = ("speed", "memory")
TEXTS = ("title", "operator", "kind", "direction", "dtype", "size_name", "unit")


class Malformed(Exception):
    """The text says where, and what is wrong there."""


def _expect(good: bool, where: str, what: str) -> None:
    if not good:
        raise Malformed(f"{where} {what}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_cell(cell: Any, where: str) -> None:
    _expect(isinstance(cell, dict), where, "is not an object")
    for key in ("value", "q1", "q3"):
        if key in cell:
            _expect(
                _is_number(cell[key]) and cell[key] > 0, where, f"has no number above 0 as {key}"
            )
    for key in ("error", "budget"):
        if key in cell:
            _expect(isinstance(cell[key], str), where, f"has no text as {key}")
    _expect(not {"value", "error", "budget"}.isdisjoint(cell), where, "has no value")


def _check_row(row: Any, where: str) -> None:
    _expect(isinstance(row, dict), where, "is not an object")
    cells, limit = row.get("cells"), row.get("limit")
    _expect(isinstance(cells, dict), where, "has no cells")
    _expect(
        limit is None or (isinstance(limit, dict) and _is_number(limit.get("value"))),
        where,
        "has a limit without a number",
    )
    for column, modes in cells.items():
        _expect(isinstance(modes, dict), f"{where}, {column}", "is not an object")
        for mode, cell in modes.items():
            _check_cell(cell, f"{where}, {column}, {mode}")


def _check_table(table: Any, where: str) -> None:
    _expect(isinstance(table, dict), where, "is not an object")
    for key in TEXTS:
        _expect(isinstance(table.get(key), str), where, f"has no {key}")
    _expect(table["kind"] in KINDS, where, f"has the kind {table['kind']}")
    for key in ("options", "columns", "rows"):
        _expect(isinstance(table.get(key), dict), where, f"has no {key}")
    _expect("attnops" in table["columns"].values(), where, "has no column of attnops")
    for n, row in table["rows"].items():
        _expect(n.isdecimal(), f"{where}, row {n}", "has no size")
        _check_row(row, f"{where}, row {n}")


def check(document: Any) -> None:
    """Raises Malformed unless all that the bench reads of a document is there."""
    _expect(isinstance(document, dict), "it", "is not an object")
    _expect(isinstance(document.get("environment"), dict), "it", "has no environment")
    _expect(isinstance(document.get("tables"), dict), "it", "has no tables")
    for key in ("settings", "missing"):
        _expect(isinstance(document.get(key, {}), dict), "it", f"has no object as {key}")
    for id_, table in document["tables"].items():
        _check_table(table, id_)
