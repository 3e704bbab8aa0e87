"""lrpe_rotate: rotary position encoding with a fused activation."""

import torch
from torch import Tensor

from attnops import _checks, _choices

_OP = "lrpe_rotate"


def lrpe_rotate(
    x: Tensor, theta: Tensor, offset: int = 0, act: str = "none", dim: int | None = None
) -> Tensor:
    """Rotate the pairs (j, j+D/2) of act(x) by the angle (offset+t)·theta[h,j].

    x is (B,N,H,D) or (B,N,D) with D even; theta is (H,E), (1,E) or (H,1) with E ≤ D/2, of x's
    type or float32. One angle serves all pairs; for 1 < E < D/2 the pairs j ≥ E pass unrotated.
    act is none, relu, sigmoid, silu or softmax; softmax needs dim: the features or the sequence.
    """
    _checks.are_tensors(_OP, x=x, theta=theta)
    _checks.no_gradient(_OP, "theta", theta)
    number = _choices.number(_OP, "act", _choices.ACTIVATIONS, act)
    return torch.ops.attnops.lrpe_rotate(x, theta, offset, number, dim)


def _check(x: Tensor, theta: Tensor, offset: int, act: int, dim: int | None) -> None:
    """The checks of the kernel, in its order and with its texts, for tensors without data."""
    _checks.activation(_OP, "act", act, "dim", dim)
    _checks.tensor(_OP, "x", x)
    _checks.tensor(_OP, "theta", theta)
    if x.ndim not in (3, 4):
        _checks.fail(
            _OP, f"x must have 4 axes (B,N,H,D) or 3 (B,N,D); its shape is {_checks.shape(x)}"
        )
    features = x.shape[-1]
    heads = x.shape[2] if x.ndim == 4 else 1
    if features % 2 != 0:
        _checks.fail(_OP, f"x must have an even number of features; it has {features}")
    _checks.angle_axes(_OP, theta)
    _checks.angle_type(_OP, x, theta)
    rows, angles = theta.shape
    if x.ndim == 3 and rows != 1:
        _checks.fail(_OP, f"theta has {rows} heads; x has 3 axes (expected 1)")
    _checks.heads(_OP, "theta", rows, heads)
    _checks.pair_angles(_OP, angles, features // 2)
    _checks.offset(_OP, offset)
    _checks.softmax_axis(_OP, act, "dim", dim, x.ndim, 1)


@torch.library.register_fake("attnops::lrpe_rotate")
def _(x: Tensor, theta: Tensor, offset: int, act: int, dim: int | None) -> Tensor:
    _checks.same_device(_OP, x=x, theta=theta)
    _check(x, theta, offset, act, dim)
    return x.new_empty(x.shape)


@torch.library.register_fake("attnops::lrpe_rotate_backward")
def _(x: Tensor, theta: Tensor, d_out: Tensor, offset: int, act: int, dim: int | None) -> Tensor:
    _checks.same_device(_OP, x=x, theta=theta, d_out=d_out)
    _check(x, theta, offset, act, dim)
    _checks.same_shape_and_type(_OP, "d_out", d_out, "x", x)
    return x.new_empty(x.shape)


def _setup_context(ctx, inputs, output) -> None:
    x, theta, ctx.offset, ctx.act, ctx.dim = inputs
    # Without an activation the backward does not need x: it is not kept alive.
    ctx.save_for_backward(None if ctx.act == _choices.NONE else x, theta)


def _backward(ctx, d_out: Tensor):
    _checks.no_gradient_of(ctx, _OP, theta=1)
    _checks.no_tangents(_OP, d_out=d_out)
    x, theta = ctx.saved_tensors
    dx = torch.ops.attnops.lrpe_rotate_backward(
        d_out if x is None else x, theta, d_out, ctx.offset, ctx.act, ctx.dim
    )
    return dx, None, None, None, None


torch.library.register_autograd("attnops::lrpe_rotate", _backward, setup_context=_setup_context)


def _setup_backward_context(ctx, inputs, output) -> None:
    _, theta, _, ctx.offset, ctx.act, _ = inputs
    ctx.save_for_backward(theta)


def _double_backward(ctx, d_dx: Tensor):
    _checks.no_second_derivative(_OP, ctx.act)
    _checks.no_tangents(_OP, d_dx=d_dx)
    (theta,) = ctx.saved_tensors
    d_d_out = torch.ops.attnops.lrpe_rotate(d_dx, theta, ctx.offset, _choices.NONE, None)
    return None, None, d_d_out, None, None, None


torch.library.register_autograd(
    "attnops::lrpe_rotate_backward", _double_backward, setup_context=_setup_backward_context
)
