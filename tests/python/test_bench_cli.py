"""attnops-bench as a command: lists, bad use, missing things, interruption and going on."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from attnops_bench import cli, files, published, report, selection
from attnops_bench.operators.flao import KEEPS
from attnops_bench.results import Results
from attnops_bench.runner import columns_of, own_column, plain_weight, weight
from attnops_bench.tables import DEFAULT_BATCH, Table, all_tables, operators
from bench_results import make_results

SMALL = ["--sizes", "16", "--rounds", "1", "--batch", "1", "--peers", "to", "--threads", "1"]
ONE = ["--only", "lrpe_rotate-*-fwd-*-act_none-*", "--no-plain"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Results and reports go to the working directory unless a flag says otherwise."""
    monkeypatch.chdir(tmp_path)


def one_line(capsys) -> str:
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("attnops-bench: ")
    return lines[0]


class FakeWorkers:
    """Stands for workers in which every cell takes 1 ms; interrupts before the given job."""

    def __init__(self, interrupt_at: int | None = None):
        self.jobs: list[dict] = []
        self.interrupt_at = interrupt_at

    def run(self, job, on_event, keep):
        if len(self.jobs) == self.interrupt_at:
            raise KeyboardInterrupt
        self.jobs.append(job)
        on_event({"event": "environment", "target": "AVX2", "torch": "2", "python": "3"})
        for row in job["rows"]:
            for column in row["columns"]:
                cell = {"value": 1.0}
                on_event({"event": "cell", "n": row["n"], "column": column, "cell": cell})
        return

    def stop(self):
        pass

    def close(self):
        pass


@pytest.fixture
def fake_workers(monkeypatch):
    """Replaces the worker processes of the following runs."""

    def install(interrupt_at: int | None = None) -> FakeWorkers:
        workers = FakeWorkers(interrupt_at)
        monkeypatch.setattr("attnops_bench.runner.Workers", lambda: workers)
        return workers

    return install


def test_list_has_every_published_table(capsys):
    assert cli.main(["--list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    ids = {words[0] for words in lines}
    assert ids >= set(published.tables())
    # The others are of operators and ranks that came later.
    later = re.compile(r"(linear_attention|rope|tpa)-|tpa_decode-.*-rank6_2_2-")
    assert all(later.match(id_) for id_ in ids - set(published.tables()))
    for words in (words for words in lines if words[0] in published.tables()):
        there = published.tables()[words[0]].operator in operators()
        assert there or words[1:3] == ["not", "available:"]


def test_several_patterns_select_what_any_matches(capsys):
    only = ["--only", "tpa_decode-speed-*", "--only", "flao-memory-bwd-*@kv"]
    assert cli.main(["--list", *only]) == 0
    lines = capsys.readouterr().out.split()
    assert {line.split("-batch")[0] for line in lines} == {
        "tpa_decode-speed-fwd",
        "flao-memory-bwd",
    }
    assert cli.main(["--list", *only, "--only", "no-such"]) == 2
    assert "'no-such'" in one_line(capsys)


def test_list_of_one_operator(capsys):
    assert cli.main(["--list", "--only", "lrpe_rotate*"]) == 0
    ids = [t.id for t in published.tables().values() if t.operator == "lrpe_rotate"]
    assert capsys.readouterr().out.split() == ids


def test_the_tables_of_an_operator_are_the_published_ones():
    for name in {t.operator for t in published.tables().values()} & set(operators()):
        mine = {t.id: (t.title, t.size_name, t.sizes) for t in all_tables() if t.operator == name}
        theirs = {
            t.id: (t.title, t.size_name, tuple(t.rows))
            for t in published.tables().values()
            if t.operator == name
        }
        assert mine == theirs


def quick_tables() -> list[Table]:
    return selection.select(DEFAULT_BATCH, ("bf16",), ("auto",), selection.QUICK).tables


def test_the_quick_set_has_every_operator_pass_and_kind():
    def kinds(tables):
        return {(t.operator, t.direction, t.kind) for t in tables}

    quick = kinds(quick_tables())
    assert quick >= kinds(published.tables().values())
    names = {name.removesuffix("_ranks") for name in operators()}
    assert {operator for operator, *_ in quick} == names
    assert len(quick_tables()) < len(all_tables())


def test_the_quick_set_takes_less_than_ten_minutes():
    """By the estimates of its cells; memory is measured in two processes at once."""
    seconds = 0.0
    for table in quick_tables():
        columns = columns_of(table, None)
        sizes = table.quick_sizes if table.kind == "speed" else [max(table.quick_sizes)]
        cells = sum(weight(table, n, c) for n in sizes for c in columns)
        if table.kind == "speed":
            seconds += cells + plain_weight(table, max(sizes), own_column(columns))
        else:
            seconds += cells / 2
    assert seconds < 570


def test_the_quick_set_has_lines_and_not_points():
    """Nor has any other table: those named by --only have the same sizes."""
    speed = [t for t in all_tables() if t.kind == "speed"]
    assert speed
    assert [t.id for t in speed if len(t.quick_sizes) < 3] == []


def test_an_operator_without_module_is_a_line_and_not_a_crash(monkeypatch, capsys, fake_workers):
    fake_workers()
    known = operators()
    monkeypatch.setattr(selection, "operators", lambda: {"lrpe_rotate": known["lrpe_rotate"]})
    monkeypatch.setattr(
        selection,
        "all_tables",
        lambda *args: [t for t in all_tables(*args) if t.operator == "lrpe_rotate"],
    )
    assert cli.main(["--only", "*-speed-fwd-*", "--sizes", "16"]) == 0
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if "not available" in line]
    assert [line.split(":")[0] for line in lines] == [
        "flao",
        "flao_fal",
        "md_lrpe_cosine",
        "tpa_decode",
    ]
    assert "flao_fal-speed-fwd" in Path("report/index.html").read_text()
    assert cli.main(["--only", "tpa_decode*"]) == 2
    assert "none of these tables can be run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["lrpe_rotate"], "lrpe_rotate"),
        (["--sizes", "0"], "'0'"),
        (["--sizes", "12,x"], "'x'"),
        (["--rounds", "-1"], "--rounds"),
        (["--dtype", "f8"], "'f8'"),
        (["--threads", "many"], "'many'"),
        (["--only", "lrpe_turn*"], "'lrpe_turn*'"),
        (["--only", "lrpe_rotate*", "--peers", "jax"], "'jax'"),
        (["--only", "lrpe_rotate*", "--peers", "to", "--no-torch"], "--no-torch"),
        (["--resume", "nowhere"], "nowhere"),
        (["--resume", "--full"], "--full"),
        (["compare", "one"], "NEW"),
        (["compare", "one", "two"], "one"),
        (["compare", "one", "two", "--bound", "-3"], "'-3'"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_bad_use_is_one_line(arguments, part, capsys):
    assert cli.main(arguments) == 2
    assert part in one_line(capsys)


def test_results_of_something_else(tmp_path, capsys):
    (tmp_path / "results.json").write_text('{"schema": 1}')
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "is not a result file" in one_line(capsys)


@pytest.mark.parametrize(("flag", "part"), [("--output", "results"), ("--report", "a report")])
def test_unwritable_folder(flag, part, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main([*ONE, *SMALL, flag, str(tmp_path / "file" / "folder")]) == 2
    assert f"cannot write {part} to" in one_line(capsys)


def test_no_room_on_disk_at_the_start(monkeypatch, capsys):
    def full(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "write_text", full)
    assert cli.main([*ONE, *SMALL]) == 2
    assert "cannot write results to" in (line := one_line(capsys))
    assert "No space left on device" in line


def test_no_room_on_disk_during_the_run(monkeypatch, capsys, fake_workers):
    fake_workers()

    def to_full_disk(self, table):
        write_to_full_disk(self.directory / "x.csv")

    monkeypatch.setattr(Results, "save_csv", to_full_disk)
    assert cli.main([*ONE, *SMALL, "--output", "here"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "attnops-bench: here/x.csv: No space left on device"


def write_to_full_disk(path: Path) -> None:
    """The error of a write, unlike that of an open, names no file."""
    path.with_name(f".{path.name}.part").symlink_to("/dev/full")
    files.write(path, "text")


def test_no_room_on_disk_for_the_report(tmp_path, capsys):
    make_results(tmp_path, ("tpa_decode",)).save()
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / ".index.html.part").symlink_to("/dev/full")
    assert cli.main(["report", str(tmp_path), "--output", str(tmp_path / "report")]) == 2
    assert one_line(capsys).endswith("report/index.html: No space left on device")
    assert list((tmp_path / "report").iterdir()) == []


@pytest.mark.parametrize(
    ("package", "advice"),
    [("torch", "pip install torch"), ("matplotlib", "pip install 'attnops[bench]'")],
)
def test_a_missing_package_is_one_line(package, advice):
    program = (
        f"import sys; sys.modules['{package}'] = None\n"
        "from attnops_bench import main\nsys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"attnops-bench: {package} is not installed; run: {advice}\n"


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(capsys, fake_workers):
    fake_workers(interrupt_at=4)
    arguments = ["--only", "lrpe_rotate-speed-*-act_none-*", "--sizes", "16,32", "--peers", "to"]
    assert cli.main(arguments) == 130
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].endswith("attnops-bench --resume goes on")
    # All processes of the first table, and the first of the second.
    document = json.loads(Path("results/latest/results.json").read_text())
    forward, backward = document["tables"].values()
    assert set(forward["rows"]["32"]["cells"]["attnops"]) == {"kept", "plain", "beside"}
    assert set(backward["rows"]["32"]["cells"]["attnops"]) == {"kept"}
    assert Path("report/index.html").exists()

    workers = fake_workers()
    assert cli.main(["--resume"]) == 0
    jobs = {(job["direction"], job["mode"]) for job in workers.jobs}
    assert jobs == {("bwd", "plain"), ("bwd", "beside")}
    assert [row["n"] for row in workers.jobs[0]["rows"]] == [16, 32]
    assert len(list(Path("results").iterdir())) == 2  # the run and the link to it

    workers = fake_workers()
    assert cli.main(["--resume", "results/latest"]) == 0
    assert workers.jobs == []


def test_a_half_done_row_is_measured_again(fake_workers):
    fake_workers()
    assert cli.main([*ONE, *SMALL, "--output", "out"]) == 0
    path = Path("out/results.json")
    document = json.loads(path.read_text())
    speed, memory = document["tables"].values()
    del speed["rows"]["16"]["cells"]["to"]
    del memory["rows"]["16"]["cells"]["to"]
    path.write_text(json.dumps(document))
    workers = fake_workers()
    assert cli.main(["--resume", "out"]) == 0
    # Memory is first and has a process per column; columns that take turns are timed together.
    assert [job["rows"] for job in workers.jobs] == [
        [{"n": 16, "columns": ["to"]}],
        [{"n": 16, "columns": ["attnops", "to"]}],
    ]


@pytest.mark.parametrize(("direction", "changed"), [("fwd", ()), ("bwd", ("attnops", "flao_to"))])
def test_memory_that_no_policy_changes_is_measured_once(fake_workers, direction, changed):
    workers = fake_workers()
    only = ["--only", f"flao-memory-{direction}-*", "--peers", "lao_to,flao_to", "--sizes", "16"]
    assert cli.main([*only, "--output", "out"]) == 0
    columns = ("attnops", "lao_to", "flao_to")
    jobs = Counter((job["options"]["keep"], job["rows"][0]["columns"][0]) for job in workers.jobs)
    assert jobs == Counter((k, c) for k in KEEPS for c in columns if k == "none" or c in changed)
    document = json.loads(Path("out/results.json").read_text())
    for table in document["tables"].values():
        assert set(table["rows"]["16"]["cells"]) == set(columns)


def test_forwards_that_keep_nothing_are_timed_once(fake_workers):
    workers = fake_workers()
    only = ["--only", "flao-speed-*", "--peers", "lao_to", "--sizes", "16"]
    assert cli.main([*only, "--output", "out"]) == 0
    jobs = Counter((j["direction"], j["options"]["keep"], j["mode"]) for j in workers.jobs)
    tables = [("fwd", "none"), *(("bwd", keep) for keep in KEEPS)]
    assert jobs == Counter(
        (*table, mode) for table in tables for mode in ("kept", "plain", "beside")
    )
    for keep in KEEPS:
        assert list(Path("out").glob(f"flao-speed-fwd-*@{keep}.csv"))
    document = json.loads(Path("out/results.json").read_text())
    for table in document["tables"].values():
        assert set(table["rows"]["16"]["cells"]["attnops"]) == {"kept", "plain", "beside"}


def test_a_full_run_times_the_plain_process_at_one_size(fake_workers):
    workers = fake_workers()
    only = "lrpe_rotate-speed-fwd-*-act_none-*"
    assert cli.main(["--full", "--only", only, "--peers", "to"]) == 0
    sizes = {job["mode"]: [row["n"] for row in job["rows"]] for job in workers.jobs}
    assert sizes == {
        "kept": [2**i for i in range(8, 16)],
        "plain": [2048],
        "beside": [2048],
    }


def test_the_quick_set_takes_the_largest_size_for_what_takes_long(fake_workers):
    workers = fake_workers()
    assert cli.main(["--only", "lrpe_rotate-*-fwd-*-act_none-*", "--peers", "to"]) == 0
    sizes = {job["mode"]: [row["n"] for row in job["rows"]] for job in workers.jobs}
    assert sizes == {"memory": [2048], "kept": [512, 1024, 2048], "plain": [2048], "beside": [2048]}


def test_another_machine_cannot_go_on(capsys, fake_workers):
    fake_workers()
    assert cli.main([*ONE, *SMALL, "--output", "out"]) == 0
    path = Path("out/results.json")
    path.write_text(path.read_text().replace('"cpu": "', '"cpu": "Another '))
    capsys.readouterr()
    assert cli.main(["--resume", "out"]) == 2
    assert "its cpu was Another" in one_line(capsys)


def test_the_report_of_older_results(capsys, fake_workers):
    fake_workers()
    assert cli.main([*ONE, *SMALL, "--output", "out"]) == 0
    capsys.readouterr()
    assert cli.main(["report", "out", "--output", "page"]) == 0
    page = Path("page").resolve() / report.NAME
    assert capsys.readouterr().out == f"report in {page}\n"
    assert page.exists()
