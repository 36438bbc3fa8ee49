"""What is compared as more than one value: a curve over sizes, a history over commits, the ranks of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_perfdl.model.record import Better
from pytest_perfdl.scaling.growth import Growth, IntervalEstimate
from pytest_perfdl.stats.change_points import ChangePoint

# A test's time as a function of a parameter, compared as one curve, as in the run file.


FIGURES: dict[Literal["overhead", "per unit", "complexity"], Literal["ns", "1"]] = {
    "overhead": "ns",
    "per unit": "ns",
    "complexity": "1",
}
"""Parameters of a curve, by kind of growth, with their units."""


@dataclass(frozen=True, slots=True)
class CurveTime:
    """A time with its 95 % interval, in nanoseconds."""

    value: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Size:
    """One measured size of a curve."""

    size: float
    base: CurveTime | None
    """The baseline's mean over processes; `None` without a baseline. The interval is from the spread of processes."""
    new: CurveTime
    """The current time; for a paired size, the baseline's time with the change from paired rounds."""
    change: IntervalEstimate | None
    """`new / base - 1`, as used for the verdict; `None` if not compared with baselines."""
    paired: bool
    """Whether the change is from paired rounds; otherwise its interval includes machine drift between recordings."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The fitted curves of both sides at one size, with the ends of their 95 % bands."""

    size: float
    base: CurveTime | None
    new: CurveTime


@dataclass(frozen=True, slots=True)
class Figure:
    """A parameter of the curve.

    overhead: the fixed part (intercept of a line through the times); per unit: the slope of that line; complexity: the
    exponent (d log time / d log size over the larger half of the sizes).
    """

    kind: Literal["overhead", "per unit", "complexity"]
    unit: Literal["ns", "1"]
    base: IntervalEstimate | None
    new: IntervalEstimate
    change: IntervalEstimate | None
    """`new - base`; its interval includes machine drift between recordings."""


@dataclass(frozen=True, slots=True)
class JudgedCurve:
    """A test's time as a function of a parameter."""

    name: str
    """Name of the metric with its verdict: "step_time over batch"."""
    metric: str
    axis: str
    """Name of the parameter."""
    unit: str
    """Name of one unit of size: "sample" for a batch, otherwise the parameter's name."""
    sizes: tuple[Size, ...]
    """Measured sizes, ascending."""
    fitted: tuple[Fitted, ...]
    """From the smallest to the largest size, including the measured ones."""
    figures: tuple[Figure, ...]
    growth: Growth | None
    """The time added to the baselines' curve, by the kind that fits best; see the verdict for its certainty. `None` if
    a size has no baseline."""
    tests: tuple[str, ...] = ()
    """Node ids of its tests."""


# The history of a test's metrics: values over commits, and the places where they changed.


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


# How the ranks of a step compare, on one side and between two sides of a comparison.


RankCause = Literal["compute", "input", "communication", "host"]
"""What a step of several ranks spends more time on."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """A profiled step of one rank, mean nanoseconds."""

    own_ns: int
    """The step less the waiting for other ranks in which nothing computes, and less the time in which other processes
    used the CPU."""
    compute_ns: int
    input_ns: int
    """Waiting for the next batch."""
    host_ns: int
    """Neither computing nor communicating nor waiting for a batch."""
    communication_ns: int
    """Communication and waiting for other ranks in which nothing computes."""
    overlap: float | None
    """Share of the communication that overlaps with computing, 0 to 1; `None` without communication."""

    def of(self, cause: RankCause) -> int:
        """The time of one class."""
        return {
            "compute": self.compute_ns,
            "input": self.input_ns,
            "host": self.host_ns,
            "communication": self.communication_ns,
        }[cause]


@dataclass(frozen=True, slots=True)
class RankSide:
    """The ranks of one side, in the order of their numbers; per step."""

    ranks: tuple[RankTimes, ...]
    step_ns: int
    """Mean step of all ranks."""
    waits_ns: tuple[tuple[int, ...], ...]
    """`waits_ns[i][j]`: how long rank i waits for rank j in collectives and computes nothing meanwhile."""
    collectives: float
    """Collectives and messages, all ranks together."""
    collective_bytes: float | None
    """Their bytes; `None` if unknown."""


@dataclass(frozen=True, slots=True)
class RankComparison:
    """The ranks of one call, current and, if it was measured, baseline."""

    call: str
    base: RankSide | None
    new: RankSide
    rank: int | None = None
    """The rank whose own work explains the change of the step; `None` if it is all ranks', or communication's."""
    cause: RankCause | None = None
    """What the change of the step is of; `None` if the step did not change."""
