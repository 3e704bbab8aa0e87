"""lrpe_rotate in a worker: its inputs, attnops and the PyTorch peers, and the check.

The peers are the quickest of the forms tried (bf16, B=12, N=1024, two threads):

- Compiled: the halves are rounded before `cat`; rounding after it costs 2x, `x*c + swap(x)*s` 3x.
  cos/sin come from a compiled function of their own, since inside the rotation Inductor computes
  them again for every batch (1.4x forward); with B = 1 there is nothing to share and forward
  inlines them. For the backward, and for softmax over the sequence, `toc` applies PyTorch's own
  activation before the compiled rotation: 1.1x to 1.3x quicker than fusing it.
- Eager: forward writes the halves into the output in place, first in most runs and within a few
  percent of `roll` in the others; this has no autograd, so for the backward the form is
  `x*c + roll(x)*s`. The forms were compared on a busy machine: the ranking, not the figures.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

import attnops
from attnops_bench import reference
from attnops_bench.operators._encoding import DIM
from attnops_bench.operators._encoding_torch import (
    Forward,
    column_tolerance,
    compiled,
    make_checker,
    make_inputs,
)
from attnops_bench.operators.lrpe_rotate import shape
from attnops_bench.random_inputs import DTYPES
from attnops_bench.tables import Case, Checker, Column, Inputs

HALF = DIM // 2
Tables = Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def inputs(case: Case) -> Inputs:
    return make_inputs(case, shape(case), shape(case), HALF)


def _activate(x: torch.Tensor, act: str, dim: int | None) -> torch.Tensor:
    if act == "silu":
        return F.silu(x)
    if act == "softmax":
        assert dim is not None
        return torch.softmax(x, dim)
    return x


def _cos_sin(n: int, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(n, dtype=torch.float32)[:, None, None] * theta
    return angle.cos(), angle.sin()


def _cos_sin_bf16(n: int, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = _cos_sin(n, theta)
    return cos.bfloat16(), sin.bfloat16()


def _cos_sin_f16(n: int, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = _cos_sin(n, theta)
    return cos.half(), sin.half()


COS_SIN: dict[torch.dtype, Tables] = {
    torch.float32: _cos_sin,
    torch.bfloat16: _cos_sin_bf16,
    torch.float16: _cos_sin_f16,
}


def _rotate(
    y: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    u, v = y.chunk(2, -1)
    return torch.cat([(u * cos - v * sin).to(dtype), (u * sin + v * cos).to(dtype)], -1)


def _rotate_by_roll(y: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return y * torch.cat([cos, cos], -1) + y.roll(HALF, -1) * torch.cat([-sin, sin], -1)


def _rotate_into(
    y: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    out = torch.empty_like(y, dtype=dtype)
    (u, v), (o1, o2) = y.chunk(2, -1), out.chunk(2, -1)
    if dtype == y.dtype:
        torch.mul(u, cos, out=o1).addcmul_(v, sin, value=-1)
        torch.mul(v, cos, out=o2).addcmul_(u, sin)
    else:
        o1.copy_((u * cos).addcmul_(v, sin, value=-1))
        o2.copy_((v * cos).addcmul_(u, sin))
    return out


def _eager(case: Case, upcast: bool) -> Forward:
    act, dim = case.options["act"], case.options["dim"]
    by_roll = case.direction == "bwd"

    def forward(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        compute = torch.float32 if upcast else x.dtype
        cos, sin = COS_SIN[compute](x.shape[1], theta)
        if upcast and act == "softmax":
            y = torch.softmax(x, dim, dtype=torch.float32)
        else:
            y = _activate(x.to(compute), act, dim)
        if by_roll:
            return _rotate_by_roll(y, cos, sin).to(x.dtype)
        return _rotate_into(y, cos, sin, x.dtype)

    return forward


def _compiled(case: Case, upcast: bool, tables: Tables | None = None) -> Forward:
    """`tables` replaces the cos/sin of the peer, for the column that has them for free."""
    act, dim = case.options["act"], case.options["dim"]
    dtype = DTYPES[case.dtype]
    compute = torch.float32 if upcast else dtype
    over_sequence = act == "softmax" and dim == 1
    apart = not upcast and act != "none" and (case.direction == "bwd" or over_sequence)

    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = x if apart or act == "none" else _activate(x.to(compute), act, dim)
        return _rotate(y, cos, sin, x.dtype)

    def inline(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return rotate(x, *COS_SIN[compute](x.shape[1], theta))

    shared = case.options["batch"] > 1 or case.direction == "bwd"
    if tables is None and not shared:
        fused = compiled(inline)
        return lambda x, theta: fused(_activate(x, act, dim) if apart else x, theta)

    rotation = compiled(rotate)
    build = tables or compiled(COS_SIN[compute])

    def forward(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        y = _activate(x, act, dim) if apart else x
        return rotation(y, *build(x.shape[1], theta))

    return forward


def function(case: Case, column: Column, given: Inputs) -> Forward:
    if column.role == "attnops":
        act, dim = case.options["act"], case.options["dim"]
        return lambda x, theta: attnops.lrpe_rotate(x, theta, act=act, dim=dim)
    if column.name == "toc_free":
        ready = _cos_sin(case.n, given.args[1])
        return _compiled(case, upcast=True, tables=lambda n, theta: ready)
    upcast = column.name.endswith("_up")
    return _compiled(case, upcast) if column.compiled else _eager(case, upcast)


def _expected(
    case: Case, x: np.ndarray, theta: np.ndarray, d_out: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The result for one (batch, head), x (N,D), theta (E,), and the scale of its error."""
    act, dim = case.options["act"], case.options["dim"]
    axis = {None: None, -1: 1, 1: 0}[dim]
    cos, sin = reference.cos_sin(case.n, theta)
    y = reference.activation(x, act, axis) if d_out is None else d_out
    sin = sin if d_out is None else -sin
    u, v = y[:, :HALF], y[:, HALF:]
    rotated = np.concatenate([u * cos - v * sin, u * sin + v * cos], axis=1)
    length = np.tile(np.hypot(u, v), 2)
    if d_out is None:
        return rotated, length
    return reference.activation_backward(x, rotated, length, act, axis)


def checker(case: Case, given: Inputs) -> Checker:
    theta = given.args[1]

    def allowed(column: Column) -> reference.Tolerance:
        # Peers in the tensors' type round y, cos, sin, two products and their sum, and in the
        # backward of an activation its terms again.
        in_type = 6 if case.direction == "fwd" else 10
        depth = case.n if case.options["dim"] == 1 else DIM
        return column_tolerance(case, column, theta, positions=case.n, depth=depth, in_type=in_type)

    return make_checker(
        case,
        given,
        lambda x, theta, d_out: _expected(case, x, theta, d_out),
        lambda tensor, b, h: tensor[b, :, h],
        shape(case),
        allowed,
    )
