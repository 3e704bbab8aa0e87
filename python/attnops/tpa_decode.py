"""tpa_decode: one decoding step of tensor product attention."""

from typing import Any

import torch
from torch import Tensor

from attnops import _checks, _choices, _sharding, _transforms
from attnops.tpa import check_factors, check_query, fake_results

_OP = "tpa_decode"


def tpa_decode(
    aq: Tensor | None,
    ak: Tensor,
    av: Tensor,
    bq: Tensor | None,
    bk: Tensor,
    bv: Tensor,
    scale: float | None = None,
    scale_q: float | None = None,
    scale_k: float | None = None,
    scale_v: float | None = None,
    split: str = "auto",
    *,
    q: Tensor | None = None,
    lengths: Tensor | None = None,
    page_table: Tensor | None = None,
    precision: str | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of one query to M cached tokens, from the factors of q, k and v.

    With q[h] = scale_q·Σ_r aq[h,r]·bq[r], and k[m,h] and v[m,h] likewise, it is
    o[h] = Σ_m softmax_m(scale·q[h]·k[m,h])·v[m,h]. The backward is that of
    tpa.

    Parameters
    ----------
    aq, ak, av, bq, bk, bv : Tensor
        (B,1,H,R_q), (B,M,H,R_k), (B,M,H,R_v), (B,1,R_q,D), (B,M,R_k,D) and (B,M,R_v,E), all of one
        type. aq and bq are None if q is given. Of rank 1, ak and av may be
        (B,M,H), bk (B,M,D) and bv (B,M,E). A slice `cache[:, :m]` of a larger cache is used where
        it is.
    scale : float, optional
        D^-½ unless given.
    scale_q, scale_k, scale_v : float, optional
        1 over the rank unless given.
    split : {"auto", "b", "bh", "bn"}
        How threads share the work: by batch, batch and heads, or batch and pieces of the sequence;
        the result has the same bits with each.
    q : Tensor, optional
        (B,1,H,D), the whole queries.
    lengths : Tensor, optional
        (B), int64: how many tokens each sequence has.
    page_table : Tensor, optional
        (B,pages), int64: the factors are pages (P,page_size,…), and token t of sequence b is in
        page page_table[b, t // page_size].
    precision : str, optional
        What products multiply: highest, high, medium or auto, as in set_precision.
    return_lse : bool
        Adds the log-sum-exp of the scores.

    Returns
    -------
    Tensor or tuple of Tensor
        (B,1,H,E), and (B,H,1) in float32 with return_lse.

    Examples
    --------
    >>> import torch, attnops
    >>> a = [torch.randn(2, n, 4, rank) for n, rank in ((1, 6), (32, 2), (32, 2))]
    >>> b = [torch.randn(2, n, rank, 64) for n, rank in ((1, 6), (32, 2), (32, 2))]
    >>> attnops.tpa_decode(*a, *b, lengths=torch.tensor([32, 20])).shape
    torch.Size([2, 1, 4, 64])
    """
    if _sharding.sharded(q, ak, av, bk, bv):
        return _sharding.handler("tpa_decode")(
            aq=aq,
            ak=ak,
            av=av,
            bq=bq,
            bk=bk,
            bv=bv,
            scale=scale,
            scale_q=scale_q,
            scale_k=scale_k,
            scale_v=scale_v,
            split=split,
            q=q,
            lengths=lengths,
            page_table=page_table,
            precision=precision,
            return_lse=return_lse,
        )
    given: dict[str, Any] = (
        {"q": q} if q is not None and aq is None and bq is None else {"aq": aq, "bq": bq}
    )
    if q is not None and "q" not in given:
        _checks.fail(_OP, "q must be given, or else aq and bq, and not all of them")
    tensors = {"ak": ak, "av": av, "bk": bk, "bv": bv} | given
    _checks.are_tensors(_OP, **tensors)
    if lengths is not None:
        _checks.are_tensors(_OP, lengths=lengths)
    if page_table is not None:
        _checks.are_tensors(_OP, page_table=page_table)
    number = _choices.number(_OP, "split", _choices.SPLITS, split)
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in tensors.values())
    if _transforms.transformed() and lengths is None and page_table is None:
        needs_grad = True  # a transform within may hide it
    rank_1 = ak.ndim == 3
    if rank_1 and q is None and lengths is None and page_table is None:
        if not needs_grad and not return_lse:
            return _transforms.call(
                torch.ops.attnops.tpa_decode,
                aq,
                ak,
                av,
                bq,
                bk,
                bv,
                scale,
                scale_q,
                1.0 if scale_k is None else scale_k,
                1.0 if scale_v is None else scale_v,
                number,
                _choices.precision(_OP, precision),
            )
        if not torch.is_autocast_enabled("cpu"):  # which may change the types
            _check(aq, ak, av, bq, bk, bv)
    if rank_1:
        _checks.axes(_OP, "av", av, "(B,M,H)")
        _checks.axes(_OP, "bk", bk, "(B,M,D)")
        _checks.axes(_OP, "bv", bv, "(B,M,E)")
        ak, av, bk, bv = ak.unsqueeze(3), av.unsqueeze(3), bk.unsqueeze(2), bv.unsqueeze(2)
    scales = (scale, scale_q, scale_k, scale_v)
    out, lse = _transforms.call(
        torch.ops.attnops.tpa_decode_ranks,
        aq,
        ak,
        av,
        bq,
        bk,
        bv,
        q,
        *scales,
        number,
        lengths,
        page_table,
        _choices.precision(_OP, precision),
    )
    return (out, lse) if return_lse else out


def _check(
    aq: Tensor | None, ak: Tensor, av: Tensor, bq: Tensor | None, bk: Tensor, bv: Tensor
) -> None:
    """The checks of the kernel, in its order and with its texts, for tensors without data."""
    tensors: dict[str, Any] = {"aq": aq, "ak": ak, "av": av, "bq": bq, "bk": bk, "bv": bv}
    axes = ("(B,1,H,R)", "(B,M,H)", "(B,M,H)", "(B,1,R,D)", "(B,M,D)", "(B,M,E)")
    for name, tensor in tensors.items():
        _checks.tensor(_OP, name, tensor)
    for (name, tensor), names in zip(tensors.items(), axes, strict=True):
        _checks.axes(_OP, name, tensor, names)
    for name in ("aq", "bq"):
        if tensors[name].shape[1] != 1:
            _checks.fail(_OP, f"{name} must have 1 token (axis 1); it has {tensors[name].shape[1]}")

    def same(name: str, axis: int, what: str, other_name: str, other_axis: int) -> None:
        _checks.same_size(
            _OP,
            name,
            tensors[name].shape[axis],
            what,
            other_name,
            tensors[other_name].shape[other_axis],
        )

    for name in ("ak", "av", "bq", "bk", "bv"):
        same(name, 0, "batches", "aq", 0)
    same("ak", 2, "heads", "aq", 2)
    same("av", 2, "heads", "aq", 2)
    same("bq", 2, "ranks", "aq", 3)
    same("bk", 2, "features", "bq", 3)
    for name in ("av", "bk", "bv"):
        same(name, 1, "tokens", "ak", 1)
    for name in ("ak", "av", "bq", "bk", "bv"):
        _checks.same_type(_OP, name, tensors[name], "aq", tensors["aq"])


@torch.library.register_fake("attnops::tpa_decode")
def _(
    aq: Tensor,
    ak: Tensor,
    av: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
    scale: float | None,
    scale_q: float | None,
    scale_k: float,
    scale_v: float,
    split: int,
    precision: int | None = None,
) -> Tensor:
    _choices.check(_OP, "split", _choices.SPLITS, split)
    _choices.check_precision(_OP, precision)
    _checks.same_device(_OP, aq=aq, ak=ak, av=av, bq=bq, bk=bk, bv=bv)
    _check(aq, ak, av, bq, bk, bv)
    return aq.new_empty((aq.shape[0], 1, aq.shape[2], bv.shape[2]))


def check_sequences(
    given: dict[str, Tensor], lengths: Tensor | None, page_table: Tensor | None
) -> None:
    """What can be known of them without their data."""
    batches = given["q" if "q" in given else "aq"].shape[0]
    for name, value, axes in (("lengths", lengths, 1), ("page_table", page_table, 2)):
        if value is None:
            continue
        if value.dtype != torch.int64:
            _checks.fail(_OP, f"{name} must be int64")
        if value.ndim != axes or value.shape[0] != batches:
            _checks.fail(
                _OP,
                f"{name} must have {axes} axes and {batches} rows, one for each sequence",
            )
    if page_table is not None and lengths is None:
        _checks.fail(_OP, "lengths must be given with a page_table")


def _one_token(given: dict[str, Tensor]) -> None:
    first = "q" if "q" in given else "aq"
    if given[first].shape[1] != 1:
        _checks.fail(_OP, f"{first} must have 1 token (axis 1); it has {given[first].shape[1]}")


@torch.library.register_fake("attnops::tpa_decode_ranks")
def _(
    aq,
    ak,
    av,
    bq,
    bk,
    bv,
    q,
    scale,
    scale_q,
    scale_k,
    scale_v,
    split,
    lengths,
    page_table,
    precision,
):
    _choices.check_precision(_OP, precision)
    _choices.check(_OP, "split", _choices.SPLITS, split)
    query = {"q": q} if q is not None else {"aq": aq, "bq": bq}
    given = query | {"ak": ak, "av": av, "bk": bk, "bv": bv}
    _checks.same_device(_OP, **given, lengths=lengths, page_table=page_table)
    check_factors(_OP, given, page_table is not None)
    check_sequences(given, lengths, page_table)
    _one_token(given)
    return fake_results(given, bv.shape[3])


def _setup_context(ctx, inputs, output) -> None:
    *factors, scale, scale_q, scale_k, scale_v, _, lengths, page_table, precision = inputs
    out, lse = output
    ctx.scales, ctx.precision = (scale, scale_q, scale_k, scale_v), precision
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*factors, out, lse, lengths, page_table)


def _backward(ctx, d_out: Tensor | None, _):
    nothing = (None,) * 8
    if d_out is None:
        return (None,) * 7 + nothing
    _checks.no_tangents(_OP, d_out=d_out)
    *factors, out, lse, lengths, page_table = ctx.saved_tensors
    aq, *keys, q = factors[0], factors[1], factors[2], factors[4], factors[5], factors[6]
    pages = None
    if page_table is not None:
        # Places of the table behind a sequence's tokens may have any number.
        pages = page_table.clamp(0, max(keys[0].shape[0] - 1, 0))
        keys = [_sequences(x, pages) for x in keys]
    ak, av, bk, bv = keys
    gradients = list(
        _transforms.call(
            torch.ops.attnops.tpa_backward,
            aq,
            ak,
            av,
            factors[3],
            bk,
            bv,
            q,
            out,
            lse,
            d_out,
            False,
            *ctx.scales,
            ctx.precision,
            lengths,
        )
    )
    if pages is not None:
        for i in (1, 2, 4, 5):
            gradients[i] = _page_sums(gradients[i], pages, factors[i])
    given = (
        None if x is None else gradient for x, gradient in zip(factors, gradients, strict=True)
    )
    return *given, *nothing


def _sequences(x: Tensor, pages: Tensor) -> Tensor:
    """The tokens of pages (P,page_size,…) in the order of each sequence, (B,M,…)."""
    if x.shape[0] == 0:
        return x.new_zeros((pages.shape[0], 0, *x.shape[2:]))
    return x[pages].flatten(1, 2)


def _page_sums(gradient: Tensor, pages: Tensor, like: Tensor) -> Tensor:
    """The way back: a page that sequences share has the sum of their gradients."""
    sums = like.new_zeros(like.shape, dtype=torch.float32)
    if like.shape[0] > 0:
        of_pages = gradient.float().unflatten(1, (pages.shape[1], like.shape[1]))
        sums.index_add_(0, pages.flatten(), of_pages.flatten(0, 1))
    return sums.to(like.dtype)


_transforms.register_autograd("tpa_decode_ranks", _backward, _setup_context)


@torch.library.register_fake("attnops::tpa_cache_append")
def _(
    ak,
    av,
    bk,
    bv,
    pool_ak,
    pool_av,
    pool_bk,
    pool_bv,
    ak_scale,
    av_scale,
    bk_scale,
    bv_scale,
    lengths,
    page_table,
    theta,
):
    return None


@torch.library.register_fake("attnops::tpa_cache_decode")
def _(
    aq,
    bq,
    q,
    pool_ak,
    pool_av,
    pool_bk,
    pool_bv,
    ak_scale,
    av_scale,
    bk_scale,
    bv_scale,
    lengths,
    page_table,
    scale,
    scale_q,
    scale_k,
    scale_v,
    split,
    precision,
):
    _choices.check_precision(_OP, precision)
    _choices.check(_OP, "split", _choices.SPLITS, split)
    given = {"q": q} if q is not None else {"aq": aq, "bq": bq}
    check_query(_OP, given)
    check_sequences(given, lengths, page_table)
    _one_token(given)
    return fake_results(given, pool_bv.shape[3])


_transforms.register_without_gradient(_OP, "tpa_decode")
