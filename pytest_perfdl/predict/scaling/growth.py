"""How one curve of times over sizes differs from another: what was added at every size, and of what kind it is.

    growth = grown(sizes, base_ns, log_ratios, errors, freedom)
    growth.kind, growth.effect, growth.power

The difference is fitted by one term at a time, with the size x:

- *overhead*: the same at every size, x^0;
- *per unit*: x^1, or a power that the base has already (the square of a length, in attention);
- *complexity*: a power that the base does not have, x^2 or x^3: an accidental O(n^2);
- *every size alike*: a share of the base's own time, as of a slower machine or a slower kernel of all sizes.

What fits best by generalised least squares gives the name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_perfdl.predict.scaling.points import F64, ScalingError

Kind = Literal["overhead", "per unit", "complexity", "every size alike"]

LEAST_SIZES = 3
"""Two sizes fit any two terms."""
_POWERS = (0, 1, 2, 3)
_GRID = np.arange(0.0, 4.0 + 1e-9, 0.02)
"""Powers among which that of the difference is sought."""
_DISTINCT = 3.84
"""95 % quantile of chi-squared with one degree of freedom: a fit that is worse by less is as good."""
_CURVED = 3.0
"""Standard errors from zero, from which a base's square term counts,"""
_CURVED_SHARE = 0.1
"""and its least share of the time at the largest size."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What a curve is like."""

    fixed: Estimate
    """Nanoseconds at size 0, of the line through the times."""
    slope: Estimate
    """Nanoseconds per unit of size, of the same line."""
    exponent: Estimate
    """d log t / d log x over the larger half of the sizes, three at least: 1 where time doubles with the size."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What was added to a curve."""

    kind: Kind
    size: float
    """Where it weighs most, as a share of the base."""
    effect: Estimate
    """That share."""
    amount: Estimate
    """Nanoseconds per size to the term's power; the share of the base, where every size is alike."""
    term: int | None
    """Power of the term that gives the name; None where every size is alike."""
    power: Estimate
    """The power that fits best."""


def shape(sizes: F64, ns: F64, errors: F64, freedom: int) -> Shape:
    """A line through times, and how steeply they rise.

    Weighted least squares with relative standard errors; intervals by Student's t, widened where the line does not
    fit (by the square root of chi-squared over its degrees of freedom).

    Parameters
    ----------
    sizes, ns
        Positive, three different sizes or more.
    errors
        Relative standard errors of the times.
    freedom
        Degrees of freedom of those.

    Raises
    ------
    ScalingError
        There are fewer sizes.
    """
    _check(sizes)
    scale = float(sizes.max())
    line = _fitted(np.column_stack([np.ones(len(sizes)), sizes / scale]), ns, np.diag(1 / (ns * errors)), freedom)
    larger = np.argsort(sizes)[-max(LEAST_SIZES, (len(sizes) + 1) // 2) :]
    logs = np.column_stack([np.ones(len(larger)), np.log(sizes[larger])])
    steep = _fitted(logs, np.log(ns[larger]), np.diag(1 / errors[larger]), freedom)
    slope = line[1]
    return Shape(line[0], Estimate(slope.value / scale, slope.low / scale, slope.high / scale), steep[1])


def grown(sizes: F64, base_ns: F64, log_ratios: F64, errors: F64, freedom: int, common: F64 | None = None) -> Growth:
    """What was added to a curve, or taken from it.

    Parameters
    ----------
    sizes, base_ns
        The base's curve: positive, three different sizes or more.
    log_ratios
        Logarithms of the new times over the base's.
    errors
        Standard errors of those.
    freedom
        Degrees of freedom of the errors.
    common
        Standard errors that the log ratios of several sizes have in common, as of a machine that changed its speed
        between the two curves; 0 for a size without. None: none has any.

    Raises
    ------
    ScalingError
        There are fewer sizes.
    """
    _check(sizes)
    added = base_ns * np.expm1(log_ratios)
    covariance = np.diag(errors**2)
    if common is not None:
        covariance = covariance + np.outer(common, common)
    scales = base_ns * np.exp(log_ratios)
    white = np.linalg.inv(np.linalg.cholesky(covariance * np.outer(scales, scales)))
    unit = sizes / sizes.max()
    misfits = {power: _misfit(unit**power, added, white) for power in _POWERS}
    alike = _misfit(base_ns, added, white)
    term = min(misfits, key=lambda power: misfits[power])
    worse = _DISTINCT * max(1.0, min(alike, misfits[term]) / (len(sizes) - 1))
    named: int | None = None if alike < misfits[term] - worse else term
    column = base_ns if named is None else unit**named
    (found,) = _fitted(column[:, None], added, white, freedom)
    shares = column / base_ns
    most = int(np.argmax(shares))
    share = float(shares[most])
    factor = 1.0 if named is None else float(sizes.max()) ** -named
    return Growth(
        kind=_kind(named, _order(unit, base_ns, errors)),
        size=float(sizes[most]),
        effect=_times(found, share),
        amount=_times(found, factor),
        term=named,
        power=_power(unit, added, white),
    )


def _kind(term: int | None, order: int) -> Kind:
    if term is None:
        return "every size alike"
    if term == 0:
        return "overhead"
    return "complexity" if term > order else "per unit"


def _order(unit: F64, ns: F64, errors: F64) -> int:
    """Power in which the base itself grows: 2 where it bends upwards beyond doubt."""
    columns = np.column_stack([np.ones(len(unit)), unit, unit**2])
    if len(unit) <= columns.shape[1]:
        return 1
    (*_, square) = _fitted(columns, ns, np.diag(1 / (ns * errors)), len(unit) - columns.shape[1])
    error = (square.high - square.low) / 2 / _quantile(len(unit) - columns.shape[1])
    return 2 if square.value > max(_CURVED * error, _CURVED_SHARE * float(ns[np.argmax(unit)])) else 1


def _power(unit: F64, added: F64, white: F64) -> Estimate:
    misfits = np.array([_misfit(unit**power, added, white) for power in _GRID])
    best = int(np.argmin(misfits))
    scale = max(1.0, misfits[best] / max(len(unit) - 2, 1))
    within = _GRID[misfits <= misfits[best] + _DISTINCT * scale]
    return Estimate(float(_GRID[best]), float(within.min()), float(within.max()))


def _misfit(column: F64, values: F64, white: F64) -> float:
    """Chi-squared of the values around the best multiple of a column; `white` makes their errors equal."""
    rows, target = white @ column, white @ values
    return float(((target - rows * (rows @ target) / (rows @ rows)) ** 2).sum())


def _fitted(columns: F64, values: F64, white: F64, freedom: int) -> list[Estimate]:
    """Coefficients of columns by weighted least squares."""
    rows, target = white @ columns, white @ values
    solution, *_ = np.linalg.lstsq(rows, target, rcond=None)
    left = len(values) - columns.shape[1]
    misfit = float(((target - rows @ solution) ** 2).sum())
    scale = max(1.0, misfit / left) if left > 0 else 1.0
    half = _quantile(freedom) * np.sqrt(np.diag(np.linalg.pinv(rows.T @ rows)) * scale)
    return [Estimate(float(v), float(v - h), float(v + h)) for v, h in zip(solution, half, strict=True)]


def _times(found: Estimate, factor: float) -> Estimate:
    return Estimate(found.value * factor, found.low * factor, found.high * factor)


def _check(sizes: F64) -> None:
    count = len(np.unique(sizes))
    if count < LEAST_SIZES or count < len(sizes):
        raise ScalingError(f"{count} different size{'s' * (count != 1)}: a curve needs {LEAST_SIZES} or more")


def _quantile(freedom: int) -> float:
    from pytest_perfdl.predict.scaling.held_out import quantile

    return quantile(max(freedom, 1))
