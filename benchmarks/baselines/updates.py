"""Do updates of one baseline survive each other, and kills?

    python benchmarks/baselines/updates.py race --count 200      # two processes update one baseline at once
    python benchmarks/baselines/updates.py kill --count 200      # an update is killed at a random moment

`race` counts the updates that are in the baseline afterwards. `kill` starts a process that updates and kills it with
SIGKILL at a random moment of its updates; afterwards the baseline must be the one of before or after the update that
was killed, whole. See README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from making import COMMIT, TEST, counted, record, timed  # noqa: E402 (the path comes first)

from pytest_perfdl.baseline.append import append  # noqa: E402
from pytest_perfdl.baseline.files import Store  # noqa: E402
from pytest_perfdl.model.record import Code, Occasion, Record  # noqa: E402

SLUG = record().key.slug
KEPT = 20
"""Occasions of the baseline that is updated: its size stays the same while it is killed."""


def update(folder: str, who: str, number: int, kept: int | None) -> None:
    """Append one occasion to the baseline; with `kept` start it again when it has so many."""
    made = record(
        {"step_time": timed(12.0), "ops": counted(3)},
        occasions=(Occasion(1, f"2026-05-01T10:00:00Z {who} {number:06}", COMMIT, None),),
        code=Code({"src/step.py": "a" * 12}),
    )

    def joined(there: Record | None) -> Record:
        return made if there is None or (kept and there.repeats >= kept) else append(there, made)

    Store(Path.cwd(), folder).save(made, {"": os.urandom(200_000)}, joined)


def write(folder: str, who: str, count: int, kept: int | None) -> None:
    """Update again and again, and say each update when it is written."""
    for number in range(count):
        update(folder, who, number, kept)
        print(f"{who} {number:06}", flush=True)


def start(folder: str, who: str, count: int, *, kept: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "write", folder, who, str(count), str(kept or 0)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def race(folder: str, count: int) -> bool:
    """Two processes, `count` updates together."""
    running = [start(folder, who, count // 2) for who in "ab"]
    said = [line for each in running for line in each.communicate()[0].splitlines()]
    store = Store(Path.cwd(), folder)
    found = store.load(TEST, SLUG)
    there = [] if found is None else [occasion.date.partition(" ")[2] for occasion in found.occasions]
    lost, double = set(said) - set(there), len(there) - len(set(there))
    print(f"{len(said)} updates, {len(lost)} lost, {double} double")
    return len(said) == 2 * (count // 2) and not lost and not double


def kill(folder: str, count: int, seed: int) -> bool:
    """Kills, each at a moment within an update that is drawn from how long updates take."""
    draw, wrong, outcomes = random.Random(seed), 0, {"old": 0, "new": 0}
    before: tuple[str, ...] = ()
    for number in range(count):
        writer = start(folder, f"{number:03}", 10**6, kept=KEPT)
        assert writer.stdout is not None
        begun = time.monotonic()
        said = [writer.stdout.readline().strip()]
        begun = time.monotonic()
        said.append(writer.stdout.readline().strip())
        time.sleep(draw.uniform(0, 3 * (time.monotonic() - begun)))
        writer.send_signal(signal.SIGKILL)
        said += writer.communicate()[0].splitlines()
        try:
            store = Store(Path.cwd(), folder)
            found = store.load(TEST, SLUG)
            assert found is not None
            there = tuple(occasion.date.partition(" ")[2] for occasion in found.occasions)
            last, following = said[-1], f"{number:03} {int(said[-1].split()[1]) + 1:06}"
            assert there[-1] in (last, following), f"{there[-1]} instead of {last} or {following}"
            outcomes["old" if there[-1] == last else "new"] += 1
            # From the first to the last nothing is missing between.
            expected = [*before, *said, *([following] if there[-1] == following else [])]
            assert list(there) == expected[-len(there) :]
            before = there
        except Exception as error:
            wrong += 1
            print(f"{number}: {error!r}")
    print(f"{count} kills: {outcomes['old']} old, {outcomes['new']} new, {wrong} torn or lost")
    return not wrong


def main() -> int:
    if sys.argv[1:2] == ["write"]:
        folder, who, count, kept = sys.argv[2:]
        write(folder, who, int(count), int(kept) or None)
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("race", "kill"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="updates-") as work:
        folder = f"{work}/baselines"
        if arguments.what == "kill":
            fine = kill(folder, arguments.count, arguments.seed)
        else:
            fine = race(folder, arguments.count)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
