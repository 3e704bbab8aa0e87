"""How far a result may be from the double-precision reference: the one table for the Python tests.

A result is computed in float32 and rounded once when it is stored. So an element is off by at most

    arithmetic · scale                 float32 arithmetic, counted in units of its roundoff 2⁻²⁴
    + roundoff(type) · |value|         the one rounding, to nearest
    + half the smallest subnormal      the same where the type's precision ends

`scale` comes with the reference: the length of the rotated pair, through the activation, or the sum
of the magnitudes of all terms.
"""

import torch

from reference import Expected

ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SMALLEST_SUBNORMAL = {torch.float32: 2.0**-149, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}

# 16 units are within the promised 1e-6. The others add an exp and a quotient; softmax also the
# rounding of x − max, which grows with the spread of x, and that of the sum.
ARITHMETIC = {
    "none": 16 * ROUNDOFF[torch.float32],
    "relu": 16 * ROUNDOFF[torch.float32],
    "sigmoid": 32 * ROUNDOFF[torch.float32],
    "silu": 32 * ROUNDOFF[torch.float32],
    "softmax": 64 * ROUNDOFF[torch.float32],
}
SMALLEST_NORMAL_FLOAT32 = 2.0**-126


def sums(*terms: int) -> float:
    """Sums of so many terms, one of the other, relative to the sums of their magnitudes.

    Rounding errors are as good as random: 2·√n units are six times what is expected.
    """
    return (4 + sum(2 * n**0.5 for n in terms)) * ROUNDOFF[torch.float32]


def bound(
    expected: Expected, dtype: torch.dtype, arithmetic: float, roundings: int = 1
) -> torch.Tensor:
    """The largest allowed error, element by element."""
    error = arithmetic * expected.scale + SMALLEST_NORMAL_FLOAT32
    roundoff = ROUNDOFF[dtype]
    return (
        error * (1 + roundoff)
        + roundings * roundoff * (1 + roundoff) * expected.value.abs()
        + SMALLEST_SUBNORMAL[dtype] / 2
    )


def assert_close(
    actual: torch.Tensor,
    expected: Expected,
    dtype: torch.dtype,
    act: str = "none",
    arithmetic: float | None = None,
    roundings: int = 1,
) -> None:
    """Fails if an element of actual, which must be of type dtype, is out of its bound or NaN.

    The arithmetic is that of the activation unless it is given.
    """
    assert actual.dtype == dtype
    assert actual.shape == expected.value.shape
    error = (actual.detach().double() - expected.value).abs()
    arithmetic = ARITHMETIC[act] if arithmetic is None else arithmetic
    share = error / bound(expected, dtype, arithmetic, roundings)
    good = share <= 1
    if not good.all():
        worst = int(share.nan_to_num(nan=float("inf")).argmax())
        raise AssertionError(
            f"{int((~good).sum())} of {good.numel()} elements are out of bounds; the worst, "
            f"number {worst}, is {actual.flatten()[worst].item()} instead of "
            f"{expected.value.flatten()[worst].item()}, {share.flatten()[worst].item():.3g} times "
            f"its bound"
        )


# The gradient of theta, relative to the sum of its terms' magnitudes: the interface's promise.
THETA_GRADIENT = 1e-5


def assert_near_double(
    actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor
) -> None:
    """A rotation of tensors of the size of `scale`: float32 arithmetic and one rounding."""
    assert actual.dtype == dtype
    largest = 2 * scale.detach().double().abs().max()
    allowed = ARITHMETIC["none"] * largest + 1.01 * ROUNDOFF[dtype] * expected.detach().abs()
    error = (actual.detach().double() - expected.detach()).abs()
    assert (error <= allowed + SMALLEST_SUBNORMAL[dtype]).all(), f"off by {error.max().item()}"


def float32_angles(positions: int, largest: float) -> float:
    """How far a rotation of values up to `largest` is off with angles that are float32 products."""
    return 2 * largest * (positions * 2 * ROUNDOFF[torch.float32] + ARITHMETIC["none"])


# How much larger the sum of the magnitudes of a result's terms may be than the largest result, for
# random inputs and gradients that go through three products.
CANCELLATION = 64
# A derivative by central differences in float64, beside a gradient computed in float32, relative to
# the sum of its terms' magnitudes.
DIFFERENCES = 1e-4
# A second derivative beside central differences of float32 gradients, relative to the sum of its
# terms' magnitudes; the step is the cube root of their roundoff.
SECOND_DIFFERENCES = {"step": 4e-3, "rtol": 1e-2}
# A float32 layer of a few matrix products, and its gradients, beside another order of its sums.
LAYER = {"rtol": 1e-4, "atol": 1e-5}
LAYER_GRADIENT = {"rtol": 1e-3, "atol": 1e-4}
# The sums of a tensor product attention layer of the tests, one of the other: a projection, ranks
# of a query and a key, features, tokens, ranks of a value, heads·features. Its gradients go back
# through all of them and add up over tokens.
TPA_LAYER_SUMS = (32, 6, 2, 16, 19, 2, 64)
TPA_LAYER = 2 * sums(*TPA_LAYER_SUMS)
TPA_LAYER_GRADIENT = 2 * sums(*TPA_LAYER_SUMS, *TPA_LAYER_SUMS, 38)


def assert_layers_close(actual: torch.Tensor, expected: torch.Tensor, error: float) -> None:
    """Two float32 layers with other orders of their sums, relative to the largest number."""
    assert actual.shape == expected.shape
    largest = expected.detach().abs().max()
    torch.testing.assert_close(actual, expected, rtol=0, atol=error * float(largest))


# A float32 rotation of values of size 1 to 10, absolute, and its gradient through an activation.
ROTATION = {"rtol": 0, "atol": 1e-5}
ROTATION_GRADIENT = {"rtol": 0, "atol": 2e-5}
# Frequencies of a rotary encoding: a float32 power and a few products, in another order.
FREQUENCIES = {"rtol": 16 * ROUNDOFF[torch.float32], "atol": 0}
# Logits of order 1 to 10 and gradients of a float32 model of two layers, with other rounding in its
# encodings.
HF_LOGITS = {"rtol": 1e-4, "atol": 1e-4}
# What the tests of the published project allow.
UPSTREAM = {
    torch.float32: {"rtol": 1e-2, "atol": 1e-2},
    torch.float16: {"rtol": 1e-2, "atol": 5e-2},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
}


def assert_same_on_ranks(
    actual: torch.Tensor,
    expected: torch.Tensor,
    whole: torch.Tensor | None = None,
    merged: bool = False,
) -> None:
    """A rank's result against that of one process, which adds the same terms in another order.

    Both were rounded when they were stored. `merged` are results of ranks that were rounded before
    they were added. `whole` is what `expected` is a shard of: a sum along the sequence has an error
    of the size of its largest terms, wherever they are.
    """
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    actual, expected = actual.detach(), expected.detach()
    if actual.numel() == 0:
        return
    roundoff = ROUNDOFF[actual.dtype]
    largest = (expected if whole is None else whole.detach()).double().abs().max()
    allowed = 4 * sums(64, 64) * largest + 2 * roundoff * expected.double().abs()
    if merged:
        allowed = allowed + 2 * roundoff * largest
    error = (actual.double() - expected.double()).abs()
    assert bool((error <= allowed).all()), f"off by {(error / allowed).max().item():.3g} bounds"
