"""tpa_decode as a part of PyTorch: torch.compile, fake tensors, threads, targets, errors."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import attnops
from support import SPLIT
from tpa_cases import DTYPES, NAMES, SPLITS, check, make_case

OPERATOR = torch.ops.attnops.tpa_decode.default
SHAPES = {
    "aq": (2, 1, 3, 4),
    "ak": (2, 5, 3),
    "av": (2, 5, 3),
    "bq": (2, 1, 4, 6),
    "bk": (2, 5, 6),
    "bv": (2, 5, 7),
}
BAD_SHAPES = {
    "aq with three axes": ("aq", {"aq": (2, 3, 4)}),
    "ak with five axes": ("ak", {"ak": (2, 1, 1, 5, 3)}),
    "tokens of aq": ("aq", {"aq": (2, 2, 3, 4)}),
    "tokens of bq": ("bq", {"bq": (2, 2, 4, 6)}),
    "batches of bk": ("bk", {"bk": (1, 5, 6)}),
    "heads of ak": ("ak", {"ak": (2, 5, 4)}),
    "heads of av": ("av", {"av": (2, 5, 2)}),
    "rank of bq": ("bq", {"bq": (2, 1, 3, 6)}),
    "features of bk": ("bk", {"bk": (2, 5, 7)}),
    "tokens of av": ("av", {"av": (2, 6, 3)}),
    "tokens of bk": ("bk", {"bk": (2, 4, 6)}),
    "tokens of bv": ("bv", {"bv": (2, 6, 7)}),
}


def ones(**changed: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Good arguments, but for those whose shapes are given."""
    return {name: torch.ones(shape) for name, shape in (SHAPES | changed).items()}


def error_of(call: Callable[[], object], argument: str) -> str:
    """The first line of the error that the call raises, which names what is wrong."""
    with pytest.raises((ValueError, RuntimeError)) as caught:
        call()
    text = str(caught.value).splitlines()[0]
    assert "tpa_decode" in text
    assert re.search(rf"\b{argument}\b", text), text
    return text


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("split", SPLITS)
def test_opcheck(split, dtype):
    args = make_case(dtype=dtype)
    torch.library.opcheck(OPERATOR, (*args, None, None, 1.0, 1.0, SPLIT[split]))
    torch.library.opcheck(OPERATOR, (*args, 0.5, 0.25, 2.0, 3.0, SPLIT[split]))
    strided = tuple(a.mT.contiguous().mT for a in args)
    torch.library.opcheck(OPERATOR, (*strided, None, None, 1.0, 1.0, SPLIT[split]))


def test_compiled_by_inductor():
    """In one graph with its neighbours."""

    def block(aq, ak, av, bq, bk, bv):
        return attnops.tpa_decode(2 * aq, ak, av, bq, bk, bv + 1, scale_v=0.5) + 1

    torch._dynamo.reset()
    args = make_case(m=70, d=16, e=40)
    torch.testing.assert_close(torch.compile(block, fullgraph=True)(*args), block(*args))


def test_compiled_once_for_all_lengths():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attnops.tpa_decode, fullgraph=True, dynamic=True, backend=counter)
    compiled(*make_case(m=20))
    first = counter.frame_count  # dynamo may start over, to make constants of the scales
    for m in (33, 47, 130):
        args = make_case(m=m)
        assert torch.equal(compiled(*args), attnops.tpa_decode(*args))
    assert counter.frame_count == first


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_data(dtype):
    """Fake tensors have the shape, strides and type of the real result."""
    real = attnops.tpa_decode(*make_case(dtype=dtype))
    with FakeTensorMode():
        fake = attnops.tpa_decode(*make_case(dtype=dtype))
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("name", NAMES)
def test_the_operator_of_rank_1_has_no_gradient(name):
    """tpa_decode goes another way where one is needed, and not under no_grad."""
    args = dict(zip(NAMES, make_case(), strict=True))
    expected = attnops.tpa_decode(**args)
    args[name].requires_grad_()
    assert attnops.tpa_decode(**args).requires_grad
    with torch.no_grad():
        assert torch.equal(attnops.tpa_decode(**args), expected)


@pytest.mark.parametrize(("argument", "changed"), BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_shapes(argument, changed):
    """The text is the same with and without data."""
    args = ones(**changed)
    text = error_of(lambda: attnops.tpa_decode(**args), argument)
    meta = {name: x.to("meta") for name, x in args.items()}
    assert error_of(lambda: attnops.tpa_decode(**meta), argument) == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16], ids=str)
def test_types(name, dtype):
    args = ones()
    args[name] = args[name].to(dtype)
    blamed = "ak" if name == "aq" and dtype == torch.bfloat16 else name
    text = error_of(lambda: attnops.tpa_decode(**args), blamed)
    meta = {n: x.to("meta") for n, x in args.items()}
    assert text == error_of(lambda: attnops.tpa_decode(**meta), blamed)


@pytest.mark.parametrize("split", ["", "B", "hb", "all"])
def test_split(split):
    text = error_of(lambda: attnops.tpa_decode(**ones(), split=split), "split")
    meta = {name: x.to("meta") for name, x in ones().items()}
    assert error_of(lambda: attnops.tpa_decode(**meta, split=split), "split") == text


def test_several_threads_at_once():
    cases = [make_case(m=50 + 137 * i, d=16 + i) for i in range(6)]

    def run(i: int) -> torch.Tensor:
        return attnops.tpa_decode(*cases[i], split=SPLITS[i % 4])

    alone = [run(i) for i in range(len(cases))]
    with ThreadPoolExecutor(max_workers=4) as pool:
        for _ in range(5):
            assert all(map(torch.equal, pool.map(run, range(len(cases))), alone))


@pytest.mark.parametrize("target", attnops.supported_targets())
@pytest.mark.parametrize("split", SPLITS)
def test_every_target_is_right(split, target):
    args = make_case(m=600, h=9, d=33, e=70, dtype=torch.bfloat16)
    try:
        attnops.set_target(target)
        check(args, split=split)
    finally:
        attnops.set_target("")
