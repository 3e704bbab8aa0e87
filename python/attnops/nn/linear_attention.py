"""Causal linear attention with decay and state as a layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnops.linear_attention import linear_attention
from attnops.nn._constants import KeepsFloat32
from attnops.nn.rope import Rope

_DECAYS = ("none", "constant", "token", "feature")


class LinearAttention(KeepsFloat32):
    """Causal linear attention: the whole sequence at once, or on from a state of fixed size.

    Parameters
    ----------
    dim : int
        The features of x.
    heads : int
        Of the values.
    head_dim : int, optional
        dim/heads unless given.
    key_heads : int, optional
        Of queries and keys, a divisor of heads; as many unless given.
    decay : {"token", "feature", "constant", "none"}
        A number of each token and head, or also of each feature, computed from x; a constant of
        each head, 1 − 2^(−5−3i/(heads−1)), a buffer in float32; or nothing.
    act : {"silu", "relu", "sigmoid", "none"}
        Of queries and keys.
    gate : bool
        The result times silu of a projection of x.
    norm : bool
        An RMS norm of each head's result.
    rope : Rope, optional
        Encodes queries and keys; then forward needs the offset of a continued sequence.
    bias : bool
        Of the projections, but that of the decay, which always has one.
    precision : str, optional
        As in linear_attention.

    Examples
    --------
    A prompt, then one token from the state:

    >>> import torch
    >>> from attnops.nn import LinearAttention
    >>> layer = LinearAttention(64, 4)
    >>> x = torch.randn(2, 12, 64)
    >>> whole = layer(x)
    >>> prompt, state = layer(x[:, :11], return_state=True)
    >>> last, state = layer(x[:, 11:], state, return_state=True)
    >>> torch.allclose(whole[:, 11:], last, atol=1e-5)
    True
    """

    log_decay: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int | None = None,
        *,
        key_heads: int | None = None,
        decay: str = "token",
        act: str = "silu",
        gate: bool = False,
        norm: bool = True,
        rope: Rope | None = None,
        bias: bool = False,
        precision: str | None = None,
    ) -> None:
        super().__init__()
        key_heads = heads if key_heads is None else key_heads
        if head_dim is None and dim % heads != 0:
            raise ValueError(
                f"LinearAttention: dim must be a multiple of heads, {heads}; it is {dim}"
            )
        if key_heads < 1 or heads % key_heads != 0:
            raise ValueError(
                f"LinearAttention: key_heads must divide heads, {heads}; it is {key_heads}"
            )
        if decay not in _DECAYS:
            raise ValueError(
                f"LinearAttention: decay must be one of {', '.join(_DECAYS)}; it is {decay!r}"
            )
        if act not in ("none", "relu", "sigmoid", "silu"):
            raise ValueError(
                f"LinearAttention: act must be none, relu, sigmoid or silu; it is {act!r}"
            )
        if rope is not None and rope.layout != "bnhd":
            raise ValueError(f"LinearAttention: rope must have layout bnhd; it has {rope.layout}")
        self.heads, self.key_heads = heads, key_heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.decay, self.act, self.precision = decay, act, precision
        inner, key_inner = heads * self.head_dim, key_heads * self.head_dim
        self.q_proj = nn.Linear(dim, key_inner, bias=bias)
        self.k_proj = nn.Linear(dim, key_inner, bias=bias)
        self.v_proj = nn.Linear(dim, inner, bias=bias)
        self.decay_proj: nn.Linear | None = None
        if decay in ("token", "feature"):
            self.decay_proj = nn.Linear(dim, heads if decay == "token" else inner)
        self.gate_proj = nn.Linear(dim, inner, bias=bias) if gate else None
        self.norm = nn.RMSNorm(self.head_dim) if norm else None
        self.rope = rope
        self.out_proj = nn.Linear(inner, dim, bias=bias)
        self._register_constants()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Decays start slow: λ near 1 − e^−4."""
        if self.decay_proj is not None:
            nn.init.constant_(self.decay_proj.bias, 4.0)

    def _constants(self) -> dict[str, Tensor]:
        if self.decay != "constant":
            return {}
        exponents = 5 + 3 * torch.linspace(0, 1, self.heads, dtype=torch.float32, device="cpu")
        return {"log_decay": torch.log1p(-(2.0**-exponents))}

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return (
            f"heads={self.heads}, key_heads={self.key_heads}, head_dim={self.head_dim}, "
            f"decay={self.decay}, act={self.act}"
        )

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B,N,dim) to (B,N,dim), and the state behind the last token if it is asked for.

        Parameters
        ----------
        state : (B,heads,head_dim,head_dim) in float32, from an earlier call; None at the start.
        offset : the position of the first token, for rope.
        cu_seqlens : (S+1) ends of sequences packed in one batch, as in linear_attention; states
            are then (S,heads,head_dim,head_dim).
        """
        q = self._active(self._heads(self.q_proj(x)))
        k = self._active(self._heads(self.k_proj(x)))
        v = self._heads(self.v_proj(x))
        if self.rope is not None:
            positions = None if cu_seqlens is None else _positions(cu_seqlens, x.shape[1])
            q, k = self.rope(q, k, positions=positions, offset=offset)
        log_decay = None
        if self.decay_proj is not None:
            # In float32: a sum of many logarithms.
            log_decay = F.logsigmoid(self.decay_proj(x).float())
            if self.decay == "feature":
                log_decay = self._heads(log_decay)
        elif self.decay == "constant":
            log_decay = self.log_decay
        result = linear_attention(
            q,
            k,
            v,
            log_decay,
            initial_state=state,
            output_state=return_state,
            cu_seqlens=cu_seqlens,
            precision=self.precision,
        )
        out, last = result if isinstance(result, tuple) else (result, None)
        if self.norm is not None:
            out = self.norm(out)
        out = out.flatten(2)
        if self.gate_proj is not None:
            out = out * F.silu(self.gate_proj(x))
        out = self.out_proj(out)
        return out if last is None else (out, last)

    def _heads(self, x: Tensor) -> Tensor:
        """(B,N,H·D) as (B,N,H,D)."""
        return x.unflatten(-1, (-1, self.head_dim))

    def _active(self, x: Tensor) -> Tensor:
        if self.act == "none":
            return x
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "silu": F.silu,
            "relu": F.relu,
            "sigmoid": torch.sigmoid,
        }
        return functions[self.act](x)


def _positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Of tokens that count from the start of their sequence."""
    every = torch.arange(tokens)
    sequence = torch.searchsorted(cu_seqlens.to(torch.int64), every, right=True) - 1
    return every - cu_seqlens[sequence]
