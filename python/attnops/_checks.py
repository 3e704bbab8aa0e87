"""The kernels' checks for tensors without data (meta, fake), with the kernels' texts.

On real tensors the C++ library checks; a test holds the two against each other.
"""

from typing import NoReturn

import torch
from torch import Tensor

_ACTIVATIONS = ("none", "relu", "sigmoid", "silu", "softmax")
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_MAX_AXES = 8
_MAX_OFFSET = 2**31


def fail(op: str, text: str) -> NoReturn:
    """Raise the error that the kernel would."""
    raise ValueError(f"{op}: {text}")


def shape(tensor: Tensor) -> str:
    """(2, 3, 4), also for one axis."""
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


def type_name(tensor: Tensor) -> str:
    """float32, not torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def activation(op: str, act_name: str, act: str, dim_name: str, dim: int | None) -> None:
    """An activation's name and whether its dim is given where it must be."""
    if act not in _ACTIVATIONS:
        fail(op, f'{act_name} must be one of {", ".join(_ACTIVATIONS)}; it is "{act}"')
    if act == "softmax" and dim is None:
        fail(op, f"{dim_name} is required when {act_name} is softmax")
    if act != "softmax" and dim is not None:
        fail(op, f"{dim_name} is for softmax only; {act_name} is {act}")


def softmax_axis(
    op: str, act: str, dim_name: str, dim: int | None, axes: int, sequence: int
) -> None:
    """A softmax runs along the features or the sequence."""
    if act == "softmax" and (dim + axes if dim < 0 else dim) not in (axes - 1, sequence):
        fail(
            op,
            f"{dim_name} of the softmax must be {axes - 1} (features) or {sequence} (sequence) "
            f"for {axes} axes; it is {dim}",
        )


def tensor(op: str, name: str, value: Tensor) -> None:
    """A tensor of a supported type and number of axes."""
    if value.dtype not in _TYPES:
        fail(op, f"{name} must be float32, float16 or bfloat16; it is {type_name(value)}")
    if not 1 <= value.ndim <= _MAX_AXES:
        fail(op, f"{name} has {value.ndim} axes (expected 1 to {_MAX_AXES})")


def axes(op: str, name: str, value: Tensor, names: str) -> None:
    """As many axes as are named: "(B,H,N,D)"."""
    wanted = names.count(",") + 1
    if value.ndim != wanted:
        fail(op, f"{name} must have {wanted} axes {names}; its shape is {shape(value)}")


def same_size(op: str, name: str, size: int, what: str, other_name: str, expected: int) -> None:
    """The sizes of an axis that two tensors share."""
    if size != expected:
        fail(op, f"{name} has {size} {what}; {other_name} has {expected}")


def angle_type(op: str, x: Tensor, theta: Tensor) -> None:
    """Theta has x's type or float32."""
    if theta.dtype not in (x.dtype, torch.float32):
        fail(
            op,
            f"theta must be float32 or have the type of x, {type_name(x)}; "
            f"it is {type_name(theta)}",
        )


def offset(op: str, value: int) -> None:
    """Positions are exact for offsets within ±2^31."""
    if not -_MAX_OFFSET <= value <= _MAX_OFFSET:
        fail(op, f"offset must be within ±{_MAX_OFFSET}; it is {value}")


def same_shape_and_type(op: str, name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """As an output or a gradient must have."""
    if value.shape != other.shape:
        fail(
            op, f"{name} must have the shape of {other_name}, {shape(other)}; it has {shape(value)}"
        )
    same_type(op, name, value, other_name, other)


def same_type(op: str, name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """As all tensors of a call must have."""
    if value.dtype != other.dtype:
        fail(
            op,
            f"{name} must have the type of {other_name}, {type_name(other)}; "
            f"it is {type_name(value)}",
        )
