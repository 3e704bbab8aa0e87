"""rope: rotary position encoding of queries and keys in one call."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnops import _checks, _choices, _rotary, _sharding, _transforms

_OP = "rope"
# How many arguments there are behind q, k, theta and cos_sin.
_OPTIONS = 9
# Looked up once: in a call for one token it would be noticed.
_FORWARD = torch.ops.attnops.rope_forward.default
_INPLACE = torch.ops.attnops.rope_.default


def rope(
    q: Tensor,
    k: Tensor,
    theta: Tensor | None = None,
    *,
    cos_sin: Tensor | None = None,
    positions: Tensor | None = None,
    offset: int | Tensor = 0,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    sections: Sequence[int] | None = None,
    sections_interleaved: bool = False,
    scale: float = 1,  # an integer: a float would be an input of a compiled graph
    layout: str = "bnhd",
    inplace: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotate the pairs of q and k by the angle of their token's position.

    Parameters
    ----------
    q, k : Tensor
        (B,N,H,D) and (B,N,H',D), or with layout bhnd (B,H,N,D) and (B,H',N,D), of one type.
    theta : Tensor, optional
        (E) or (1,E) for all heads, of q's type or float32: the angles are position·theta.
    cos_sin : Tensor, optional
        In place of theta (P,r), [cos | sin] of each position, of q's type or float32. It has no
        gradient, and a position out of it is an error.
    positions, offset, rotary_dim, interleaved, sections, sections_interleaved, scale, layout
        As in lrpe_rotate.
    inplace : bool
        The results are written to q and k, which are returned.

    Returns
    -------
    tuple of Tensor
        As q and k.

    Examples
    --------
    >>> import torch, attnops
    >>> q, k = torch.randn(2, 16, 8, 64), torch.randn(2, 16, 2, 64)
    >>> theta = 10000.0 ** (-torch.arange(32) / 32)
    >>> positions = torch.arange(16) - torch.tensor([[0], [5]])  # padded on the left
    >>> q, k = attnops.rope(q, k, theta, positions=positions)
    >>> k.shape
    torch.Size([2, 16, 2, 64])
    """
    if _sharding.sharded(q, k):
        return _sharding.handler("rope")(
            q=q,
            k=k,
            theta=theta,
            cos_sin=cos_sin,
            positions=positions,
            offset=offset,
            rotary_dim=rotary_dim,
            interleaved=interleaved,
            sections=sections,
            sections_interleaved=sections_interleaved,
            scale=scale,
            layout=layout,
            inplace=inplace,
        )
    _checks.are_tensors(_OP, q=q, k=k)
    if positions is not None:
        _checks.are_tensors(_OP, positions=positions)
    if theta is not None:
        _checks.are_tensors(_OP, theta=theta)
        if theta.dtype != torch.float32 and q.ndim == 4:
            _warn(q, theta, positions, offset, layout)
    if cos_sin is not None:
        _checks.are_tensors(_OP, cos_sin=cos_sin)
        _checks.no_gradient(_OP, "cos_sin", cos_sin)
    offset, offsets = _rotary.split_offset(_OP, offset)
    compiling = torch.compiler.is_compiling()
    differentiates = torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or (theta is not None and theta.requires_grad)
    )
    # A call without a gradient does without autograd's Python.
    plain = not (differentiates or compiling or _transforms.transformed())
    if theta is not None and theta.ndim == 1 and not plain:
        theta = theta[None]
    arguments = (
        q,
        k,
        theta,
        cos_sin,
        positions,
        offsets,
        offset,
        rotary_dim,
        interleaved,
        sections,
        sections_interleaved,
        scale,
        _choices.number(_OP, "layout", _choices.LAYOUTS, layout),
    )
    if inplace:
        _transforms.refuse_inplace(_OP, "inplace")
    if inplace and not differentiates:
        _INPLACE(*arguments)
        if not compiling:
            torch.autograd.graph.increment_version((q, k))
        return q, k
    if plain:
        q_out, k_out = _FORWARD(*arguments)
    else:
        q_out, k_out = _transforms.call(torch.ops.attnops.rope, *arguments)
    if inplace:
        return q.copy_(q_out), k.copy_(k_out)
    return q_out, k_out


def _warn(
    q: Tensor, theta: Tensor, positions: Tensor | None, offset: int | Tensor, layout: str
) -> None:
    offset, offsets = _rotary.split_offset(_OP, offset)
    if positions is not None:
        _rotary.warn_of_16_bits(_OP, theta, 1, 0, positions)
    else:
        tokens = q.shape[2 if layout == "bhnd" else 1]
        _rotary.warn_of_16_bits(_OP, theta, tokens, offset, offsets)


def _check(
    q_name: str,
    q: Tensor,
    k_name: str,
    k: Tensor,
    theta: Tensor | None,
    cos_sin: Tensor | None,
    positions: Tensor | None,
    offsets: Tensor | None,
    offset: int,
    rotary_dim: int | None,
    interleaved: bool,
    sections: Sequence[int] | None,
    sections_interleaved: bool,
    scale: float,
    layout: int,
) -> None:
    """The checks of the kernel, in its order and with its texts, for tensors without data."""
    _checks.same_device(
        _OP,
        **{q_name: q, k_name: k},
        theta=theta,
        cos_sin=cos_sin,
        positions=positions,
        offset=offsets,
    )
    _checks.tensor(_OP, q_name, q)
    _checks.tensor(_OP, k_name, k)
    if (theta is None) == (cos_sin is None):
        which = "neither is" if theta is None else "both are"
        _checks.fail(_OP, f"exactly one of theta and cos_sin must be given; {which}")
    if theta is not None:
        _checks.tensor(_OP, "theta", theta)
        theta = theta[None] if theta.ndim == 1 else theta
    elif cos_sin is not None:
        _checks.tensor(_OP, "cos_sin", cos_sin)
    _rotary.check_types(_OP, positions, offsets, sections, layout)
    _checks.axes(_OP, q_name, q, _rotary.axes_of(layout))
    _checks.axes(_OP, k_name, k, _rotary.axes_of(layout))
    axis = _rotary.sequence_axis(layout, 4)
    for at, what in ((0, "batches"), (axis, "tokens"), (3, "features")):
        _checks.same_size(_OP, k_name, k.shape[at], what, q_name, q.shape[at])
    _checks.same_type(_OP, k_name, k, q_name, q)
    rotated = _rotary.rotated(_OP, q_name, q.shape[3], rotary_dim)
    if theta is not None:
        _checks.angle_axes(_OP, theta)
        _checks.angle_type(_OP, q, theta, q_name)
        _checks.heads(_OP, "theta", theta.shape[0], 1, q_name)
        _checks.pair_angles(_OP, theta.shape[1], rotated // 2, q_name)
    elif cos_sin is not None:
        _check_cos_sin(cos_sin, q_name, q, rotated)
    _rotary.check(
        _OP,
        q.shape[0],
        q.shape[axis],
        rotated // 2,
        offset,
        positions,
        offsets,
        sections,
        sections_interleaved,
        scale,
    )
    if cos_sin is not None and positions is None and offsets is None and q.numel() + k.numel() > 0:
        tokens, rows = q.shape[axis], cos_sin.shape[0]
        if offset < 0 or offset + tokens > rows:
            _checks.fail(
                _OP,
                f"offset must be from 0 to {rows - tokens} for {tokens} tokens and {rows} rows "
                f"of cos_sin; it is {offset}",
            )


def _check_cos_sin(cos_sin: Tensor, q_name: str, q: Tensor, rotated: int) -> None:
    _checks.axes(_OP, "cos_sin", cos_sin, "(positions, rotary_dim)")
    if cos_sin.dtype not in (torch.float32, q.dtype):
        _checks.fail(
            _OP,
            f"cos_sin must be float32 or have the type of {q_name}, {_checks.type_name(q)}; "
            f"it is {_checks.type_name(cos_sin)}",
        )
    if cos_sin.shape[1] != rotated:
        _checks.fail(
            _OP,
            f"cos_sin has {cos_sin.shape[1]} columns; {rotated} features are rotated "
            f"(expected {rotated})",
        )


def _fake(q: Tensor, k: Tensor, *options) -> tuple[Tensor, Tensor]:
    _check("q", q, "k", k, *options)
    return q.new_empty(q.shape), k.new_empty(k.shape)


torch.library.register_fake("attnops::rope", _fake)
torch.library.register_fake("attnops::rope_forward", _fake)


@torch.library.register_fake("attnops::rope_")
def _(q: Tensor, k: Tensor, *options) -> None:
    _check("q", q, "k", k, *options)


@torch.library.register_fake("attnops::rope_backward")
def _(dq_out: Tensor, dk_out: Tensor, *options) -> tuple[Tensor, Tensor]:
    _check("dq_out", dq_out, "dk_out", dk_out, *options)
    return dq_out.new_empty(dq_out.shape), dk_out.new_empty(dk_out.shape)


@torch.library.register_fake("attnops::rope_dtheta")
def _(q: Tensor, k: Tensor, dq_out: Tensor, dk_out: Tensor, theta: Tensor, *options) -> Tensor:
    _check("q", q, "k", k, theta, None, *options)
    _checks.same_shape_and_type(_OP, "dq_out", dq_out, "q", q)
    _checks.same_shape_and_type(_OP, "dk_out", dk_out, "k", k)
    return theta.new_empty(theta.shape, dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    q, k, theta, cos_sin, positions, offsets, *ctx.options = inputs
    # Only the gradient of theta needs q and k.
    kept = (q, k) if ctx.needs_input_grad[2] else (None, None)
    ctx.save_for_backward(*kept, theta, cos_sin, positions, offsets)


def _backward(ctx, dq_out: Tensor, dk_out: Tensor):
    _checks.no_gradient_of(ctx, _OP, cos_sin=3)
    _checks.no_tangents(_OP, dq_out=dq_out, dk_out=dk_out)
    q, k, theta, cos_sin, positions, offsets = ctx.saved_tensors
    options = (positions, offsets, *ctx.options)
    dq = dk = d_theta = None
    if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
        dq, dk = _transforms.call(
            torch.ops.attnops.rope_backward, dq_out, dk_out, theta, cos_sin, *options
        )
    if ctx.needs_input_grad[2]:
        d_theta = _transforms.call(
            torch.ops.attnops.rope_dtheta, q, k, dq_out, dk_out, theta, *options
        )
    return dq, dk, d_theta, None, *(None,) * _OPTIONS


_transforms.register_autograd("rope", _backward, _setup_context)


def _setup_backward_context(ctx, inputs, output) -> None:
    _, _, *tensors, offset, rotary_dim, interleaved, sections, order, scale, layout = inputs
    ctx.options = (offset, rotary_dim, interleaved, sections, order, scale, layout)
    ctx.save_for_backward(*tensors)


def _double_backward(ctx, d_dq: Tensor, d_dk: Tensor):
    _checks.no_second_derivative_of(ctx, _OP, theta=2, cos_sin=3)
    _checks.no_tangents(_OP, d_dq=d_dq, d_dk=d_dk)
    # The rotation is linear.
    rotated = _transforms.call(torch.ops.attnops.rope, d_dq, d_dk, *ctx.saved_tensors, *ctx.options)
    return *rotated, None, None, *(None,) * _OPTIONS


_transforms.register_autograd("rope_backward", _double_backward, _setup_backward_context)
_transforms.refuse_second_derivative(_OP, "rope_dtheta")
