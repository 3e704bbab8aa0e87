"""flao in a worker: its inputs, attnops and the PyTorch peers, and the check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import attnops
from attnops_bench import reference
from attnops_bench.operators._products import rounds_operands
from attnops_bench.operators.flao import DIM, HEADS, shape
from attnops_bench.random_inputs import DTYPES, normal
from attnops_bench.tables import SEED, Case, Checker, Column, Inputs

Forward = Callable[..., torch.Tensor]
Array = reference.Array


def inputs(case: Case) -> Inputs:
    """All normal random."""
    generator = torch.Generator().manual_seed(SEED)

    def draw() -> torch.Tensor:
        return normal(shape(case), DTYPES[case.dtype], generator)

    args = tuple(draw() for _ in range(4))
    if case.direction == "fwd":
        return Inputs(args, (), None)
    for tensor in args:
        tensor.requires_grad_()
    return Inputs(args, args, draw())


def _lao(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return g * (q @ (k.transpose(-1, -2) @ v))


def _lao_upcast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return _lao(q.float(), k.float(), v.float(), g.float()).to(q.dtype)


def _flao(keep: str, upcast: bool) -> Forward:
    """The backward by hand: it keeps what the policy says beside the inputs."""

    def wide(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.float() for t in tensors) if upcast else tensors

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, g):
            q_, k_, v_, g_ = wide(q, k, v, g)
            kv = k_.transpose(-1, -2) @ v_
            qkv = q_ @ kv
            kept = {"none": (), "kv": (kv,), "kv_qkv": (kv, qkv.to(q.dtype))}[keep]
            ctx.save_for_backward(q, k, v, g, *kept)
            return (g_ * qkv).to(q.dtype)

        @staticmethod
        def backward(ctx, d_out):
            q, k, v, g, *kept = ctx.saved_tensors
            q_, k_, v_, g_, d_out_ = wide(q, k, v, g, d_out)
            kv = kept[0] if kept else k_.transpose(-1, -2) @ v_
            qkv = wide(kept[1])[0] if len(kept) > 1 else q_ @ kv
            d_qkv = d_out_ * g_
            dg = (d_out_ * qkv).to(g.dtype)
            dq = (d_qkv @ kv.transpose(-1, -2)).to(q.dtype)
            d_kv = q_.transpose(-1, -2) @ d_qkv
            dk = (v_ @ d_kv.transpose(-1, -2)).to(k.dtype)
            dv = (k_ @ d_kv).to(v.dtype)
            return dq, dk, dv, dg

    return lambda q, k, v, g: Function.apply(q, k, v, g)


def function(case: Case, column: Column) -> Forward:
    keep = case.options["keep"]
    if column.role == "attnops":
        return lambda q, k, v, g: attnops.flao(q, k, v, g, keep=keep)
    upcast = column.name.endswith("_up")
    if column.name.startswith("flao"):
        form = _flao(keep, upcast)
    else:
        form = _lao_upcast if upcast else _lao
    return torch.compile(form, dynamic=False, fullgraph=True) if column.compiled else form


def _slice(tensor: torch.Tensor, b: int, h: int) -> Array:
    return tensor.detach()[b, h].double().numpy()


# A result and what its errors are relative to: the sums of the magnitudes of the terms in its
# last product, and of those in all of them.
Expected = tuple[Array, Array, Array]


def _expected(args: tuple[Array, ...], d_out: Array | None) -> list[Expected]:
    """What one (batch, head) must give: out, or dq, dk, dv and dg."""
    q, k, v, g = args
    q1, k1, v1, g1 = (np.abs(a) for a in args)
    kv, kv1 = k.T @ v, k1.T @ v1
    qkv, qkv1 = q1 @ np.abs(kv), q1 @ kv1
    if d_out is None:
        return [(g * (q @ kv), g1 * qkv, g1 * qkv1)]
    d1 = np.abs(d_out)
    d_qkv, d_qkv1 = d_out * g, d1 * g1
    d_kv, d_kv1 = q.T @ d_qkv, q1.T @ d_qkv1
    return [
        (d_qkv @ kv.T, d_qkv1 @ np.abs(kv).T, d_qkv1 @ kv1.T),
        (v @ d_kv.T, v1 @ np.abs(d_kv).T, v1 @ d_kv1.T),
        (k @ d_kv, k1 @ np.abs(d_kv), k1 @ d_kv1),
        (d_out * (q @ kv), d1 * qkv, d1 * qkv1),
    ]


def _allowed(case: Case, column: Column, expected: Expected) -> Array:
    """float32 sums, and the roundings to the type.

    Those at the end are relative to the result, twice if it is made of a kept qkv. Where operands
    are rounded, they are those of the last product, and for peers also its result before the gate.
    """
    value, last, all_terms = expected
    arithmetic = reference.tolerance(case.dtype, roundings=0, depth=max(case.n, DIM)).relative
    roundoff = reference.ROUNDOFF[case.dtype]
    rounded = 4 * roundoff * last if rounds_operands(case, column) else 2 * roundoff * np.abs(value)
    return arithmetic * all_terms + rounded + 4 * reference.SUBNORMAL[case.dtype]


def checker(case: Case, given: Inputs) -> Checker:
    batch = case.options["batch"]
    picks = np.random.default_rng(SEED).choice(batch * HEADS, size=2, replace=False)
    slices = [divmod(int(i), HEADS) for i in picks]
    expected = [
        _expected(
            tuple(_slice(a, b, h) for a in given.args),
            None if given.d_out is None else _slice(given.d_out, b, h),
        )
        for b, h in slices
    ]
    names = ("out",) if given.d_out is None else ("dq", "dk", "dv", "dg")
    one = reference.Tolerance(relative=1.0, absolute=0.0)

    def check(column: Column, result: torch.Tensor | tuple[torch.Tensor, ...]) -> str | None:
        values = result if isinstance(result, tuple) else (result,)
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            if value.dtype != given.args[0].dtype or value.shape != given.args[0].shape:
                return f"wrong result: {name} {value.dtype} {tuple(value.shape)}"
            for (b, h), wanted in zip(slices, expected, strict=True):
                allowed = _allowed(case, column, wanted[i])
                if problem := one.violation(_slice(value, b, h), wanted[i][0], allowed):
                    return f"{problem} ({name}, batch {b}, head {h})"
        return None

    return check
