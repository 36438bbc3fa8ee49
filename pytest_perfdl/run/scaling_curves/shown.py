"""A compared curve for reports: all sizes of both sides, the fitted curves, and three numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.results.curve import FIGURES, CurveTime, Figure, Fitted, JudgedCurve, Size
from pytest_perfdl.run.scaling_curves.compared import Means, between_occasions, judged_means, means, shape_of, spread
from pytest_perfdl.scaling.growth import IntervalEstimate, Shape
from pytest_perfdl.scaling.smooth import smooth
from pytest_perfdl.stats.quantiles import student

if TYPE_CHECKING:
    from pytest_perfdl.run.scaling_curves.compared import Compared
    from pytest_perfdl.run.scaling_curves.points import Family, Ratio, SizePoint

SAMPLES = 33
"""Number of sizes at which fitted curves are drawn, in addition to the measured ones."""


def shown(family: Family, points: Sequence[SizePoint], found: Compared | None) -> JudgedCurve:
    """A curve for reports; `found` is its comparison with the baselines' curve, if there is one."""
    base, new = _sides(points, found)
    grid = _grid([point.size for point in points])
    squared = found is not None and "complexity" in found.growth.kinds and found.growth.effect.low > 0
    now = _fitted(points, new, grid, bent=squared)
    before: Sequence[CurveTime | None] = [None] * len(grid) if base is None else _fitted(points, base, grid)
    bases = [point.base for point in points if point.base is not None]
    stored = iter(_times(base or means(bases)) if bases else [])
    ratios: Sequence[Ratio | None] = found.ratios if found is not None else [None] * len(points)
    return JudgedCurve(
        name=family.title,
        metric=family.metric,
        axis=family.axis,
        unit=family.unit,
        sizes=tuple(
            Size(
                point.size,
                base=None if point.base is None else next(stored),
                new=time,
                change=None if ratio is None else _relative(ratio, spread(bases)[1]),
                paired=ratio is not None and not ratio.common,
            )
            for point, time, ratio in zip(points, _times(new), ratios, strict=True)
        ),
        fitted=tuple(map(Fitted, grid, before, now)),
        figures=figures(points, found),
        growth=None if found is None else found.growth,
        tests=tuple(family.measured[point.size].measurement.test.item.nodeid for point in points),
    )


def figures(points: Sequence[SizePoint], found: Compared | None) -> tuple[Figure, ...]:
    """What does not scale, what one more costs, and how steep it is; of both sides where both were judged."""
    base, new = _sides(points, found)
    now = _three(shape_of(points, new))
    before: Sequence[IntervalEstimate | None] = [None] * len(now) if base is None else _three(shape_of(points, base))
    return tuple(
        Figure(kind, unit, old, each, None if old is None else _difference(old, each, unit))
        for (kind, unit), old, each in zip(FIGURES.items(), before, now, strict=True)
    )


def _sides(points: Sequence[SizePoint], found: Compared | None) -> tuple[Means | None, Means]:
    return (None, means([point.new for point in points])) if found is None else judged_means(found)


def _three(found: Shape) -> tuple[IntervalEstimate, ...]:
    """In the order of `FIGURES`."""
    return found.fixed, found.slope, found.exponent


def _difference(base: IntervalEstimate, new: IntervalEstimate, unit: str) -> IntervalEstimate:
    """Of independent figures of two recordings."""
    now, value = between_occasions(new, unit), new.value - base.value
    return IntervalEstimate(
        value,
        value - math.hypot(now.value - now.low, base.high - base.value),
        value + math.hypot(now.high - now.value, base.value - base.low),
    )


def _relative(ratio: Ratio, freedom: int) -> IntervalEstimate:
    """The change of a size, by the evidence that the curve was judged by."""
    half = (student(0.975, freedom) if ratio.common else 1.96) * math.hypot(ratio.error, ratio.common)
    return IntervalEstimate(*(math.expm1(ratio.log + off) for off in (0.0, -half, half)))


def _times(side: Means) -> list[CurveTime]:
    half = student(0.975, side.freedom) * side.errors
    return [_time(*each) for each in zip(*(np.exp(side.logs + off).tolist() for off in (0, -half, half)), strict=True)]


def _fitted(points: Sequence[SizePoint], side: Means, grid: Sequence[float], *, bent: bool = False) -> list[CurveTime]:
    sizes = np.array([point.size for point in points])
    found = smooth(sizes, np.exp(side.logs), side.errors, side.freedom, np.array(grid), bent=bent)
    return [_time(*each) for each in zip(*(column.tolist() for column in found), strict=True)]


def _grid(sizes: Sequence[float]) -> list[float]:
    """The sizes with others between them, evenly by their ratio."""
    between = (float(f"{size:.4g}") for size in np.geomspace(sizes[0], sizes[-1], SAMPLES).tolist())
    return sorted({*sizes, *(size for size in between if sizes[0] < size < sizes[-1])})


def _time(ns: float, low: float, high: float) -> CurveTime:
    return CurveTime(round(ns), round(low), round(high))
