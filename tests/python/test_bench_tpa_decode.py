"""The tables of tpa_decode: titles, costs, and columns that pass their check."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attnops
from attnops_bench import measure
from attnops_bench.operators.tpa_decode import OPERATOR
from attnops_bench.tables import Case

TITLES = [
    f"tpa_decode-{kind}-fwd-batch{batch}-head32-dim128-rank16-bf16"
    for kind in ("speed", "memory")
    for batch in (8, 32)
]


def make_case(dtype: str = "bf16", n: int = 300) -> Case:
    return Case("tpa_decode", "fwd", n, dtype, {"batch": 2}, threads=1)


def problem_of(case: Case, name: str) -> str | None:
    inputs = OPERATOR.inputs(case)
    (column,) = [c for c in OPERATOR.columns if c.name == name]
    timed = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs)
    return OPERATOR.checker(case, inputs)(column, timed.result())


def test_titles_are_the_published_ones():
    tables = OPERATOR.tables(12, "bf16")
    assert [t.title for t in tables] == TITLES
    assert [t.id for t in tables] == TITLES
    assert all(t.sizes == tuple(2**i for i in range(8, 16)) for t in tables)
    assert [t.options["batch"] for t in OPERATOR.tables(1, "bf16")] == [1, 1]


def test_cost():
    cost = OPERATOR.cost(Case("tpa_decode", "fwd", 256, "bf16", {"batch": 8}, threads=1))
    assert cost.flops == 2 * 8 * 256 * (16 * 128 + 32 * 16 + 32 * 128)
    assert cost.moved == 8 * 2 * (256 * (32 + 32 + 128 + 128) + 32 * 16 + 16 * 128)
    assert cost.held == cost.moved + 8 * 2 * 32 * 128


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
def test_eager_columns_pass_the_check(dtype):
    for column in OPERATOR.columns:
        if not column.compiled:
            assert problem_of(make_case(dtype), column.name) is None, column.name


@pytest.mark.parametrize("name", ["toc_up", "tonc"])
def test_compiled_columns_pass_the_check(name):
    assert problem_of(make_case(), name) is None


# Every column of attnops multiplies in bfloat16 then, a forced split too.
IN_BFLOAT16 = """
import torch, attnops
from test_bench_tpa_decode import OPERATOR, make_case, problem_of

assert attnops.effective_precision(torch.bfloat16) == "medium"
for column in OPERATOR.columns:
    if column.role != "peer":
        assert problem_of(make_case(), column.name) is None, column.name
"""


@pytest.mark.skipif(attnops.get_target() in ("SCALAR", "EMU128"), reason="one lane has no pairs")
def test_columns_with_bfloat16_products_pass_the_check():
    environment = {
        "ATTNOPS_EMULATE_BF16": "1",
        "ATTNOPS_PRECISION": "auto",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    done = subprocess.run(
        [sys.executable, "-c", IN_BFLOAT16],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_wrong_result_is_found(monkeypatch):
    right = attnops.tpa_decode
    monkeypatch.setattr(attnops, "tpa_decode", lambda *a, **options: right(*a, **options) * 1.02)
    assert "wrong result" in problem_of(make_case(), "attnops")


def test_inputs_are_the_same_every_time():
    first, second = (OPERATOR.inputs(make_case()) for _ in range(2))
    assert all(map(torch.equal, first.args, second.args))
