"""The halves of flao and flao_fal: KV of keys and values, the output of queries and gates."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attnops import _checks, _choices, _sharding, _transforms


def flao_kv(k: Tensor, v: Tensor, *, precision: str | None = None) -> Tensor:
    """KV = Kᵀ·V (B,H,D,E) in float32, of k (B,H,M,D) and v (B,H,M,E).

    The first half of flao, to use KV again and for sequences that are spread over machines: the KVs
    of parts of a sequence add up to its KV.

    Parameters
    ----------
    k, v : Tensor
        Of one type.
    precision : str, optional
        As in flao.

    Examples
    --------
    >>> import torch, attnops
    >>> q, k, v, g = (torch.randn(1, 2, 6, 4) for _ in range(4))
    >>> kv = attnops.flao_kv(k, v)
    >>> torch.equal(attnops.flao_out(q, kv, g), attnops.flao(q, k, v, g))
    True
    """
    if _sharding.sharded(k, v):
        return _sharding.handler("flao_kv")(
            k=k,
            v=v,
            precision=precision,
        )
    _checks.are_tensors("flao_kv", k=k, v=v)
    number = _choices.precision("flao_kv", precision)
    return _transforms.call(torch.ops.attnops.flao_kv, k, v, number)


def flao_out(q: Tensor, kv: Tensor, g: Tensor, *, precision: str | None = None) -> Tensor:
    """G ⊙ (Q·KV), flao's second half.

    Parameters
    ----------
    q, kv, g : Tensor
        (B,H,N,D), (B,H,D,E) in float32 and (B,H,N,E).
    precision : str, optional
        As in flao.

    Examples
    --------
    >>> import torch, attnops
    >>> q, g, kv = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 3), torch.randn(1, 2, 4, 3)
    >>> torch.allclose(attnops.flao_out(q, kv, g), g * (q @ kv), atol=1e-5)
    True
    """
    if _sharding.sharded(q, kv, g):
        return _sharding.handler("flao_out")(
            q=q,
            kv=kv,
            g=g,
            precision=precision,
        )
    _checks.are_tensors("flao_out", q=q, kv=kv, g=g)
    number = _choices.precision("flao_out", precision)
    return _transforms.call(torch.ops.attnops.flao_out, q, kv, g, number)


def flao_fal_kv(
    k: Tensor,
    v: Tensor,
    k_act: str = "none",
    k_dim: int | None = None,
    v_act: str = "none",
    v_dim: int | None = None,
    theta: Tensor | None = None,
    lrpe: str = "cosine",
    shape: Sequence[int] | None = None,
    offset: int = 0,
    l: int = 0,
    *,
    start: int = 0,
    precision: str | None = None,
) -> Tensor:
    """KV of flao_fal in float32, (B,H,2D,E) with the cosine encoding, else (B,H,D,E).

    The tokens are the numbers start, start+1, … of a sequence that has the given l and shape; on a
    line they have the positions offset + number − l. Softmax over the sequence is over the given
    tokens.

    Parameters
    ----------
    k, v : Tensor
        (B,H,M,D) and (B,H,M,E).
    k_act, k_dim, v_act, v_dim, theta, lrpe, shape, offset, l, precision
        As in flao_fal.
    start : int
        The number of the first given token in its sequence.

    Examples
    --------
    >>> import torch, attnops
    >>> k, v = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 3)
    >>> options = {"k_act": "silu", "theta": torch.tensor([[1.0, 0.1, 0.01, 0.001]])}
    >>> first = attnops.flao_fal_kv(k[:, :, :4], v[:, :, :4], **options)
    >>> rest = attnops.flao_fal_kv(k[:, :, 4:], v[:, :, 4:], **options, start=4)
    >>> torch.allclose(first + rest, attnops.flao_fal_kv(k, v, **options), atol=1e-5)
    True
    """
    op = "flao_fal_kv"
    _checks.are_tensors(op, k=k, v=v, **({} if theta is None else {"theta": theta}))
    return _transforms.call(
        torch.ops.attnops.flao_fal_kv,
        k,
        v,
        theta,
        _choices.number(op, "k_act", _choices.ACTIVATIONS, k_act),
        k_dim,
        _choices.number(op, "v_act", _choices.ACTIVATIONS, v_act),
        v_dim,
        _lrpe(op, lrpe, theta),
        shape,
        offset,
        l,
        start,
        _choices.precision(op, precision),
    )


def flao_fal_out(
    q: Tensor,
    kv: Tensor,
    g: Tensor,
    q_act: str = "none",
    q_dim: int | None = None,
    g_act: str = "none",
    g_dim: int | None = None,
    theta: Tensor | None = None,
    lrpe: str = "cosine",
    shape: Sequence[int] | None = None,
    offset: int = 0,
    l: int = 0,
    *,
    start: int = 0,
    precision: str | None = None,
) -> Tensor:
    """The output of flao_fal from its KV.

    Parameters
    ----------
    q, kv, g : Tensor
        (B,H,N,D), the KV of flao_fal_kv, and (B,H,N,E).
    q_act, q_dim, g_act, g_dim, theta, lrpe, shape, offset, l, precision
        As in flao_fal.
    start : int
        The number of the first given token in its sequence.

    Examples
    --------
    >>> import torch, attnops
    >>> q, k, v, g = (torch.randn(1, 2, 6, 4) for _ in range(4))
    >>> theta = torch.tensor([[1.0, 0.1]])
    >>> kv = attnops.flao_fal_kv(k, v, theta=theta, lrpe="rotate")
    >>> o = attnops.flao_fal_out(q, kv, g, theta=theta, lrpe="rotate")
    >>> torch.equal(o, attnops.flao_fal(q, k, v, g, theta=theta, lrpe="rotate"))
    True
    """
    op = "flao_fal_out"
    _checks.are_tensors(op, q=q, kv=kv, g=g, **({} if theta is None else {"theta": theta}))
    return _transforms.call(
        torch.ops.attnops.flao_fal_out,
        q,
        kv,
        g,
        theta,
        _choices.number(op, "q_act", _choices.ACTIVATIONS, q_act),
        q_dim,
        _choices.number(op, "g_act", _choices.ACTIVATIONS, g_act),
        g_dim,
        _lrpe(op, lrpe, theta),
        shape,
        offset,
        l,
        start,
        _choices.precision(op, precision),
    )


def _lrpe(op: str, lrpe: str, theta: Tensor | None) -> int:
    """Without theta there is no encoding unless `rotate` asks for one."""
    number = _choices.number(op, "lrpe", _choices.LRPES, lrpe)
    return _choices.NONE if theta is None and number == _choices.COSINE else number


def _check(op: str, x_name: str, x: Tensor, y_name: str, y: Tensor) -> None:
    """The checks of the kernels, in their order and with their texts, for tensors without data."""
    for name, tensor, axes in ((x_name, x, "(B,H,tokens,D)"), (y_name, y, "(B,H,tokens,E)")):
        _checks.tensor(op, name, tensor)
        _checks.axes(op, name, tensor, axes)
    for axis, what in enumerate(("batches", "heads", "tokens")):
        _checks.same_size(op, y_name, y.shape[axis], what, x_name, x.shape[axis])
    _checks.same_type(op, y_name, y, x_name, x)


def _check_kv(op: str, name: str, kv: Tensor, shape: Sequence[int]) -> None:
    _checks.has_shape(op, name, kv, shape)
    if kv.dtype != torch.float32:
        _checks.fail(op, f"{name} must be float32; it is {_checks.type_name(kv)}")


def _check_stages(op: str, x_name: str, x: Tensor, y_name: str, theta: Tensor | None, *options):
    """The arguments that flao does not have; returns the rows of KV."""
    x_act, x_dim, y_act, y_dim, lrpe, shape, offset, l, start, precision = options
    shape = shape or ()
    for name, act, dim in ((x_name, x_act, x_dim), (y_name, y_act, y_dim)):
        _checks.activation(op, f"{name}_act", act, f"{name}_dim", dim)
        _checks.softmax_axis(op, act, f"{name}_dim", dim, 4, 2)
    _choices.check(op, "lrpe", _choices.LRPES, lrpe)
    _choices.check_precision(op, precision)
    features = x.shape[3]
    if lrpe == _choices.NONE:
        if theta is not None:
            _checks.fail(op, "theta must be absent without an encoding (lrpe)")
        if len(shape) > 0:
            listed = _checks.listed(shape)
            _checks.fail(op, f"shape must be absent without an encoding; it is {listed}")
        return features
    if theta is None:
        _checks.fail(op, "theta is missing; the encoding (lrpe) needs it")
    _checks.tensor(op, "theta", theta)
    _checks.angle_axes(op, theta)
    _checks.angle_type(op, x, theta, x_name)
    _checks.heads(op, "theta", theta.shape[0], x.shape[1], x_name)
    if lrpe == _choices.ROTATE and features % 2 != 0:
        _checks.fail(op, f"{x_name} must have an even number of features; it has {features}")
    for name, value in (("start", start), ("l", l)):
        if value < 0:
            _checks.fail(op, f"{name} must not be negative; it is {value}")
    _checks.grid_offset(op, len(shape), offset)
    angles, axes = theta.shape[1], max(len(shape), 1)
    if lrpe == _choices.COSINE:
        _checks.axis_angles(op, "theta", angles, axes, features, "features", x_name)
        return 2 * features
    if axes > 1:
        _checks.axis_angles(op, "theta", angles, axes, features // 2, "pairs", x_name)
    else:
        _checks.pair_angles(op, angles, features // 2, x_name)
    return features


_NO_STAGES = (0, None, 0, None, 0, None, 0, 0, 0)


def _fake_kv(op: str, k: Tensor, v: Tensor, theta: Tensor | None, *options) -> Tensor:
    _checks.same_device(op, k=k, v=v, theta=theta)
    _check(op, "k", k, "v", v)
    rows = _check_stages(op, "k", k, "v", theta, *options)
    return k.new_empty((k.shape[0], k.shape[1], rows, v.shape[3]), dtype=torch.float32)


def _fake_out(op: str, q: Tensor, kv: Tensor, g: Tensor, theta: Tensor | None, *options) -> Tensor:
    _checks.same_device(op, q=q, kv=kv, g=g, theta=theta)
    _check(op, "q", q, "g", g)
    rows = _check_stages(op, "q", q, "g", theta, *options)
    _check_kv(op, "kv", kv, (q.shape[0], q.shape[1], rows, g.shape[3]))
    return g.new_empty(g.shape)


@torch.library.register_fake("attnops::flao_kv")
def _(k: Tensor, v: Tensor, precision: int | None) -> Tensor:
    return _fake_kv("flao_kv", k, v, None, *_NO_STAGES, precision)


@torch.library.register_fake("attnops::flao_out")
def _(q: Tensor, kv: Tensor, g: Tensor, precision: int | None) -> Tensor:
    return _fake_out("flao_out", q, kv, g, None, *_NO_STAGES, precision)


torch.library.register_fake("attnops::flao_fal_kv", partial(_fake_kv, "flao_fal_kv"))
torch.library.register_fake("attnops::flao_fal_out", partial(_fake_out, "flao_fal_out"))


@torch.library.register_fake("attnops::flao_kv_backward")
def _(k: Tensor, v: Tensor, d_kv: Tensor, precision: int | None):
    return k.new_empty(k.shape), v.new_empty(v.shape)


def _fake_theta(x: Tensor, theta: Tensor | None, wanted: bool) -> Tensor:
    shape = theta.shape if wanted and theta is not None else (0,)
    return x.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("attnops::flao_fal_kv_backward")
def _(k: Tensor, v: Tensor, d_kv: Tensor, theta: Tensor | None, *options):
    return k.new_empty(k.shape), v.new_empty(v.shape), _fake_theta(k, theta, options[-1])


@torch.library.register_fake("attnops::flao_out_backward")
def _(q: Tensor, kv: Tensor, g: Tensor, d_out: Tensor, precision: int | None):
    return q.new_empty(q.shape), kv.new_empty(kv.shape), g.new_empty(g.shape)


@torch.library.register_fake("attnops::flao_fal_out_backward")
def _(q: Tensor, kv: Tensor, g: Tensor, d_out: Tensor, theta: Tensor | None, *options):
    shapes = (x.new_empty(x.shape) for x in (q, kv, g))
    return *shapes, _fake_theta(q, theta, options[-1])


def _register(op: str, tensors: int, has_stages: bool) -> None:
    """The gradient of a half with so many tensors beside theta."""

    def setup(ctx, inputs, output) -> None:
        ctx.tensors = tensors + has_stages
        ctx.options = inputs[ctx.tensors :]
        ctx.save_for_backward(*inputs[: ctx.tensors])

    def backward(ctx, d_out: Tensor):
        _checks.no_tangents(op, d_out=d_out)
        given = ctx.saved_tensors
        nothing = (None,) * len(ctx.options)
        call = partial(_transforms.call, getattr(torch.ops.attnops, f"{op}_backward"))
        if not has_stages:
            return *call(*given, d_out, *ctx.options), *nothing
        *inputs, theta = given
        wants_theta = ctx.needs_input_grad[tensors]
        *gradients, d_theta = call(*inputs, d_out, theta, *ctx.options, wants_theta)
        return *gradients, d_theta if wants_theta else None, *nothing

    _transforms.register_autograd(op, backward, setup)
    _transforms.refuse_second_derivative(op, f"{op}_backward")


_register("flao_kv", 2, has_stages=False)
_register("flao_out", 3, has_stages=False)
_register("flao_fal_kv", 2, has_stages=True)
_register("flao_fal_out", 3, has_stages=True)
