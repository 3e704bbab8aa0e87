"""What the results of a table say: a pandas frame, ratios, errors, and a summary of all tables.

`data` is a table of the result document (see `attnops_bench.results`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from attnops_bench import published

MAIN_MODE = {"speed": "kept", "memory": "memory"}
FASTER = {"speed": "faster than the best peer by", "memory": "smaller than the best peer by"}
SHARE = "share of the limit"
# A time was disturbed if its quartiles are further apart than this part of it.
WIDE_QUARTILES = 0.25
Data = dict[str, Any]


def short_title(id_: str) -> str:
    """The part of an id that tells the tables of one operator and kind apart."""
    return re.sub(r"^\w+?-(speed|memory)-|-head\d+(-dim\d+)+(-rank\d+)?", "", id_)


def mode(data: Data) -> str:
    """The mode whose figures are the table's; a speed table has `plain` and `beside` too."""
    return MAIN_MODE[data["kind"]]


def own(data: Data) -> str:
    """The column compared with the peers: the first of attnops."""
    return next(name for name, role in data["columns"].items() if role == "attnops")


def cell(data: Data, n: int, column: str, of: str | None = None) -> dict[str, Any]:
    return data["rows"][n]["cells"].get(column, {}).get(of or mode(data), {})


def value(data: Data, n: int, column: str, of: str | None = None) -> float:
    """In ms or MB; NaN where there is none."""
    return cell(data, n, column, of).get("value", math.nan)


def disturbed(content: dict[str, Any]) -> bool:
    """Whether the quartiles of a time are wide apart."""
    spread = content.get("q3", 0.0) - content.get("q1", 0.0)
    return spread > WIDE_QUARTILES * content.get("value", 0.0)


def best_peer(data: Data, n: int) -> str | None:
    peers = [name for name, role in data["columns"].items() if role == "peer"]
    values = {name: value(data, n, name) for name in peers}
    values = {name: v for name, v in values.items() if not math.isnan(v)}
    return min(values, key=values.__getitem__) if values else None


def faster(data: Data, n: int) -> float:
    """The best peer's figure over that of attnops; NaN if a better peer was left out."""
    best = best_peer(data, n)
    if best is None or _better_left_out(data, n, best):
        return math.nan
    return value(data, n, best) / value(data, n, own(data))


def _better_left_out(data: Data, n: int, best: str) -> bool:
    """Whether a peer without a figure was quicker than `best` where both were timed last.

    One that is over the memory cannot run here, however quick it may be.
    """
    smaller = sorted((size for size in data["rows"] if size < n), reverse=True)
    for name, role in data["columns"].items():
        missing = cell(data, n, name)
        if role != "peer" or "value" in missing or missing.get("of") == "memory":
            continue
        ratios = (value(data, size, name) / value(data, size, best) for size in smaller)
        if next((ratio for ratio in ratios if not math.isnan(ratio)), math.inf) < 1:
            return True
    return False


def share(data: Data, n: int) -> float:
    limit = data["rows"][n]["limit"]
    return limit["value"] / value(data, n, own(data)) if limit else math.nan


def precision(data: Data, n: int) -> str | None:
    """What the products of attnops ran as; None if it has none, or in a memory table."""
    return (data["rows"][n]["limit"] or {}).get("precision")


def plain_to_kept(data: Data, n: int) -> float:
    """The time in a plain process over that in one that keeps its memory, taken in turns."""
    ours = own(data)
    return value(data, n, ours, "plain") / value(data, n, ours, "beside")


def errors(data: Data) -> list[str]:
    """What went wrong, one line a cell."""
    return [
        f"{data['size_name']}={n} {column} ({m}): {c['error']}"
        for n, row in data["rows"].items()
        for column, modes in row["cells"].items()
        for m, c in modes.items()
        if "error" in c
    ]


def shown(content: dict[str, Any], detailed: bool = False) -> float | str:
    """A cell as it stands in a frame: the figure, `error` or the budget it exceeds."""
    if "error" in content:
        return f"error: {content['error']}" if detailed else "error"
    return content.get("budget", content.get("value", math.nan))


def frame(data: Data, detailed: bool = False) -> pd.DataFrame:
    """The published layout, with what attnops gains and the plain process behind it.

    `detailed` adds the quartiles and the whole text of errors, for the CSV.
    """
    main, ours = mode(data), own(data)
    lines = []
    for n in sorted(data["rows"]):
        line: dict[str, Any] = {data["size_name"]: float(n)}
        for column in data["columns"]:
            content = cell(data, n, column)
            line[column] = shown(content, detailed)
            if detailed and main == "kept":
                line[f"{column} q1"] = content.get("q1", math.nan)
                line[f"{column} q3"] = content.get("q3", math.nan)
        if "peer" in data["columns"].values():
            line[FASTER[data["kind"]]] = faster(data, n)
        line[SHARE] = share(data, n)
        if found := precision(data, n):
            line["precision"] = found
        if any("plain" in modes for modes in data["rows"][n]["cells"].values()):
            line[f"{ours} plain"] = shown(cell(data, n, ours, "plain"), detailed)
            line["plain/kept"] = plain_to_kept(data, n)
            if best := best_peer(data, n):
                line["best peer plain"] = shown(cell(data, n, best, "plain"), detailed)
        lines.append(line)
    return pd.DataFrame(lines)


def text(id_: str, data: Data) -> str:
    """The table as printed: its id, the rows, and a line for each error."""
    shown_frame = frame(data)
    body = "no rows" if shown_frame.empty else shown_frame.to_string()
    return "\n".join([f"{id_}:", body, *errors(data), ""])


def ratios(id_: str, data: Data) -> pd.DataFrame:
    """By size: the best PyTorch figure over the fused one, here and in the published table."""
    there = published.tables().get(id_)
    return pd.DataFrame(
        {
            "n": sorted(data["rows"]),
            "here": [faster(data, n) for n in sorted(data["rows"])],
            "there": [(there and there.advantage(n)) or math.nan for n in sorted(data["rows"])],
        }
    )


def _mean(values: Iterable[float]) -> float:
    """Geometric, of the values that are there."""
    found = [math.log(v) for v in values if not math.isnan(v)]
    return math.exp(float(np.mean(found))) if found else math.nan


def summary(tables: dict[str, Data]) -> pd.DataFrame:
    """A line for each operator and pass, over all its rows.

    Ratios are geometric means; `least` and `most` are the extremes of `faster`; `there` is the
    published ratio over the same rows. `rows` counts speed rows with a figure of attnops.
    """
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for id_, data in tables.items():
        group = groups.setdefault((data["operator"], data["direction"]), {})
        frame_ = ratios(id_, data)
        for name in ("here", "there"):
            group.setdefault(f"{data['kind']} {name}", []).extend(frame_[name])
        shares = [share(data, n) for n in data["rows"]]
        group.setdefault(f"{data['kind']} share", []).extend(shares)
    lines = []
    for (operator, direction), group in sorted(groups.items(), key=_pass_order):
        speed = [v for v in group.get("speed here", []) if not math.isnan(v)]
        shares = [v for v in group.get("speed share", []) if not math.isnan(v)]
        lines.append(
            {
                "operator": operator,
                "pass": {"fwd": "forward", "bwd": "backward"}[direction],
                "rows": len(shares),
                "faster": _mean(speed),
                "least": min(speed, default=math.nan),
                "most": max(speed, default=math.nan),
                "there": _mean(group.get("speed there", [])),
                "share": float(np.median(shares)) if shares else math.nan,
                "memory": _mean(group.get("memory here", [])),
                "memory there": _mean(group.get("memory there", [])),
            }
        )
    return pd.DataFrame(lines)


def _pass_order(item: tuple[tuple[str, str], Any]) -> tuple[str, bool]:
    (operator, direction), _ = item
    return operator, direction != "fwd"
