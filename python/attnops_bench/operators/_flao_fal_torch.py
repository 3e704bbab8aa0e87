"""flao_fal in a worker: its inputs, attnops and the PyTorch peers, and the check.

The peers are the quickest of the forms tried (bf16, B=12, N = 512 and 1024, two threads):

- cos and sin (H,N,D) come from a function of their own, also compiled, as for md_lrpe_cosine.
- Forward, compiled: `cat` of y·cos and y·sin, 1.06x quicker than two products with D features each
  and 1.25x than a product with stacked cos and sin. Eager, the stacked one is 1.15x quicker than
  `cat`, and level with two products.
- Backward: an autograd function that keeps all that its products need, 1.1x quicker than what
  compiled autograd keeps, and 1.25x (in the type) to 1.3x (upcast) than eager autograd. The eager
  one also keeps what it converted to float32; compiled, converting again costs nothing.
- Without bfloat16 arithmetic in the CPU, the forms in the type take 1.7x to 2.6x as long as upcast.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

import attnops
from attnops_bench import reference
from attnops_bench.operators._encoding_torch import Forward, compiled
from attnops_bench.operators._products import rounds_operands
from attnops_bench.operators.flao import DIM, HEADS, shape
from attnops_bench.random_inputs import DTYPES, normal
from attnops_bench.tables import SEED, Case, Checker, Column, Inputs

Array = reference.Array
Tensor = torch.Tensor


def inputs(case: Case) -> Inputs:
    """All normal random; theta is float32."""
    generator = torch.Generator().manual_seed(SEED)

    def draw() -> Tensor:
        return normal(shape(case), DTYPES[case.dtype], generator)

    tensors = tuple(draw() for _ in range(4))
    theta = (10000.0 ** (-torch.arange(DIM, dtype=torch.float32) / DIM)).repeat(HEADS, 1)
    if case.direction == "fwd":
        return Inputs((*tensors, theta), (), None)
    d_out = draw()
    for tensor in tensors:
        tensor.requires_grad_()
    return Inputs((*tensors, theta), tensors, d_out)


def _activate_q(case: Case) -> Forward:
    dim = case.options["q_dim"]
    return F.silu if dim is None else lambda x: torch.softmax(x, dim)


def _cos_sin(n: int, dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """(H,N,D) each; the angles are products in float32."""

    def build(theta: Tensor) -> tuple[Tensor, Tensor]:
        angle = torch.arange(n, dtype=torch.float32)[:, None] * theta[:, None]
        return angle.cos().to(dtype), angle.sin().to(dtype)

    return build


def _encode(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.cat([y * cos, y * sin], -1)


def _encode_stacked(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (y.unsqueeze(-2) * torch.stack([cos, sin], -2)).flatten(-2)


def _forward(case: Case, upcast: bool, encode: Forward) -> Forward:
    activate_q = _activate_q(case)

    def forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        dtype = q.dtype
        if upcast:
            q, k, v, g = (t.float() for t in (q, k, v, g))
        q_encoded = encode(activate_q(q), cos, sin)
        k_encoded = encode(F.silu(k), cos, sin)
        return (F.silu(g) * (q_encoded @ (k_encoded.mT @ v))).to(dtype)

    return forward


def _with_backward(case: Case, upcast: bool, keeps_wide: bool) -> Forward:
    """The backward by hand, with all of its operands kept."""
    activate_q = _activate_q(case)
    q_dim = case.options["q_dim"]
    silu_backward = torch.ops.aten.silu_backward

    def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.float() for t in tensors) if upcast else tensors

    def decode(d_encoded: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = d_encoded.chunk(2, -1)
        return (first * cos).addcmul_(second, sin)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, g, cos, sin):
            dtype, narrow = q.dtype, (q, k, g)
            q, k, v, g = wide(q, k, v, g)
            y, gate = activate_q(q), F.silu(g)
            q_encoded, k_encoded = _encode(y, cos, sin), _encode(F.silu(k), cos, sin)
            kv = k_encoded.mT @ v
            qkv = q_encoded @ kv
            kept = (q, k, g) if keeps_wide else narrow
            kept = kept if q_dim is None else (y, *kept[1:])
            ctx.save_for_backward(*kept, v, gate, cos, sin, q_encoded, k_encoded, kv, qkv)
            return (gate * qkv).to(dtype)

        @staticmethod
        def backward(ctx, d_out):
            q, k, g, v, gate, cos, sin, q_encoded, k_encoded, kv, qkv = ctx.saved_tensors
            dtype = d_out.dtype
            q, k, g, d_out = wide(q, k, g, d_out)
            d_qkv = d_out * gate
            dg = silu_backward(d_out * qkv, g).to(dtype)
            dy = decode(d_qkv @ kv.mT, cos, sin)
            if q_dim is None:
                dq = silu_backward(dy, q).to(dtype)
            else:
                dq = torch.ops.aten._softmax_backward_data(dy, q, q_dim, dy.dtype).to(dtype)
            d_kv = q_encoded.mT @ d_qkv
            dk = silu_backward(decode(v @ d_kv.mT, cos, sin), k).to(dtype)
            dv = (k_encoded @ d_kv).to(dtype)
            return dq, dk, dv, dg, None, None

    return Function.apply


def _peer(case: Case, column: Column) -> Forward:
    dtype = DTYPES[case.dtype]
    # In float32 there is nothing to convert, and the two forms are one.
    upcast = dtype != torch.float32 and column.name.endswith("_up")
    build = _cos_sin(case.n, torch.float32 if upcast else dtype)
    if case.direction == "bwd":
        form = _with_backward(case, upcast, keeps_wide=not column.compiled)
    else:
        form = _forward(case, upcast, _encode if column.compiled else _encode_stacked)
    if column.compiled:
        build, function = compiled(build), form
        form = compiled(lambda *args: function(*args))
    return lambda q, k, v, g, theta: form(q, k, v, g, *build(theta))


# The policy that suits speed, and what the peers keep; flao's tables show the others.
KEEP = "kv_qkv"


def function(case: Case, column: Column) -> Forward:
    q_act, q_dim = case.options["q_act"], case.options["q_dim"]

    def fused(q: Tensor, k: Tensor, v: Tensor, g: Tensor, theta: Tensor) -> Tensor:
        acts = {"q_act": q_act, "q_dim": q_dim, "k_act": "silu", "g_act": "silu"}
        return attnops.flao_fal(q, k, v, g, **acts, theta=theta, keep=KEEP)

    def composed(q: Tensor, k: Tensor, v: Tensor, g: Tensor, theta: Tensor) -> Tensor:
        q = attnops.md_lrpe_cosine(q, theta, (case.n,), act=q_act, dim=q_dim)
        k = attnops.md_lrpe_cosine(k, theta, (case.n,), act="silu")
        return attnops.flao(q, k, v, F.silu(g), keep=KEEP)

    own = {"attnops": fused, "composed": composed}
    return own[column.name] if column.name in own else _peer(case, column)


def _products(q: Array, k: Array, v: Array, g: Array, d_out: Array | None) -> list[Array]:
    """flao's out, or dq, dk, dv and dg."""
    kv = k.T @ v
    if d_out is None:
        return [g * (q @ kv)]
    d_qkv = d_out * g
    d_kv = q.T @ d_qkv
    return [d_qkv @ kv.T, v @ d_kv.T, k @ d_kv, d_out * (q @ kv)]


class _Slice:
    """What one (batch, head) must give, and what the errors of each result are relative to."""

    def __init__(self, case: Case, args: tuple[Array, ...], theta: Array, d_out: Array | None):
        axis = None if case.options["q_dim"] is None else 1
        self._acts = ((case.options["q_act"], axis), ("silu", None), ("none", None), ("silu", None))
        self._args = args
        self._cos, self._sin = reference.cos_sin(case.n, theta)
        y = [reference.activation(x, *act) for x, act in zip(args, self._acts, strict=True)]
        ready = [self._encoded(y[0]), self._encoded(y[1]), y[2], y[3]]
        sizes = [np.tile(np.abs(y[0]), 2), np.tile(np.abs(y[1]), 2), np.abs(y[2]), np.abs(y[3])]
        size = None if d_out is None else np.abs(d_out)
        values = _products(*ready, d_out)
        # All terms of all sums, and the root of the sum of their squares: what is left of them
        # when their errors are independent.
        terms = _products(*sizes, size)
        squares = _products(*(s**2 for s in sizes), None if size is None else size**2)
        spread = [np.sqrt(s) for s in squares]
        self.values, self.terms = self._gradients(values, terms, d_out is None)
        _, self.spread = self._gradients(values, spread, d_out is None)

    def _encoded(self, y: Array) -> Array:
        return np.concatenate([y * self._cos, y * self._sin], axis=1)

    def _gradients(
        self, values: list[Array], scales: list[Array], is_forward: bool
    ) -> tuple[list[Array], list[Array]]:
        """The results and the scales behind encoding and activation."""
        if is_forward:
            return values, scales
        results = []
        for i, (d, scale) in enumerate(zip(values, scales, strict=True)):
            if i < 2:
                d = d[:, :DIM] * self._cos + d[:, DIM:] * self._sin
                scale = np.hypot(scale[:, :DIM], scale[:, DIM:])
            act, axis = self._acts[i]
            results.append(reference.activation_backward(self._args[i], d, scale, act, axis))
        return [r for r, _ in results], [s for _, s in results]


def _allowed(case: Case, column: Column, value: Array, terms: Array, spread: Array) -> Array:
    """float32 sums, the roundings to the type, and the peers' inexact angles.

    Peers in the tensors' type, and composed, round the operands of the products several times and
    the products themselves, attnops in `medium` the operands once; the peers' angles are products
    in float32. The errors of a sum's terms are independent: eight deviations are allowed, of four
    roundings.
    """
    arithmetic = reference.tolerance(case.dtype, roundings=0, depth=max(case.n, 2 * DIM)).relative
    roundoff = reference.ROUNDOFF[case.dtype]
    allowed = (
        arithmetic * terms + 2 * roundoff * np.abs(value) + 4 * reference.SUBNORMAL[case.dtype]
    )
    if column.role == "peer":
        allowed += 8 * case.n * reference.ROUNDOFF["f32"] * spread
    if column.name == "composed" or rounds_operands(case, column):
        allowed += 8 * 4 * roundoff * spread
    return allowed


def checker(case: Case, given: Inputs) -> Checker:
    batch = case.options["batch"]
    picks = np.random.default_rng(SEED).choice(batch * HEADS, size=2, replace=False)
    slices = [divmod(int(i), HEADS) for i in picks]
    *tensors, theta = given.args

    def cut(tensor: Tensor, b: int, h: int) -> Array:
        return tensor.detach()[b, h].double().numpy()

    expected = [
        _Slice(
            case,
            tuple(cut(t, b, h) for t in tensors),
            theta[h].numpy(),
            None if given.d_out is None else cut(given.d_out, b, h),
        )
        for b, h in slices
    ]
    names = ("out",) if given.d_out is None else ("dq", "dk", "dv", "dg")
    one = reference.Tolerance(relative=1.0, absolute=0.0)

    def check(column: Column, result: Tensor | tuple[Tensor, ...]) -> str | None:
        values = result if isinstance(result, tuple) else (result,)
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            if value.dtype != tensors[0].dtype or value.shape != tensors[0].shape:
                return f"wrong result: {name} {value.dtype} {tuple(value.shape)}"
            for (b, h), want in zip(slices, expected, strict=True):
                allowed = _allowed(case, column, want.values[i], want.terms[i], want.spread[i])
                if problem := one.violation(cut(value, b, h), want.values[i], allowed):
                    return f"{problem} ({name}, batch {b}, head {h})"
        return None

    return check
