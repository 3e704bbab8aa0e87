"""lrpe_rotate as a part of PyTorch: autograd, torch.compile, fake tensors, threads."""

import copy
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import attnops
import reference
from lrpe_cases import ACT_IDS, ACTS, DTYPES, make_case, make_theta
from support import ACT, saved_elements
from tolerances import assert_close

OPERATOR = torch.ops.attnops.lrpe_rotate.default
BACKWARD = torch.ops.attnops.lrpe_rotate_backward.default


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_opcheck(act, dim, dtype):
    x, theta, d_out = make_case(n=5, d=8, dtype=dtype)
    torch.library.opcheck(OPERATOR, (x, theta, 7, ACT[act], dim))
    torch.library.opcheck(BACKWARD, (x, theta, d_out, 7, ACT[act], dim))


@pytest.mark.parametrize(("act", "dim"), [("none", None), ("silu", None), ("softmax", 1)])
def test_opcheck_with_gradient_and_strides(act, dim):
    x = torch.randn(2, 3, 5, 8).transpose(1, 2).requires_grad_()
    torch.library.opcheck(OPERATOR, (x, make_theta(3, 4), 7, ACT[act], dim))
    rows = torch.randn(2, 5, 8, requires_grad=True)
    torch.library.opcheck(OPERATOR, (rows, make_theta(1, 1), 0, ACT[act], dim))
    features_apart = torch.randn(2, 5, 8, 3).transpose(2, 3)
    torch.library.opcheck(OPERATOR, (features_apart, make_theta(3, 4), 7, ACT[act], dim))
    torch.library.opcheck(
        BACKWARD, (features_apart, make_theta(3, 4), x.detach(), 7, ACT[act], dim)
    )


def test_compiled_by_inductor():
    """In one graph with its neighbours, forward and backward."""

    def block(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return attnops.lrpe_rotate(2 * x, theta, offset=7, act="silu") + 1

    torch._dynamo.reset()
    x = torch.randn(2, 3, 33, 48).transpose(1, 2).requires_grad_()
    theta = make_theta(3, 24)
    out = torch.compile(block, fullgraph=True)(x, theta)
    expected = block(x, theta)
    torch.testing.assert_close(out, expected)

    d_out = torch.randn_like(out)
    (dx,) = torch.autograd.grad(out, x, d_out)
    (expected_dx,) = torch.autograd.grad(expected, x, d_out)
    torch.testing.assert_close(dx, expected_dx)


@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_compiled_once_for_all_offsets_and_lengths(act, dim):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def compiled(x: torch.Tensor, theta: torch.Tensor, offset: int) -> torch.Tensor:
        return attnops.lrpe_rotate(x, theta, offset=offset, act=act, dim=dim)

    theta = make_theta(3, 24)
    for n, offset in [(33, 5), (33, 6), (33, 10**9), (47, 6), (48, 7), (130, -3)]:
        x = torch.randn(2, n, 3, 48, requires_grad=True)
        d_out = torch.randn(2, n, 3, 48)
        out = compiled(x, theta, offset)
        assert_close(out, reference.lrpe_rotate(x, theta, offset, act, dim), x.dtype, act)
        out.backward(d_out)
        expected = reference.lrpe_rotate_backward(x, theta, d_out, offset, act, dim)
        assert_close(x.grad, expected, x.dtype, act)
    assert counter.frame_count == 1


def test_decoding_compiles_a_few_times_only():
    """Without dynamic=True: one graph for the first offset, one for the rest."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def compiled(x: torch.Tensor, theta: torch.Tensor, offset: int) -> torch.Tensor:
        return attnops.lrpe_rotate(x, theta, offset=offset)

    theta = make_theta(3, 24)
    for offset in range(100, 120):
        compiled(torch.randn(2, 1, 3, 48), theta, offset)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["meta", "fake"])
def test_without_data(device, dtype):
    """Meta and fake tensors have the shape, strides and type of the real result."""

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        on = "meta" if device == "meta" else "cpu"
        x = torch.empty(2, 3, 33, 48, dtype=dtype, device=on).transpose(1, 2)
        return x.requires_grad_(), torch.empty(3, 24, device=on)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        x, theta = make()
        out = attnops.lrpe_rotate(x, theta, offset=7, act="softmax", dim=1)
        return out, BACKWARD(x.detach(), theta, out.detach(), 7, ACT["softmax"], 1)

    if device == "fake":
        with FakeTensorMode():
            results = run()
    else:
        results = run()
    for result in results:
        assert result.shape == (2, 33, 3, 48)
        assert result.is_contiguous()
        assert result.dtype == dtype
    assert results[0].requires_grad


def test_no_gradient_when_none_is_needed():
    x, theta, _ = make_case()
    assert attnops.lrpe_rotate(x, theta, act="silu").grad_fn is None
    assert saved_elements(lambda: attnops.lrpe_rotate(x, theta, act="silu")) == 0
    x.requires_grad_()
    with torch.no_grad():
        assert attnops.lrpe_rotate(x, theta, act="silu").grad_fn is None
        assert saved_elements(lambda: attnops.lrpe_rotate(x, theta, act="silu")) == 0
    with torch.inference_mode():
        assert not attnops.lrpe_rotate(x, theta, act="silu").requires_grad


@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_nothing_but_the_inputs_is_kept(act, dim):
    """And x only if the activation's backward needs it."""
    x, theta, _ = make_case()
    x.requires_grad_()
    needed = theta.numel() + (0 if act == "none" else x.numel())
    assert saved_elements(lambda: attnops.lrpe_rotate(x, theta, act=act, dim=dim)) <= needed


@pytest.mark.parametrize("offset", [0, 7])
def test_second_derivative(offset):
    """Without an activation the backward is linear, and its own backward is the forward."""
    x, theta, d_out = make_case()
    x.requires_grad_()
    d_out.requires_grad_()
    out = attnops.lrpe_rotate(x, theta, offset)
    (dx,) = torch.autograd.grad(out, x, d_out, create_graph=True)
    weight = torch.randn_like(dx)
    (d_d_out,) = torch.autograd.grad(dx, d_out, weight)
    assert_close(d_d_out, reference.lrpe_rotate(weight, theta, offset), x.dtype)

    out = attnops.lrpe_rotate(x, theta, offset, act="silu")
    (dx,) = torch.autograd.grad(out, x, d_out, create_graph=True)
    with pytest.raises(NotImplementedError, match="lrpe_rotate: no second derivative for act silu"):
        dx.sum().backward()


def test_x_changed_in_place_is_noticed():
    x, theta, _ = make_case()
    leaf = x.requires_grad_()
    y = leaf * 1
    out = attnops.lrpe_rotate(y, theta, act="silu")
    y.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        out.sum().backward()


def test_a_result_is_an_ordinary_tensor():
    x, theta, d_out = make_case(b=2, n=1024, h=8, d=128)
    x.requires_grad_()
    out = attnops.lrpe_rotate(x, theta)
    before = out.detach().clone()
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(out.detach()), before)
    out = out.mul_(2)
    assert torch.equal(out, 2 * before)
    out.backward(d_out)
    expected = reference.lrpe_rotate_backward(x, theta, 2 * d_out)
    assert_close(x.grad, expected, x.dtype)


def test_several_threads_at_once():
    """Each call has its own inputs and gets its own result."""
    cases = [make_case(b=1 + i % 3, n=100 + 37 * i) for i in range(8)]
    acts = [ACTS[i % len(ACTS)] for i in range(len(cases))]

    def run(i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, theta, d_out = cases[i]
        act, dim = acts[i]
        x = x.clone().requires_grad_()
        out = attnops.lrpe_rotate(x, theta, offset=i, act=act, dim=dim)
        (dx,) = torch.autograd.grad(out, x, d_out)
        return out, dx

    alone = [run(i) for i in range(len(cases))]
    with ThreadPoolExecutor(max_workers=4) as pool:
        for _ in range(10):
            for (out, dx), (expected, expected_dx) in zip(
                pool.map(run, range(len(cases))), alone, strict=True
            ):
                assert torch.equal(out, expected)
                assert torch.equal(dx, expected_dx)


@pytest.mark.usefixtures("threads_restored")
def test_one_thread_is_one_thread():
    """With torch set to one thread the processor time is no more than the time that passes."""
    x, theta, _ = make_case(b=4, n=2048, h=8, d=128)
    torch.set_num_threads(1)
    attnops.lrpe_rotate(x, theta)
    time.sleep(0.1)  # other threads of the pool go to sleep
    wall, used = time.perf_counter(), time.process_time()
    for _ in range(20):
        attnops.lrpe_rotate(x, theta, act="silu")
    wall, used = time.perf_counter() - wall, time.process_time() - used
    assert used <= 1.25 * wall
