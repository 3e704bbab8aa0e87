"""attnops-bench compare: noise, the machine's own change, regressions and the exit code."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from attnops_bench import cli, compare
from attnops_bench.results import Results
from bench_results import make_results

SPEED = "lrpe_rotate-speed-fwd-batch12-head12-dim128-act_none-bf16"
MEMORY = "lrpe_rotate-memory-fwd-batch12-head12-dim128-act_none-bf16"


@pytest.fixture
def old(tmp_path) -> Results:
    return make_results(tmp_path / "old", ("lrpe_rotate",))


@pytest.fixture
def new(old, tmp_path) -> Results:
    results = Results(tmp_path / "new", copy.deepcopy(old.environment))
    results.tables = copy.deepcopy(old.tables)
    return results


def scale(results: Results, id_: str, n: int, columns: list[str], factor: float) -> None:
    for column in columns:
        for cell in results.tables[id_]["rows"][n]["cells"][column].values():
            cell.update({k: cell[k] * factor for k in ("value", "q1", "q3") if k in cell})


def run(old: Results, new: Results, *flags: str) -> int:
    old.save()
    new.save()
    return cli.main(["compare", str(old.directory), str(new.directory), *flags])


def moved(old: Results, new: Results) -> list[tuple[str, int, str]]:
    return [(c.table, c.n, c.verdict) for c in compare.changes(old, new) if c.verdict != "same"]


def test_the_same_results(old, new, capsys):
    assert run(old, new) == 0
    assert capsys.readouterr().out == "128 same\n"


def test_slower_is_a_regression_above_the_bound(old, new, capsys):
    scale(new, SPEED, 1024, ["attnops"], 1.25)
    assert moved(old, new) == [(SPEED, 1024, "slower")]
    assert run(old, new) == 1
    printed = capsys.readouterr().out
    assert "+25.0%" in printed
    assert "slower (regression)" in printed
    assert printed.endswith("127 same, 1 slower\n")
    assert run(old, new, "--bound", "30%") == 0
    assert "(regression)" not in capsys.readouterr().out


def test_faster_is_not(old, new, capsys):
    scale(new, SPEED, 1024, ["attnops"], 0.7)
    assert run(old, new) == 0
    assert "-30.0%" in capsys.readouterr().out


def test_within_the_noise(old, new):
    scale(new, SPEED, 1024, ["attnops"], 1.05)  # the quartiles are 3% from the median
    assert moved(old, new) == []


def test_a_slower_machine_is_not_a_slower_operator(old, new):
    columns = list(old.tables[SPEED]["columns"])
    scale(new, SPEED, 1024, columns, 1.4)
    assert moved(old, new) == []
    (change,) = [c for c in compare.changes(old, new) if (c.table, c.n) == (SPEED, 1024)]
    assert change.machine == pytest.approx(1.4)
    # Another PyTorch is no measure of the machine.
    new.environment["torch"] = "2.14.0"
    assert moved(old, new) == [(SPEED, 1024, "slower")]
    assert compare.differences(old, new) == ["torch differs: 2.13.0 and 2.14.0"]


def test_more_memory_is_a_regression(old, new):
    scale(new, MEMORY, 512, ["attnops"], 1.1)
    assert moved(old, new) == [(MEMORY, 512, "slower")]
    assert run(old, new) == 1


def test_a_figure_that_is_gone_is_a_regression(old, new, capsys):
    new.tables[SPEED]["rows"][256]["cells"]["attnops"]["kept"] = {"error": "wrong result"}
    assert run(old, new, "--bound", "500") == 1
    assert "error (regression)" in capsys.readouterr().out


def test_a_row_that_was_not_run_is_not(old, new):
    del new.tables[SPEED]["rows"][256]
    del new.tables[MEMORY]
    assert run(old, new) == 0


def test_nothing_in_common(old, new, capsys):
    new.tables = {}
    assert run(old, new) == 2
    assert "have no cell of attnops in common" in capsys.readouterr().err


def test_the_file_itself_may_be_named(old, new):
    old.save()
    new.save()
    files = [str(Path(r.directory) / "results.json") for r in (old, new)]
    assert cli.main(["compare", *files]) == 0


def break_(document: dict, path: str, value: object) -> None:
    """Sets what a path such as `tables/*/rows/*/cells` leads to; `*` is the first there is."""
    *folders, last = path.split("/")
    for key in folders:
        document = document[next(iter(document)) if key == "*" else key]
    document[next(iter(document)) if last == "*" else last] = value


MALFORMED = {
    "tables": [],
    "environment": None,
    "settings": 3,
    "tables/*": [],
    "tables/*/kind": "size",
    "tables/*/columns": None,
    "tables/*/columns/attnops": "peer",
    "tables/*/rows": [1, 2],
    "tables/*/rows/x": {"cells": {}},
    "tables/*/rows/*": None,
    "tables/*/rows/*/cells": "none",
    "tables/*/rows/*/limit": 3,
    "tables/*/rows/*/cells/attnops": [],
    "tables/*/rows/*/cells/attnops/*": 1.5,
    "tables/*/rows/*/cells/attnops/*/value": "1.5",
    "tables/*/rows/*/cells/attnops/*/q1": None,
}


@pytest.mark.parametrize(("path", "value"), MALFORMED.items(), ids=MALFORMED)
@pytest.mark.parametrize("which", ["old", "new"])
def test_a_malformed_file(old, new, path, value, which, capsys):
    """Not 1, which means a regression."""
    for results in (old, new):
        results.save()
    directory = {"old": old, "new": new}[which].directory
    file = directory / "results.json"
    document = json.loads(file.read_text())
    break_(document, path, value)
    file.write_text(json.dumps(document))
    assert cli.main(["compare", str(old.directory), str(new.directory)]) == 2
    assert f"{file} is not a result file of attnops-bench" in capsys.readouterr().err
    assert cli.main(["report", str(directory), "--output", str(directory / "report")]) == 2


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "\0", '{"schema": "1"}', "3"])
def test_a_file_of_something_else(old, new, text, capsys):
    old.save()
    new.save()
    (new.directory / "results.json").write_text(text)
    assert cli.main(["compare", str(old.directory), str(new.directory)]) == 2
    assert str(new.directory / "results.json") in capsys.readouterr().err


def test_a_figure_of_zero(old, new, capsys):
    """Nothing takes no time; a ratio to it would be no number."""
    cell = old.tables[SPEED]["rows"][256]["cells"]["attnops"]["kept"]
    cell["value"] = 0
    assert run(old, new) == 2
    assert f"{SPEED}, row 256, attnops, kept has no number above 0" in capsys.readouterr().err
