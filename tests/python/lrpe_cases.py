"""The arguments that the lrpe_rotate tests go through."""

import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

# (act, dim) for x (B,N,H,D); softmax over the features and over the sequence.
ACTS = [
    ("none", None),
    ("relu", None),
    ("sigmoid", None),
    ("silu", None),
    ("softmax", -1),
    ("softmax", 1),
]
ACT_IDS = [act if dim is None else f"{act}({dim})" for act, dim in ACTS]

# theta's (heads, features) for x with H heads and D features.
THETA_FORMS = {
    "(H,D/2)": lambda h, d: (h, d // 2),
    "(1,D/2)": lambda h, d: (1, d // 2),
    "(H,1)": lambda h, d: (h, 1),
    "(H,E)": lambda h, d: (h, d // 2 - 3),
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
