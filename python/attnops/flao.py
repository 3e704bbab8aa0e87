"""flao: linear attention with an output gate."""

import torch
from torch import Tensor

from attnops import _attention, _checks, _choices

_OP = "flao"


def flao(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    keep: str = "none",
    *,
    precision: str | None = None,
) -> Tensor:
    """G ⊙ (Q·(Kᵀ·V)), not causal.

    q is (B,H,N,D), k (B,H,M,D), v (B,H,M,E) and g (B,H,N,E), all of one type; a transposed view of
    a (B,N,H,D) tensor is as good. keep says what the forward keeps for the backward beside its
    inputs: nothing, `kv` (B,H,D,E) in float32, or `kv_qkv`, also Q·(Kᵀ·V) (B,H,N,E). Keeping takes
    memory and saves time; when no gradient is needed, nothing is kept. precision says what the
    products of both passes multiply, as in set_precision; None is the default of the process.
    """
    _checks.are_tensors(_OP, q=q, k=k, v=v, g=g)
    kept = _attention.what_to_keep(_OP, keep, (q, k, v, g))
    out, _, _ = torch.ops.attnops.flao(q, k, v, g, kept, _choices.precision(_OP, precision))
    return out


@torch.library.register_fake("attnops::flao")
def _(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, keep: int, precision: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    _choices.check(_OP, "keep", _choices.KEEPS, keep)
    _choices.check_precision(_OP, precision)
    _checks.same_device(_OP, q=q, k=k, v=v, g=g)
    _attention.check_inputs(_OP, q, k, v, g)
    return _attention.fake_results(q, v, g, keep, q.shape[3])


@torch.library.register_fake("attnops::flao_backward")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    d_out: Tensor,
    kv: Tensor | None,
    qkv: Tensor | None,
    precision: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _choices.check_precision(_OP, precision)
    _checks.same_device(_OP, q=q, k=k, v=v, g=g, d_out=d_out, kv=kv, qkv=qkv)
    _attention.check_inputs(_OP, q, k, v, g)
    return _attention.fake_gradients(_OP, q, k, v, g, d_out)


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, g, keep, ctx.precision = inputs
    ctx.save_for_backward(q, k, v, g, *_attention.setup_kept(ctx, output, keep))


def _backward(ctx, d_out: Tensor | None, *_):
    if d_out is None:
        return (None,) * 6
    _checks.no_tangents(_OP, d_out=d_out)
    q, k, v, g, kv, qkv = ctx.saved_tensors
    gradients = torch.ops.attnops.flao_backward(q, k, v, g, d_out, kv, qkv, ctx.precision)
    return *gradients, None, None


torch.library.register_autograd("attnops::flao", _backward, setup_context=_setup_context)


_checks.refuse_second_derivative(_OP, "flao_backward")
