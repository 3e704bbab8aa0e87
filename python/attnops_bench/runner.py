"""Turns tables into jobs, runs them and fills the results."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from attnops_bench.processes import OUT_OF_MEMORY, STOPPED, Turns, Workers
from attnops_bench.results import Results
from attnops_bench.tables import Case, Column, Table, operators

# Tables whose estimates stay below this share a process per mode, which saves importing torch and
# its compiler anew. Above it a process ends with its table, so that the memory it keeps does not
# crowd the next.
SMALL_BYTES = 2 << 30
# Columns of a memory table at once, if the machine's memory allows: they are not timed.
MOST_AT_ONCE = 4


@dataclass(frozen=True)
class Settings:
    threads: int
    rounds: int
    # Whether there are to be that many, if a cell's seconds allow.
    all_rounds: bool
    cell_seconds: float
    # Those of a table's sizes that are also timed in a plain process.
    plain: Callable[[Table, list[int]], list[int]]
    # Names of the peers wanted; None for all, empty for attnops alone.
    peers: tuple[str, ...] | None


def columns_of(table: Table, peers: tuple[str, ...] | None) -> list[Column]:
    """The columns wanted."""
    return [
        c
        for c in operators()[table.operator].columns
        if table.kind in c.kinds and (c.role == "attnops" or peers is None or c.name in peers)
    ]


def own_column(columns: list[Column]) -> Column:
    """The column that is compared with the peers: the first of attnops."""
    return next(c for c in columns if c.role == "attnops")


def weight(table: Table, n: int, column: Column) -> float:
    """A rough estimate of the seconds a cell takes; the shares of it are the time left."""
    moved = operators()[table.operator].cost(Case.of(table, n, 1)).moved
    return (3.0 if column.compiled else 0.5) + moved / 1e9


def plain_weight(table: Table, n: int, own: Column) -> float:
    """The weight of a row in the plain process, which has attnops and the best peer, and of what
    takes turns with it."""
    return 3.0 + 2 * weight(table, n, own)


class Runner:
    """Runs tables one by one; `advance` is called with the weight of what is done."""

    def __init__(self, settings: Settings, results: Results, advance: Callable[[float], None]):
        self._settings = settings
        self._results = results
        self._advance = advance
        self._workers = Workers()

    def run(self, table: Table, sizes: list[int]) -> None:
        columns = columns_of(table, self._settings.peers)
        self._results.begin(table, columns)
        before = self.left(table, sizes)
        self._results.borrow_rows(table, sizes)
        left = self.left(table, sizes)
        if left < before:
            self._advance(before - left)
            self._results.save()
        if not left:
            return
        try:
            if table.kind == "speed":
                self._speed(table, sizes, columns)
            else:
                self._memory(table, sizes, columns)
        except KeyboardInterrupt:
            self._workers.stop()
            raise

    def left(self, table: Table, sizes: list[int]) -> float:
        """The weight of what the results do not have yet."""
        columns = columns_of(table, self._settings.peers)
        if table.kind == "memory":
            return sum(
                weight(table, row["n"], c)
                for c in columns
                for row in self._missing(table, sizes, [c], "memory")
            )
        kept = self._missing(table, sizes, columns, "kept")
        total = sum(weight(table, row["n"], c) for row in kept for c in columns)
        own = own_column(columns)
        return total + sum(plain_weight(table, n, own) for n in self._plain_left(table, sizes, own))

    def close(self) -> None:
        self._workers.close()

    def stop(self) -> None:
        """Ends the workers at once."""
        self._workers.stop()

    def _missing(
        self, table: Table, sizes: list[int], columns: list[Column], mode: str
    ) -> list[dict[str, Any]]:
        """The rows of a job, those left out of which the results have every cell."""
        names = [c.name for c in columns]
        return [
            {"n": n, "columns": names}
            for n in sizes
            if not self._results.has(table, n, names, mode)
        ]

    def _plain_left(self, table: Table, sizes: list[int], own: Column) -> list[int]:
        """The sizes that are still to be timed in a plain process and beside it."""
        return [
            n
            for n in self._settings.plain(table, sizes)
            if not all(self._results.has(table, n, [own.name], m) for m in ("plain", "beside"))
        ]

    def _peak(self, table: Table, sizes: list[int]) -> int:
        """The estimate of the column that takes the most memory."""
        operator = operators()[table.operator]
        largest = Case.of(table, max(sizes), self._settings.threads)
        columns = columns_of(table, self._settings.peers)
        return max(operator.peak_bytes(largest, c) for c in columns)

    def _job(self, table: Table, mode: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "kind": table.kind,
            "mode": mode,
            "operator": table.operator,
            "direction": table.direction,
            "dtype": table.dtype,
            "options": table.options,
            "threads": self._settings.threads,
            "rounds": self._settings.rounds,
            "all_rounds": self._settings.all_rounds,
            "cell_seconds": self._settings.cell_seconds,
            "rows": rows,
        }

    def _run_rows(
        self,
        table: Table,
        mode: str,
        rows: list[dict[str, Any]],
        on_cell: Callable[[int, str], None] = lambda n, column: None,
        at_once: int = 1,
        turns: Turns | None = None,
    ) -> None:
        """Runs rows in one worker. When it dies, the column at fault gets the error, and a new
        worker goes on with what is left."""
        if not rows:
            return
        small = self._peak(table, [r["n"] for r in rows]) < SMALL_BYTES
        keep = table.kind == "memory" or small  # memory is measured in children of the worker
        left = [(row["n"], column) for row in rows for column in row["columns"]]
        started: list[tuple[int, str]] = []

        def finish(n: int, column: str, cell: dict[str, Any]) -> None:
            self._results.add(table, n, column, mode, cell)
            left.remove((n, column))
            on_cell(n, column)

        def on_event(event: dict[str, Any]) -> None:
            match event["event"]:
                case "start":
                    started[:] = [(event["n"], event["column"])]
                case "cell":
                    finish(event["n"], event["column"], event["cell"])
                case "limits":
                    self._results.add_limits(table, event["n"], event["limits"], event["precision"])
                case "environment":
                    self._results.add_environment(event)
                case "ready":
                    assert turns
                    turns.wait()

        while left:
            started.clear()
            rows = [
                {"n": n, "columns": [column for _, column in group]}
                for n, group in groupby(left, key=itemgetter(0))
            ]
            job = self._job(table, mode, rows)
            job["cell_seconds"] *= at_once  # they share the processors
            if table.kind == "memory":
                job["per_byte"] = self._results.per_byte(table, *left[0])
                job["smallest"] = min(table.sizes)
            else:
                job["in_turns"] = turns is not None
            problem = self._workers.run(job, on_event, keep=keep)
            if problem is None or problem == STOPPED:
                return
            for n, column in self._at_fault(table, problem, started, left):
                finish(n, column, {"error": problem})

    def _at_fault(
        self,
        table: Table,
        problem: str,
        started: list[tuple[int, str]],
        left: list[tuple[int, str]],
    ) -> list[tuple[int, str]]:
        """The cell in which a worker died. If memory ran out, it is the greediest of the row, all
        of whose columns had their turns."""
        running = [cell for cell in started if cell in left]
        if not running:  # the worker itself cannot run, and would not for the other cells
            return list(left)
        if OUT_OF_MEMORY not in problem:
            return running
        operator = operators()[table.operator]
        columns = {c.name: c for c in operator.columns}
        case = Case.of(table, running[0][0], self._settings.threads)
        row = [cell for cell in left if cell[0] == case.n]
        return [max(row, key=lambda cell: operator.peak_bytes(case, columns[cell[1]]))]

    def _speed(self, table: Table, sizes: list[int], columns: list[Column]) -> None:
        by_name = {c.name: c for c in columns}

        def on_cell(n: int, column: str) -> None:
            self._advance(weight(table, n, by_name[column]))

        self._run_rows(table, "kept", self._missing(table, sizes, columns, "kept"), on_cell)
        self._results.save()
        own = own_column(columns)
        if left := self._plain_left(table, sizes, own):
            self._plain(table, left, own)
            self._results.save()

    def _plain(self, table: Table, sizes: list[int], own: Column) -> None:
        """Times attnops and the best peer in a plain process, in turns with a process that keeps
        its memory and has attnops alone: a machine with other users is another one later."""
        columns: dict[str, Callable[[int], list[str | None]]] = {
            "plain": lambda n: [own.name, self._results.best_peer(table, n)],
            "beside": lambda n: [own.name],
        }
        turns = Turns(len(columns))

        def run(mode: str) -> float:
            rows = [{"n": n, "columns": [c for c in columns[mode](n) if c]} for n in sizes]
            try:
                self._run_rows(table, mode, rows, turns=turns)
            finally:
                turns.leave()
            return sum(plain_weight(table, n, own) for n in sizes) / len(columns)

        self._at_once(len(columns), [partial(run, mode) for mode in columns])

    def _at_once(self, most: int, tasks: list[Callable[[], float]]) -> None:
        """Runs tasks in so many threads; they return the weight of what they did."""
        with ThreadPoolExecutor(most) as pool:
            try:
                for done in pool.map(lambda task: task(), tasks):
                    self._advance(done)
            except KeyboardInterrupt:
                self._workers.stop()  # or the pool would wait for them
                raise

    def _memory(self, table: Table, sizes: list[int], columns: list[Column]) -> None:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

        def fitting(n: int) -> int:
            most = free // (2 * self._peak(table, [n]))  # the estimates are rough
            return max(1, min(MOST_AT_ONCE, os.cpu_count() or 1, most))

        for at_once, group in groupby(sizes, key=fitting):
            self._memory_of(table, list(group), columns, at_once)
        self._results.save()

    def _memory_of(
        self, table: Table, sizes: list[int], columns: list[Column], at_once: int
    ) -> None:
        def measure(column: Column) -> float:
            rows = self._missing(table, sizes, [column], "memory")
            done = sum(weight(table, row["n"], column) for row in rows)
            self._results.borrow(table, column, [row["n"] for row in rows])
            rows = self._missing(table, sizes, [column], "memory")
            self._run_rows(table, "memory", rows, at_once=at_once)
            return done

        self._at_once(at_once, [partial(measure, column) for column in columns])
