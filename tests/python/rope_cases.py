"""Rotary encoding from its formula, in double precision and differentiable; forms of its calls."""

import torch


def theta_of(pairs: int, base: float = 10000.0) -> torch.Tensor:
    """Frequencies as models have them."""
    return base ** (-torch.arange(pairs, dtype=torch.float32) / max(pairs, 1))


def streams_of(pairs: int, sections, sections_interleaved: bool) -> list[int]:
    """The stream of positions of each pair."""
    if not sections:
        return [0] * pairs
    k = len(sections)
    if sections_interleaved:
        return [j % k if j < k * sections[j % k] else 0 for j in range(pairs)]
    return [i for i, size in enumerate(sections) for _ in range(size)]


def rotate(
    x: torch.Tensor,
    theta: torch.Tensor,
    positions: torch.Tensor,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    sections=None,
    sections_interleaved: bool = False,
    scale: float = 1.0,
) -> torch.Tensor:
    """x (B,N,H,D) and theta (H or 1, E) in double precision; positions (k or 1, B, N)."""
    rotated = x.shape[-1] if rotary_dim is None else rotary_dim
    pairs = rotated // 2
    streams = streams_of(pairs, sections, sections_interleaved)
    position = positions[streams].permute(1, 2, 0).double()  # (B, N, pairs)
    frequency = theta.expand(-1, pairs) if theta.shape[1] == 1 else theta
    frequency = torch.nn.functional.pad(frequency, (0, pairs - frequency.shape[1]))
    angle = position[:, :, None, :] * frequency
    turns = torch.arange(pairs) < theta.shape[1] if theta.shape[1] > 1 else torch.ones(pairs) > 0
    factor = torch.where(turns, scale, 1.0)  # pairs without an angle pass as they are
    cos, sin = angle.cos() * factor, angle.sin() * factor
    turned, passed = x[..., :rotated], x[..., rotated:]
    if interleaved:
        u, v = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([u * cos - v * sin, u * sin + v * cos], -1).flatten(-2)
    else:
        u, v = turned.chunk(2, -1)
        turned = torch.cat([u * cos - v * sin, u * sin + v * cos], -1)
    return torch.cat([turned, passed], -1)


B, N, H, K, D = 3, 21, 4, 2, 24

# The arguments of a call that say positions, and the (streams, B, N) that they mean.
_LINE = torch.arange(N)
_PACKED = torch.cat([torch.arange(9), torch.arange(N - 9)])
_OFFSETS = torch.tensor([0, -5, 40])
POSITIONS = {
    "none": ({}, _LINE.expand(1, B, N)),
    "offset": ({"offset": 37}, (_LINE + 37).expand(1, B, N)),
    "offset of each batch": (
        {"offset": _OFFSETS},
        (_OFFSETS[:, None] + _LINE)[None],
    ),
    "of tokens": ({"positions": _PACKED}, _PACKED.expand(1, B, N)),
    "of batches": (
        {"positions": (_OFFSETS[:, None] + _LINE).int()},
        (_OFFSETS[:, None] + _LINE)[None],
    ),
    "expanded": ({"positions": _LINE[None].expand(B, N)}, _LINE.expand(1, B, N)),
}
PAIRS = {
    "halves": {},
    "neighbours": {"interleaved": True},
    "some halves": {"rotary_dim": 16},
    "some neighbours": {"rotary_dim": 10, "interleaved": True},
    "scaled": {"scale": 1.25},
}


def sections_of(rotary_dim: int) -> tuple[int, int, int]:
    """Sections as vision models have them: time, height, width."""
    pairs = rotary_dim // 2
    return (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3)
