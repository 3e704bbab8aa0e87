"""flao: linear attention with an output gate."""

import torch
from torch import Tensor

from attnops import _attention, _checks, _choices, _sharding, _transforms

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
    """G ⊙ (Q·(Kᵀ·V)), not causal: every query sees all keys.

    Parameters
    ----------
    q, k, v, g : Tensor
        (B,H,N,D), (B,H,M,D), (B,H,M,E) and (B,H,N,E), all of one type.
    keep : {"none", "kv", "kv_qkv"}
        What the forward keeps for the backward, which computes the rest again: nothing, KᵀV
        (B,H,D,E) in float32, or that and Q·(KᵀV) (B,H,N,E), in float32 if q is float16.
    precision : str, optional
        What products multiply: highest, high, medium or auto, as in set_precision.

    Returns
    -------
    Tensor
        (B,H,N,E).

    Examples
    --------
    >>> import torch, attnops
    >>> q, k, v, g = (torch.ones(1, 2, 16, 8) for _ in range(4))
    >>> attnops.flao(q, k, v, g)[0, 0, 0, 0]  # 16 keys of 8 features
    tensor(128.)
    """
    if _sharding.sharded(q, k, v, g):
        return _sharding.handler("flao")(
            q=q,
            k=k,
            v=v,
            g=g,
            keep=keep,
            precision=precision,
        )
    _checks.are_tensors(_OP, q=q, k=k, v=v, g=g)
    kept = _attention.what_to_keep(_OP, keep, (q, k, v, g))
    out, _, _ = _transforms.call(
        torch.ops.attnops.flao, q, k, v, g, kept, _choices.precision(_OP, precision)
    )
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
    gradients = _transforms.call(
        torch.ops.attnops.flao_backward, q, k, v, g, d_out, kv, qkv, ctx.precision
    )
    return *gradients, None, None


_transforms.register_autograd("flao", _backward, _setup_context)


_transforms.refuse_second_derivative(_OP, "flao_backward")
