"""Starts workers with the environment of their mode and reads their events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attnops

# Freed memory stays with the process. Older glibc ignores a threshold above 32 MB, hence
# MALLOC_MMAP_MAX_; the page faults recorded with every cell show that it works.
KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(256 << 30),
    "MALLOC_TOP_PAD_": str(1 << 30),
}
KEEPING = ("kept", "beside")  # modes whose processes keep freed memory
STOPPED = "stopped"
OUT_OF_MEMORY = " (out of memory?)"


def environment(mode: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    if mode in KEEPING:
        env |= KEPT
    # Idle compile processes of Inductor would hold memory and take time from what is measured.
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    root = str(Path(attnops.__file__).parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH")) if p)
    return env


def patience_for(job: dict[str, Any]) -> float:
    """Seconds after which a worker without an event hangs: all columns of a row, and a compiler."""
    columns = max(len(row["columns"]) for row in job["rows"])
    return job["cell_seconds"] * (columns + 2) + 120


class Turns:
    """Jobs that run at once and measure one at a time, in turns. None measures before all are
    ready, nor while another prepares its next row."""

    def __init__(self, jobs: int):
        self._jobs = jobs
        self._waiting: list[int] = []
        self._changed = threading.Condition()

    def wait(self) -> None:
        """Ends this thread's turn; returns when the next one comes."""
        me = threading.get_ident()
        with self._changed:
            self._waiting.append(me)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: len(self._waiting) == self._jobs and self._waiting[0] == me
            )
            self._waiting.pop(0)

    def leave(self) -> None:
        """The others go on without this one."""
        with self._changed:
            self._jobs -= 1
            self._changed.notify_all()


class Worker:
    """A worker process, fed one job after another."""

    def __init__(self, mode: str):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the worker)
        self._overdue: str | None = None
        # A session of its own: Ctrl-C reaches the driver only, which then kills its workers.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attnops_bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(mode),
            start_new_session=True,
        )

    def run(self, job: dict[str, Any], on_event: Callable[[dict[str, Any]], None]) -> str | None:
        """Blocks until the job is done; returns why the process died instead, or None."""
        assert self._process.stdout
        patience = patience_for(job)
        self._send(json.dumps(job))
        while True:
            watch = threading.Timer(patience, self._give_up, [patience])
            watch.daemon = True
            watch.start()
            try:
                line = self._process.stdout.readline()
            finally:
                watch.cancel()  # Ctrl-C must not leave it to wait for
            if not line:
                return self._reason(self._process.wait())
            event = json.loads(line)
            if event["event"] == "end":
                return None
            on_event(event)
            if event["event"] == "ready":
                self._send("go")

    def _send(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died before; its exit code and stderr say why

    def _give_up(self, patience: float) -> None:
        self._overdue = f"stopped: nothing heard for {patience:.0f} s"
        self.kill()

    def _reason(self, returncode: int) -> str:
        if self._overdue:
            return self._overdue
        if returncode < 0:
            name = signal.Signals(-returncode).name
            return f"worker ended by {name}" + (OUT_OF_MEMORY if name == "SIGKILL" else "")
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return f"worker failed: {lines[-1] if lines else f'exit code {returncode}'}"

    def kill(self) -> None:
        """Ends the worker and the compilers it may have started, which share its session."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        with self._process:
            pass  # closes stdin, at whose end the worker exits, and waits
        self._errors.close()


class Workers:
    """Runs jobs, several at once from several threads; `stop` ends them all."""

    def __init__(self) -> None:
        self._live: set[Worker] = set()
        self._idle: defaultdict[str, list[Worker]] = defaultdict(list)
        self._lock = threading.Lock()
        self._stopped = False

    def run(
        self, job: dict[str, Any], on_event: Callable[[dict[str, Any]], None], keep: bool
    ) -> str | None:
        """Why the job failed, or None. With `keep` the process serves the next job of its mode."""
        mode = job["mode"]
        with self._lock:
            if self._stopped:
                return STOPPED
            worker = self._idle[mode].pop() if self._idle[mode] else Worker(mode)
            self._live.add(worker)
        problem = worker.run(job, on_event)
        with self._lock:
            if self._stopped:
                return STOPPED
            if keep and problem is None:
                self._idle[mode].append(worker)
                return None
            self._live.discard(worker)
        worker.close()
        return problem

    def stop(self) -> None:
        """Kills the workers; jobs that are under way return STOPPED."""
        with self._lock:
            self._stopped = True
            for worker in self._live:
                worker.kill()

    def close(self) -> None:
        for worker in self._live:
            worker.close()
