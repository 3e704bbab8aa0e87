"""Rotary encoding of queries and keys as a module: frequencies, scalings, positions."""

from typing import Any

import torch
from torch import Tensor

from attnops.nn._constants import KeepsFloat32
from attnops.nn.frequencies import Frequencies, Scaling
from attnops.rope import rope


class Rope(KeepsFloat32):
    """Rotates queries and keys by position times theta.

    theta is a buffer (dim/2), not in the state dict, and float32 however the model is converted.

    Parameters
    ----------
    head_dim : int
        The features of a head.
    base : float
        The standard frequencies are base^(−2j/r) of r rotated features.
    scaling : dict, optional
        As Transformers' `rope_scaling`: linear, dynamic, yarn, longrope or llama3. dynamic and
        longrope take the length of the sequence from the positions of each call.
    max_positions : int, optional
        `max_position_embeddings` of the model.
    rotary_dim : int, optional
        Only so many of the first features are rotated; all by default.
    interleaved : bool
        Pairs are neighbours (2j, 2j+1) and not halves (j, j+r/2).
    layout : {"bnhd", "bhnd"}
        Of q and k.

    Examples
    --------
    >>> import torch
    >>> from attnops.nn import Rope
    >>> rope = Rope(64, scaling={"rope_type": "linear", "factor": 4.0}).to(torch.bfloat16)
    >>> q = torch.randn(2, 16, 8, 64, dtype=torch.bfloat16)
    >>> k = torch.randn(2, 16, 2, 64, dtype=torch.bfloat16)
    >>> q, k = rope(q, k, offset=100)
    >>> rope.theta.dtype
    torch.float32
    """

    theta: Tensor
    long_theta: Tensor

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        scaling: Scaling | None = None,
        max_positions: int | None = None,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        layout: str = "bnhd",
    ) -> None:
        super().__init__()
        if layout not in ("bnhd", "bhnd"):
            raise ValueError(f"Rope: layout must be bnhd or bhnd; it is {layout!r}")
        self.head_dim = head_dim
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        if self.rotary_dim > head_dim:
            raise ValueError(
                f"Rope: rotary_dim must be at most head_dim, {head_dim}; it is {rotary_dim}"
            )
        self.interleaved = interleaved
        self.layout = layout
        self.frequencies = Frequencies(self.rotary_dim, base, scaling, max_positions)
        self._register_constants()

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> "Rope":
        """The encoding of a Transformers configuration."""
        parameters = getattr(config, "rope_parameters", None) or {}
        parameters = parameters or getattr(config, "rope_scaling", None) or {}
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        part = parameters.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1))
        given = {
            "base": getattr(config, "rope_theta", None) or 10000.0,
            "scaling": parameters,
            "max_positions": config.max_position_embeddings,
            "rotary_dim": int(head_dim * (part or 1)),
        }
        return cls(head_dim, **given | options)

    @property
    def scale(self) -> float:
        """The factor of cosines and sines."""
        return self.frequencies.scale

    def _constants(self) -> dict[str, Tensor]:
        constants = {"theta": self.frequencies.theta()}
        if self.frequencies.kind == "longrope":
            constants["long_theta"] = self.frequencies.long_theta()
        return constants

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return (
            f"head_dim={self.head_dim}, rotary_dim={self.rotary_dim}, "
            f"base={self.frequencies.base:g}, scaling={self.frequencies.kind}, "
            f"interleaved={self.interleaved}, layout={self.layout}"
        )

    def theta_of(
        self, tokens: int, positions: Tensor | None = None, offset: int | Tensor = 0
    ) -> Tensor:
        """Theta for sequences that end at the largest of these positions."""
        if not self.frequencies.grows:
            return self.theta
        length: int | Tensor
        if positions is not None:
            length = positions.max() + 1
        elif isinstance(offset, Tensor):
            length = offset.max() + tokens
        else:
            length = offset + tokens
        if self.frequencies.kind == "dynamic":
            return self.frequencies.dynamic(length).to(self.theta.device)
        original = self.frequencies.original
        if isinstance(length, Tensor):
            return torch.where(length > original, self.long_theta, self.theta)
        return self.long_theta if length > original else self.theta

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        *,
        positions: Tensor | None = None,
        offset: int | Tensor = 0,
        inplace: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Rotated q (B,N,H,D) and k (B,N,H',D), or in the module's layout.

        Parameters
        ----------
        positions : (N) or (B,N) integers, in place of offset + 0, 1, …
        offset : of the first token; an integer or (B) of them.
        inplace : write into q and k.
        """
        tokens = q.shape[1 if self.layout == "bnhd" else 2] if q.ndim == 4 else 0
        # Cosines and sines of factor 1: an integer is no input of a compiled graph.
        scale = 1 if self.scale == 1 else self.scale
        return rope(
            q,
            k,
            self.theta_of(tokens, positions, offset),
            positions=positions,
            offset=offset,
            rotary_dim=self.rotary_dim,
            interleaved=self.interleaved,
            scale=scale,
            layout=self.layout,
            inplace=inplace,
        )
