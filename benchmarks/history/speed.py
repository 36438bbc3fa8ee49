"""How long `perfdl history` takes for a thousand commits: all tests, one test, JSON and the page.

CPU seconds are those of all processes; seconds depend on what else runs on the machine.

python benchmarks/history/speed.py --commits 1000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.processes import checked, perfdl
from common.tables import table
from history.repository import make, test_id

SHAPES = {"one test, every commit": (1, 1), "100 tests, 3 a commit": (100, 3)}
"""Tests, and how many of them each commit changes."""
COMMANDS = {
    "terminal": [],
    "one test": [test_id(0)],
    "json": ["--json"],
    "page": ["--html", "history.html"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000)
    options = parser.parse_args()
    head = ("repository", "versions of baselines", "command", "CPU seconds", "seconds")
    for line in table(head, rows(options.commits)):
        print(line, flush=True)


def rows(commits: int) -> Iterator[Sequence[object]]:
    """A row for each repository and command."""
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, (tests, changed)) in enumerate(SHAPES.items()):
            folder = Path(scratch, str(number))
            versions = make(folder, commits, tests, changed, commits // 2)
            for what, words in COMMANDS.items():
                took = checked(perfdl("history", *words), cwd=folder)
                yield name, versions, what, f"{took.cpu_seconds:.1f}", f"{took.seconds:.1f}"


if __name__ == "__main__":
    main()
