"""Prints the counts of JUnit reports (ctest, GoogleTest, pytest), one line each and the sum.

The last line is `N passed, N failed`. The exit status is 1 if anything failed or a report is
missing.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def outcome(case: ElementTree.Element) -> str:
    """What became of one test: passed, failed or skipped."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped") is not None or case.get("status") in ("notrun", "disabled")
    return "skipped" if skipped else "passed"


def count(report: Path) -> Counter[str]:
    """The outcomes in a report; a run that left none counts as one failure."""
    try:
        tree = ElementTree.parse(report)
    except (OSError, ElementTree.ParseError):
        return Counter(failed=1)
    return Counter(outcome(case) for case in tree.iter("testcase"))


def main() -> int:
    """Prints the summary of the reports named on the command line."""
    total: Counter[str] = Counter()
    for report in map(Path, sys.argv[1:]):
        counts = count(report)
        total += counts
        figures = ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped"))
        print(f"{report.stem}: {figures}" + ("" if report.exists() else " (it did not finish)"))
    print(f"{total['passed']} passed, {total['failed']} failed")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
