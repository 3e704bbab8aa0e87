"""The buffers of large results: given back, used again, and never two results in one."""

import ctypes
import gc
import re
import resource
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
    """The bytes of memory that this process holds, without what malloc has free: a tensor may be
    in a gap that earlier tests left in its heap."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
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


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_results_of_different_sizes_share_pages():
    """Two results in turns, neither of which fits the buffer of the other well, each 20 or more
    huge pages, beside one that stays: no memory is new."""
    x = make_x()
    kept = attnops.lrpe_rotate(x[:, :700], THETA)

    def turn() -> bool:
        return all(
            torch.equal(attnops.lrpe_rotate(x[:, :rows], THETA), x[:, :rows])
            for rows in (1024, 640)
        )

    assert turn()
    before = page_faults()
    assert all(turn() for _ in range(4))
    assert page_faults() - before < 20
    assert torch.equal(kept, x[:, :700])
    del kept
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


def peak_of(call: Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]) -> int:
    """The bytes that a call needs at its peak, beyond what it leaves behind as its results."""
    attnops.empty_cache()
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")
    result = call()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak
    results = [result] if isinstance(result, torch.Tensor) else result
    return int(peak[1]) * 1024 - before - sum(x.nbytes for x in results)


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


def tpa_factors(b: int, n: int, m: int, h: int) -> list[torch.Tensor]:
    """Of ranks 6/2/2, bfloat16: aq, ak, av, bq, bk and bv."""
    shapes = [(b, n, h, 6), (b, m, h, 2), (b, m, h, 2), (b, n, 6, 64), (b, m, 2, 64), (b, m, 2, 64)]
    return [torch.randn(shape).bfloat16() for shape in shapes]


@pytest.mark.parametrize("split", ["b", "bh", "bn"])
def test_decoding_with_ranks_needs_little_scratch(split: str):
    """The cache has 37 MB, K and V would have 1.3 GB."""
    factors = tpa_factors(2, 1, 32768, 78)
    attnops.tpa_decode(*[x[:, :64] for x in factors], split=split)
    assert peak_of(lambda: attnops.tpa_decode(*factors, split=split)) <= SCRATCH


# Many heads in waves; and so many tokens that the backward cuts them into segments.
@pytest.mark.parametrize(("n", "h"), [(1024, 34), (10240, 1)])
def test_tpa_needs_64_mb_of_scratch(n: int, h: int):
    factors = [x.requires_grad_() for x in tpa_factors(1, n, n, h)]
    small = attnops.tpa(*[x[:, :8] for x in factors])
    torch.autograd.grad(small.sum(), factors)
    out = None

    def forward() -> torch.Tensor:
        nonlocal out
        out = attnops.tpa(*factors)
        return out

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, factors, out.detach())

    for call in (forward, backward):
        assert peak_of(call) <= 64 * MB + 2 * MB


MALLINFO_FIELDS = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO_FIELDS]


def allocated() -> int:
    """Bytes that malloc has handed out."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo
    gc.collect()
    return mallinfo2().uordblks


def calls_of_every_operator() -> dict[str, Callable[[], object]]:
    """Small calls with as many options as there are."""
    x, theta = torch.randn(1, 2, 3, 8), make_theta(3, 4)
    grid, table = torch.randn(1, 3, 4, 8), attnops.lrpe_table(make_theta(3, 4), (2, 2), 8)
    q = torch.randn(1, 3, 4, 8)
    acts = {f"{name}_act": "silu" for name in "qkv"} | {"g_act": "softmax", "g_dim": -1}
    factors = [torch.randn(s) for s in [(1, 1, 3, 2), (1, 4, 3), (1, 4, 3), (1, 1, 2, 8)]]
    factors += [torch.randn(1, 4, 8), torch.randn(1, 4, 8)]

    def backward(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
        x = x.detach().requires_grad_()
        torch.autograd.grad(function(x).sum(), x)

    rotate = partial(attnops.lrpe_rotate, theta=theta, offset=1, act="softmax", dim=-1)
    encode = partial(attnops.md_lrpe_cosine, theta=None, shape=(2, 2), act="silu", table=table)
    attend = partial(
        attnops.flao_fal, k=q, v=q, g=q, **acts, theta=theta, shape=(2, 2), lrpe="cosine"
    )
    plain = partial(attnops.flao, k=q, v=q, g=q, keep="kv_qkv")
    return {
        "lrpe_rotate": lambda: rotate(x),
        "lrpe_rotate, backward": lambda: backward(rotate, x),
        "md_lrpe_cosine": lambda: encode(grid),
        "md_lrpe_cosine, backward": lambda: backward(encode, grid),
        "lrpe_table": lambda: attnops.lrpe_table(theta, (2, 2), 8),
        "flao": lambda: plain(q),
        "flao, backward": lambda: backward(plain, q),
        "flao_fal": lambda: attend(q),
        "flao_fal, backward": lambda: backward(attend, q),
        "tpa_decode": lambda: attnops.tpa_decode(*factors, scale=1.0, split="bn"),
    }


@pytest.mark.parametrize("name", calls_of_every_operator())
def test_a_call_leaves_nothing_behind(name: str):
    """Not even the 32 bytes of one small allocation for every tenth call."""
    call = calls_of_every_operator()[name]
    for _ in range(200):
        call()
    before = allocated()
    calls = 5000
    for _ in range(calls):
        call()
    assert allocated() - before < 3 * calls


def mapped() -> int:
    """The bytes of address space of this process."""
    match = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


def test_a_buffer_is_as_large_as_its_result():
    """Up to a huge page, for the alignment of its end."""
    x = make_x()
    attnops.empty_cache()
    attnops.lrpe_rotate(x[:, :8], THETA)
    before = mapped()
    out = attnops.lrpe_rotate(x, THETA)
    assert out.nbytes <= mapped() - before <= out.nbytes + 2 * MB
    attnops.empty_cache()


def test_a_much_larger_buffer_is_not_used_for_a_small_result():
    """What is kept is at most a quarter larger; the rest of it would be lost to others."""
    x = make_x()
    attnops.empty_cache()
    before = resident()
    attnops.lrpe_rotate(x, THETA)
    small = attnops.lrpe_rotate(x[:, : ROWS // 4], THETA)
    attnops.empty_cache()
    assert resident() - before <= small.nbytes + 8 * MB
    assert torch.equal(small, x[:, : ROWS // 4])


@pytest.mark.parametrize("rows", [1, ROWS], ids=["small", "from the pool"])
def test_a_result_can_be_made_smaller(rows: int):
    out = attnops.lrpe_rotate(make_x(rows), THETA)
    expected = out.flatten()[:100].clone()
    assert torch.equal(out.resize_(100), expected)


def test_a_large_result_cannot_grow():
    """torch cannot enlarge a buffer that it did not allocate, and says so. A copy can grow."""
    out = attnops.lrpe_rotate(make_x(), THETA)
    with pytest.raises(RuntimeError, match="not resizable"):
        out.resize_(2 * out.numel())
    x = make_x()
    copy = attnops.lrpe_rotate(x, THETA).clone().resize_(2 * x.numel())
    assert torch.equal(copy[: x.numel()], x.flatten())


@pytest.mark.parametrize("decay", ["constant", "feature"])
@pytest.mark.parametrize("keep", ["none", "states"])
def test_linear_attention_needs_its_results_kept_states_and_scratch(decay, keep):
    """Scratch of both passes is within 32 MB, and what is kept is a state for 1024 tokens."""
    heads, tokens, features = 2, 16384, 128
    q, k, v, d_out = (torch.randn(1, tokens, heads, features).bfloat16() for _ in range(4))
    log_decay = -torch.rand(heads) if decay == "constant" else -torch.rand(q.shape).bfloat16()
    inputs = [x.requires_grad_() for x in (q, k, v, log_decay)]
    states = tokens // 1024 * heads * features * features * 4 if keep == "states" else 0
    scratch = 32 * MB + 2 * MB
    graph = []

    def forward():
        out = attnops.linear_attention(*inputs, keep=keep)
        graph.append(out)
        return out

    def backward():
        graph.append(torch.autograd.grad(graph[0], inputs, d_out))
        return torch.empty(0)

    assert peak_of(forward) <= states + scratch
    peak = peak_of(backward)
    assert peak <= sum(g.nbytes for g in graph[1]) + scratch
    attnops.empty_cache()
