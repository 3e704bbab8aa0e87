"""Formulas for torch.utils.flop_counter: the multiply-adds of the products, each two operations.

They are those of docs/performance.md's limits, whatever the kernels do. As in PyTorch, what works
element by element counts nothing: the encodings alone, activations and gates.
"""

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from attnops import _choices, _library  # noqa: F401  (loads the operators)

_ops = torch.ops.attnops
_CHUNK = 64  # tokens whose products with each other linear_attention computes


def _flao_forward(q: Any, k: Any, v: Any, inner: int) -> int:
    b, h, n, _ = q
    return 2 * b * h * inner * v[3] * (n + k[2])


def _flao_backward(q: Any, k: Any, v: Any, kv: Any, qkv: Any, inner: int) -> int:
    b, h, n, _ = q
    twice = 2 * b * h * inner * v[3]
    again = (0 if kv is not None else k[2]) + (0 if qkv is not None else n)
    return twice * (2 * (n + k[2]) + again)


@register_flop_formula(_ops.flao)
def _flao(q, k, v, g, *args, **kwargs) -> int:
    return _flao_forward(q, k, v, q[3])


@register_flop_formula(_ops.flao_backward)
def _flao_gradient(q, k, v, g, d_out, kv=None, qkv=None, *args, **kwargs) -> int:
    return _flao_backward(q, k, v, kv, qkv, q[3])


def _inner(q: Any, lrpe: int) -> int:
    return 2 * q[3] if lrpe == _choices.COSINE else q[3]


@register_flop_formula(_ops.flao_fal)
def _flao_fal(q, k, v, g, theta, *options, **kwargs) -> int:
    return _flao_forward(q, k, v, _inner(q, options[8]))


@register_flop_formula([_ops.flao_fal_backward, _ops.flao_fal_backward_theta])
def _flao_fal_gradient(q, k, v, g, d_out, kv, qkv, theta, *options, **kwargs) -> int:
    return _flao_backward(q, k, v, kv, qkv, _inner(q, options[8]))


def _flao_half(x: Any, y: Any, inner: int) -> int:
    """K̄ᵀ·V of keys and values, or Q̄·KV of queries and gates."""
    return 2 * x[0] * x[1] * x[2] * inner * y[3]


@register_flop_formula(_ops.flao_kv)
def _flao_kv(k, v, *args, **kwargs) -> int:
    return _flao_half(k, v, k[3])


@register_flop_formula(_ops.flao_kv_backward)
def _flao_kv_gradient(k, v, *args, **kwargs) -> int:
    return 2 * _flao_half(k, v, k[3])


@register_flop_formula(_ops.flao_out)
def _flao_out(q, kv, g, *args, **kwargs) -> int:
    return _flao_half(q, g, q[3])


@register_flop_formula(_ops.flao_out_backward)
def _flao_out_gradient(q, kv, g, *args, **kwargs) -> int:
    return 3 * _flao_half(q, g, q[3])  # Q·KV is computed again


@register_flop_formula(_ops.flao_fal_kv)
def _flao_fal_kv(k, v, theta, *options, **kwargs) -> int:
    return _flao_half(k, v, _inner(k, options[4]))


@register_flop_formula(_ops.flao_fal_kv_backward)
def _flao_fal_kv_gradient(k, v, d_kv, theta, *options, **kwargs) -> int:
    return 2 * _flao_half(k, v, _inner(k, options[4]))


@register_flop_formula(_ops.flao_fal_out)
def _flao_fal_out(q, kv, g, theta, *options, **kwargs) -> int:
    return _flao_half(q, g, _inner(q, options[4]))


@register_flop_formula(_ops.flao_fal_out_backward)
def _flao_fal_out_gradient(q, kv, g, d_out, theta, *options, **kwargs) -> int:
    return 3 * _flao_half(q, g, _inner(q, options[4]))


@register_flop_formula([_ops.linear_attention, _ops.linear_attention_])
def _linear_attention(q, k, v, *args, **kwargs) -> int:
    return _causal(q, v)


@register_flop_formula(_ops.linear_attention_backward)
def _linear_attention_gradient(q, k, v, *args, **kwargs) -> int:
    # Each of the forward's products gives two of its kind, and the states are computed again.
    return 2 * _causal(q, v) + _causal(q, v) // 2


def _causal(q: Any, v: Any) -> int:
    b, tokens_and_heads, d, e = v[0], v[1] * v[2], q[3], v[3]
    return 2 * b * tokens_and_heads * (_CHUNK // 2 * (d + e) + 2 * d * e)


def _tpa_products(aq: Any, ak: Any, av: Any, bq: Any, bk: Any, bv: Any, q: Any) -> int:
    """Of one query and one key, all heads, ranks last: scores and values."""
    h, r_k, r_v, d, e = ak[2], ak[3], av[3], bk[3], bv[3]
    scores = h * r_k * d
    if q is None:
        scores = min(scores, aq[3] * r_k * (d + h))
    return scores + h * r_v * e


@register_flop_formula(_ops.tpa)
def _tpa(aq, ak, av, bq, bk, bv, q=None, causal=True, *args, **kwargs) -> int:
    return 2 * _pairs(aq, ak, q, causal) * _tpa_products(aq, ak, av, bq, bk, bv, q)


@register_flop_formula(_ops.tpa_backward)
def _tpa_gradient(aq, ak, av, bq, bk, bv, q, out, lse, d_out, causal=True, *args, **kwargs) -> int:
    # The scores again, and two products for each of the forward's.
    return 6 * _pairs(aq, ak, q, causal) * _tpa_products(aq, ak, av, bq, bk, bv, q)


def _pairs(aq: Any, ak: Any, q: Any, causal: bool) -> int:
    b, n = (aq if q is None else q)[:2]
    m = ak[1]
    return b * (n * (m - n) + n * (n + 1) // 2 if causal else n * m)


@register_flop_formula(_ops.tpa_decode)
def _tpa_decode(aq, ak, av, bq, bk, bv, *args, **kwargs) -> int:
    bk, bv = ([*x[:2], 1, x[2]] for x in (bk, bv))
    return 2 * ak[0] * ak[1] * _tpa_products(aq, [*ak, 1], [*av, 1], bq, bk, bv, None)


@register_flop_formula(_ops.tpa_decode_ranks)
def _tpa_decode_ranks(
    aq, ak, av, bq, bk, bv, q=None, *args, **kwargs
) -> int:  # of all tokens there is room for
    return 2 * ak[0] * ak[1] * _tpa_products(aq, ak, av, bq, bk, bv, q)
