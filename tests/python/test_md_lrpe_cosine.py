"""md_lrpe_cosine: values and gradients against the double-precision reference."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnops
import reference
from lrpe_cases import (
    DTYPES,
    LAYOUTS,
    MD_ACT_IDS,
    MD_ACTS,
    make_grid,
    make_theta,
    strided_tensors,
)
from support import assert_batches_are_independent, central_differences
from tolerances import assert_close

# (shape, l): 1-d to 4-d, with and without tokens in front.
GRIDS = [
    ((17,), 0),
    ((17,), 5),
    ((4, 5), 0),
    ((4, 5), 3),
    ((3, 2, 4), 0),
    ((3, 2, 4), 10),
    ((2, 3, 1, 4), 1),
]


def check(
    x: torch.Tensor,
    theta: torch.Tensor,
    shape: tuple[int, ...],
    l: int = 0,
    offset: int = 0,
    act: str = "none",
    dim: int | None = None,
    d_out: torch.Tensor | None = None,
) -> None:
    """The forward and, through autograd, the backward, with theta and with a table."""
    x = x.detach().requires_grad_()
    if d_out is None:
        d_out = torch.randn(*x.shape[:-1], 2 * x.shape[-1]).to(x.dtype)
    expected = reference.md_lrpe_cosine(x, theta, shape, l, offset, act, dim)
    expected_dx = reference.md_lrpe_cosine_backward(x, theta, d_out, shape, l, offset, act, dim)
    table = attnops.lrpe_table(theta, shape, x.shape[-1], offset)
    for out in (
        attnops.md_lrpe_cosine(x, theta, shape, l=l, offset=offset, act=act, dim=dim),
        attnops.md_lrpe_cosine(x, None, shape, l=l, act=act, dim=dim, table=table),
    ):
        assert out.is_contiguous()
        assert_close(out, expected, x.dtype, act)
        assert not out[:, :, :l, x.shape[-1] :].any()
        (dx,) = torch.autograd.grad(out, x, d_out)
        assert_close(dx, expected_dx, x.dtype, act)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "l"), GRIDS, ids=str)
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_every_activation_type_and_grid(act, dim, shape, l, dtype):
    x, theta, _ = make_grid(shape, l, dtype=dtype)
    check(x, theta, shape, l, 0, act, dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("theta_in_x_type", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("angles", [12, 15, 24, 40])
def test_every_form_of_theta(angles, heads, theta_in_x_type, dtype):
    """More angles than D/k leave fewer features, or none, to the last axis."""
    x, _, _ = make_grid(dtype=dtype)
    theta = make_theta(heads, angles, dtype if theta_in_x_type else torch.float32)
    check(x, theta, (4, 5), 3)


@pytest.mark.parametrize("d", [1, 2, 7, 43, 64, 127, 128, 130])
@pytest.mark.parametrize("shape", [(33,), (5, 7), (3, 4, 5), (2, 3, 2, 3)], ids=str)
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_awkward_features(act, dim, shape, d):
    """Also D that the number of axes does not divide."""
    x, theta, _ = make_grid(shape, 2, d=d, dtype=torch.bfloat16)
    check(x, theta, shape, 2, 0, act, dim)


@pytest.mark.parametrize(
    ("shape", "l"),
    [((1,), 0), ((257,), 0), ((257,), 300), ((1, 1), 0), ((1, 40), 1), ((40, 1), 0), ((16, 17), 0)],
    ids=str,
)
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_awkward_grids(act, dim, shape, l):
    x, theta, _ = make_grid(shape, l, d=20, dtype=torch.bfloat16)
    check(x, theta, shape, l, 0, act, dim)


@pytest.mark.parametrize("dim", [2, -2, 3, -1])
def test_dim_counts_from_both_ends(dim):
    x, theta, _ = make_grid()
    check(x, theta, (4, 5), 3, 0, "softmax", dim)


@pytest.mark.parametrize(("shape", "l"), [((0,), 5), ((0,), 1), ((3, 0), 5), ((0, 2, 3), 4)])
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_an_empty_grid_leaves_the_tokens_in_front(act, dim, shape, l):
    x, theta, _ = make_grid(shape, l)
    check(x, theta, shape, l, 0, act, dim)


@pytest.mark.parametrize(
    ("b", "h", "shape", "d"),
    [(0, 3, (4, 5), 8), (2, 0, (4, 5), 8), (2, 3, (0,), 8), (2, 3, (4, 0), 8), (2, 3, (4, 5), 0)],
)
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_empty(act, dim, b, h, shape, d):
    x = torch.randn(b, h, math.prod(shape), d, requires_grad=True)
    theta = make_theta(1, 8)
    for table in (None, attnops.lrpe_table(theta, shape, d)):
        out = attnops.md_lrpe_cosine(x, theta, shape, act=act, dim=dim, table=table)
        assert out.shape == (*x.shape[:-1], 2 * d)
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("l", [0, 4])
@pytest.mark.parametrize("offset", [0, 7, -3, -40, 10**6, 10**9, -(10**9), 2**31 - 64, -(2**31)])
def test_far_positions_are_as_accurate(offset, l, dtype):
    x, theta, _ = make_grid((33,), l, dtype=dtype)
    check(x, theta, (33,), l, offset)


@pytest.mark.parametrize(("shape", "offset"), [((33,), 10**9), ((6, 6), 0), ((3, 3, 3), 0)])
def test_fast_frequencies(shape, offset):
    x, theta, _ = make_grid(shape)
    check(x, 32 * torch.rand_like(theta) - 16, shape, 3, offset)


@pytest.mark.parametrize("theta", [1e5, 1e30, -3e38])
def test_beyond_16_the_result_is_bounded(theta):
    x, _, _ = make_grid((33,), 0)
    theta = torch.full((3, 24), theta)
    table = attnops.lrpe_table(theta, (33,), 24, offset=10**9)
    for out in (
        attnops.md_lrpe_cosine(x, theta, (33,), offset=10**9),
        attnops.md_lrpe_cosine(x, None, (33,), table=table),
    ):
        assert out.isfinite().all()
        assert (out.abs() <= torch.cat([x, x], -1).abs() * (1 + 1e-6)).all()


@pytest.mark.parametrize("act", ["none", "relu", "sigmoid", "silu"])
def test_nan_stays_in_its_feature(act):
    x, theta, _ = make_grid((5,), 2, d=24)
    x[1, 2, 3, 5] = float("nan")
    x[0, 1, 1, 7] = float("nan")  # one of the tokens in front, whose second half is 0
    out = attnops.md_lrpe_cosine(x, theta, (5,), l=2, act=act)
    expected = torch.zeros_like(out, dtype=torch.bool)
    expected[1, 2, 3, [5, 5 + 24]] = True
    expected[0, 1, 1, 7] = True
    assert torch.equal(out.isnan(), expected)


def test_infinity_goes_through():
    x, theta, _ = make_grid((5,), 0)
    x[0, 2, 1, 4] = float("inf")
    out = attnops.md_lrpe_cosine(x, theta, (5,), offset=1)
    expected = reference.md_lrpe_cosine(x, theta, (5,), 0, 1).value
    assert torch.equal(out.isinf(), expected.isinf())
    assert torch.equal(out.sign()[out.isinf()].double(), expected.sign()[expected.isinf()])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("act", "dim"), [("none", None), ("silu", None), ("softmax", 2)])
def test_layouts_of_x_and_of_the_gradient(act, dim, layout, dtype):
    contiguous, theta, _ = make_grid(dtype=dtype)

    def strided(d: int) -> torch.Tensor:
        return LAYOUTS[layout](lambda *shape: torch.randn(shape).to(dtype), 2, 3, 23, d)

    assert not strided(24).is_contiguous()
    check(strided(24), theta, (4, 5), 3, 0, act, dim)
    check(contiguous, theta, (4, 5), 3, 0, act, dim, d_out=strided(48))


@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_gradient_of_a_sum(act, dim):
    x, theta, _ = make_grid()
    x.requires_grad_()
    out = attnops.md_lrpe_cosine(x, theta, (4, 5), l=3, act=act, dim=dim)
    out.sum().backward()
    ones = torch.ones_like(out)
    expected = reference.md_lrpe_cosine_backward(x, theta, ones, (4, 5), 3, 0, act, dim)
    assert_close(x.grad, expected, x.dtype, act)


def test_strided_theta_and_table():
    x, theta, _ = make_grid()
    check(x, make_theta(12, 3).t(), (4, 5), 3)
    check(x, make_theta(6, 24)[::2, ::2], (4, 5), 3)
    check(x, make_theta(1, 12).expand(3, 12), (4, 5), 3)
    table = attnops.lrpe_table(theta, (4, 5), 24)
    expected = attnops.md_lrpe_cosine(x, None, (4, 5), l=3, table=table)
    for strided in (
        table.transpose(0, 1).contiguous().transpose(0, 1),
        torch.cat([table, table], 2)[:, :, :12],
        table.transpose(2, 3).contiguous().transpose(2, 3),
    ):
        assert not strided.is_contiguous()
        out = attnops.md_lrpe_cosine(x, None, (4, 5), l=3, table=strided)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "offset"), [((9,), 0), ((9,), -(2**31)), ((9,), 10**9), ((4, 5), 0), ((2, 0, 3), 0)]
)
def test_table(shape, offset, dtype):
    """A row of cos and sin for each index of each axis, float32 whatever theta is."""
    theta = make_theta(3, 7, dtype)
    table = attnops.lrpe_table(theta, shape, 7, offset=offset)
    assert table.shape == (3, sum(shape), 7, 2)
    assert table.is_contiguous()
    one = torch.ones(1, 3, max(shape), 7, dtype=torch.float64)
    cos, sin = reference.grid_cos_sin(one, theta, (max(shape),), 0, offset)
    rows = torch.cat([torch.stack([cos, sin], -1)[:, :n] for n in shape], dim=1)
    assert_close(table, reference.Expected(rows, torch.ones_like(rows)), torch.float32)


def test_a_table_of_more_angles_than_needed():
    """d tells which are: it may be anything up to E·k."""
    theta = make_theta(3, 8)
    full = attnops.lrpe_table(theta, (4, 5), 16)
    for d in (0, 5, 15):
        assert attnops.lrpe_table(theta, (4, 5), d).shape == full.shape
        check(torch.randn(2, 3, 20, d), theta, (4, 5))


def test_theta_beside_a_table_is_not_looked_at():
    x, theta, _ = make_grid()
    table = attnops.lrpe_table(theta, (4, 5), 24)
    expected = attnops.md_lrpe_cosine(x, None, (4, 5), l=3, table=table)
    out = attnops.md_lrpe_cosine(x, 0 * theta, (4, 5), l=3, table=table)
    assert torch.equal(out, expected)


@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
@pytest.mark.parametrize(("shape", "l"), [((3,), 1), ((2, 2), 1)], ids=str)
def test_gradient_against_finite_differences(shape, l, act, dim):
    """Central differences of the double-precision forward, one element of x at a time."""
    x, theta, d_out = make_grid(shape, l, b=1, h=2, d=5)
    x = torch.where(x.abs() < 0.1, 0.5, x).requires_grad_()  # away from the corner of relu
    out = attnops.md_lrpe_cosine(x, theta, shape, l=l, act=act, dim=dim)
    (dx,) = torch.autograd.grad(out, x, d_out)

    def loss(moved: torch.Tensor) -> torch.Tensor:
        value = reference.md_lrpe_cosine(moved, theta, shape, l, 0, act, dim).value
        return (value * d_out.double()).sum()

    expected = reference.md_lrpe_cosine_backward(x, theta, d_out, shape, l, 0, act, dim)
    expected.value = central_differences(loss, x)
    expected.scale = expected.scale + 1e-3
    assert_close(dx, expected, x.dtype, act)


@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_forward_and_backward_agree(act, dim):
    """The slope of attnops' own forward along a direction is that of its gradient."""
    x, theta, d_out = make_grid((2, 3), 1, b=1, h=2, d=16)
    x = torch.where(x.abs() < 0.1, 0.5, x).requires_grad_()
    direction = torch.randn_like(x)

    def loss(x: torch.Tensor) -> torch.Tensor:
        out = attnops.md_lrpe_cosine(x, theta, (2, 3), l=1, act=act, dim=dim)
        return (out.double() * d_out.double()).sum()

    (dx,) = torch.autograd.grad(loss(x), x)
    step = 1e-2
    with torch.no_grad():
        slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    # Truncation: step² times a third derivative below 1. Cancellation: 2⁻²⁴/step for each element.
    both = torch.cat([direction, direction], -1)
    terms = (d_out.abs() * (both.abs() + 1)).sum().item()
    expected = (dx.double() * direction.double()).sum().item()
    assert abs(slope.item() - expected) <= (step**2 + 16 * 2.0**-24 / step) * terms


@pytest.mark.parametrize("with_table", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
@pytest.mark.usefixtures("threads_restored")
def test_same_bits_with_any_number_of_threads(act, dim, dtype, with_table):
    x, theta, d_out = make_grid((25, 28), 3, b=3, h=4, d=64, dtype=dtype)
    x.requires_grad_()
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        table = attnops.lrpe_table(theta, (25, 28), 64) if with_table else None
        out = attnops.md_lrpe_cosine(x, theta, (25, 28), l=3, act=act, dim=dim, table=table)
        (dx,) = torch.autograd.grad(out, x, d_out)
        results.append((out, dx))
    for out, dx in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(dx, results[0][1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "l"), [((100,), 0), ((100,), 10), ((9, 11), 3)])
def test_a_batch_does_not_depend_on_the_others(dtype, shape, l):
    x = torch.randn(4, 3, l + math.prod(shape), 70).to(dtype)
    theta = make_theta(3, 70)
    assert_batches_are_independent(lambda x: attnops.md_lrpe_cosine(x, theta, shape, l=l), x, 140)


@st.composite
def calls(draw: st.DrawFn) -> tuple:
    """Arguments of `check`: x, theta, shape, l, offset, act, dim, d_out."""
    dtype = draw(st.sampled_from(DTYPES))
    axes = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 40 if axes == 1 else 5)) for _ in range(axes))
    l = draw(st.integers(0, 12))
    b, h, d = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 80))
    theta_shape = [draw(st.sampled_from([1, h])), math.ceil(d / axes) + draw(st.integers(0, 3))]
    theta = draw(strided_tensors(theta_shape, draw(st.sampled_from([dtype, torch.float32]))))
    act, dim = draw(st.sampled_from(MD_ACTS))
    offset = draw(st.integers(-(2**31), 2**31 - 64)) if axes == 1 else 0
    tokens = l + math.prod(shape)
    x = draw(strided_tensors([b, h, tokens, d], dtype))
    d_out = draw(strided_tensors([b, h, tokens, 2 * d], dtype))
    return x, theta, shape, l, offset, act, dim, d_out


@settings(max_examples=150, deadline=None, derandomize=True)
@given(calls())
def test_random_shapes_and_strides(call):
    check(*call)
