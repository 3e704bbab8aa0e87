"""tpa and tpa_decode with keys that are cut along tokens: results merged by log-sum-exp."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

import attnops
from attnops import _checks, _choices
from attnops.distributed._group import Shards, gather, without_axis


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
    group: dist.ProcessGroup | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """attnops.tpa_decode with the cache cut along its tokens, in any order and size.

    Every rank has all queries and its own part of the cache (lengths and page_table are the rank's
    own too), and gets the whole result. Exchanges o, in float32, and the log-sum-exp, which are
    merged in rank order.
    """
    op = "tpa_decode"
    shards = Shards.of(group)
    scales = (scale, scale_q, scale_k, scale_v)
    if shards.size == 1:
        return attnops.tpa_decode(
            aq,
            ak,
            av,
            bq,
            bk,
            bv,
            *scales,
            split,
            q=q,
            lengths=lengths,
            page_table=page_table,
            precision=precision,
            return_lse=return_lse,
        )
    keys = (ak, av, bk, bv)
    tensors = [x for x in (aq, bq, q, *keys) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        if lengths is not None or page_table is not None:
            _checks.fail(op, "tensors must not require grad with lengths or a page_table")
        if ak.ndim == 3:
            ak, av, bk, bv = ak.unsqueeze(3), av.unsqueeze(3), bk.unsqueeze(2), bv.unsqueeze(2)
        out, lse = _attend(shards, op, aq, ak, av, bq, bk, bv, q, False, scales, precision, None)
        return (out, lse) if return_lse else out
    if page_table is None:
        _agree(shards, op, (aq, bq, q), keys, scales)
    out, lse = attnops.tpa_decode(
        aq,
        ak,
        av,
        bq,
        bk,
        bv,
        *scales,
        split,
        q=q,
        lengths=lengths,
        page_table=page_table,
        precision=precision,
        return_lse=True,
    )
    out, lse = _merge(out, lse, shards.group)
    return (out, lse) if return_lse else out


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
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """attnops.tpa with the keys' factors cut along tokens; every rank has all queries.

    If causal, query n sees the keys up to n + (M − N) of the whole sequence. Every rank gets the
    whole result. sizes are the ranks' numbers of keys.
    """
    shards = Shards.of(group)
    scales = (scale, scale_q, scale_k, scale_v)
    if shards.size == 1:
        return attnops.tpa(
            aq,
            ak,
            av,
            bq,
            bk,
            bv,
            q=q,
            causal=causal,
            scale=scale,
            scale_q=scale_q,
            scale_k=scale_k,
            scale_v=scale_v,
            precision=precision,
        )
    return _attend(shards, "tpa", aq, ak, av, bq, bk, bv, q, causal, scales, precision, sizes)[0]


def _agree(shards: Shards, op: str, queries, keys, scales, causal=False, sizes=None) -> list[int]:
    """The sizes of all shards of keys."""
    names = ("aq", "bq", "q"), ("ak", "av", "bk", "bv")
    _checks.are_tensors(op, **dict(zip(names[1], keys, strict=True)))
    if torch.compiler.is_compiling() and sizes is None and not causal:
        return []
    if shards.trusted and sizes is None:
        return []
    fixed: dict[str, object] = {
        name: without_axis(x) for name, x in zip(names[0], queries, strict=True)
    }
    fixed |= {name: without_axis(x, 1) for name, x in zip(names[1], keys, strict=True)}
    fixed["options"] = f"{scales} {causal}"
    tokens = {"sizes": keys[0].shape[1]}
    return shards.agree(op, tokens, {"sizes": sizes}, fixed, keys[0].device)[0]


def _attend(shards, op, aq, ak, av, bq, bk, bv, q, causal, scales, precision, sizes):
    sizes = _agree(shards, op, (aq, bq, q), (ak, av, bk, bv), scales, causal, sizes)
    queries = (aq if q is None else q).shape[1]
    first = seeing_all = 0
    if causal:
        behind = sum(sizes) - queries
        if behind < 0:
            _checks.fail(
                op,
                f"ak has {sum(sizes)} tokens on all ranks; with causal it must have at least as "
                f"many as there are queries, {queries}",
            )
        start = shards.start(sizes)
        # Queries before `first` see no key of the shard, those from `seeing_all` on see all.
        first = max(0, start - behind)
        seeing_all = max(0, start + sizes[shards.rank] - behind)
    number = _choices.precision(op, precision)
    options = (first, seeing_all, scales, number, shards.group, shards.trusted)
    return _Attention.apply(aq, ak, av, bq, bk, bv, q, *options)


def _merge(out: Tensor, lse: Tensor, group) -> tuple[Tensor, Tensor]:
    """The results of all ranks, (B,N,H,E) and (B,H,N), as one."""
    gathered = gather(torch.cat((out.float().reshape(-1), lse.reshape(-1))), group)
    outs, lses = gathered.split([out.numel(), lse.numel()], 1)
    lses = lses.reshape(-1, *lse.shape)
    highest = lses.amax(0)
    highest = highest.where(highest > float("-inf"), 0.0)  # no keys at all
    total = torch.zeros_like(highest)
    merged = torch.zeros(out.shape, device=out.device)
    for i in range(gathered.shape[0]):
        weight = torch.exp(lses[i] - highest)
        total = total + weight
        merged = merged + weight.transpose(1, 2)[..., None] * outs[i].reshape(out.shape)
    share = total.where(total > 0, 1.0).transpose(1, 2)[..., None]
    return (merged / share).to(out.dtype), highest + torch.log(total)


def _parts(tokens: int, first: int, seeing_all: int):
    """Ranges of queries that see keys, and whether they are causal."""
    if seeing_all > first:
        yield first, seeing_all, True
    if tokens > seeing_all:
        yield seeing_all, tokens, False


def _rows(x: Tensor | None, begin: int, end: int) -> Tensor | None:
    return None if x is None else x[:, begin:end]


class _Attention(torch.autograd.Function):
    """The local keys' attention, merged.

    The backward needs the merged result, and the sum of the gradients that the ranks have of it.
    """

    @staticmethod
    def forward(
        ctx, aq, ak, av, bq, bk, bv, q, first, seeing_all, scales, precision, group, replicated
    ):
        query = aq if q is None else q
        batches, tokens, heads, _ = query.shape
        out = query.new_zeros((batches, first, heads, bv.shape[3]))
        lse = torch.full((batches, heads, first), float("-inf"), device=query.device)
        outs, lses = [out], [lse]
        for begin, end, causal in _parts(tokens, first, seeing_all):
            rows = [_rows(x, begin, end) for x in (aq, bq, q)]
            part, part_lse = torch.ops.attnops.tpa(
                rows[0], ak, av, rows[1], bk, bv, rows[2], causal, *scales, precision
            )
            outs.append(part)
            lses.append(part_lse)
        out, lse = _merge(torch.cat(outs, 1), torch.cat(lses, 2), group)
        ctx.save_for_backward(aq, ak, av, bq, bk, bv, q, out, lse)
        ctx.options = (first, seeing_all, scales, precision, group, replicated)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, d_out: Tensor, _):
        aq, ak, av, bq, bk, bv, q, out, lse = ctx.saved_tensors
        first, seeing_all, scales, precision, group, replicated = ctx.options
        if not replicated:
            shares = gather(d_out, group)
            d_out = shares[0].float()
            for i in range(1, shares.shape[0]):
                d_out = d_out + shares[i]
            d_out = d_out.to(out.dtype)
        keys = (ak, av, bk, bv)
        d_keys = [torch.zeros(x.shape, device=x.device) for x in keys]
        d_queries = [None if x is None else torch.zeros_like(x) for x in (aq, bq, q)]
        pieces = [[] if x is None else [x[:, :first]] for x in d_queries]
        # A query that sees no key at all has no gradient; its log-sum-exp must not be −inf there.
        lse = lse.where(lse > float("-inf"), 0.0)
        for begin, end, causal in _parts(out.shape[1], first, seeing_all):
            rows = [_rows(x, begin, end) for x in (aq, bq, q)]
            gradients = torch.ops.attnops.tpa_backward(
                rows[0],
                ak,
                av,
                rows[1],
                bk,
                bv,
                rows[2],
                out[:, begin:end],
                lse[:, :, begin:end].contiguous(),
                d_out[:, begin:end],
                causal,
                *scales,
                precision,
            )
            d_keys = [a + gradients[i] for a, i in zip(d_keys, (1, 2, 4, 5), strict=True)]
            for piece, i in zip(pieces, (0, 3, 6), strict=True):
                piece.append(gradients[i])
        d_keys = [a.to(x.dtype) for a, x in zip(d_keys, keys, strict=True)]
        d_aq, d_bq, d_q = (
            None if x is None else torch.cat(piece, 1)
            for x, piece in zip((aq, bq, q), pieces, strict=True)
        )
        return d_aq, d_keys[0], d_keys[1], d_bq, d_keys[2], d_keys[3], d_q, *(None,) * 6
