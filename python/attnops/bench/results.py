"""The results of a run: kept in one JSON document, written as JSON and CSV, shown with pandas.

A cell is `{"value", ...}` in ms or MB, `{"error": text}` or `{"budget": text}`, by mode: `kept`
and `plain` in speed tables, `memory` in memory tables.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pandas as pd

from attnops.bench.tables import Case, Column, Table, operators

SCHEMA = 1
UNITS = {"speed": "ms", "memory": "MB"}
FASTER = {"speed": "faster than the best peer by", "memory": "smaller than the best peer by"}
SHARE = "share of the limit"


class Results:
    """`directory` is made by the first `save`."""

    def __init__(self, directory: Path, environment: dict[str, Any]):
        self.directory = directory
        self._environment = environment
        self._tables: dict[str, dict[str, Any]] = {}

    def begin(self, table: Table, columns: list[Column]) -> None:
        self._tables.setdefault(
            table.id,
            {
                "title": table.title,
                "operator": table.operator,
                "kind": table.kind,
                "direction": table.direction,
                "dtype": table.dtype,
                "options": table.options,
                "size_name": table.size_name,
                "unit": UNITS[table.kind],
                "columns": {c.name: c.role for c in columns},
                "rows": {},
            },
        )

    def _row(self, table: Table, n: int) -> dict[str, Any]:
        return self._tables[table.id]["rows"].setdefault(n, {"cells": {}, "limit": None})

    def add(self, table: Table, n: int, column: str, mode: str, cell: dict[str, Any]) -> None:
        self._row(table, n)["cells"].setdefault(column, {})[mode] = cell
        if table.kind == "memory":
            held = operators()[table.operator].cost(Case.of(table, n, 1)).held
            self._row(table, n)["limit"] = {"value": held / 2**20}

    def add_limits(self, table: Table, n: int, limits: dict[str, float]) -> None:
        cost = operators()[table.operator].cost(Case.of(table, n, 1))
        seconds = max(cost.moved / limits["bandwidth"], cost.flops / limits["fma"])
        self._row(table, n)["limit"] = {
            "value": seconds * 1e3,
            "bytes": cost.moved,
            "flops": cost.flops,
            **limits,
        }
        # The best seen in the run stands for the machine; each row keeps its own.
        machine = self._environment.setdefault("limits", {"bandwidth": 0.0, "fma": 0.0})
        for name, value in limits.items():
            machine[name] = max(machine[name], value)

    def add_environment(self, event: dict[str, Any]) -> None:
        self._environment.update({k: v for k, v in event.items() if k != "event"})

    def _value(self, table: Table, n: int, column: str, mode: str) -> float:
        cells = self._row(table, n)["cells"]
        return cells.get(column, {}).get(mode, {}).get("value", math.nan)

    def best_peer(self, table: Table, n: int) -> str | None:
        mode = "kept" if table.kind == "speed" else "memory"
        roles = self._tables[table.id]["columns"]
        peers = [name for name, role in roles.items() if role == "peer"]
        values = {name: self._value(table, n, name, mode) for name in peers}
        values = {name: v for name, v in values.items() if not math.isnan(v)}
        return min(values, key=values.__getitem__) if values else None

    def errors(self, table: Table) -> list[str]:
        """What went wrong, one line a cell."""
        data = self._tables[table.id]
        return [
            f"{data['size_name']}={n} {column} ({mode}): {cell['error']}"
            for n, row in data["rows"].items()
            for column, modes in row["cells"].items()
            for mode, cell in modes.items()
            if "error" in cell
        ]

    def frame(self, table: Table, detailed: bool = False) -> pd.DataFrame:
        """The published layout, with what attnops gains and the plain process behind it.

        `detailed` adds the quartiles and the whole text of errors, for the CSV.
        """
        data = self._tables[table.id]
        main = "kept" if table.kind == "speed" else "memory"
        rows = []
        for n in sorted(data["rows"]):
            cells, limit = data["rows"][n]["cells"], data["rows"][n]["limit"]
            line: dict[str, Any] = {data["size_name"]: float(n)}
            for column in data["columns"]:
                cell = cells.get(column, {}).get(main, {})
                line[column] = _shown(cell, detailed)
                if detailed and table.kind == "speed":
                    line[f"{column} q1"] = cell.get("q1", math.nan)
                    line[f"{column} q3"] = cell.get("q3", math.nan)
            own = self._value(table, n, "attnops", main)
            best = self.best_peer(table, n)
            if "peer" in data["columns"].values():
                peer = self._value(table, n, best, main) if best else math.nan
                line[FASTER[table.kind]] = peer / own
            line[SHARE] = limit["value"] / own if limit else math.nan
            if any("plain" in modes for modes in cells.values()):
                plain = cells.get("attnops", {}).get("plain", {})
                line["attnops plain"] = _shown(plain, detailed)
                line["plain/kept"] = plain.get("value", math.nan) / own
                if best:
                    line["best peer plain"] = _shown(cells[best].get("plain", {}), detailed)
            rows.append(line)
        return pd.DataFrame(rows)

    def text(self, table: Table) -> str:
        """The table as printed: its title, the rows, and a line for each error."""
        frame = self.frame(table)
        body = "no rows" if frame.empty else frame.to_string()
        return "\n".join([f"{table.title}:", body, *self.errors(table), ""])

    def save(self) -> None:
        """Writes everything measured so far; a file is never seen half written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        document = {
            "schema": SCHEMA,
            "environment": self._environment,
            "tables": self._tables,
        }
        self._write("results.json", json.dumps(document, indent=1))

    def save_csv(self, table: Table) -> None:
        self._write(f"{table.id}.csv", self.frame(table, detailed=True).to_csv(index=False))

    def _write(self, name: str, text: str) -> None:
        partial = self.directory / f".{name}.part"
        partial.write_text(text)
        partial.replace(self.directory / name)


def _shown(cell: dict[str, Any], detailed: bool) -> float | str:
    if "error" in cell:
        return f"error: {cell['error']}" if detailed else "error"
    return cell.get("budget", cell.get("value", math.nan))


def link_latest(directory: Path) -> None:
    """`latest` beside the directory points at it; an older link is replaced, nothing else is."""
    link = directory.parent / "latest"
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        os.symlink(directory.name, link, target_is_directory=True)
