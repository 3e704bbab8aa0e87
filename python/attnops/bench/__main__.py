"""`python -m attnops.bench` is `attnops-bench`."""

import sys

from attnops.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
