"""The measurements themselves, inside a worker process."""

from __future__ import annotations

import ctypes
import gc
import math
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnops
from attnops_bench.processes import KEEPING
from attnops_bench.random_inputs import DTYPES
from attnops_bench.tables import Case, Column, Inputs, Operator

Emit = Callable[[dict[str, Any]], None]
Cell = dict[str, Any]

MIN_SAMPLE_SECONDS = 0.02
MIN_ROUNDS = 3
# Of a cell's seconds: for the timed rounds, unless all of them are asked for, and those before,
# unless the fewest take longer. A full run has some thousand cells, most of them far from their
# limit.
TIMED_SHARE, WARMUP_SHARE = 0.03, 0.02
# Of a cell's seconds what a peer has, and what attnops, which is to be seen at all sizes. At the
# largest ones even the best peer may miss it; no ratio is shown then.
PEER_SHARE, OWN_SHARE = 0.6, 1.5
# In kept mode glibc settles after a few rounds: aligned requests do not fit the chunks they freed,
# so early rounds still touch new memory. A call of a settled round has fewer faults than this.
SETTLED_FAULTS = 256
MAX_WARMUP_ROUNDS = 12
# What a process waits before it measures after another: threads of the other one may spin so long.
QUIET_SECONDS = 0.03
# Freed chunks that do not fit the next request; the estimates count live tensors only. A peer of
# 14.6 GB was seen to take 23.8.
FRAGMENTATION = 1.6
GIB = 2**30


def _status(field: str, path: str = "/proc/self/status") -> int:
    """A field of a /proc file, in bytes."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{path} has no {field}")


def memory_available() -> int:
    return _status("MemAvailable", "/proc/meminfo")


def over_memory(needed: float, available: float) -> Cell | None:
    if needed <= available:
        return None
    return {"budget": f"~{needed / GIB:.0f} GB > {available / GIB:.0f} GB", "of": "memory"}


def over_time(needed: float, budget: float) -> Cell | None:
    if needed <= budget:
        return None
    return {"budget": f"~{needed:.0f} s > {budget:.0f} s", "of": "time"}


def failure(error: Exception) -> Cell:
    lines = str(error).strip().splitlines()
    return {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"}


def reset_compiler(columns: list[Column]) -> None:
    """Forgets compiled code, so that no size counts towards a recompile limit of another."""
    if any(column.compiled for column in columns):
        import torch._dynamo  # takes a second, which the other columns need not wait for

        torch._dynamo.reset()


def _release() -> None:
    gc.collect()
    attnops.empty_cache()
    ctypes.CDLL(None).malloc_trim(0)


class Timed:
    """One column of a row: `sample` times its pass, the forward of a backward outside."""

    def __init__(
        self,
        column: Column,
        function: Callable[..., torch.Tensor],
        inputs: Inputs,
        needed: int = 0,  # bytes besides the inputs
    ):
        self.column = column
        self._function = function
        self._inputs = inputs
        self._needed = needed
        self.repeats = 1
        self.rounds = 0
        self.seconds = math.inf  # a call
        self.wall = math.inf  # a sample and what is outside
        self.faults_per_call = math.inf
        self.samples: list[float] = []
        self.faults: list[float] = []

    def _start(self) -> Callable[[], Any]:
        function, inputs = self._function, self._inputs
        if inputs.d_out is None:
            return lambda: function(*inputs.args)
        out = function(*inputs.args)
        return lambda: torch.autograd.grad(
            out, inputs.differentiable, inputs.d_out, retain_graph=True
        )

    def result(self) -> Any:
        """What a first call gives; it is timed like a sample."""
        results: list[Any] = []
        self.sample(results.append)
        return results[0]

    def make_room(self) -> None:
        """Gives kept memory back if a call may need more than there is besides. Kept chunks that
        do not fit it would be left lying, until the machine has no more."""
        if memory_available() < self._needed:
            _release()

    def settled(self) -> bool:
        """Whether the last sample found its memory kept."""
        return self.faults_per_call < SETTLED_FAULTS

    def sample(self, use: Callable[[Any], None] = lambda result: None) -> float:
        """Seconds per call; the result is freed within the time, as a user's would be."""
        began = time.perf_counter()
        with torch.set_grad_enabled(self._inputs.d_out is not None):
            call = self._start()
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            start = time.perf_counter()
            for _ in range(self.repeats):
                use(call())
            self.seconds = (time.perf_counter() - start) / self.repeats
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        self.faults_per_call = faults / self.repeats
        self.wall = time.perf_counter() - began
        return self.seconds

    def plan(self, rounds: int, fewest: int, budget: float) -> None:
        """Repeats that make a sample long enough, and as many rounds as the budget allows."""
        self.repeats = max(1, math.ceil(MIN_SAMPLE_SECONDS / max(self.seconds, 1e-7)))
        sample = self.wall + (self.repeats - 1) * self.seconds
        affordable = max(fewest, int(budget / sample))
        self.rounds = min(rounds, affordable)

    def cell(self) -> Cell:
        q1, median, q3 = (float(q) for q in np.percentile(self.samples, (25, 50, 75)) * 1e3)
        return {
            "value": median,
            "q1": q1,
            "q3": q3,
            "rounds": self.rounds,
            "repeats": self.repeats,
            "faults": float(np.median(self.faults)),
        }


def limits() -> dict[str, float]:
    return {
        "bandwidth": attnops.machine.copy_bandwidth(0.2),
        "fma": attnops.machine.fma_peak(0.1),
        "bf16": attnops.machine.bf16_peak(0.1),
    }


def _budget(column: Column, job: dict[str, Any]) -> float:
    """The seconds that a cell of the column may take."""
    return job["cell_seconds"] * (OWN_SHARE if column.role == "attnops" else PEER_SHARE)


def _fewest_rounds(column: Column, seconds: float, job: dict[str, Any]) -> int:
    """Of timed rounds; of attnops, which is to be seen at all sizes, as many as its time allows
    after the check."""
    if column.role != "attnops":
        return MIN_ROUNDS
    return min(MIN_ROUNDS, max(1, int(job["cell_seconds"] / max(seconds, 1e-9)) - 1))


def _warm_up(
    columns: list[Timed],
    job: dict[str, Any],
    starting: Callable[[Column], None],
    emit: Callable[[Column, Cell], None],
) -> dict[str, float]:
    """Two rounds, one if they are long, and in kept mode until memory is reused. A long call that
    was checked and did not compile needs none.

    Columns that turn out to be over the budget are emitted and removed; their seconds are returned.
    """
    enough = WARMUP_SHARE * job["cell_seconds"]
    cold = [t for t in columns if t.column.compiled or t.wall < enough]
    began = time.perf_counter()
    for turn in range(MAX_WARMUP_ROUNDS):
        for timed in cold:
            starting(timed.column)
            timed.make_room()
            timed.sample()
        settled = job["mode"] not in KEEPING or all(t.settled() for t in cold)
        late = time.perf_counter() - began > enough * len(cold)
        if late or (turn > 0 and settled):
            break
    removed = {}
    for timed in list(columns):
        rounds = _fewest_rounds(timed.column, timed.wall, job)
        if over := over_time(timed.wall * rounds, _budget(timed.column, job)):
            emit(timed.column, over)
            columns.remove(timed)
            removed[timed.column.name] = timed.wall
    return removed


def _admit(
    operator: Operator,
    case: Case,
    columns: list[Column],
    inputs: Inputs,
    job: dict[str, Any],
    expected: dict[str, float],
    starting: Callable[[Column], None],
    emit: Callable[[Column, Cell], None],
) -> list[Timed]:
    """The columns that fit the budgets and give the right result; the others are emitted."""
    check = operator.checker(case, inputs)
    tensors = (*inputs.args, inputs.d_out)
    held = sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
    admitted = []
    for column in columns:
        needed = operator.peak_bytes(case, column) * FRAGMENTATION
        # The check, a round before the timed ones if it compiles, and the fewest of those.
        seconds = expected.get(column.name, 0.0)
        rounds = _fewest_rounds(column, seconds, job) + (2 if column.compiled else 1)
        over = over_memory(needed, job["memory"]) or over_time(
            seconds * rounds, _budget(column, job)
        )
        if over:
            emit(column, over)
            continue
        starting(column)
        try:
            timed = Timed(
                column,
                operator.function(case, column, inputs),
                inputs,
                operator.peak_bytes(case, column) - held,
            )
            timed.make_room()
            problem = check(column, timed.result())
        except Exception as error:  # a peer may fail in any way; the row goes on without it
            emit(column, failure(error))
            continue
        if problem:
            emit(column, {"error": problem})
        else:
            admitted.append(timed)
    return admitted


def _speed_row(
    operator: Operator,
    case: Case,
    columns: list[Column],
    job: dict[str, Any],
    expected: dict[str, float],
    emit: Emit,
    wait_for_turn: Callable[[], None],
) -> dict[str, float]:
    """Measures a row; returns seconds per round by column, to predict the next size."""

    def emit_cell(column: Column, cell: Cell) -> None:
        emit({"event": "cell", "n": case.n, "column": column.name, "cell": cell})

    def starting(column: Column) -> None:
        emit({"event": "start", "n": case.n, "column": column.name})

    if over := over_memory(operator.cost(case).held, job["memory"]):
        for column in columns:  # not even the inputs fit
            emit_cell(column, over)
        return {}
    inputs = operator.inputs(case)
    admitted = _admit(operator, case, columns, inputs, job, expected, starting, emit_cell)
    removed = _warm_up(admitted, job, starting, emit_cell)
    for timed in admitted:
        fewest = _fewest_rounds(timed.column, timed.wall, job)
        seconds = TIMED_SHARE * job["cell_seconds"]
        if job["all_rounds"]:
            seconds = _budget(timed.column, job)
        timed.plan(job["rounds"], fewest, seconds)
    gc.collect()
    gc.disable()
    try:
        for turn in range(job["rounds"]):
            if job["in_turns"]:
                wait_for_turn()
                time.sleep(QUIET_SECONDS)
            # What a column leaves in caches and memory is the next one's to bear, and a large peer
            # leaves more: each round has an order of its own.
            for timed in random.Random(turn).sample(admitted, len(admitted)):
                if turn < timed.rounds:
                    timed.make_room()
                    if job["in_turns"]:  # another process had the caches
                        timed.sample()
                    seconds = timed.sample()
                    if job["mode"] in KEEPING and not timed.settled():  # memory was given back
                        seconds = timed.sample()
                    timed.samples.append(seconds)
                    timed.faults.append(timed.faults_per_call)
    finally:
        gc.enable()
    for timed in admitted:
        emit_cell(timed.column, timed.cell())
    rounds = {
        t.column.name: t.wall - (t.repeats - 1) * float(np.median(t.samples)) for t in admitted
    }
    return rounds | removed


def speed(
    operator: Operator,
    job: dict[str, Any],
    case_at: Callable[[int], Case],
    emit: Emit,
    wait_for_turn: Callable[[], None],
) -> None:
    """Rows of a speed table, sizes ascending; the columns of a row take turns.

    Of a job in turns, `wait_for_turn` is called before each round and returns when no other
    process measures.
    """
    # The compiled backward is called again and again on one graph, which donation forbids.
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    job = {**job, "memory": memory_available()}
    with_limits = job["mode"] == "kept"
    # Measured again after each row, which is before the next one.
    before = limits() if with_limits else {}
    precision = attnops.effective_precision(DTYPES[job["dtype"]])

    def emit_limits(n: int, found: dict[str, float]) -> None:
        emit({"event": "limits", "n": n, "limits": found, "precision": precision})

    by_name = {c.name: c for c in operator.columns}
    expected: dict[str, float] = {}
    for row, following in zip(job["rows"], [*job["rows"][1:], None], strict=True):
        columns = [by_name[name] for name in row["columns"]]
        reset_compiler(columns)
        if with_limits:  # in case the process does not live to measure them again
            emit_limits(row["n"], before)
        case = case_at(row["n"])
        seconds = _speed_row(operator, case, columns, job, expected, emit, wait_for_turn)
        _release()  # chunks of this size would lie about unused and crowd the next
        if with_limits:
            after = limits()
            best = {name: max(before[name], after[name]) for name in before}
            emit_limits(row["n"], best)
            # Bandwidth comes and goes with a machine's other users; its units are as many as ever,
            # and less of them was a processor taken away.
            before = {**best, "bandwidth": after["bandwidth"]}
        if following:
            moved = [operator.cost(case_at(r["n"])).moved for r in (row, following)]
            growth = moved[1] / moved[0]
            expected = {name: growth * t for name, t in {**expected, **seconds}.items()}


def _pass_once(function: Callable[..., torch.Tensor], inputs: Inputs) -> Any:
    if inputs.d_out is None:
        with torch.no_grad():
            return function(*inputs.args)
    out = function(*inputs.args)
    return out, torch.autograd.grad(out, inputs.differentiable, inputs.d_out)


def _peak(operator: Operator, case: Case, column: Column, small: Case) -> Cell:
    """Peak memory of the pass with its inputs, after a first run in which libraries allocate what
    they keep: of a small case, or of this one if it must be compiled. `seconds` is what both took
    without compiling, which foretells the next size.

    What the function of a column holds (a table) counts as an input, unless it is compiled code.
    """
    first = case if column.compiled else small
    inputs = operator.inputs(first)
    function = operator.function(first, column, inputs)
    _pass_once(function, inputs)
    del inputs
    if not column.compiled:
        del function
    _release()
    noted = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    began = time.perf_counter()
    inputs = operator.inputs(case)
    if not column.compiled:
        function = operator.function(case, column, inputs)
    result = _pass_once(function, inputs)
    value = (_status("VmHWM") - noted) / 2**20
    checked = result if inputs.d_out is None else result[1]
    problem = operator.checker(case, inputs)(column, checked)
    seconds = (time.perf_counter() - began) * (2 if column.compiled else 1)
    return ({"error": problem} if problem else {"value": value}) | {"seconds": seconds}


def memory(operator: Operator, job: dict[str, Any], case_at: Callable[[int], Case], emit: Emit):
    """Rows of one column of a memory table, sizes ascending."""
    by_name = {c.name: c for c in operator.columns}
    per_byte = job["per_byte"]  # of a smaller size
    for row in job["rows"]:
        case = case_at(row["n"])
        column = by_name[row["columns"][0]]
        reset_compiler([column])
        _release()
        emit({"event": "start", "n": case.n, "column": column.name})
        moved = operator.cost(case).moved
        cell = over_memory(operator.peak_bytes(case, column), memory_available())
        cell = cell or over_time(per_byte * moved, _budget(column, job))
        if cell is None:
            try:
                cell = _peak(operator, case, column, case_at(min(case.n, job["smallest"])))
            except Exception as error:  # shown in the cell; the other sizes go on
                cell = failure(error)
            per_byte = cell.pop("seconds", per_byte * moved) / moved
            cell["per_byte"] = per_byte
        emit({"event": "cell", "n": case.n, "column": column.name, "cell": cell})
