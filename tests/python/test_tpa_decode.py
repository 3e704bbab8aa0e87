"""tpa_decode against the reference in double precision."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnops
from tpa_cases import DTYPES, SPLITS, check, make_case

# b, m, h, r, d, e
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 0, 3, 2, 4, 5),
    (2, 130, 31, 17, 127, 65),
    (1, 600, 32, 16, 128, 128),
    (3, 40, 4, 40, 9, 200),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes, split, dtype):
    check(make_case(*sizes, dtype=dtype), split=split)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.tuples(
        st.integers(0, 3), st.integers(0, 600), *[st.integers(1, 40)] * 2, *[st.integers(1, 70)] * 2
    ),
    dtype=st.sampled_from(DTYPES),
    split=st.sampled_from(SPLITS),
)
def test_any_sizes(sizes, dtype, split):
    check(make_case(*sizes, dtype=dtype), split=split)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.7},
        {"scale_q": -0.3},
        {"scale_k": 2.5},
        {"scale_v": -3.0},
        {"scale": 0.2, "scale_q": 0.9, "scale_k": 1.1, "scale_v": 0.01},
        {"scale": 1e4},
    ],
    ids=str,
)
def test_scales(options):
    check(make_case(m=300), **options)


def test_no_tokens_give_zeros():
    out = attnops.tpa_decode(*make_case(m=0))
    assert torch.equal(out, torch.zeros(2, 1, 5, 6))


def test_a_slice_of_a_larger_cache_is_not_copied():
    """The same bits from a cache of capacity 50, whose other tokens are NaN."""
    aq, ak, av, bq, bk, bv = make_case(m=50, dtype=torch.bfloat16)
    front = [x[:, :20].clone() for x in (ak, av, bk, bv)]
    for x in (ak, av, bk, bv):
        x[:, 20:] = float("nan")
    small = attnops.tpa_decode(aq, front[0], front[1], bq, front[2], front[3])
    views = [x[:, :20] for x in (ak, av, bk, bv)]
    assert not any(v.is_contiguous() for v in views)
    assert torch.equal(attnops.tpa_decode(aq, views[0], views[1], bq, views[2], views[3]), small)


def test_features_that_are_not_contiguous():
    args = tuple(x.mT.contiguous().mT for x in make_case())
    assert all(x.stride(-1) != 1 for x in args)
    check(args)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("sizes", [(9, 300, 13, 3, 32, 20), (1, 5000, 32, 16, 64, 64)], ids=str)
def test_same_bits_for_all_splits_and_any_number_of_threads(sizes):
    args = make_case(*sizes, dtype=torch.bfloat16)
    torch.set_num_threads(1)
    expected = attnops.tpa_decode(*args, split="b")
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        for split in SPLITS:
            assert torch.equal(attnops.tpa_decode(*args, split=split), expected)


@pytest.mark.parametrize("name", range(6))
def test_nan_is_where_torch_has_it(name):
    args = make_case(b=2, m=300, h=5, e=7)
    args[name].view(-1)[args[name].numel() - 3] = float("nan")
    aq, ak, av, bq, bk, bv = args
    q = (aq[:, 0] @ bq[:, 0]) / 3
    scores = (q @ bk.mT) * ak.mT * 8**-0.5
    expected = ((torch.softmax(scores, -1) * av.mT) @ bv).unsqueeze(1)
    assert torch.equal(attnops.tpa_decode(*args).isnan(), expected.isnan())


PEAK = """
import re, sys
from pathlib import Path
import torch, attnops

def field(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

b, m = 2, int(sys.argv[1])
shapes = [(b, 1, 32, 16), (b, m, 32), (b, m, 32), (b, 1, 16, 128), (b, m, 128), (b, m, 128)]
args = [torch.randn(s, dtype=torch.bfloat16) for s in shapes]
torch.set_num_threads(2)
attnops.tpa_decode(*(a[:, :1] for a in args), split=sys.argv[2])
before = field("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
out = attnops.tpa_decode(*args, split=sys.argv[2])
print(field("VmHWM") - before)
"""


@pytest.mark.parametrize("split", ["b", "bh", "bn"])
def test_scratch_does_not_grow_with_the_cache(split):
    """4 MB with the output; 2 MB are for the kernel's coarse count."""
    for m in (4096, 65536):
        command = [sys.executable, "-c", PEAK, str(m), split]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert float(done.stdout) <= 4 + 2
