"""What flao and flao_fal have in common: checks, fake results, and what the forward keeps."""

from collections.abc import Iterable

import torch
from torch import Tensor

from attnops import _checks, _choices


def what_to_keep(op: str, keep: str, inputs: Iterable[Tensor]) -> int:
    """The policy's number; nothing is kept when no gradient is needed."""
    number = _choices.number(op, "keep", _choices.KEEPS, keep)
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    return number if needs_grad else _choices.NONE


def check_inputs(op: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> None:
    """The checks of the kernels, in their order and with their texts, for tensors without data."""
    tensors = {"q": q, "k": k, "v": v, "g": g}
    for name, tensor in tensors.items():
        _checks.tensor(op, name, tensor)
    for (name, tensor), axes in zip(
        tensors.items(), ("(B,H,N,D)", "(B,H,M,D)", "(B,H,M,E)", "(B,H,N,E)"), strict=True
    ):
        _checks.axes(op, name, tensor, axes)

    def same(name: str, axis: int, what: str, other_name: str, other_axis: int) -> None:
        size, expected = tensors[name].shape[axis], tensors[other_name].shape[other_axis]
        _checks.same_size(op, name, size, what, other_name, expected)

    for name in ("k", "v", "g"):
        same(name, 0, "batches", "q", 0)
        same(name, 1, "heads", "q", 1)
    same("k", 3, "features", "q", 3)
    same("v", 2, "tokens", "k", 2)
    same("g", 2, "tokens", "q", 2)
    same("g", 3, "features", "v", 3)
    for name in ("k", "v", "g"):
        _checks.same_type(op, name, tensors[name], "q", q)


def fake_results(
    q: Tensor, v: Tensor, g: Tensor, keep: int, inner: int
) -> tuple[Tensor, Tensor, Tensor]:
    """out, kv with `inner` rows and qkv, of one axis and empty where they are not kept."""
    kv_shape = (q.shape[0], q.shape[1], inner, v.shape[3])
    kept_type = torch.float32 if q.dtype == torch.float16 else q.dtype
    return (
        g.new_empty(g.shape),
        q.new_empty((0,) if keep == _choices.NONE else kv_shape, dtype=torch.float32),
        q.new_empty(g.shape if keep == _choices.KV_QKV else (0,), dtype=kept_type),
    )


def fake_gradients(
    op: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and dg."""
    _checks.same_shape_and_type(op, "d_out", d_out, "g", g)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), g.new_empty(g.shape)


def setup_kept(ctx, output: tuple[Tensor, ...], keep: int) -> tuple[Tensor | None, Tensor | None]:
    """kv and qkv for the backward, where they are kept; they have no gradients."""
    _, kv, qkv = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kv, qkv)
    return None if keep == _choices.NONE else kv, qkv if keep == _choices.KV_QKV else None
