"""What the documentation shows works: its programs run, its make targets and links exist.

A ```python block is a program of its own, unless it is marked ```python continued: then the python
blocks before it in the same file, back to the last one without the mark, come first. A ```cpp or
```c block with a main is a program that uses the installed CMake package. So are the files in
examples/.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*DOCS, *OTHERS, *sorted(ROOT.glob("src/ops/*/README.md"))]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HAS_MAIN = re.compile(r"^int main\(", re.MULTILINE)
MAKE_COMMAND = re.compile(r"(?:^|&&|;)\s*\$?\s*(?:\w+=\S+\s+)*make\b([^&;#\n]*)", re.MULTILINE)
MAKE_IN_PROSE = re.compile(r"`make ([^`]+)`")


@dataclass
class Block:
    """A fenced block: where it is, the words after the fence, and its text."""

    name: str
    info: list[str]
    text: str


@dataclass
class Program:
    """Source text to be run, and a name that says where it is from."""

    name: str
    source: str
    suffix: str = ""  # of its file


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(f"{name}:{text.count(chr(10), 0, m.start()) + 1}", m[1].split(), m[2])
        for m in FENCE.finditer(text)
    ]


def all_blocks(language: str) -> list[Block]:
    """The blocks of a language in the documentation."""
    return [
        block
        for page in DOCS
        if page.exists()
        for block in blocks(page)
        if block.info[:1] == [language]
    ]


def python_programs() -> list[Program]:
    """The python blocks, joined where they are marked, and the examples."""
    programs = []
    before = ""
    for block in all_blocks("python"):
        before = before + "\n" + block.text if "continued" in block.info else block.text
        programs.append(Program(block.name, before))
    examples = sorted((ROOT / "examples").glob("*.py"))
    return programs + [Program(f"examples/{path.name}", path.read_text()) for path in examples]


def cpp_programs() -> list[Program]:
    """The cpp and c blocks that have a main, and the examples."""
    programs = [
        Program(block.name, block.text, suffix)
        for language, suffix in (("cpp", ".cc"), ("c", ".c"))
        for block in all_blocks(language)
        if HAS_MAIN.search(block.text)
    ]
    examples = sorted((ROOT / "examples").glob("*.cc"))
    return programs + [
        Program(f"examples/{path.name}", path.read_text(), ".cc") for path in examples
    ]


def executable_name(program: Program) -> str:
    """A program's name as a CMake target."""
    return re.sub(r"\W", "_", program.name)


def run(*command: str | Path, cwd: Path) -> None:
    """Runs a command; its output is the message if it fails."""
    result = subprocess.run(command, cwd=cwd, text=True, capture_output=True, timeout=300)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"


def heading_anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+\s+(.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def make_words(text: str) -> list[str]:
    """The targets in the arguments of a make command."""
    return [word for word in text.split() if "=" not in word and not word.startswith("-")]


def make_targets() -> set[str]:
    """The phony targets of the Makefile."""
    return set(re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture(scope="session")
def cpp_binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All C++ programs, built against the installed package; the folder of the executables."""
    tree = ROOT / "build" / "release"
    assert (tree / "CMakeCache.txt").exists(), "the C++ library is not built: make build"
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", tree, "--prefix", prefix, cwd=ROOT)

    project = tmp_path_factory.mktemp("project")
    lines = [
        "cmake_minimum_required(VERSION 3.25)",
        "project(programs C CXX)",
        "set(CMAKE_CXX_STANDARD 20)",
        "set(CMAKE_CXX_STANDARD_REQUIRED ON)",
        "find_package(attnops REQUIRED)",
    ]
    for program in cpp_programs():
        name = executable_name(program)
        (project / f"{name}{program.suffix}").write_text(program.source)
        lines.append(f"add_executable({name} {name}{program.suffix})")
        lines.append(f"target_link_libraries({name} PRIVATE attnops::attnops)")
    (project / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
    build = project / "build"
    run(
        "cmake",
        "-G",
        "Ninja",
        "-S",
        project,
        "-B",
        build,
        f"-DCMAKE_PREFIX_PATH={prefix}",
        cwd=ROOT,
    )
    # Goes on after an error, so that each program has a result of its own.
    subprocess.run(["cmake", "--build", build, "--", "-k", "0"], capture_output=True)
    return build


def test_there_is_something_to_test():
    in_readme = [block for block in blocks(ROOT / "README.md") if block.info]
    assert any(block.info[0] == "python" for block in in_readme)
    assert any(block.info[0] == "cpp" and HAS_MAIN.search(block.text) for block in in_readme)
    assert any(block.info[0] == "sh" and MAKE_COMMAND.search(block.text) for block in in_readme)
    assert list((ROOT / "examples").glob("*.py"))
    assert list((ROOT / "examples").glob("*.cc"))


def test_every_block_says_its_language():
    unmarked = [b.name for page in DOCS if page.exists() for b in blocks(page) if not b.info]
    assert unmarked == []


@pytest.mark.parametrize("program", python_programs(), ids=lambda program: program.name)
def test_python(program: Program, tmp_path: Path):
    script = tmp_path / "program.py"
    script.write_text(program.source)
    run(sys.executable, script, cwd=tmp_path)


@pytest.mark.parametrize("program", cpp_programs(), ids=lambda program: program.name)
def test_cpp(program: Program, cpp_binaries: Path, tmp_path: Path):
    name = executable_name(program)
    run("cmake", "--build", cpp_binaries, "--target", name, cwd=tmp_path)
    run(cpp_binaries / name, cwd=tmp_path)


def test_make_targets_exist():
    commands = [m[1] for block in all_blocks("sh") for m in MAKE_COMMAND.finditer(block.text)]
    commands += [m[1] for page in PAGES for m in MAKE_IN_PROSE.finditer(page.read_text())]
    assert commands
    unknown = {word for command in commands for word in make_words(command)} - make_targets()
    assert unknown == set()


def test_links_lead_somewhere():
    broken = []
    for page in PAGES:
        for link in LINK.findall(FENCE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            found = target.exists()
            if found and anchor and target.suffix == ".md":
                found = anchor in heading_anchors(target)
            if not found:
                broken.append(f"{page.name}: {link}")
    assert broken == []
