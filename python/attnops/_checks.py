"""The kernels' checks for tensors without data (meta, fake), with the kernels' texts.

On real tensors the C++ library checks; a test holds the two against each other.
"""

from collections.abc import Sequence
from math import prod
from typing import NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attnops import _choices

_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_MAX_AXES = 8
_MAX_POSITION = 2**31


def fail(op: str, text: str) -> NoReturn:
    """Raise the error that the kernel would."""
    raise ValueError(f"{op}: {text}")


def listed(values: Sequence[int]) -> str:
    """(2, 3, 4), and (2) for a single one."""
    return "(" + ", ".join(str(value) for value in values) + ")"


def shape(tensor: Tensor) -> str:
    """A tensor's sizes, listed."""
    return listed(tensor.shape)


def type_name(tensor: Tensor) -> str:
    """float32, not torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def are_tensors(op: str, **values: Tensor) -> None:
    """For real tensors too: every value is a tensor, and none has a forward-mode tangent.

    torch would name no argument, and would take the tangent of the result as zero.
    """
    for name, value in values.items():
        if not isinstance(value, Tensor):
            fail(op, f"{name} must be a tensor; it is {described(value)}")
    if forward_ad._current_level >= 0:
        no_tangents(op, **values)


def no_tangents(op: str, **values: Tensor) -> None:
    """None of them has a forward-mode tangent, for inputs and for gradients alike."""
    if forward_ad._current_level < 0:
        return
    for name, value in values.items():
        if _has_tangent(value):
            raise NotImplementedError(
                f"{op}: {name} has a tangent, but there is no forward-mode derivative"
            )


def described(value: object) -> str:
    """None, or the type of what is not a tensor: numpy.ndarray, list."""
    if value is None:
        return "None"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _has_tangent(value: Tensor) -> bool:
    try:
        return forward_ad.unpack_dual(value).tangent is not None
    except RuntimeError:
        return True  # the tensor of a vmap under a jvp, whose tangent cannot be seen


def activation(op: str, act_name: str, act: int, dim_name: str, dim: int | None) -> None:
    """An activation's number and whether its dim is given where it must be."""
    _choices.check(op, act_name, _choices.ACTIVATIONS, act)
    if act == _choices.SOFTMAX and dim is None:
        fail(op, f"{dim_name} is required when {act_name} is softmax")
    if act != _choices.SOFTMAX and dim is not None:
        fail(op, f"{dim_name} is for softmax only; {act_name} is {_choices.ACTIVATIONS[act]}")


def softmax_axis(
    op: str, act: int, dim_name: str, dim: int | None, axes: int, sequence: int
) -> None:
    """A softmax runs along the features or the sequence."""
    if act != _choices.SOFTMAX or dim is None:
        return
    if (dim + axes if dim < 0 else dim) not in (axes - 1, sequence):
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


def same_device(op: str, **values: Tensor | None) -> None:
    """All on one device: with a meta tensor among real ones a result would have no values."""
    given = {name: value for name, value in values.items() if value is not None}
    first_name, first = next(iter(given.items()))
    for name, value in given.items():
        if value.device != first.device:
            fail(
                op,
                f"{name} must be on the device of {first_name}, {first.device}; "
                f"it is on {value.device}",
            )


def sizes(op: str, name: str, values: Sequence[int]) -> None:
    """For real tensors too: a list of sizes for a supported number of axes."""
    if not isinstance(values, list | tuple):
        fail(op, f"{name} must be a tuple of sizes; it is {described(values)}")
    if not 1 <= len(values) <= _MAX_AXES:
        fail(op, f"{name} has {len(values)} axes (expected 1 to {_MAX_AXES})")
    for value in values:
        if not 0 <= value <= _MAX_POSITION:
            fail(op, f"{name} must have sizes from 0 to {_MAX_POSITION}; one is {value}")


def no_gradient(op: str, name: str, value: Tensor | None) -> None:
    """For real tensors too: an argument, if given, whose gradient does not exist."""
    if value is not None and value.requires_grad and torch.is_grad_enabled():
        fail(op, f"{name} must not require grad; it has no gradient here")


def no_gradient_of(ctx, op: str, **positions: int) -> None:
    """In a backward: inputs of the operator at these positions whose gradient does not exist."""
    for name, position in positions.items():
        if ctx.needs_input_grad[position]:
            raise NotImplementedError(f"{op}: {name} has no gradient")


def no_second_derivative(op: str, act: int) -> None:
    """For real tensors too: a backward can be differentiated where it is linear."""
    if act != _choices.NONE:
        name = _choices.ACTIVATIONS[act]
        raise NotImplementedError(f"{op}: no second derivative for act {name}")


def no_second_derivative_of(ctx, op: str, **positions: int) -> None:
    """In a double backward: inputs of the backward whose second derivative does not exist."""
    for name, position in positions.items():
        if ctx.needs_input_grad[position]:
            raise NotImplementedError(f"{op}: no second derivative with respect to {name}")


def angle_axes(op: str, theta: Tensor) -> None:
    """Theta has a row for each head."""
    if theta.ndim != 2:
        fail(op, f"theta must have 2 axes (heads, angles); its shape is {shape(theta)}")


def heads(op: str, name: str, rows: int, x_heads: int, x_name: str = "x") -> None:
    """Angles for each head of x, or one set for all."""
    if rows not in (x_heads, 1):
        fail(op, f"{name} has {rows} heads; {x_name} has {x_heads} (expected {x_heads} or 1)")


def pair_angles(op: str, angles: int, pairs: int, x_name: str = "x") -> None:
    """Theta of a rotation in 1-d: an angle for all pairs, or one for each of the first."""
    if pairs > 0 and not 1 <= angles <= pairs:
        fail(
            op,
            f"theta has {angles} angles a head; {x_name} has {pairs} pairs (expected 1 to {pairs})",
        )


def axis_angles(
    op: str,
    name: str,
    angles: int,
    axes: int,
    count: int,
    what: str = "features",
    x_name: str = "x",
) -> None:
    """Angles for all features, or pairs, on the axes of a grid."""
    if angles * axes < count:
        fail(
            op,
            f"{name} has {angles} angles a head; {x_name} has {count} {what} on {axes} axes "
            f"(expected at least {-(-count // axes)})",
        )


def grid_tokens(op: str, tokens: int, shape: Sequence[int], l: int, x_name: str = "x") -> None:
    """As many tokens as the grid has behind the first l."""
    if l < 0:
        fail(op, f"l must not be negative; it is {l}")
    if tokens != l + prod(shape):
        fail(
            op,
            f"{x_name} has {tokens} tokens; expected l = {l} and those of shape {listed(shape)}",
        )


def grid_offset(op: str, axes: int, value: int) -> None:
    """An offset in 1-d only."""
    offset(op, value)
    if axes > 1 and value != 0:
        fail(op, f"offset must be 0 with {axes} axes; it is {value}")


def axes(op: str, name: str, value: Tensor, names: str) -> None:
    """As many axes as are named: "(B,H,N,D)"."""
    wanted = names.count(",") + 1
    if value.ndim != wanted:
        fail(op, f"{name} must have {wanted} axes {names}; its shape is {shape(value)}")


def same_size(op: str, name: str, size: int, what: str, other_name: str, expected: int) -> None:
    """The sizes of an axis that two tensors share."""
    if size != expected:
        fail(op, f"{name} has {size} {what}; {other_name} has {expected}")


def angle_type(op: str, x: Tensor, theta: Tensor, x_name: str = "x") -> None:
    """Theta has x's type or float32."""
    if theta.dtype not in (x.dtype, torch.float32):
        fail(
            op,
            f"theta must be float32 or have the type of {x_name}, {type_name(x)}; "
            f"it is {type_name(theta)}",
        )


def offset(op: str, value: int) -> None:
    """Positions are exact for offsets within ±2^31."""
    if not -_MAX_POSITION <= value <= _MAX_POSITION:
        fail(op, f"offset must be within ±{_MAX_POSITION}; it is {value}")


def has_shape(op: str, name: str, value: Tensor, expected: Sequence[int]) -> None:
    """As a gradient whose shape is not that of an input must have."""
    if value.shape != tuple(expected):
        fail(op, f"{name} must have the shape {listed(expected)}; it has {shape(value)}")


def same_type(op: str, name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """As an output or a gradient must have."""
    if value.dtype != other.dtype:
        fail(
            op,
            f"{name} must have the type of {other_name}, {type_name(other)}; "
            f"it is {type_name(value)}",
        )


def same_shape_and_type(op: str, name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """As an output or a gradient of an input's shape must have."""
    if value.shape != other.shape:
        fail(
            op, f"{name} must have the shape of {other_name}, {shape(other)}; it has {shape(value)}"
        )
    same_type(op, name, value, other_name, other)
