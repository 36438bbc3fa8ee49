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
"""The figures of a curve, each by the kind of growth that it tells of, with their units."""


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
    """The baseline's mean over processes; `None` where it has none. Its interval comes from how those of one occasion
    differ."""
    new: CurveTime
    """This run's; of a paired size the baseline's with the change that rounds found."""
    change: IntervalEstimate | None
    """`new / base - 1` by the evidence that the curve was judged by; `None` where it was not held against baselines."""
    paired: bool
    """Whether that evidence is rounds of pairs, which tell more than the two means; else the interval holds what the
    machine may change between two occasions."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The curves fitted to both sides, at one size, with the ends of their 95 % bands."""

    size: float
    base: CurveTime | None
    new: CurveTime


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the curve that tells of a kind of growth.

    Of overhead the fixed part (the time at size 0 of the line through the times), per unit that line's slope, of
    complexity the exponent (d log time / d log size over the larger half of the sizes).
    """

    kind: Literal["overhead", "per unit", "complexity"]
    unit: Literal["ns", "1"]
    base: IntervalEstimate | None
    new: IntervalEstimate
    change: IntervalEstimate | None
    """`new - base`, with what the machine may change between two occasions in its interval."""


@dataclass(frozen=True, slots=True)
class JudgedCurve:
    """A test's time over the sizes of a parameter."""

    name: str
    """Of the metric that has its verdict: "step_time over batch"."""
    metric: str
    axis: str
    """Name of the parameter."""
    unit: str
    """What one more of it is: "sample" for a batch, else the parameter's name."""
    sizes: tuple[Size, ...]
    """What was measured, in the order of sizes."""
    fitted: tuple[Fitted, ...]
    """From the least size to the largest, the measured ones among them."""
    figures: tuple[Figure, ...]
    growth: Growth | None
    """What was added to the baselines' curve, by the kind that fits best; whether that is certain is said by the
    verdict. `None` where not every size has a baseline."""
    tests: tuple[str, ...] = ()
    """Node ids of the tests that are its points."""
