"""flao: linear attention with an output gate."""

import torch
from torch import Tensor

from attnops import _checks

_OP = "flao"
_KEEPS = ("none", "kv", "kv_qkv")


def flao(q: Tensor, k: Tensor, v: Tensor, g: Tensor, keep: str = "none") -> Tensor:
    """G ⊙ (Q·(Kᵀ·V)), not causal.

    q is (B,H,N,D), k (B,H,M,D), v (B,H,M,E) and g (B,H,N,E), all of one type; a transposed view of
    a (B,N,H,D) tensor is as good. keep says what the forward keeps for the backward beside its
    inputs: nothing, `kv` (B,H,D,E) in float32, or `kv_qkv`, also Q·(Kᵀ·V) (B,H,N,E). Keeping takes
    memory and saves time; when no gradient is needed, nothing is kept.
    """
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, g))
    _check_keep(keep)
    out, _, _ = torch.ops.attnops.flao(q, k, v, g, keep if needs_grad else "none")
    return out


def _check_keep(keep: str) -> None:
    if keep not in _KEEPS:
        _checks.fail(_OP, f'keep must be one of {", ".join(_KEEPS)}; it is "{keep}"')


def _check(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> None:
    """The checks of the kernel, in its order and with its texts, for tensors without data."""
    tensors = {"q": q, "k": k, "v": v, "g": g}
    for name, tensor in tensors.items():
        _checks.tensor(_OP, name, tensor)
    for (name, tensor), axes in zip(
        tensors.items(), ("(B,H,N,D)", "(B,H,M,D)", "(B,H,M,E)", "(B,H,N,E)"), strict=True
    ):
        _checks.axes(_OP, name, tensor, axes)

    def same(name: str, axis: int, what: str, other_name: str, other_axis: int) -> None:
        size, expected = tensors[name].shape[axis], tensors[other_name].shape[other_axis]
        _checks.same_size(_OP, name, size, what, other_name, expected)

    for name in ("k", "v", "g"):
        same(name, 0, "batches", "q", 0)
        same(name, 1, "heads", "q", 1)
    same("k", 3, "features", "q", 3)
    same("v", 2, "tokens", "k", 2)
    same("g", 2, "tokens", "q", 2)
    same("g", 3, "features", "v", 3)
    for name in ("k", "v", "g"):
        _checks.same_type(_OP, name, tensors[name], "q", q)


@torch.library.register_fake("attnops::flao")
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor, keep: str) -> tuple[Tensor, Tensor, Tensor]:
    _check_keep(keep)
    _check(q, k, v, g)
    kv_shape = (q.shape[0], q.shape[1], q.shape[3], v.shape[3])
    kept_type = torch.float32 if q.dtype == torch.float16 else q.dtype
    return (
        g.new_empty(g.shape),
        q.new_empty((0,) if keep == "none" else kv_shape, dtype=torch.float32),
        q.new_empty(g.shape if keep == "kv_qkv" else (0,), dtype=kept_type),
    )


@torch.library.register_fake("attnops::flao_backward")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    d_out: Tensor,
    kv: Tensor | None,
    qkv: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(q, k, v, g)
    _checks.same_shape_and_type(_OP, "d_out", d_out, "g", g)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), g.new_empty(g.shape)


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, g, keep = inputs
    _, kv, qkv = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kv, qkv)
    ctx.save_for_backward(
        q, k, v, g, None if keep == "none" else kv, qkv if keep == "kv_qkv" else None
    )


def _backward(ctx, d_out: Tensor | None, *_):
    if d_out is None:
        return None, None, None, None, None
    q, k, v, g, kv, qkv = ctx.saved_tensors
    return *torch.ops.attnops.flao_backward(q, k, v, g, d_out, kv, qkv), None


torch.library.register_autograd("attnops::flao", _backward, setup_context=_setup_context)


def _no_setup(ctx, inputs, output) -> None:
    pass


def _double_backward(ctx, *_):
    raise NotImplementedError(f"{_OP}: no second derivative")


torch.library.register_autograd("attnops::flao_backward", _double_backward, setup_context=_no_setup)
