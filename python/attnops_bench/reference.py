"""Double-precision activations and the tolerances by which a column's result is judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Half a unit in the last place relative to the value, and the smallest subnormal.
ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
SUBNORMAL = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}


@dataclass(frozen=True)
class Tolerance:
    """Allowed error: `relative` times the scale of the element, plus `absolute`."""

    relative: float
    absolute: float

    def violation(self, result: Array, expected: Array, scale: Array) -> str | None:
        """None if every element is within the tolerance, else how far the worst one is off."""
        if result.shape != expected.shape:
            return f"wrong shape: {result.shape}, expected {expected.shape}"
        allowed = self.relative * scale + self.absolute
        ratio = np.abs(result - expected) / allowed
        worst = float(ratio.max(initial=0.0))
        if not worst <= 1.0:
            return f"wrong result: off by {worst:.3g} times the tolerance"
        return None


def tolerance(dtype: str, *, roundings: int, depth: int, angle_error: float = 0.0) -> Tolerance:
    """For `roundings` to the type, float32 arithmetic over `depth` terms and inexact angles.

    One rounding is the final store. Float32 arithmetic is allowed a few ulp and a summation error
    that grows with the logarithm of the terms, as blocked sums have.
    """
    arithmetic = (16 + 4 * np.log2(max(depth, 2))) * ROUNDOFF["f32"]
    relative = roundings * ROUNDOFF[dtype] + arithmetic + angle_error
    return Tolerance(float(relative), 2 * roundings * SUBNORMAL[dtype])


def cos_sin(positions: int, theta: NDArray[np.float32]) -> tuple[Array, Array]:
    """Of the positions below `positions`, times theta: (positions, angles) each.

    The angles are exact: a position has at most 29 bits, a float32 24.
    """
    angle = np.arange(positions, dtype=np.float64)[:, None] * theta.astype(np.float64)
    return np.cos(angle), np.sin(angle)


def activation(x: Array, act: str, axis: int | None) -> Array:
    if act == "none":
        return x
    if act == "silu":
        return x / (1 + np.exp(-x))
    if act == "softmax":
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)
    raise ValueError(f"no reference for the activation {act}")


def activation_backward(
    x: Array, dy: Array, dy_scale: Array, act: str, axis: int | None
) -> tuple[Array, Array]:
    """dx, and the scale of its error for a dy whose error is relative to `dy_scale`.

    The scale has the absolute values of the terms that cancel in dx.
    """
    if act == "none":
        return dy, dy_scale
    if act == "silu":
        s = 1 / (1 + np.exp(-x))
        return dy * s * (1 + x * (1 - s)), dy_scale * s * (1 + np.abs(x) * (1 - s))
    p = activation(x, act, axis)
    dx = p * (dy - (p * dy).sum(axis=axis, keepdims=True))
    return dx, p * (dy_scale + (p * dy_scale).sum(axis=axis, keepdims=True))
