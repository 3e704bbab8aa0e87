"""tpa_decode in a worker: its inputs, attnops and the PyTorch peers, and the check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import attnops
from attnops_bench import reference
from attnops_bench.operators._products import rounds_operands
from attnops_bench.operators.tpa_decode import DIM, HEADS, RANK
from attnops_bench.random_inputs import DTYPES, normal
from attnops_bench.tables import SEED, Case, Checker, Column, Inputs

Forward = Callable[..., torch.Tensor]
Array = reference.Array


def inputs(case: Case) -> Inputs:
    """All normal random, drawn in the type itself so that no wider copy is ever made."""
    generator = torch.Generator().manual_seed(SEED)
    b, m = case.options["batch"], case.n
    shapes = [
        (b, 1, HEADS, RANK),
        (b, m, HEADS),
        (b, m, HEADS),
        (b, 1, RANK, DIM),
        (b, m, DIM),
        (b, m, DIM),
    ]
    dtype = DTYPES[case.dtype]
    args = tuple(normal(shape, dtype, generator) for shape in shapes)
    return Inputs(args, (), None)


def _factored(aq, ak, av, bq, bk, bv) -> torch.Tensor:
    """Through the rank, which takes fewer multiplications than forming q and is faster."""
    t = bq[:, 0] @ bk.transpose(1, 2)
    scores = ((aq[:, 0] * (RANK**-1 * DIM**-0.5)) @ t) * ak.transpose(1, 2)
    weights = torch.softmax(scores, -1) * av.transpose(1, 2)
    return (weights @ bv).unsqueeze(1)


def _naive(aq, ak, av, bq, bk, bv) -> torch.Tensor:
    """K and V of all heads are built."""
    q = (aq @ bq).transpose(1, 2) * RANK**-1  # (B,H,1,D)
    k = ak.transpose(1, 2).unsqueeze(-1) * bk.unsqueeze(1)  # (B,H,M,D)
    v = av.transpose(1, 2).unsqueeze(-1) * bv.unsqueeze(1)
    p = torch.softmax((q @ k.transpose(-1, -2)) * DIM**-0.5, -1)
    return (p @ v).transpose(1, 2)


def _upcast(form: Forward) -> Forward:
    return lambda *args: form(*(a.float() for a in args)).to(args[0].dtype)


def function(column: Column) -> Forward:
    if column.name.startswith("attnops"):
        split = column.name.removeprefix("attnops").removeprefix("_") or "auto"
        return lambda *args: attnops.tpa_decode(*args, split=split)
    form = _naive if column.name.startswith("ton") else _factored
    if column.name.endswith("_up"):
        form = _upcast(form)
    return torch.compile(form, dynamic=False, fullgraph=True) if column.compiled else form


class _Expected:
    """What one batch must give, and by how much errors of the scores and weights show in it."""

    def __init__(self, args: tuple[Array, ...]):
        aq, ak, av, bq, bk, bv = args
        q = aq[0] @ bq[0] / RANK
        factor = ak.T * DIM**-0.5
        s = q @ bk.T * factor
        self.p = np.exp(s - s.max(-1, keepdims=True))
        self.p /= self.p.sum(-1, keepdims=True)
        self.out = (self.p * av.T) @ bv
        # The magnitudes of the terms of a score: with q or bq·bkᵀ as they are, and with those of
        # their own terms.
        self.terms = np.abs(factor) * np.maximum(
            np.abs(q) @ np.abs(bk.T), np.abs(aq[0]) @ np.abs(bq[0] @ bk.T) / RANK
        )
        self.all_terms = np.abs(aq[0]) @ np.abs(bq[0]) / RANK @ np.abs(bk.T) * np.abs(factor)
        self.spread = s.max(-1, keepdims=True) - s
        self._av, self._bv = np.abs(av.T), np.abs(bv)

    def allowed(self, of_scores: Array, of_weights: float) -> Array:
        """For absolute errors of the scores, and relative ones of what is summed at the end."""
        total = (self.p * self._av) @ self._bv
        shown = (self.p * of_scores * self._av) @ self._bv
        mean = (self.p * of_scores).sum(-1, keepdims=True)
        return shown + (mean + of_weights) * total


def _allowed(case: Case, column: Column, expected: _Expected) -> Array:
    """float32 arithmetic, and the roundings to the type.

    Where operands are rounded, they are q or bq·bkᵀ, the scores or K, the softmax, and its product
    with av or V.
    """
    arithmetic = reference.tolerance(case.dtype, roundings=0, depth=case.n).relative
    roundoff = reference.ROUNDOFF[case.dtype]
    of_scores = arithmetic * (expected.all_terms + expected.spread)
    of_weights = arithmetic
    if rounds_operands(case, column):
        of_scores = of_scores + 6 * roundoff * expected.terms
        of_weights += 4 * roundoff
    allowed = expected.allowed(of_scores, of_weights)
    return allowed + 2 * roundoff * np.abs(expected.out) + 4 * reference.SUBNORMAL[case.dtype]


def checker(case: Case, given: Inputs) -> Checker:
    batch = case.options["batch"]
    picks = np.random.default_rng(SEED).choice(batch, size=min(2, batch), replace=False).tolist()
    expected = {b: _Expected(tuple(a[b].double().numpy() for a in given.args)) for b in picks}
    one = reference.Tolerance(relative=1.0, absolute=0.0)
    shape = (batch, 1, HEADS, DIM)

    def check(column: Column, result: torch.Tensor) -> str | None:
        if result.dtype != given.args[0].dtype or result.shape != shape:
            return f"wrong result: {result.dtype} {tuple(result.shape)}"
        for b, wanted in expected.items():
            allowed = _allowed(case, column, wanted)
            if problem := one.violation(result[b, 0].double().numpy(), wanted.out, allowed):
                return f"{problem} (batch {b})"
        return None

    return check
