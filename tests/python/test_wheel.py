"""The wheel: it carries what it needs, and imports where there is nothing but torch."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import attnops

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PREBUILT = ROOT / "build" / "release" / "libattnops.a"


def run(*command: str | Path, **options) -> subprocess.CompletedProcess:
    """A command's result, with its output."""
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=300, **options)


def make_environment(folder: Path, *paths: Path) -> tuple[Path, Path]:
    """An environment with nothing installed that also looks into `paths`: Python, site-packages."""
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "paths.pth").write_text("".join(f"{path}\n" for path in paths))
    return folder / "bin" / "python", site


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel that `make build` makes and installs."""
    wheels = list((ROOT / "build" / "dist").glob(f"attnops-{VERSION}-*.whl"))
    assert len(wheels) == 1, "the wheel is not built: make build"
    return wheels[0]


def test_installed_library_needs_torch_and_the_system_alone():
    library = Path(attnops.__file__).with_name("libattnops_torch.so")
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library).stdout)
    allowed = re.compile(r"lib(torch_cpu|stdc\+\+|m|gcc_s|c|pthread)\.so|ld-linux")
    assert "libtorch_cpu.so" in needed
    assert [name for name in needed if not allowed.match(name)] == []


def test_installed_library_exports_nothing():
    library = Path(attnops.__file__).with_name("libattnops_torch.so")
    symbols = run("nm", "-D", "--defined-only", library).stdout.split()
    assert symbols == []


def test_wheel_imports_in_an_environment_of_its_own(wheel: Path, tmp_path: Path):
    python, site = make_environment(tmp_path / "env", Path(torch.__file__).parents[1])
    zipfile.ZipFile(wheel).extractall(site)
    program = (
        "import attnops, torch\n"
        "x = torch.ones(1, 2, 1, 4)\n"
        "y = attnops.lrpe_rotate(x, torch.zeros(1, 2))\n"
        "assert torch.equal(x, y)\n"
        "print(attnops.__file__, attnops.__version__)\n"
    )
    result = run(python, "-I", "-c", program)
    assert result.returncode == 0, result.stderr
    file, version = result.stdout.split()
    assert Path(file).is_relative_to(site)
    assert version == VERSION


def test_wheel_gets_a_manylinux_tag(wheel: Path, tmp_path: Path):
    """By the command of `make wheel`, with other folders."""
    dry = run("make", "--dry-run", "wheel").stdout.replace("\\\n", " ")
    (command,) = [line for line in dry.splitlines() if "auditwheel" in line]
    command = command.replace("--wheel-dir dist", f"--wheel-dir {tmp_path}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = run("bash", "-c", command, env=os.environ | {"PATH": path})
    assert result.returncode == 0, result.stderr
    (repaired,) = tmp_path.glob("*.whl")
    assert re.search(r"-py3-none-manylinux_2_\d+_\w+\.", repaired.name), repaired.name
    # Nothing had to be added: torch brings what is not on every system.
    names = zipfile.ZipFile(repaired).namelist()
    assert [name for name in names if ".so" in name] == ["attnops/libattnops_torch.so"]


def test_sdist_is_complete(tmp_path: Path):
    # A copy: going through .venv and build for files to leave out takes most of a minute.
    others = [".git", ".venv", "build", "dist", "docs", "report", "results"]
    shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(*others))
    build = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path]
    result = run(*build, tmp_path / "copy")
    assert result.returncode == 0, result.stdout + result.stderr
    (archive,) = tmp_path.glob(f"attnops-{VERSION}.tar.gz")
    assert archive.stat().st_size < 2e6
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    tree = tmp_path / f"attnops-{VERSION}"
    # CMake finds every file that it compiles.
    result = run(
        *("cmake", "-G", "Ninja", "-S", tree, "-B", tmp_path / "build", "-DATTNOPS_PYTHON=ON"),
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    assert result.returncode == 0, result.stderr
    for folder in ["python/attnops", "python/attnops_bench", "include", "src"]:
        files = {p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.*") if "__" not in str(p)}
        assert {file for file in files if not (tree / file).exists()} == set()
    assert (tree / "LICENSE").exists()


def test_import_without_torch_is_one_clear_line(wheel: Path, tmp_path: Path):
    python, site = make_environment(tmp_path / "env")
    zipfile.ZipFile(wheel).extractall(site)
    result = run(python, "-I", "-c", "import attnops")
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1] == (
        "ImportError: attnops needs PyTorch 2.11 or newer, which is not installed; "
        "run: pip install torch"
    )
    assert "ModuleNotFoundError" not in result.stderr


def test_build_without_torch_is_one_clear_line(tmp_path: Path):
    python, _ = make_environment(tmp_path / "env")
    result = run(
        *("cmake", "-G", "Ninja", "-S", ROOT, "-B", tmp_path / "build", "-DATTNOPS_PYTHON=ON"),
        *(f"-DATTNOPS_PREBUILT={PREBUILT}", f"-DPython_EXECUTABLE={python}"),
    )
    assert result.returncode != 0
    assert "install torch first: pip install torch" in " ".join(result.stderr.split())


def test_versions_agree():
    assert attnops.__version__ == VERSION
    cache = (ROOT / "build" / "release" / "CMakeCache.txt").read_text()
    assert f"CMAKE_PROJECT_VERSION:STATIC={VERSION}" in cache
