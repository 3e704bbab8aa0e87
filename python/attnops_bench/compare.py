"""Two result files: what became faster or slower beyond the noise.

The machine may have been slower in one of the runs; the peers show by how much, since they took
turns with attnops in both. A change of attnops is its own change over the median change of the
peers in the same row, if both runs had the same PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import pandas as pd

from attnops_bench import view
from attnops_bench.results import Results

# Memory has no quartiles: pages and the allocator's rounding make this difference.
MEMORY_NOISE = 0.01
# Quartiles of few rounds can be closer than what two runs of the same code give.
LEAST_NOISE = 0.02
WATCHED = ("cpu", "threads", "target", "torch")


@dataclass(frozen=True)
class Change:
    """A cell of attnops in both files; figures in ms or MB.

    `change` is new over old, the machine's own change taken out, which is `machine`.
    """

    table: str
    n: int
    column: str
    old: float
    new: float
    change: float
    machine: float
    noise: float
    problem: str | None = None

    @property
    def verdict(self) -> str:
        if self.problem:
            return self.problem
        if abs(math.log(self.change)) <= math.log1p(self.noise):
            return "same"
        return "slower" if self.change > 1 else "faster"

    def regression(self, bound: float) -> bool:
        """Slower (or larger) beyond the noise and by more than the bound, or without a figure."""
        return self.problem is not None or (self.verdict == "slower" and self.change > 1 + bound)


def differences(old: Results, new: Results) -> list[str]:
    """What else than attnops may explain a change, one line each."""
    pairs = [(key, old.environment.get(key), new.environment.get(key)) for key in WATCHED]
    return [f"{key} differs: {a} and {b}" for key, a, b in pairs if a != b]


def _spread(cell: dict) -> float:
    """From the median to the farther quartile, relative."""
    value = cell["value"]
    return max(cell.get("q3", value) - value, value - cell.get("q1", value)) / value


def _machine(old: view.Data, new: view.Data, n: int) -> float:
    names = [c for c, role in old["columns"].items() if role != "attnops"]
    found = [view.value(new, n, c) / view.value(old, n, c) for c in names if c in new["columns"]]
    found = [ratio for ratio in found if not math.isnan(ratio)]
    return median(found) if found else 1.0


def changes(old: Results, new: Results) -> list[Change]:
    """Every cell of attnops with a figure in the old file, whose row is in the new one."""
    same_torch = old.environment.get("torch") == new.environment.get("torch")
    found = []
    for id_, before in old.tables.items():
        after = new.tables.get(id_)
        for n in before["rows"] if after else ():
            if n not in after["rows"]:
                continue
            speed = before["kind"] == "speed"
            machine = _machine(before, after, n) if speed and same_torch else 1.0
            for column in [c for c, role in before["columns"].items() if role == "attnops"]:
                first, second = view.cell(before, n, column), view.cell(after, n, column)
                if "value" not in first or not second:
                    continue
                if "value" not in second:
                    text = "error" if "error" in second else "over budget"
                    found.append(
                        Change(id_, n, column, first["value"], math.nan, math.nan, machine, 0, text)
                    )
                    continue
                noise = max(LEAST_NOISE, _spread(first) + _spread(second))
                found.append(
                    Change(
                        table=id_,
                        n=n,
                        column=column,
                        old=first["value"],
                        new=second["value"],
                        change=second["value"] / first["value"] / machine,
                        machine=machine,
                        noise=noise if speed else MEMORY_NOISE,
                    )
                )
    return found


def frame(found: list[Change], bound: float) -> pd.DataFrame:
    """Those beyond the noise, the worst first."""
    moved = [c for c in found if c.verdict != "same"]
    moved.sort(key=lambda c: -math.inf if c.problem else -c.change)
    return pd.DataFrame(
        {
            "table": c.table,
            "n": c.n,
            "column": c.column,
            "old": c.old,
            "new": c.new,
            "change": "" if c.problem else f"{(c.change - 1) * 100:+.1f}%",
            "noise": f"±{c.noise * 100:.1f}%",
            "machine": f"{(c.machine - 1) * 100:+.1f}%",
            "": c.verdict + (" (regression)" if c.regression(bound) else ""),
        }
        for c in moved
    )


def text(old: Results, new: Results, found: list[Change], bound: float) -> str:
    """What to print: what else differs, the changes, and the counts."""
    table = frame(found, bound)
    counts = pd.Series([c.verdict for c in found], dtype=object).value_counts()
    return "\n".join(
        [
            *differences(old, new),
            *([] if table.empty else [table.to_string(index=False)]),
            ", ".join(f"{k} {name}" for name, k in counts.items()),
        ]
    )
