"""The tables of flao: titles, costs, and columns that pass their check."""

import pytest
import torch

import attnops
from attnops_bench import measure
from attnops_bench.operators.flao import KEEPS, OPERATOR
from attnops_bench.tables import Case

TITLES = [
    f"flao-{kind}-{direction}-batch12-head12-dim128-dim128-bf16"
    for direction in ("fwd", "bwd")
    for kind in ("speed", "memory")
]


def make_case(direction: str, keep: str, dtype: str = "bf16", n: int = 130) -> Case:
    return Case("flao", direction, n, dtype, {"batch": 1, "keep": keep}, threads=1)


def problem_of(case: Case, name: str) -> str | None:
    inputs = OPERATOR.inputs(case)
    (column,) = [c for c in OPERATOR.columns if c.name == name]
    timed = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs)
    return OPERATOR.checker(case, inputs)(column, timed.result())


def test_titles_are_the_published_ones():
    tables = OPERATOR.tables(12, "bf16")
    assert [t.title for t in tables] == 3 * TITLES
    assert [t.id for t in tables] == [f"{title}@{keep}" for keep in KEEPS for title in TITLES]
    assert all(t.sizes == tuple(2**i for i in range(8, 16)) for t in tables)


@pytest.mark.parametrize(
    ("direction", "keep", "products"),
    [("fwd", "none", 2), ("bwd", "kv_qkv", 4), ("bwd", "kv", 5), ("bwd", "none", 6)],
)
def test_flops(direction, keep, products):
    case = Case("flao", direction, 256, "bf16", {"batch": 12, "keep": keep}, threads=1)
    assert OPERATOR.cost(case).flops == products * 2 * 12 * 12 * 256 * 128 * 128


def test_memory_that_is_held():
    tensor, kv = 12 * 12 * 256 * 128 * 2, 12 * 12 * 128 * 128 * 4
    for keep, kept in zip(KEEPS, (0, kv, kv + tensor), strict=True):
        for direction, held in (("fwd", 5 * tensor), ("bwd", 10 * tensor + kept)):
            case = Case("flao", direction, 256, "bf16", {"batch": 12, "keep": keep}, threads=1)
            assert OPERATOR.cost(case).held == held


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("keep", KEEPS)
def test_eager_columns_pass_the_check(keep, direction, dtype):
    for column in OPERATOR.columns:
        if not column.compiled:
            assert problem_of(make_case(direction, keep, dtype), column.name) is None, column.name


@pytest.mark.parametrize("name", ["lao_toc_up", "flao_toc_up"])
def test_compiled_columns_pass_the_check(name):
    assert problem_of(make_case("bwd", "kv"), name) is None


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_wrong_result_is_found(monkeypatch, direction):
    right = attnops.flao
    monkeypatch.setattr(attnops, "flao", lambda *a, **options: right(*a, **options) * 1.02)
    assert "wrong result" in problem_of(make_case(direction, "none"), "attnops")


def test_inputs_are_the_same_every_time():
    first, second = (OPERATOR.inputs(make_case("bwd", "none")) for _ in range(2))
    assert all(map(torch.equal, first.args, second.args))
    assert torch.equal(first.d_out, second.d_out)
