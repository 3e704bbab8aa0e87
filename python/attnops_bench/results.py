"""The results of a run: kept in one JSON document, written as JSON and CSV.

A cell is `{"value", ...}` in ms or MB, `{"error": text}` or `{"budget": text, "of": "time" or
"memory"}`, by mode: `memory` in memory tables; in speed tables `kept`, and of some sizes `plain`
and what takes turns with it, `beside`: attnops in a process that keeps its memory.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd

from attnops_bench import document, files, view
from attnops_bench.tables import Case, Column, Table, operators

SCHEMA = 1
UNITS = {"speed": "ms", "memory": "MB"}
NAME = "results.json"


class BadResults(Exception):
    """A result file that cannot be read; the text says which and why."""


class Results:
    """`directory` is made by the first `save`. `settings` are those of the command line."""

    def __init__(
        self, directory: Path, environment: dict[str, Any], settings: dict[str, Any] | None = None
    ):
        self.directory = directory
        self.environment = environment
        self.settings = settings or {}
        self.tables: dict[str, dict[str, Any]] = {}
        # Tables asked for whose operator is not there: id to operator.
        self.missing: dict[str, str] = {}

    @classmethod
    def load(cls, path: Path) -> Results:
        """From a result directory or its results.json."""
        file = path / NAME if path.is_dir() else path
        try:
            content = json.loads(file.read_text())
            schema = content.get("schema") if isinstance(content, dict) else None
            if isinstance(schema, int) and schema != SCHEMA:
                raise BadResults(f"{file} has schema {schema}; expected {SCHEMA}")
            document.check(content)
        except OSError as error:
            raise BadResults(f"cannot read {file}: {error.strerror}") from error
        except ValueError as error:
            raise BadResults(f"{file} is not a result file of attnops-bench: no JSON") from error
        except document.Malformed as error:
            raise BadResults(f"{file} is not a result file of attnops-bench: {error}") from error
        results = cls(file.parent, content["environment"], content.get("settings"))
        results.missing = content.get("missing", {})
        for id_, data in content["tables"].items():
            rows = {int(n): row for n, row in data["rows"].items()}
            results.tables[id_] = {**data, "rows": rows}
        return results

    def begin(self, table: Table, columns: list[Column]) -> None:
        self.tables.setdefault(
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
        return self.tables[table.id]["rows"].setdefault(n, {"cells": {}, "limit": None})

    def has(self, table: Table, n: int, columns: list[str], mode: str) -> bool:
        """Whether all these cells are there."""
        rows = self.tables.get(table.id, {"rows": {}})["rows"]
        return n in rows and all(mode in rows[n]["cells"].get(c, {}) for c in columns)

    def _like(self, table: Table, regardless: tuple[str, ...]) -> list[dict[str, Any]]:
        """Tables that differ in nothing but these options."""

        def same(data: dict[str, Any]) -> bool:
            kept = {k: v for k, v in data["options"].items() if k not in regardless}
            wanted = {k: v for k, v in table.options.items() if k not in regardless}
            keys = ("operator", "kind", "direction", "dtype")
            return kept == wanted and all(data[key] == getattr(table, key) for key in keys)

        return [data for data in self.tables.values() if same(data)]

    def borrow_rows(self, table: Table, sizes: list[int]) -> None:
        """Whole rows from a table that differs in nothing that matters to any column."""
        if not table.regardless:
            return
        own = self.tables[table.id]["rows"]
        for data in self._like(table, table.regardless):
            for n in sizes:
                if n in data["rows"] and n not in own:
                    own[n] = copy.deepcopy(data["rows"][n])

    def borrow(self, table: Table, column: Column, sizes: list[int]) -> None:
        """Memory of a column from a table that differs in nothing that matters to it."""
        for data in self._like(table, column.regardless):
            for n in sizes:
                cell = data["rows"].get(n, {"cells": {}})["cells"].get(column.name, {})
                if "memory" in cell:
                    self.add(table, n, column.name, "memory", cell["memory"])

    def per_byte(self, table: Table, n: int, column: str) -> float:
        """Seconds that the memory of the next smaller size took, a byte; 0 if it is not there."""
        rows = self.tables[table.id]["rows"]
        smaller = max((size for size in rows if size < n), default=None)
        cells = rows[smaller]["cells"] if smaller is not None else {}
        return cells.get(column, {}).get("memory", {}).get("per_byte", 0.0)

    def add(self, table: Table, n: int, column: str, mode: str, cell: dict[str, Any]) -> None:
        self._row(table, n)["cells"].setdefault(column, {})[mode] = cell
        if table.kind == "memory":
            held = operators()[table.operator].cost(Case.of(table, n, 1)).held
            self._row(table, n)["limit"] = {"value": held / 2**20}

    def add_limits(
        self, table: Table, n: int, limits: dict[str, float], precision: str = "highest"
    ) -> None:
        """`precision` is what the products of attnops ran as."""
        cost = operators()[table.operator].cost(Case.of(table, n, 1))
        peaks = (limits["fma"], limits.get("bf16", 0.0))
        seconds = max(cost.moved / limits["bandwidth"], cost.flop_seconds(precision, *peaks))
        self._row(table, n)["limit"] = {
            "value": seconds * 1e3,
            "bytes": cost.moved,
            "flops": cost.flops,
            **({} if cost.direct is None else {"precision": precision}),
            **limits,
        }
        # The best seen in the run stands for the machine; each row keeps its own.
        machine = self.environment.setdefault("limits", {})
        for name, value in limits.items():
            machine[name] = max(machine.get(name, 0.0), value)

    def add_environment(self, event: dict[str, Any]) -> None:
        self.environment.update({k: v for k, v in event.items() if k != "event"})

    def best_peer(self, table: Table, n: int) -> str | None:
        return view.best_peer(self.tables[table.id], n)

    def errors(self, table: Table) -> list[str]:
        return view.errors(self.tables[table.id])

    def frame(self, table: Table, detailed: bool = False) -> pd.DataFrame:
        return view.frame(self.tables[table.id], detailed)

    def text(self, table: Table) -> str:
        return view.text(table.id, self.tables[table.id])

    def save(self) -> None:
        """Writes everything measured so far; a file is never seen half written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        content = {
            "schema": SCHEMA,
            "environment": self.environment,
            "settings": self.settings,
            "missing": self.missing,
            "tables": self.tables,
        }
        files.write(self.directory / NAME, json.dumps(content, indent=1))

    def save_csv(self, table: Table) -> None:
        """The frame, behind lines that start with `#` and say where it was made."""
        about = "".join(f"# {key}: {value}\n" for key, value in self.environment.items())
        frame = self.frame(table, detailed=True)
        files.write(self.directory / f"{table.id}.csv", about + frame.to_csv(index=False))


def link_latest(directory: Path) -> None:
    """`latest` beside the directory points at it; an older link is replaced, nothing else is."""
    link = directory.parent / "latest"
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        os.symlink(directory.name, link, target_is_directory=True)
