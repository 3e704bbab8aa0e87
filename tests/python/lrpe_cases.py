"""The arguments that the tests of the position encodings go through."""

import math

import torch
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def activations(sequence_axis: int) -> list[tuple[str, int | None]]:
    """All (act, dim); softmax over the features and over the sequence."""
    pointwise = [(act, None) for act in ("none", "relu", "sigmoid", "silu")]
    return [*pointwise, ("softmax", -1), ("softmax", sequence_axis)]


def ids(acts: list[tuple[str, int | None]]) -> list[str]:
    """Names of (act, dim) for pytest."""
    return [act if dim is None else f"{act}({dim})" for act, dim in acts]


# For lrpe_rotate's x (B,N,H,D) and md_lrpe_cosine's (B,H,L,D).
ACTS = activations(1)
ACT_IDS = ids(ACTS)
MD_ACTS = activations(2)
MD_ACT_IDS = ids(MD_ACTS)

# theta's (heads, features) for x with H heads and D features.
THETA_FORMS = {
    "(H,D/2)": lambda h, d: (h, d // 2),
    "(1,D/2)": lambda h, d: (1, d // 2),
    "(H,1)": lambda h, d: (h, 1),
    "(H,E)": lambda h, d: (h, d // 2 - 3),
}


# A tensor of four axes, cut from what `new` makes.
LAYOUTS = {
    "the middle axes swapped": lambda new, a, b, c, d: new(a, c, b, d).transpose(1, 2),
    "the first axes swapped": lambda new, a, b, c, d: new(b, a, c, d).transpose(0, 1),
    "every other of the second axis": lambda new, a, b, c, d: new(a, 2 * b, c, d)[:, ::2],
    "every other of the third axis": lambda new, a, b, c, d: new(a, b, 2 * c, d)[:, :, ::2],
    "part of the features": lambda new, a, b, c, d: new(a, b, c, d + 7)[..., 5:-2],
    "one of q, k and v": lambda new, a, b, c, d: new(a, b, 3, c, d)[:, :, 1],
    "features not contiguous": lambda new, a, b, c, d: new(a, b, d, c).transpose(2, 3),
    "every other feature": lambda new, a, b, c, d: new(a, b, c, 2 * d)[..., ::2],
    "one batch for all": lambda new, a, b, c, d: new(1, b, c, d).expand(a, b, c, d),
    "one for all of the second axis": lambda new, a, b, c, d: new(a, 1, c, d).expand(a, b, c, d),
    "one for all of the third axis": lambda new, a, b, c, d: new(a, b, 1, d).expand(a, b, c, d),
    "one number for all": lambda new, a, b, c, d: new(1, 1, 1, 1).expand(a, b, c, d),
}


def make_theta(heads: int, features: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Frequencies as models have them, from 1 down to 1e-4, different in each head."""
    exponent = torch.arange(features) / max(features, 1)
    return (10000.0**-exponent * (1 + 0.1 * torch.rand(heads, 1))).to(dtype)


def make_case(
    b: int = 2, n: int = 33, h: int = 3, d: int = 48, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, theta (H,D/2) and a gradient of the output."""
    shape = (b, n, h, d)
    return torch.randn(shape).to(dtype), make_theta(h, d // 2), torch.randn(shape).to(dtype)


def make_grid(
    shape: tuple[int, ...] = (4, 5),
    l: int = 3,
    b: int = 2,
    h: int = 3,
    d: int = 24,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (B,H,L,D), theta (H,⌈D/k⌉) and a gradient of the output (B,H,L,2D)."""
    tokens = l + math.prod(shape)
    x, d_out = torch.randn(b, h, tokens, d), torch.randn(b, h, tokens, 2 * d)
    return x.to(dtype), make_theta(h, math.ceil(d / len(shape))), d_out.to(dtype)


@st.composite
def strided_tensors(draw: st.DrawFn, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape whose axes are permuted, sliced or broadcast in memory."""
    axes = range(len(shape))
    order = draw(st.permutations(axes))
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in axes]
    broadcast = [draw(st.integers(0, 4)) == 0 for _ in axes]
    sizes = [1 if broadcast[i] else shape[i] * steps[i] for i in axes]
    memory = torch.randn([sizes[i] for i in order]).to(dtype)
    tensor = memory.permute([order.index(i) for i in axes])
    for i in axes:
        tensor = tensor[(slice(None),) * i + (slice(None, None, steps[i]),)]
    return tensor.expand(shape)
