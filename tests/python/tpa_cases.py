"""What the tpa_decode tests share."""

import torch

import attnops
import reference
from tolerances import assert_close

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SPLITS = ["auto", "b", "bh", "bn"]
NAMES = ("aq", "ak", "av", "bq", "bk", "bv")
Tensors = tuple[torch.Tensor, ...]


def make_case(
    b: int = 2,
    m: int = 9,
    h: int = 5,
    r: int = 3,
    d: int = 8,
    e: int = 6,
    dtype: torch.dtype = torch.float32,
) -> Tensors:
    """aq, ak, av, bq, bk and bv."""
    shapes = [(b, 1, h, r), (b, m, h), (b, m, h), (b, 1, r, d), (b, m, d), (b, m, e)]
    return tuple(torch.randn(s).to(dtype) for s in shapes)


def check(args: Tensors, **options) -> None:
    """Against the reference."""
    out = attnops.tpa_decode(*args, **options)
    options.pop("split", None)
    # The errors of all steps are in the scale.
    assert_close(out, reference.tpa_decode(*args, **options), args[0].dtype, arithmetic=1.0)
