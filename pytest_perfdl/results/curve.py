"""A test's time as a function of a parameter, compared as one curve, as in the run file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_perfdl.scaling.growth import Growth, IntervalEstimate

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
