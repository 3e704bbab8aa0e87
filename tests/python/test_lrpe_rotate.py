"""lrpe_rotate: values and gradients against the double-precision reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnops
import reference
from lrpe_cases import (
    ACT_IDS,
    ACTS,
    DTYPES,
    LAYOUTS,
    THETA_FORMS,
    make_case,
    make_theta,
    strided_tensors,
)
from support import assert_batches_are_independent, central_differences
from tolerances import assert_close


def check(
    x: torch.Tensor,
    theta: torch.Tensor,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
    d_out: torch.Tensor | None = None,
) -> None:
    """The forward and, through autograd, the backward; the output is contiguous."""
    x = x.detach().requires_grad_()
    out = attnops.lrpe_rotate(x, theta, offset=offset, act=act, dim=dim)
    assert out.is_contiguous()
    assert_close(out, reference.lrpe_rotate(x, theta, offset, act, dim), x.dtype, act)

    d_out = torch.randn(x.shape).to(x.dtype) if d_out is None else d_out
    (dx,) = torch.autograd.grad(out, x, d_out)
    expected = reference.lrpe_rotate_backward(x, theta, d_out, offset, act, dim)
    assert_close(dx, expected, x.dtype, act)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("theta_in_x_type", [True, False])
@pytest.mark.parametrize("form", THETA_FORMS)
@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_every_activation_type_and_theta(act, dim, form, theta_in_x_type, dtype):
    x, _, _ = make_case(dtype=dtype)
    theta = make_theta(*THETA_FORMS[form](3, 48), dtype if theta_in_x_type else torch.float32)
    check(x, theta, 7, act, dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("features", [1, 11, 24])
@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_x_with_three_axes(act, dim, features, dtype):
    check(torch.randn(2, 33, 48).to(dtype), make_theta(1, features), 7, act, dim)


@pytest.mark.parametrize(
    ("axes", "dim"), [(4, 1), (4, -3), (4, 3), (4, -1), (3, 1), (3, -2), (3, 2), (3, -1)]
)
def test_dim_counts_from_both_ends(axes, dim):
    x = torch.randn(2, 33, 3, 48) if axes == 4 else torch.randn(2, 33, 48)
    check(x, make_theta(1, 24), 0, "softmax", dim)


@pytest.mark.parametrize("d", [2, 6, 48, 130])
@pytest.mark.parametrize("h", [1, 7])
@pytest.mark.parametrize("n", [1, 33, 257])
@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_awkward_sizes(act, dim, n, h, d):
    check(torch.randn(2, n, h, d).bfloat16(), make_theta(h, d // 2), 3, act, dim)


@pytest.mark.parametrize("shape", [(0, 5, 2, 8), (2, 0, 2, 8), (2, 5, 0, 8), (0, 5, 8), (2, 0, 8)])
@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_empty(act, dim, shape):
    x = torch.randn(shape, requires_grad=True)
    out = attnops.lrpe_rotate(x, make_theta(1, 4), act=act, dim=dim)
    assert out.shape == x.shape
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 7, -3, -40, 10**6, 10**9, -(10**9), 2**31 - 64, -(2**31)])
def test_far_positions_are_as_accurate(offset, dtype):
    x, theta, _ = make_case(dtype=dtype)
    check(x, theta, offset)


@pytest.mark.parametrize("offset", [0, 10**6, 10**9])
def test_fast_frequencies(offset):
    x, _, _ = make_case()
    check(x, 32 * torch.rand(3, 24) - 16, offset)


@pytest.mark.parametrize("theta", [1e5, 1e30, -3e38])
def test_beyond_16_the_result_is_bounded(theta):
    x, _, _ = make_case()
    out = attnops.lrpe_rotate(x, torch.full((3, 24), theta), offset=10**9)
    assert out.isfinite().all()
    assert (out.abs() <= reference.pair_length(x.double()) * (1 + 1e-6)).all()


@pytest.mark.parametrize("act", ["none", "relu", "sigmoid", "silu"])
def test_nan_stays_in_its_pair(act):
    x, theta, _ = make_case(n=5)
    x[1, 3, 2, 5] = float("nan")
    out = attnops.lrpe_rotate(x, theta, offset=1, act=act)
    expected = torch.zeros_like(x, dtype=torch.bool)
    expected[1, 3, 2, [5, 5 + 24]] = True
    assert torch.equal(out.isnan(), expected)


def test_nan_spreads_over_a_softmax():
    x, theta, _ = make_case(n=5)
    x[1, 3, 2, 5] = float("nan")
    out = attnops.lrpe_rotate(x, theta, offset=1, act="softmax", dim=-1)
    expected = torch.zeros_like(x, dtype=torch.bool)
    expected[1, 3, 2] = True
    assert torch.equal(out.isnan(), expected)


def test_infinity_goes_through():
    x, theta, _ = make_case(n=5)
    x[0, 2, 1, 4] = float("inf")
    out = attnops.lrpe_rotate(x, theta, offset=1)
    expected = reference.lrpe_rotate(x, theta, 1).value
    assert torch.equal(out.isinf(), expected.isinf())
    assert torch.equal(out.sign()[out.isinf()].double(), expected.sign()[expected.isinf()])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("act", "dim"), [("none", None), ("silu", None), ("softmax", 1)])
def test_layouts_of_x_and_of_the_gradient(act, dim, layout, dtype):
    strided = LAYOUTS[layout](lambda *shape: torch.randn(shape).to(dtype), 2, 33, 3, 48)
    assert not strided.is_contiguous()
    contiguous, theta, _ = make_case(dtype=dtype)
    check(strided, theta, 7, act, dim)
    check(contiguous, theta, 7, act, dim, d_out=strided)


@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_gradient_of_a_sum(act, dim):
    x, theta, _ = make_case()
    x.requires_grad_()
    attnops.lrpe_rotate(x, theta, act=act, dim=dim).sum().backward()
    ones = torch.ones_like(x)
    expected = reference.lrpe_rotate_backward(x, theta, ones, 0, act, dim)
    assert_close(x.grad, expected, x.dtype, act)


def test_strided_theta():
    x, _, _ = make_case()
    check(x, make_theta(24, 3).t())
    check(x, make_theta(6, 48)[::2, ::2])
    check(x, make_theta(1, 24).expand(3, 24))


@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_gradient_against_finite_differences(act, dim):
    """Central differences of the double-precision forward, one element of x at a time."""
    x, theta, d_out = make_case(b=1, n=3, h=2, d=6)
    x = torch.where(x.abs() < 0.1, 0.5, x).requires_grad_()  # away from the corner of relu
    (dx,) = torch.autograd.grad(attnops.lrpe_rotate(x, theta, offset=2, act=act, dim=dim), x, d_out)

    def loss(moved: torch.Tensor) -> torch.Tensor:
        return (reference.lrpe_rotate(moved, theta, 2, act, dim).value * d_out.double()).sum()

    expected = reference.lrpe_rotate_backward(x, theta, d_out, 2, act, dim)
    expected.value = central_differences(loss, x)
    expected.scale = expected.scale + 1e-3
    assert_close(dx, expected, x.dtype, act)


@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_forward_and_backward_agree(act, dim):
    """The slope of attnops' own forward along a direction is that of its gradient."""
    x, theta, d_out = make_case(b=1, n=5, h=2, d=16)
    x = torch.where(x.abs() < 0.1, 0.5, x).requires_grad_()
    direction = torch.randn_like(x)

    def loss(x: torch.Tensor) -> torch.Tensor:
        out = attnops.lrpe_rotate(x, theta, offset=2, act=act, dim=dim)
        return (out.double() * d_out.double()).sum()

    (dx,) = torch.autograd.grad(loss(x), x)
    step = 1e-2
    with torch.no_grad():
        slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    # Truncation: step² times a third derivative below 1. Cancellation: 2⁻²⁴/step for each element.
    terms = (d_out.abs() * (direction.abs() + 1)).sum().item()
    expected = (dx.double() * direction.double()).sum().item()
    assert abs(slope.item() - expected) <= (step**2 + 16 * 2.0**-24 / step) * terms


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
@pytest.mark.usefixtures("threads_restored")
def test_same_bits_with_any_number_of_threads(act, dim, dtype):
    x, theta, d_out = make_case(b=3, n=700, h=4, d=64, dtype=dtype)
    x.requires_grad_()
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        out = attnops.lrpe_rotate(x, theta, offset=7, act=act, dim=dim)
        (dx,) = torch.autograd.grad(out, x, d_out)
        results.append((out, dx))
    for out, dx in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(dx, results[0][1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 5])
def test_a_batch_does_not_depend_on_the_others(dtype, heads):
    x = torch.randn(4, 100, heads, 70).to(dtype)
    theta = make_theta(heads, 35)
    assert_batches_are_independent(lambda x: attnops.lrpe_rotate(x, theta, offset=10**9), x, 70)


@st.composite
def calls(draw: st.DrawFn) -> tuple:
    """Arguments of `check`: x, theta, offset, act, dim, d_out."""
    dtype = draw(st.sampled_from(DTYPES))
    b, n = draw(st.integers(1, 3)), draw(st.integers(1, 40))
    h, pairs = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    has_heads = draw(st.booleans())
    shape = [b, n, h, 2 * pairs] if has_heads else [b, n, 2 * pairs]
    theta_heads = draw(st.sampled_from([1, h])) if has_heads else 1
    theta_shape = [theta_heads, draw(st.integers(1, pairs))]
    theta_dtype = draw(st.sampled_from([dtype, torch.float32]))
    theta = draw(strided_tensors(theta_shape, theta_dtype))
    act, dim = draw(st.sampled_from(ACTS))
    offset = draw(st.integers(-(2**31), 2**31 - 64))
    x, d_out = draw(strided_tensors(shape, dtype)), draw(strided_tensors(shape, dtype))
    return x, theta, offset, act, dim, d_out


@settings(max_examples=150, deadline=None, derandomize=True)
@given(calls())
def test_random_shapes_and_strides(call):
    check(*call)
