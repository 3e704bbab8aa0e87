"""md_lrpe_cosine as a part of PyTorch: autograd, torch.compile, fake tensors, threads."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import attnops
import reference
from lrpe_cases import DTYPES, MD_ACT_IDS, MD_ACTS, make_grid, make_theta
from support import ACT, saved_elements
from tolerances import assert_close

OPERATOR = torch.ops.attnops.md_lrpe_cosine.default
BACKWARD = torch.ops.attnops.md_lrpe_cosine_backward.default
TABLE = torch.ops.attnops.lrpe_table.default
GRID = (2, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_opcheck(act, dim, dtype):
    x, theta, d_out = make_grid(GRID, 1, d=8, dtype=dtype)
    options = (GRID, 1, 0, ACT[act], dim)
    table = attnops.lrpe_table(theta, GRID, 8)
    torch.library.opcheck(OPERATOR, (x, theta, None, *options))
    torch.library.opcheck(OPERATOR, (x.requires_grad_(), None, table, *options))
    torch.library.opcheck(BACKWARD, (x.detach(), theta, None, d_out, *options))
    torch.library.opcheck(BACKWARD, (x.detach(), None, table, d_out, *options))
    if act == "none":
        torch.library.opcheck(BACKWARD, (None, theta, None, d_out.requires_grad_(), *options))
    torch.library.opcheck(TABLE, (theta.to(dtype), GRID, 8, 0))


@pytest.mark.parametrize(("act", "dim"), [("none", None), ("silu", None), ("softmax", 2)])
def test_opcheck_with_strides(act, dim):
    theta = make_theta(3, 8)
    x = torch.randn(2, 5, 3, 8).transpose(1, 2).requires_grad_()
    torch.library.opcheck(OPERATOR, (x, theta, None, (5,), 0, 7, ACT[act], dim))
    features_apart = torch.randn(2, 3, 8, 5).transpose(2, 3)
    d_out = torch.randn(2, 3, 16, 5).transpose(2, 3)
    torch.library.opcheck(OPERATOR, (features_apart, theta, None, (5,), 0, 7, ACT[act], dim))
    torch.library.opcheck(BACKWARD, (features_apart, theta, None, d_out, (5,), 0, 7, ACT[act], dim))


@pytest.mark.parametrize("with_table", [False, True])
def test_compiled_by_inductor(with_table):
    """In one graph with its neighbours, forward and backward."""

    def block(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        table = attnops.lrpe_table(theta, (4, 5), 24) if with_table else None
        return attnops.md_lrpe_cosine(2 * x, theta, (4, 5), l=3, act="silu", table=table) + 1

    torch._dynamo.reset()
    x, theta, d_out = make_grid()
    x = x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    out = torch.compile(block, fullgraph=True)(x, theta)
    expected = block(x, theta)
    torch.testing.assert_close(out, expected)

    (dx,) = torch.autograd.grad(out, x, d_out)
    (expected_dx,) = torch.autograd.grad(expected, x, d_out)
    torch.testing.assert_close(dx, expected_dx)


@pytest.mark.parametrize("with_table", [False, True])
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_compiled_once_for_all_offsets_and_lengths(act, dim, with_table):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def compiled(x: torch.Tensor, theta: torch.Tensor, l: int, offset: int) -> torch.Tensor:
        shape = (x.shape[2] - l,)
        if with_table:
            table = attnops.lrpe_table(theta, shape, x.shape[3], offset)
            return attnops.md_lrpe_cosine(x, None, shape, l=l, act=act, dim=dim, table=table)
        return attnops.md_lrpe_cosine(x, theta, shape, l=l, offset=offset, act=act, dim=dim)

    for n, l, offset in [(33, 2, 5), (33, 3, 6), (33, 2, 10**9), (47, 9, 6), (48, 5, 7)]:
        x, theta, d_out = make_grid((n,), l)
        x.requires_grad_()
        out = compiled(x, theta, l, offset)
        expected = reference.md_lrpe_cosine(x, theta, (n,), l, offset, act, dim)
        assert_close(out, expected, x.dtype, act)
        out.backward(d_out)
        expected = reference.md_lrpe_cosine_backward(x, theta, d_out, (n,), l, offset, act, dim)
        assert_close(x.grad, expected, x.dtype, act)
    assert counter.frame_count == 1


def test_compiled_once_for_all_grids():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def compiled(x: torch.Tensor, theta: torch.Tensor, height: int, width: int) -> torch.Tensor:
        l = x.shape[2] - height * width
        return attnops.md_lrpe_cosine(x, theta, (height, width), l=l, act="silu")

    for shape, l in [((4, 5), 3), ((5, 4), 2), ((7, 3), 9), ((16, 33), 4)]:
        x, theta, d_out = make_grid(shape, l)
        x.requires_grad_()
        out = compiled(x, theta, *shape)
        assert_close(out, reference.md_lrpe_cosine(x, theta, shape, l, 0, "silu"), x.dtype, "silu")
        out.backward(d_out)
        expected = reference.md_lrpe_cosine_backward(x, theta, d_out, shape, l, 0, "silu")
        assert_close(x.grad, expected, x.dtype, "silu")
    assert counter.frame_count == 1


def test_decoding_compiles_a_few_times_only():
    """Without dynamic=True: one graph for the first offset, one for the rest."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def compiled(x: torch.Tensor, theta: torch.Tensor, offset: int) -> torch.Tensor:
        return attnops.md_lrpe_cosine(x, theta, (1,), offset=offset)

    theta = make_theta(3, 24)
    for offset in range(100, 120):
        compiled(torch.randn(2, 3, 1, 24), theta, offset)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["meta", "fake"])
def test_without_data(device, dtype):
    """Meta and fake tensors have the shape, strides and type of the real result."""

    def run() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        on = "meta" if device == "meta" else "cpu"
        x = torch.empty(2, 23, 3, 24, dtype=dtype, device=on).transpose(1, 2).requires_grad_()
        theta = torch.empty(3, 12, dtype=dtype, device=on)
        table = attnops.lrpe_table(theta, (4, 5), 24)
        out = attnops.md_lrpe_cosine(x, None, (4, 5), l=3, act="softmax", dim=2, table=table)
        options = ((4, 5), 3, 0, ACT["softmax"], 2)
        return table, out, BACKWARD(x.detach(), theta, None, out.detach(), *options)

    if device == "fake":
        with FakeTensorMode():
            table, out, dx = run()
    else:
        table, out, dx = run()
    assert table.shape == (3, 9, 12, 2)
    assert table.dtype == torch.float32
    assert out.shape == (2, 3, 23, 48)
    assert out.requires_grad
    assert dx.shape == (2, 3, 23, 24)
    for result in (out, dx):
        assert result.is_contiguous()
        assert result.dtype == dtype


def test_no_gradient_when_none_is_needed():
    x, theta, _ = make_grid()

    def call() -> torch.Tensor:
        return attnops.md_lrpe_cosine(x, theta, (4, 5), l=3, act="silu")

    assert call().grad_fn is None
    assert saved_elements(call) == 0
    x.requires_grad_()
    with torch.no_grad():
        assert call().grad_fn is None
        assert saved_elements(call) == 0
    with torch.inference_mode():
        assert not call().requires_grad


@pytest.mark.parametrize("with_table", [False, True])
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_nothing_but_the_inputs_is_kept(act, dim, with_table):
    """And x only if the activation's backward needs it."""
    x, theta, _ = make_grid()
    x.requires_grad_()
    table = attnops.lrpe_table(theta, (4, 5), 24) if with_table else None
    angles = theta if table is None else table
    needed = angles.numel() + (0 if act == "none" else x.numel())

    def call() -> torch.Tensor:
        return attnops.md_lrpe_cosine(x, theta, (4, 5), l=3, act=act, dim=dim, table=table)

    assert saved_elements(call) <= needed


@pytest.mark.parametrize("with_table", [False, True])
def test_second_derivative(with_table):
    """Without an activation the backward is linear, and its own backward is the forward."""
    x, theta, d_out = make_grid()
    table = attnops.lrpe_table(theta, (4, 5), 24) if with_table else None
    x.requires_grad_()
    d_out.requires_grad_()
    out = attnops.md_lrpe_cosine(x, theta, (4, 5), l=3, table=table)
    (dx,) = torch.autograd.grad(out, x, d_out, create_graph=True)
    weight = torch.randn_like(dx)
    (d_d_out,) = torch.autograd.grad(dx, d_out, weight)
    assert_close(d_d_out, reference.md_lrpe_cosine(weight, theta, (4, 5), 3), x.dtype)

    out = attnops.md_lrpe_cosine(x, theta, (4, 5), l=3, act="silu", table=table)
    (dx,) = torch.autograd.grad(out, x, d_out, create_graph=True)
    with pytest.raises(NotImplementedError, match="md_lrpe_cosine"):
        dx.sum().backward()


def test_x_changed_in_place_is_noticed():
    x, theta, _ = make_grid()
    y = x.requires_grad_() * 1
    out = attnops.md_lrpe_cosine(y, theta, (4, 5), l=3, act="silu")
    y.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        out.sum().backward()


def test_several_threads_at_once():
    """Each call has its own inputs and gets its own result."""
    cases = [make_grid((10, 3 + 4 * i), i, b=1 + i % 3) for i in range(8)]
    acts = [MD_ACTS[i % len(MD_ACTS)] for i in range(len(cases))]

    def run(i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, theta, d_out = cases[i]
        act, dim = acts[i]
        shape = (10, 3 + 4 * i)
        x = x.clone().requires_grad_()
        table = attnops.lrpe_table(theta, shape, x.shape[3]) if i % 2 else None
        out = attnops.md_lrpe_cosine(x, theta, shape, l=i, act=act, dim=dim, table=table)
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
    x, theta, _ = make_grid((32, 64), 0, b=4, h=8, d=64)
    torch.set_num_threads(1)
    attnops.md_lrpe_cosine(x, theta, (32, 64))
    time.sleep(0.1)  # other threads of the pool go to sleep
    wall, used = time.perf_counter(), time.process_time()
    for _ in range(20):
        attnops.md_lrpe_cosine(x, theta, (32, 64), act="silu")
    wall, used = time.perf_counter() - wall, time.process_time() - used
    assert used <= 1.25 * wall
