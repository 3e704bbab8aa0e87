"""What the flao_fal tests share."""

import math

import torch

import attnops
import reference
from flao_cases import Tensors
from lrpe_cases import activations, ids, make_theta
from tolerances import ARITHMETIC, assert_close, sums

ACTS = activations(2)
ACT_IDS = ids(ACTS)
NAMES = ("q", "k", "v", "g")

# The arguments of each encoding; theta is made for it.
ENCODINGS = {
    "none": {"lrpe": "none"},
    "cosine": {"lrpe": "cosine", "offset": 1_000_003},
    "cosine behind 3": {"lrpe": "cosine", "offset": -7, "l": 3},
    "cosine, 1 axis": {"lrpe": "cosine", "shape": (9,), "offset": 5, "l": 2},
    "cosine, 2 axes": {"lrpe": "cosine", "shape": (3, 4), "l": 1},
    "cosine, 3 axes": {"lrpe": "cosine", "shape": (2, 3, 2)},
    "rotate": {"lrpe": "rotate", "offset": 1_000_003},
    "rotate behind 3": {"lrpe": "rotate", "offset": -7, "l": 3},
    "rotate, 1 axis": {"lrpe": "rotate", "shape": (9,), "offset": 5, "l": 2},
    "rotate, 2 axes": {"lrpe": "rotate", "shape": (3, 4), "l": 1},
    "rotate, 3 axes": {"lrpe": "rotate", "shape": (2, 3, 2)},
}


def make_theta_for(options: dict, h: int, d: int) -> torch.Tensor | None:
    """theta (H,E) with no more angles than there must be."""
    if options["lrpe"] == "none":
        return None
    pairs = d if options["lrpe"] == "cosine" else d // 2
    return make_theta(h, math.ceil(pairs / max(len(options.get("shape") or ()), 1)))


def make_case(
    options: dict,
    b: int = 2,
    h: int = 2,
    n: int = 9,
    m: int = 11,
    d: int = 8,
    e: int = 6,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensors, torch.Tensor, dict]:
    """q, k, v and g, which require grad, a gradient of the output, and the options with a theta."""
    if options.get("shape") is not None:
        n = m = options.get("l", 0) + math.prod(options["shape"])
    shapes = [(b, h, n, d), (b, h, m, d), (b, h, m, e), (b, h, n, e)]
    args = tuple(torch.randn(s).to(dtype).requires_grad_() for s in shapes)
    options = {"theta": make_theta_for(options, h, d)} | options
    return args, torch.randn(b, h, n, e).to(dtype), options


def acts_of(*acts: tuple[str, int | None]) -> dict:
    """The arguments for activations of q, k, v and g."""
    return {
        f"{name}_{key}": value
        for name, act in zip(NAMES, acts, strict=True)
        for key, value in zip(("act", "dim"), act, strict=True)
    }


def stages_of(options: dict) -> tuple[reference.Stage, ...]:
    """The reference's stages of q, k, v and g."""
    positions = {key: options[key] for key in ("lrpe", "theta", "shape", "l") if key in options}
    encodings = {"q": positions | {"offset": options.get("offset", 0)}, "k": positions}
    return tuple(
        reference.Stage(
            options.get(f"{name}_act", "none"),
            options.get(f"{name}_dim"),
            **encodings.get(name, {}),
        )
        for name in NAMES
    )


def check(args: Tensors, d_out: torch.Tensor, options: dict, keep: str = "none") -> None:
    """Both passes against the reference."""
    q, _, v, _ = args
    (n, d), (m, e) = q.shape[-2:], v.shape[-2:]
    stages = stages_of(options)
    inner = 2 * d if options["lrpe"] == "cosine" else d
    # The errors of the prepared tensors, of which the results are products.
    prepared = sum(ARITHMETIC[stage.act] for stage in stages)
    out = attnops.flao_fal(*args, **options, keep=keep)
    assert out.is_contiguous()
    expected = reference.flao_fal(args, stages)
    assert_close(out, expected, q.dtype, arithmetic=sums(m, inner) + prepared)
    gradients = torch.autograd.grad(out, args, d_out)
    terms = [(m, e), (n, e), (n, inner), (m, inner)]
    kept_rounded = keep == "kv_qkv" and q.dtype == torch.bfloat16
    expected = reference.flao_fal_backward(args, stages, d_out)
    for i, gradient in enumerate(gradients):
        # The activation's own gradient, and for softmax the sum of its axis.
        arithmetic = sums(*terms[i]) + prepared + ARITHMETIC[stages[i].act]
        assert gradient.is_contiguous()
        if i == 3 and kept_rounded:
            # What was rounded goes through the activation's backward.
            arithmetic += 2.0**-8
        assert_close(gradient, expected[i], q.dtype, arithmetic=arithmetic)
