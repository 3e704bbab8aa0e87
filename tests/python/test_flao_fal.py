"""flao_fal against the reference in double precision and the operators it is made of."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import attnops
import reference
from flao_cases import DTYPES, KEEPS, NAMES
from flao_fal_cases import ACT_IDS, ACTS, ENCODINGS, acts_of, check, make_case, stages_of
from lrpe_cases import LAYOUTS, make_theta
from support import central_differences
from tolerances import ARITHMETIC, bound, sums

NONE = ("none", None)
SILU = ("silu", None)
OVER_FEATURES = ("softmax", -1)
OVER_SEQUENCE = ("softmax", 2)
MIXED = acts_of(OVER_FEATURES, OVER_SEQUENCE, SILU, ("sigmoid", None))


@pytest.mark.parametrize("i", range(len(ACTS)), ids=ACT_IDS)
@pytest.mark.parametrize("j", range(len(ACTS)), ids=ACT_IDS)
def test_every_pair_of_activations(i, j):
    """On each pair of q, k, v and g but (v, g), with every encoding in turn."""
    names = list(ENCODINGS)
    acts = acts_of(ACTS[i], ACTS[j], ACTS[(i + j) % 6], ACTS[(5 * i + j) % 6])
    for turn in range(3):
        number = i + 6 * j + 36 * turn
        args, d_out, options = make_case(
            ENCODINGS[names[number % len(names)]] | acts, dtype=DTYPES[turn]
        )
        check(args, d_out, options, KEEPS[number % 3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_every_encoding_type_and_policy(encoding, keep, dtype):
    args, d_out, options = make_case(encoding | MIXED, dtype=dtype)
    check(args, d_out, options, keep)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lrpe", ["none", "cosine", "rotate"])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 2, 1),
        (0, 3, 2, 4),
        (3, 0, 2, 4),
        (33, 130, 6, 5),
        (5, 9, 34, 129),
        (129, 128, 128, 128),
        (20, 10, 300, 200),
    ],
    ids=str,
)
def test_sizes(sizes, lrpe, dtype):
    n, m, d, e = sizes
    acts = acts_of(SILU, OVER_SEQUENCE, OVER_SEQUENCE, OVER_FEATURES)
    args, d_out, options = make_case({"lrpe": lrpe} | acts, n=n, m=m, d=d, e=e, dtype=dtype)
    check(args, d_out, options)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(
        st.integers(1, 2),
        st.integers(1, 3),
        st.integers(1, 150),
        st.integers(1, 150),
        st.integers(1, 20).map(lambda half: 2 * half),
        st.integers(1, 40),
    ),
    acts=st.tuples(*(st.sampled_from(ACTS) for _ in NAMES)),
    lrpe=st.sampled_from(["none", "cosine", "rotate"]),
    dtype=st.sampled_from(DTYPES),
    keep=st.sampled_from(KEEPS),
)
def test_any_sizes(sizes, acts, lrpe, dtype, keep):
    args, d_out, options = make_case({"lrpe": lrpe} | acts_of(*acts), *sizes, dtype=dtype)
    check(args, d_out, options, keep)


@pytest.mark.parametrize("lrpe", ["cosine", "rotate"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_long_sequence_of_one_head(dtype, lrpe):
    acts = acts_of(SILU, OVER_SEQUENCE, NONE, OVER_SEQUENCE)
    encoding = {"lrpe": lrpe, "offset": 10**9}
    args, d_out, options = make_case(
        encoding | acts, b=1, h=1, n=9000, m=12345, d=16, e=24, dtype=dtype
    )
    check(args, d_out, options)


@pytest.mark.parametrize("theta_in_q_type", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("encoding", "angles"),
    [
        ("cosine", 8),
        ("cosine", 11),
        ("cosine, 2 axes", 5),
        ("cosine, 2 axes", 9),
        ("rotate", 3),
        ("rotate", 2),
        ("rotate", 1),
        ("rotate, 1 axis", 1),
        ("rotate, 2 axes", 3),
        ("rotate, 2 axes", 4),
    ],
)
def test_every_form_of_theta(encoding, angles, heads, theta_in_q_type):
    theta = make_theta(heads, angles, torch.bfloat16 if theta_in_q_type else torch.float32)
    args, d_out, options = make_case(ENCODINGS[encoding] | MIXED, dtype=torch.bfloat16)
    check(args, d_out, options | {"theta": theta})


def composed(args: tuple[torch.Tensor, ...], options: dict) -> torch.Tensor:
    """The same from md_lrpe_cosine or lrpe_rotate, PyTorch's activations and flao."""

    def activated(x: torch.Tensor, name: str) -> torch.Tensor:
        act, dim = options[f"{name}_act"], options[f"{name}_dim"]
        if act == "softmax":
            return torch.softmax(x, dim)
        return {"none": lambda x: x, "relu": F.relu, "sigmoid": F.sigmoid, "silu": F.silu}[act](x)

    def encoded(x: torch.Tensor, name: str, offset: int) -> torch.Tensor:
        theta, l, shape = options["theta"], options.get("l", 0), options.get("shape")
        act, dim = options[f"{name}_act"], options[f"{name}_dim"]
        if options["lrpe"] == "cosine":
            shape = shape or (x.shape[2] - l,)
            return attnops.md_lrpe_cosine(x, theta, shape, l=l, offset=offset, act=act, dim=dim)
        y = activated(x, name).transpose(1, 2)
        turned = attnops.lrpe_rotate(y[:, l:], theta, offset)
        return torch.cat([y[:, :l], turned], 1).transpose(1, 2)

    q, k, v, g = args
    offset = options.get("offset", 0)
    v, g = activated(v, "v"), activated(g, "g")
    return attnops.flao(encoded(q, "q", offset), encoded(k, "k", 0), v, g)


@pytest.mark.parametrize(
    "encoding",
    [name for name in ENCODINGS if not name.startswith(("none", "rotate, 2", "rotate, 3"))],
)
@pytest.mark.parametrize("turn", range(6))
def test_the_composition_of_the_other_operators(encoding, turn):
    """Its results have the same bounds, so that the two are within twice those of each other."""
    acts = acts_of(*(ACTS[(turn + i) % 6] for i in range(4)))
    args, d_out, options = make_case(ENCODINGS[encoding] | acts, n=40, m=37)
    check(args, d_out, options)
    fused, other = attnops.flao_fal(*args, **options), composed(args, options)
    stages = stages_of(options)
    expected = [reference.flao_fal(args, stages), *reference.flao_fal_backward(args, stages, d_out)]
    results = [fused, *torch.autograd.grad(fused, args, d_out)]
    others = [other, *torch.autograd.grad(other, args, d_out)]
    arithmetic = sums(40, 40) + 2 * sum(ARITHMETIC[stage.act] for stage in stages)
    for actual, wanted, exact in zip(results, others, expected, strict=True):
        allowed = 2 * bound(exact, torch.float32, arithmetic)
        assert ((actual - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("wanted", range(4), ids=NAMES)
def test_finite_differences(encoding, wanted):
    """A check that does not rely on the gradient of the reference."""
    acts = acts_of(*(ACTS[(wanted + i) % 6] for i in range(4)))
    args, d_out, options = make_case(encoding | acts, b=1, n=5, m=4, d=4, e=3)
    stages = stages_of(options)

    def loss(x: torch.Tensor) -> torch.Tensor:
        moved = [x if i == wanted else a.detach().double() for i, a in enumerate(args)]
        return (reference.flao_fal(tuple(moved), stages).value * d_out.double()).sum()

    differences = central_differences(loss, args[wanted])
    out = attnops.flao_fal(*args, **options)
    (gradient,) = torch.autograd.grad(out, args[wanted], d_out)
    scale = reference.flao_fal_backward(args, stages, d_out)[wanted].scale
    expected = reference.Expected(differences, scale + 1e-3)
    arithmetic = sums(20, 20) + 2 * sum(ARITHMETIC[stage.act] for stage in stages)
    error = (gradient.double() - differences).abs()
    assert (error <= bound(expected, torch.float32, arithmetic)).all()


@pytest.mark.parametrize("keep", KEEPS)
def test_no_encoding_by_default(keep):
    """Without theta, lrpe and all other options, it is flao."""
    args, d_out, _ = make_case({"lrpe": "none"}, n=33, m=20, d=7)
    expected = attnops.flao(*args, keep=keep)
    for options in ({}, {"lrpe": "none"}, {"lrpe": "cosine", "theta": None}):
        out = attnops.flao_fal(*args, **options, keep=keep)
        torch.testing.assert_close(out, expected)
        for actual, wanted in zip(
            torch.autograd.grad(out, args, d_out),
            torch.autograd.grad(expected, args, d_out, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("lrpe", ["cosine", "rotate"])
def test_the_offset_is_that_of_q(lrpe):
    """One query of a sequence is the row of all of them."""
    (q, k, v, g), _, options = make_case({"lrpe": lrpe, "q_act": "silu"}, n=20, m=20)
    everything = attnops.flao_fal(q, k, v, g, **options)
    one = attnops.flao_fal(q[:, :, 13:14], k, v, g[:, :, 13:14], **options, offset=13)
    torch.testing.assert_close(one, everything[:, :, 13:14])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("lrpe", ["cosine", "rotate"])
def test_layouts(lrpe, layout):
    """Of all inputs and of the gradient; features that are not contiguous are copied."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        return layout(lambda *shape: torch.randn(shape), *x.shape)

    args, d_out, options = make_case({"lrpe": lrpe, "offset": 5} | MIXED)
    args = tuple(cut(x).requires_grad_() for x in args)
    check(args, cut(d_out), options, "kv_qkv")


def test_theta_with_strides():
    args, d_out, options = make_case(ENCODINGS["cosine"])
    wide = torch.stack([options["theta"], torch.full((2, 8), math.nan)], -1)
    for theta in (wide[..., 0], wide.transpose(0, 1)[..., 0].T, options["theta"][:1].expand(2, 8)):
        check(args, d_out, options | {"theta": theta})


def test_the_gradient_of_a_sum():
    args, _, options = make_case(ENCODINGS["rotate"] | MIXED)
    check(args, torch.ones(()).expand(2, 2, 9, 6), options)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("sizes", [(12, 12, 40, 30, 32, 32), (1, 1, 7000, 6000, 32, 32)], ids=str)
@pytest.mark.parametrize("lrpe", ["cosine", "rotate"])
def test_same_bits_for_any_number_of_threads(lrpe, sizes):
    acts = acts_of(OVER_FEATURES, OVER_SEQUENCE, SILU, OVER_SEQUENCE)
    args, d_out, options = make_case({"lrpe": lrpe} | acts, *sizes, dtype=torch.bfloat16)

    def run(threads: int) -> list[torch.Tensor]:
        torch.set_num_threads(threads)
        out = attnops.flao_fal(*args, **options, keep="kv")
        return [out, *torch.autograd.grad(out, args, d_out)]

    expected = run(1)
    for threads in (2, 5):
        for actual, wanted in zip(run(threads), expected, strict=True):
            assert torch.equal(actual, wanted)


@pytest.mark.parametrize("target", attnops.supported_targets())
@pytest.mark.parametrize("keep", KEEPS)
def test_every_target_is_right(keep, target):
    acts = acts_of(SILU, SILU, NONE, SILU)
    args, d_out, options = make_case(
        {"lrpe": "cosine"} | acts, n=130, m=140, d=34, e=70, dtype=torch.bfloat16
    )
    try:
        attnops.set_target(target)
        check(args, d_out, options, keep)
    finally:
        attnops.set_target("")
