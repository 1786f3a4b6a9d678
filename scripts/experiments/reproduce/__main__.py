"""python -m experiments.reproduce: see `cli`."""

import sys

from experiments.reproduce.cli import main

if __name__ == "__main__":
    sys.exit(main())
