"""Interrupts a search at random moments, and checks that nothing is left and that it goes on from its file.

    python benchmarks/bisect/interrupted.py --count 50

Each trial starts `perfdl bisect` on one generated repository and sends it SIGKILL or SIGINT. Then no process with the
trial's mark may live for more than fifteen seconds, and what was in the log has to be there still. At the end the
search is run to its end: it finds the commit, and of its checkouts only those that are kept are there. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from repository import Made, generate  # noqa: E402

MARK = "PERFDL_TRIAL"
OPTIONS = ("--", "--perf-steps=4", "--perf-warmup=2", "--perf-budget=5")


def start(made: Made, mark: str, log: Path) -> subprocess.Popen[bytes]:
    """A search under way."""
    words = ["-m", "pytest_perfdl.cli", "bisect", "--json", "--log", str(log), made.good, "HEAD"]
    return subprocess.Popen(
        [sys.executable, *words, "test_speed.py::test_step", *OPTIONS],
        cwd=made.root,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def alive(mark: str) -> list[int]:
    """Processes with the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def trial(made: Made, log: Path, number: int, longest: float, lots: random.Random) -> list[str]:
    """What was wrong in one trial."""
    mark = f"{os.getpid()}-{number}"
    before = log.read_bytes() if log.exists() else b""
    running = start(made, mark, log)
    how = lots.choice([signal.SIGKILL, signal.SIGINT])
    time.sleep(lots.uniform(0.3, longest))
    running.send_signal(how)
    running.communicate()
    end = time.monotonic() + 15
    while (left := alive(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    wrong = [f"processes {left}"] if left else []
    # A line that was cut off goes with the next one that is written.
    complete = before[: before.rfind(b"\n") + 1]
    if not (log.read_bytes() if log.exists() else b"").startswith(complete):
        wrong.append("the log lost measurements")
    return [f"trial {number} ({how.name}): {each}" for each in wrong]


def main() -> None:
    """Run the trials, then the search to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument(
        "--longest", type=float, default=12.0, help="seconds after which a search is interrupted at last"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    lots, wrong = random.Random(arguments.seed), []
    with tempfile.TemporaryDirectory() as folder:
        made, log = generate(Path(folder) / "repository", 0.0, 64, arguments.seed), Path(folder) / "log.jsonl"
        for number in range(arguments.count):
            wrong += trial(made, log, number, arguments.longest, lots)
        kept = log.read_bytes().count(b"\n") - 1 if log.exists() else 0
        done = start(made, "last", log).communicate()[0]
        found = json.loads(done) if done else {"status": "no answer", "culprit": None}
        checkouts = len(list((made.root / ".git" / "perfdl").glob("pytest-perfdl-*")))
        listed = subprocess.run(["git", "worktree", "list"], cwd=made.root, capture_output=True, text=True, check=True)
        worktrees = listed.stdout.count("\n") - 1
    print(f"{arguments.count} interruptions: {len(wrong)} wrong, {kept} measurements kept by them")
    print(f"then {found['status']}, the right commit: {found['culprit'] == made.culprit}")
    print(f"{checkouts} checkouts and {worktrees} worktrees are left (five are kept)")
    print("\n".join(wrong))


if __name__ == "__main__":
    main()
