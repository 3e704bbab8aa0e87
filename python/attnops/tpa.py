"""tpa: tensor product attention of any rank, with a backward."""

import torch
from torch import Tensor

from attnops import _checks, _choices, _sharding, _transforms

_OP = "tpa"
_QUERIES = ("aq", "bq", "q")
_KEYS = ("ak", "av", "bk", "bv")


def tpa(
    aq: Tensor | None,
    ak: Tensor,
    av: Tensor,
    bq: Tensor | None,
    bk: Tensor,
    bv: Tensor,
    *,
    q: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    scale_q: float | None = None,
    scale_k: float | None = None,
    scale_v: float | None = None,
    precision: str | None = None,
) -> Tensor:
    """Attention of N queries to M keys from the factors of q, k and v.

    With q[n,h] = scale_q·Σ_r aq[n,h,r]·bq[n,r], and k and v likewise, it is
    o[n,h] = Σ_m softmax_m(scale·q[n,h]·k[m,h])·v[m,h]. Keys and values of all heads are never in
    memory, nor is an (N,M) matrix: the forward keeps o and the log-sum-exp.

    Parameters
    ----------
    aq, ak, av, bq, bk, bv : Tensor
        (B,N,H,R_q), (B,M,H,R_k), (B,M,H,R_v), (B,N,R_q,D), (B,M,R_k,D) and (B,M,R_v,E), all of one
        type. aq and bq are None if q is given.
    q : Tensor, optional
        (B,N,H,D), the whole queries.
    causal : bool
        Query n sees the keys up to n + (M − N); M must be at least N.
    scale : float, optional
        D^-½ unless given.
    scale_q, scale_k, scale_v : float, optional
        1 over the rank unless given (1 for a whole q).
    precision : str, optional
        What products multiply: highest, high, medium or auto, as in set_precision.

    Returns
    -------
    Tensor
        (B,N,H,E).

    Examples
    --------
    >>> import torch, attnops
    >>> a = [torch.randn(2, 16, 4, rank) for rank in (6, 2, 2)]
    >>> b = [torch.randn(2, 16, rank, 64) for rank in (6, 2, 2)]
    >>> attnops.tpa(*a, *b).shape
    torch.Size([2, 16, 4, 64])
    """
    if _sharding.sharded(q, ak, av, bk, bv):
        return _sharding.handler("tpa")(
            aq=aq,
            ak=ak,
            av=av,
            bq=bq,
            bk=bk,
            bv=bv,
            q=q,
            causal=causal,
            scale=scale,
            scale_q=scale_q,
            scale_k=scale_k,
            scale_v=scale_v,
            precision=precision,
        )
    given = _given(_OP, aq, ak, av, bq, bk, bv, q)
    _checks.are_tensors(_OP, **given)
    out, _ = _transforms.call(
        torch.ops.attnops.tpa,
        aq,
        ak,
        av,
        bq,
        bk,
        bv,
        q,
        causal,
        scale,
        scale_q,
        scale_k,
        scale_v,
        _choices.precision(_OP, precision),
    )
    return out


def _given(op, aq, ak, av, bq, bk, bv, q) -> dict[str, Tensor]:
    """All tensors by name; without those of the two forms of queries that are not given."""
    if q is not None:
        if aq is not None or bq is not None:
            _checks.fail(op, "q must be given, or else aq and bq, and not all of them")
        return {"q": q, "ak": ak, "av": av, "bk": bk, "bv": bv}
    return {"aq": aq, "ak": ak, "av": av, "bq": bq, "bk": bk, "bv": bv}


def check_query(op: str, given: dict[str, Tensor]) -> None:
    """The checks of the kernels, in their order and with their texts, for tensors without data."""
    for name in _QUERIES:
        if name in given:
            _checks.tensor(op, name, given[name])
    if "q" in given:
        _checks.axes(op, "q", given["q"], "(B,N,H,D)")
        return
    aq, bq = given["aq"], given["bq"]
    _checks.axes(op, "aq", aq, "(B,N,H,R)")
    _checks.axes(op, "bq", bq, "(B,N,R,D)")
    _checks.same_size(op, "bq", bq.shape[0], "batches", "aq", aq.shape[0])
    _checks.same_size(op, "bq", bq.shape[1], "tokens", "aq", aq.shape[1])
    _checks.same_size(op, "bq", bq.shape[2], "ranks", "aq", aq.shape[3])
    _checks.same_type(op, "bq", bq, "aq", aq)
    check_ranks(op, "aq", aq.shape[3])


def check_ranks(op: str, name: str, ranks: int) -> None:
    """At least one."""
    if ranks < 1:
        _checks.fail(op, f"{name} has {ranks} ranks; it must have at least 1")


def check_factors(op: str, given: dict[str, Tensor], paged: bool = False) -> None:
    """The checks of all factors."""
    for name in _QUERIES + _KEYS:
        if name in given:
            _checks.tensor(op, name, given[name])
    check_query(op, given)
    first = "q" if "q" in given else "aq"
    query = given[first]
    front = "P,page_size" if paged else "B,M"
    for name, axes in zip(_KEYS, ("H,R", "H,R", "R,D", "R,E"), strict=True):
        _checks.axes(op, name, given[name], f"({front},{axes})")
    ak, av, bk, bv = (given[name] for name in _KEYS)
    for name in _KEYS:
        if paged:
            _checks.same_size(op, name, given[name].shape[0], "pages", "ak", ak.shape[0])
        else:
            _checks.same_size(op, name, given[name].shape[0], "batches", first, query.shape[0])
        _checks.same_size(op, name, given[name].shape[1], "tokens", "ak", ak.shape[1])
        _checks.same_type(op, name, given[name], first, query)
    _checks.same_size(op, "ak", ak.shape[2], "heads", first, query.shape[2])
    _checks.same_size(op, "av", av.shape[2], "heads", first, query.shape[2])
    _checks.same_size(op, "bk", bk.shape[2], "ranks", "ak", ak.shape[3])
    _checks.same_size(op, "bv", bv.shape[2], "ranks", "av", av.shape[3])
    features = given["q" if "q" in given else "bq"]
    _checks.same_size(
        op, "bk", bk.shape[3], "features", "q" if "q" in given else "bq", features.shape[3]
    )
    check_ranks(op, "ak", ak.shape[3])
    check_ranks(op, "av", av.shape[3])


def fake_results(given: dict[str, Tensor], features: int) -> tuple[Tensor, Tensor]:
    """Out and lse."""
    query = given["q"] if "q" in given else given["aq"]
    b, n, h, _ = query.shape
    return query.new_empty((b, n, h, features)), query.new_empty((b, h, n), dtype=torch.float32)


def _check(given: dict[str, Tensor], causal: bool) -> None:
    check_factors(_OP, given)
    first = "q" if "q" in given else "aq"
    keys, queries = given["ak"].shape[1], given[first].shape[1]
    if causal and keys < queries:
        _checks.fail(
            _OP,
            f"ak has {keys} tokens; with causal it must have at least as many as {first}, "
            f"{queries}",
        )


@torch.library.register_fake("attnops::tpa")
def _(aq, ak, av, bq, bk, bv, q, causal, scale, scale_q, scale_k, scale_v, precision):
    _choices.check_precision(_OP, precision)
    given = _given(_OP, aq, ak, av, bq, bk, bv, q)
    _checks.same_device(_OP, **given)
    _check(given, causal)
    return fake_results(given, bv.shape[3])


@torch.library.register_fake("attnops::tpa_backward")
def _(
    aq,
    ak,
    av,
    bq,
    bk,
    bv,
    q,
    out,
    lse,
    d_out,
    causal,
    scale,
    scale_q,
    scale_k,
    scale_v,
    precision,
    lengths=None,
):
    _choices.check_precision(_OP, precision)
    given = _given(_OP, aq, ak, av, bq, bk, bv, q)
    _checks.same_device(_OP, **given, out=out, lse=lse, d_out=d_out)
    _check(given, causal)
    return tuple(
        ak.new_empty((0,)) if x is None else x.new_empty(x.shape)
        for x in (aq, ak, av, bq, bk, bv, q)
    )


def _setup_context(ctx, inputs, output) -> None:
    out, lse = output
    ctx.options = inputs[7:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*inputs[:7], out, lse)


def _backward(ctx, d_out: Tensor | None, _):
    nothing = (None,) * len(ctx.options)
    if d_out is None:
        return (None,) * 7 + nothing
    _checks.no_tangents(_OP, d_out=d_out)
    *inputs, out, lse = ctx.saved_tensors
    gradients = _transforms.call(
        torch.ops.attnops.tpa_backward, *inputs, out, lse, d_out, *ctx.options
    )
    given = (None if x is None else gradient for x, gradient in zip(inputs, gradients, strict=True))
    return *given, *nothing


_transforms.register_autograd("tpa", _backward, _setup_context)


_transforms.refuse_second_derivative(_OP, f"{_OP}_backward")
