"""lrpe_rotate: rotary position encoding with a fused activation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnops import _checks, _choices, _rotary, _sharding, _transforms

_OP = "lrpe_rotate"


def lrpe_rotate(
    x: Tensor,
    theta: Tensor,
    offset: int | Tensor = 0,
    act: str = "none",
    dim: int | None = None,
    *,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    sections: Sequence[int] | None = None,
    sections_interleaved: bool = False,
    scale: float = 1,  # an integer: a float would be an input of a compiled graph
    layout: str = "bnhd",
) -> Tensor:
    """Rotate the pairs (j, j+D/2) of act(x) by the angle (offset+t)·theta[h,j].

    Parameters
    ----------
    x : Tensor
        (B,N,H,D) or (B,N,D) with D even.
    theta : Tensor
        (H,E), (1,E) or (H,1) with E ≤ D/2, of x's type or float32. One angle serves all pairs; for
        1 < E < D/2 the pairs j ≥ E pass unrotated.
    offset : int or Tensor
        The position of the first token, or a (B) tensor of them.
    act : str
        none, relu, sigmoid, silu or softmax.
    dim : int, optional
        Of a softmax: the features or the sequence.
    positions : Tensor, optional
        int32 or int64, (N) or (B,N), in place of offset+t.
    rotary_dim : int, optional
        Of so many features r the pairs are rotated; the others pass unrotated.
    interleaved : bool
        The pairs are the neighbours (2j, 2j+1) and not the halves (j, j+r/2).
    sections : sequence of int, optional
        (s₁,…,s_k) of the sum r/2: positions are (k,B,N), and the pairs of a section have its
        positions.
    sections_interleaved : bool
        Pair j has the positions of section j mod k while j < k·s, else those of the first.
    scale : float
        A factor of all cosines and sines.
    layout : {"bnhd", "bhnd"}
        Of x.

    Returns
    -------
    Tensor
        As x.

    Examples
    --------
    >>> import torch, attnops
    >>> x = torch.ones(1, 2, 1, 2)
    >>> theta = torch.full((1, 1), torch.pi / 2)
    >>> attnops.lrpe_rotate(x, theta)[0, :, 0].round()
    tensor([[ 1.,  1.],
            [-1.,  1.]])
    """
    if _sharding.sharded(x, theta):
        return _sharding.handler("lrpe_rotate")(
            x=x,
            theta=theta,
            offset=offset,
            act=act,
            dim=dim,
            positions=positions,
            rotary_dim=rotary_dim,
            interleaved=interleaved,
            sections=sections,
            sections_interleaved=sections_interleaved,
            scale=scale,
            layout=layout,
        )
    _checks.are_tensors(_OP, x=x, theta=theta)
    if positions is not None:
        _checks.are_tensors(_OP, positions=positions)
    number = _choices.number(_OP, "act", _choices.ACTIVATIONS, act)
    layout_number = _choices.number(_OP, "layout", _choices.LAYOUTS, layout)
    offset, offsets = _rotary.split_offset(_OP, offset)
    if theta.dtype != torch.float32 and x.ndim in (3, 4):
        tokens = x.shape[_rotary.sequence_axis(layout_number, x.ndim)]
        if positions is not None:
            _rotary.warn_of_16_bits(_OP, theta, 1, 0, positions)
        else:
            _rotary.warn_of_16_bits(_OP, theta, tokens, offset, offsets)
    return _transforms.call(
        torch.ops.attnops.lrpe_rotate,
        x,
        theta,
        offset,
        number,
        dim,
        positions,
        offsets,
        rotary_dim,
        interleaved,
        sections,
        sections_interleaved,
        scale,
        layout_number,
    )


def _check(
    x: Tensor,
    theta: Tensor,
    offset: int,
    act: int,
    dim: int | None,
    positions: Tensor | None = None,
    offsets: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    sections: Sequence[int] | None = None,
    sections_interleaved: bool = False,
    scale: float = 1.0,
    layout: int = 0,
) -> None:
    """The checks of the kernel, in its order and with its texts, for tensors without data."""
    _checks.activation(_OP, "act", act, "dim", dim)
    _checks.tensor(_OP, "x", x)
    _checks.tensor(_OP, "theta", theta)
    _rotary.check_types(_OP, positions, offsets, sections, layout)
    bnhd = layout == _choices.BNHD
    if x.ndim != 4 and not (x.ndim == 3 and bnhd):
        _checks.fail(
            _OP,
            f"x must have 4 axes {_rotary.axes_of(layout)}{' or 3 (B,N,D)' if bnhd else ''}; "
            f"its shape is {_checks.shape(x)}",
        )
    axis = _rotary.sequence_axis(layout, x.ndim)
    heads = x.shape[3 - axis] if x.ndim == 4 else 1
    pairs = _rotary.rotated(_OP, "x", x.shape[-1], rotary_dim) // 2
    _checks.angle_axes(_OP, theta)
    _checks.angle_type(_OP, x, theta)
    rows, angles = theta.shape
    if x.ndim == 3 and rows != 1:
        _checks.fail(_OP, f"theta has {rows} heads; x has 3 axes (expected 1)")
    _checks.heads(_OP, "theta", rows, heads)
    _checks.pair_angles(_OP, angles, pairs)
    _rotary.check(
        _OP,
        x.shape[0],
        x.shape[axis],
        pairs,
        offset,
        positions,
        offsets,
        sections,
        sections_interleaved,
        scale,
    )
    _checks.softmax_axis(_OP, act, "dim", dim, x.ndim, axis)


def _check_device(x: Tensor, theta: Tensor, rotary: Sequence, d_out: Tensor | None = None) -> None:
    positions, offset = (*rotary, None, None)[:2]
    _checks.same_device(_OP, x=x, theta=theta, d_out=d_out, positions=positions, offset=offset)


@torch.library.register_fake("attnops::lrpe_rotate")
def _(x: Tensor, theta: Tensor, offset: int, act: int, dim: int | None, *rotary) -> Tensor:
    _check_device(x, theta, rotary)
    _check(x, theta, offset, act, dim, *rotary)
    return x.new_empty(x.shape)


def _check_backward(x: Tensor, theta: Tensor, d_out: Tensor, offset, act, dim, *rotary) -> None:
    _check_device(x, theta, rotary, d_out)
    _check(x, theta, offset, act, dim, *rotary)
    _checks.same_shape_and_type(_OP, "d_out", d_out, "x", x)


@torch.library.register_fake("attnops::lrpe_rotate_backward")
def _(x: Tensor, theta: Tensor, d_out: Tensor, *options) -> Tensor:
    _check_backward(x, theta, d_out, *options)
    return x.new_empty(x.shape)


@torch.library.register_fake("attnops::lrpe_rotate_dtheta")
def _(x: Tensor, theta: Tensor, d_out: Tensor, *options) -> Tensor:
    _check_backward(x, theta, d_out, *options)
    return theta.new_empty(theta.shape, dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    x, theta, ctx.offset, ctx.act, ctx.dim, positions, offsets, *ctx.rotary = inputs
    # Without an activation dx does not need x: it is not kept alive.
    needs_x = ctx.act != _choices.NONE or ctx.needs_input_grad[1]
    ctx.save_for_backward(x if needs_x else None, theta, positions, offsets)


def _backward(ctx, d_out: Tensor):
    _checks.no_tangents(_OP, d_out=d_out)
    x, theta, positions, offsets = ctx.saved_tensors
    options = (ctx.offset, ctx.act, ctx.dim, positions, offsets, *ctx.rotary)
    dx = d_theta = None
    if ctx.needs_input_grad[0]:
        dx = _transforms.call(
            torch.ops.attnops.lrpe_rotate_backward,
            d_out if x is None else x,
            theta,
            d_out,
            *options,
        )
    if ctx.needs_input_grad[1]:
        d_theta = _transforms.call(torch.ops.attnops.lrpe_rotate_dtheta, x, theta, d_out, *options)
    return dx, d_theta, *(None,) * len(options)


_transforms.register_autograd("lrpe_rotate", _backward, _setup_context)


def _setup_backward_context(ctx, inputs, output) -> None:
    _, theta, _, ctx.offset, ctx.act, _, positions, offsets, *ctx.rotary = inputs
    ctx.save_for_backward(theta, positions, offsets)


def _double_backward(ctx, d_dx: Tensor):
    _checks.no_second_derivative(_OP, ctx.act)
    _checks.no_second_derivative_of(ctx, _OP, theta=1)
    _checks.no_tangents(_OP, d_dx=d_dx)
    theta, positions, offsets = ctx.saved_tensors
    d_d_out = _transforms.call(
        torch.ops.attnops.lrpe_rotate,
        d_dx,
        theta,
        ctx.offset,
        _choices.NONE,
        None,
        positions,
        offsets,
        *ctx.rotary,
    )
    return None, None, d_d_out, *(None,) * (5 + len(ctx.rotary))


_transforms.register_autograd("lrpe_rotate_backward", _double_backward, _setup_backward_context)
_transforms.refuse_second_derivative(_OP, "lrpe_rotate_dtheta")
