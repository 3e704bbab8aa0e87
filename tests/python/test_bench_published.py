"""The published figures are complete, and the parse that made them reads what pandas prints."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from attnops_bench import published

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "published_tables.py"
POWERS = tuple(2**i for i in range(8, 16))
SIZES = {"2d": (16, 32, 64, 128), "3d": (4, 8, 16, 32)}
# By operator: tables, distinct titles.
COUNTS = {
    "flao": (12, 4),
    "flao_fal": (8, 8),
    "lrpe_rotate": (16, 16),
    "md_lrpe_cosine": (24, 24),
    "tpa_decode": (4, 4),
}
SAMPLE = """# A800

```
flao-speed-fwd-batch12-head12-dim128-dim128-bf16:
         n    Lao Tor  Lao Tor C  Flao Tri
0    256.0   0.065819   0.104355  0.156040
1    512.0   0.115266  -1.000000  0.357555
flao-speed-fwd-batch12-head12-dim128-dim128-bf16:
         n   Lao Tor  Flao Tor C
0    256.0  0.071980    0.111565
```
"""


def sizes_of(table: published.Published) -> tuple[int, ...]:
    return next((sizes for dims, sizes in SIZES.items() if f"-{dims}-" in table.id), POWERS)


def test_all_tables_are_there():
    tables = published.tables().values()
    assert len(tables) == 64
    assert len({t.title for t in tables}) == 56
    for operator, (count, titles) in COUNTS.items():
        mine = [t for t in tables if t.operator == operator]
        assert (len(mine), len({t.title for t in mine})) == (count, titles)


def test_all_rows_are_there():
    for table in published.tables().values():
        assert tuple(table.rows) == sizes_of(table), table.id
        for row in table.rows.values():
            assert len(row) == len(table.columns)
            assert all(value > 0 for value in row)
    assert sum(len(t.rows) for t in published.tables().values()) == 448


def test_ids_and_titles():
    for table in published.tables().values():
        title, _, policy = table.id.partition("@")
        assert title == table.title
        assert title.startswith(f"{table.operator}-{table.kind}-{table.direction}-")
        assert bool(policy) == (table.operator == "flao")
    policies = Counter(id_.partition("@")[2] for id_ in published.tables())
    assert policies == {"none": 4, "kv": 4, "kv_qkv": 4, "": 52}


def test_every_table_compares_fused_with_torch():
    for table in published.tables().values():
        assert set(table.columns.values()) == {"fused", "torch"}
        assert all(table.advantage(n) > 0 for n in table.rows)


def test_some_figures():
    tables = published.tables()
    rotate = tables["lrpe_rotate-speed-fwd-batch12-head12-dim128-act_none-bf16"]
    assert rotate.columns == {"tr": "fused", "to": "torch", "toc": "torch"}
    assert rotate.rows[32768] == (2.840099, 13.426053, 3.416119)
    assert rotate.advantage(32768) == pytest.approx(3.416119 / 2.840099)
    decode = tables["tpa_decode-memory-fwd-batch32-head32-dim128-rank16-bf16"]
    assert decode.size_name == "m"
    assert decode.rows[256][-1] == 142.28125
    assert decode.advantage(300) is None


def test_the_parse():
    spec = importlib.util.spec_from_file_location("published_tables", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    first, second = script.with_policies(script.tables(SAMPLE.splitlines()))
    assert first["id"].endswith("@none")
    assert first["columns"] == {"Lao Tor": "torch", "Lao Tor C": "torch", "Flao Tri": "fused"}
    assert first["rows"]["512"] == [0.115266, None, 0.357555]
    assert second["id"].endswith("@kv")
    assert second["rows"] == {"256": [0.07198, 0.111565]}
    with pytest.raises(ValueError, match=r"row 256.0 has 1 values"):
        script.tables(SAMPLE.replace("0.071980    0.111565", "0.071980").splitlines())
