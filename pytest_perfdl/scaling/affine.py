"""A fixed part and a part per unit of size: what one axis needs until proven otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.model import CONSTANT, Constant
from pytest_perfdl.scaling.points import F64, Points


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
