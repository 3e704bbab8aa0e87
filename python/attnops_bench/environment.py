"""What a result file says about where it was made."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import attnops

CPU_INFO = Path("/proc/cpuinfo")


def _cpu_info(*names: str) -> str | None:
    """The first line of one of these names."""
    try:
        for line in CPU_INFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in names:
                return value.strip()
    except OSError:
        pass  # not Linux
    return None


def cpu_model() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None


def commit() -> str | None:
    """The commit of the attnops checkout it runs from, `-dirty` behind it if files have changed.

    None when the package sits in no checkout, or in the environment of another project.
    """
    directory = Path(attnops.__file__).parent
    root = _git(directory, "rev-parse", "--show-toplevel")
    if root is None or not (Path(root) / "python" / "attnops_bench").is_dir():
        return None
    return _git(directory, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def describe(threads: int) -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "threads": threads,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "attnops": version("attnops"),
    }
