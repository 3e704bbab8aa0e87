"""The tables of tpa and of tpa_decode with ranks: titles, costs, columns that pass their check."""

import pytest

import attnops
from attnops_bench import measure
from attnops_bench.operators import tpa, tpa_decode_ranks
from attnops_bench.tables import Case


def problem_of(operator, case: Case, name: str) -> str | None:
    inputs = operator.inputs(case)
    (column,) = [c for c in operator.columns if c.name == name]
    timed = measure.Timed(column, operator.function(case, column, inputs), inputs)
    return operator.checker(case, inputs)(column, timed.result())


def make_case(operator, n: int, direction: str = "fwd", dtype: str = "bf16") -> Case:
    return Case(operator.name, direction, n, dtype, {"batch": 2, "heads": 34}, threads=1)


def test_titles():
    titles = {t.title for t in tpa_decode_ranks.OPERATOR.tables(12, "bf16")}
    assert "tpa_decode-speed-fwd-batch8-rank6_2_2-head47-dim64-bf16" in titles
    assert len(titles) == 15
    titles = [t.title for t in tpa.OPERATOR.tables(12, "bf16")]
    assert titles[1] == "tpa-speed-bwd-batch2-rank6_2_2-head34-dim64-bf16"


def test_costs():
    """A pair takes 1176 multiply-adds for the scores, 4352 or, with values formed, 2176."""
    cost = tpa_decode_ranks.OPERATOR.cost(make_case(tpa_decode_ranks.OPERATOR, 4096))
    assert cost.flops == 2 * 2 * 4096 * (1176 + 4352)
    cost = tpa.OPERATOR.cost(make_case(tpa.OPERATOR, 256))
    assert cost.flops == 2 * 2 * (256 * 257 // 2) * 3352


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_eager_columns_pass_the_check(dtype):
    for operator, direction in (
        (tpa_decode_ranks.OPERATOR, "fwd"),
        (tpa.OPERATOR, "fwd"),
        (tpa.OPERATOR, "bwd"),
    ):
        case = make_case(operator, 150, direction, dtype)
        for column in operator.columns:
            if not column.compiled:
                assert problem_of(operator, case, column.name) is None, column.name


def test_a_wrong_result_is_found(monkeypatch):
    for operator, name in ((tpa_decode_ranks.OPERATOR, "tpa_decode"), (tpa.OPERATOR, "tpa")):
        right = getattr(attnops, name)
        monkeypatch.setattr(attnops, name, lambda *a, right=right: right(*a) * 1.05)
        assert "wrong result" in problem_of(operator, make_case(operator, 150), "attnops")
