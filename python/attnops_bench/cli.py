"""The command attnops-bench: a run, `compare` of two runs, and the `report` of one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from attnops_bench import compare, environment, report
from attnops_bench.results import BadResults, Results, link_latest
from attnops_bench.runner import Runner, Settings, columns_of
from attnops_bench.selection import QUICK, Selection, select
from attnops_bench.tables import DEFAULT_BATCH, DTYPES, PRECISIONS, Table, operators

QUICK_ROUNDS, FULL_ROUNDS = 7, 9
CELL_SECONDS = 20.0
# A run that is resumed must be on the machine and the code it began with.
SAME_WHEN_RESUMED = ("cpu", "commit", "attnops")
# Arguments that belong to one call and not to the run.
UNSAVED = ("list", "output", "report", "resume")


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


def _precision(text: str) -> str:
    if text not in PRECISIONS:
        raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(PRECISIONS)}")
    return text


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage")
    return value / 100


def run_parser() -> Parser:
    p = Parser(
        prog="attnops-bench",
        description="Times attnops next to PyTorch on this machine, and against its limits.",
        epilog="Also: attnops-bench compare OLD NEW, attnops-bench report RESULTS (each --help).",
        allow_abbrev=False,
    )
    add = p.add_argument
    add("--full", action="store_true", help="every published table and size, not the quick set")
    add("--list", action="store_true", help="print the table ids and exit")
    add(
        "--only",
        action="append",
        metavar="GLOB",
        help="only tables whose id matches, e.g. '*-speed-fwd-*'; may be given several times",
    )
    add("--sizes", type=_list_of(_positive), metavar="N,...", help="these sizes instead")
    add("--dtype", type=_list_of(_dtype), default=("bf16",), metavar="T,...", help="bf16,f32,f16")
    add(
        "--precision",
        type=_list_of(_precision),
        default=("auto",),
        metavar="P,...",
        help="of attnops' products of bf16: auto,highest,high,medium (auto)",
    )
    add("--batch", type=_positive, default=DEFAULT_BATCH, metavar="B", help="batch (%(default)s)")
    add("--threads", type=_positive, metavar="T", help="threads (all the process may use)")
    rounds = "rounds in which the columns take turns, as many of them as a cell's seconds allow"
    add("--rounds", type=_positive, metavar="R", help=rounds)
    add("--peers", type=_list_of(str), metavar="P,...", help="only these peers, e.g. to,toc")
    add("--no-torch", action="store_true", help="attnops alone, without the PyTorch peers")
    add("--no-plain", action="store_true", help="skip the process with malloc left as it is")
    add("--output", type=Path, metavar="DIR", help="where results go (results/<time>)")
    add("--report", type=Path, metavar="DIR", help="where the report goes (report/)")
    add(
        "--resume",
        nargs="?",
        type=Path,
        const=Path("results/latest"),
        metavar="DIR",
        help="go on with an interrupted run, with its settings (results/latest)",
    )
    return p


def compare_parser() -> Parser:
    p = Parser(
        prog="attnops-bench compare",
        description="What became faster or slower beyond the noise; exit code 1 on a regression.",
    )
    p.add_argument("old", type=Path, metavar="OLD", help="result directory before")
    p.add_argument("new", type=Path, metavar="NEW", help="result directory after")
    p.add_argument(
        "--bound",
        type=_percent,
        default=0.05,
        metavar="PERCENT",
        help="slower by more than this is a regression (5)",
    )
    return p


def report_parser() -> Parser:
    p = Parser(prog="attnops-bench report", description="Writes the report of a run.")
    p.add_argument("results", type=Path, metavar="RESULTS", help="result directory")
    p.add_argument("--output", type=Path, default=Path("report"), metavar="DIR", help="(report/)")
    return p


def _select(args: argparse.Namespace) -> Selection:
    choose = partial(select, args.batch, args.dtype, args.precision)
    if args.only is None:
        return choose(None if args.full or args.list else QUICK)
    for pattern in args.only:
        selection = choose((pattern,))
        if not selection.tables and not selection.missing:
            raise UsageError(f"no table matches '{pattern}' (--list shows all)")
    return choose(tuple(args.only))


def _peers(args: argparse.Namespace, tables: list[Table]) -> tuple[str, ...] | None:
    if args.no_torch:
        if args.peers:
            raise UsageError("--peers and --no-torch exclude each other")
        return ()
    names = {t.operator for t in tables}
    known = [c.name for o in sorted(names) for c in operators()[o].columns if c.role != "attnops"]
    for name in args.peers or ():
        if name not in known:
            raise UsageError(f"no peer '{name}' (there are {', '.join(dict.fromkeys(known))})")
    return args.peers


def _is_quick(args: argparse.Namespace) -> bool:
    return not (args.sizes or args.full)


def _sizes(args: argparse.Namespace, table: Table) -> list[int]:
    sizes = sorted(args.sizes or (table.sizes if args.full else table.quick_sizes))
    # Memory grows with the size and no more, and every column of it starts a process.
    return sizes[-1:] if table.kind == "memory" and _is_quick(args) else sizes


def _plain_sizes(args: argparse.Namespace, table: Table, sizes: list[int]) -> list[int]:
    """Sizes that are timed in a plain process too: those asked for; otherwise the largest of the
    quick set, since the difference depends on the size but little."""
    if args.no_plain:
        return []
    return sizes if args.sizes else [max(table.quick_sizes)]


def _in_order(tables: list[Table]) -> list[Table]:
    """An operator's memory first: several of its columns compile at once, and the compiler's
    cache has them for the timed ones, which compile one by one."""
    operators_ = list(dict.fromkeys(t.operator for t in tables))
    return sorted(tables, key=lambda t: (operators_.index(t.operator), t.kind != "memory"))


def _resumed(args: argparse.Namespace) -> tuple[argparse.Namespace, Results]:
    """The arguments and results of the run to go on with."""
    given = [k for k, v in vars(args).items() if v != run_parser().get_default(k)]
    if others := set(given) - {"resume", "report"}:
        flags = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in others))
        raise UsageError(f"--resume has the settings of the run it continues; leave out {flags}")
    results = Results.load(args.resume)
    if "threads" not in results.settings:
        raise UsageError(f"cannot resume {args.resume}: it does not say with which settings")
    saved = {k: tuple(v) if isinstance(v, list) else v for k, v in results.settings.items()}
    now = environment.describe(saved["threads"])
    for key in SAME_WHEN_RESUMED:
        if now[key] != results.environment.get(key):
            raise UsageError(
                f"cannot resume {args.resume}: its {key} was {results.environment.get(key)},"
                f" now it is {now[key]}"
            )
    if args.report is None:
        args.report = Path(saved.get("report", "report"))
    return argparse.Namespace(**{**saved, **{k: getattr(args, k) for k in UNSAVED}}), results


def _started(args: argparse.Namespace) -> Results:
    directory = args.output or Path("results") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    args.report = args.report or (args.output / "report" if args.output else Path("report"))
    saved = {k: v for k, v in vars(args).items() if k not in UNSAVED}
    saved["report"] = str(args.report.resolve())
    return Results(directory, environment.describe(args.threads), saved)


def _writable(results: Results, args: argparse.Namespace) -> None:
    """Finds out before the run what could not be written after it."""
    try:
        results.save()
        if args.output is None and args.resume is None:
            link_latest(results.directory)
    except OSError as error:
        raise UsageError(
            f"cannot write results to {results.directory}: {error.strerror}"
        ) from error
    try:
        args.report.mkdir(parents=True, exist_ok=True)
        probe = args.report / f".{report.NAME}.part"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write a report to {args.report}: {error.strerror}") from error


def _measure(
    args: argparse.Namespace, settings: Settings, results: Results, tables: list[Table]
) -> bool:
    """Runs the tables, printing each; False if it was interrupted."""
    form = "{percentage:3.0f}%|{bar}| {elapsed}, {remaining} left {desc}"
    # A log file has no use for ten lines a second.
    interval = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(bar_format=form, dynamic_ncols=True, mininterval=interval) as bar:

        def advance(weight: float) -> None:
            bar.update(min(weight, bar.total - bar.n))  # rounded sums may end beyond their total

        runner = Runner(settings, results, advance)
        bar.reset(total=sum(runner.left(t, _sizes(args, t)) for t in tables))
        for table in tables:  # as they are shown
            results.begin(table, columns_of(table, settings.peers))
        try:
            for table in _in_order(tables):
                bar.set_description_str(table.id)
                interrupted = False
                try:
                    runner.run(table, _sizes(args, table))
                except KeyboardInterrupt:
                    interrupted = True
                results.save()
                results.save_csv(table)
                bar.write(results.text(table))
                if interrupted:
                    return False
        except OSError:
            runner.stop()
            raise
        finally:
            runner.close()
    return True


def _run(argv: list[str]) -> int:
    args = run_parser().parse_args(argv)
    results = None
    if args.resume is not None:
        args, results = _resumed(args)
    selection = _select(args)
    if args.list:
        print(*selection.listing(), sep="\n")
        return 0
    for line in selection.notes():
        print(line, file=sys.stderr)
    tables = [t for t in selection.tables if _sizes(args, t)]
    if not tables:
        raise UsageError("none of these tables can be run")
    args.threads = args.threads or len(os.sched_getaffinity(0))
    settings = Settings(
        threads=args.threads,
        rounds=args.rounds or (FULL_ROUNDS if args.full else QUICK_ROUNDS),
        all_rounds=args.rounds is not None,
        cell_seconds=CELL_SECONDS,
        plain=partial(_plain_sizes, args),
        peers=_peers(args, tables),
    )
    results = results or _started(args)
    results.missing = selection.missing
    _writable(results, args)
    done = _measure(args, settings, results, tables)
    page = report.write(results, args.report)
    print(f"results in {results.directory}")
    print(f"report in {page.resolve()}")
    if not done:
        again = "" if args.output is None and args.resume is None else f" {results.directory}"
        print(
            f"interrupted: what was done is kept; attnops-bench --resume{again} goes on",
            file=sys.stderr,
        )
        return 130
    return 1 if any(results.errors(t) for t in tables) else 0


def _compare(argv: list[str]) -> int:
    args = compare_parser().parse_args(argv)
    old, new = Results.load(args.old), Results.load(args.new)
    found = compare.changes(old, new)
    if not found:
        raise UsageError(f"{args.old} and {args.new} have no cell of attnops in common")
    print(compare.text(old, new, found, args.bound))
    return 1 if any(change.regression(args.bound) for change in found) else 0


def _report(argv: list[str]) -> int:
    args = report_parser().parse_args(argv)
    print(f"report in {report.write(Results.load(args.results), args.output).resolve()}")
    return 0


COMMANDS: dict[Any, Callable[[list[str]], int]] = {"compare": _compare, "report": _report}


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 a cell has an error or became slower, 2 bad use, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    command = COMMANDS.get(arguments[0]) if arguments else None
    try:
        return command(arguments[1:]) if command else _run(arguments)
    except (UsageError, BadResults) as error:
        print(f"attnops-bench: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"attnops-bench: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
