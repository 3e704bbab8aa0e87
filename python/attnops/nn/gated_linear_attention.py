"""Gated linear attention that is not causal, as a layer: flao_fal with its projections."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnops.flao_fal import flao_fal
from attnops.nn._constants import KeepsFloat32
from attnops.nn.frequencies import standard


class GatedLinearAttention(KeepsFloat32):
    """Every token sees all tokens: out_proj(norm(ḡ ⊙ (q̄·(k̄ᵀ·v̄)))), at a cost linear in them.

    The activations and the encoding are those of flao_fal, computed with the products.

    Parameters
    ----------
    dim : int
        The features of x.
    heads : int
    head_dim : int, optional
        dim/heads unless given.
    q_act, k_act, v_act, g_act : str
        none, relu, sigmoid, silu or softmax, which is over the features for q, v and g, and over
        the sequence for k.
    lrpe : {"cosine", "rotate", "none"}
    axes : int
        Of the grid that tokens are in; forward then needs its shape.
    base : float
        Of theta, the standard frequencies: a buffer in float32 however the model is converted.
    norm : bool
        An RMS norm of each head's result, whose size grows with the number of tokens.
    bias : bool
        Of the projections.
    keep, precision : str
        As in flao_fal.

    Examples
    --------
    >>> import torch
    >>> from attnops.nn import GatedLinearAttention
    >>> layer = GatedLinearAttention(64, 4, axes=2)
    >>> layer(torch.randn(2, 12, 64), shape=(3, 4)).shape
    torch.Size([2, 12, 64])
    """

    theta: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        *,
        q_act: str = "silu",
        k_act: str = "silu",
        v_act: str = "none",
        g_act: str = "sigmoid",
        lrpe: str = "cosine",
        axes: int = 1,
        base: float = 10000.0,
        norm: bool = True,
        bias: bool = False,
        keep: str = "none",
        precision: str | None = None,
    ) -> None:
        super().__init__()
        if head_dim is None and dim % heads != 0:
            raise ValueError(
                f"GatedLinearAttention: dim must be a multiple of heads, {heads}; it is {dim}"
            )
        if lrpe not in ("cosine", "rotate", "none"):
            raise ValueError(
                f"GatedLinearAttention: lrpe must be cosine, rotate or none; it is {lrpe!r}"
            )
        self.heads = heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.acts = {"q": q_act, "k": k_act, "v": v_act, "g": g_act}
        self.lrpe, self.axes, self.base = lrpe, axes, base
        self.keep, self.precision = keep, precision
        inner = heads * self.head_dim
        self.q_proj = nn.Linear(dim, inner, bias=bias)
        self.k_proj = nn.Linear(dim, inner, bias=bias)
        self.v_proj = nn.Linear(dim, inner, bias=bias)
        self.g_proj = nn.Linear(dim, inner, bias=bias)
        self.norm = nn.RMSNorm(self.head_dim) if norm else None
        self.out_proj = nn.Linear(inner, dim, bias=bias)
        self._register_constants()

    def _constants(self) -> dict[str, Tensor]:
        if self.lrpe == "none":
            return {}
        features = self.head_dim // 2 if self.lrpe == "rotate" else self.head_dim
        return {"theta": standard(2 * -(-features // self.axes), self.base)[None]}

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        acts = ", ".join(f"{name}_act={act}" for name, act in self.acts.items())
        return (
            f"heads={self.heads}, head_dim={self.head_dim}, {acts}, lrpe={self.lrpe}, "
            f"axes={self.axes}"
        )

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        shape: Sequence[int] | None = None,
        l: int = 0,
        offset: int = 0,
    ) -> Tensor:
        """(B,N,dim) to (B,N,dim).

        Parameters
        ----------
        context : (B,M,dim), of which keys and values are; x by default.
        shape : the grid of the tokens behind the first l.
        l : how many tokens in front carry no position.
        offset : of the positions of x, in 1-d.
        """
        context = x if context is None else context
        encoded = self.lrpe != "none"
        if encoded and self.axes != (1 if shape is None else len(shape)):
            given = "absent" if shape is None else f"{len(shape)}"
            raise ValueError(
                f"GatedLinearAttention: shape must have {self.axes} axes; it has {given}"
            )
        q, g = self._heads(self.q_proj(x)), self._heads(self.g_proj(x))
        k, v = self._heads(self.k_proj(context)), self._heads(self.v_proj(context))
        options: dict[str, Any] = {f"{name}_act": act for name, act in self.acts.items()}
        options |= {
            f"{name}_dim": (2 if name == "k" else -1) if act == "softmax" else None
            for name, act in self.acts.items()
        }
        out = flao_fal(
            q,
            k,
            v,
            g,
            **options,
            theta=self.theta if encoded else None,
            lrpe=self.lrpe,
            shape=shape,
            offset=offset,
            l=l,
            keep=self.keep,
            precision=self.precision,
        )
        if self.norm is not None:
            out = self.norm(out)
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(B,N,H·D) as (B,H,N,D), without a copy."""
        return torch.unflatten(x, -1, (self.heads, self.head_dim)).transpose(1, 2)
