"""Cases with DTensors, counts of collectives, faults, torch.compile, and modules of torch."""

import copy
import re

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

import attnops
import attnops.distributed
from distributed_cases import World, case
from tolerances import assert_same_on_ranks

_REDUCE = torch.ops.c10d_functional.all_reduce
_GATHER = torch.ops.c10d_functional.all_gather_into_tensor


def _mesh(world: World) -> DeviceMesh:
    return init_device_mesh("cpu", (world.size,))


def _check(call, inputs: list[Tensor], mesh: DeviceMesh, placements: list[list]) -> None:
    """A call on DTensors against one on whole tensors, in both passes."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    expected = call(*inputs)
    d_out = torch.randn(expected.shape).to(expected.dtype)
    shared = [
        distribute_tensor(x.detach(), mesh, p).requires_grad_()
        for x, p in zip(inputs, placements, strict=True)
    ]
    actual = call(*shared)
    assert isinstance(actual, DTensor)
    assert_same_on_ranks(actual.full_tensor(), expected, merged=True)
    gradients = torch.autograd.grad(expected, inputs, d_out)
    found = torch.autograd.grad(actual, shared, distribute_tensor(d_out, mesh, actual.placements))
    for a, b in zip(found, gradients, strict=True):
        assert_same_on_ranks(a.full_tensor(), b, merged=True)


def _everywhere(world: World):
    """Meshes, and the letter that each of their dimensions shards; a part of them for each size."""
    if world.size == 4:
        mesh = init_device_mesh("cpu", (2, 2))
        for letters in (["b", "s"], ["s", "h"]):
            yield mesh, letters
        return
    for letter in "bhs" if world.size == 2 else "hs":
        yield _mesh(world), [letter]


def _placed(axes: str, letters: list[str]) -> list:
    return [Shard(axes.index(x)) if x in axes else Replicate() for x in letters]


@case
def dtensors(world: World) -> None:
    if world.size > 2 and world.dtype != torch.float32:
        return  # the types have their turn on two ranks
    b, h, n = 3, 4, 11
    q, k, v, g = (world.random(b, h, n, 8) for _ in range(4))
    theta, one_row = torch.rand(h, 4), torch.rand(1, 8)
    decay = -torch.rand(b, h, n)
    shapes = [(n, h, 2), (n, h, 2), (n, h, 2), (n, 2, 8), (n, 2, 8), (n, 2, 6)]
    factors = [world.random(b, *shape) for shape in shapes]
    four = ["bhs-"] * 4
    softmax = {"k_act": "softmax", "k_dim": 2}
    calls = [
        (attnops.flao, [q, k, v, g], four),
        (lambda q, k, v, g: attnops.flao(q, k, v, g, keep="kv_qkv"), [q, k, v, g], four),
        (lambda q, k, v, g: attnops.flao_out(q, attnops.flao_kv(k, v), g), [q, k, v, g], four),
        (
            lambda q, k, v, g, t: attnops.flao_fal(q, k, v, g, theta=t, lrpe="rotate", **softmax),
            [q, k, v, g, theta],
            [*four, "h-"],
        ),
        (
            lambda q, k, v, g, t: attnops.flao_fal(q, k, v, g, theta=t, g_act="silu"),
            [q, k, v, g, one_row],
            [*four, "--"],
        ),
        (
            lambda q, k, v, d: attnops.linear_attention(q, k, v, d, layout="bhnd"),
            [q, k, v, decay],
            ["bhs-", "bhs-", "bhs-", "bhs"],
        ),
        (
            lambda x, t: attnops.lrpe_rotate(x, t, 3, act="silu", layout="bhnd"),
            [q, theta],
            ["bhs-", "h-"],
        ),
        (
            lambda q, k, t: sum(attnops.rope(q, k, t, layout="bhnd", interleaved=True)),
            [q, k, theta[:1]],
            ["bhs-", "bhs-", "--"],
        ),
        (lambda x, t: attnops.md_lrpe_cosine(x, t, (11,)), [q, one_row], ["bhs-", "--"]),
        (attnops.tpa, factors, ["b-h-", "bsh-", "bsh-", "b---", "bs--", "bs--"]),
    ]
    for mesh, letters in _everywhere(world):
        for call, inputs, axes in calls:
            _check(call, inputs, mesh, [_placed(a, letters) for a in axes])
        step = [x.detach()[:, :1] if i in (0, 3) else x.detach() for i, x in enumerate(factors)]
        axes = ["b-h-", "bsh-", "bsh-", "b---", "bs--", "bs--"]
        shared = [
            distribute_tensor(x, mesh, _placed(a, letters)) for x, a in zip(step, axes, strict=True)
        ]
        out, lse = attnops.tpa_decode(*shared, return_lse=True)
        wanted, wanted_lse = attnops.tpa_decode(*step, return_lse=True)
        assert_same_on_ranks(out.full_tensor(), wanted, merged=True)
        assert_same_on_ranks(lse.full_tensor(), wanted_lse)


@case
def rules_of_operators(world: World) -> None:
    """Calls of the operators themselves; an option of any kind changes what a rule says."""
    if world.dtype != torch.float32:
        return
    mesh, ops = _mesh(world), torch.ops.attnops
    x = world.random(world.size, 2 * world.size, 6, 8).detach()

    def on(placement, y: Tensor = x) -> DTensor:
        return distribute_tensor(y, mesh, [placement])

    for axis in (0, 1):
        shared = [on(Shard(axis))] * 4
        for keep in (0, 1, 2):
            results = ops.flao(*shared, keep, None)
            whole = ops.flao(x, x, x, x, keep, None)
            kept = [Shard(axis) if keep >= i else Replicate() for i in range(3)]
            assert [r.placements[0] for r in results] == kept, (keep, results)
            for a, b in zip(results, whole, strict=True):
                assert_same_on_ranks(a.full_tensor(), b)
        gradients = ops.flao_backward(*shared, shared[0], None, None, None)
        for a, b in zip(gradients, ops.flao_backward(x, x, x, x, x, None, None, None), strict=True):
            assert_same_on_ranks(a.full_tensor(), b)
    tokens = on(Shard(2))
    kv = ops.flao_kv(tokens, tokens, None)
    assert kv.placements[0].is_partial()
    assert_same_on_ranks(kv.full_tensor(), ops.flao_kv(x, x, None))
    out = ops.flao_out(tokens, on(Replicate(), ops.flao_kv(x, x, None)), tokens, None)
    assert out.placements == (Shard(2),)
    # A bool: the same call is by heads in one layout and by tokens in the other.
    for heads_first in (True, False):
        options = (None, None, None, None, None, True, heads_first)
        out, state, _ = ops.linear_attention(*[on(Shard(1))] * 3, *options)
        wanted, wanted_state, _ = ops.linear_attention(x, x, x, *options)
        assert out.placements[0] == (Shard(1) if heads_first else Replicate()), out.placements
        assert_same_on_ranks(out.full_tensor(), wanted)
        assert_same_on_ranks(state.full_tensor(), wanted_state)
    theta = on(Replicate(), torch.rand(1, 4))
    d_theta = ops.lrpe_rotate_dtheta(on(Shard(0)), theta, on(Shard(0)), 3, 0, None)
    assert d_theta.placements[0].is_partial()
    whole = ops.lrpe_rotate_dtheta(x, theta.full_tensor(), x, 3, 0, None)
    assert_same_on_ranks(d_theta.full_tensor(), whole)


@case
def placements_that_are_refused(world: World) -> None:
    mesh = _mesh(world)
    q = torch.randn(2, 4, 8, 8)

    def on(*placements):
        return [distribute_tensor(q, mesh, [p]) for p in placements]

    s, r = Shard(2), Replicate()
    for tensors, text in (
        (on(s, Shard(3), s, s), r"flao: k has the placement .*redistribute k to"),
        (
            on(s, s, r, s),
            r"flao: v has the placement .*q is sharded by the sequence: redistribute v",
        ),
        (
            on(Shard(0), Shard(1), s, s),
            r"flao: k .*q is sharded by batch: redistribute k to Shard\(0\)",
        ),
        ([*on(s, s, s), q], "flao: g is a plain tensor and others are DTensors; distribute it"),
    ):
        _raises(text, attnops.flao, *tensors)
    partial = DTensor.from_local(q, mesh, [Partial()], run_check=False)
    _raises(
        r"flao: q has the placement .*redistribute q to Replicate\(\)",
        attnops.flao,
        partial,
        *on(r, r, r),
    )


def _raises(text: str, call, *args, **options) -> None:
    try:
        call(*args, **options)
    except ValueError as error:
        assert re.search(text, str(error)), str(error)  # noqa: PT017
    else:
        raise AssertionError(f"no error: {text}")


@case
def collectives_are_counted(world: World) -> None:
    """With the shapes' check, which is an all-gather of a few numbers, switched off."""
    q, k, v, g = (world.shard(world.random(2, 3, 53, 16), 2) for _ in range(4))
    theta, shared, sizes = torch.rand(3, 16), attnops.distributed, {"sizes": world.sizes}
    calls = [
        (lambda: shared.flao(q, k, v, g), {_REDUCE: 1}, {_REDUCE: 1}),
        (
            lambda: shared.flao_fal(q, k, v, g, "silu", theta=theta, **sizes),
            {_REDUCE: 1},
            {_REDUCE: 1},
        ),
        (
            lambda: shared.linear_attention(q, k, v, layout="bhnd", **sizes),
            {_GATHER: 1},
            {_GATHER: 1},
        ),
        (lambda: shared.lrpe_rotate(q, theta[:, :8], layout="bhnd", **sizes), {}, {}),
        (lambda: shared.md_lrpe_cosine(q, theta, (53,), **sizes), {}, {}),
    ]
    shared.set_checks(False)
    try:
        for call, forward, backward in calls:
            with CommDebugMode() as mode:
                out = call()
            assert dict(mode.get_comm_counts()) == forward, mode.get_comm_counts()
            with CommDebugMode() as mode:
                out.float().square().sum().backward()
            assert dict(mode.get_comm_counts()) == backward, mode.get_comm_counts()
    finally:
        shared.set_checks(True)


@case
def shapes_that_differ_raise_on_every_rank(world: World) -> None:
    shared = attnops.distributed
    odd = 1 if world.rank == world.size - 1 else 0
    x = [world.random(2, 3, 7, 8 + odd) for _ in range(4)]
    _raises("flao: q differs between rank", shared.flao, *x)
    _raises("linear_attention: q differs", shared.linear_attention, *x[:3])
    same = [world.random(2, 3, 7, 8) for _ in range(4)]
    if world.rank == 0:
        _raises("flao: rank . and rank 0 of the group call different", shared.flao, *same)
    else:
        text = "linear_attention: rank . and rank 0 of the group call different"
        _raises(text, shared.linear_attention, *same[:3])
    wrong = [7] * (world.size - 1)
    theta = torch.rand(3, 4)
    _raises("lrpe_rotate: sizes has", shared.lrpe_rotate, same[0], theta, sizes=wrong)
    wrong = [6] * world.size
    _raises(
        "lrpe_rotate: sizes says 6", shared.lrpe_rotate, same[0], theta, layout="bhnd", sizes=wrong
    )
    # The group still works.
    assert shared.flao(*same).shape == (2, 3, 7, 8)


@case
def compiled_whole(world: World) -> None:
    if world.size != 2 or world.dtype != torch.float32:
        return
    shared, sizes, theta = attnops.distributed, world.sizes, torch.rand(3, 8)

    def step(q, k, v, g, decay, *factors):
        out = shared.flao(q, k, v, g)
        options = {"lrpe": "rotate", "k_act": "softmax", "k_dim": 2}
        out = out + shared.flao_fal(q, k, v, g, theta=theta, **options, sizes=sizes)
        out = out + shared.linear_attention(q, k, v, decay, layout="bhnd")
        a, b = shared.rope(q, k, theta[0], layout="bhnd", sizes=sizes)
        out = out + a * b + shared.lrpe_rotate(q, theta, layout="bhnd", sizes=sizes)
        wide = shared.md_lrpe_cosine(q, theta.repeat(1, 2), (53,), sizes=sizes)
        return out + wide[..., :16] + shared.tpa(*factors, sizes=sizes).sum()

    inputs = [world.shard(world.random(2, 3, 53, 16), 2) for _ in range(4)]
    inputs.append((-torch.rand(2, 3, inputs[0].shape[2])).requires_grad_())
    shapes = [(7, 3, 2), (53, 3, 2), (53, 3, 2), (7, 2, 8), (53, 2, 8), (53, 2, 6)]
    inputs += [
        x if x.shape[1] == 7 else world.shard(x, 1) for x in (world.random(2, *s) for s in shapes)
    ]
    outs = [step(*inputs), torch.compile(step, fullgraph=True, backend="aot_eager")(*inputs)]
    results = [[o, *torch.autograd.grad(o.square().sum(), inputs)] for o in outs]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


class _Block(nn.Module):
    """A layer of linear attention whose sequence is spread over the ranks, if there is a group."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.spread = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 8)).unbind(2)
        ops = attnops.distributed if self.spread else attnops
        q, k = ops.rope(q, k, torch.linspace(1, 0.1, 4))
        return self.out(ops.linear_attention(q, k, v).flatten(2))


@case
def ddp_and_fsdp2(world: World) -> None:
    """Gradients of weights over sequence shards; both take the mean over the ranks."""
    block = _Block().to(world.dtype)
    x = world.random(2, 53, 16).detach()
    spread = [copy.deepcopy(block) for _ in range(2)]
    expected = torch.autograd.grad(block(x).float().square().sum(), list(block.parameters()))
    for module in spread:
        module.spread = True
    ddp = DistributedDataParallel(spread[0])
    fsdp = fully_shard(spread[1], mesh=_mesh(world))
    for module in (ddp, fsdp):
        out = module(world.shard(x, 1).detach())
        (out.float().square().sum() * world.size).backward()
        for parameter, wanted in zip(module.parameters(), expected, strict=True):
            gradient = parameter.grad
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            # Rounded by every rank, and as often as there are steps in the sum.
            scale = world.size + 2
            error = (whole.double() - wanted.double()).abs().max() / wanted.double().abs().max()
            unit = 2.0**-8 if world.dtype == torch.bfloat16 else 2.0**-20
            assert error <= scale * unit, error.item()
    dist.barrier()
