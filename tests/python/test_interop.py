"""Every operator in torch's other worlds: torch.func, autocast, export, counters, TorchScript.

What has no rule raises and names the operator; nothing is silently zero.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import attnops
from tolerances import SECOND_DIFFERENCES

B, N, M, H, D, E = 2, 5, 6, 3, 8, 4
GRID = (2, 3)


@dataclass
class Case:
    """A call of an operator: its tensors by name, and the function of them."""

    function: Callable
    tensors: dict[str, torch.Tensor]
    main: tuple[str, ...]  # the tensors with a gradient and an axis B
    flops: int = 0
    second: bool = False  # whether there are second derivatives
    options: dict | None = None

    def run(self, **changed: torch.Tensor) -> torch.Tensor:
        out = self.function(**(self.tensors | changed), **(self.options or {}))
        return torch.cat([x.flatten(1) for x in out], 1) if isinstance(out, tuple) else out


def make_cases() -> dict[str, Case]:
    torch.manual_seed(2024)
    r = torch.randn
    flao = {"q": r(B, H, N, D), "k": r(B, H, M, D), "v": r(B, H, M, E), "g": r(B, H, N, E)}
    keys = {name: flao[name] for name in ("k", "v")}
    queries = {name: flao[name] for name in ("q", "g")}
    heads = {"q": r(B, N, H, D), "k": r(B, N, 1, D)}
    linear = {"q": r(B, N, H, D), "k": r(B, N, H, D), "v": r(B, N, H, E)}
    tpa = {
        "aq": r(B, N, H, 2),
        "ak": r(B, M, H, 2),
        "av": r(B, M, H, 2),
        "bq": r(B, N, 2, D),
        "bk": r(B, M, 2, D),
        "bv": r(B, M, 2, E),
    }
    one = tpa | {"aq": r(B, 1, H, 2), "bq": r(B, 1, 2, D)}
    rank_1 = {
        "aq": r(B, 1, H, 2),
        "ak": r(B, M, H),
        "av": r(B, M, H),
        "bq": r(B, 1, 2, D),
        "bk": r(B, M, D),
        "bv": r(B, M, E),
    }
    pairs = N * (M - N) + N * (N + 1) // 2
    per_pair = min(2 * 2 * (D + H), H * 2 * D) + H * 2 * E
    return {
        "lrpe_rotate": Case(
            attnops.lrpe_rotate, {"x": r(B, N, H, D), "theta": r(H, D // 2)}, ("x",), second=True
        ),
        "lrpe_rotate, silu": Case(
            attnops.lrpe_rotate,
            {"x": r(B, N, H, D), "theta": r(H, D // 2)},
            ("x",),
            options={"act": "silu"},
        ),
        "lrpe_rotate, positions": Case(
            attnops.lrpe_rotate,
            {"x": r(B, N, H, D), "theta": r(1, D // 2), "positions": torch.randint(9, (B, N))},
            ("x",),
            second=True,
        ),
        "rope": Case(attnops.rope, heads | {"theta": r(1, D // 2)}, ("q", "k"), second=True),
        "rope, one line": Case(
            attnops.rope,
            heads | {"theta": r(1, D // 2), "positions": torch.randint(9, (N,))},
            ("q", "k"),
            second=True,
        ),
        "md_lrpe_cosine": Case(
            attnops.md_lrpe_cosine,
            {"x": r(B, H, 6, D), "theta": r(H, D // 2)},
            ("x",),
            second=True,
            options={"shape": GRID},
        ),
        "lrpe_table": Case(
            attnops.lrpe_table, {"theta": r(H, D // 2)}, (), options={"shape": GRID, "d": D}
        ),
        "flao": Case(
            attnops.flao, flao, tuple(flao), flops=2 * B * H * D * E * (N + M), options=None
        ),
        "flao_fal": Case(
            attnops.flao_fal,
            flao | {"theta": r(H, D)},
            tuple(flao),
            flops=2 * B * H * 2 * D * E * (N + M),
            options={"k_act": "silu", "keep": "kv"},
        ),
        "flao_kv": Case(attnops.flao_kv, keys, tuple(keys), flops=2 * B * H * D * E * M),
        "flao_out": Case(
            attnops.flao_out,
            queries | {"kv": r(B, H, D, E)},
            (*queries, "kv"),
            flops=2 * B * H * D * E * N,
        ),
        "flao_fal_kv": Case(
            attnops.flao_fal_kv,
            keys | {"theta": r(H, D)},
            tuple(keys),
            flops=2 * B * H * 2 * D * E * M,
            options={"k_act": "silu", "start": 2},
        ),
        "flao_fal_out": Case(
            attnops.flao_fal_out,
            queries | {"kv": r(B, H, 2 * D, E), "theta": r(H, D)},
            (*queries, "kv"),
            flops=2 * B * H * 2 * D * E * N,
            options={"g_act": "sigmoid", "start": 2},
        ),
        "linear_attention": Case(
            attnops.linear_attention,
            linear | {"log_decay": F.logsigmoid(r(B, N, H))},
            (*linear, "log_decay"),
            flops=2 * B * N * H * (32 * (D + E) + 2 * D * E),
        ),
        "linear_attention, of each head": Case(
            attnops.linear_attention,
            linear | {"log_decay": F.logsigmoid(r(H)), "initial_state": r(B, H, D, E)},
            (*linear, "initial_state"),
            flops=2 * B * N * H * (32 * (D + E) + 2 * D * E),
            options={"output_state": True},
        ),
        "tpa": Case(attnops.tpa, tpa, tuple(tpa), flops=2 * B * pairs * per_pair),
        "tpa_decode": Case(
            attnops.tpa_decode,
            rank_1,
            tuple(rank_1),
            flops=2 * B * M * (min(2 * (D + H), H * D) + H * E),
        ),
        "tpa_decode of ranks": Case(
            attnops.tpa_decode, one, tuple(one), flops=2 * B * M * per_pair
        ),
    }


CASES = make_cases()
each_case = pytest.mark.parametrize("name", CASES)
differentiable = pytest.mark.parametrize("name", [name for name in CASES if CASES[name].main])
OPERATORS = sorted({case.function.__name__ for case in CASES.values()})


def with_gradients(case: Case) -> dict[str, torch.Tensor]:
    """The gradients of the sum of squares, eagerly."""
    leaves = {n: case.tensors[n].clone().requires_grad_() for n in case.main}
    loss = case.run(**leaves).square().sum()
    return dict(zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True))


def batch_of(case: Case, name: str, size: int = 3) -> torch.Tensor:
    """Several values of an argument, the batch in front."""
    x = case.tensors[name]
    if not x.is_floating_point():
        return torch.stack([x + i for i in range(size)])
    return torch.stack([x * (1 - 0.1 * i) for i in range(size)])


# torch.func


@differentiable
def test_func_grad(name):
    case = CASES[name]
    expected = with_gradients(case)
    for argument in case.main:
        actual = torch.func.grad(lambda x, a=argument: case.run(**{a: x}).square().sum())(
            case.tensors[argument]
        )
        torch.testing.assert_close(actual, expected[argument])


@each_case
def test_vmap(name):
    """Over each argument, from each side; what others share stays as it is."""
    case = CASES[name]
    for argument in case.tensors:
        values = batch_of(case, argument)
        expected = torch.stack([case.run(**{argument: x}) for x in values])
        run = lambda x, a=argument: case.run(**{a: x})  # noqa: E731
        torch.testing.assert_close(torch.vmap(run)(values), expected)
        last = values.movedim(0, -1)
        torch.testing.assert_close(torch.vmap(run, in_dims=-1)(last), expected)


@each_case
def test_vmap_over_all_arguments_is_one_call(name):
    case = CASES[name]
    values = {n: batch_of(case, n) for n in case.tensors}
    expected = torch.stack([case.run(**{n: x[i] for n, x in values.items()}) for i in range(3)])
    actual = torch.vmap(lambda given: case.run(**given))(values)
    torch.testing.assert_close(actual, expected)


class Counter(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts calls of attnops' operators."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func.namespace == "attnops"
        return func(*args, **kwargs or {})


@each_case
def test_vmap_folds_into_the_batch(name):
    """Over tensors that have an axis B: one call, and not one for each."""
    case = CASES[name]
    arguments = case.main or tuple(case.tensors)
    values = {n: batch_of(case, n) for n in arguments}
    with Counter() as counter:
        torch.vmap(lambda given: case.run(**given))(values)
    assert counter.calls == 1


@differentiable
def test_vmap_of_grad(name):
    """The gradient of each example, and the gradient through a vmap."""
    case = CASES[name]
    argument = case.main[0]
    values = batch_of(case, argument)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return case.run(**{argument: x}).square().sum()

    expected = torch.stack([torch.func.grad(loss)(x) for x in values])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(values), expected)
    total = torch.func.grad(lambda x: torch.vmap(loss)(x).sum())
    torch.testing.assert_close(total(values), expected)


def test_vmap_of_the_gradient_of_theta():
    """A sum over the batch: each example has its own."""
    case = CASES["lrpe_rotate"]
    xs = batch_of(case, "x")

    def loss(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return case.run(x=x, theta=theta)[..., : D // 2].square().sum()

    theta = case.tensors["theta"]
    expected = torch.stack([torch.func.grad(loss)(theta, x) for x in xs])
    actual = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(theta, xs)
    torch.testing.assert_close(actual, expected)


def test_jacobian():
    case = CASES["flao"]
    actual = torch.func.jacrev(lambda q: case.run(q=q).sum((0, 1, 3)))(case.tensors["q"])
    expected = torch.autograd.functional.jacobian(
        lambda q: case.run(q=q).sum((0, 1, 3)), case.tensors["q"]
    )
    torch.testing.assert_close(actual, expected)


@differentiable
def test_no_forward_mode(name):
    case = CASES[name]
    argument = case.main[0]
    x = case.tensors[argument]
    text = f"{case.function.__name__}: {argument} has a tangent"
    with pytest.raises(NotImplementedError, match=text):
        torch.func.jvp(lambda x: case.run(**{argument: x}), (x,), (x,))


def test_inplace_has_no_rule():
    q = torch.randn(3, B, N, H, D)
    theta = torch.randn(D // 2)
    with pytest.raises(NotImplementedError, match="rope: inplace has no rule for"):
        torch.vmap(lambda q: attnops.rope(q, q, theta, inplace=True))(q)
    state = torch.zeros(B, H, D, D)
    with pytest.raises(NotImplementedError, match="linear_attention: inplace_state has no rule"):
        torch.vmap(
            lambda q: attnops.linear_attention(q, q, q, initial_state=state, inplace_state=True)
        )(q)


# Derivatives of derivatives: right, or an error.


@differentiable
@pytest.mark.parametrize("transform", ["autograd", "torch.func"])
def test_second_derivative(name, transform):
    case = CASES[name]
    argument = case.main[0]
    x = case.tensors[argument]

    def run(x: torch.Tensor) -> torch.Tensor:
        return case.run(**{argument: x})

    def second() -> torch.Tensor:
        if transform == "torch.func":
            inner = torch.func.grad(lambda x: run(x).pow(3).sum())
            return torch.func.grad(lambda x: inner(x).square().sum())(x)
        leaf = x.clone().requires_grad_()
        (inner,) = torch.autograd.grad(run(leaf).pow(3).sum(), leaf, create_graph=True)
        return torch.autograd.grad(inner.square().sum(), leaf)[0]

    if not case.second:
        operator = "tpa" if name.startswith("tpa") else case.function.__name__
        with pytest.raises(NotImplementedError, match=f"{operator}: no second derivative"):
            second()
        return
    actual = second()
    # By differences of first derivatives, along a direction.
    direction = torch.randn_like(x)
    step = SECOND_DIFFERENCES["step"]

    def inner_at(y: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: run(x).pow(3).sum())(y).square().sum().double()

    slope = (inner_at(x + step * direction) - inner_at(x - step * direction)) / (2 * step)
    expected = (actual * direction).sum().double()
    scale = (actual.abs() * direction.abs()).sum().item()
    assert abs(slope - expected) <= SECOND_DIFFERENCES["rtol"] * scale


# Autocast


@differentiable
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float16])
def test_autocast(name, wanted):
    """Mixed types are cast as scaled_dot_product_attention casts them."""
    case = CASES[name]
    types = (torch.float32, torch.float16, torch.bfloat16)
    mixed = {
        n: case.tensors[n].to(types[i % 3], copy=True).requires_grad_()
        for i, n in enumerate(case.main)
    }
    if "initial_state" in mixed:
        mixed["initial_state"] = mixed["initial_state"].detach()
    with torch.autocast("cpu", wanted):
        out = case.run(**mixed)
        q = torch.randn(B, H, N, D)
        assert F.scaled_dot_product_attention(q, q.half(), q.bfloat16()).dtype == wanted
    free = ("log_decay", "initial_state", "kv")
    cast = {n: x if n in free else x.to(wanted) for n, x in mixed.items()}
    cast = {n: x.float() if n in free else x for n, x in cast.items()}
    assert torch.equal(out, case.run(**cast))
    has_float32 = case.function in (attnops.flao_kv, attnops.flao_fal_kv)
    if not has_float32 and "initial_state" not in case.tensors:
        assert out.dtype == wanted
    leaves = [x for x in mixed.values() if x.requires_grad]
    for gradient, x in zip(torch.autograd.grad(out.sum(), leaves), leaves, strict=True):
        assert gradient.dtype == x.dtype
    with torch.no_grad(), torch.autocast("cpu", wanted):
        torch.testing.assert_close(case.run(**mixed), out.detach())


@differentiable
def test_autocast_under_a_transform(name):
    case = CASES[name]
    argument = case.main[0]

    def loss(x: torch.Tensor) -> torch.Tensor:
        return case.run(**{argument: x}).float().square().sum()

    x = case.tensors[argument]
    with torch.autocast("cpu"):
        actual = torch.func.grad(loss)(x)
        leaf = x.clone().requires_grad_()
        expected = torch.autograd.grad(loss(leaf), leaf)[0]
    assert actual.dtype == x.dtype
    torch.testing.assert_close(actual, expected)


def test_autocast_leaves_float64_alone():
    q = torch.randn(B, H, N, D, dtype=torch.float64)
    with pytest.raises(ValueError, match="flao: q must be float32"), torch.autocast("cpu"):
        attnops.flao(q, q, q, q)


# Export, graphs, counters, TorchScript.


class Module(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        case = CASES[self.name]
        return case.run(**dict(zip(case.tensors, tensors, strict=True)))


@each_case
def test_export(name, tmp_path):
    case = CASES[name]
    tensors = tuple(case.tensors.values())
    program = torch.export.export(Module(name), tensors)
    assert any("attnops" in str(node.target) for node in program.graph.nodes)
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2")
    assert torch.equal(loaded.module()(*tensors), case.run())


class Everything(torch.nn.Module):
    """All operators in one graph, flao_fal without a shape among them."""

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs, start = [], 0
        for name, case in CASES.items():
            count = len(case.tensors)
            outs.append(Module(name)(*tensors[start : start + count]))
            start += count
        return tuple(outs)


def test_aot_inductor(tmp_path):
    tensors = tuple(x for case in CASES.values() for x in case.tensors.values())
    with torch.no_grad():
        program = torch.export.export(Everything(), tensors)
        # The wrapper only calls operators: optimizing it takes half a minute.
        package = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "everything.pt2"),
            inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"},
        )
        outs = torch._inductor.aoti_load_package(package)(*tensors)
    for name, out in zip(CASES, outs, strict=True):
        assert torch.equal(out, CASES[name].run()), name


@each_case
def test_flops(name):
    case = CASES[name]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        case.run()
    assert counter.get_total_flops() == case.flops


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("flao", 3),
        ("flao_fal", 2 + N / (N + M)),
        ("flao_kv", 2),
        ("flao_out", 3),  # of Q·KV again
        ("flao_fal_kv", 2),
        ("flao_fal_out", 3),
        ("linear_attention", 2.5),
    ],
)
def test_flops_of_a_backward(name, ratio):
    """Twice as much and, of flao, what was not kept again: all, or q·kv if kv was."""
    case = CASES[name]
    leaves = {n: case.tensors[n].clone().requires_grad_() for n in case.main}
    loss = case.run(**leaves).sum()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert counter.get_total_flops() == round(ratio * case.flops)


def test_flops_of_a_backward_of_tpa():
    case = CASES["tpa"]
    leaves = {n: x.clone().requires_grad_() for n, x in case.tensors.items()}
    with FlopCounterMode(display=False) as counter:
        case.run(**leaves).sum().backward()
    assert counter.get_total_flops() == 4 * case.flops


@pytest.mark.parametrize("name", OPERATORS)
def test_script_says_what_to_do(name):
    function = getattr(attnops, name)
    with pytest.raises(NotImplementedError, match=f"{name}: torch.jit.script .*torch.ops.attnops"):
        torch.jit.script(function)


def scripted(q: torch.Tensor) -> torch.Tensor:
    return torch.ops.attnops.flao(q, q, q, q, 0, None)[0]


def test_scripted_code_can_call_the_operators():
    q = torch.randn(B, H, N, D)
    assert torch.equal(torch.jit.script(scripted)(q), attnops.flao(q, q, q, q))


def test_every_operator_is_here():
    from test_arguments import FUNCTIONS

    assert sorted(function.__name__ for function in FUNCTIONS) == OPERATORS


# Arguments that are no tensors, or have no data.

OPTIONAL = [
    ("lrpe_rotate", "positions"),
    ("rope", "positions"),
    ("linear_attention", "log_decay_v"),
    ("linear_attention", "cu_seqlens"),
    ("linear_attention", "initial_state"),
    ("tpa_decode", "lengths"),
    ("tpa_decode of ranks", "page_table"),
]


@pytest.mark.parametrize(("name", "argument"), OPTIONAL)
def test_an_option_that_is_no_tensor(name, argument):
    operator = CASES[name].function.__name__
    for value in ([1, 2], torch.arange(3).numpy()):
        with pytest.raises(ValueError, match=f"{operator}: {argument} must be a tensor; it is"):
            CASES[name].run(**{argument: value})


@pytest.mark.parametrize("name", ["lrpe_rotate", "rope"])
@pytest.mark.parametrize("value", [[1, 2], 1.5, torch.arange(3).numpy(), None], ids=str)
def test_an_offset_that_is_no_integer(name, value):
    with pytest.raises(ValueError, match=f"{name}: offset must be an integer or a tensor; it is"):
        CASES[name].run(offset=value)


@pytest.mark.parametrize("name", ["flao_fal", "md_lrpe_cosine", "lrpe_table"])
@pytest.mark.parametrize("value", [3, "3"], ids=["int", "str"])
def test_a_shape_that_is_no_tuple(name, value):
    case = CASES[name]
    with pytest.raises(ValueError, match=f"{name}: shape must be a tuple of sizes; it is"):
        case.function(**case.tensors, **(case.options or {}) | {"shape": value})


@each_case
def test_one_tensor_without_data(name):
    """A fake tensor, or one on the meta device, among real ones."""
    case = CASES[name]
    if len(case.tensors) == 1:
        return
    mode = FakeTensorMode()
    for argument, x in case.tensors.items():
        with pytest.raises(ValueError, match=f"{case.function.__name__}: .*must be on the device"):
            case.run(**{argument: x.to("meta")})
        with pytest.raises(AssertionError, match=r"convert all Tensors to FakeTensors.*attnops"):
            case.run(**{argument: mode.from_tensor(x)})


@pytest.mark.parametrize("argument", ["lengths", "page_table"])
def test_lengths_without_data(argument):
    case = CASES["tpa_decode of ranks"]
    given = {"lengths": torch.full((B,), 1), "page_table": torch.zeros(B, 1, dtype=torch.long)}
    given[argument] = given[argument].to("meta")
    with pytest.raises(ValueError, match=f"tpa_decode: {argument} must be on the device of"):
        case.run(**given)
