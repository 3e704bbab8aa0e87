"""linear_attention: causal, with decay and state."""

import torch
from torch import Tensor

from attnops import _checks, _choices, _sharding, _transforms

_OP = "linear_attention"
_LAYOUTS = ("bnhd", "bhnd")
_RUN = 1024  # tokens between kept states


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    log_decay_v: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_state: bool = False,
    cu_seqlens: Tensor | None = None,
    layout: str = "bnhd",
    inplace_state: bool = False,
    keep: str = "none",
    precision: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Linear attention over the tokens so far, with λ = exp(log_decay) and μ = exp(log_decay_v).

        S_t = diag(λ_t)·S_{t−1}·diag(μ_t) + k_t·v_tᵀ        o_t = scale · q_tᵀ·S_t

    Parameters
    ----------
    q, k : (B,N,Hk,D), float32, float16 or bfloat16
        Hk divides v's heads H; each serves H/Hk of them.
    v : (B,N,H,E)
    log_decay : (H), (B,N,H) or (B,N,H,D), float32 or of q's type
        One for each head, token or feature; −inf forgets all. None: nothing decays.
    log_decay_v : (B,N,H,E)
        The same for the features of v.
    scale : D^−½ if None.
    initial_state : (B,H,D,E) in float32
        The state before the first token; None is 0.
    output_state : return (o, state), the state behind the last token, in float32.
    cu_seqlens : (S+1) integers
        B is 1 and its tokens are S sequences; sequence i is [cu_seqlens[i], cu_seqlens[i+1]).
        States are (S,H,D,E).
    layout : `bnhd`, or `bhnd` for q, k, v, o (B,H,N,·) and decays (B,H,N) and (B,H,N,·).
    inplace_state : write the last state into initial_state and return (o, initial_state).
        For decoding; no gradients.
    keep : what the forward keeps for the backward beside its inputs
        `none`, or `states`: those at every 1024th token, (B·⌊N/1024⌋,H,D,E) in float32, which the
        backward computes anew otherwise. When no gradient is needed, nothing is kept.
    precision : what products multiply: highest, high, medium or auto, as in set_precision.
        States and sums are float32 always; so are the products of one token and, with decays of
        single features, all products.

    Examples
    --------
    >>> import torch, attnops
    >>> q, k, v = (torch.randn(2, 17, 4, 8) for _ in range(3))
    >>> decay = torch.nn.functional.logsigmoid(torch.randn(2, 17, 4))
    >>> prompt, one = slice(0, 16), slice(16, 17)
    >>> o, state = attnops.linear_attention(
    ...     q[:, prompt], k[:, prompt], v[:, prompt], decay[:, prompt], output_state=True
    ... )
    >>> o, state = attnops.linear_attention(
    ...     q[:, one], k[:, one], v[:, one], decay[:, one], initial_state=state, inplace_state=True
    ... )
    >>> state.shape
    torch.Size([2, 4, 8, 8])
    """
    if _sharding.sharded(q, k, v):
        return _sharding.handler("linear_attention")(
            q=q,
            k=k,
            v=v,
            log_decay=log_decay,
            log_decay_v=log_decay_v,
            scale=scale,
            initial_state=initial_state,
            output_state=output_state,
            cu_seqlens=cu_seqlens,
            layout=layout,
            inplace_state=inplace_state,
            keep=keep,
            precision=precision,
        )
    _checks.are_tensors(_OP, q=q, k=k, v=v)
    given = {
        "log_decay": log_decay,
        "log_decay_v": log_decay_v,
        "initial_state": initial_state,
    }
    _checks.are_tensors(_OP, **{name: x for name, x in given.items() if x is not None})
    if layout not in _LAYOUTS:
        _checks.fail(_OP, f"layout must be bnhd or bhnd; it is {layout}")
    if cu_seqlens is not None:
        _checks.are_tensors(_OP, cu_seqlens=cu_seqlens)
        if cu_seqlens.dtype not in (torch.int64, torch.int32):
            name = _checks.type_name(cu_seqlens)
            _checks.fail(_OP, f"cu_seqlens must be int64 or int32; it is {name}")
        cu_seqlens = cu_seqlens.to(torch.int64).contiguous()
    kept = _choices.number(_OP, "keep", _choices.CAUSAL_KEEPS, keep)
    products = _choices.precision(_OP, precision)
    tensors = (q, k, v, *(x for x in given.values() if x is not None))
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    scale = None if scale is None else float(scale)
    heads_first = layout == "bhnd"
    if inplace_state:
        _transforms.refuse_inplace(_OP, "inplace_state")
        if initial_state is None:
            _checks.fail(_OP, "inplace_state needs initial_state")
        if needs_grad:
            _checks.fail(_OP, "inplace_state has no gradients, and an input requires grad")
        out = torch.ops.attnops.linear_attention_(
            q, k, v, initial_state, log_decay, log_decay_v, scale, cu_seqlens, heads_first, products
        )
        return out, initial_state
    out, state, _ = _transforms.call(
        torch.ops.attnops.linear_attention,
        q,
        k,
        v,
        log_decay,
        log_decay_v,
        scale,
        initial_state,
        cu_seqlens,
        output_state,
        heads_first,
        kept if needs_grad else _choices.NONE,
        products,
    )
    return (out, state) if output_state else out


def _check(q, k, v, log_decay, log_decay_v, initial_state, cu_seqlens, heads_first) -> list[int]:
    """The checks of the kernels; the shape of the state."""
    _checks.same_device(
        _OP,
        q=q,
        k=k,
        v=v,
        log_decay=log_decay,
        log_decay_v=log_decay_v,
        initial_state=initial_state,
    )
    axes = "(B,H,N,D)" if heads_first else "(B,N,H,D)"
    for name, x in (("q", q), ("k", k), ("v", v)):
        _checks.tensor(_OP, name, x)
        _checks.axes(_OP, name, x, axes if name != "v" else axes.replace("D", "E"))
    head, token = (1, 2) if heads_first else (2, 1)
    _checks.same_shape_and_type(_OP, "k", k, "q", q)
    _checks.same_size(_OP, "v", v.shape[0], "batches", "q", q.shape[0])
    _checks.same_size(_OP, "v", v.shape[token], "tokens", "q", q.shape[token])
    key_heads, heads = q.shape[head], v.shape[head]
    if heads != key_heads and (key_heads == 0 or heads % key_heads != 0):
        _checks.fail(
            _OP, f"v has {heads} heads; it must be a multiple of the {key_heads} of q and k"
        )
    _checks.same_type(_OP, "v", v, "q", q)
    sequences = q.shape[0]
    if cu_seqlens is not None:
        if q.shape[0] != 1:
            _checks.fail(_OP, f"cu_seqlens needs a batch of 1; q has {q.shape[0]} batches")
        sequences = cu_seqlens.shape[0] - 1
    shapes = {1: [heads], 3: list(v.shape[:3]), 4: [*v.shape[:3], q.shape[3]]}
    if log_decay is not None:
        if log_decay.ndim not in shapes:
            _checks.fail(
                _OP,
                "log_decay must have the axes (H), (B,N,H) or (B,N,H,D); its shape is "
                f"{_checks.shape(log_decay)}",
            )
        _checks.has_shape(_OP, "log_decay", log_decay, shapes[log_decay.ndim])
    if log_decay_v is not None:
        _checks.has_shape(_OP, "log_decay_v", log_decay_v, v.shape)
    for name, x in (("log_decay", log_decay), ("log_decay_v", log_decay_v)):
        if x is not None and x.dtype not in (q.dtype, torch.float32):
            _checks.fail(
                _OP,
                f"{name} must be float32 or have the type of q, {_checks.type_name(q)}; "
                f"it is {_checks.type_name(x)}",
            )
    state = [sequences, heads, q.shape[3], v.shape[3]]
    if initial_state is not None:
        _checks.has_shape(_OP, "initial_state", initial_state, state)
        if initial_state.dtype != torch.float32:
            name = _checks.type_name(initial_state)
            _checks.fail(_OP, f"initial_state must be float32; it is {name}")
    return state


@torch.library.register_fake("attnops::linear_attention")
def _(
    q,
    k,
    v,
    log_decay,
    log_decay_v,
    scale,
    initial_state,
    cu_seqlens,
    output_state,
    heads_first,
    keep=_choices.NONE,
    precision=None,
) -> tuple[Tensor, Tensor, Tensor]:
    _choices.check(_OP, "keep", _choices.CAUSAL_KEEPS, keep)
    _choices.check_precision(_OP, precision)
    shape = _check(q, k, v, log_decay, log_decay_v, initial_state, cu_seqlens, heads_first)
    tokens = q.shape[2 if heads_first else 1]
    kept = [0] if keep == _choices.NONE else [q.shape[0] * (tokens // _RUN), *shape[1:]]
    return (
        v.new_empty(v.shape),
        q.new_empty(shape if output_state else [0], dtype=torch.float32),
        q.new_empty(kept, dtype=torch.float32),
    )


@torch.library.register_fake("attnops::linear_attention_")
def _(
    q, k, v, state, log_decay, log_decay_v, scale, cu_seqlens, heads_first, precision=None
) -> Tensor:
    _choices.check_precision(_OP, precision)
    _check(q, k, v, log_decay, log_decay_v, state, cu_seqlens, heads_first)
    return v.new_empty(v.shape)


@torch.library.register_fake("attnops::linear_attention_backward")
def _(
    q,
    k,
    v,
    log_decay,
    log_decay_v,
    scale,
    initial_state,
    cu_seqlens,
    heads_first,
    d_out,
    d_state,
    wants_decay,
    kept=None,
    precision=None,
) -> tuple[Tensor, ...]:
    _choices.check_precision(_OP, precision)
    _check(q, k, v, log_decay, log_decay_v, initial_state, cu_seqlens, heads_first)
    _checks.same_device(_OP, q=q, d_out=d_out, d_state=d_state)
    _checks.same_shape_and_type(_OP, "d_out", d_out, "v", v)

    def like(x: Tensor | None, wanted: bool) -> Tensor:
        return q.new_empty([0]) if x is None or not wanted else x.new_empty(x.shape)

    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        like(log_decay, wants_decay),
        like(log_decay_v, wants_decay),
        like(initial_state, True),
    )


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.scale, initial_state, cu_seqlens, output_state = inputs[:9]
    ctx.heads_first, keep, ctx.precision = inputs[9:]
    _, state, kept = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*((kept,) if output_state else (state, kept)))
    kept = None if keep == _choices.NONE else kept
    ctx.save_for_backward(*tensors, initial_state, cu_seqlens, kept)


def _backward(ctx, d_out: Tensor | None, d_state: Tensor | None, _):
    if d_out is None and d_state is None:
        return (None,) * 12
    q, k, v, log_decay, log_decay_v, initial_state, cu_seqlens, kept = ctx.saved_tensors
    d_out = torch.zeros_like(v) if d_out is None else d_out
    _checks.no_tangents(_OP, d_out=d_out, **({} if d_state is None else {"d_state": d_state}))
    needs = ctx.needs_input_grad
    *gradients, d_initial_state = _transforms.call(
        torch.ops.attnops.linear_attention_backward,
        q,
        k,
        v,
        log_decay,
        log_decay_v,
        ctx.scale,
        initial_state,
        cu_seqlens,
        ctx.heads_first,
        d_out,
        d_state,
        needs[3] or needs[4],
        kept,
        ctx.precision,
    )
    gradients = [g if need else None for g, need in zip(gradients, needs, strict=False)]
    return *gradients, None, d_initial_state if needs[6] else None, *(None,) * 5


_transforms.register_autograd("linear_attention", _backward, _setup_context)
_transforms.refuse_second_derivative(_OP, f"{_OP}_backward")
