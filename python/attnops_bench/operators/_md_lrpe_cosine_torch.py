"""md_lrpe_cosine in a worker: its inputs, attnops and the PyTorch peers, and the check.

The peers are the quickest of the forms tried (bf16, B=12, L = 1000 to 4106, two threads):

- cos and sin are computed for the positions of each axis, then spread over the grid to (H,L,D),
  with 1 and 0 for the tokens in front: then all tokens are alike. Compiled, these are two functions
  and the encoding is a third, since in one Inductor computes them again for every token and batch
  (1.4x forward). Reading the small tables of the axes inside the encoding costs 1.2x in 2-d
  and 1.8x in 3-d.
- Compiled: `cat` of the rounded halves; `stack` and a product with stacked cos and sin are as
  quick, slices of an output made before cost 2x. The result is contiguous, as that of attnops: laid
  out as (H,L,B,2D), where a row of cos and sin serves all batches, it would be 1.1x to 1.4x
  quicker, for whoever can use that. Loops in that order that write a contiguous result were slower
  than `cat`. The backward does gain from them, 1.1x to 1.8x: a compiled loop over (H,L,B) into a
  contiguous dx, in an autograd function.
- Eager: forward in the type is one product with stacked cos and sin; upcast, x is converted once
  and the halves copied into the output. For the backward an autograd function with `addcmul_`:
  1.3x quicker than what autograd makes of `cat`, 2.6x than of the stacked product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F

import attnops
from attnops_bench import reference
from attnops_bench.operators._encoding import DIM, HEADS
from attnops_bench.operators._encoding_torch import (
    Forward,
    column_tolerance,
    compiled,
    make_checker,
    make_inputs,
)
from attnops_bench.operators.md_lrpe_cosine import angles, grid, shape
from attnops_bench.random_inputs import DTYPES
from attnops_bench.tables import Case, Checker, Column, Inputs

CosSin = tuple[torch.Tensor, torch.Tensor]


def inputs(case: Case) -> Inputs:
    return make_inputs(case, shape(case), shape(case, 2 * DIM), angles(case))


def _features(case: Case) -> list[int]:
    """How many features each axis has: E, and for the last what is left of D."""
    most = angles(case)
    return [min(most, DIM - begin) for begin in accumulate([0, *[most] * (len(grid(case)) - 1)])]


def _cos_sin(
    case: Case, dtype: torch.dtype, wrap: Callable[[Callable], Callable]
) -> Callable[[torch.Tensor], CosSin]:
    """cos and sin (H,L,D) from theta; their angles are products in float32."""
    sides, l, features = grid(case), case.options["l"], _features(case)

    def of_axes(theta: torch.Tensor) -> list[torch.Tensor]:
        tables = []
        for side, count in zip(sides, features, strict=True):
            angle = torch.arange(side, dtype=torch.float32)[:, None] * theta[:, None, :count]
            tables += [angle.cos().to(dtype), angle.sin().to(dtype)]
        return tables

    def spread(tables: list[torch.Tensor], front: float) -> torch.Tensor:
        rows = []
        for axis, table in enumerate(tables):
            view = [HEADS, *(1,) * len(sides), table.shape[-1]]
            view[1 + axis] = sides[axis]
            rows.append(table.view(view).expand(HEADS, *sides, -1))
        return F.pad(torch.cat(rows, -1).flatten(1, -2), (0, 0, l, 0), value=front)

    def over_grid(tables: list[torch.Tensor]) -> CosSin:
        return spread(tables[::2], 1.0), spread(tables[1::2], 0.0)

    of_axes, over_grid = wrap(of_axes), wrap(over_grid)
    return lambda theta: over_grid(of_axes(theta))


def _encode(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return torch.cat([(x * cos).to(x.dtype), (x * sin).to(x.dtype)], -1)


def _encode_stacked(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(-2) * torch.stack([cos, sin], -2)).flatten(-2)


def _encode_upcast(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(*x.shape[:-1], 2 * DIM)
    y = x.float()
    out[..., :DIM].copy_(y * cos)
    out[..., DIM:].copy_(y.mul_(sin))
    return out


def _gradient(d_out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = d_out.chunk(2, -1)
    return (first * cos).addcmul_(second, sin)


def _gradient_upcast(d_out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = d_out.chunk(2, -1)
    return first.float().mul_(cos).addcmul_(second.float(), sin).to(d_out.dtype)


def _gradient_into(
    dx: torch.Tensor, d_out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    first, second = d_out.chunk(2, -1)
    dx.copy_(first * cos[:, :, None] + second * sin[:, :, None])


def _compiled_gradient() -> Forward:
    """A loop over (H,L,B), in which a row of cos and sin serves all batches; dx is contiguous."""
    into = compiled(_gradient_into, pick_loop_orders=False)

    def gradient(d_out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        dx = d_out.new_empty(*d_out.shape[:-1], DIM)
        into(dx.permute(1, 2, 0, 3), d_out.permute(1, 2, 0, 3), cos, sin)
        return dx

    return gradient


class _Encode(torch.autograd.Function):
    """`encode` and, for its backward, `gradient`, both with cos and sin."""

    @staticmethod
    def forward(ctx, encode: Forward, gradient: Forward, x: torch.Tensor, *cos_sin: torch.Tensor):
        ctx.save_for_backward(*cos_sin)
        ctx.gradient = gradient
        return encode(x, *cos_sin)

    @staticmethod
    def backward(ctx, d_out: torch.Tensor):
        return None, None, ctx.gradient(d_out, *ctx.saved_tensors), None, None


def _peer(case: Case, column: Column, theta: torch.Tensor) -> Forward:
    dtype = DTYPES[case.dtype]
    # In float32 there is nothing to convert, and the two forms are one.
    upcast = dtype != torch.float32 and column.name not in ("to", "toc")
    wrap = compiled if column.compiled else lambda build: build
    build = _cos_sin(case, torch.float32 if upcast else dtype, wrap)
    if column.compiled:
        encode, gradient = compiled(_encode), _compiled_gradient()
    elif upcast:
        encode, gradient = _encode_upcast, _gradient_upcast
    else:
        encode, gradient = _encode_stacked, _gradient
    if case.direction == "bwd":
        encode = partial(_Encode.apply, encode, gradient)
    if column.name == "toc_free":
        cos, sin = build(theta)
        return lambda x, theta: encode(x, cos, sin)
    return lambda x, theta: encode(x, *build(theta))


def function(case: Case, column: Column, given: Inputs) -> Forward:
    sides, l = grid(case), case.options["l"]
    theta = given.args[1]
    if column.role != "attnops":
        return _peer(case, column, theta)
    table = attnops.lrpe_table(theta, sides, DIM) if column.name == "attnops_table" else None
    return lambda x, theta: attnops.md_lrpe_cosine(x, theta, sides, l=l, table=table)


def _expected(
    case: Case, x: np.ndarray, theta: np.ndarray, d_out: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The result for one (batch, head), x (L,D), theta (E,), and the scale of its error."""
    sides, l = grid(case), case.options["l"]
    cos, sin = np.ones(x.shape), np.zeros(x.shape)
    index = np.indices(sides).reshape(len(sides), -1)
    begin = 0
    for axis, count in enumerate(_features(case)):
        axis_cos, axis_sin = reference.cos_sin(case.n, theta[:count])
        cos[l:, begin : begin + count] = axis_cos[index[axis]]
        sin[l:, begin : begin + count] = axis_sin[index[axis]]
        begin += count
    if d_out is None:
        return np.concatenate([x * cos, x * sin], axis=1), np.tile(np.abs(x), 2)
    first, second = d_out[:, :DIM], d_out[:, DIM:]
    return first * cos + second * sin, np.hypot(first, second)


def checker(case: Case, given: Inputs) -> Checker:
    def allowed(column: Column) -> reference.Tolerance:
        # Peers in the tensors' type round cos and a product; in the backward sin, a second product
        # and the sum too, which all together are relative to the length of the pair.
        in_type = 2 if case.direction == "fwd" else 4
        return column_tolerance(
            case, column, given.args[1], positions=case.n, depth=1, in_type=in_type
        )

    return make_checker(
        case,
        given,
        lambda x, theta, d_out: _expected(case, x, theta, d_out),
        lambda tensor, b, h: tensor[b, h],
        shape(case, 2 * DIM if case.direction == "fwd" else DIM),
        allowed,
    )
