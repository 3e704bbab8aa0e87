"""lrpe_rotate with bad arguments: an exception that names the operator and the argument."""

from functools import partial

import pytest
import torch

import attnops
import support

error_of = partial(support.error_of, "lrpe_rotate")


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor whose values do not matter."""
    return torch.ones(shape, dtype=dtype)


X = ones(2, 5, 3, 8)
THETA = ones(3, 4)

# The argument that must be named, and the call's arguments.
BAD_SHAPES = {
    "x with two axes": ("x", ones(5, 8), ones(1, 4)),
    "x with five axes": ("x", ones(2, 5, 3, 2, 8), THETA),
    "an odd number of features": ("x", ones(2, 5, 3, 7), ones(3, 3)),
    "theta with one axis": ("theta", X, ones(4)),
    "theta with three axes": ("theta", X, ones(1, 3, 4)),
    "theta with too many features": ("theta", X, ones(3, 5)),
    "theta with too few heads": ("theta", X, ones(2, 4)),
    "theta with too many heads": ("theta", X, ones(4, 4)),
    "theta with heads for x without": ("theta", ones(2, 5, 8), ones(2, 4)),
}
BAD_TYPES = {
    "x of type float64": ("x", X.double(), THETA),
    "x of type int64": ("x", X.long(), THETA),
    "theta of type float64": ("theta", X, THETA.double()),
    "theta of type int64": ("theta", X, THETA.long()),
    "theta of another 16-bit type": ("theta", X.bfloat16(), THETA.half()),
    "theta of less precision than x": ("theta", X, THETA.half()),
}
BAD_OPTIONS = {
    "an unknown activation": ("act", {"act": "tanh"}),
    "an activation in capitals": ("act", {"act": "SiLU"}),
    "softmax without dim": ("dim", {"act": "softmax"}),
    "dim without an activation": ("dim", {"dim": -1}),
    "dim with another activation": ("dim", {"act": "silu", "dim": -1}),
    "softmax over the batch": ("dim", {"act": "softmax", "dim": 0}),
    "softmax over the batch from the end": ("dim", {"act": "softmax", "dim": -4}),
    "softmax over the heads": ("dim", {"act": "softmax", "dim": 2}),
    "softmax over the heads from the end": ("dim", {"act": "softmax", "dim": -2}),
    "dim after the last": ("dim", {"act": "softmax", "dim": 4}),
    "dim before the first": ("dim", {"act": "softmax", "dim": -5}),
    "an offset too large": ("offset", {"offset": 2**40}),
    "an offset too small": ("offset", {"offset": -(2**40)}),
}


@pytest.mark.parametrize(("argument", "x", "theta"), BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_shapes(argument, x, theta):
    """The text is the same with and without data."""
    text = error_of(lambda: attnops.lrpe_rotate(x, theta), argument)
    meta = error_of(lambda: attnops.lrpe_rotate(x.to("meta"), theta.to("meta")), argument)
    assert text == meta


@pytest.mark.parametrize(("argument", "x", "theta"), BAD_TYPES.values(), ids=BAD_TYPES)
def test_types(argument, x, theta):
    text = error_of(lambda: attnops.lrpe_rotate(x, theta), argument)
    meta = error_of(lambda: attnops.lrpe_rotate(x.to("meta"), theta.to("meta")), argument)
    assert text == meta


@pytest.mark.parametrize(("argument", "options"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options(argument, options):
    error_of(lambda: attnops.lrpe_rotate(X, THETA, **options), argument)


@pytest.mark.parametrize("dim", [0, -3, 3, -4])
def test_dim_of_x_with_three_axes(dim):
    error_of(lambda: attnops.lrpe_rotate(ones(2, 5, 8), ones(1, 4), act="softmax", dim=dim), "dim")


@pytest.mark.parametrize(
    "d_out",
    [ones(2, 5, 3, 6), ones(2, 4, 3, 8), ones(5, 3, 8), X.bfloat16(), X.double()],
    ids=["features", "length", "axes", "bfloat16", "float64"],
)
def test_gradient_that_does_not_fit(d_out):
    backward = torch.ops.attnops.lrpe_rotate_backward
    error_of(lambda: backward(X, THETA, d_out, 0, support.ACT["none"], None), "d_out")


def test_the_next_call_works():
    error_of(lambda: attnops.lrpe_rotate(X, THETA, act="tanh"), "act")
    assert torch.equal(attnops.lrpe_rotate(X, 0 * THETA), X)
