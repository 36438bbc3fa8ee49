"""Measures `perfdl bisect`: searches on recorded rounds, and live ones on generated repositories.

python benchmarks/bisect/run.py                      # the table of replayed searches: a minute
python benchmarks/bisect/run.py --live 5             # also five live searches of each kind: hours
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE.parent / "decision_quality")]

import live  # noqa: E402
import replayed  # noqa: E402

HEAD = (
    "| culprit | commits | prior | found | other answers | measured, median | most | time, median |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="replayed searches of each kind (default: %(default)s)")
    parser.add_argument("--live", type=int, default=0, help="live searches of each kind (default: none)")
    parser.add_argument("--commits", type=int, default=64, help="commits of a live history (default: %(default)s)")
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    for commits in (64, 256):
        for kind in replayed.KINDS:
            print(replayed.row(kind, commits, arguments.count), flush=True)
    for kind in replayed.KINDS:
        print(replayed.row(kind, 64, arguments.count, prior=True), flush=True)
        print(replayed.row(kind, 64, arguments.count, prior=True, misleads=True), flush=True)
    if arguments.live:
        print(f"\n{live.HEAD}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for kind in replayed.KINDS:
                for seed in range(arguments.live):
                    root = Path(folder) / f"{seed}-{kind.share}"
                    print(live.row(kind.name, kind.share, arguments.commits, seed, root), flush=True)


if __name__ == "__main__":
    main()
