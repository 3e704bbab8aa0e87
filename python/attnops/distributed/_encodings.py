"""Position encodings of sequence shards: each rank its own positions."""

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

import attnops
from attnops import _checks
from attnops.distributed._group import Shards, softmax_over_sequence, without_axis


def lrpe_rotate(
    x: Tensor,
    theta: Tensor,
    offset: int | Tensor = 0,
    act: str = "none",
    dim: int | None = None,
    *,
    positions: Tensor | None = None,
    layout: str = "bnhd",
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
    **rotary,
) -> Tensor:
    """attnops.lrpe_rotate of a sequence that is spread over the ranks.

    offset is that of the whole sequence, positions those of the rank's tokens. Softmax over the
    sequence exchanges the ranks' log-sum-exps; nothing else is exchanged.
    """
    op = "lrpe_rotate"
    shards = Shards.of(group)
    options = {"layout": layout, **rotary}
    if shards.size == 1:
        return attnops.lrpe_rotate(x, theta, offset, act, dim, positions=positions, **options)
    _checks.are_tensors(op, x=x, theta=theta)
    axis = 2 if layout == "bhnd" else 1
    offset = _shifted(shards, op, x, axis, offset, positions, sizes)
    if act == "softmax" and dim is not None and dim % x.ndim == axis:
        wide = softmax_over_sequence(x, axis, shards)
        return attnops.lrpe_rotate(wide, theta, offset, positions=positions, **options).to(x.dtype)
    return attnops.lrpe_rotate(x, theta, offset, act, dim, positions=positions, **options)


def rope(
    q: Tensor,
    k: Tensor,
    theta: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    offset: int | Tensor = 0,
    layout: str = "bnhd",
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
    **rotary,
) -> tuple[Tensor, Tensor]:
    """attnops.rope of a sequence that is spread over the ranks; offset is that of all of it."""
    shards = Shards.of(group)
    options = {"layout": layout, **rotary}
    if shards.size == 1:
        return attnops.rope(q, k, theta, positions=positions, offset=offset, **options)
    _checks.are_tensors("rope", q=q, k=k)
    axis = 2 if layout == "bhnd" else 1
    offset = _shifted(shards, "rope", q, axis, offset, positions, sizes)
    return attnops.rope(q, k, theta, positions=positions, offset=offset, **options)


def _shifted(shards: Shards, op: str, x: Tensor, axis: int, offset, positions, sizes):
    """The offset of the rank's first token; with positions there is nothing to know."""
    if x.ndim not in (3, 4):
        _checks.fail(op, f"a shard must have 3 or 4 axes; its shape is {_checks.shape(x)}")
    if positions is not None:
        return offset
    fixed: dict[str, object] = {"x": without_axis(x, axis)}
    if isinstance(offset, int):
        fixed["offset"] = (offset,)
    (sizes,) = shards.agree(op, {"sizes": x.shape[axis]}, {"sizes": sizes}, fixed, x.device)
    return offset + shards.start(sizes)


def md_lrpe_cosine(
    x: Tensor,
    theta: Tensor | None,
    shape: Sequence[int],
    l: int = 0,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
    table: Tensor | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """attnops.md_lrpe_cosine of a sequence that is spread over the ranks.

    shape, l and offset are those of the whole sequence. A table is for one axis only, where a shard
    takes its rows. With several axes the shard is rotated by the positions of its tokens: y·cos and
    y·sin are what a rotation makes of (y, 0).
    """
    op = "md_lrpe_cosine"
    shards = Shards.of(group)
    if shards.size == 1:
        return attnops.md_lrpe_cosine(x, theta, shape, l, offset, act, dim, table)
    _checks.are_tensors(op, x=x)
    _checks.axes(op, "x", x, "(B,H,L,D)")
    _checks.sizes(op, "shape", shape)
    _checks.grid_offset(op, len(shape), offset)
    fixed = {"x": without_axis(x, 2), "shape": shape, "l": (l,), "offset": (offset,)}
    (sizes,) = shards.agree(op, {"sizes": x.shape[2]}, {"sizes": sizes}, fixed, x.device)
    if sum(sizes) != l + prod(shape):
        _checks.grid_tokens(op, sum(sizes), shape, l)
    start, tokens, dtype = shards.start(sizes), x.shape[2], x.dtype
    if act == "softmax" and dim is not None and dim % 4 == 2:
        x, act, dim = softmax_over_sequence(x, 2, shards), "none", None
    if len(shape) == 1:
        prefix = min(max(l - start, 0), tokens)
        skipped = max(start - l, 0)
        rows = tokens - prefix
        if table is not None:
            table, skipped = table[:, skipped : skipped + rows], 0
            theta = None
        out = attnops.md_lrpe_cosine(x, theta, (rows,), prefix, offset + skipped, act, dim, table)
        return out.to(dtype)
    if table is not None or theta is None:
        _checks.fail(op, f"table must be absent on shards of {len(shape)} axes; give theta")
    return _grid(x, theta, shape, start - l, act, dim).to(dtype)


def _grid(x: Tensor, theta: Tensor, shape: Sequence[int], first: int, act: str, dim) -> Tensor:
    """The tokens from number `first` of the grid on; those before it have position 0."""
    batches, _heads, tokens, features = x.shape
    axes, angles = len(shape), theta.shape[1]
    _checks.axis_angles("md_lrpe_cosine", "theta", angles, axes, features)
    number = torch.arange(first, first + tokens, device=x.device)
    index, positions = number.clamp(min=0), []
    for size in reversed(shape):
        positions.append((index % size).where(number >= 0, 0) if size > 0 else index * 0)
        index = index // max(size, 1)
    on_axes = torch.stack(positions[::-1])[:, None].expand(axes, batches, tokens)
    feature = torch.arange(features, device=x.device)
    # An axis has `angles` features, the last one what is left of them.
    sections = [max(0, min(angles, features - i * angles)) for i in range(axes)]
    # Sigmoid and softmax of −inf are 0, the other activations of 0.
    nothing = float("-inf") if act in ("sigmoid", "softmax") else 0.0
    pairs = torch.nn.functional.pad(x, (0, features), value=nothing)
    return attnops.lrpe_rotate(
        pairs,
        theta[:, feature % angles].expand(theta.shape[0], features),
        act=act,
        dim=dim,
        positions=on_axes,
        sections=sections,
        layout="bhnd",
    )
