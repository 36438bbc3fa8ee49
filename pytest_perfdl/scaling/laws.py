"""Time as a function of size: what a form of a model is, and the forms along one axis: a line, and two lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.points import F64, Points

# What every model of time as a function of size is: a form that is fitted, and the curve that comes out.


CONSTANT = "constant"
"""Name of the constant that is the time which does not scale with anything."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One fitted number; in nanoseconds (`unit` "ns") or a bare number ("1")."""

    name: str
    value: float
    unit: str


class Curve(Protocol):
    """A fitted function from factors to nanoseconds."""

    def constants(self) -> tuple[Constant, ...]:
        """The fitted numbers: the same names in the same order for every curve of one form."""
        ...

    def times(self, columns: Mapping[str, F64]) -> F64:
        """Times in nanoseconds, one per row of the columns."""
        ...


C = TypeVar("C", bound=Curve)


@dataclass(frozen=True, slots=True)
class Form(Generic[C]):
    """A family of curves."""

    name: str
    """What reports call it."""
    curve: type[C]
    fit: Callable[[Points], C]
    """The curve nearest to points; `ScalingError` where they do not determine one."""
    refit: Callable[[C, Points], C]
    """The curve nearest to most of the points that a curve was fitted to; it may start from there."""


# A fixed part and a part per unit of size: what one axis needs until proven otherwise.


@dataclass(frozen=True, slots=True)
class StraightLine:
    """t(x) = fixed + slope * x, in nanoseconds."""

    axis: str
    fixed: float
    slope: float

    def constants(self) -> tuple[Constant, ...]:
        """The fixed part (its growth is overhead) and the part per unit of the axis."""
        return Constant(CONSTANT, self.fixed, "ns"), Constant(f"per {self.axis}", self.slope, "ns")

    def times(self, columns: Mapping[str, F64]) -> F64:
        """Times in nanoseconds, one per row."""
        return self.fixed + self.slope * columns[self.axis]


def only_axis(points: Points) -> str:
    """The one factor that varies.

    Raises
    ------
    ScalingError
        No factor or several vary.
    """
    if len(points.varying) != 1:
        raise ScalingError(f"exactly one factor must vary, not {len(points.varying)}")
    return points.varying[0]


def _line(axis: str, points: Points) -> StraightLine:
    size, ns = points.columns[axis], points.ns
    scale = float(size.max()) or 1.0
    rows = np.column_stack([1 / ns, size / scale / ns])
    (fixed, slope), *_ = np.linalg.lstsq(rows, np.ones(len(ns)), rcond=None)
    return StraightLine(axis, float(fixed), float(slope) / scale)


AFFINE = Form(
    "affine",
    StraightLine,
    fit=lambda points: _line(only_axis(points), points),
    refit=lambda line, points: _line(line.axis, points),
)
"""Least squares of relative residuals along the one factor that varies.

Minimizes sum ((fixed + slope x - t) / t)^2: a large size does not outweigh the small ones, as it does where the noise
is a share of the time. Neither constant is held to be positive, since a bound would bias the one that is near it.
"""


# Two lines along one axis, where times show that something gave way: a cache that overflows, another kernel.


CLIFF_ALPHA = 0.01
"""How improbable two lines' gain over one must be, all places of the cliff taken together."""
LEAST = 3
"""Sizes on each side of a cliff: two make a line, the third speaks for it."""
_FLOOR = 1e-9
"""Relative residual that counts as none: rounding must not look like a cliff."""


@dataclass(frozen=True, slots=True)
class Cliff:
    """Somewhere above `below` and up to `above`, the largest and the smallest size of its two sides, times change."""

    axis: str
    below: float
    above: float
    p: float
    """p-value, corrected for the places that were looked at."""


@dataclass(frozen=True, slots=True)
class TwoLines:
    """One line up to the middle of the cliff, another beyond it."""

    cliff: Cliff
    small: StraightLine
    large: StraightLine

    def constants(self) -> tuple[Constant, ...]:
        """Both lines' constants; the upper line's fixed part is no time that anything takes."""
        return tuple(
            Constant(f"{constant.name} {side}", constant.value, constant.unit)
            for side, line in (
                (f"up to {self.cliff.below:g}", self.small),
                (f"from {self.cliff.above:g}", self.large),
            )
            for constant in line.constants()
        )

    def times(self, columns: Mapping[str, F64]) -> F64:
        """Times in nanoseconds, one per row."""
        middle = (self.cliff.below + self.cliff.above) / 2
        upper = columns[self.cliff.axis] > middle
        return np.where(upper, self.large.times(columns), self.small.times(columns))


def find_cliff(points: Points) -> Cliff | None:
    """Where two lines explain the times better than one, if anywhere.

    For each place with three sizes or more on both sides: F = ((S1 - S2) / 3) / (S2 / (n - 5)), S1 and S2 the sums
    of squared relative residuals of one line and of two; two more constants and the place itself are what the second
    line costs (Chow, "Tests of Equality Between Sets of Coefficients in Two Linear Regressions", Econometrica 28,
    1960; with the place unknown, Bonferroni's correction over the places).

    Raises
    ------
    ScalingError
        No factor or several vary.
    """
    from scipy.special import fdtrc

    axis = only_axis(points)
    size = points.columns[axis]
    sizes = np.unique(size)
    places = range(LEAST, len(sizes) - LEAST + 1)
    if not places:
        return None
    one = _squares(points)
    found = []
    for at in places:
        small = points.take(np.flatnonzero(size < sizes[at]))
        two = _squares(small) + _squares(points.take(np.flatnonzero(size >= sizes[at])))
        two = max(two, len(points) * _FLOOR**2)
        statistic = max(one - two, 0.0) / 3 / (two / (len(points) - 5))
        found.append((float(fdtrc(3, len(points) - 5, statistic)), two, at))
    p, _, at = min(found)
    corrected = min(p * len(places), 1.0)
    if corrected >= CLIFF_ALPHA:
        return None
    return Cliff(axis, float(sizes[at - 1]), float(sizes[at]), corrected)


def _squares(points: Points) -> float:
    line = AFFINE.fit(points)
    return float(((line.times(points.columns) / points.ns - 1) ** 2).sum())


def _two_lines(cliff: Cliff | None, points: Points) -> TwoLines:
    if cliff is None:
        raise ScalingError("no cliff was found")
    upper = points.columns[cliff.axis] >= cliff.above
    small, large = (_line(cliff.axis, points.take(np.flatnonzero(side))) for side in (~upper, upper))
    return TwoLines(cliff, small, large)


PIECEWISE = Form(
    "piecewise",
    TwoLines,
    fit=lambda points: _two_lines(find_cliff(points), points),
    refit=lambda lines, points: _two_lines(lines.cliff, points),
)
"""`AFFINE` on either side of the most probable cliff."""
