"""attnops-bench: titles, costs, budgets, errors and a small run from end to end."""

from __future__ import annotations

import json
import math
import threading

import pandas as pd
import pytest
import torch

import attnops
from attnops_bench import cli, measure, processes, random_inputs, worker
from attnops_bench.operators.lrpe_rotate import OPERATOR
from attnops_bench.reference import tolerance
from attnops_bench.results import Results
from attnops_bench.runner import Runner, Settings
from attnops_bench.tables import DTYPES, Case, Cost, all_tables, operators

PUBLISHED = [
    "lrpe_rotate-speed-fwd-batch12-head12-dim128-act_none-bf16",
    "lrpe_rotate-memory-fwd-batch12-head12-dim128-act_none-bf16",
    "lrpe_rotate-speed-bwd-batch12-head12-dim128-act_none-bf16",
    "lrpe_rotate-memory-bwd-batch12-head12-dim128-act_none-bf16",
    "lrpe_rotate-speed-fwd-batch12-head12-dim128-act_silu-bf16",
    "lrpe_rotate-memory-fwd-batch12-head12-dim128-act_silu-bf16",
    "lrpe_rotate-speed-bwd-batch12-head12-dim128-act_silu-bf16",
    "lrpe_rotate-memory-bwd-batch12-head12-dim128-act_silu-bf16",
    "lrpe_rotate-speed-fwd-batch12-head12-dim128-act_softmax-dim_-1-bf16",
    "lrpe_rotate-memory-fwd-batch12-head12-dim128-act_softmax-dim_-1-bf16",
    "lrpe_rotate-speed-bwd-batch12-head12-dim128-act_softmax-dim_-1-bf16",
    "lrpe_rotate-memory-bwd-batch12-head12-dim128-act_softmax-dim_-1-bf16",
    "lrpe_rotate-speed-fwd-batch12-head12-dim128-act_softmax-dim_1-bf16",
    "lrpe_rotate-memory-fwd-batch12-head12-dim128-act_softmax-dim_1-bf16",
    "lrpe_rotate-speed-bwd-batch12-head12-dim128-act_softmax-dim_1-bf16",
    "lrpe_rotate-memory-bwd-batch12-head12-dim128-act_softmax-dim_1-bf16",
]

ACTS = [("none", None), ("silu", None), ("softmax", -1), ("softmax", 1)]


def make_case(direction="fwd", n=16, dtype="bf16", act="none", dim=None, batch=2) -> Case:
    return Case(
        "lrpe_rotate", direction, n, dtype, {"batch": batch, "act": act, "dim": dim}, threads=1
    )


def speed_job(columns, direction="fwd", n=16, act="none", cell_seconds=20.0):
    return {
        "kind": "speed",
        "mode": "kept",
        "in_turns": False,
        "operator": "lrpe_rotate",
        "direction": direction,
        "dtype": "bf16",
        "options": {"batch": 2, "act": act, "dim": None},
        "threads": torch.get_num_threads(),
        "rounds": 1,
        "all_rounds": False,
        "cell_seconds": cell_seconds,
        "rows": [{"n": n, "columns": list(columns)}],
    }


def cells_of(job) -> dict[str, dict]:
    events: list[dict] = []
    worker.run(job, events.append)
    return {e["column"]: e["cell"] for e in events if e["event"] == "cell"}


def test_titles_are_the_published_ones():
    tables = [t for t in all_tables() if t.operator == "lrpe_rotate"]
    assert [t.title for t in tables] == PUBLISHED
    assert all(t.sizes == (256, 512, 1024, 2048, 4096, 8192, 16384, 32768) for t in tables)


def test_title_names_batch_and_type():
    assert OPERATOR.tables(1, "f16")[0].title == (
        "lrpe_rotate-speed-fwd-batch1-head12-dim128-act_none-f16"
    )


def test_ids_are_unique():
    ids = [t.id for t in all_tables(dtypes=DTYPES)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("direction", "act", "moved", "held"),
    [("fwd", "none", 2, 2), ("fwd", "silu", 2, 2), ("bwd", "none", 2, 4), ("bwd", "silu", 3, 4)],
)
@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("f16", 2), ("f32", 4)])
def test_cost(direction, act, moved, held, dtype, size):
    cost = OPERATOR.cost(make_case(direction, 256, dtype, act, batch=12))
    elements = 12 * 256 * 12 * 128
    assert cost.moved == moved * elements * size
    assert cost.held == held * elements * size
    assert cost.flops == 3 * elements


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(("act", "dim"), ACTS)
def test_eager_columns_pass_the_check(direction, act, dim, dtype):
    case = make_case(direction, 257, dtype, act, dim)
    inputs = OPERATOR.inputs(case)
    check = OPERATOR.checker(case, inputs)
    for column in OPERATOR.columns:
        if not column.compiled:
            timed = measure.Timed(column, OPERATOR.function(case, column, inputs), inputs)
            assert check(column, timed.result()) is None, column.name


def test_inputs_are_the_same_every_time():
    case = make_case("bwd")
    first, second = OPERATOR.inputs(case), OPERATOR.inputs(case)
    assert torch.equal(first.args[0], second.args[0])
    assert torch.equal(first.d_out, second.d_out)


def test_nan_is_outside_every_tolerance():
    allowed = tolerance("bf16", roundings=1, depth=1)
    one = torch.ones(1, 1).double().numpy()
    assert allowed.violation(one, one, one) is None
    assert "wrong result" in allowed.violation(one * math.nan, one, one)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_wrong_result_is_an_error_and_not_a_time(monkeypatch, direction):
    right = attnops.lrpe_rotate
    monkeypatch.setattr(
        attnops, "lrpe_rotate", lambda *args, **options: right(*args, **options) * 1.02
    )
    cells = cells_of(speed_job(["attnops", "to"], direction))
    assert "wrong result" in cells["attnops"]["error"]
    assert "value" not in cells["attnops"]
    assert cells["to"]["value"] > 0


def test_a_column_that_raises_is_an_error(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(attnops, "lrpe_rotate", broken)
    cells = cells_of(speed_job(["attnops", "to"]))
    assert cells["attnops"] == {"error": "RuntimeError: no such luck"}
    assert cells["to"]["value"] > 0


def test_memory_budget_is_shown_with_the_estimate(monkeypatch):
    monkeypatch.setattr(measure, "memory_available", lambda: 1)
    cells = cells_of(speed_job(["attnops", "to"]))
    assert cells["to"] == {"budget": "~0 GB > 0 GB", "of": "memory"}
    over_memory = {"budget": "~31 GB > 22 GB", "of": "memory"}
    assert measure.over_memory(31 * 2**30, 22 * 2**30) == over_memory
    assert measure.over_time(45.0, 20.0) == {"budget": "~45 s > 20 s", "of": "time"}


def test_the_limits_of_a_row_are_there_even_if_the_process_ends_in_it(monkeypatch):
    measured = iter([{"bandwidth": 1.0, "fma": 4.0}, {"bandwidth": 2.0, "fma": 3.0}])
    monkeypatch.setattr(measure, "limits", lambda: next(measured))
    events = []
    worker.run(speed_job(["attnops"]), events.append)
    kinds = [event["event"] for event in events]
    assert kinds.index("limits") < kinds.index("cell")
    found = [event["limits"] for event in events if event["event"] == "limits"]
    assert found == [{"bandwidth": 1.0, "fma": 4.0}, {"bandwidth": 2.0, "fma": 4.0}]


def test_the_fma_peak_of_a_row_is_no_less_than_that_of_a_row_before(monkeypatch):
    measured = iter([{"bandwidth": b, "fma": f} for b, f in ((5.0, 9.0), (3.0, 8.0), (2.0, 7.0))])
    monkeypatch.setattr(measure, "limits", lambda: next(measured))
    events = []
    rows = [{"n": n, "columns": ["attnops"]} for n in (8, 16)]
    worker.run({**speed_job(["attnops"]), "rows": rows}, events.append)
    last = {e["n"]: e["limits"] for e in events if e["event"] == "limits"}
    assert last == {8: {"bandwidth": 5.0, "fma": 9.0}, 16: {"bandwidth": 3.0, "fma": 9.0}}


def test_time_budget_holds_for_the_first_size_too():
    cells = cells_of(speed_job(["attnops", "to"], cell_seconds=1e-9))
    assert all(cell == {"budget": "~0 s > 0 s", "of": "time"} for cell in cells.values())
    assert len(cells) == 2


def test_attnops_is_timed_with_fewer_rounds_rather_than_not():
    columns = {c.name: c for c in OPERATOR.columns}
    job = {"cell_seconds": 20.0}
    seconds = (0.0, 1.0, 6.0, 9.0, 30.0)
    assert [measure._fewest_rounds(columns["attnops"], s, job) for s in seconds] == [3, 3, 2, 1, 1]
    assert [measure._fewest_rounds(columns["to"], s, job) for s in seconds] == [3] * 5


def test_the_next_size_is_foretold_by_what_it_moves(monkeypatch):
    """In two dimensions the double size takes four times as long."""
    seen = []

    def row(operator, case, columns, job, expected, emit, wait_for_turn):
        seen.append(expected)
        return {"to": 1.0}

    monkeypatch.setattr(measure, "_speed_row", row)
    monkeypatch.setattr(
        type(OPERATOR), "cost", lambda self, case: Cost(moved=case.n**2, flops=1, held=1)
    )
    job = speed_job(["to"])
    worker.run({**job, "rows": [{"n": n, "columns": ["to"]} for n in (4, 8)]}, lambda event: None)
    assert seen == [{}, {"to": 4.0}]


def test_a_column_over_its_time_foretells_the_next_size(monkeypatch):
    """What was started in vain at one size is not at the next."""
    job = {**speed_job(["attnops", "to"]), "cell_seconds": 20.0, "mode": "kept"}
    job["rows"] = [{"n": n, "columns": ["attnops", "to"]} for n in (16, 32)]
    events: list[dict] = []
    sample = measure.Timed.sample

    def slow(timed: measure.Timed, *use) -> float:
        seconds = sample(timed, *use)
        if timed.column.name == "to":
            timed.wall = 5.0
        return seconds

    monkeypatch.setattr(measure.Timed, "sample", slow)
    worker.run(job, events.append)
    cells = {(e["n"], e["column"]): e["cell"] for e in events if e["event"] == "cell"}
    assert cells[16, "to"] == {"budget": "~15 s > 12 s", "of": "time"}
    assert cells[32, "to"] == {"budget": "~40 s > 12 s", "of": "time"}
    started = {(e["n"], e["column"]) for e in events if e["event"] == "start"}
    assert started == {(16, "attnops"), (16, "to"), (32, "attnops")}


def test_memory_is_given_back_before_it_runs_out(monkeypatch):
    """And a sample that then touches memory anew is taken again."""
    released: list[bool] = []
    faults = iter([0, measure.SETTLED_FAULTS])  # of the check and the first sample
    sample = measure.Timed.sample

    def faulting(timed: measure.Timed, *use) -> float:
        sample(timed, *use)
        timed.faults_per_call = next(faults, 0)
        timed.wall = timed.seconds = 100.0 + timed.faults_per_call
        return timed.seconds

    monkeypatch.setattr(measure, "_release", lambda: released.append(True))
    inputs = OPERATOR.inputs(make_case())
    column = next(c for c in OPERATOR.columns if c.name == "to")
    needed = 2 * measure.memory_available()
    for given_back, bytes_needed in ((0, 0), (1, needed)):
        measure.Timed(column, lambda *args: args[0], inputs, bytes_needed).make_room()
        assert len(released) == given_back

    monkeypatch.setattr(measure.Timed, "sample", faulting)
    job = {**speed_job(["to"], cell_seconds=1e6), "mode": "kept", "rounds": 1}
    events: list[dict] = []
    worker.run(
        job, events.append
    )  # the check, then the sample that faults, then the one that counts
    cell = next(e["cell"] for e in events if e["event"] == "cell")
    assert (cell["value"], cell["faults"]) == (100e3, 0.0)


def test_a_column_follows_another_one_in_each_round(monkeypatch):
    """What one leaves in the caches is not always the same one's to bear."""
    calls: list[str] = []
    sample = measure.Timed.sample

    def noted(timed: measure.Timed, *use) -> float:
        calls.append(timed.column.name)
        return sample(timed, *use)

    monkeypatch.setattr(measure.Timed, "sample", noted)
    names = ["attnops", "to", "to_up"]
    job = {**speed_job(names), "rounds": 8}
    worker.run(job, lambda event: None)
    timed = calls[-8 * len(names) :]
    rounds = [tuple(timed[i : i + len(names)]) for i in range(0, len(timed), len(names))]
    assert all(sorted(r) == sorted(names) for r in rounds)
    before = {timed[i - 1] for i in range(1, len(timed)) if timed[i] == "attnops"}
    assert {"to", "to_up"} <= before


@pytest.mark.parametrize(("all_rounds", "wanted"), [(False, 3), (True, 5)])
def test_rounds_that_were_asked_for(monkeypatch, all_rounds, wanted):
    """A run of many tables spends little time on long calls, one with --rounds what is asked."""
    monkeypatch.setattr(measure, "TIMED_SHARE", 0.0)
    job = {**speed_job(["attnops", "to"]), "rounds": 5, "all_rounds": all_rounds}
    events: list[dict] = []
    worker.run(job, events.append)
    cells = [e["cell"] for e in events if e["event"] == "cell"]
    assert [cell["rounds"] for cell in cells] == [wanted, wanted]


def test_a_wrong_result_has_no_memory_figure(monkeypatch):
    columns = {c.name: c for c in OPERATOR.columns}
    small, case = make_case(n=8), make_case(n=16)
    checked = []

    def checker(self, case, inputs):
        def check(column, result):
            checked.append(case.n)
            return "off by 1"

        return check

    assert measure._peak(OPERATOR, case, columns["to"], small)["value"] > 0
    monkeypatch.setattr(type(OPERATOR), "checker", checker)
    cell = measure._peak(OPERATOR, case, columns["to"], small)
    assert (cell["error"], "value" in cell, checked) == ("off by 1", False, [16])


def test_memory_cells_have_a_time_budget(monkeypatch):
    monkeypatch.setattr(measure, "_peak", lambda *arguments: {"value": 1.0, "seconds": 95.0})
    job = {**speed_job(["to"]), "kind": "memory", "mode": "memory", "cell_seconds": 200.0}

    def cells(sizes: tuple[int, ...], per_byte: float, column: str = "to") -> list[dict]:
        events: list[dict] = []
        rows = [{"n": n, "columns": [column]} for n in sizes]
        worker.run({**job, "rows": rows, "per_byte": per_byte, "smallest": 16}, events.append)
        return [e["cell"] for e in events if e["event"] == "cell"]

    first, second = cells((16, 32), 0.0)
    assert first["value"] == 1.0
    assert second == {"budget": "~190 s > 120 s", "of": "time"}
    # Another process knows what the smaller size took.
    assert cells((32,), first["per_byte"]) == [second]
    # A peer does not have all the time that attnops has.
    assert all("value" in cell for cell in cells((16, 32), 0.0, "attnops"))


def test_a_worker_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(processes, "patience_for", lambda job: 0.1)
    hanging = processes.Worker("plain")
    problem = hanging.run(speed_job(["attnops"]), lambda event: None)
    hanging.close()
    assert problem == "stopped: nothing heard for 0 s"


def test_jobs_in_turns_measure_one_at_a_time():
    turns = processes.Turns(2)
    log: list[str] = []
    prepared = threading.Event()

    def job(name: str, rounds: int) -> None:
        if name == "b":
            assert prepared.wait(10)
        for _ in range(rounds):
            turns.wait()
            log.append(name)
        turns.leave()

    threads = [threading.Thread(target=job, args=a) for a in (("a", 2), ("b", 4))]
    for thread in threads:
        thread.start()
    threads[0].join(0.1)
    assert log == []  # the other is not ready
    prepared.set()
    for thread in threads:
        thread.join(10)
    assert "".join(log) == "ababbb"


def test_a_worker_waits_for_its_turn():
    waiting = processes.Worker("beside")
    events: list[str] = []
    problem = waiting.run(
        {**speed_job(["attnops"]), "mode": "beside", "in_turns": True, "rounds": 2},
        lambda event: events.append(event["event"]),
    )
    waiting.close()
    assert problem is None
    assert events[-3:] == ["ready", "ready", "cell"]
    assert "limits" not in events


def test_an_interrupted_worker_leaves_no_watch():
    before = threading.active_count()
    interrupted = processes.Worker("plain")

    class Stdout:
        def readline(self):
            raise KeyboardInterrupt

    real, interrupted._process.stdout = interrupted._process.stdout, Stdout()
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(speed_job(["attnops"]), lambda event: None)
    interrupted._process.stdout = real
    interrupted.kill()
    interrupted.close()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(5)
    assert threading.active_count() == before


def test_random_inputs_repeat_no_batch_or_head(monkeypatch):
    monkeypatch.setattr(random_inputs, "PERIOD", 101)
    generator = torch.Generator().manual_seed(1)
    x = random_inputs.normal((4, 8, 4, 16), torch.float32, generator)
    assert torch.equal(x.view(-1)[:101], x.view(-1)[101:202])
    slices = {tuple(x[b, :, h].flatten().tolist()) for b in range(4) for h in range(4)}
    assert len(slices) == 16


def test_table_compares_with_the_best_peer_and_the_limit(tmp_path):
    results = Results(tmp_path, {})
    table = OPERATOR.tables(12, "bf16")[0]
    results.begin(table, list(OPERATOR.columns))
    for column, cell in {
        "attnops": {"value": 2.0},
        "to": {"value": 30.0},
        "toc": {"value": 8.0},
        "to_up": {"budget": "~31 GB > 22 GB", "of": "memory"},
        "toc_up": {"error": "wrong result"},
        "toc_free": {"value": 4.0},
    }.items():
        results.add(table, 256, column, "kept", cell)
    moved = OPERATOR.cost(Case.of(table, 256, 1)).moved
    results.add_limits(table, 256, {"bandwidth": moved / 1e-3, "fma": 1e15})
    results.add(table, 256, "attnops", "plain", {"value": 2.5})
    results.add(table, 256, "attnops", "beside", {"value": 2.2})
    results.add(table, 256, "toc", "plain", {"value": 16.0})
    assert results.best_peer(table, 256) == "toc"
    row = results.frame(table).iloc[0]
    assert row["faster than the best peer by"] == 4.0
    assert row["share of the limit"] == pytest.approx(0.5)
    assert row["plain/kept"] == pytest.approx(2.5 / 2.2)
    assert row["best peer plain"] == 16.0
    assert row["to_up"] == "~31 GB > 22 GB"
    assert row["toc_up"] == "error"
    text = results.text(table)
    assert text.startswith(f"{table.title}:\n")
    assert "n=256 toc_up (kept): wrong result" in text


@pytest.mark.parametrize(
    ("precision", "bf16", "seconds"),
    [
        ("highest", 4e9, 10.0),
        ("medium", 0.0, 10.0),  # no instructions, so it ran as highest
        ("medium", 4e9, 2.5),
        ("high", 4e9, 0.5 + 8 / 2),  # two parts
        ("high", 1e9, 2.0 + 8.0),  # or float32 where that is faster
    ],
)
def test_flops_have_the_peak_of_what_they_multiply(precision, bf16, seconds):
    cost = Cost(moved=1, flops=10_000_000_000, held=1, direct=2_000_000_000)
    assert cost.flop_seconds(precision, 1e9, bf16) == pytest.approx(seconds)
    without_products = Cost(moved=1, flops=10_000_000_000, held=1)
    assert without_products.flop_seconds(precision, 1e9, bf16) == 10.0


def test_a_row_shows_what_its_products_ran_as(tmp_path):
    results = Results(tmp_path, {})
    flao = next(t for t in all_tables() if t.operator == "flao" and t.kind == "speed")
    encoding = OPERATOR.tables(12, "bf16")[0]
    for table, columns in (
        (flao, ["precision"]),
        (encoding, []),
    ):
        results.begin(table, list(operators()[table.operator].columns))
        results.add(table, 256, "attnops", "kept", {"value": 2.0})
        results.add_limits(table, 256, {"bandwidth": 1e12, "fma": 1e9, "bf16": 2e9}, "medium")
        frame = results.frame(table)
        assert [c for c in frame.columns if c == "precision"] == columns
    flops = operators()["flao"].cost(Case.of(flao, 256, 1)).flops
    assert results.tables[flao.id]["rows"][256]["limit"]["value"] == pytest.approx(flops / 2e6)
    assert results.environment["limits"]["bf16"] == 2e9


def test_tables_of_other_precisions_are_twins():
    auto = all_tables(12, ("bf16", "f32"))
    both = all_tables(12, ("bf16", "f32"), ("auto", "highest"))
    assert both[: len(auto)] == auto
    twins = both[len(auto) :]
    assert {t.operator for t in twins} >= {"flao", "flao_fal", "tpa_decode"}
    assert {t.operator for t in twins}.isdisjoint({"lrpe_rotate", "md_lrpe_cosine"})
    assert {t.dtype for t in twins} == {"bf16"}
    assert all(t.id.endswith("@highest") and t.options["precision"] == "highest" for t in twins)


@pytest.mark.parametrize(
    ("quicker", "cell", "faster"),
    # A peer that was quicker and is not there may still be the best; over the memory it is out.
    [
        (True, {"budget": "~45 s > 20 s", "of": "time"}, math.nan),
        (True, {"error": "worker ended by SIGKILL"}, math.nan),
        (False, {"budget": "~45 s > 20 s", "of": "time"}, 2.0),
        (True, {"budget": "~31 GB > 22 GB", "of": "memory"}, 2.0),
    ],
)
def test_no_ratio_over_the_second_best_peer(tmp_path, quicker, cell, faster):
    results = Results(tmp_path, {})
    table = OPERATOR.tables(12, "bf16")[0]
    results.begin(table, list(OPERATOR.columns))
    results.add(table, 256, "attnops", "kept", {"value": 1.0})
    results.add(table, 256, "to", "kept", {"value": 1.5 if quicker else 2.5})
    results.add(table, 256, "toc", "kept", {"value": 2.0})
    results.add(table, 512, "attnops", "kept", {"value": 2.0})
    results.add(table, 512, "to", "kept", cell)
    results.add(table, 512, "toc", "kept", {"value": 4.0})
    shown = results.frame(table)["faster than the best peer by"]
    assert shown[0] == (1.5 if quicker else 2.0)
    assert shown[1] == pytest.approx(faster, nan_ok=True)


class DyingWorkers:
    """Stands for workers of which the first dies in the column `to`."""

    def __init__(self, signal: str):
        self.jobs = []
        self.reason = f"worker ended by {signal}"

    def run(self, job, on_event, keep):
        self.jobs.append(job)
        for row in job["rows"]:
            for column in row["columns"]:
                on_event({"event": "start", "n": row["n"], "column": column})
                if column == "to" and len(self.jobs) == 1:
                    return self.reason
                cell = {"value": 1.0}
                on_event({"event": "cell", "n": row["n"], "column": column, "cell": cell})
        return None


@pytest.mark.parametrize(
    ("signal", "at_fault"),
    [("SIGSEGV", "to"), ("SIGKILL (out of memory?)", "to_up")],  # to_up takes the most memory
)
def test_a_dead_worker_costs_one_cell(tmp_path, signal, at_fault):
    results = Results(tmp_path, {})

    def no_plain(table, sizes):
        return []

    settings = Settings(
        threads=1,
        rounds=1,
        all_rounds=True,
        cell_seconds=1.0,
        plain=no_plain,
        peers=("to", "to_up"),
    )
    runner = Runner(settings, results, lambda weight: None)
    runner._workers = DyingWorkers(signal)
    table = OPERATOR.tables(12, "bf16")[0]
    runner.run(table, [16, 32])
    frame = results.frame(table)
    other = {"to": "to_up", "to_up": "to"}[at_fault]
    assert frame["attnops"].tolist() == [1.0, 1.0]
    assert frame[at_fault].tolist() == ["error", 1.0]
    assert frame[other].tolist() == [1.0, 1.0]
    assert runner._workers.jobs[1]["rows"][0] == {"n": 16, "columns": [other]}


def test_end_to_end(tmp_path, capsys):
    output = tmp_path / "out"
    arguments = ["--sizes", "16", "--rounds", "1", "--batch", "1", "--peers", "to"]
    only = ["--only", "lrpe_rotate-*-fwd-*-act_none-*", "--threads", "1"]
    assert cli.main([*arguments, *only, "--output", str(output)]) == 0
    titles = [
        f"lrpe_rotate-{kind}-fwd-batch1-head12-dim128-act_none-bf16" for kind in ("speed", "memory")
    ]
    printed = capsys.readouterr().out
    assert all(f"{title}:" in printed for title in titles)
    page = output / "report" / "index.html"
    assert printed.splitlines()[-1] == f"report in {page}"
    assert all(title in page.read_text() for title in titles)
    document = json.loads((output / "results.json").read_text())
    assert list(document["tables"]) == titles
    for key in ("cpu", "target", "threads", "torch", "attnops", "python", "date", "commit"):
        assert key in document["environment"]
    assert document["environment"]["limits"]["bandwidth"] > 0
    speed = pd.read_csv(output / f"{titles[0]}.csv", comment="#")
    assert speed["n"].tolist() == [16.0]
    for column in ("attnops", "to", "share of the limit", "attnops plain", "best peer plain"):
        assert (speed[column] > 0).all()
    memory = pd.read_csv(output / f"{titles[1]}.csv", comment="#")
    assert (memory[["attnops", "to"]] > 0).all(axis=None)
