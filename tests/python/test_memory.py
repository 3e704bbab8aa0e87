"""The buffers of large results: given back, used again, and never two results in one."""

import gc
import re
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import attnops
from lrpe_cases import make_theta

MB = 2**20
ROWS = 1024  # tokens of 64 kB: a result of 64 MB


def resident() -> int:
    """The bytes of memory that this process holds."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match
    return int(match[1]) * 1024


def make_x(rows: int = ROWS) -> torch.Tensor:
    """An input whose result, at position 0 or with theta 0, is itself."""
    return torch.randn(1, rows, 128, 128)


THETA = torch.zeros(1, 64)


def test_a_freed_result_is_used_again():
    x = make_x()
    out = attnops.lrpe_rotate(x, THETA)
    address = out.data_ptr()
    del out
    out = attnops.lrpe_rotate(x, THETA)
    assert out.data_ptr() == address
    assert torch.equal(out, x)


def test_a_gradient_is_used_again():
    x = make_x().requires_grad_()
    out = attnops.lrpe_rotate(x, THETA)
    d_out = torch.ones_like(out)
    (dx,) = torch.autograd.grad(out, x, d_out, retain_graph=True)
    address = dx.data_ptr()
    del dx
    (dx,) = torch.autograd.grad(out, x, d_out, retain_graph=True)
    assert dx.data_ptr() == address
    assert torch.equal(dx, d_out)


def test_a_result_in_use_is_left_alone():
    x, y = make_x(), make_x()
    first = attnops.lrpe_rotate(x, THETA)
    second = attnops.lrpe_rotate(y, THETA)
    assert second.data_ptr() != first.data_ptr()
    assert torch.equal(first, x)
    assert torch.equal(second, y)


def test_a_view_keeps_its_result():
    x, y = make_x(), make_x()
    view = attnops.lrpe_rotate(x, THETA)[:, -1]
    other = attnops.lrpe_rotate(y, THETA)
    assert torch.equal(view, x[:, -1])
    assert torch.equal(other, y)


def test_empty_cache_gives_memory_back():
    x = make_x()
    out = attnops.lrpe_rotate(x, THETA)
    del out
    before = resident()
    attnops.empty_cache()
    assert before - resident() >= 60 * MB


def test_empty_cache_leaves_results_alone():
    x = make_x()
    out = attnops.lrpe_rotate(x, THETA)
    attnops.empty_cache()
    assert torch.equal(out, x)
    del out
    attnops.empty_cache()
    attnops.empty_cache()


def test_the_pool_is_bounded_by_what_was_in_use_at_once():
    """One result at a time, of many sizes: no more than the largest is kept."""
    x = make_x()
    attnops.lrpe_rotate(x[:, :1], THETA)
    attnops.empty_cache()
    before = resident()
    for rows in [200, 900, 300, 800, 1024, 400, 700, 500, 600, 1000]:
        attnops.lrpe_rotate(x[:, :rows], THETA)
    assert resident() - before <= 64 * MB + 16 * MB
    attnops.empty_cache()


def test_x_is_freed_where_the_backward_does_not_need_it():
    attnops.empty_cache()
    leaf = torch.ones(1, 1, 1, 128, requires_grad=True)
    x = leaf.expand(1, ROWS, 128, 128).clone()
    out = attnops.lrpe_rotate(x, make_theta(1, 64))
    before = resident()
    del x
    assert before - resident() >= 60 * MB
    out.sum().backward()
    assert leaf.grad is not None


def peak_of(call: Callable[[], torch.Tensor]) -> int:
    """The bytes that a call needs at its peak, beyond what it leaves behind as its result."""
    attnops.empty_cache()
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")
    result = call()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak
    return int(peak[1]) * 1024 - before - result.nbytes


# A call's scratch, and 2 MB for the kernel's coarse count.
SCRATCH = 8 * MB + 2 * MB


def test_nothing_beyond_the_output_but_scratch():
    x = make_x()
    for act, dim in [("none", None), ("silu", None), ("softmax", -1), ("softmax", 1)]:
        attnops.lrpe_rotate(x[:, :8], THETA, act=act, dim=dim)
        assert peak_of(partial(attnops.lrpe_rotate, x, THETA, act=act, dim=dim)) <= SCRATCH
    attnops.empty_cache()


GRID = (16, 32)
GRID_THETA = torch.zeros(1, 64)


def make_grid_x() -> torch.Tensor:
    """An input of 32 MB for 64 MB of output, itself and zeros."""
    return torch.randn(2, 64, 512, 128)


def test_an_encoded_grid_comes_from_the_pool():
    x = make_grid_x().requires_grad_()
    out = attnops.md_lrpe_cosine(x, GRID_THETA, GRID)
    d_out = torch.ones_like(out)
    (dx,) = torch.autograd.grad(out, x, d_out)
    addresses = out.data_ptr(), dx.data_ptr()
    del out, dx
    out = attnops.md_lrpe_cosine(x, GRID_THETA, GRID)
    (dx,) = torch.autograd.grad(out, x, d_out)
    assert (out.data_ptr(), dx.data_ptr()) == addresses
    assert torch.equal(out[..., :128], x)
    assert not out[..., 128:].any()
    assert torch.equal(dx, torch.ones_like(x))


def test_nothing_beyond_the_encoded_grid_but_scratch():
    x = make_grid_x()
    table = attnops.lrpe_table(GRID_THETA, GRID, 128)
    for act, dim in [("none", None), ("silu", None), ("softmax", -1), ("softmax", 2)]:
        for angles in (None, table):
            call = partial(
                attnops.md_lrpe_cosine, x, GRID_THETA, GRID, act=act, dim=dim, table=angles
            )
            call()
            assert peak_of(call) <= SCRATCH
    attnops.empty_cache()


@pytest.mark.parametrize(("act", "freed"), [("none", True), ("silu", False)])
def test_a_grid_is_freed_where_the_backward_does_not_need_it(act: str, freed: bool):
    leaf = torch.ones(1, 1, 1, 128, requires_grad=True)
    x = leaf.expand(2, 64, 512, 128).clone()
    out = attnops.md_lrpe_cosine(x, GRID_THETA, GRID, act=act)
    tensor = weakref.ref(x)
    del x
    assert (tensor() is None) == freed
    out.sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("lrpe", ["cosine", "rotate"])
def test_no_activated_or_encoded_copy(lrpe: str):
    """Of 16 MB inputs; the scratch has the KV of heads in work, not of all."""
    q, k, v, g = (torch.randn(2, 64, 512, 64) for _ in range(4))
    theta = torch.zeros(1, 64 if lrpe == "cosine" else 32)
    for act, dim in [("none", None), ("silu", None), ("softmax", -1), ("softmax", 2)]:
        acts = {f"{name}_{key}": x for name in "qkvg" for key, x in (("act", act), ("dim", dim))}
        call = partial(attnops.flao_fal, q, k, v, g, **acts, theta=theta, lrpe=lrpe)
        call()
        assert peak_of(call) <= SCRATCH
    attnops.empty_cache()
