"""tpa_decode: one decoding step of tensor product attention."""

import torch
from torch import Tensor

from attnops import _checks, _choices

_OP = "tpa_decode"


def tpa_decode(
    aq: Tensor,
    ak: Tensor,
    av: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
    scale: float | None = None,
    scale_q: float | None = None,
    scale_k: float = 1.0,
    scale_v: float = 1.0,
    split: str = "auto",
    *,
    precision: str | None = None,
) -> Tensor:
    """Attention of one query to M cached tokens, from the factors of q, k and v.

    With q[h] = scale_q·Σ_r aq[h,r]·bq[r] and s[h,m] = scale·scale_k·ak[m,h]·(q[h]·bk[m]), returns
    o[h] = scale_v·Σ_m softmax_m(s[h])[m]·av[m,h]·bv[m], of shape (B,1,H,E). aq is (B,1,H,R), bq
    (B,1,R,D), ak and av (B,M,H), bk (B,M,D) and bv (B,M,E), all of one type. A slice `cache[:, :m]`
    of a larger cache is used where it is. scale is D^-½ unless it is given, scale_q 1/R.

    split says how threads share the work, by batch (`b`), batch and heads (`bh`) or batch and
    pieces of the sequence (`bn`); the result has the same bits with each. precision says what the
    products multiply, as in set_precision. There is no gradient.
    """
    tensors = {"aq": aq, "ak": ak, "av": av, "bq": bq, "bk": bk, "bv": bv}
    _checks.are_tensors(_OP, **tensors)
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                _checks.fail(
                    _OP,
                    f"{name} requires grad, but there is no backward; "
                    "call it under torch.no_grad() or detach the tensor",
                )
    number = _choices.number(_OP, "split", _choices.SPLITS, split)
    return torch.ops.attnops.tpa_decode(
        aq,
        ak,
        av,
        bq,
        bk,
        bv,
        scale,
        scale_q,
        scale_k,
        scale_v,
        number,
        _choices.precision(_OP, precision),
    )


def _check(aq: Tensor, ak: Tensor, av: Tensor, bq: Tensor, bk: Tensor, bv: Tensor) -> None:
    """The checks of the kernel, in its order and with its texts, for tensors without data."""
    tensors = {"aq": aq, "ak": ak, "av": av, "bq": bq, "bk": bk, "bv": bv}
    axes = ("(B,1,H,R)", "(B,M,H)", "(B,M,H)", "(B,1,R,D)", "(B,M,D)", "(B,M,E)")
    for name, tensor in tensors.items():
        _checks.tensor(_OP, name, tensor)
    for (name, tensor), names in zip(tensors.items(), axes, strict=True):
        _checks.axes(_OP, name, tensor, names)
    for name in ("aq", "bq"):
        if tensors[name].shape[1] != 1:
            _checks.fail(_OP, f"{name} must have 1 token (axis 1); it has {tensors[name].shape[1]}")

    def same(name: str, axis: int, what: str, other_name: str, other_axis: int) -> None:
        _checks.same_size(
            _OP,
            name,
            tensors[name].shape[axis],
            what,
            other_name,
            tensors[other_name].shape[other_axis],
        )

    for name in ("ak", "av", "bq", "bk", "bv"):
        same(name, 0, "batches", "aq", 0)
    same("ak", 2, "heads", "aq", 2)
    same("av", 2, "heads", "aq", 2)
    same("bq", 2, "ranks", "aq", 3)
    same("bk", 2, "features", "bq", 3)
    for name in ("av", "bk", "bv"):
        same(name, 1, "tokens", "ak", 1)
    for name in ("ak", "av", "bq", "bk", "bv"):
        _checks.same_type(_OP, name, tensors[name], "aq", aq)


@torch.library.register_fake("attnops::tpa_decode")
def _(
    aq: Tensor,
    ak: Tensor,
    av: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
    scale: float | None,
    scale_q: float | None,
    scale_k: float,
    scale_v: float,
    split: int,
    precision: int | None = None,
) -> Tensor:
    _choices.check(_OP, "split", _choices.SPLITS, split)
    _choices.check_precision(_OP, precision)
    _checks.same_device(_OP, aq=aq, ak=ak, av=av, bq=bq, bk=bk, bv=bv)
    _check(aq, ak, av, bq, bk, bv)
    return aq.new_empty((aq.shape[0], 1, aq.shape[2], bv.shape[2]))
