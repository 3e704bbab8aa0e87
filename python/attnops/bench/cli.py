"""The command attnops-bench."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import datetime
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from attnops.bench import environment
from attnops.bench.results import Results, link_latest
from attnops.bench.runner import Runner, Settings, columns_of, weight
from attnops.bench.tables import DEFAULT_BATCH, DTYPES, Table, all_tables, operators

QUICK_ROUNDS, FULL_ROUNDS = 7, 9
CELL_SECONDS = 20.0


class UsageError(Exception):
    """Anything the user can put right: one line on stderr, exit code 2."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _list_of(one: Callable[[str], object]) -> Callable[[str], tuple]:
    return lambda text: tuple(dict.fromkeys(one(part.strip()) for part in text.split(",")))


def _dtype(text: str) -> str:
    if text not in DTYPES:
        raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(DTYPES)}")
    return text


def parser() -> Parser:
    p = Parser(
        prog="attnops-bench",
        description="Times attnops next to PyTorch on this machine, and against its limits.",
        allow_abbrev=False,
    )
    add = p.add_argument
    add("--full", action="store_true", help="every published size instead of the quick set")
    add("--list", action="store_true", help="print the table ids and exit")
    add("--only", metavar="GLOB", help="only tables whose id matches, e.g. '*-speed-fwd-*'")
    add("--sizes", type=_list_of(_positive), metavar="N,...", help="these sizes instead")
    add("--dtype", type=_list_of(_dtype), default=("bf16",), metavar="T,...", help="bf16,f32,f16")
    add("--batch", type=_positive, default=DEFAULT_BATCH, metavar="B", help="batch (%(default)s)")
    add("--threads", type=_positive, metavar="T", help="threads (all the process may use)")
    add("--rounds", type=_positive, metavar="R", help="rounds in which the columns take turns")
    add("--peers", type=_list_of(str), metavar="P,...", help="only these peers, e.g. to,toc")
    add("--no-torch", action="store_true", help="attnops alone, without the PyTorch peers")
    add("--no-plain", action="store_true", help="skip the process with malloc left as it is")
    add("--output", type=Path, metavar="DIR", help="where results go (results/<time>)")
    return p


def _select(args: argparse.Namespace) -> list[Table]:
    tables = all_tables(args.batch, args.dtype)
    if args.only is not None:
        tables = [t for t in tables if fnmatchcase(t.id, args.only)]
        if not tables:
            raise UsageError(f"no table matches '{args.only}' (--list shows all)")
    return tables


def _peers(args: argparse.Namespace, tables: list[Table]) -> tuple[str, ...] | None:
    if args.no_torch:
        if args.peers:
            raise UsageError("--peers and --no-torch exclude each other")
        return ()
    names = {t.operator for t in tables}
    known = [c.name for o in names for c in operators()[o].columns if c.role != "attnops"]
    for name in args.peers or ():
        if name not in known:
            raise UsageError(f"no peer '{name}' (there are {', '.join(dict.fromkeys(known))})")
    return args.peers


def _sizes(args: argparse.Namespace, table: Table) -> list[int]:
    return sorted(args.sizes or (table.sizes if args.full else table.quick_sizes))


def _results(args: argparse.Namespace, threads: int) -> Results:
    directory = args.output or Path("results") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    results = Results(directory, environment.describe(threads))
    try:
        results.save()
        if args.output is None:
            link_latest(directory)
    except OSError as error:
        raise UsageError(f"cannot write results to {directory}: {error.strerror}") from error
    return results


def _run(args: argparse.Namespace) -> int:
    tables = _select(args)
    if args.list:
        print(*(t.id for t in tables), sep="\n")
        return 0
    if find_spec("torch") is None:
        raise UsageError("PyTorch is not installed; run: pip install torch")
    threads = args.threads or len(os.sched_getaffinity(0))
    settings = Settings(
        threads=threads,
        rounds=args.rounds or (FULL_ROUNDS if args.full else QUICK_ROUNDS),
        cell_seconds=CELL_SECONDS,
        plain=not args.no_plain,
        peers=_peers(args, tables),
    )
    results = _results(args, threads)
    total = sum(
        weight(t, n, c)
        for t in tables
        for n in _sizes(args, t)
        for c in columns_of(t, settings.peers)
    )
    form = "{percentage:3.0f}%|{bar}| {elapsed}, {remaining} left {desc}"
    errors = 0
    interrupted = False
    with tqdm(total=total, bar_format=form, dynamic_ncols=True) as bar:
        runner = Runner(settings, results, bar.update)
        for table in tables:
            bar.set_description_str(table.title)
            try:
                runner.run(table, _sizes(args, table))
            except KeyboardInterrupt:
                interrupted = True
            results.save()
            results.save_csv(table)
            errors += len(results.errors(table))
            bar.write(results.text(table))
            if interrupted:
                break
        runner.close()
    print(f"results in {results.directory}")
    if interrupted:
        print("interrupted: what was done is kept", file=sys.stderr)
        return 130
    return 1 if errors else 0


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 a cell has an error, 2 bad use, 130 interrupted."""
    try:
        return _run(parser().parse_args(argv))
    except UsageError as error:
        print(f"attnops-bench: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"attnops-bench: {error}", file=sys.stderr)
        return 2
