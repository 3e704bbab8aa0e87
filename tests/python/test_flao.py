"""flao against the reference in double precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnops
from flao_cases import DTYPES, KEEPS, check, make_case

SIZES = [
    (1, 1, 1, 1),
    (0, 3, 2, 4),
    (3, 0, 2, 4),
    (33, 130, 7, 5),
    (5, 9, 33, 129),
    (129, 128, 128, 128),
    (20, 10, 300, 200),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes, keep, dtype):
    n, m, d, e = sizes
    args, d_out = make_case(n=n, m=m, d=d, e=e, dtype=dtype)
    check(args, d_out, keep)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.tuples(
        *[st.integers(0, 3)] * 2, *[st.integers(0, 150)] * 2, *[st.integers(1, 70)] * 2
    ),
    dtype=st.sampled_from(DTYPES),
    keep=st.sampled_from(KEEPS),
)
def test_any_sizes(sizes, dtype, keep):
    args, d_out = make_case(*sizes, dtype=dtype)
    check(args, d_out, keep)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_long_sequence_of_one_head(dtype):
    args, d_out = make_case(b=1, h=1, n=20000, m=12345, d=16, e=24, dtype=dtype)
    check(args, d_out, "none")


@pytest.mark.parametrize("keep", KEEPS)
def test_tokens_before_heads(keep):
    """(B,N,H,D) tensors as transposed views, and gradients for them."""
    leaves = [
        torch.randn(2, n, 3, d, requires_grad=True) for n, d in ((5, 8), (7, 8), (7, 6), (5, 6))
    ]
    args = tuple(x.transpose(1, 2) for x in leaves)
    check(args, torch.randn(2, 5, 3, 6).transpose(1, 2), keep)


@pytest.mark.parametrize("keep", KEEPS)
def test_features_that_are_not_contiguous(keep):
    """They are copied; so is the gradient of a sum, whose strides are all 0."""
    args, _ = make_case()
    args = tuple(x.detach().mT.contiguous().mT.requires_grad_() for x in args)
    assert all(x.stride(-1) != 1 for x in args)
    check(args, torch.ones(()).expand(2, 3, 5, 6), keep)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("sizes", [(12, 12, 40, 30, 32, 32), (1, 1, 9000, 8000, 32, 32)], ids=str)
def test_same_bits_for_any_number_of_threads(sizes):
    args, d_out = make_case(*sizes, dtype=torch.bfloat16)

    def run(threads: int) -> list[torch.Tensor]:
        torch.set_num_threads(threads)
        out = attnops.flao(*args, keep="kv_qkv")
        return [out, *torch.autograd.grad(out, args, d_out)]

    expected = run(1)
    for threads in (2, 5):
        for actual, wanted in zip(run(threads), expected, strict=True):
            assert torch.equal(actual, wanted)


def test_float16_sums_do_not_overflow():
    """KV is far beyond 65504, the gated result is not; without the gate it is Inf."""
    q, k, v = (
        torch.ones(1, 1, 2, 4),
        torch.full((1, 1, 256, 4), 64.0),
        torch.full((1, 1, 256, 3), 64.0),
    )
    args = [x.half().requires_grad_() for x in (q, k, v)]
    for keep in KEEPS:
        gate = torch.full((1, 1, 2, 3), 2.0**-14).half().requires_grad_()
        out = attnops.flao(*args, gate, keep=keep)
        assert torch.equal(out, torch.full((1, 1, 2, 3), 256.0).half())
        (dg,) = torch.autograd.grad(out, gate, torch.full((1, 1, 2, 3), 2.0**-10).half())
        assert torch.equal(dg, torch.full((1, 1, 2, 3), 4096.0).half())
        assert attnops.flao(*args, torch.ones_like(gate), keep=keep).isinf().all()
