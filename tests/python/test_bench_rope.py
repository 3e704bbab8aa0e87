"""The tables of rope: titles, costs, and columns that pass their check."""

import pytest

import attnops
from attnops_bench import measure
from attnops_bench.operators.rope import OPERATOR
from attnops_bench.tables import Case


def make_case(dtype: str = "bf16", n: int = 40, step: bool = False) -> Case:
    return Case("rope", "fwd", n, dtype, {"batch": 2, "step": step}, threads=1)


def problem_of(case: Case, name: str) -> str | None:
    inputs = OPERATOR.inputs(case)
    (column,) = [c for c in OPERATOR.columns if c.name == name]
    timed = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs)
    return OPERATOR.checker(case, inputs)(column, timed.result())


def test_titles():
    titles = [t.title for t in OPERATOR.tables(12, "bf16")]
    assert titles[0] == "rope-speed-fwd-prefill-batch1-head32-keys8-dim128-bf16"
    assert titles[-1] == "rope-speed-fwd-decode-head32-keys8-dim128-bf16"
    assert len(titles) == 3


def test_cost():
    cost = OPERATOR.cost(make_case(n=2048))
    assert cost.moved == 2 * 2 * 2 * 2048 * 40 * 128
    cost = OPERATOR.cost(make_case(n=32, step=True))  # a token of each of 32 sequences
    assert cost.moved == 2 * 2 * 32 * 40 * 128


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
def test_columns_pass_the_check(dtype, step):
    case = make_case(dtype, 5 if step else 40, step)
    q, k, *_ = OPERATOR.inputs(case).args
    assert q.shape[:2] == k.shape[:2] == ((5, 1) if step else (2, 40))
    for column in OPERATOR.columns:
        if not column.compiled:
            assert problem_of(case, column.name) is None, column.name


def test_a_wrong_result_is_found(monkeypatch):
    right = attnops.rope
    monkeypatch.setattr(attnops, "rope", lambda *a, **o: tuple(x * 1.02 for x in right(*a, **o)))
    assert "wrong result" in problem_of(make_case(), "attnops")
