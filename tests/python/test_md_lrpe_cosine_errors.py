"""md_lrpe_cosine and lrpe_table with bad arguments: an exception that names what is wrong."""

from functools import partial

import pytest
import torch

import attnops
import support
from support import ACT

error_of = partial(support.error_of, "md_lrpe_cosine")
table_error_of = partial(support.error_of, "lrpe_table")


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor whose values do not matter."""
    return torch.ones(shape, dtype=dtype)


X = ones(2, 3, 20, 8)
THETA = ones(3, 4)
SHAPE = (4, 5)
TABLE = ones(3, 9, 4, 2)

# The argument that must be named, and the call's arguments.
BAD_SHAPES = {
    "x with three axes": ("x", ones(3, 20, 8), THETA, SHAPE),
    "x with five axes": ("x", ones(2, 1, 3, 20, 8), THETA, SHAPE),
    "too few tokens": ("x", ones(2, 3, 19, 8), THETA, SHAPE),
    "too many tokens": ("x", ones(2, 3, 21, 8), THETA, SHAPE),
    "theta with one axis": ("theta", X, ones(4), SHAPE),
    "theta with three axes": ("theta", X, ones(1, 3, 4), SHAPE),
    "theta with too few angles": ("theta", X, ones(3, 3), SHAPE),
    "theta with too few angles in 1-d": ("theta", X, ones(3, 7), (20,)),
    "theta with too few heads": ("theta", X, ones(2, 4), SHAPE),
    "theta with too many heads": ("theta", X, ones(4, 4), SHAPE),
    "no theta": ("theta", X, None, SHAPE),
    "no axes": ("shape", X, THETA, ()),
    "nine axes": ("shape", X, THETA, (20, *(1,) * 8)),
    "a negative size": ("shape", X, THETA, (-4, -5)),
    "a huge size": ("shape", X, THETA, (2**40, 0)),
}
BAD_TABLES = {
    "with three axes": ones(9, 4, 2),
    "with five axes": ones(1, 3, 9, 4, 2),
    "without the pair": ones(3, 9, 4, 1),
    "with too few heads": ones(2, 9, 4, 2),
    "with too few positions": ones(3, 8, 4, 2),
    "with too many positions": ones(3, 20, 4, 2),
    "with too few angles": ones(3, 9, 3, 2),
    "of type bfloat16": TABLE.bfloat16(),
    "of type float64": TABLE.double(),
}
BAD_TYPES = {
    "x of type float64": ("x", X.double(), THETA),
    "x of type int64": ("x", X.long(), THETA),
    "theta of type float64": ("theta", X, THETA.double()),
    "theta of another 16-bit type": ("theta", X.bfloat16(), THETA.half()),
    "theta of less precision than x": ("theta", X, THETA.half()),
}
BAD_OPTIONS = {
    "a negative l": ("l", {"l": -1}),
    "l beyond the tokens": ("l", {"l": 21}),
    "an l that does not fit": ("l", {"l": 1}),
    "an unknown activation": ("act", {"act": "tanh"}),
    "softmax without dim": ("dim", {"act": "softmax"}),
    "dim without an activation": ("dim", {"dim": -1}),
    "dim with another activation": ("dim", {"act": "silu", "dim": -1}),
    "softmax over the batch": ("dim", {"act": "softmax", "dim": 0}),
    "softmax over the heads": ("dim", {"act": "softmax", "dim": 1}),
    "softmax over the heads from the end": ("dim", {"act": "softmax", "dim": -3}),
    "dim after the last": ("dim", {"act": "softmax", "dim": 4}),
    "dim before the first": ("dim", {"act": "softmax", "dim": -5}),
    "an offset in 2-d": ("offset", {"offset": 1}),
    "an offset too large": ("offset", {"offset": 2**40}),
    "an offset with a table": ("offset", {"offset": 1, "table": TABLE}),
}
BAD_TABLE_ARGUMENTS = {
    "theta with one axis": ("theta", ones(4), SHAPE, 8, 0),
    "theta with three axes": ("theta", ones(1, 3, 4), SHAPE, 8, 0),
    "theta with too few angles": ("theta", ones(3, 3), SHAPE, 8, 0),
    "theta of type float64": ("theta", THETA.double(), SHAPE, 8, 0),
    "no axes": ("shape", THETA, (), 8, 0),
    "nine axes": ("shape", THETA, (1,) * 9, 8, 0),
    "a negative size": ("shape", THETA, (4, -5), 8, 0),
    "a negative d": ("d", THETA, SHAPE, -1, 0),
    "an offset in 2-d": ("offset", THETA, SHAPE, 8, 1),
    "an offset too large": ("offset", THETA, (5,), 4, 2**40),
}


def meta(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor without its data."""
    return None if tensor is None else tensor.to("meta")


@pytest.mark.parametrize(("argument", "x", "theta", "shape"), BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_shapes(argument, x, theta, shape):
    """The text is the same with and without data."""
    text = error_of(lambda: attnops.md_lrpe_cosine(x, theta, shape), argument)
    assert text == error_of(lambda: attnops.md_lrpe_cosine(meta(x), meta(theta), shape), argument)


@pytest.mark.parametrize("table", BAD_TABLES.values(), ids=BAD_TABLES)
def test_tables(table):
    text = error_of(lambda: attnops.md_lrpe_cosine(X, None, SHAPE, table=table), "table")
    without_data = error_of(
        lambda: attnops.md_lrpe_cosine(meta(X), None, SHAPE, table=meta(table)), "table"
    )
    assert text == without_data


@pytest.mark.parametrize(("argument", "x", "theta"), BAD_TYPES.values(), ids=BAD_TYPES)
def test_types(argument, x, theta):
    text = error_of(lambda: attnops.md_lrpe_cosine(x, theta, SHAPE), argument)
    assert text == error_of(lambda: attnops.md_lrpe_cosine(meta(x), meta(theta), SHAPE), argument)


@pytest.mark.parametrize(("argument", "options"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options(argument, options):
    text = error_of(lambda: attnops.md_lrpe_cosine(X, THETA, SHAPE, **options), argument)
    options = options | ({"table": meta(options["table"])} if "table" in options else {})
    assert text == error_of(
        lambda: attnops.md_lrpe_cosine(meta(X), meta(THETA), SHAPE, **options), argument
    )


@pytest.mark.parametrize(
    ("argument", "theta", "shape", "d", "offset"),
    BAD_TABLE_ARGUMENTS.values(),
    ids=BAD_TABLE_ARGUMENTS,
)
def test_building_a_table(argument, theta, shape, d, offset):
    text = table_error_of(lambda: attnops.lrpe_table(theta, shape, d, offset), argument)
    without_data = table_error_of(
        lambda: attnops.lrpe_table(meta(theta), shape, d, offset), argument
    )
    assert text == without_data


def test_angles_that_require_grad():
    theta, table = THETA.clone().requires_grad_(), TABLE.clone().requires_grad_()
    error_of(lambda: attnops.md_lrpe_cosine(X, theta, SHAPE, table=TABLE), "theta")
    error_of(lambda: attnops.md_lrpe_cosine(X, None, SHAPE, table=table), "table")
    table_error_of(lambda: attnops.lrpe_table(theta, SHAPE, 8), "theta")


OUT = ones(2, 3, 20, 16)


BACKWARD = torch.ops.attnops.md_lrpe_cosine_backward
BAD_GRADIENTS = {
    "features": ones(2, 3, 20, 8),
    "odd features": ones(2, 3, 20, 15),
    "length": ones(2, 3, 19, 16),
    "axes": ones(3, 20, 16),
    "float64": OUT.double(),
}


@pytest.mark.parametrize("d_out", BAD_GRADIENTS.values(), ids=BAD_GRADIENTS)
@pytest.mark.parametrize("on", ["cpu", "meta"])
def test_gradient_that_does_not_fit(on, d_out):
    x, theta, d_out = (t.to(on) for t in (X, THETA, d_out))
    error_of(lambda: BACKWARD(x, theta, None, d_out, SHAPE, 0, 0, ACT["none"], None), "d_out")


@pytest.mark.parametrize("name", ["odd features", "length", "axes", "float64"])
@pytest.mark.parametrize("on", ["cpu", "meta"])
def test_gradient_that_does_not_fit_without_x(on, name):
    """A part of the gradient stands for x then, and may be what is named."""
    theta, d_out = THETA.to(on), BAD_GRADIENTS[name].to(on)
    error_of(
        lambda: BACKWARD(None, theta, None, d_out, SHAPE, 0, 0, ACT["none"], None), "(d_out|x)"
    )


@pytest.mark.parametrize("on", ["cpu", "meta"])
def test_gradient_of_another_type(on):
    x, theta, d_out = X.to(on), THETA.to(on), OUT.half().to(on)
    error_of(lambda: BACKWARD(x, theta, None, d_out, SHAPE, 0, 0, ACT["none"], None), "d_out")


@pytest.mark.parametrize("on", ["cpu", "meta"])
def test_backward_of_an_activation_without_x(on):
    theta, d_out = THETA.to(on), OUT.to(on)
    error_of(lambda: BACKWARD(None, theta, None, d_out, SHAPE, 0, 0, ACT["silu"], None), "x")


def test_the_next_call_works():
    error_of(lambda: attnops.md_lrpe_cosine(X, THETA, SHAPE, act="tanh"), "act")
    out = attnops.md_lrpe_cosine(X, 0 * THETA, SHAPE)
    assert torch.equal(out, torch.cat([X, 0 * X], -1))
