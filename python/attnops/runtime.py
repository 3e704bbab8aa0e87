"""The SIMD target in use and the memory kept for results."""

import torch

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


def empty_cache() -> None:
    """Give the memory that is kept for later results back to the system."""
    _ops.empty_cache()
