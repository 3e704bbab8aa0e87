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
from pathlib import Path
from typing import Any

import torch

import attnops
from attnops.bench import measure
from attnops.bench.tables import Case, operators


def run(job: dict[str, Any], emit: measure.Emit) -> None:
    torch.set_num_threads(job["threads"])
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

    pass_ = measure.speed if job["kind"] == "speed" else measure.memory
    pass_(operators()[job["operator"]], job, case_at, emit)


def main() -> None:
    # If memory runs out, it is the measurement that should end, not another process of the user.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Whatever torch or a compiler prints must not mix with the events.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def emit(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")

    for line in sys.stdin:
        run(json.loads(line), emit)
        emit({"event": "end"})


if __name__ == "__main__":
    main()
