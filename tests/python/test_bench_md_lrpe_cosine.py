"""attnops-bench on md_lrpe_cosine: titles, costs and the peers' results."""

import ctypes
import math

import pytest
import torch

import attnops
from attnops_bench import cli, measure, worker
from attnops_bench.operators.md_lrpe_cosine import OPERATOR
from attnops_bench.tables import Case, all_tables

SIZES = {
    1: (256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    2: (16, 32, 64, 128),
    3: (4, 8, 16, 32),
}
# Grids whose sides do not come in pairs: 1-d, 2-d and 3-d.
SIDES = [(1, 257), (2, 9), (3, 5)]


def make_case(direction="fwd", axes=1, n=16, l=0, dtype="bf16", batch=2) -> Case:
    options = {"batch": batch, "axes": axes, "l": l}
    return Case("md_lrpe_cosine", direction, n, dtype, options, threads=1)


def test_titles_are_the_published_ones():
    tables = [t for t in all_tables() if t.operator == "md_lrpe_cosine"]
    assert [t.title for t in tables] == [
        f"md_lrpe_cosine-{kind}-{direction}-batch12-head12-dim128-bf16-{axes}d-l{l}"
        for axes in (1, 2, 3)
        for l in (0, 10)
        for direction in ("fwd", "bwd")
        for kind in ("speed", "memory")
    ]
    for table in tables:
        assert table.sizes == SIZES[table.options["axes"]]
        assert set(table.quick_sizes) <= set(table.sizes)


@pytest.mark.parametrize("l", [0, 10])
@pytest.mark.parametrize(("axes", "n"), SIDES)
@pytest.mark.parametrize(("direction", "flops", "held"), [("fwd", 2, 3), ("bwd", 3, 6)])
@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("f32", 4)])
def test_cost(dtype, size, direction, flops, held, axes, n, l):
    """The output is twice as large as x; n is the side of the grid."""
    cost = OPERATOR.cost(make_case(direction, axes, n, l, dtype, batch=12))
    elements = 12 * 12 * (l + n**axes) * 128
    assert cost.moved == 3 * elements * size
    assert cost.flops == flops * elements
    assert cost.held == held * elements * size


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("l", [0, 10])
@pytest.mark.parametrize(("axes", "n"), SIDES)
def test_eager_columns_pass_the_check(axes, n, l, direction, dtype):
    case = make_case(direction, axes, n, l, dtype)
    inputs = OPERATOR.inputs(case)
    check = OPERATOR.checker(case, inputs)
    x = inputs.args[0].detach().clone()
    for column in OPERATOR.columns:
        if not column.compiled:
            timed = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs)
            assert check(column, timed.result()) is None, column.name
            assert torch.equal(inputs.args[0], x), column.name


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_compiled_columns_pass_the_check(direction):
    torch._dynamo.reset()
    case = make_case(direction, 3, 5, 10)
    inputs = OPERATOR.inputs(case)
    check = OPERATOR.checker(case, inputs)
    for column in OPERATOR.columns:
        if column.compiled:
            timed = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs)
            assert check(column, timed.result()) is None, column.name


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_wrong_result_is_seen(direction):
    case = make_case(direction, 2, 9, 10)
    inputs = OPERATOR.inputs(case)
    check = OPERATOR.checker(case, inputs)
    column = OPERATOR.columns[0]
    right = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs).result()
    value = right if direction == "fwd" else right[0]
    assert check(column, value) is None
    assert "wrong result" in check(column, 1.02 * value)
    assert "wrong result" in check(column, value[..., 1:])


def test_inputs_that_do_not_fit_are_not_made(monkeypatch):
    """A side given for all tables may be far too long for three axes."""
    monkeypatch.setattr(OPERATOR, "inputs", lambda case: pytest.fail("inputs were made"))
    job = {
        "kind": "speed",
        "mode": "kept",
        "in_turns": False,
        "operator": "md_lrpe_cosine",
        "direction": "fwd",
        "dtype": "bf16",
        "options": {"batch": 12, "axes": 3, "l": 0},
        "threads": torch.get_num_threads(),
        "rounds": 1,
        "all_rounds": False,
        "cell_seconds": 20.0,
        "rows": [{"n": 32768, "columns": ["attnops", "to"]}],
    }
    events: list[dict] = []
    worker.run(job, events.append)
    cells = {e["column"]: e["cell"] for e in events if e["event"] == "cell"}
    assert set(cells) == {"attnops", "to"}
    assert all("GB >" in cell["budget"] for cell in cells.values())


def test_the_memory_of_a_table_counts():
    # Large tensors of earlier tests may have taught malloc to keep them, and their pages would not
    # count again: with a threshold that is set, it gives every one back.
    M_MMAP_THRESHOLD = -3
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 17)
    ctypes.CDLL(None).malloc_trim(0)
    attnops.empty_cache()
    columns = {c.name: c for c in OPERATOR.columns}
    case = make_case(axes=1, n=4096, batch=2)
    alone, with_table = (
        measure._peak(OPERATOR, case, columns[name], case)["value"]
        for name in ("attnops", "attnops_table")
    )
    table = 12 * 4096 * 128 * 2 * 4 / 2**20
    assert math.isclose(with_table - alone, table, rel_tol=0.1)


def test_end_to_end(tmp_path, capsys):
    arguments = ["--sizes", "6", "--rounds", "1", "--batch", "1", "--peers", "to", "--threads", "1"]
    only = ["--only", "md_lrpe_cosine-*-bwd-*-3d-l10"]
    assert cli.main([*arguments, *only, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    for kind in ("speed", "memory"):
        assert f"md_lrpe_cosine-{kind}-bwd-batch1-head12-dim128-bf16-3d-l10:" in printed
    assert "attnops_table" in printed
