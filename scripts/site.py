#!/usr/bin/env python3
"""Makes the documentation site: python scripts/site.py [FOLDER], by default build/site.

The pages are those of the repository: README.md at the front, and what `nav` of mkdocs.yml lists.
They are copied to a folder in the same places, so that links between them work, with these
changes: links to files that are not part of the site become plain text, and `<!-- header: x.h -->`
the text of include/attnops/x.h. mkdocs then checks every link and anchor; a broken one is an error.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRONT = {"README.md": "index.md"}
# Files that pages link to, beside pages: folder and patterns.
ASSETS = {
    "docs/images": ["**/*.svg", "**/*.png"],
    "examples": ["*.py", "*.cc"],
    "examples/cpp": ["*.*"],
}

FENCE = re.compile(r"^(```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
HEADER = re.compile(r"^<!-- header: (\S+) -->$", re.MULTILINE)
STYLE = """\
/* Room for wide tables; numbers under each other. */
.md-grid { max-width: 80rem; }
.md-typeset table:not([class]) { font-variant-numeric: tabular-nums; }
.md-typeset table:not([class]) th { min-width: 0; }
.md-typeset table:not([class]) :is(td, th) { padding: 0.5em 0.8em; }
/* A line of 100 letters without scrolling at 1280 px. */
.md-typeset pre > code { font-size: 0.73em; }
.md-typeset td:first-child code { white-space: nowrap; }
.doc-heading code, .doc-signature { overflow-wrap: anywhere; }
"""


def listed_pages(entries: list) -> list[str]:
    """The pages of mkdocs' nav, in order."""
    pages = []
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        pages += [value] if isinstance(value, str) else listed_pages(value)
    return pages


def header_text(name: str) -> str:
    """A public header as a block of code, without its include guards and includes."""
    text = (ROOT / "include/attnops" / name).read_text()
    lines = [line for line in text.splitlines() if not re.match(r"#(?!define ATTNOPS_MAX)", line)]
    body = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    language = "c" if name == "c.h" else "cpp"
    return f"### attnops/{name}\n\n```{language}\n{body}\n```\n"


def with_known_links(text: str, page: Path, known: set[Path]) -> str:
    """The text of a page with the links that lead out of the site made plain."""

    def link(match: re.Match) -> str:
        mark, words, address = match.groups()
        if re.match(r"[a-z]+:|#", address):
            return match[0]
        path, _, anchor = address.partition("#")
        target = (page.parent / path).resolve()
        if target not in known:
            return words
        if target.parent == ROOT and target.name in FRONT:
            path = path.removesuffix(target.name) + FRONT[target.name]
        return f"{mark}[{words}]({path}{'#' + anchor if anchor else ''})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def put_together(pages: list[str], folder: Path) -> None:
    """Writes the pages of the site and the files that they link to."""
    sources = {page: source for source, page in FRONT.items()}
    assets = {
        path
        for base, globs in ASSETS.items()
        for glob in globs
        for path in (ROOT / base).glob(glob)
    }
    known = {ROOT / sources.get(page, page) for page in pages} | assets
    for page in pages:
        source = ROOT / sources.get(page, page)
        text = with_known_links(source.read_text(), source, known)
        text = HEADER.sub(lambda match: header_text(match[1]), text)
        # What follows the language is for the tests.
        text = re.sub(r"^```(\w+) \w+$", r"```\1", text, flags=re.MULTILINE)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text)
    for path in assets:
        (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.relative_to(ROOT))
    (folder / "site.css").write_text(STYLE)


def main() -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site").resolve()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=folder, site_dir=str(site))
        put_together(listed_pages(config.nav), Path(folder))
        build(config)
    print(f"the site is in {site}: open {site / 'index.html'}")
    print(f"its search needs a server: python3 -m http.server --directory {site}")


if __name__ == "__main__":
    main()
