"""The modules of attnops.nn beside the formulas that they compute."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import attnops
from attnops.nn import (
    GatedLinearAttention,
    LinearAttention,
    Lrpe,
    Rope,
    TensorProductAttention,
)
from tolerances import LAYER, LAYER_GRADIENT, ROTATION

B, N, H, D = 2, 7, 4, 8
DIM = H * D
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


class Encoder(nn.Module):
    """Rope between projections, to be treated as a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(DIM, DIM)
        self.rope = Rope(D, scaling=YARN)

    def forward(self, x):
        q = self.project(x).unflatten(-1, (H, D))
        q, k = self.rope(q, q[:, :, :1], offset=3)
        return (q + k).flatten(2)


LAYERS = {
    "Rope": Encoder,
    "Lrpe": lambda: nn.Sequential(nn.Unflatten(-1, (H, D)), Lrpe(H, D, learnable=True)),
    "GatedLinearAttention": lambda: GatedLinearAttention(DIM, H),
    "LinearAttention": lambda: LinearAttention(DIM, H, gate=True, rope=Rope(D)),
    "LinearAttention, constant": lambda: LinearAttention(DIM, H, decay="constant", key_heads=2),
    "TensorProductAttention": lambda: TensorProductAttention(DIM, H, D),
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def gradients(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradients of the parameters."""
    out = layer(x)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), list(layer.parameters()))]


@each_layer
def test_state_dict(make):
    layer, other = make(), make()
    x = torch.randn(B, N, DIM)
    missing, unexpected = other.load_state_dict(layer.state_dict())
    assert not missing
    assert not unexpected
    assert torch.equal(layer(x), other(x))
    learned = {name for name, _ in layer.named_parameters()}
    assert set(layer.state_dict()) == learned  # constants follow from the options


@each_layer
def test_deepcopy(make):
    layer = make()
    twin = copy.deepcopy(layer)
    x = torch.randn(B, N, DIM)
    expected = layer(x)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(layer(x), expected)


@each_layer
def test_compile(make):
    layer = make()
    x = torch.randn(B, N, DIM)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(gradients(compiled, x), gradients(layer, x), strict=True):
        torch.testing.assert_close(actual, expected, **LAYER_GRADIENT)


def test_compile_to_code():
    """A model of all layers, by the default backend."""
    model = nn.Sequential(
        GatedLinearAttention(DIM, H), LinearAttention(DIM, H), Encoder(), LAYERS["Lrpe"]()
    )
    x = torch.randn(B, N, DIM)
    compiled = torch.compile(model, fullgraph=True)
    for actual, expected in zip(gradients(compiled, x), gradients(model, x), strict=True):
        torch.testing.assert_close(actual, expected, **LAYER_GRADIENT)


@pytest.fixture
def process_group(tmp_path):
    """One process with gloo, by a file."""
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_fully_shard(process_group):
    from torch.distributed.fsdp import fully_shard

    for make in LAYERS.values():
        layer = make()
        x = torch.randn(B, N, DIM)
        expected = gradients(layer, x)
        sharded = copy.deepcopy(layer)
        fully_shard(sharded, mesh=process_group)
        out = sharded(x)
        out.square().sum().backward()
        actual = [out.detach(), *(p.grad.full_tensor() for p in sharded.parameters())]
        for result, wanted in zip(actual, expected, strict=True):
            torch.testing.assert_close(result, wanted, atol=0, rtol=0)


# What stays float32.


CONVERSIONS = {
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "double": lambda m: m.double(),
    "meta and back": lambda m: m.to("meta").to_empty(device="cpu"),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Rope(D, scaling=YARN), "theta"),
        (lambda: Lrpe(H, D, per_head=True), "theta"),
        (lambda: GatedLinearAttention(DIM, H), "theta"),
        (lambda: LinearAttention(DIM, H, decay="constant"), "log_decay"),
        (lambda: TensorProductAttention(DIM, H, D), "theta"),
    ],
    ids=["Rope", "Lrpe", "GatedLinearAttention", "LinearAttention", "TensorProductAttention"],
)
def test_constants_stay_float32(make, name, convert):
    module = make()
    expected = getattr(module, name).clone()
    converted = getattr(convert(nn.Sequential(module))[0], name)
    assert converted.dtype == torch.float32
    assert torch.equal(converted, expected)


def test_learnable_theta_stays_float32():
    module = Lrpe(H, D, learnable=True)
    with torch.no_grad():
        module.theta.add_(torch.rand_like(module.theta))
    expected = module.theta.detach().clone()
    module.half()
    assert torch.equal(module.theta, expected)
    module(torch.randn(B, N, H, D).half()).float().sum().backward()
    assert module.theta.grad.dtype == torch.float32


def test_made_on_the_meta_device():
    with torch.device("meta"):
        module = GatedLinearAttention(DIM, H)
        rope = Rope(D)
    assert rope.theta.device.type == "cpu"
    module = module.to_empty(device="cpu")
    assert torch.equal(module.theta, GatedLinearAttention(DIM, H).theta)


@each_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_converted_layers_run(make, dtype):
    layer = make().to(dtype)
    out = layer(torch.randn(B, N, DIM, dtype=dtype))
    assert out.dtype == dtype
    assert out.isfinite().all()


# Rope and Lrpe.


@pytest.mark.parametrize("layout", ["bnhd", "bhnd"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(layout, interleaved):
    module = Rope(D, base=500.0, rotary_dim=6, interleaved=interleaved, layout=layout)
    q, k = torch.randn(B, N, N, D), torch.randn(B, N, N, D)
    theta = 1 / 500.0 ** (torch.arange(3) / 3)
    positions = torch.randint(0, 50, (B, N))
    options = {"rotary_dim": 6, "interleaved": interleaved, "layout": layout}
    for given in ({}, {"offset": 5}, {"positions": positions}):
        expected = attnops.rope(q, k, theta, **options, **given)
        for actual, wanted in zip(module(q, k, **given), expected, strict=True):
            torch.testing.assert_close(actual, wanted, **ROTATION)
    qs, ks = q.clone(), k.clone()
    assert module(qs, ks, inplace=True)[0] is qs
    assert torch.equal(qs, module(q, k)[0])


@pytest.mark.parametrize("layout", ["bnhd", "bhnd"])
@pytest.mark.parametrize(("act", "dim"), [("none", None), ("silu", None), ("softmax", -1)])
def test_lrpe(layout, act, dim):
    x = torch.randn(B, 6, H, D) if layout == "bnhd" else torch.randn(B, H, 6, D)
    rotate = Lrpe(H, D, kind="rotate", act=act, dim=dim, layout=layout, per_head=True)
    expected = attnops.lrpe_rotate(x, rotate.theta, 3, act, dim, layout=layout)
    assert torch.equal(rotate(x, offset=3), expected)
    grid = Lrpe(H, D, axes=2, act=act, dim=dim, layout=layout)
    assert grid.theta.shape == (1, D // 2)
    rows = x.transpose(1, 2) if layout == "bnhd" else x
    expected = attnops.md_lrpe_cosine(rows, grid.theta, (2, 2), 2, 0, act, dim)
    actual = grid(x, shape=(2, 2), l=2)
    assert torch.equal(actual.transpose(1, 2) if layout == "bnhd" else actual, expected)


@pytest.mark.parametrize(("layout", "sequence"), [("bnhd", 1), ("bhnd", 2)])
@pytest.mark.parametrize("kind", ["cosine", "rotate"])
def test_lrpe_softmax_over_the_sequence(layout, sequence, kind):
    x = torch.randn(B, N, N, D)
    module = Lrpe(N, D, kind=kind, act="softmax", dim=sequence, layout=layout)
    plain = Lrpe(N, D, kind=kind, layout=layout)
    torch.testing.assert_close(module(x), plain(x.softmax(sequence)), **ROTATION)


def test_lrpe_frequencies_of_each_head():
    theta = Lrpe(H, D, kind="rotate", per_head=True, base=100.0).theta
    expected = 100.0 ** (-torch.arange(H * D // 2) / (H * D // 2))
    torch.testing.assert_close(theta.flatten(), expected)


def test_lrpe_theta_learns():
    module = Lrpe(H, D, learnable=True)
    x = torch.randn(B, N, H, D)
    (gradient,) = torch.autograd.grad(module(x).square()[..., :D].sum(), module.theta)
    theta = module.theta.detach().double().requires_grad_()
    angles = torch.arange(N)[:, None, None] * theta
    loss = (x.double() * angles.cos()).square().sum()
    torch.testing.assert_close(
        gradient, torch.autograd.grad(loss, theta)[0].float(), **LAYER_GRADIENT
    )


# Layers beside PyTorch operations.


def encoded(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    angles = torch.arange(x.shape[2])[:, None] * theta
    return torch.cat([x * angles.cos(), x * angles.sin()], -1)


@pytest.mark.parametrize("norm", [True, False])
def test_gated_linear_attention(norm):
    layer = GatedLinearAttention(DIM, H, norm=norm, bias=True, v_act="relu")
    x, context = torch.randn(B, N, DIM), torch.randn(B, 9, DIM)

    def heads(y: torch.Tensor) -> torch.Tensor:
        return y.unflatten(-1, (H, D)).transpose(1, 2)

    def plain(x, context):
        q, k = F.silu(heads(layer.q_proj(x))), F.silu(heads(layer.k_proj(context)))
        v, g = F.relu(heads(layer.v_proj(context))), torch.sigmoid(heads(layer.g_proj(x)))
        out = g * (encoded(q, layer.theta) @ (encoded(k, layer.theta).mT @ v))
        out = out if layer.norm is None else layer.norm(out)
        return layer.out_proj(out.transpose(1, 2).flatten(2))

    torch.testing.assert_close(layer(x), plain(x, x), **LAYER)
    torch.testing.assert_close(layer(x, context), plain(x, context), **LAYER)


def test_gated_linear_attention_options():
    x = torch.randn(B, 6, DIM)
    grid = GatedLinearAttention(DIM, H, lrpe="rotate", axes=2, q_act="softmax", k_act="softmax")
    assert grid(x, shape=(2, 3)).shape == x.shape
    assert grid(x, shape=(2, 2), l=2).shape == x.shape
    kept = GatedLinearAttention(DIM, H, lrpe="none", keep="kv", head_dim=5)
    assert kept(x).shape == x.shape
    with pytest.raises(ValueError, match="shape must have 2 axes"):
        grid(x)
    # Softmax of keys is over the sequence, of queries over the features.
    plain = GatedLinearAttention(
        DIM, H, lrpe="none", q_act="softmax", k_act="softmax", g_act="none", norm=False
    )
    q, k, v, g = (
        projection(x).unflatten(-1, (H, D)).transpose(1, 2)
        for projection in (plain.q_proj, plain.k_proj, plain.v_proj, plain.g_proj)
    )
    out = g * (q.softmax(-1) @ (k.softmax(2).mT @ v))
    torch.testing.assert_close(plain(x), plain.out_proj(out.transpose(1, 2).flatten(2)), **LAYER)


@pytest.mark.parametrize("decay", ["none", "constant", "token", "feature"])
@pytest.mark.parametrize("key_heads", [H, 2])
def test_linear_attention(decay, key_heads):
    layer = LinearAttention(DIM, H, decay=decay, key_heads=key_heads, gate=True)
    x = torch.randn(B, N, DIM)
    q, k = (F.silu(p(x)).unflatten(-1, (key_heads, D)) for p in (layer.q_proj, layer.k_proj))
    q, k = (y.repeat_interleave(H // key_heads, 2) for y in (q, k))
    v = layer.v_proj(x).unflatten(-1, (H, D))
    logs = torch.zeros(B, N, H, D)
    if decay == "constant":
        logs = layer.log_decay[:, None].expand(B, N, H, D)
    elif decay == "token":
        logs = F.logsigmoid(layer.decay_proj(x))[..., None].expand(B, N, H, D)
    elif decay == "feature":
        logs = F.logsigmoid(layer.decay_proj(x)).unflatten(-1, (H, D))
    state, outs = torch.zeros(B, H, D, D), []
    for t in range(N):
        state = state * logs[:, t, :, :, None].exp() + k[:, t, :, :, None] * v[:, t, :, None]
        outs.append((q[:, t, :, None] @ state).squeeze(2) * D**-0.5)
    out = layer.norm(torch.stack(outs, 1)).flatten(2) * F.silu(layer.gate_proj(x))
    torch.testing.assert_close(layer(x), layer.out_proj(out), **LAYER)
    actual, last = layer(x, return_state=True)
    torch.testing.assert_close(actual, layer(x), **LAYER)
    torch.testing.assert_close(last, state, **LAYER)


def test_linear_attention_has_the_precision_given():
    layer = LinearAttention(DIM, H, precision="double")
    with pytest.raises(ValueError, match="precision must be one of"):
        layer(torch.randn(B, N, DIM))


def test_linear_attention_goes_on_from_its_state():
    layer = LinearAttention(DIM, H, rope=Rope(D))
    x = torch.randn(B, N, DIM)
    whole = layer(x)
    out, state = layer(x[:, :3], return_state=True)
    outs = [out]
    for t in range(3, N):
        out, state = layer(x[:, t : t + 1], state, offset=t, return_state=True)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), whole, **LAYER)


def test_linear_attention_of_packed_sequences():
    layer = LinearAttention(DIM, H, rope=Rope(D))
    x = torch.randn(1, N, DIM)
    ends = torch.tensor([0, 3, 3, N])
    packed, states = layer(x, cu_seqlens=ends, return_state=True)
    first, state = layer(x[:, :3], return_state=True)
    torch.testing.assert_close(packed[:, :3], first, **LAYER)
    torch.testing.assert_close(packed[:, 3:], layer(x[:, 3:]), **LAYER)
    torch.testing.assert_close(states[:1], state, **LAYER)


ERRORS = {
    "layout": lambda: Rope(D, layout="nbhd"),
    "rotary_dim": lambda: Rope(D, rotary_dim=D + 2),
    "features": lambda: Rope(7),
    "kind": lambda: Lrpe(H, D, kind="sine"),
    "axes": lambda: Lrpe(H, D, kind="rotate", axes=2),
    "per_head": lambda: Lrpe(H, D, per_head=True, scaling=YARN),
    "length": lambda: Lrpe(H, D, scaling={"rope_type": "dynamic", "factor": 2.0}, max_positions=8),
    "heads": lambda: GatedLinearAttention(DIM + 1, H),
    "lrpe": lambda: GatedLinearAttention(DIM, H, lrpe="sine"),
    "key_heads": lambda: LinearAttention(DIM, H, key_heads=3),
    "decay": lambda: LinearAttention(DIM, H, decay="much"),
    "act": lambda: LinearAttention(DIM, H, act="softmax"),
    "rope": lambda: LinearAttention(DIM, H, rope=Rope(D, layout="bhnd")),
    "x": lambda: Lrpe(H, D)(None),
    "shape": lambda: Lrpe(H, D)(torch.randn(B, 6, H, D), shape=(2, 3)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    with pytest.raises(ValueError, match=rf"^(Rope|Lrpe|\w*LinearAttention): .*\b{name}\b"):
        ERRORS[name]()


def shard_and_train(rank: int, processes: int, store: str) -> None:
    """In each process of test_fsdp: the step of a sharded layer is that of a whole one."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", rank=rank, world_size=processes, init_method=f"file://{store}"
    )
    try:
        mesh = init_device_mesh("cpu", (processes,))
        torch.manual_seed(3)
        whole = nn.Sequential(
            GatedLinearAttention(16, 2, axes=1), LinearAttention(16, 2), nn.Linear(16, 16)
        )
        sharded = copy.deepcopy(whole)
        for layer in sharded:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        x = torch.randn(2, 5, 16)
        for model in (whole, sharded):
            model(x).square().sum().backward()
        for (name, p), expected in zip(sharded.named_parameters(), whole.parameters(), strict=True):
            actual = p.grad.full_tensor()
            torch.testing.assert_close(actual, expected.grad, msg=name, **LAYER_GRADIENT)
        assert sharded[0].theta.dtype == torch.float32
    finally:
        torch.distributed.destroy_process_group()


def test_fsdp(tmp_path):
    torch.multiprocessing.spawn(shard_and_train, (2, str(tmp_path / "store")), nprocs=2)
