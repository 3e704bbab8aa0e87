"""md_lrpe_cosine: position encoding in several dimensions with a fused activation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnops import _checks, _choices, _rotary, _sharding, _transforms

_OP = "md_lrpe_cosine"
_TABLE_OP = "lrpe_table"
_SEQUENCE_AXIS = 2
# Where act is among the options (shape, l, offset, act, dim).
_ACT = 3


def md_lrpe_cosine(
    x: Tensor,
    theta: Tensor | None,
    shape: Sequence[int],
    l: int = 0,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """Encode positions in a grid: [ y·cos a , y·sin a ] with y = act(x), of 2D features.

    Token l+i has the index (s₁, …, s_k) of i in the grid, the last axis fastest, and feature c the
    angle a = s_j·theta[h, c mod E] with j = ⌊c/E⌋+1.

    Parameters
    ----------
    x : Tensor
        (B,H,L,D) with L = l + n₁·…·n_k.
    theta : Tensor, optional
        (H,E) or (1,E) with E·k ≥ D, of x's type or float32. None with a table.
    shape : sequence of int
        The grid (n₁, …, n_k), of 1 to 8 axes.
    l : int
        The first l tokens carry no position: [ y , 0 ].
    offset : int
        Added to the index, in 1-d; with a table it is the table's.
    act : str
        none, relu, sigmoid, silu or softmax.
    dim : int, optional
        Of a softmax: the features or the sequence.
    table : Tensor, optional
        From lrpe_table.

    Returns
    -------
    Tensor
        (B,H,L,2D).

    Examples
    --------
    >>> import torch, attnops
    >>> x, theta = torch.randn(2, 4, 13, 8), torch.rand(4, 4)
    >>> attnops.md_lrpe_cosine(x, theta, (3, 4), l=1, act="silu").shape
    torch.Size([2, 4, 13, 16])
    """
    if _sharding.sharded(x, theta):
        return _sharding.handler("md_lrpe_cosine")(
            x=x,
            theta=theta,
            shape=shape,
            l=l,
            offset=offset,
            act=act,
            dim=dim,
            table=table,
        )
    given = {"theta": theta, "table": table}
    _checks.are_tensors(_OP, x=x, **{name: t for name, t in given.items() if t is not None})
    _checks.sizes(_OP, "shape", shape)
    _checks.no_gradient(_OP, "table", table)
    if table is not None:
        _checks.no_gradient(_OP, "theta", theta)  # the table is in its place
        theta = None
    if theta is not None and theta.dtype != torch.float32:
        _rotary.warn_of_16_bits(_OP, theta, max(shape, default=0), offset)
    number = _choices.number(_OP, "act", _choices.ACTIVATIONS, act)
    return _transforms.call(
        torch.ops.attnops.md_lrpe_cosine, x, theta, table, shape, l, offset, number, dim
    )


def lrpe_table(theta: Tensor, shape: Sequence[int], d: int, offset: int = 0) -> Tensor:
    """Cosines and sines for md_lrpe_cosine, built once and used by many calls.

    Parameters
    ----------
    theta : Tensor
        (H,E) or (1,E) with E·k ≥ d.
    shape : sequence of int
        The grid (n₁, …, n_k).
    d : int
        The features of x.
    offset : int
        In 1-d: part of the table.

    Returns
    -------
    Tensor
        float32, (H or 1, n₁+…+n_k, E, 2): a row for each index of each axis.

    Examples
    --------
    >>> import torch, attnops
    >>> x, theta = torch.randn(2, 4, 12, 8), torch.rand(4, 4)
    >>> table = attnops.lrpe_table(theta, (3, 4), 8)
    >>> out = attnops.md_lrpe_cosine(x, None, (3, 4), table=table)
    >>> table.shape
    torch.Size([4, 7, 4, 2])
    """
    _checks.are_tensors(_TABLE_OP, theta=theta)
    _checks.no_gradient(_TABLE_OP, "theta", theta)
    _checks.sizes(_TABLE_OP, "shape", shape)
    return _transforms.call(torch.ops.attnops.lrpe_table, theta, shape, d, offset)


def _check_table(x: Tensor, table: Tensor, shape: Sequence[int]) -> None:
    if table.ndim != 4 or table.shape[3] != 2:
        _checks.fail(
            _OP,
            "table must have the shape (heads, positions, angles, 2); "
            f"its shape is {_checks.shape(table)}",
        )
    if table.dtype != torch.float32:
        _checks.fail(_OP, f"table must be float32; it is {_checks.type_name(table)}")
    if table.shape[1] != sum(shape):
        _checks.fail(_OP, f"table has {table.shape[1]} positions; shape has {sum(shape)}")
    _checks.heads(_OP, "table", table.shape[0], x.shape[1])


def _check_theta(x: Tensor, theta: Tensor) -> None:
    _checks.angle_axes(_OP, theta)
    _checks.angle_type(_OP, x, theta)
    _checks.heads(_OP, "theta", theta.shape[0], x.shape[1])


def _check(
    x: Tensor,
    theta: Tensor | None,
    table: Tensor | None,
    shape: Sequence[int],
    l: int,
    offset: int,
    act: int,
    dim: int | None,
) -> None:
    """The checks of the kernel, in its order and with its texts, for tensors without data."""
    _checks.activation(_OP, "act", act, "dim", dim)
    _checks.tensor(_OP, "x", x)
    name, angles = ("table", table) if table is not None else ("theta", theta)
    if angles is None:
        _checks.fail(_OP, "theta is required without a table")
    _checks.tensor(_OP, name, angles)
    _checks.sizes(_OP, "shape", shape)
    if x.ndim != 4:
        _checks.fail(_OP, f"x must have 4 axes (B,H,L,D); its shape is {_checks.shape(x)}")
    _checks.grid_tokens(_OP, x.shape[2], shape, l)
    if table is not None:
        _check_table(x, table, shape)
    else:
        _check_theta(x, angles)
    if table is not None and offset != 0:
        _checks.fail(_OP, f"offset must be 0 with a table; it is {offset}")
    per_axis = angles.shape[1] if table is None else angles.shape[2]
    _checks.axis_angles(_OP, name, per_axis, len(shape), x.shape[3])
    _checks.grid_offset(_OP, len(shape), offset)
    _checks.softmax_axis(_OP, act, "dim", dim, x.ndim, _SEQUENCE_AXIS)


@torch.library.register_fake("attnops::md_lrpe_cosine")
def _(x: Tensor, theta, table, shape, l, offset, act, dim) -> Tensor:
    _checks.same_device(_OP, x=x, theta=theta, table=table)
    _check(x, theta, table, shape, l, offset, act, dim)
    return x.new_empty((*x.shape[:-1], 2 * x.shape[-1]))


@torch.library.register_fake("attnops::md_lrpe_cosine_backward")
def _(x, theta, table, d_out: Tensor, shape, l, offset, act, dim) -> Tensor:
    _checks.activation(_OP, "act", act, "dim", dim)
    if x is None and act != _choices.NONE:
        _checks.fail(_OP, f"x is required when act is {_choices.ACTIVATIONS[act]}")
    _checks.same_device(_OP, d_out=d_out, x=x, theta=theta, table=table)
    _checks.tensor(_OP, "d_out", d_out)
    if x is None:
        x = d_out.narrow(-1, 0, d_out.shape[-1] // 2)
    _check(x, theta, table, shape, l, offset, act, dim)
    _checks.has_shape(_OP, "d_out", d_out, (*x.shape[:-1], 2 * x.shape[-1]))
    _checks.same_type(_OP, "d_out", d_out, "x", x)
    return x.new_empty(x.shape)


@torch.library.register_fake("attnops::md_lrpe_cosine_dtheta")
def _(x: Tensor, theta: Tensor, d_out: Tensor, *options) -> Tensor:
    _checks.same_device(_OP, x=x, theta=theta, d_out=d_out)
    _check(x, theta, None, *options)
    _checks.has_shape(_OP, "d_out", d_out, (*x.shape[:-1], 2 * x.shape[-1]))
    _checks.same_type(_OP, "d_out", d_out, "x", x)
    return theta.new_empty(theta.shape, dtype=torch.float32)


@torch.library.register_fake("attnops::lrpe_table")
def _(theta: Tensor, shape, d, offset) -> Tensor:
    _checks.tensor(_TABLE_OP, "theta", theta)
    _checks.sizes(_TABLE_OP, "shape", shape)
    _checks.angle_axes(_TABLE_OP, theta)
    if d < 0:
        _checks.fail(_TABLE_OP, f"d must not be negative; it is {d}")
    heads, angles = theta.shape
    _checks.axis_angles(_TABLE_OP, "theta", angles, len(shape), d)
    _checks.grid_offset(_TABLE_OP, len(shape), offset)
    return theta.new_empty((heads, sum(shape), angles, 2), dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    x, theta, table, *ctx.options = inputs
    # Without an activation dx does not need x: it is not kept alive.
    needs_x = ctx.options[_ACT] != _choices.NONE or ctx.needs_input_grad[1]
    ctx.save_for_backward(x if needs_x else None, theta, table)


def _backward(ctx, d_out: Tensor):
    _checks.no_gradient_of(ctx, _OP, table=2)
    _checks.no_tangents(_OP, d_out=d_out)
    x, theta, table = ctx.saved_tensors
    dx = d_theta = None
    if ctx.needs_input_grad[0]:
        dx = _transforms.call(
            torch.ops.attnops.md_lrpe_cosine_backward, x, theta, table, d_out, *ctx.options
        )
    if ctx.needs_input_grad[1]:
        d_theta = _transforms.call(
            torch.ops.attnops.md_lrpe_cosine_dtheta, x, theta, d_out, *ctx.options
        )
    return dx, d_theta, *(None,) * 6


_transforms.register_autograd("md_lrpe_cosine", _backward, _setup_context)


def _setup_backward_context(ctx, inputs, output) -> None:
    _, theta, table, _, *ctx.options = inputs
    ctx.save_for_backward(theta, table)


def _double_backward(ctx, d_dx: Tensor):
    _checks.no_second_derivative(_OP, ctx.options[_ACT])
    _checks.no_second_derivative_of(ctx, _OP, theta=1, table=2)
    _checks.no_tangents(_OP, d_dx=d_dx)
    theta, table = ctx.saved_tensors
    d_d_out = _transforms.call(torch.ops.attnops.md_lrpe_cosine, d_dx, theta, table, *ctx.options)
    return None, None, None, d_d_out, *(None,) * 5


_transforms.register_autograd("md_lrpe_cosine_backward", _double_backward, _setup_backward_context)
_transforms.refuse_second_derivative(_OP, "md_lrpe_cosine_dtheta")
_transforms.register_without_gradient(_TABLE_OP, "lrpe_table")
