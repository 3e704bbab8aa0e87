"""The tables of linear_attention: titles, costs, and columns that pass their check."""

import pytest

import attnops
from attnops_bench import measure
from attnops_bench.operators.linear_attention import DECAYS, OPERATOR
from attnops_bench.tables import Case


def make_case(direction: str, decay: str, dtype: str = "bf16", n: int = 128, step=False) -> Case:
    options = {"batch": 1, "decay": decay, "step": step}
    return Case("linear_attention", direction, n, dtype, options, threads=1)


def problem_of(case: Case, name: str) -> str | None:
    inputs = OPERATOR.inputs(case)
    (column,) = [c for c in OPERATOR.columns if c.name == name]
    timed = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs)
    return OPERATOR.checker(case, inputs)(column, timed.result())


def test_titles():
    tables = OPERATOR.tables(12, "bf16")
    assert len({t.id for t in tables}) == len(tables) == 20
    for decay in DECAYS:
        for kind in ("speed", "memory"):
            for direction in ("fwd", "bwd"):
                start = f"linear_attention-{kind}-{direction}-{decay}-batch12-head12-dim128-dim128"
                assert f"{start}-bf16" in [t.title for t in tables]


def test_flops():
    case = Case("linear_attention", "fwd", 256, "bf16", make_case("fwd", "none").options, 1)
    assert OPERATOR.cost(case).flops == 12 * 2 * 256 * (32 * 256 + 2 * 128 * 128)


def test_products_of_inputs():
    """Scores, and without a decay K^T·V; decays of features and steps multiply float32."""
    rows = 12 * 128
    scores, product = 2 * rows * 32 * 128, 2 * rows * 128 * 128
    for direction, times in (("fwd", 1), ("bwd", 2)):
        direct = [OPERATOR.cost(make_case(direction, decay)).direct for decay in DECAYS]
        assert direct == [times * (scores + product), times * scores, times * scores, None]
    assert OPERATOR.cost(make_case("fwd", "none", step=True)).direct is None


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("decay", DECAYS)
def test_eager_columns_pass_the_check(decay, direction, dtype):
    for column in OPERATOR.columns:
        # The loop takes long, and its backward longer.
        looped = column.name == "loop" and (direction, decay) != ("fwd", "scalar")
        if not column.compiled and not looped:
            assert problem_of(make_case(direction, decay, dtype), column.name) is None, column.name


def test_a_single_token_passes_the_check():
    """Nothing decays into it: the gradient of its decay is 0, up to the rounding of two sums."""
    assert problem_of(make_case("bwd", "scalar", n=1), "attnops") is None


@pytest.mark.parametrize("decay", DECAYS)
def test_steps_pass_the_check(decay):
    for name in ("attnops", "to"):
        assert problem_of(make_case("fwd", decay, n=3, step=True), name) is None


def test_a_compiled_column_passes_the_check():
    assert problem_of(make_case("bwd", "scalar"), "toc") is None


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_wrong_result_is_found(monkeypatch, direction):
    right = attnops.linear_attention
    monkeypatch.setattr(attnops, "linear_attention", lambda *a, **k: right(*a, **k) * 1.02)
    assert "wrong result" in problem_of(make_case(direction, "scalar"), "attnops")
