"""scripts/result_bits.py: inputs that never change, names that tell cases apart, and --compare."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "result_bits.py"


@pytest.fixture
def script(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import result_bits

    return result_bits


def test_inputs_are_the_same_everywhere(script):
    values = script.tensor("name", (2, 3), "float32").flatten().tolist()
    assert [value.hex() for value in values] == [
        "0x1.2c28b40000000p-1",
        "0x1.cc7ed80000000p-1",
        "0x1.8817ce0000000p-5",
        "-0x1.127d4e0000000p-1",
        "0x1.1312420000000p-2",
        "0x1.6e54280000000p-6",
    ]


def test_names_tell_cases_apart(script):
    cases = [name for family in script.FAMILIES for name, _ in family()]
    assert 300 <= len(cases) == len(set(cases))
    assert {name.split("/")[0] for name in cases} == {
        "flao",
        "flao_fal",
        "lrpe_rotate",
        "lrpe_table",
        "md_lrpe_cosine",
        "tpa",
        "tpa_cache",
        "tpa_decode",
    }


def test_the_hash_sees_every_bit_but_those_of_nan(script):
    x = script.tensor("x", (3,), "bfloat16")
    nan = x.clone()
    nan[0] = float("nan")
    other_nan = nan.clone()
    other_nan[0] = -nan[0]
    zero = x * 0
    assert script.digest([x]) == script.digest([x.clone()])
    assert script.digest([zero]) != script.digest([-zero])
    assert script.digest([x]) != script.digest([x[None]])
    assert script.digest([nan]) == script.digest([other_nan]) != script.digest([x])


def compare(tmp_path: Path, old: object, new: object) -> subprocess.CompletedProcess:
    """The finished command, with these as the two files."""
    for name, content in (("old.json", old), ("new.json", new)):
        (tmp_path / name).write_text(json.dumps(content))
    command = [sys.executable, SCRIPT, "--compare", tmp_path / "old.json", tmp_path / "new.json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compare(tmp_path):
    old = {"flao/AVX2/a": "1", "flao/AVX2/b": "2", "flao/SCALAR/a": "3"}
    same = compare(tmp_path, old, old)
    assert (same.returncode, same.stdout) == (0, "0 of 3 cases differ\n")

    new = {"flao/AVX2/a": "0", "flao/SCALAR/a": "3", "flao/SCALAR/c": "4"}
    different = compare(tmp_path, old, new)
    assert different.returncode == 1
    assert different.stdout.splitlines() == [
        "flao AVX2: 2 of 2",
        "  differs: flao/AVX2/a",
        "  only in the old: flao/AVX2/b",
        "flao SCALAR: 1 of 2",
        "  only in the new: flao/SCALAR/c",
        "3 of 4 cases differ",
    ]

    broken = compare(tmp_path, old, [])
    assert broken.returncode == 2
    assert "new.json: it holds no hashes" in broken.stderr
