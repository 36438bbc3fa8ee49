"""Measures `perfdl bisect` by searches on recorded rounds.

python benchmarks/bisect/run.py                      # a minute
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE.parent / "decision_quality")]

import replayed  # noqa: E402

HEAD = (
    "| culprit | commits | prior | found | other answers | measured, median | most | time, median |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="replayed searches of each kind (default: %(default)s)")
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    for commits in (64, 256):
        for kind in replayed.KINDS:
            print(replayed.row(kind, commits, arguments.count), flush=True)
    for kind in replayed.KINDS:
        print(replayed.row(kind, 64, arguments.count, prior=True), flush=True)
        print(replayed.row(kind, 64, arguments.count, prior=True, misleads=True), flush=True)


if __name__ == "__main__":
    main()
