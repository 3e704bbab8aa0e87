"""The operators in double precision, from their formulas; angles in long double."""

from dataclasses import dataclass

import numpy as np
import torch

# position · theta has at most 31 + 24 bits, so that the product below is exact.
if np.finfo(np.longdouble).nmant < 55:
    raise ImportError("the reference needs a long double with a mantissa of 56 bits or more")


@dataclass
class Expected:
    """The exact result, and for each element the magnitude that its error is relative to."""

    value: torch.Tensor
    scale: torch.Tensor


def activate(x: torch.Tensor, act: str, dim: int | None) -> torch.Tensor:
    """f(x) in double precision."""
    return apply(x.detach().double(), act, dim)


def apply(x: torch.Tensor, act: str, dim: int | None) -> torch.Tensor:
    """f(x), which can be differentiated."""
    if act == "none":
        return x
    if act == "relu":
        return torch.relu(x)
    if act == "sigmoid":
        return torch.sigmoid(x)
    if act == "silu":
        return x * torch.sigmoid(x)
    if act == "softmax":
        assert dim is not None
        return torch.softmax(x, dim)
    raise ValueError(act)


def cos_sin(x: torch.Tensor, theta: torch.Tensor, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos a and sin a with a = (offset+t)·θ[h,j], broadcastable to the pairs of x."""
    pairs = x.shape[-1] // 2
    heads, features = theta.shape
    frequency = np.zeros((heads, pairs), dtype=np.longdouble)
    frequency[:, : pairs if features == 1 else features] = theta.detach().double().numpy()
    position = np.arange(offset, offset + x.shape[1], dtype=np.int64).astype(np.longdouble)
    angle = position[:, None, None] * frequency
    if x.dim() == 3:
        angle = angle[:, 0]
    cos, sin = (torch.from_numpy(f(angle).astype(np.float64)) for f in (np.cos, np.sin))
    return cos, sin


def rotate(y: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Each pair (j, j+D/2) turned by its angle."""
    first, second = y.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def pair_length(y: torch.Tensor) -> torch.Tensor:
    """√(y_j² + y_{j+D/2}²), at both elements of the pair."""
    length = torch.hypot(*y.chunk(2, dim=-1))
    return torch.cat([length, length], dim=-1)


def lrpe_rotate(
    x: torch.Tensor, theta: torch.Tensor, offset: int = 0, act: str = "none", dim: int | None = None
) -> Expected:
    """The forward."""
    y = activate(x, act, dim)
    return Expected(rotate(y, *cos_sin(x, theta, offset)), pair_length(y))


def activate_backward(
    x: torch.Tensor, dy: torch.Tensor, scale: torch.Tensor, act: str, dim: int | None
) -> Expected:
    """dx for a dy whose error is relative to `scale`; the terms of f' count before they cancel."""
    x = x.detach().double()
    s = torch.sigmoid(x)
    if act == "none":
        return Expected(dy, scale)
    if act == "relu":
        return Expected(dy.masked_fill(x <= 0, 0), scale.masked_fill(x <= 0, 0))
    if act == "sigmoid":
        return Expected(dy * s * (1 - s), scale * s)
    if act == "silu":
        return Expected(dy * s * (1 + x * (1 - s)), scale * s * (1 + x.abs()))
    p = activate(x, act, dim)
    return Expected(
        p * (dy - (p * dy).sum(dim, keepdim=True)),
        p * (scale + (p * scale).sum(dim, keepdim=True)),
    )


def lrpe_rotate_backward(
    x: torch.Tensor,
    theta: torch.Tensor,
    d_out: torch.Tensor,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
) -> Expected:
    """dx. Its scale is the pair's length times the terms of f'."""
    cos, sin = cos_sin(x, theta, offset)
    d_out = d_out.detach().double()
    return activate_backward(x, rotate(d_out, cos, -sin), pair_length(d_out), act, dim)


def grid_cos_sin(
    x: torch.Tensor, theta: torch.Tensor, shape: tuple[int, ...], l: int, offset: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos a and sin a (H or 1, L, D) with a = s_j·θ[h, c mod E], 1 and 0 for the first l tokens."""
    tokens, features = x.shape[2:]
    heads, angles = theta.shape
    frequency = theta.detach().double().numpy().astype(np.longdouble)
    angle = np.zeros((heads, tokens, features), dtype=np.longdouble)
    index = np.indices(shape).reshape(len(shape), -1)
    for c in range(features):
        position = (index[c // angles] + offset).astype(np.longdouble)
        angle[:, l:, c] = position * frequency[:, c % angles, None]
    cos, sin = (torch.from_numpy(f(angle).astype(np.float64)) for f in (np.cos, np.sin))
    return cos, sin


def md_lrpe_cosine(
    x: torch.Tensor,
    theta: torch.Tensor,
    shape: tuple[int, ...],
    l: int = 0,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
) -> Expected:
    """The forward. An error in cos or sin counts relative to y."""
    cos, sin = grid_cos_sin(x, theta, shape, l, offset)
    y = activate(x, act, dim)
    return Expected(torch.cat([y * cos, y * sin], dim=-1), torch.cat([y.abs(), y.abs()], dim=-1))


def md_lrpe_cosine_backward(
    x: torch.Tensor,
    theta: torch.Tensor,
    d_out: torch.Tensor,
    shape: tuple[int, ...],
    l: int = 0,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
) -> Expected:
    """dx. Its scale is the length of (do₁, do₂), do₁ for the first l tokens, through f'."""
    cos, sin = grid_cos_sin(x, theta, shape, l, offset)
    first, second = d_out.detach().double().chunk(2, dim=-1)
    length = torch.hypot(first, second)
    length[:, :, :l] = first[:, :, :l].abs()
    return activate_backward(x, first * cos + second * sin, length, act, dim)


def flao(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> Expected:
    """G ⊙ (Q·(Kᵀ·V)). The scale is the same with all absolute values."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return g * (q @ (k.mT @ v))

    args = [t.detach().double() for t in (q, k, v, g)]
    return Expected(run(*args), run(*(t.abs() for t in args)))


def flao_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, d_out: torch.Tensor
) -> list[Expected]:
    """dq, dk, dv and dg."""

    def run(q, k, v, g, d_out) -> list[torch.Tensor]:
        kv, d_qkv = k.mT @ v, d_out * g
        d_kv = q.mT @ d_qkv
        return [d_qkv @ kv.mT, v @ d_kv.mT, k @ d_kv, d_out * (q @ kv)]

    args = [t.detach().double() for t in (q, k, v, g, d_out)]
    scales = run(*(t.abs() for t in args))
    return [Expected(*pair) for pair in zip(run(*args), scales, strict=True)]


@dataclass
class Stage:
    """What flao_fal does with one of its tensors: the activation, then an encoding, if any."""

    act: str = "none"
    dim: int | None = None
    lrpe: str = "none"
    theta: torch.Tensor | None = None
    shape: tuple[int, ...] | None = None
    offset: int = 0
    l: int = 0

    def cos_sin(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(H or 1, N, D), of the pairs (H or 1, N, D/2); 1 and 0 without a position."""
        shape = (x.shape[2] - self.l,) if self.shape is None else self.shape
        theta = self.theta.detach().double()
        if self.lrpe == "cosine":
            return grid_cos_sin(x, theta, shape, self.l, self.offset)
        first = x[..., : x.shape[-1] // 2]
        if len(shape) == 1:
            # One angle for all pairs, or none for those behind the last.
            pairs, (heads, angles) = first.shape[-1], theta.shape
            theta = torch.cat([theta, torch.zeros(heads, max(pairs - angles, 0))], 1)
            theta = theta[:, :1].expand(heads, pairs) if angles == 1 else theta
        return grid_cos_sin(first, theta, shape, self.l, self.offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The prepared tensor, which can be differentiated."""
        y = apply(x, self.act, self.dim)
        if self.lrpe == "none":
            return y
        cos, sin = self.cos_sin(x)
        if self.lrpe == "cosine":
            return torch.cat([y * cos, y * sin], -1)
        return rotate(y, cos, sin)

    def magnitude(self, x: torch.Tensor) -> torch.Tensor:
        """What the error of the prepared tensor is relative to."""
        y = activate(x, self.act, self.dim)
        if self.lrpe == "cosine":
            return torch.cat([y.abs(), y.abs()], -1)
        return pair_length(y) if self.lrpe == "rotate" else y.abs()

    def backward_scale(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """What the error of dx is relative to, from that of the prepared tensor's gradient."""
        if self.lrpe == "cosine":
            scale = torch.hypot(*scale.chunk(2, -1))
        elif self.lrpe == "rotate":
            scale = pair_length(scale)
        return activate_backward(x, scale, scale, self.act, self.dim).scale


def flao_fal(args: tuple[torch.Tensor, ...], stages: tuple[Stage, ...]) -> Expected:
    """flao of q, k, v and g behind their stages."""
    ready = [s.forward(x.detach().double()) for x, s in zip(args, stages, strict=True)]
    scales = [s.magnitude(x) for x, s in zip(args, stages, strict=True)]
    return Expected(flao(*ready).value, flao(*scales).value)


def flao_fal_backward(
    args: tuple[torch.Tensor, ...], stages: tuple[Stage, ...], d_out: torch.Tensor
) -> list[Expected]:
    """dq, dk, dv and dg by autograd, in double precision."""
    leaves = [x.detach().double().requires_grad_() for x in args]
    q, k, v, g = (s.forward(x) for x, s in zip(leaves, stages, strict=True))
    out = g * (q @ (k.mT @ v))
    gradients = torch.autograd.grad(out, leaves, d_out.detach().double())
    magnitudes = [s.magnitude(x) for x, s in zip(args, stages, strict=True)]
    scales = flao_backward(*magnitudes, d_out.detach().double().abs())
    return [
        Expected(gradient, stage.backward_scale(x, scale.value))
        for x, stage, gradient, scale in zip(args, stages, gradients, scales, strict=True)
    ]


def tpa_decode(
    aq: torch.Tensor,
    ak: torch.Tensor,
    av: torch.Tensor,
    bq: torch.Tensor,
    bk: torch.Tensor,
    bv: torch.Tensor,
    scale: float | None = None,
    scale_q: float | None = None,
    scale_k: float = 1.0,
    scale_v: float = 1.0,
) -> Expected:
    """Attention to the cache. The scale is the whole error of float32 arithmetic.

    A score is off by δ = sums(R, D) of the magnitudes of its terms, exp(s−max) also by the rounding
    of its argument and exp's own error, and the softmax by the mean of these errors besides.
    """
    from tolerances import ARITHMETIC, sums  # which imports this module

    aq, ak, av, bq, bk, bv = (t.detach().double() for t in (aq, ak, av, bq, bk, bv))
    rank, features, tokens = aq.shape[3], bk.shape[2], bk.shape[1]
    scale = features**-0.5 if scale is None else scale
    scale_q = 1 / rank if scale_q is None else scale_q
    if tokens == 0:
        zeros = torch.zeros(*aq.shape[:3], bv.shape[2], dtype=torch.float64)
        return Expected(zeros, zeros)

    def scores(aq, ak, bq, bk) -> torch.Tensor:
        return scale * scale_k * scale_q * (aq[:, 0] @ bq[:, 0]) @ bk.mT * ak.mT

    s = scores(aq, ak, bq, bk)
    p = torch.softmax(s, -1)
    terms = scores(aq.abs(), ak.abs(), bq.abs(), bk.abs()).abs()
    spread = s.amax(-1, keepdim=True) - s
    error = sums(rank, features) * terms + ARITHMETIC["softmax"] * (1 + spread / 16)
    weights = abs(scale_v) * p * av.mT.abs()
    total = weights @ bv.abs()
    mean = (p * error).sum(-1, keepdim=True)
    off = (weights * error) @ bv.abs() + (mean + 2 * sums(tokens)) * total
    return Expected((scale_v * (p * av.mT) @ bv).unsqueeze(1), off.unsqueeze(1))
