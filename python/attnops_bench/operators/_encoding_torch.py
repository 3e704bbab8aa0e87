"""What the position encodings have in common in a worker: inputs, compiler and check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from attnops_bench import reference
from attnops_bench.operators._encoding import HEADS
from attnops_bench.random_inputs import DTYPES, normal
from attnops_bench.tables import SEED, Case, Checker, Column, Inputs

Forward = Callable[..., torch.Tensor]
# The result for one (batch, head) from x, theta and d_out, and the scale of its error.
Expected = Callable[[np.ndarray, np.ndarray, np.ndarray | None], tuple[np.ndarray, np.ndarray]]


def make_inputs(
    case: Case, x_shape: tuple[int, ...], out_shape: tuple[int, ...], angles: int
) -> Inputs:
    """x and d_out normal random."""
    generator = torch.Generator().manual_seed(SEED)
    dtype = DTYPES[case.dtype]
    x = normal(x_shape, dtype, generator)
    theta = (10000.0 ** (-torch.arange(angles, dtype=torch.float32) / angles)).repeat(HEADS, 1)
    if case.direction == "fwd":
        return Inputs((x, theta), (), None)
    d_out = normal(out_shape, dtype, generator)
    x.requires_grad_()
    return Inputs((x, theta), (x,), d_out)


def compiled(function: Callable, **options: object) -> Callable:
    """For one size; the options are Inductor's."""
    return torch.compile(function, dynamic=False, fullgraph=True, options=options or None)


def column_tolerance(
    case: Case, column: Column, theta: torch.Tensor, *, positions: int, depth: int, in_type: int
) -> reference.Tolerance:
    """attnops rounds once and has exact angles. The peers' angles are products in float32, and
    peers in the tensors' type round `in_type` times."""
    rounds_once = column.role != "peer" or column.name.endswith("_up")
    angle = 0.0
    if column.role != "attnops":
        angle = positions * float(theta.abs().max()) * reference.ROUNDOFF["f32"]
    return reference.tolerance(
        case.dtype, roundings=1 if rounds_once else in_type, depth=depth, angle_error=angle
    )


def make_checker(
    case: Case,
    given: Inputs,
    expected: Expected,
    rows: Callable[[torch.Tensor, int, int], torch.Tensor],
    shape: tuple[int, ...],
    allowed: Callable[[Column], reference.Tolerance],
) -> Checker:
    """Compares two of the (batch, head) slices that `rows` cuts, of a result of this shape."""
    x, theta = given.args
    picks = np.random.default_rng(SEED).choice(case.options["batch"] * HEADS, 2, replace=False)
    slices = [divmod(int(i), HEADS) for i in picks]

    def cut(tensor: torch.Tensor, b: int, h: int) -> np.ndarray:
        return rows(tensor.detach(), b, h).double().numpy()

    d_out = given.d_out
    wanted = [
        expected(cut(x, b, h), theta[h].numpy(), None if d_out is None else cut(d_out, b, h))
        for b, h in slices
    ]

    def check(column: Column, result: torch.Tensor | tuple[torch.Tensor, ...]) -> str | None:
        value = result[0] if isinstance(result, tuple) else result
        if value.dtype != x.dtype or value.shape != shape:
            return f"wrong result: {value.dtype} {tuple(value.shape)}"
        for (b, h), (want, scale) in zip(slices, wanted, strict=True):
            if problem := allowed(column).violation(cut(value, b, h), want, scale):
                return f"{problem} (batch {b}, head {h})"
        return None

    return check
