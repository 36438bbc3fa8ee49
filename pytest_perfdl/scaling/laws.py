"""Time as a function of one size: a model's form, a line, two lines, and the smooth curve beside the points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.points import F64, Points
from pytest_perfdl.stats.quantiles import student

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


class Form(Protocol[C]):
    """A family of curves."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def fit(self, points: Points) -> C:
        """The curve nearest to the points.

        Raises
        ------
        ScalingError
            The points do not determine one.
        """
        ...

    def refit(self, curve: C, points: Points) -> C:
        """The curve nearest to most of the points that `curve` was fitted to; it may start from there."""
        ...


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


@dataclass(frozen=True, slots=True)
class Affine:
    """Least squares of relative residuals along one axis.

    Minimizes sum ((fixed + slope x - t) / t)^2: a large size does not outweigh the small ones, as it does where the
    noise is a share of the time. Neither constant is held to be positive, since a bound would bias the one that is
    near it.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        return "affine"

    def fit(self, points: Points) -> StraightLine:
        """The line nearest to points of which exactly one factor varies.

        Raises
        ------
        ScalingError
            No factor or several vary.
        """
        axis = only_axis(points)
        return _line(axis, points.columns[axis], points.ns)

    def refit(self, curve: StraightLine, points: Points) -> StraightLine:
        """The line nearest to fewer points, along the same axis."""
        return _line(curve.axis, points.columns[curve.axis], points.ns)


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


def _line(axis: str, size: F64, ns: F64) -> StraightLine:
    scale = float(size.max()) or 1.0
    rows = np.column_stack([1 / ns, size / scale / ns])
    (fixed, slope), *_ = np.linalg.lstsq(rows, np.ones(len(ns)), rcond=None)
    return StraightLine(axis, float(fixed), float(slope) / scale)


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


@dataclass(frozen=True, slots=True)
class Piecewise:
    """`Affine` on either side of the most probable cliff."""

    @property
    def name(self) -> str:
        """What reports call it."""
        return "piecewise"

    def fit(self, points: Points) -> TwoLines:
        """Two lines.

        Raises
        ------
        ScalingError
            More than one factor varies, or no cliff was found.
        """
        cliff = find_cliff(points)
        if cliff is None:
            raise ScalingError("no cliff was found")
        return _two(cliff, points)

    def refit(self, curve: TwoLines, points: Points) -> TwoLines:
        """Two lines nearest to fewer points, with the cliff where it was found."""
        return _two(curve.cliff, points)


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
    line = Affine().fit(points)
    return float(((line.times(points.columns) / points.ns - 1) ** 2).sum())


def _two(cliff: Cliff, points: Points) -> TwoLines:
    upper = points.columns[cliff.axis] >= cliff.above
    sides = [points.take(np.flatnonzero(side)) for side in (~upper, upper)]
    seed = StraightLine(cliff.axis, 0.0, 0.0)
    small, large = (Affine().refit(seed, side) for side in sides)
    return TwoLines(cliff, small, large)


# The smooth curve through times over sizes, with its 95 % band: what a picture shows beside the points.


_DISTINCT = 3.84
"""95 % quantile of chi-squared with one degree of freedom: a line that is worse by less is as good."""


@dataclass(frozen=True, slots=True, eq=False)
class _Polynomial:
    solving: F64
    """What takes times in units of their errors to coefficients, the highest power's first."""
    coefficients: F64
    widening: float
    """Square root of chi-squared over its degrees of freedom, 1 at least."""
    misfit: float
    """Chi-squared."""


def smooth(sizes: F64, ns: F64, errors: F64, freedom: int, at: F64, *, bent: bool = False) -> tuple[F64, F64, F64]:
    """A straight line through times, or a parabola where a line does not fit them.

    Weighted least squares with relative standard errors, as of `growth.shape`. The parabola is taken where its
    chi-squared is lower by more than the 95 % quantile for one degree of freedom: the likelihood-ratio test (Wilks,
    Annals of Mathematical Statistics 9, 1938), with larger errors where the parabola does not fit either. The band is
    that of the curve's mean, -+ t sqrt(a' C a) with the covariance C of the coefficients, the powers a of a size and
    Student's t; widened where the curve does not fit, by the square root of chi-squared over its degrees of freedom.

    Parameters
    ----------
    sizes, ns
        Positive, three different sizes or more.
    errors
        Relative standard errors of the times.
    freedom
        Degrees of freedom of those.
    at
        Sizes at which the curve is wanted.
    bent
        Take the parabola in any case.

    Returns
    -------
    ns, low, high
        Nanoseconds, one for each of `at`; a low end below zero is zero.
    """
    # Within -1 and 1 the powers are told apart, however near to each other the sizes are.
    middle, half = (sizes.max() + sizes.min()) / 2, (sizes.max() - sizes.min()) / 2
    line, parabola = (_fitted((sizes - middle) / half, ns, errors, degree) for degree in (1, 2))
    distinct = line.misfit - parabola.misfit > _DISTINCT * parabola.widening**2
    chosen = parabola if bent or distinct else line
    powers = np.vander((at - middle) / half, len(chosen.coefficients))
    value = powers @ chosen.coefficients
    error = chosen.widening * np.sqrt(((powers @ chosen.solving) ** 2).sum(axis=1))
    off = student(0.975, freedom) * error
    return value, np.maximum(value - off, 0.0), value + off


def _fitted(unit: F64, ns: F64, errors: F64, degree: int) -> _Polynomial:
    rows = np.vander(unit, degree + 1) / (ns * errors)[:, None]
    solving: F64 = np.linalg.pinv(rows).astype(np.float64)
    coefficients = solving @ (1 / errors)
    misfit = float(((1 / errors - rows @ coefficients) ** 2).sum())
    left = len(ns) - degree - 1
    return _Polynomial(solving, coefficients, max(1.0, misfit / left) ** 0.5 if left else 1.0, misfit)
