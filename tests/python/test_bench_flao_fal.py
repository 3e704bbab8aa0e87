"""The tables of flao_fal: titles, costs, and columns that pass their check."""

import pytest
import torch

import attnops
from attnops_bench import environment, measure, published
from attnops_bench.operators.flao_fal import GROUPS, OPERATOR
from attnops_bench.runner import columns_of
from attnops_bench.tables import Case, all_tables

ACTS = {"silu": GROUPS[""], "softmax": list(GROUPS.values())[1]}


def make_case(
    direction: str, act: str = "silu", dtype: str = "bf16", n: int = 130, batch: int = 1
) -> Case:
    return Case("flao_fal", direction, n, dtype, {"batch": batch, **ACTS[act]}, threads=1)


def problem_of(case: Case, name: str) -> str | None:
    inputs = OPERATOR.inputs(case)
    (column,) = [c for c in OPERATOR.columns if c.name == name]
    timed = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs)
    return OPERATOR.checker(case, inputs)(column, timed.result())


def test_titles_are_the_published_ones():
    tables = OPERATOR.tables(12, "bf16")
    wanted = [t.title for t in published.tables().values() if t.operator == "flao_fal"]
    assert [t.title for t in tables] == [t.id for t in tables] == wanted
    assert all(t.sizes == tuple(2**i for i in range(8, 16)) for t in tables)


@pytest.mark.parametrize(("direction", "products"), [("fwd", 2), ("bwd", 4)])
def test_cost(direction, products):
    """With 2D features inside; KV and QKV are kept."""
    cost = OPERATOR.cost(make_case(direction, n=256, batch=12))
    tensor = 12 * 12 * 256 * 128 * 2
    assert cost.flops == products * 2 * 12 * 12 * 256 * 256 * 128
    kv = 12 * 12 * 256 * 128 * 4
    moved, held = {"fwd": (5 * tensor, 5 * tensor), "bwd": (10 * tensor, 11 * tensor + kv)}[
        direction
    ]
    assert (cost.moved, cost.held) == (moved, held)


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("act", ACTS)
def test_eager_columns_pass_the_check(act, direction, dtype):
    for column in OPERATOR.columns:
        if not column.compiled:
            case = make_case(direction, act, dtype)
            assert problem_of(case, column.name) is None, column.name


@pytest.mark.parametrize(
    ("act", "direction", "name"), [("silu", "fwd", "toc_up"), ("softmax", "bwd", "toc")]
)
def test_compiled_columns_pass_the_check(act, direction, name):
    torch._dynamo.reset()
    assert problem_of(make_case(direction, act), name) is None


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("act", ACTS)
def test_a_wrong_result_is_found(monkeypatch, act, direction):
    right = attnops.flao_fal
    monkeypatch.setattr(attnops, "flao_fal", lambda *a, **options: right(*a, **options) * 1.02)
    assert "wrong result" in problem_of(make_case(direction, act), "attnops")


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_wrong_peer_is_found(monkeypatch, direction):
    """The wider tolerance of products in the type still sees another encoding."""
    right = attnops.md_lrpe_cosine
    monkeypatch.setattr(
        attnops, "md_lrpe_cosine", lambda x, theta, *a, **o: right(x, 1.5 * theta, *a, **o)
    )
    assert "wrong result" in problem_of(make_case(direction), "composed")


def test_inputs_are_the_same_every_time():
    first, second = (OPERATOR.inputs(make_case("bwd")) for _ in range(2))
    assert all(map(torch.equal, first.args, second.args))
    assert torch.equal(first.d_out, second.d_out)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_form_in_the_type_and_upcast_is_a_peer(dtype):
    """Whatever instructions the CPU has."""
    # rope's peers are transformers' own form, which chooses its types itself.
    for table in (t for t in all_tables(dtypes=(dtype,)) if t.operator != "rope"):
        roles = {c.name: c.role for c in columns_of(table, None)}
        in_type = [n for n in roles if n.rsplit("_", 1)[-1] in ("to", "toc", "ton", "tonc")]
        assert in_type
        assert {roles[name] for name in in_type} == {"peer"}
        assert {roles[f"{name}_up"] for name in in_type} == {"peer"}
        assert roles["attnops"] == "attnops"


def test_the_name_of_the_cpu(monkeypatch, tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: a CPU\n\nprocessor\t: 1\n")
    monkeypatch.setattr(environment, "CPU_INFO", info)
    assert environment.cpu_model() == "a CPU"
    monkeypatch.setattr(environment, "CPU_INFO", tmp_path / "missing")
    assert environment.cpu_model()
