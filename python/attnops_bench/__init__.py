"""The entry point of attnops-bench, outside attnops, which cannot be imported without torch."""

import sys


def main() -> int:
    try:
        from attnops.bench.cli import main as run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = "torch" if package == "torch" else "'attnops[bench]'"
        print(
            f"attnops-bench: {package} is not installed; run: pip install {extra}",
            file=sys.stderr,
        )
        return 2
    return run()
