"""`python -m attnops_bench` is `attnops-bench`."""

import sys

from attnops_bench import main

if __name__ == "__main__":
    sys.exit(main())
