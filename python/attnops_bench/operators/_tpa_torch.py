"""tpa and tpa_decode with ranks in a worker: inputs, attnops and the PyTorch peers, the check."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import attnops
from attnops.nn import TPACache
from attnops_bench import reference
from attnops_bench.operators._products import rounds_operands
from attnops_bench.operators._tpa_shapes import DIM, RANKS
from attnops_bench.random_inputs import DTYPES, normal
from attnops_bench.tables import SEED, Case, Checker, Column, Inputs

Forward = Callable[..., torch.Tensor]


def inputs(case: Case, queries: int) -> Inputs:
    """All normal random, drawn in the type itself so that no wider copy is ever made."""
    generator = torch.Generator().manual_seed(SEED)
    b, h, m = case.options["batch"], case.options["heads"], case.n
    q, k, v = RANKS
    shapes = [
        (b, queries, h, q),
        (b, m, h, k),
        (b, m, h, v),
        (b, queries, q, DIM),
        (b, m, k, DIM),
        (b, m, v, DIM),
    ]
    dtype = DTYPES[case.dtype]
    args = tuple(normal(shape, dtype, generator) for shape in shapes)
    if case.direction == "fwd":
        return Inputs(args, (), None)
    for x in args:
        x.requires_grad_()
    return Inputs(args, args, normal((b, queries, h, DIM), dtype, generator))


def _whole(aq, ak, av, bq, bk, bv) -> tuple[torch.Tensor, ...]:
    """q, k and v of all heads, (B,H,N,D), each scaled."""
    pairs = ((aq, bq), (ak, bk), (av, bv))
    return tuple((a @ b).transpose(1, 2) * a.shape[3] ** -1 for a, b in pairs)


def _materialised(causal: bool) -> Forward:
    def forward(*factors: torch.Tensor) -> torch.Tensor:
        q, k, v = _whole(*factors)
        return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    return forward


def _decode_factored(aq, ak, av, bq, bk, bv) -> torch.Tensor:
    """Each product one matrix product with all ranks of all tokens."""
    b, m, h, k = ak.shape
    q = aq[:, 0] @ bq[:, 0] * (aq.shape[3] ** -1 * k**-1 * DIM**-0.5)
    scores = (q @ bk.flatten(1, 2).mT).view(b, h, m, k)
    weights = torch.softmax((scores * ak.transpose(1, 2)).sum(-1), -1)
    weighted = weights.unsqueeze(-1) * av.transpose(1, 2) * av.shape[3] ** -1
    return (weighted.flatten(2) @ bv.flatten(1, 2)).unsqueeze(1)


def _factored(aq, ak, av, bq, bk, bv) -> torch.Tensor:
    """Causal: scores from whole queries and the rows of bk, values from those of bv."""
    b, m, h, k = ak.shape
    q = (aq @ bq).transpose(1, 2) * (aq.shape[3] ** -1 * k**-1 * DIM**-0.5)
    scores = (q @ bk.flatten(1, 2).mT.unsqueeze(1)).view(b, h, m, m, k)
    scores = (scores * ak.transpose(1, 2).unsqueeze(2)).sum(-1)
    hidden = torch.ones(m, m, dtype=torch.bool).triu(1)
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    weighted = weights.unsqueeze(-1) * (av.transpose(1, 2) * av.shape[3] ** -1).unsqueeze(2)
    return (weighted.flatten(3) @ bv.flatten(1, 2).unsqueeze(1)).transpose(1, 2)


def _upcast(form: Forward) -> Forward:
    return lambda *args: form(*(a.float() for a in args)).to(args[0].dtype)


def _peer(column: Column, factored: Forward, materialised: Forward) -> Forward:
    form = materialised if column.name.startswith("ts") else factored
    if column.name.endswith("_up"):
        form = _upcast(form)
    return torch.compile(form, dynamic=False, fullgraph=True) if column.compiled else form


def function(column: Column) -> Forward:
    if column.name == "attnops":
        return attnops.tpa
    return _peer(column, _factored, _materialised(causal=True))


def decode_function(column: Column, given: Inputs) -> Forward:
    if column.name == "attnops":
        return attnops.tpa_decode
    if column.name == "attnops_int8":
        _, ak, av, _, bk, bv = given.args
        b, m, h, k = ak.shape
        cache = TPACache(b, m, h, DIM, k, av.shape[3], dtype=torch.int8)
        cache.join(b)
        cache.append(ak, av, bk, bv)
        return lambda aq, ak, av, bq, bk, bv: cache.decode(aq, bq)
    return _peer(column, _decode_factored, _materialised(causal=False))


def int8_error(aq, ak, av, bq, bk, bv, heads: list[int]) -> torch.Tensor:
    """How far a step from an int8 cache of these factors may be off, (B,1,heads,E).

    A stored number is off by at most half its scale, the largest magnitude of its row over 127; a
    token of ak or av and a row of bk or bv have one each. With the errors of the whole keys and
    values from these, dk and dv, a score is off by at most e = D^-½·Σ|q|·dk, a weight α by a factor
    of at most f = exp(e + max e), and the result by Σ α·((f − 1)·|v| + f·dv).
    """

    def halves(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        # The quotient by the scale is a float32 that is rounded before it becomes an integer.
        return x.abs().amax(axes, keepdim=True) / 254 * (1 + 2**-16)

    def whole_error(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        of_a, of_b = halves(a, (2, 3)), halves(b, (3,))
        a = a[:, :, heads].abs()
        return ((a + of_a) @ of_b + of_a * b.abs().sum(2, keepdim=True)) / a.shape[3]

    dk, dv = (whole_error(a, b).transpose(1, 2) for a, b in ((ak, bk), (av, bv)))
    q, k, v = _whole(aq[:, :, heads], ak[:, :, heads], av[:, :, heads], bq, bk, bv)
    e = q.abs() @ dk.mT * q.shape[3] ** -0.5
    factor = torch.exp(e + e.amax(-1, keepdim=True))
    weights = torch.softmax(q @ k.mT * q.shape[3] ** -0.5, -1)
    error = (weights * (factor - 1)) @ v.abs() + (weights * factor) @ dv
    return error.transpose(1, 2)


def _expected(given: Inputs, batch: int, heads: list[int], causal: bool) -> list[torch.Tensor]:
    """In double precision, of some heads of a batch: out, or the gradients of aq, ak and av."""
    aq, ak, av, bq, bk, bv = (x[batch : batch + 1].detach().double() for x in given.args)
    aq, ak, av = (x[:, :, heads].requires_grad_(given.d_out is not None) for x in (aq, ak, av))
    q, k, v = _whole(aq, ak, av, bq, bk, bv)
    scores = q @ k.mT * DIM**-0.5
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    out = (torch.softmax(scores, -1) @ v).transpose(1, 2)
    if given.d_out is None:
        return [out]
    d_out = given.d_out[batch : batch + 1, :, heads].double()
    return list(torch.autograd.grad(out, (aq, ak, av), d_out))


def checker(case: Case, given: Inputs, causal: bool) -> Checker:
    """Two heads of the last batch, relative to the largest number of each head."""
    batch, heads = case.options["batch"] - 1, [0, case.options["heads"] - 1]
    with torch.enable_grad():
        expected = [x.detach() for x in _expected(given, batch, heads, causal)]
    roundoff = reference.ROUNDOFF[case.dtype]
    one = [x[batch : batch + 1].detach().double() for x in given.args]
    arithmetic = reference.tolerance(case.dtype, roundings=0, depth=case.n).relative

    def check(column: Column, result) -> str | None:
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        shapes = [x.shape for x in given.differentiable]
        if given.d_out is not None and [x.shape for x in results] != shapes:
            return "wrong result: gradients of other shapes"
        # Those that round operands round whole rows, scores, weights and their gradients.
        roundings = 32 if rounds_operands(case, column) else 2
        allowed = roundings * roundoff + 8 * arithmetic
        quantised = int8_error(*one, heads) if column.name == "attnops_int8" else 0.0
        for actual, wanted in zip(results, expected, strict=False):
            if actual.dtype != given.args[0].dtype:
                return f"wrong result: {actual.dtype}"
            part = actual.detach()[batch : batch + 1, :, heads].double()
            largest = wanted.abs().amax((0, 1, 3), keepdim=True)
            worst = float((((part - wanted).abs() - quantised) / largest).max())
            if not worst <= allowed:
                return f"wrong result: off by {worst / allowed:.3g} times the tolerance"
        return None

    return check
