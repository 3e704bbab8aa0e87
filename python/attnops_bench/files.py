"""Files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replaces the file in one step. An error names it, which that of a full disk does not."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
