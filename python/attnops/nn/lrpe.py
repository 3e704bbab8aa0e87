"""Linearized relative position encoding of one tensor as a module."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnops import _checks
from attnops.lrpe_rotate import lrpe_rotate
from attnops.md_lrpe_cosine import md_lrpe_cosine
from attnops.nn._constants import KeepsFloat32
from attnops.nn.frequencies import Frequencies, Scaling, standard


class Lrpe(KeepsFloat32):
    """Encodes positions by cosines and sines (2D features) or by rotation (D features).

    theta is (heads,E) with per_head or learnable, else (1,E); E is D/2 for rotate and D/axes,
    rounded up, for cosine. It is float32 however the model is converted.

    Parameters
    ----------
    heads, head_dim : int
        H and D of x.
    kind : {"cosine", "rotate"}
        md_lrpe_cosine, in a grid of up to 8 axes, or lrpe_rotate.
    axes : int
        Of the grid (cosine only).
    base : float
        The standard frequencies are base^(−j/E).
    scaling, max_positions
        As in Rope, but for dynamic and longrope, which depend on the length; not with per_head.
    per_head : bool
        Each head has frequencies of its own, base^(−i/(H·E)) in the order of the heads.
    learnable : bool
        theta is a parameter (heads,E), in the state dict.
    act, dim : str, int
        The activation before the encoding, and the axis of a softmax.
    layout : {"bnhd", "bhnd"}
        Of x and the result.

    Examples
    --------
    >>> import torch
    >>> from attnops.nn import Lrpe
    >>> encode = Lrpe(8, 64, axes=2, act="silu")
    >>> encode(torch.randn(2, 12, 8, 64), shape=(3, 4)).shape
    torch.Size([2, 12, 8, 128])
    """

    theta: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        kind: str = "cosine",
        axes: int = 1,
        base: float = 10000.0,
        scaling: Scaling | None = None,
        max_positions: int | None = None,
        per_head: bool = False,
        learnable: bool = False,
        act: str = "none",
        dim: int | None = None,
        layout: str = "bnhd",
    ) -> None:
        super().__init__()
        if kind not in ("cosine", "rotate"):
            raise ValueError(f"Lrpe: kind must be cosine or rotate; it is {kind!r}")
        if layout not in ("bnhd", "bhnd"):
            raise ValueError(f"Lrpe: layout must be bnhd or bhnd; it is {layout!r}")
        if axes < 1 or (kind == "rotate" and axes != 1):
            raise ValueError(f"Lrpe: axes must be 1, or more with cosine; it is {axes} of {kind}")
        if per_head and scaling is not None:
            raise ValueError("Lrpe: scaling is not for per_head, whose frequencies differ")
        self.heads, self.head_dim = heads, head_dim
        self.kind, self.axes, self.per_head, self.learnable = kind, axes, per_head, learnable
        self.act, self.dim, self.layout = act, dim, layout
        self.angles = head_dim // 2 if kind == "rotate" else -(-head_dim // axes)
        self.frequencies = Frequencies(2 * self.angles, base, scaling, max_positions)
        if self.frequencies.grows:
            raise ValueError(
                f"Lrpe: scaling must not be {self.frequencies.kind}, which depends on the length"
            )
        if learnable:
            self._float32_parameters = ("theta",)
            self.theta = nn.Parameter(torch.empty(heads, self.angles, dtype=torch.float32))
            self.reset_parameters()
        else:
            self._register_constants()

    def reset_parameters(self) -> None:
        """A learnable theta gets the standard frequencies."""
        if self.learnable:
            with torch.no_grad():
                self.theta.copy_(self._standard().expand(self.theta.shape))

    def _standard(self) -> Tensor:
        if self.per_head:
            count = self.heads * self.angles
            return standard(2 * count, self.frequencies.base).reshape(self.heads, self.angles)
        return self.frequencies.theta()[None]

    def _constants(self) -> dict[str, Tensor]:
        return {} if self.learnable else {"theta": self._standard()}

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return (
            f"heads={self.heads}, head_dim={self.head_dim}, kind={self.kind}, axes={self.axes}, "
            f"base={self.frequencies.base:g}, scaling={self.frequencies.kind}, act={self.act}, "
            f"layout={self.layout}"
        )

    def forward(
        self, x: Tensor, *, shape: Sequence[int] | None = None, l: int = 0, offset: int = 0
    ) -> Tensor:
        """Encoded x (B,N,H,D) or (B,H,N,D), as the layout says.

        Parameters
        ----------
        shape : the grid, n₁·…·n_k tokens behind the first l; (N − l) by default.
        l : how many tokens in front carry no position (cosine only).
        offset : of the positions, in 1-d.
        """
        _checks.are_tensors("Lrpe", x=x)
        scale = self.frequencies.scale
        if self.kind == "rotate":
            if shape is not None or l != 0:
                raise ValueError("Lrpe: shape and l are for kind cosine; kind is rotate")
            return lrpe_rotate(
                x,
                self.theta,
                offset,
                self.act,
                self.dim,
                scale=1 if scale == 1 else scale,
                layout=self.layout,
            )
        tokens_first = self.layout == "bnhd"
        rows = x.transpose(1, 2) if tokens_first else x
        dim = self.dim
        if tokens_first and dim is not None and dim % 4 in (1, 2):
            dim = 3 - dim % 4  # of the transposed tensor
        grid = (rows.shape[2] - l,) if shape is None else tuple(shape)
        if len(grid) != self.axes:
            raise ValueError(f"Lrpe: shape must have {self.axes} axes; it has {len(grid)}")
        out = md_lrpe_cosine(rows, self.theta, grid, l, offset, self.act, dim)
        out = out if scale == 1 else out * scale
        return out.transpose(1, 2) if tokens_first else out
