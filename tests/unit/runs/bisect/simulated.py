"""Histories and measurements that are made up, for tests of the search."""

import random
from pathlib import Path

from pytest_perfdl.runs.bisect.history import Commit, History
from pytest_perfdl.runs.bisect.measurements import Measurement


def made_up(last):
    """A history of a good end and so many commits after it; hashes are numbers."""
    commits = [Commit(f"{number:040}", "2026-01-01", f"c{number}") for number in range(last + 1)]
    return History(Path("/nowhere"), tuple(commits))


class Simulated:
    """Measures commits whose counts or times are given, with rounds of normal noise."""

    def __init__(self, *, ops=None, times=None, noise=0.01, rounds=5, skipped=(), seed=0):
        self.ops = ops
        self.times = times
        self.skipped = set(skipped)
        self.noise = noise
        self.rounds = rounds
        self.random = random.Random(seed)
        self.asked = []

    def measure(self, request, metric, limit):
        self.asked.append(request)
        number = int(request.commit)
        if number in self.skipped:
            return Measurement(request, "ImportError: no", seconds=1.0)
        against = None if request.against is None else int(request.against)
        ops = self.ops or [16.0] * 1000
        return Measurement(
            request,
            counts={"ops": float(ops[number])},
            base_counts={} if against is None else {"ops": float(ops[against])},
            rounds={"step_time": self._rounds(number, against)} if request.timed and self.times else {},
            seconds=10.0,
            key="machine",
        )

    def _rounds(self, number, against):
        times = self.times
        return tuple((times[against] * self._jitter(), times[number] * self._jitter()) for _ in range(self.rounds))

    def _jitter(self):
        return 2.718281828459045 ** self.random.gauss(0, self.noise / 1.4142)


def stepped(last, culprit, before, after):
    """Values of commits 0 to `last`."""
    return [before if number < culprit else after for number in range(last + 1)]
