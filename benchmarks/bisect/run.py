"""Measures `perfdl bisect` by searches on recorded rounds.

python benchmarks/bisect/run.py                      # a minute
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE), str(HERE.parent / "decision_quality")]

import replayed
from common.tables import table

HEAD = ("culprit", "commits", "prior", "found", "other answers", "measured, median", "most", "time, median")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="replayed searches of each kind (default: %(default)s)")
    arguments = parser.parse_args()
    for line in table(HEAD, rows(arguments.count)):
        print(line, flush=True)


def rows(count: int) -> Iterator[Sequence[object]]:
    """A row for so many searches of each kind."""
    for commits in (64, 256):
        for kind in replayed.KINDS:
            yield replayed.row(kind, commits, count)
    for kind in replayed.KINDS:
        yield replayed.row(kind, 64, count, prior=True)
        yield replayed.row(kind, 64, count, prior=True, misleads=True)


if __name__ == "__main__":
    main()
