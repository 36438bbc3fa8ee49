"""The history of a test's metrics: values over commits, and the places where they changed."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_perfdl.model.record import Better
from pytest_perfdl.stats.change_points import ChangePoint

SHORT = 9
"""Digits of a commit as people write it."""


@dataclass(frozen=True, slots=True)
class Point:
    """A metric of a test on one machine at one commit."""

    commit: str
    """Full hash; "working tree" for a baseline that is not committed; empty if unknown."""
    date: str
    """ISO 8601."""
    value: float
    """In the metric's unit."""
    interval: tuple[float, float] | None
    """Ends of the 95 % interval; `None` for a single process."""
    environment: str
    """Digest of the context, equal for equal contexts."""
    environment_changes: tuple[tuple[str, str, str], ...] = ()
    """Name, value before and value from here on of what changed since the point before."""
    subject: str = ""
    """First line of the commit message, where it is known."""
    note: str = ""
    """Why the baseline was updated, as its author said."""
    is_paired: bool = False
    """Whether the value follows from paired rounds, so that machine drift is not in it."""

    @property
    def name(self) -> str:
        """The commit as people write it."""
        return self.commit if " " in self.commit else self.commit[:SHORT]


@dataclass(frozen=True, slots=True)
class TestHistory:
    """The points of one metric of one test on one machine, the oldest first."""

    __test__ = False

    id: str
    metric: str
    """Full name."""
    unit: str
    better: Better
    machine_id: str
    points: tuple[Point, ...]
    change_points: tuple[ChangePoint, ...]

    def is_worse(self, change: ChangePoint) -> bool:
        """Whether a change made the metric worse."""
        return (change.effect > 0) == (self.better == "lower")
