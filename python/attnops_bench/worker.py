"""A measuring process: jobs as JSON lines on stdin, events as JSON lines on stdout.

It is a process of its own so that the malloc settings can differ from mode to mode, and so that a
crash or the kernel's out-of-memory killer takes one row and not the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch

import attnops
from attnops_bench import measure
from attnops_bench.tables import Case, operators


def wait_for_turn(emit: measure.Emit) -> None:
    emit({"event": "ready"})
    if not sys.stdin.readline():
        sys.exit(0)  # nobody is left to report to


def run(job: dict[str, Any], emit: measure.Emit) -> None:
    torch.set_num_threads(job["threads"])
    attnops.set_precision(job["options"].get("precision", "auto"))
    emit(
        {
            "event": "environment",
            "target": attnops.get_target(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
    )

    def case_at(n: int) -> Case:
        return Case(
            job["operator"], job["direction"], n, job["dtype"], job["options"], job["threads"]
        )

    operator = operators()[job["operator"]]
    if job["kind"] == "memory":
        measure.memory(operator, job, case_at, emit)
    else:
        measure.speed(operator, job, case_at, emit, partial(wait_for_turn, emit))


def run_in_child(job: dict[str, Any], emit: measure.Emit) -> None:
    """Runs a job in a process of its own, without the seconds that a new one takes for its
    imports: nothing has been computed yet in this one. If it fails, so does this one."""
    columns = {c.name: c for c in operators()[job["operator"]].columns}
    if any(columns[name].compiled for row in job["rows"] for name in row["columns"]):
        import torch._inductor.compile_fx  # noqa: F401  (for this child and all that follow)
    child = os.fork()
    if child == 0:
        try:
            run(job, emit)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    elif code > 0:
        sys.exit(code)


def main() -> None:
    # If memory runs out, it is the measurement that should end, not another process of the user.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Whatever torch or a compiler prints must not mix with the events.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def emit(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")

    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        if job["kind"] == "memory":
            run_in_child(job, emit)
        else:
            run(job, emit)
        emit({"event": "end"})


if __name__ == "__main__":
    main()
