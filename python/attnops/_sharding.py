"""Whether a call is one with DTensors, which attnops.distributed takes."""

from collections.abc import Callable
from typing import Any


def sharded(*tensors: object) -> bool:
    """Whether one of them is a DTensor. torch.distributed.tensor is not imported for it."""
    return any(type(x).__name__ == "DTensor" for x in tensors)


def handler(op: str) -> Callable[..., Any]:
    """The function for DTensors; it takes the arguments of the operator by name."""
    from attnops.distributed import _dtensor

    return getattr(_dtensor, op)
