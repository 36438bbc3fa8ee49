"""Keeps one processor busy for a share of the time, as another program on the machine would.

    python side_load.py SHARE SEED

Spells of work and of rest come in turns, each of random length (exponential, a tenth of a second to seconds on
average), drawn from SEED. It ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

MEAN_CYCLE_SECONDS = 2.0
LONGEST_SECONDS = 10.0


def spells(share: float, seed: int) -> Iterator[tuple[float, float]]:
    """(seconds of work, seconds of rest), without end."""
    rng = random.Random(seed)
    while True:
        work, rest = (rng.expovariate(1.0) * MEAN_CYCLE_SECONDS * part for part in (share, 1 - share))
        yield min(work, LONGEST_SECONDS), min(rest, LONGEST_SECONDS)


@contextlib.contextmanager
def side_load(share: float, seed: int) -> Iterator[None]:
    """Such a process beside what is done meanwhile; none for a share of 0."""
    if not share:
        yield
        return
    process = subprocess.Popen([sys.executable, __file__, str(share), str(seed)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def main(share: str, seed: str) -> None:
    """Work and rest until the parent is gone."""
    parent = os.getppid()
    for work, rest in spells(float(share), int(seed)):
        until = time.monotonic() + work
        while time.monotonic() < until:
            sum(range(1000))
        time.sleep(rest)
        if os.getppid() != parent:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
