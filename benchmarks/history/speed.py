"""How long `perfdl history` takes for a thousand commits: all tests, one test, JSON and the page.

CPU seconds are those of all processes; seconds depend on what else runs on the machine.

python benchmarks/history/speed.py --commits 1000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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
    print("| repository | versions of baselines | command | CPU seconds | seconds |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, (tests, changed)) in enumerate(SHAPES.items()):
            folder = Path(scratch, str(number))
            versions = make(folder, options.commits, tests, changed, options.commits // 2)
            for what, words in COMMANDS.items():
                started, before = time.monotonic(), os.times()
                command = [sys.executable, "-m", "pytest_perfdl.cli", "history", *words]
                subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                after, seconds = os.times(), time.monotonic() - started
                used = after.children_user + after.children_system - before.children_user - before.children_system
                print(f"| {name} | {versions} | {what} | {used:.1f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
