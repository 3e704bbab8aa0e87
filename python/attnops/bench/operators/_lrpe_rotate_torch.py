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
from attnops.bench import reference
from attnops.bench.operators.lrpe_rotate import DIM, HEADS, shape
from attnops.bench.random_inputs import normal
from attnops.bench.tables import SEED, Case, Checker, Column, Inputs

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
HALF = DIM // 2
Forward = Callable[..., torch.Tensor]
Tables = Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def inputs(case: Case) -> Inputs:
    generator = torch.Generator().manual_seed(SEED)
    dtype = DTYPES[case.dtype]
    x = normal(shape(case), dtype, generator)
    theta = (10000.0 ** (-torch.arange(HALF, dtype=torch.float32) / HALF)).repeat(HEADS, 1)
    if case.direction == "fwd":
        return Inputs((x, theta), (), None)
    d_out = normal(shape(case), dtype, generator)
    x.requires_grad_()
    return Inputs((x, theta), (x,), d_out)


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


def _compile(function: Callable) -> Callable:
    return torch.compile(function, dynamic=False, fullgraph=True)


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
        fused = _compile(inline)
        return lambda x, theta: fused(_activate(x, act, dim) if apart else x, theta)

    rotation = _compile(rotate)
    build = tables or _compile(COS_SIN[compute])

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


def _column_tolerance(case: Case, column: Column, theta: np.ndarray) -> reference.Tolerance:
    """attnops rounds once and has exact angles. The peers' angles are products in float32.

    Peers in the tensors' type round y, cos, sin, two products and their sum, and in the backward
    of an activation its terms again.
    """
    in_type = column.role == "peer" and not column.name.endswith("_up")
    roundings = 1 if not in_type else 6 if case.direction == "fwd" else 10
    exact = column.role == "attnops"
    angle = 0.0 if exact else case.n * float(np.abs(theta).max()) * reference.ROUNDOFF["f32"]
    depth = case.n if case.options["dim"] == 1 else DIM
    return reference.tolerance(case.dtype, roundings=roundings, depth=depth, angle_error=angle)


def _expected(
    case: Case, x: np.ndarray, theta: np.ndarray, d_out: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The result for one (batch, head), x (N,D), theta (E,), and the scale of its error."""
    act, dim = case.options["act"], case.options["dim"]
    axis = {None: None, -1: 1, 1: 0}[dim]
    angle = np.arange(case.n, dtype=np.longdouble)[:, None] * theta.astype(np.longdouble)
    cos, sin = np.cos(angle).astype(np.float64), np.sin(angle).astype(np.float64)
    y = reference.activation(x, act, axis) if d_out is None else d_out
    sin = sin if d_out is None else -sin
    u, v = y[:, :HALF], y[:, HALF:]
    rotated = np.concatenate([u * cos - v * sin, u * sin + v * cos], axis=1)
    length = np.tile(np.hypot(u, v), 2)
    if d_out is None:
        return rotated, length
    return reference.activation_backward(x, rotated, length, act, axis)


def _slice(tensor: torch.Tensor, b: int, h: int) -> np.ndarray:
    return tensor.detach()[b, :, h].double().numpy()


def checker(case: Case, given: Inputs) -> Checker:
    x, theta = given.args
    batch = case.options["batch"]
    picks = np.random.default_rng(SEED).choice(batch * HEADS, size=2, replace=False)
    slices = [divmod(int(i), HEADS) for i in picks]
    d_out = given.d_out
    expected = [
        _expected(
            case,
            _slice(x, b, h),
            theta[h].numpy(),
            None if d_out is None else _slice(d_out, b, h),
        )
        for b, h in slices
    ]

    def check(column: Column, result: torch.Tensor | tuple[torch.Tensor, ...]) -> str | None:
        value = result[0] if isinstance(result, tuple) else result
        if value.dtype != x.dtype or value.shape != x.shape:
            return f"wrong result: {value.dtype} {tuple(value.shape)}"
        allowed = _column_tolerance(case, column, theta.numpy())
        for (b, h), (want, scale) in zip(slices, expected, strict=True):
            if problem := allowed.violation(_slice(value, b, h), want, scale):
                return f"{problem} (batch {b}, head {h})"
        return None

    return check
