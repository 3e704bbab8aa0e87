"""attnops-bench: what each operator costs on this machine, next to PyTorch and to its limit."""

import sys


def main() -> int:
    """The command; a package that it lacks is one line and exit code 2."""
    try:
        from attnops_bench.cli import main as run
    except ImportError as error:
        if error.name is None:
            raise
        package = error.name.partition(".")[0]
        extra = "torch" if package == "torch" else "'attnops[bench]'"
        print(
            f"attnops-bench: {package} is not installed; run: pip install {extra}",
            file=sys.stderr,
        )
        return 2
    return run()
