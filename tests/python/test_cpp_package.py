"""The installed C++ package: found, linked and run as a program of somebody else would."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "release"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
COMPILERS = {"g++": "gcc", "clang++": "clang"}


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> str:
    """The output of a command; it is the message if the command fails."""
    result = subprocess.run(
        command, cwd=cwd, text=True, capture_output=True, timeout=300, env=os.environ | env
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def fails(*command: str | Path, **env: str) -> str:
    """What a command that must fail says, with single spaces."""
    result = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, timeout=300, env=os.environ | env
    )
    assert result.returncode != 0
    return " ".join((result.stdout + result.stderr).split())


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed."""
    assert (TREE / "libattnops.a").exists(), "the C++ library is not built: make build"
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", TREE, "--prefix", folder)
    return folder


def build_consumer(prefix: Path, folder: Path, *settings: str) -> Path:
    """examples/cpp, configured and built against the package; its folder."""
    configure = ["cmake", "-G", "Ninja", "-S", ROOT / "examples/cpp", "-B", folder]
    run(*configure, f"-DCMAKE_PREFIX_PATH={prefix}", *settings)
    run("cmake", "--build", folder)
    return folder


def needed(binary: Path) -> list[str]:
    """The shared libraries that a binary asks for."""
    return re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", binary))


@pytest.mark.parametrize("standard", [17, 20])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_consumer_runs(prefix: Path, tmp_path: Path, compiler: str, standard: int):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    build = build_consumer(
        prefix,
        tmp_path,
        f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DCMAKE_C_COMPILER={COMPILERS[compiler]}",
        f"-DCMAKE_CXX_STANDARD={standard}",
    )
    assert f"attnops {VERSION} on " in run(build / "consumer")
    assert "as it should" in run(build / "operators")
    # The static library: nothing but what any C++ program has, and OpenMP.
    own = re.compile(r"lib(stdc\+\+|m|gcc_s|c|gomp|omp|pthread)\.so|ld-linux")
    assert [name for name in needed(build / "consumer") if not own.match(name)] == []


def test_shared_library(prefix: Path, tmp_path: Path):
    build = build_consumer(prefix, tmp_path, "-DBUILD_SHARED_LIBS=ON")
    soname = f"libattnops.so.{VERSION.rpartition('.')[0]}"
    assert soname in needed(build / "consumer")
    assert soname in needed(build / "operators")
    assert f"attnops {VERSION} on " in run(build / "consumer")
    run(build / "operators")


def test_shared_library_exports_the_interface_alone(prefix: Path):
    (library,) = prefix.glob("lib/**/libattnops.so")
    symbols = run("nm", "-D", "-C", "--defined-only", library).splitlines()
    names = [line.split(" ", 2)[2] for line in symbols]
    assert any(name.startswith("attnops::Flao(") for name in names)
    assert "attnops_flao" in names
    inside = re.compile(r"attnops::(c|simd|gemm|positions|rowops|linear_attention|causal)::|hwy::")
    assert [name for name in names if inside.match(name)] == []
    assert not any("hwy" in name for name in needed(library))


def test_static_library_needs_no_highway():
    symbols = run("nm", "-C", "--undefined-only", TREE / "libattnops.a")
    assert [line for line in symbols.splitlines() if " hwy::" in line] == []


def test_the_program_in_c_uses_every_function():
    header = (ROOT / "include/attnops/c.h").read_text()
    header = re.sub(r"/\*.*?\*/|typedef[^;{]*\(\*[^;]*;", "", header, flags=re.DOTALL)
    declared = set(re.findall(r"\b(attnops_\w+)\(", header))
    assert len(declared) > 50
    program = "".join(path.read_text() for path in (ROOT / "examples/cpp").glob("*.c"))
    assert declared - set(re.findall(r"\b(attnops_\w+)\(", program)) == set()


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
@pytest.mark.parametrize("static", [False, True])
def test_pkg_config(prefix: Path, tmp_path: Path, static: bool):
    (folder,) = prefix.glob("lib/**/pkgconfig")
    query = [
        "pkg-config",
        *(["--static"] if static else []),
        "--cflags",
        "--libs",
        "attnops >= 0.2",
    ]
    flags = run(*query, PKG_CONFIG_PATH=str(folder)).split()
    if static:
        (library,) = prefix.glob("lib/**/libattnops.a")
        flags = [str(library) if flag == "-lattnops" else flag for flag in flags]
    sources = sorted((ROOT / "examples/cpp").glob("*.c"))
    run("gcc", "-std=c99", *sources, "-o", tmp_path / "program", *flags, "-lm")
    run(tmp_path / "program", LD_LIBRARY_PATH=str(folder.parent))


def test_other_versions_are_refused(prefix: Path, tmp_path: Path):
    project = tmp_path / "CMakeLists.txt"
    project.write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(p LANGUAGES CXX)\nfind_package(attnops 0.1 REQUIRED)\n"
    )
    text = fails("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
    assert f"version: {VERSION}" in text


def test_subdirectory(tmp_path: Path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(p LANGUAGES CXX)\n"
        f"add_subdirectory({ROOT} attnops)\n"
        f"add_executable(consumer {ROOT}/examples/cpp/consumer.cc)\n"
        "target_link_libraries(consumer PRIVATE attnops::attnops)\n"
    )
    # The kernels are those of the release build: they are not compiled again.
    prebuilt = f"-DATTNOPS_PREBUILT={TREE / 'libattnops.a'}"
    build = tmp_path / "b"
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", build, prebuilt)
    run("cmake", "--build", build, "--target", "consumer")
    assert f"attnops {VERSION} on " in run(build / "consumer")
    assert not (build / "install_manifest.txt").exists()


@pytest.mark.parametrize(("setting", "kind"), [("ON", "shared"), ("OFF", "static")])
def test_build_shared_libs_is_obeyed(tmp_path: Path, setting: str, kind: str):
    prebuilt = f"-DATTNOPS_PREBUILT={TREE / 'libattnops.a'}"
    off = [prebuilt, "-DATTNOPS_TESTS=OFF", "-DATTNOPS_BENCH=OFF"]
    run("cmake", "-G", "Ninja", "-B", tmp_path, *off, f"-DBUILD_SHARED_LIBS={setting}")
    run("cmake", "--build", tmp_path)
    libraries = {
        path.suffix for path in tmp_path.glob("libattnops.*") if not path.suffix[1].isdigit()
    }
    assert libraries == ({".so"} if kind == "shared" else {".a"})


def test_uninstall(tmp_path: Path):
    build = tmp_path / "build"
    prebuilt = f"-DATTNOPS_PREBUILT={TREE / 'libattnops.a'}"
    off = [prebuilt, "-DATTNOPS_TESTS=OFF", "-DATTNOPS_BENCH=OFF"]
    prefix = tmp_path / "prefix"
    run("cmake", "-G", "Ninja", "-B", build, *off, f"-DCMAKE_INSTALL_PREFIX={prefix}")
    assert "nothing to uninstall" in fails("cmake", "--build", build, "--target", "uninstall")
    run("cmake", "--build", build, "--target", "install")
    assert (prefix / "include/attnops/attnops.h").exists()
    run("cmake", "--build", build, "--target", "uninstall")
    assert [path for path in prefix.rglob("*") if not path.is_dir()] == []
    assert not (prefix / "include/attnops").exists()


def test_a_missing_build_dependency_is_named(tmp_path: Path):
    configure = ["cmake", "-B", tmp_path / "hwy", "-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON"]
    assert "apt-get install libhwy-dev" in fails(*configure)
    text = fails("cmake", "-G", "Ninja", "-B", tmp_path / "cxx", CXX=str(tmp_path / "nothing"))
    assert "no C++ compiler was found; on Debian: apt-get install g++" in text
