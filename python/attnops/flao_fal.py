"""flao_fal: linear attention with an output gate, its activations and encoding fused in."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnops import _attention, _checks, _choices, _rotary, _sharding, _transforms

_OP = "flao_fal"
_SEQUENCE_AXIS = 2


def flao_fal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    q_act: str = "none",
    q_dim: int | None = None,
    k_act: str = "none",
    k_dim: int | None = None,
    v_act: str = "none",
    v_dim: int | None = None,
    g_act: str = "none",
    g_dim: int | None = None,
    theta: Tensor | None = None,
    lrpe: str = "cosine",
    shape: Sequence[int] | None = None,
    offset: int = 0,
    l: int = 0,
    keep: str = "none",
    *,
    precision: str | None = None,
) -> Tensor:
    """Ḡ ⊙ (Q̄·(K̄ᵀ·V̄)), not causal, with Q̄ = lrpe(q_act(Q)) and K̄ = lrpe(k_act(K)).

    V̄ = v_act(V) and Ḡ = g_act(G).

    Parameters
    ----------
    q, k, v, g : Tensor
        (B,H,N,D), (B,H,M,D), (B,H,M,E) and (B,H,N,E), all of one type.
    q_act, k_act, v_act, g_act : str
        none, relu, sigmoid, silu or softmax.
    q_dim, k_dim, v_dim, g_dim : int, optional
        Of a softmax: the features or the sequence.
    theta : Tensor, optional
        Of q's type or float32; without it there is no encoding. For cosine (H,E) or (1,E) with
        E·k ≥ D for k axes; for rotate (H,E), (1,E) or (H,1) with E ≤ D/2 in 1-d and E·k ≥ D/2 in
        more; pair j then uses axis ⌊j/E⌋+1.
    lrpe : {"cosine", "rotate", "none"}
        The encoding: that of md_lrpe_cosine, that of lrpe_rotate, or none.
    shape : sequence of int, optional
        Tokens are in a grid of this shape, N = M = l + n₁·…·n_k; in 1-d without it.
    offset : int
        The first position of q in 1-d; k counts from 0.
    l : int
        The first l tokens carry no position.
    keep : {"none", "kv", "kv_qkv"}
        As in flao; kv has 2D rows with cosine.
    precision : str, optional
        What products multiply: highest, high, medium or auto, as in set_precision.

    Returns
    -------
    Tensor
        (B,H,N,E).

    Examples
    --------
    >>> import torch, attnops
    >>> q, k, v, g = (torch.randn(2, 4, 12, 8) for _ in range(4))
    >>> theta = 10000.0 ** (-torch.arange(4) / 4)[None]
    >>> o = attnops.flao_fal(q, k, v, g, k_act="silu", theta=theta, lrpe="cosine", shape=(3, 4))
    >>> o.shape
    torch.Size([2, 4, 12, 8])
    """
    if _sharding.sharded(q, k, v, g):
        return _sharding.handler("flao_fal")(
            q=q,
            k=k,
            v=v,
            g=g,
            q_act=q_act,
            q_dim=q_dim,
            k_act=k_act,
            k_dim=k_dim,
            v_act=v_act,
            v_dim=v_dim,
            g_act=g_act,
            g_dim=g_dim,
            theta=theta,
            lrpe=lrpe,
            shape=shape,
            offset=offset,
            l=l,
            keep=keep,
            precision=precision,
        )
    tensors = {"q": q, "k": k, "v": v, "g": g}
    _checks.are_tensors(_OP, **tensors, **({} if theta is None else {"theta": theta}))
    if shape is not None:
        _checks.sizes(_OP, "shape", shape)
    if theta is not None and theta.dtype != torch.float32:
        _rotary.warn_of_16_bits(_OP, theta, max(shape or (q.shape[-2], k.shape[-2])), offset)
    if theta is None and lrpe == "cosine" and shape is None and offset == 0 and l == 0:
        lrpe = "none"
    out, _, _ = _transforms.call(
        torch.ops.attnops.flao_fal,
        q,
        k,
        v,
        g,
        theta,
        _act("q", q_act),
        q_dim,
        _act("k", k_act),
        k_dim,
        _act("v", v_act),
        v_dim,
        _act("g", g_act),
        g_dim,
        _choices.number(_OP, "lrpe", _choices.LRPES, lrpe),
        shape,
        offset,
        l,
        _attention.what_to_keep(_OP, keep, (q, k, v, g)),
        _choices.precision(_OP, precision),
    )
    return out


def _act(tensor: str, act: str) -> int:
    return _choices.number(_OP, f"{tensor}_act", _choices.ACTIVATIONS, act)


def _check_options(acts: Sequence[tuple[str, int, int | None]], lrpe: int) -> None:
    for name, act, dim in acts:
        _checks.activation(_OP, f"{name}_act", act, f"{name}_dim", dim)
    _choices.check(_OP, "lrpe", _choices.LRPES, lrpe)


def _check_no_positions(theta: Tensor | None, shape: Sequence[int], offset: int, l: int) -> None:
    """Without an encoding its arguments have no meaning."""
    if theta is not None:
        _checks.fail(_OP, "theta must be absent without an encoding (lrpe)")
    if len(shape) > 0:
        listed = _checks.listed(shape)
        _checks.fail(_OP, f"shape must be absent without an encoding; it is {listed}")
    if offset != 0:
        _checks.fail(_OP, f"offset must be 0 without an encoding; it is {offset}")
    if l != 0:
        _checks.fail(_OP, f"l must be 0 without an encoding; it is {l}")


def _check_positions(
    q: Tensor, k: Tensor, theta: Tensor | None, lrpe: int, shape: Sequence[int], offset: int, l: int
) -> None:
    """An encoding has the angles it needs for the tokens there are."""
    if theta is None:
        _checks.fail(_OP, "theta is missing; the encoding (lrpe) needs it")
    (_, heads, tokens, features), keys = q.shape, k.shape[2]
    _checks.angle_axes(_OP, theta)
    _checks.angle_type(_OP, q, theta, "q")
    rows, angles = theta.shape
    _checks.heads(_OP, "theta", rows, heads, "q")
    if lrpe == _choices.ROTATE and features % 2 != 0:
        _checks.fail(_OP, f"q must have an even number of features; it has {features}")
    axes = len(shape)
    if axes > 0:
        _checks.grid_tokens(_OP, tokens, shape, l, "q")
        _checks.grid_tokens(_OP, keys, shape, l, "k")
    elif not (0 <= l <= tokens and l <= keys):
        _checks.fail(
            _OP,
            f"l must be from 0 to the number of tokens; it is {l}, q has {tokens} tokens, "
            f"k has {keys}",
        )
    _checks.grid_offset(_OP, axes, offset)
    if lrpe == _choices.COSINE:
        _checks.axis_angles(_OP, "theta", angles, max(axes, 1), features, "features", "q")
    elif axes > 1:
        _checks.axis_angles(_OP, "theta", angles, axes, features // 2, "pairs", "q")
    else:
        _checks.pair_angles(_OP, angles, features // 2, "q")


def _check(q, k, v, g, theta, acts, lrpe, shape, offset, l) -> None:
    """The checks of the kernel, in its order and with its texts, for tensors without data."""
    if theta is not None:
        _checks.tensor(_OP, "theta", theta)
    if len(shape) > 0:
        _checks.sizes(_OP, "shape", shape)
    _attention.check_inputs(_OP, q, k, v, g)
    for name, act, dim in acts:
        _checks.softmax_axis(_OP, act, f"{name}_dim", dim, 4, _SEQUENCE_AXIS)
    if lrpe == _choices.NONE:
        _check_no_positions(theta, shape, offset, l)
    else:
        _check_positions(q, k, theta, lrpe, shape, offset, l)


_OPTIONS = 13  # of the forward, before precision; the backward has no `keep`


@torch.library.register_fake("attnops::flao_fal")
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor, theta: Tensor | None, *options):
    # torch leaves out arguments that have their default.
    *numbers, lrpe, shape, offset, l, keep = options[:_OPTIONS]
    precision = next(iter(options[_OPTIONS:]), None)
    acts = tuple(zip(("q", "k", "v", "g"), numbers[::2], numbers[1::2], strict=True))
    _check_options(acts, lrpe)
    _choices.check(_OP, "keep", _choices.KEEPS, keep)
    _choices.check_precision(_OP, precision)
    _checks.same_device(_OP, q=q, k=k, v=v, g=g, theta=theta)
    _check(q, k, v, g, theta, acts, lrpe, shape or (), offset, l)
    inner = 2 * q.shape[3] if lrpe == _choices.COSINE else q.shape[3]
    return _attention.fake_results(q, v, g, keep, inner)


def _fake_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, d_out: Tensor, kv, qkv, theta, *options
):
    *numbers, lrpe, shape, offset, l = options[: _OPTIONS - 1]
    precision = next(iter(options[_OPTIONS - 1 :]), None)
    acts = tuple(zip(("q", "k", "v", "g"), numbers[::2], numbers[1::2], strict=True))
    _check_options(acts, lrpe)
    _choices.check_precision(_OP, precision)
    _checks.same_device(_OP, q=q, k=k, v=v, g=g, d_out=d_out, kv=kv, qkv=qkv, theta=theta)
    _check(q, k, v, g, theta, acts, lrpe, shape or (), offset, l)
    return _attention.fake_gradients(_OP, q, k, v, g, d_out)


torch.library.register_fake("attnops::flao_fal_backward", _fake_backward)


@torch.library.register_fake("attnops::flao_fal_backward_theta")
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor, d_out: Tensor, kv, qkv, theta, *options):
    gradients = _fake_backward(q, k, v, g, d_out, kv, qkv, theta, *options)
    return *gradients, theta.new_empty(theta.shape, dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, g, theta, *options, keep, precision = inputs
    ctx.options = (*options, precision)
    ctx.save_for_backward(q, k, v, g, *_attention.setup_kept(ctx, output, keep), theta)


def _backward(ctx, d_out: Tensor | None, *_):
    nothing = (None,) * (len(ctx.options) + 1)  # the options and keep
    if d_out is None:
        return None, None, None, None, None, *nothing
    _checks.no_tangents(_OP, d_out=d_out)
    q, k, v, g, kv, qkv, theta = ctx.saved_tensors
    arguments = (q, k, v, g, d_out, kv, qkv, theta, *ctx.options)
    if ctx.needs_input_grad[4]:
        return *_transforms.call(torch.ops.attnops.flao_fal_backward_theta, *arguments), *nothing
    return *_transforms.call(torch.ops.attnops.flao_fal_backward, *arguments), None, *nothing


_transforms.register_autograd("flao_fal", _backward, _setup_context)
_transforms.refuse_second_derivative(_OP, "flao_fal_backward")
_transforms.refuse_second_derivative(_OP, "flao_fal_backward_theta")
