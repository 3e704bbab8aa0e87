"""The version, which is in one place, and what attnops.info() says."""

import tomllib
from importlib.metadata import files, version
from pathlib import Path

import torch

import attnops

ROOT = Path(__file__).resolve().parents[2]


def test_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert attnops.__version__ == version("attnops") == project["version"]


def test_the_package_says_that_it_is_typed():
    assert Path(attnops.__file__).with_name("py.typed").exists()
    assert files("attnops")


def test_info(threads_restored):
    torch.set_num_threads(1)
    info = attnops.info()
    assert info.version == attnops.__version__
    assert info.torch == torch.__version__
    assert info.target == attnops.get_target()
    assert info.target in info.targets
    assert list(info.targets) == attnops.supported_targets()
    assert info.threads == 1
    assert info.precision == attnops.get_precision()
    medium = attnops.effective_precision(torch.bfloat16, "medium")
    assert info.bfloat16_products == (medium == "medium")


def test_info_follows_the_settings():
    before = attnops.get_precision()
    try:
        attnops.set_precision("highest")
        assert attnops.info().precision == "highest"
    finally:
        attnops.set_precision(before)


def test_info_prints_a_line_for_each_field():
    lines = str(attnops.info()).splitlines()
    names = [line.split()[0] for line in lines]
    assert names == list(attnops.runtime.Info.__dataclass_fields__)
    assert all(len(line.split()) > 1 for line in lines)
