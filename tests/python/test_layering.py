"""The layers of the source tree, checked on its #include lines.

A folder of src includes only those before it in LAYERS, and a family of operators no other family;
include → std; src/c → include; tests/reference → include; python/csrc → include and torch.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# What an include line may be relative to, besides its own file.
SEARCH_PATHS = ["include", ".", "src", "tests", "python/csrc"]
FOLDERS = ["include", "src", "tests/reference", "python/csrc"]

# Headers from outside the tree, by what they belong to; the first match counts.
OUTSIDE = {
    "highway": re.compile(r"hwy/"),
    "intrinsics": re.compile(r"immintrin\.h$"),
    "torch": re.compile(r"(torch|ATen|c10)/"),
    "system": re.compile(r"(sys/\w+|asm/hwcap|cpuid|unistd|pthread|sched|fcntl|dlfcn|omp)(\.h)$"),
    "std": re.compile(r"([a-z_0-9]+|stdint\.h)$"),  # the header for C needs C's name
}

# The folders of src, from the bottom; those of `ops` are families.
LAYERS = ["core", "simd", "gemm", "positions", "rowops", "ops"]

# A layer may also include itself.
ALLOWED = {
    "include": {"std"},
    "c": {"std", "include"},
    "reference": {"std", "include"},
    "csrc": {"std", "system", "include", "torch"},
} | {
    layer: {"std", "system", "include", *LAYERS[:i], *(["highway"] if layer != "core" else [])}
    for i, layer in enumerate(LAYERS)
}
# Choosing a target at run time is Highway's business, and the only use that core has for it.
TARGET_SWITCH = Path("src/core/target.cc")
# Files that use instructions which Highway does not know: microkernels, each for one CPU feature.
MICROKERNEL = re.compile(r"src/gemm/microkernel_\w+\.cc$")


def layer_of(path: Path) -> str:
    """The layer of a file given relative to the root; `ops/<x>` for a family."""
    match path.parts:
        case ("include", *_):
            return "include"
        case ("src", "ops", family, _):
            return f"ops/{family}"
        case ("src", layer, _) if layer in [*LAYERS, "c"] and layer != "ops":
            return layer
        case ("tests", "reference", *_):
            return "reference"
        case ("python", "csrc", *_):
            return "csrc"
    return f"unknown ({path})"


def target_layer(root: Path, source: Path, name: str) -> str:
    """The layer or outside library that an include line of source leads to."""
    for folder in [source.parent, *(root / path for path in SEARCH_PATHS)]:
        header = (folder / name).resolve()
        if header.is_file() and header.is_relative_to(root.resolve()):
            return layer_of(header.relative_to(root.resolve()))
    for library, pattern in OUTSIDE.items():
        if pattern.match(name):
            return library
    return f"unknown ({name})"


def sources(root: Path) -> Iterator[Path]:
    """The files under the rules: all but tests that lie next to what they test."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cc") and not path.stem.endswith("_test"):
                yield path


def violations(root: Path) -> list[str]:
    """Every include line that breaks a rule, and every file that has no layer."""
    found = []
    for source in sources(root):
        path = source.relative_to(root)
        layer = layer_of(path)
        allowed = ALLOWED.get(layer.split("/")[0])
        if allowed is None:
            found.append(f"{path}: it is in no layer")
            continue
        for name in INCLUDE.findall(source.read_text()):
            target = target_layer(root, source, name)
            if path == TARGET_SWITCH and target == "highway":
                continue
            if target == "intrinsics" and MICROKERNEL.match(path.as_posix()):
                continue
            if target != layer and target not in allowed:
                found.append(f"{path}: {layer} includes {name}, which is {target}")
    return found


def test_layers_are_kept():
    assert violations(ROOT) == []


def test_every_layer_is_looked_at():
    layers = {layer_of(path.relative_to(ROOT)).split("/")[0] for path in sources(ROOT)}
    assert layers == set(ALLOWED)


BAD = [
    ("include/attnops/a.h", "<hwy/highway.h>"),
    ("include/attnops/a.h", '"core/core.h"'),
    ("include/attnops/a.h", "<sys/mman.h>"),
    ("src/core/a.cc", '"simd/simd-inl.h"'),
    ("src/core/a.cc", '"../simd/simd-inl.h"'),
    ("src/core/a.cc", "<hwy/highway.h>"),
    ("src/core/a.cc", "<immintrin.h>"),
    ("src/core/target.h", "<hwy/highway.h>"),
    ("src/gemm/a.cc", "<immintrin.h>"),
    ("src/simd/a-inl.h", '"src/gemm/gemm-inl.h"'),
    ("src/simd/a-inl.h", '"src/ops/one/one-inl.h"'),
    ("src/gemm/a-inl.h", '"src/positions/positions-inl.h"'),
    ("src/positions/a-inl.h", '"src/rowops/rowops-inl.h"'),
    ("src/rowops/a-inl.h", '"src/ops/one/one-inl.h"'),
    ("src/simd/a-inl.h", "<torch/csrc/stable/tensor.h>"),
    ("src/ops/two/a.cc", '"ops/one/one-inl.h"'),
    ("src/ops/two/a.cc", '"../one/one-inl.h"'),
    ("src/ops/a.cc", "<vector>"),
    ("src/ops/one/deeper/a.cc", "<vector>"),
    ("src/other/a.cc", "<vector>"),
    ("src/c/a.cc", '"src/core/core.h"'),
    ("src/c/a.cc", "<hwy/highway.h>"),
    ("src/core/a.cc", '"src/c/convert.h"'),
    ("tests/reference/a.cc", '"core/core.h"'),
    ("tests/reference/a.cc", "<gtest/gtest.h>"),
    ("python/csrc/a.cc", '"src/core/core.h"'),
    ("python/csrc/a.cc", "<pybind11/pybind11.h>"),
]

GOOD = [
    ("include/attnops/a.h", '"attnops/public.h"'),
    ("include/attnops/a.h", "<vector>"),
    ("src/core/a.cc", '"attnops/public.h"'),
    ("src/core/a.cc", "<omp.h>"),
    ("src/core/target.cc", "<hwy/highway.h>"),
    ("src/simd/a-inl.h", "<hwy/highway.h>"),
    ("src/simd/a-inl.h", '"core/core.h"'),
    ("src/gemm/a-inl.h", '"src/simd/simd-inl.h"'),
    ("src/gemm/microkernel_a.cc", "<immintrin.h>"),
    ("src/positions/a-inl.h", '"src/gemm/gemm-inl.h"'),
    ("src/rowops/a-inl.h", '"src/positions/positions-inl.h"'),
    ("src/ops/one/a.cc", '"src/rowops/rowops-inl.h"'),
    ("src/ops/one/a.cc", '"ops/one/one-inl.h"'),
    ("src/ops/one/a.cc", '"one-inl.h"'),
    ("src/ops/one/a.cc", '"simd/simd-inl.h"'),
    ("src/c/a.cc", '"attnops/public.h"'),
    ("src/c/a.cc", '"src/c/convert.h"'),
    ("tests/reference/a.cc", "<attnops/public.h>"),
    ("python/csrc/a.cc", "<torch/csrc/stable/tensor.h>"),
    ("python/csrc/a.cc", '"attnops/public.h"'),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with a header in each layer."""
    for header in [
        "include/attnops/public.h",
        "src/c/convert.h",
        "src/core/core.h",
        "src/simd/simd-inl.h",
        "src/gemm/gemm-inl.h",
        "src/positions/positions-inl.h",
        "src/rowops/rowops-inl.h",
        "src/ops/one/one-inl.h",
        "tests/reference/reference.h",
        "python/csrc/binding.h",
    ]:
        (tmp_path / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / header).write_text("#include <cstdint>\n")
    return tmp_path


def add(tree: Path, path: str, include: str) -> None:
    """Writes a file that has one include line."""
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text(f"// A file.\n#include {include}\n")


@pytest.mark.parametrize(("path", "include"), BAD)
def test_a_bad_include_is_found(tree: Path, path: str, include: str):
    add(tree, path, include)
    (found,) = violations(tree)
    assert found.startswith(path)


@pytest.mark.parametrize(("path", "include"), GOOD)
def test_a_good_include_is_accepted(tree: Path, path: str, include: str):
    add(tree, path, include)
    assert violations(tree) == []
