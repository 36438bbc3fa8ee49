"""How long are processes of a job left after one of them died or hung? See README.md.

python benchmarks/ranks/deaths.py --count 20
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.tables import table

TEST = """
import os, signal, time
from pathlib import Path
import pytest, torch
import torch.distributed as dist

HERE = Path(__file__).parent

@pytest.mark.perf(ranks=2)
def test_step(perf):
    total, done = torch.zeros(64), [0]
    (HERE / f"launcher-{os.getppid()}").touch()
    (HERE / f"pid-{perf.rank}-{os.getpid()}").touch()
    dist.barrier()

    def step():
        done[0] += 1
        if done[0] == 8 and perf.rank == 1:
            (HERE / "now").touch()
            if os.environ["HOW"] == "raises":
                raise ValueError("this batch is empty")
            time.sleep(600)
        dist.all_reduce(total)

    if os.environ["HOW"] == "raises before" and perf.rank == 1:
        (HERE / "now").touch()
        raise ValueError("this shard is empty")
    perf(step)
"""
WAYS = {
    "rank killed": "rank 1 of 2 was killed by SIGKILL",
    "launcher killed": "the launcher of the ranks was killed by SIGKILL",
    "pytest killed": "",
    "rank hangs": "rank 1 of 2 made no progress for 5 s",
    "raises": "rank 1 of 2 failed in the warm-up steps",
    "raises before": "rank 1 of 2 failed outside of perf(...)",
}
"""How a job ends, and the line that says so; nobody is left to say it if pytest is killed."""
TIMEOUT_SECONDS = 5.0
"""`perf_rank_timeout`: a hang is noticed after so long."""
LONGEST_SECONDS = 60.0


def trial(way: str, root: Path) -> tuple[float, bool]:
    """Seconds from the death (of a hang: from the timeout) until no process is left; whether the line was printed."""
    (root / "test_step.py").write_text(TEST)
    settings = (f"perf_rank_timeout = {TIMEOUT_SECONDS:g}", "perf_device_lock = off", "perf_calibrate = off")
    (root / "pytest.ini").write_text("\n".join(("[pytest]", *settings)) + "\n")
    log = root / "log"
    command = [sys.executable, "-m", "pytest", "--perf", "-p", "no:cacheprovider", "--perf-fail-on=invalid"]
    with log.open("wb") as output:
        run = subprocess.Popen(
            command, cwd=root, env={**os.environ, "HOW": way}, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
    while not (root / "now").exists():
        if run.poll() is not None:
            raise SystemExit(f"{way}: pytest ended before the job did\n{log.read_text()}")
        time.sleep(0.01)
    pids = {path.name.split("-")[1]: int(path.name.split("-")[2]) for path in root.glob("pid-*")}
    (launcher,) = {int(path.name.split("-")[1]) for path in root.glob("launcher-*")}
    victim = {"rank killed": pids["1"], "launcher killed": launcher, "pytest killed": run.pid}.get(way)
    started = time.monotonic() + (TIMEOUT_SECONDS if way == "rank hangs" else 0.0)
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
    left = [*pids.values(), launcher]
    while any(map(is_alive, left)) and time.monotonic() - started < LONGEST_SECONDS:
        time.sleep(0.02)
    seconds = time.monotonic() - started
    run.wait(LONGEST_SECONDS)
    return seconds, WAYS[way] in " ".join(log.read_text().split())


def is_alive(pid: int) -> bool:
    """Whether a process runs, and does not only wait to be waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--way", choices=WAYS, action="append")
    arguments = parser.parse_args()
    head = ("how the job ends", "gone within 10 s", "seconds, median (most)", "its line printed")
    for line in table(head, rows(arguments.way or WAYS, arguments.count), numbers=True):
        print(line, flush=True)


def rows(ways: Iterable[str], count: int) -> Iterator[Sequence[str]]:
    """A row for each way."""
    for way in ways:
        taken, said = [], 0
        for _ in range(count):
            with tempfile.TemporaryDirectory() as folder:
                seconds, printed = trial(way, Path(folder))
                taken.append(seconds)
                said += printed
        gone = sum(seconds <= 10 for seconds in taken)
        shown = f"{said} of {len(taken)}" if WAYS[way] else "-"
        median = statistics.median(taken)
        yield way, f"{gone} of {len(taken)}", f"{median:.1f} ({max(taken):.1f})", shown


if __name__ == "__main__":
    main()
