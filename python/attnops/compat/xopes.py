"""The functions of xopes (Doraemonzzz/xopes) under their names, with their arguments and layouts.

A user changes `from xopes.ops import …` to `from attnops.compat.xopes import …` and runs on a CPU.
What only tunes GPU kernels (further keywords, save_states and its like) changes nothing here.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from attnops import _checks
from attnops.flao import flao
from attnops.flao_fal import flao_fal
from attnops.linear_attention import linear_attention
from attnops.lrpe_rotate import lrpe_rotate
from attnops.md_lrpe_cosine import lrpe_table, md_lrpe_cosine
from attnops.tpa_decode import tpa_decode

__all__ = [
    "flao_fal_non_causal_fn",
    "flao_fal_non_causal_torch",
    "flao_non_causal_fn",
    "lightning_attn_func",
    "lrpe_cosine_fn",
    "lrpe_cosine_md_cache_triton",
    "lrpe_cosine_md_fn",
    "lrpe_cosine_md_torch",
    "lrpe_cosine_md_triton",
    "lrpe_fn",
    "lrpe_rotate_fn",
    "tpa_decode_fn",
    "tpa_decode_naive_torch",
    "tpa_decode_parallel_b_triton",
    "tpa_decode_parallel_bh_triton",
    "tpa_decode_parallel_bn_triton",
    "tpa_decode_torch",
]


def lrpe_fn(
    x: Tensor,
    theta: Tensor,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
    lrpe_type: str = "cosine",
    **kwargs: Any,
) -> Tensor:
    """Encodes positions of x (B,N,H,D) or (B,N,D) by `cosine` (2D features) or `rotate`.

    theta is (H,E), (1,E) or (H,1); dim, of a softmax, is 1 (the sequence) or −1 (the features).

    Examples
    --------
    >>> import torch
    >>> from attnops.compat.xopes import lrpe_fn
    >>> lrpe_fn(torch.randn(2, 16, 4, 8), torch.randn(4, 8), act="silu").shape
    torch.Size([2, 16, 4, 16])
    """
    if lrpe_type == "rotate":
        return lrpe_rotate_fn(x, theta, offset, act, dim)
    if lrpe_type == "cosine":
        return lrpe_cosine_fn(x, theta, offset, act, dim)
    raise ValueError(f"lrpe_fn: lrpe_type must be cosine or rotate; it is {lrpe_type!r}")


def lrpe_rotate_fn(
    x: Tensor,
    theta: Tensor,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """attnops.lrpe_rotate."""
    _checks.are_tensors("lrpe_rotate_fn", x=x, theta=theta)
    return lrpe_rotate(x, _rows(theta), offset, act, dim)


def lrpe_cosine_fn(
    x: Tensor,
    theta: Tensor,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """attnops.md_lrpe_cosine in 1-d, with the layout of x: (B,N,H,D) to (B,N,H,2D)."""
    _checks.are_tensors("lrpe_cosine_fn", x=x, theta=theta)
    if x.ndim not in (3, 4):
        _checks.fail(
            "lrpe_cosine_fn",
            f"x must have 4 axes (B,N,H,D) or 3 (B,N,D); its shape is {_checks.shape(x)}",
        )
    heads_last = x.unsqueeze(2) if x.ndim == 3 else x
    if dim is not None:
        axis = dim + x.ndim if dim < 0 else dim
        if axis not in (1, x.ndim - 1):
            _checks.fail(
                "lrpe_cosine_fn",
                f"dim must be 1 (sequence) or {x.ndim - 1} (features); it is {dim}",
            )
        dim = 2 if axis == 1 else 3
    out = md_lrpe_cosine(
        heads_last.transpose(1, 2),
        _angles(theta, x.shape[-1]),
        (x.shape[1],),
        0,
        offset,
        act,
        dim,
    ).transpose(1, 2)
    return out.squeeze(2) if x.ndim == 3 else out


def lrpe_cosine_md_fn(
    x: Tensor,
    theta: Tensor,
    shape: Sequence[int] | None = None,
    l: int = 0,
    act: str = "none",
    dim: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """attnops.md_lrpe_cosine of x (B,H,L,D); without a shape it is (L − l)."""
    _checks.are_tensors("lrpe_cosine_md_fn", x=x, theta=theta)
    return md_lrpe_cosine(x, _rows(theta), _grid(x, shape, l), l, 0, act, dim)


def lrpe_cosine_md_cache_triton(
    x: Tensor,
    theta: Tensor,
    shape: Sequence[int] | None = None,
    l: int = 0,
    act: str = "none",
    dim: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """The same from a table of cosines and sines, which it makes itself."""
    _checks.are_tensors("lrpe_cosine_md_cache_triton", x=x, theta=theta)
    grid = _grid(x, shape, l)
    table = lrpe_table(_rows(theta), grid, x.shape[-1])
    return md_lrpe_cosine(x, None, grid, l, 0, act, dim, table)


lrpe_cosine_md_triton = lrpe_cosine_md_fn
lrpe_cosine_md_torch = lrpe_cosine_md_fn


def flao_non_causal_fn(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """attnops.flao: q (B,H,N,D), k (B,H,M,D), v (B,H,M,E), g (B,H,N,E)."""
    return flao(q, k, v, g)


def flao_fal_non_causal_fn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    q_act: str = "none",
    q_act_dim: int | None = None,
    k_act: str = "none",
    k_act_dim: int | None = None,
    v_act: str = "none",
    v_act_dim: int | None = None,
    g_act: str = "none",
    g_act_dim: int | None = None,
    theta: Tensor | None = None,
    shape: Sequence[int] | None = None,
    lrpe_type: str = "cosine",
    offset: int = 0,
    l: int = 0,
) -> Tensor:
    """attnops.flao_fal; without theta there is no encoding."""
    if theta is not None and lrpe_type == "cosine":
        axes = 1 if shape is None else len(shape)
        _checks.are_tensors("flao_fal_non_causal_fn", q=q, theta=theta)
        theta = _angles(theta, q.shape[-1]) if axes == 1 else _rows(theta)
    return flao_fal(
        q,
        k,
        v,
        g,
        q_act,
        q_act_dim,
        k_act,
        k_act_dim,
        v_act,
        v_act_dim,
        g_act,
        g_act_dim,
        theta=theta,
        lrpe="none" if theta is None else lrpe_type,
        shape=None if theta is None else shape,
        offset=0 if theta is None else offset,
        l=0 if theta is None else l,
    )


flao_fal_non_causal_torch = flao_fal_non_causal_fn


def tpa_decode_fn(
    aq: Tensor,
    ak: Tensor,
    av: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
    scale: float | None = None,
    scale_q: float | None = None,
    scale_k: float | None = None,
    scale_v: float | None = None,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """attnops.tpa_decode, (B,1,H,E); scale_k and scale_v are 1 unless given."""
    return _decode("auto", aq, ak, av, bq, bk, bv, scale, scale_q, scale_k, scale_v, cu_seqlens)


tpa_decode_torch = tpa_decode_fn
tpa_decode_naive_torch = tpa_decode_fn


def tpa_decode_parallel_b_triton(*args: Any, **kwargs: Any) -> Tensor:
    """tpa_decode_fn with the work shared by batch."""
    return _decode("b", *args, **kwargs)


def tpa_decode_parallel_bh_triton(*args: Any, **kwargs: Any) -> Tensor:
    """tpa_decode_fn with the work shared by batch and head."""
    return _decode("bh", *args, **kwargs)


def tpa_decode_parallel_bn_triton(*args: Any, **kwargs: Any) -> Tensor:
    """tpa_decode_fn with the work shared by batch and pieces of the sequence."""
    return _decode("bn", *args, **kwargs)


def _decode(
    split: str,
    aq: Tensor,
    ak: Tensor,
    av: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
    scale: float | None = None,
    scale_q: float | None = None,
    scale_k: float | None = None,
    scale_v: float | None = None,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    if cu_seqlens is not None:
        _missing("tpa_decode_fn: cu_seqlens; attnops.tpa_decode has lengths and page_table")
    out = tpa_decode(
        aq,
        ak,
        av,
        bq,
        bk,
        bv,
        scale,
        scale_q,
        1.0 if scale_k is None else scale_k,
        1.0 if scale_v is None else scale_v,
        split,
    )
    return out[0] if isinstance(out, tuple) else out


def lightning_attn_func(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    ld: Tensor | None = None,
    ldk: Tensor | None = None,
    ldv: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    save_states: bool = True,
    save_ld: bool = True,
    save_a: bool = True,
    use_chunk_loop: bool = False,
    decay_type: str = "constant",
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """attnops.linear_attention with scale 1: o (B,N,H,E) and the last state (B,H,D,E), float32.

    Parameters
    ----------
    q, k, v : (B,N,H,D), (B,N,H,D), (B,N,H,E)
        With decay_type vector k may be None, then it is 1 − exp(ldk), and v 1 − exp(ldv).
    ld : (H), or None, with decay_type constant; (B,N,H) with scalar.
    ldk, ldv : (B,N,H,D) and/or (B,N,H,E) with decay_type vector.
    initial_state : (B,H,D,E), or (H,D,E) for all sequences.

    Examples
    --------
    >>> import torch
    >>> from attnops.compat.xopes import lightning_attn_func
    >>> q, k, v = (torch.randn(2, 16, 4, 8) for _ in range(3))
    >>> o, state = lightning_attn_func(q, k, v, ld=-torch.rand(4))
    >>> o.shape, state.shape
    (torch.Size([2, 16, 4, 8]), torch.Size([2, 4, 8, 8]))
    """
    op = "lightning_attn_func"
    if decay_type in ("positional", "element"):
        _missing(f'{op}: decay_type "{decay_type}"; constant, scalar and vector are there')
    if decay_type not in ("constant", "scalar", "vector"):
        raise ValueError(
            f"{op}: decay_type must be constant, scalar or vector; it is {decay_type!r}"
        )
    _checks.are_tensors(op, q=q)
    vector = decay_type == "vector"
    if vector:
        if ld is not None or (ldk is None and ldv is None):
            raise ValueError(f"{op}: decay_type vector needs ldk or ldv, and no ld")
    elif ldk is not None or ldv is not None:
        raise ValueError(f"{op}: ldk and ldv are for decay_type vector; it is {decay_type}")
    elif decay_type == "scalar" and ld is None:
        raise ValueError(f"{op}: decay_type scalar needs ld (B,N,H)")
    k = _rest(op, "k", k, "ldk", ldk, q)
    v = _rest(op, "v", v, "ldv", ldv, q)
    if initial_state is not None:
        if initial_state.ndim == 3:
            sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
            initial_state = initial_state.expand(sequences, *initial_state.shape)
        initial_state = initial_state.to(torch.float32)
    out = linear_attention(
        q,
        k,
        v,
        ldk if vector else ld,
        log_decay_v=ldv,
        scale=1.0,
        initial_state=initial_state,
        output_state=True,
        cu_seqlens=cu_seqlens,
    )
    return out[0], out[1]


def _rest(
    op: str, name: str, value: Tensor | None, decay_name: str, decay: Tensor | None, q: Tensor
) -> Tensor:
    """The tensor itself, or what a decay leaves: 1 − exp(decay)."""
    if value is not None:
        return value
    if decay is None:
        raise ValueError(f"{op}: {name} must be a tensor without {decay_name}; it is None")
    return -torch.expm1(decay.float()).to(q.dtype)


def _rows(theta: Tensor) -> Tensor:
    """(heads, angles)."""
    return theta[None] if theta.ndim == 1 else theta


def _angles(theta: Tensor, features: int) -> Tensor:
    """An angle for each feature, where one serves all."""
    theta = _rows(theta)
    return theta.expand(theta.shape[0], features) if theta.shape[-1] == 1 else theta


def _grid(x: Tensor, shape: Sequence[int] | None, l: int) -> tuple[int, ...]:
    return (x.shape[-2] - l,) if shape is None else tuple(shape)


def _missing(text: str) -> NoReturn:
    raise NotImplementedError(f"attnops has no {text}")
