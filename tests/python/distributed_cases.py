"""What runs in the processes of test_distributed.py: a case is a function of the rank's world."""

import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import attnops
import attnops.distributed
from tolerances import assert_same_on_ranks

TOKENS = 53
CASES: dict[str, Callable[["World"], None]] = {}
TIMEOUT = timedelta(seconds=30)


class World:
    """A rank, and how it cuts sequences."""

    def __init__(self, rank: int, size: int, dtype: torch.dtype) -> None:
        self.rank, self.size, self.dtype = rank, size, dtype
        # Uneven; from three ranks on the second is empty.
        self.sizes = [[10, 43], [10, 0, 43], [20, 0, 13, 20]][size - 2]

    def shard(self, x: Tensor, axis: int) -> Tensor:
        start = sum(self.sizes[: self.rank])
        part = x.detach().narrow(axis, start, self.sizes[self.rank]).clone()
        return part.requires_grad_(x.is_floating_point())

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The same on all ranks."""
        return torch.randn(shape).to(dtype or self.dtype).requires_grad_()

    def compare(
        self,
        plain: Callable[..., Tensor | tuple[Tensor, ...]],
        shared: Callable[..., Tensor | tuple[Tensor, ...]],
        inputs: list[Tensor],
        axes: list[int | None],
        out_axis: int | None,
        merged: bool = False,
    ) -> None:
        """Outputs and gradients; axes are those of the tokens, None of what all ranks have."""
        locals_ = [
            x.detach().clone().requires_grad_() if axis is None else self.shard(x, axis)
            for x, axis in zip(inputs, axes, strict=True)
        ]
        expected, actual = plain(*inputs), shared(*locals_)
        d_out = torch.randn(expected.shape).to(expected.dtype)
        own = d_out if out_axis is None else self.shard(d_out, out_axis).detach()
        if out_axis is None and self.rank > 0:
            own = torch.zeros_like(own)  # of the sum of the ranks' gradients
        wanted = expected if out_axis is None else self.shard(expected, out_axis)
        assert_same_on_ranks(actual, wanted, expected, merged)
        gradients = torch.autograd.grad(expected, inputs, d_out)
        found = torch.autograd.grad(actual, locals_, own)
        for gradient, part, axis in zip(gradients, found, axes, strict=True):
            if axis is None:
                part = part.float()
                dist.all_reduce(part)
                assert_same_on_ranks(part.to(gradient.dtype), gradient, merged=True)
            else:
                assert_same_on_ranks(part, self.shard(gradient, axis), gradient, merged)


def case(function: Callable[[World], None]) -> Callable[[World], None]:
    """A case for every world and type."""
    CASES[function.__name__] = function
    return function


@case
def flao(world: World) -> None:
    inputs = [world.random(2, 3, TOKENS, 16) for _ in range(4)]
    world.compare(attnops.flao, attnops.distributed.flao, inputs, [2] * 4, 2)


@case
def flao_fal(world: World) -> None:
    inputs = [world.random(2, 3, TOKENS, 16) for _ in range(4)]
    elementwise = {"q_act": "silu", "k_act": "softmax", "k_dim": -1, "g_act": "sigmoid"}
    over_sequence = {f"{x}_{y}": z for x in "qkvg" for y, z in (("act", "softmax"), ("dim", 2))}
    for encoding in (
        {"lrpe": "cosine"},
        {"lrpe": "rotate", "l": 4},
        {"lrpe": "cosine", "shape": (10, 5), "l": 3},
        {"lrpe": "rotate", "shape": (5, 5, 2), "l": 3},
    ):
        theta = torch.rand(3, 16 if encoding["lrpe"] == "cosine" else 8, requires_grad=True)
        for acts in (elementwise, over_sequence):
            options = acts | encoding

            def plain(q, k, v, g, theta, options=options):
                return attnops.flao_fal(q, k, v, g, theta=theta, **options)

            def shared(q, k, v, g, theta, options=options):
                return attnops.distributed.flao_fal(
                    q, k, v, g, theta=theta, **options, sizes=world.sizes
                )

            # The activated tensors are merged in float32, their gradients rounded twice.
            merged = acts is over_sequence
            world.compare(plain, shared, [*inputs, theta], [2] * 4 + [None], 2, merged)


def _decays(world: World, kind: str) -> list[Tensor]:
    small = {"dtype": torch.float32}
    if kind == "constant":
        decays = [world.random(4, **small)]
    elif kind == "token":
        decays = [world.random(2, TOKENS, 4, **small)]
    else:
        decays = [world.random(2, TOKENS, 4, 16, **small), world.random(2, TOKENS, 4, 8, **small)]
    return [(-0.1 * x.detach().abs()).requires_grad_() for x in decays]


@case
def linear_attention(world: World) -> None:
    q, k, v = (world.random(2, TOKENS, *x) for x in ((2, 16), (2, 16), (4, 8)))
    state = world.random(2, 4, 16, 8, dtype=torch.float32)
    for kind in ("none", "constant", "token", "feature"):
        decays = [] if kind == "none" else _decays(world, kind)

        def run(call, q, k, v, state, *decays, **more):
            log, log_v = (*decays, None, None)[:2]
            return call(q, k, v, log, log_decay_v=log_v, initial_state=state, **more)

        def plain(*x):
            return run(attnops.linear_attention, *x)

        def shared(*x):
            return run(attnops.distributed.linear_attention, *x)

        axes = [1, 1, 1, None] + [None if x.ndim == 1 else 1 for x in decays]
        world.compare(plain, shared, [q, k, v, state, *decays], axes, 1)
        # The last state, on every rank.
        world.compare(
            lambda *x: run(attnops.linear_attention, *x, output_state=True)[1],
            lambda *x: run(attnops.distributed.linear_attention, *x, output_state=True)[1],
            [q, k, v, state, *decays],
            axes,
            None,
        )


def _factors(world: World, queries: int) -> list[Tensor]:
    shapes = [(queries, 3, 2), (TOKENS, 3, 2), (TOKENS, 3, 3)]
    shapes += [(queries, 2, 8), (TOKENS, 2, 8), (TOKENS, 3, 10)]
    return [world.random(2, *shape) for shape in shapes]


@case
def tpa(world: World) -> None:
    axes = [None, 1, 1, None, 1, 1]
    for queries, causal in ((20, True), (TOKENS, True), (20, False)):
        world.compare(
            lambda *x, causal=causal: attnops.tpa(*x, causal=causal),
            lambda *x, causal=causal: attnops.distributed.tpa(*x, causal=causal),
            _factors(world, queries),
            axes,
            None,
            merged=True,
        )


@case
def tpa_decode(world: World) -> None:
    factors = _factors(world, 1)
    axes = [None, 1, 1, None, 1, 1]
    call = attnops.distributed.tpa_decode
    world.compare(attnops.tpa_decode, call, factors, axes, None, merged=True)
    local = [
        x.detach() if i is None else world.shard(x, i).detach()
        for x, i in zip(factors, axes, strict=True)
    ]
    with torch.no_grad():
        out, lse = attnops.tpa_decode(*factors, return_lse=True)
        shared, shared_lse = call(*local, return_lse=True)
        assert_same_on_ranks(shared, out, merged=True)
        assert_same_on_ranks(shared_lse, lse)
        # Rank 1, and no token in any cache.
        rank_1 = [
            x if x.shape[1] == 1 else x[..., 0] if i in (1, 2) else x[:, :, 0]
            for i, x in enumerate(local)
        ]
        assert call(*rank_1).shape == (2, 1, 3, 10)
        nothing = [x if x.shape[1] == 1 and i in (0, 3) else x[:, :0] for i, x in enumerate(local)]
        assert not call(*nothing).any()


@case
def encodings(world: World) -> None:
    x, theta = world.random(2, 3, TOKENS, 16), torch.rand(3, 8, requires_grad=True)
    for act in ({}, {"act": "silu"}, {"act": "softmax", "dim": -1}, {"act": "softmax", "dim": 2}):
        merged = act.get("dim") == 2
        options = {"layout": "bhnd", "offset": 7} | act
        world.compare(
            lambda x, t, options=options: attnops.lrpe_rotate(x, t, **options),
            lambda x, t, options=options: attnops.distributed.lrpe_rotate(x, t, **options),
            [x, theta],
            [2, None],
            2,
            merged,
        )
        for shape in ((50,), (10, 5), (5, 5, 2)):
            angles = torch.rand(3, -(-16 // len(shape)), requires_grad=True)
            world.compare(
                lambda x, t, a=act, s=shape: attnops.md_lrpe_cosine(x, t, s, 3, **a),
                lambda x, t, a=act, s=shape: attnops.distributed.md_lrpe_cosine(x, t, s, 3, **a),
                [x, angles],
                [2, None],
                2,
                merged,
            )
    table = attnops.lrpe_table(torch.rand(3, 16), (50,), 16)
    whole = attnops.md_lrpe_cosine(x, None, (50,), 3, table=table)
    part = world.shard(x, 2)
    shared = attnops.distributed.md_lrpe_cosine(part, None, (50,), 3, table=table)
    assert torch.equal(shared, world.shard(whole, 2))
    positions = torch.randint(-9, 99, (TOKENS,))
    for where in ({"offset": 5}, {"positions": positions}):
        own = {n: world.shard(p, 0) if n == "positions" else p for n, p in where.items()}
        whole = attnops.rope(x, x[:, :1], theta[0], layout="bhnd", **where)
        shared = attnops.distributed.rope(part, part[:, :1], theta[0], layout="bhnd", **own)
        for a, b in zip(shared, whole, strict=True):
            assert torch.equal(a, world.shard(b, 2))


@case
def one_rank_is_the_plain_operator(world: World) -> None:
    # Every rank takes part in making every group.
    groups = [dist.new_group([rank], timeout=TIMEOUT) for rank in range(world.size)]
    own = groups[world.rank]
    q, k, v, g = (world.random(1, 2, 9, 8) for _ in range(4))
    shared = attnops.distributed
    theta = torch.rand(2, 4)
    factors = _factors(world, 1)
    pairs = [
        (attnops.flao, shared.flao, (q, k, v, g)),
        (attnops.linear_attention, shared.linear_attention, (q, k, v)),
        (attnops.tpa, shared.tpa, factors),
        (attnops.tpa_decode, shared.tpa_decode, [x.detach() for x in factors]),
    ]
    for plain, call, inputs in pairs:
        assert torch.equal(plain(*inputs), call(*inputs, group=own))
    a = attnops.flao_fal(q, k, v, g, theta=theta, lrpe="rotate", k_act="softmax", k_dim=2)
    b = shared.flao_fal(q, k, v, g, theta=theta, lrpe="rotate", k_act="softmax", k_dim=2, group=own)
    assert torch.equal(a, b)
    options = {"layout": "bhnd", "offset": 3}
    assert torch.equal(
        attnops.lrpe_rotate(q, theta, **options), shared.lrpe_rotate(q, theta, **options, group=own)
    )
    a = attnops.rope(q, k, theta[0], **options)
    b = shared.rope(q, k, theta[0], **options, group=own)
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])
    wide = torch.rand(2, 8)
    assert torch.equal(
        attnops.md_lrpe_cosine(q, wide, (9,)), shared.md_lrpe_cosine(q, wide, (9,), group=own)
    )


@case
def same_bits_every_time(world: World) -> None:
    q, k, v, g = (world.shard(world.random(2, 3, TOKENS, 16), 2) for _ in range(4))
    decay = (-torch.rand(2, 3, q.shape[2])).requires_grad_()

    def run() -> list[Tensor]:
        out = attnops.distributed.flao(q, k, v, g)
        out = out + attnops.distributed.linear_attention(q, k, v, decay, layout="bhnd")
        return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v, g, decay))]

    first = run()
    for a, b in zip(first, run(), strict=True):
        assert torch.equal(a, b)


def run_cases(rank: int, size: int, folder: str, names: list[str], modules: list[str]) -> None:
    """One process; writes the text of every failure to a file of its own."""
    for module in modules:
        __import__(module)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=size, timeout=TIMEOUT
    )
    try:
        for name in names:
            # Four ranks share two cores in the smallest of test machines.
            for dtype in (torch.float32, torch.bfloat16)[: 2 if size < 4 else 1]:
                torch.manual_seed(2024)
                try:
                    CASES[name](World(rank, size, dtype))
                except Exception:
                    text = f"rank {rank} of {size}, {dtype}:\n{traceback.format_exc()}"
                    with Path(folder, f"{name}.failed").open("a") as file:
                        file.write(text)
            Path(folder, f"{name}.{rank}.done").touch()
    finally:
        dist.destroy_process_group()
