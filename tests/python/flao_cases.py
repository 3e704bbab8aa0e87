"""What the flao tests share."""

import torch

import attnops
import reference
from tolerances import assert_close, sums

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
KEEPS = ["none", "kv", "kv_qkv"]
NAMES = ("q", "k", "v", "g")
Tensors = tuple[torch.Tensor, ...]


def make_case(
    b: int = 2,
    h: int = 3,
    n: int = 5,
    m: int = 7,
    d: int = 8,
    e: int = 6,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensors, torch.Tensor]:
    """q, k, v and g, which require grad, and a gradient of the output."""
    shapes = [(b, h, n, d), (b, h, m, d), (b, h, m, e), (b, h, n, e)]
    args = tuple(torch.randn(s).to(dtype).requires_grad_() for s in shapes)
    return args, torch.randn(b, h, n, e).to(dtype)


def check(args: Tensors, d_out: torch.Tensor, keep: str) -> None:
    """Both passes against the reference."""
    q, _, v, _ = args
    (n, d), (m, e) = q.shape[-2:], v.shape[-2:]
    out = attnops.flao(*args, keep=keep)
    assert_close(out, reference.flao(*args), q.dtype, arithmetic=sums(m, d))
    gradients = torch.autograd.grad(out, args, d_out)
    terms = [(m, e), (n, e), (n, d), (m, d)]
    kept_rounded = keep == "kv_qkv" and q.dtype == torch.bfloat16
    roundings = [1, 1, 1, 2 if kept_rounded else 1]
    expected = reference.flao_backward(*args, d_out)
    for i, gradient in enumerate(gradients):
        assert_close(
            gradient, expected[i], q.dtype, arithmetic=sums(*terms[i]), roundings=roundings[i]
        )
