"""The attention layer of the published tensor product attention models."""

import torch
from torch import Tensor, nn

from attnops.lrpe_rotate import lrpe_rotate
from attnops.nn._constants import KeepsFloat32
from attnops.nn.tpa_cache import TPACache
from attnops.tpa import tpa


class _Projections(nn.Module):
    """The projections of the factors, with the published names."""

    def __init__(
        self, dim: int, heads: int, head_dim: int, ranks: dict[str, int], full_q: bool
    ) -> None:
        super().__init__()
        for name, rank in ranks.items():
            if name == "q" and full_q:
                self.W_q = nn.Linear(dim, heads * head_dim, bias=False)
                continue
            setattr(self, f"W_A_{name}", nn.Linear(dim, heads * rank, bias=False))
            setattr(self, f"W_B_{name}", nn.Linear(dim, rank * head_dim, bias=False))


class TensorProductAttention(KeepsFloat32):
    """Causal self-attention whose queries, keys and values are sums of tensor products.

    x is (B,N,dim); the projections have the published names, so that their weights load:
    `c_qkv.W_A_q`, `.W_A_k`, `.W_A_v` (dim → heads·rank), `c_qkv.W_B_q`, `.W_B_k`, `.W_B_v`
    (dim → rank·head_dim) and `c_proj`; with full_q `c_qkv.W_q` (dim → heads·head_dim) in place of
    the two of q. The rows of B_q and B_k are rotated in halves by minus their position times
    base^(-2j/head_dim), as the published training code does. sigmoid is applied to the A factors,
    head_norm is an RMS norm of each head's output with the weight `subln.weight`.

    `layer(x)` is the whole sequence. `layer(x, cache=cache)` appends x to the cache, a TPACache
    made by `make_cache`, and attends to all its tokens: a prompt first, then one token at a time.
    `sequences` are those of the cache that x belongs to, all of them by default.

    Parameters
    ----------
    dim : int
        The features of x.
    heads, head_dim : int
    q_rank, k_rank, v_rank : int
    full_q : bool
        Queries are not factored.
    sigmoid : bool
        Of the A factors.
    head_norm : bool
        An RMS norm of each head's output.
    base : float
        Of theta, a buffer in float32 however the model is converted.

    Examples
    --------
    >>> import torch
    >>> from attnops.nn import TensorProductAttention
    >>> layer = TensorProductAttention(64, heads=4, head_dim=16)
    >>> cache = layer.make_cache(sequences=2, capacity=32)
    >>> sequences = cache.join(2)
    >>> with torch.no_grad():
    ...     prompt = layer(torch.randn(2, 8, 64), cache=cache)
    ...     token = layer(torch.randn(2, 1, 64), cache=cache)
    >>> token.shape
    torch.Size([2, 1, 64])
    """

    theta: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int = 64,
        q_rank: int = 6,
        k_rank: int = 2,
        v_rank: int = 2,
        *,
        full_q: bool = False,
        sigmoid: bool = False,
        head_norm: bool = False,
        base: float = 10000.0,
    ) -> None:
        super().__init__()
        if head_dim % 2 != 0:
            raise ValueError(f"TensorProductAttention: head_dim must be even; it is {head_dim}")
        self.heads, self.head_dim = heads, head_dim
        self.q_rank, self.k_rank, self.v_rank = q_rank, k_rank, v_rank
        self.full_q, self.sigmoid = full_q, sigmoid
        ranks = {"q": q_rank, "k": k_rank, "v": v_rank}
        self.c_qkv = _Projections(dim, heads, head_dim, ranks, full_q)
        self.c_proj = nn.Linear(heads * head_dim, dim, bias=False)
        self.subln = nn.RMSNorm(head_dim, eps=1e-5) if head_norm else None
        self.base = base
        self._register_constants()

    def _constants(self) -> dict[str, Tensor]:
        exponents = -2 * torch.arange(self.head_dim // 2, dtype=torch.float64) / self.head_dim
        # Minus: the published code has the transpose of the usual rotation.
        return {"theta": -(self.base**exponents).float().unsqueeze(0)}

    def make_cache(self, sequences: int, capacity: int, **options) -> TPACache:
        """A cache for this layer; options are those of TPACache, dtype that of the weights."""
        options.setdefault("dtype", self.c_proj.weight.dtype)
        return TPACache(
            sequences,
            capacity,
            self.heads,
            self.head_dim,
            self.k_rank,
            self.v_rank,
            theta=self.theta,
            **options,
        )

    def _a(self, name: str, x: Tensor, rank: int) -> Tensor:
        a = getattr(self.c_qkv, f"W_A_{name}")(x).unflatten(-1, (self.heads, rank))
        return torch.sigmoid(a) if self.sigmoid else a

    def _b(self, name: str, x: Tensor, rank: int) -> Tensor:
        return getattr(self.c_qkv, f"W_B_{name}")(x).unflatten(-1, (rank, self.head_dim))

    def _rotated(self, b: Tensor, positions: list[int]) -> Tensor:
        """Rotates the rows of a batch, whose sequences start at these positions."""
        if len(set(positions)) <= 1:
            return lrpe_rotate(b, self.theta, offset=positions[0] if positions else 0)
        rows = [
            lrpe_rotate(row, self.theta, offset=p)
            for row, p in zip(b.split(1), positions, strict=True)
        ]
        return torch.cat(rows)

    def forward(
        self,
        x: Tensor,
        cache: TPACache | None = None,
        sequences: list[int] | None = None,
    ) -> Tensor:
        """(B,N,dim) to (B,N,dim)."""
        ak, bk = self._a("k", x, self.k_rank), self._b("k", x, self.k_rank)
        av, bv = self._a("v", x, self.v_rank), self._b("v", x, self.v_rank)
        if cache is None:
            positions = [0] * x.shape[0]
        else:
            chosen = cache.sequences if sequences is None else list(sequences)
            positions = [cache.length(i) for i in chosen]
            with torch.no_grad():
                cache.append(ak.detach(), av.detach(), bk.detach(), bv.detach(), chosen)
        if self.full_q:
            aq = bq = None
            q = self.c_qkv.W_q(x).unflatten(-1, (self.heads, self.head_dim))
            q = self._rotated(q, positions)
        else:
            q = None
            aq = self._a("q", x, self.q_rank)
            bq = self._rotated(self._b("q", x, self.q_rank), positions)
        if cache is None:
            out = tpa(aq, ak, av, bq, self._rotated(bk, positions), bv, q=q)
        elif x.shape[1] == 1:
            decoded = cache.decode(aq, bq, q=q, sequences=chosen)
            out = decoded[0] if isinstance(decoded, tuple) else decoded
        else:
            out = self._prefill(cache, chosen, aq, bq, q)
        if self.subln is not None:
            out = self.subln(out)
        return self.c_proj(out.flatten(2))

    def _prefill(
        self,
        cache: TPACache,
        chosen: list[int],
        aq: Tensor | None,
        bq: Tensor | None,
        q: Tensor | None,
    ) -> Tensor:
        """Many queries of each sequence: from its factors, gathered, one after the other."""
        outs = []
        for b, sequence in enumerate(chosen):
            one = [None if t is None else t[b : b + 1] for t in (aq, bq, q)]
            ak, av, bk, bv = cache.gather(sequence, next(t for t in (aq, q) if t is not None).dtype)
            outs.append(tpa(one[0], ak, av, one[1], bk, bv, q=one[2]))
        return torch.cat(outs)
