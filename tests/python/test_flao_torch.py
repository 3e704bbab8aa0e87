"""flao as a part of PyTorch: autograd, torch.compile, fake tensors, threads, memory."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import attnops
from flao_cases import DTYPES, KEEPS, check, make_case
from support import KEEP

OPERATOR = torch.ops.attnops.flao.default
BACKWARD = torch.ops.attnops.flao_backward.default


def kept_elements(args: tuple[torch.Tensor, ...], keep: str) -> int:
    """How many elements the forward keeps beside its inputs."""
    saved = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += 0 if any(tensor is a for a in args) else tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attnops.flao(*args, keep=keep)
    return saved


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keep", KEEPS)
def test_opcheck(keep, dtype):
    args, d_out = make_case(dtype=dtype)
    torch.library.opcheck(OPERATOR, (*args, KEEP[keep]))
    torch.library.opcheck(OPERATOR, (*(a.detach() for a in args), KEEP[keep]))
    args = tuple(a.detach() for a in args)
    _, kv, qkv = OPERATOR(*args, KEEP[keep])
    kept = (None if keep == "none" else kv, qkv if keep == "kv_qkv" else None)
    torch.library.opcheck(BACKWARD, (*args, d_out, *kept))


def test_opcheck_with_strides():
    args, d_out = make_case()
    strided = tuple(a.detach().transpose(1, 2).contiguous().transpose(1, 2) for a in args)
    torch.library.opcheck(OPERATOR, (*strided, KEEP["kv"]))
    torch.library.opcheck(BACKWARD, (*strided, d_out, None, None))
    apart = tuple(a.detach().mT.contiguous().mT.requires_grad_() for a in args)
    torch.library.opcheck(OPERATOR, (*apart, KEEP["kv_qkv"]))


@pytest.mark.parametrize("keep", KEEPS)
def test_compiled_by_inductor(keep):
    """In one graph with its neighbours, forward and backward."""

    def block(q, k, v, g):
        return attnops.flao(2 * q, k, v, torch.sigmoid(g), keep=keep) + 1

    torch._dynamo.reset()
    args, d_out = make_case(n=33, m=20, d=16, e=40)
    out = torch.compile(block, fullgraph=True)(*args)
    expected = block(*args)
    torch.testing.assert_close(out, expected)
    gradients = torch.autograd.grad(out, args, d_out)
    for actual, wanted in zip(gradients, torch.autograd.grad(expected, args, d_out), strict=True):
        torch.testing.assert_close(actual, wanted)


def test_compiled_once_for_all_lengths():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attnops.flao, fullgraph=True, dynamic=True, backend=counter)
    for n, m in [(33, 20), (47, 21), (130, 9)]:
        args, d_out = make_case(n=n, m=m)
        out = compiled(*args)
        torch.testing.assert_close(out, attnops.flao(*args))
        out.backward(d_out)
    assert counter.frame_count == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keep", KEEPS)
def test_without_data(keep, dtype):
    """Fake tensors have the shapes, strides and types of the real results."""
    real = OPERATOR(*(a.detach() for a in make_case(dtype=dtype)[0]), KEEP[keep])
    with FakeTensorMode():
        fake = OPERATOR(*(a.detach() for a in make_case(dtype=dtype)[0]), KEEP[keep])
    for f, r in zip(fake, real, strict=True):
        assert (f.shape, f.stride(), f.dtype) == (r.shape, r.stride(), r.dtype)


def test_what_is_kept():
    args, _ = make_case(b=2, h=3, n=5, m=7, d=8, e=6)
    kv, qkv = 2 * 3 * 8 * 6, 2 * 3 * 5 * 6
    assert kept_elements(args, "none") == 0
    assert kept_elements(args, "kv") == kv
    assert kept_elements(args, "kv_qkv") == kv + qkv


def test_types_of_what_is_kept():
    for dtype, wanted in zip(DTYPES, (torch.float32, torch.float32, torch.bfloat16), strict=True):
        _, kv, qkv = OPERATOR(*make_case(dtype=dtype)[0], KEEP["kv_qkv"])
        assert (kv.dtype, qkv.dtype) == (torch.float32, wanted)
        assert not kv.requires_grad
        assert not qkv.requires_grad


@pytest.mark.parametrize("keep", KEEPS)
def test_nothing_is_kept_when_no_gradient_is_needed(keep, monkeypatch):
    args, _ = make_case()
    results = []
    real = torch.ops.attnops.flao
    monkeypatch.setattr(
        torch.ops.attnops, "flao", lambda *a: results.append(real(*a)) or results[-1]
    )
    with torch.no_grad():
        assert attnops.flao(*args, keep=keep).grad_fn is None
    attnops.flao(*(a.detach() for a in args), keep=keep)
    assert [(kv.numel(), qkv.numel()) for _, kv, qkv in results] == [(0, 0), (0, 0)]
    assert kept_elements(tuple(a.detach() for a in args), keep) == 0


@pytest.mark.parametrize("wanted", range(4))
def test_a_gradient_of_one_input_alone(wanted):
    args, d_out = make_case()
    expected = torch.autograd.grad(attnops.flao(*args), args, d_out)[wanted]
    args = tuple(a.detach().requires_grad_(i == wanted) for i, a in enumerate(args))
    (gradient,) = torch.autograd.grad(attnops.flao(*args, keep="kv"), args[wanted], d_out)
    assert torch.equal(gradient, expected)


def test_no_second_derivative():
    args, d_out = make_case()
    (dq, *_) = torch.autograd.grad(attnops.flao(*args), args, d_out, create_graph=True)
    with pytest.raises(NotImplementedError, match="flao: no second derivative"):
        dq.sum().backward()


def test_several_threads_at_once():
    cases = [make_case(n=50 + 37 * i, m=40 + i, d=16 + i) for i in range(6)]

    def run(i: int) -> list[torch.Tensor]:
        args, d_out = cases[i]
        out = attnops.flao(*args, keep=KEEPS[i % 3])
        return [out, *torch.autograd.grad(out, args, d_out)]

    alone = [run(i) for i in range(len(cases))]
    with ThreadPoolExecutor(max_workers=4) as pool:
        for _ in range(5):
            for results, expected in zip(pool.map(run, range(len(cases))), alone, strict=True):
                assert all(map(torch.equal, results, expected))


@pytest.mark.parametrize("target", attnops.supported_targets())
@pytest.mark.parametrize("keep", KEEPS)
def test_every_target_is_right(keep, target):
    args, d_out = make_case(n=130, d=33, e=70, dtype=torch.bfloat16)
    try:
        attnops.set_target(target)
        check(args, d_out, keep)
    finally:
        attnops.set_target("")
