"""flao and flao_fal over sequence shards: one all-reduce of KV, and one of dKV."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import attnops
from attnops import _checks
from attnops.distributed import _group
from attnops.distributed._group import Shards, softmax_over_sequence, without_axis

_TOKENS = 2  # the axis


def flao(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    keep: str = "none",
    *,
    precision: str | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """attnops.flao of sequences that are spread over the ranks: q and g, k and v are its shards.

    Shards may have any sizes, 0 too, those of k and v others than those of q and g. Exchanges KV,
    (B,H,D,E) in float32, and dKV in the backward. KV is kept for it, whatever `keep` says.
    """
    shards = Shards.of(group)
    if shards.size == 1:
        return attnops.flao(q, k, v, g, keep, precision=precision)
    _agree(shards, "flao", q, k, v, g, None, {})
    kv = shards.all_reduce(attnops.flao_kv(k, v, precision=precision))
    return attnops.flao_out(q, kv, g, precision=precision)


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
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
    key_sizes: Sequence[int] | None = None,
) -> Tensor:
    """attnops.flao_fal of sequences that are spread over the ranks.

    shape, offset and l are those of the whole sequence. sizes are the ranks' numbers of queries,
    key_sizes those of keys, the same unless given. A softmax over the sequence merges the ranks'
    log-sum-exps, and the tensor goes on in float32.
    """
    op = "flao_fal"
    shards = Shards.of(group)
    acts = ((q_act, q_dim), (k_act, k_dim), (v_act, v_dim), (g_act, g_dim))
    if shards.size == 1:
        given_acts = (q_act, q_dim, k_act, k_dim, v_act, v_dim, g_act, g_dim)
        options = (theta, lrpe, shape, offset, l, keep)
        return attnops.flao_fal(q, k, v, g, *given_acts, *options, precision=precision)
    if key_sizes is None:
        key_sizes = sizes
    if theta is None and lrpe == "cosine" and shape is None and offset == 0 and l == 0:
        lrpe = "none"
    needs_sizes = lrpe != "none"
    shared = {"acts": str(acts), "theta": theta, "lrpe": lrpe, "shape": shape or ()}
    shared |= {"offset": (offset,), "l": (l,)}
    start = key_start = 0
    queries: list[int] = []
    keys: list[int] = []
    if needs_sizes or not torch.compiler.is_compiling():
        given = {"sizes": sizes, "key_sizes": key_sizes}
        queries, keys = _agree(shards, op, q, k, v, g, given, shared)
    if needs_sizes:
        start, key_start = shards.start(queries), shards.start(keys)
        if shape:
            _checks.sizes(op, "shape", shape)
        for name, tokens in (("q", sum(queries)), ("k", sum(keys))):
            if shape and tokens != l + prod(shape):
                _checks.grid_tokens(op, tokens, shape, l, name)
            if l > tokens or l < 0:
                _checks.fail(op, f"l must be from 0 to the number of tokens, {tokens}; it is {l}")
    encoding: dict[str, Any] = {"theta": theta, "lrpe": lrpe, "shape": shape, "l": l}
    encoding["precision"] = precision
    dtype = g.dtype
    k, v, k_acts, v_acts = _over_sequence(shards, k, v, acts[1], acts[2])
    kv = attnops.flao_fal_kv(k, v, *k_acts, *v_acts, **encoding, start=key_start)
    kv = shards.all_reduce(kv)
    q, g, q_acts, g_acts = _over_sequence(shards, q, g, acts[0], acts[3])
    encoding |= {"offset": offset, "start": start}
    out = attnops.flao_fal_out(q, kv, g, *q_acts, *g_acts, **encoding)
    return out.to(dtype)


def _over_sequence(shards, x: Tensor, y: Tensor, x_act, y_act):
    """The tensors of a half, softmax over the sequence done and both then in float32."""
    both = [[x, x_act], [y, y_act]]
    wide = False
    for entry in both:
        act, dim = entry[1]
        if act == "softmax" and dim is not None and dim % 4 == _TOKENS:
            entry[:] = softmax_over_sequence(entry[0], _TOKENS, shards), ("none", None)
            wide = True
    (x, x_act), (y, y_act) = both
    return (x.float(), y.float(), x_act, y_act) if wide else (x, y, x_act, y_act)


def _agree(shards: Shards, op: str, q, k, v, g, sizes, options) -> list[list[int]]:
    """The sizes of the shards of queries and keys; the ranks' shapes fit together."""
    tensors = {"q": q, "k": k, "v": v, "g": g}
    _checks.are_tensors(op, **tensors)
    for name, x in tensors.items():
        _checks.axes(op, name, x, "(B,H,N,D)")
    if sizes is None and (torch.compiler.is_compiling() or not _group.checks_on()):
        return [[], []]
    fixed = {name: without_axis(x, _TOKENS) for name, x in tensors.items()}
    return shards.agree(
        op,
        {"sizes": q.shape[_TOKENS], "key_sizes": k.shape[_TOKENS]},
        {"sizes": None, "key_sizes": None} if sizes is None else sizes,
        fixed | options,
        q.device,
    )
