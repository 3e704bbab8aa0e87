"""Whether a call is one with DTensors, which attnops.distributed takes."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def sharded(*tensors: object) -> bool:
    """Whether one of them is a DTensor. torch.distributed.tensor is not imported for it."""
    # A generator would be half a microsecond of a call for one token.
    for x in tensors:  # noqa: SIM110
        if type(x) is not Tensor and type(x).__name__ == "DTensor":
            return True
    return False


def handler(op: str) -> Callable[..., Any]:
    """The function for DTensors; it takes the arguments of the operator by name."""
    from attnops.distributed import _dtensor

    return getattr(_dtensor, op)
