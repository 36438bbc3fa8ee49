"""Improvements: faster code becomes the baseline, if the rounds of several runs confirm it.

The new baseline is of the *oldest* run of those that confirm the improvement, not of the newest: what became slower
after the improvement is then slower than the new baseline, and shows in the following runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_perfdl.baseline.append import append
from pytest_perfdl.judge.stopping_rule import OWN_EVIDENCE
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.record import Record
from pytest_perfdl.runs.refresh.kept import kept
from pytest_perfdl.runs.refresh.measured import Measured, Together, code_of, deciding, paired_times, together

CONFIRMATIONS = 2
"""Runs that must show an improvement."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A confirmed improvement."""

    runs: tuple[Measured, ...]
    """The runs that confirm it, oldest first."""
    name: str
    """The time that improved most."""
    times: dict[str, Together]

    @property
    def worse(self) -> tuple[str, Together] | None:
        """Another time that got worse for certain; `None` if none did."""
        return next(((name, each) for name, each in self.times.items() if each.is_worse), None)


def confirmed(runs: Sequence[Measured], stored: Record) -> Improvement | None:
    """The improvement that the newest runs show together, at least `CONFIRMATIONS`; `None` if they show none.

    As many runs as show it: where code changed after an improvement, the oldest code that has it is wanted. Runs of the
    baseline's own code cannot have it.

    Parameters
    ----------
    runs
        Oldest first, all compared with the stored baseline in paired rounds, without a verdict in between that is other
        than `improved` or `unchanged`.
    """
    own = frozenset(stored.code.files.items()) if stored.code is not None else None
    found = None
    for number in range(CONFIRMATIONS, len(runs) + 1):
        streak = tuple(runs[-number:])
        if own is not None and own in map(code_of, streak):
            break
        times = together(streak)
        better = [
            time.name
            for time in deciding(streak[-1])
            if time.name in times and times[time.name].is_better(time, OWN_EVIDENCE)
        ]
        if better:
            found = Improvement(streak, min(better, key=lambda name: times[name].estimate.center), times)
        elif found is not None:
            break
    return found


def adopted(found: Improvement, stored: Record) -> Record:
    """The new baseline: the oldest run's record, with the processes of later runs of the same code."""
    first, *later = found.runs
    record = first.result.new
    assert record is not None
    for run in later:
        more = run.result.new
        assert more is not None
        if record.code is None or more.code is None:
            break
        try:
            record = replace(append(record, more), code=record.code)
        except BaselineError:
            # Its code, environment or counts differ, so it is not what was measured first.
            break
    times = {name: metric.new for name, metric in paired_times(first.result).items() if metric.new is not None}
    return replace(record, note=None, refreshed=kept(stored, record, times))
