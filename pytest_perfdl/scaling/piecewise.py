"""Two lines along one axis, where times show that something gave way: a cache that overflows, another kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.affine import Affine, StraightLine, only_axis
from pytest_perfdl.scaling.model import Constant
from pytest_perfdl.scaling.points import F64, Points

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
