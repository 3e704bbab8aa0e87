"""The SIMD target in use, the precision of products, and the memory kept for results."""

import torch

from attnops import _choices

_ops = torch.ops.attnops


def supported_targets() -> list[str]:
    """Names of the compiled SIMD targets that this CPU has, best first."""
    return _ops.supported_targets().split()


def compiled_targets() -> list[str]:
    """Names of all compiled SIMD targets, best first."""
    return _ops.compiled_targets().split()


def get_target() -> str:
    """Name of the SIMD target in use."""
    return _ops.get_target()


def set_target(name: str) -> None:
    """Force a SIMD target by its name.

    An empty name goes back to ATTNOPS_TARGET or, without it, the best.
    """
    _ops.set_target(name)


def get_precision() -> str:
    """The precision of calls that do not name one."""
    return _choices.PRECISIONS[_ops.get_precision()]


def set_precision(name: str) -> None:
    """Set the precision of calls that do not name one, in the whole process.

    `highest` multiplies float32, `high` keeps at least 16 significant bits of an intermediate,
    `medium` rounds it to bfloat16 as PyTorch does, and `auto` is `medium` for bfloat16 tensors
    where the CPU has instructions for it, else `highest`. ATTNOPS_PRECISION sets it from outside.
    """
    _ops.set_precision(_choices.number("set_precision", "name", _choices.PRECISIONS, name))


def effective_precision(dtype: torch.dtype, precision: str | None = None) -> str:
    """What a call with tensors of this type runs as on this CPU: highest, high or medium."""
    number = _choices.precision("effective_precision", precision)
    if dtype != torch.bfloat16:
        return "highest"
    return _choices.PRECISIONS[_ops.effective_precision(number)]


def empty_cache() -> None:
    """Give the memory that is kept for later results back to the system."""
    _ops.empty_cache()
