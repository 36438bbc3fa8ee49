"""How one curve of times over sizes differs from another: what was added at every size, and of what kind it is.

    growth = grown(sizes, base_ns, log_ratios, errors, freedom)
    growth.kind, growth.effect, growth.power

The difference is fitted by one term, or by a constant beside one, with the size x:

- *overhead*: the same at every size, x^0;
- *per unit*: x^1, or a power that the base has already (the square of a length, in attention);
- *complexity*: a power that the base does not have, x^2 or x^3: an accidental O(n^2);
- *every size alike*: a share of the base's own time, as of a slower machine or a slower kernel of all sizes.

`smooth` is the curve through times that a picture shows beside the points.

What fits best by generalized least squares gives the name; of two terms the one that adds more to the largest size. A
curve whose sizes all became slower by the same share has more of everything that it is made of. It is told in two terms
where the machine cannot be the cause, and not where it can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.units import plural
from pytest_perfdl.scaling.points import F64
from pytest_perfdl.stats.quantiles import student

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
class IntervalEstimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What a curve is like."""

    fixed: IntervalEstimate
    """Nanoseconds at size 0, of the line through the times."""
    slope: IntervalEstimate
    """Nanoseconds per unit of size, of the same line."""
    exponent: IntervalEstimate
    """d log t / d log x over the larger half of the sizes, three at least: 1 where time doubles with the size."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What was added beside the term that gives the name."""

    kind: Kind
    term: int
    """Its power of the size."""
    amount: IntervalEstimate
    """Nanoseconds per size to that power."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What was added to a curve."""

    kind: Kind
    size: float
    """Where it weighs most, as a share of the base."""
    effect: IntervalEstimate
    """That share."""
    amount: IntervalEstimate
    """Nanoseconds per size to the term's power; the share of the base, where every size is alike."""
    term: int | None
    """Power of the term that gives the name; None where every size is alike."""
    power: IntervalEstimate
    """The power that fits best, of one term alone."""
    beside: Beside | None = None
    """Another term, where one does not fit what was added."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its terms."""
        return (self.kind,) if self.beside is None else (self.kind, self.beside.kind)


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
    line = _fit(np.column_stack([np.ones(len(sizes)), sizes / scale]), ns, np.diag(1 / (ns * errors)), freedom)
    larger = np.argsort(sizes)[-max(LEAST_SIZES, (len(sizes) + 1) // 2) :]
    logs = np.column_stack([np.ones(len(larger)), np.log(sizes[larger])])
    steep = _fit(logs, np.log(ns[larger]), np.diag(1 / errors[larger]), freedom)
    slope = line[1]
    return Shape(line[0], IntervalEstimate(slope.value / scale, slope.low / scale, slope.high / scale), steep[1])


def smooth(sizes: F64, ns: F64, errors: F64, freedom: int, at: F64, *, bent: bool = False) -> tuple[F64, F64, F64]:
    """A straight line through times, or a parabola where a line does not fit them, with its 95 % band.

    Weighted least squares with relative standard errors, as of `shape`. The parabola is taken where its chi-squared is
    lower by more than the 95 % quantile for one degree of freedom: the likelihood-ratio test (Wilks, Annals of
    Mathematical Statistics 9, 1938), with larger errors where the parabola does not fit either. The band is that of the
    curve's mean, -+ t sqrt(a' C a) with the covariance C of the coefficients, the powers a of a size and Student's t;
    widened where the curve does not fit, by the square root of chi-squared over its degrees of freedom.

    Parameters
    ----------
    sizes, ns, errors, freedom
        As of `shape`.
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
    white = np.diag(1 / (ns * errors))
    line, parabola = (_solve(np.vander((sizes - middle) / half, count), ns, white, freedom) for count in (2, 3))
    chosen = parabola if bent or line.misfit - parabola.misfit > _DISTINCT * parabola.scale else line
    found = [chosen.combined(powers) for powers in np.vander((at - middle) / half, len(chosen.values))]
    value, low, high = np.array([(each.value, max(each.low, 0.0), each.high) for each in found]).T
    return value, low, high


def fit_growth(
    sizes: F64, base_ns: F64, log_ratios: F64, errors: F64, freedom: int, common: F64 | None = None
) -> Growth:
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
    # In pairs both sides meet the same machine.
    machine = common is not None and bool(np.all(common > 0))
    terms = _terms(unit, base_ns, added, white, machine=machine)
    columns = np.column_stack([base_ns if term is None else unit**term for term in terms])
    solution = _solve(columns, added, white, freedom)
    shares = columns / base_ns[:, None]
    most = int(np.argmax(np.abs(shares @ solution.values)))
    # A power's coefficient is what it adds to the largest size.
    first, *others = np.argsort(-np.abs(solution.values), kind="stable").tolist()
    named = terms[first]
    amounts = [
        _times(solution.estimate(number), 1.0 if term is None else float(sizes.max()) ** -term)
        for number, term in enumerate(terms)
    ]
    # Errors of ratios are none of the base's times: those count alike.
    power = _order(unit, base_ns, np.full(len(sizes), np.median(errors)))
    beside = [Beside(_kind(term, power), term, amounts[each]) for each in others if (term := terms[each]) is not None]
    return Growth(
        kind=_kind(named, power),
        size=float(sizes[most]),
        effect=solution.combined(shares[most]),
        amount=amounts[first],
        term=named,
        power=_power(unit, added, white),
        beside=beside[0] if beside else None,
    )


def _terms(unit: F64, base_ns: F64, added: F64, white: F64, *, machine: bool) -> tuple[int | None, ...]:
    """The powers that tell best what was added, few rather than many; None for a share of the base.

    A second term, and a share, must be better by more than chance would have it (`_DISTINCT`). `machine` says that a
    change of the machine's speed is possible: then a share need not be better than two terms.
    """
    single = {power: _misfit((unit**power)[:, None], added, white) for power in _POWERS}
    one = min(single, key=lambda power: single[power])
    double = {power: _misfit(np.column_stack([unit**0, unit**power]), added, white) for power in _POWERS[1:]}
    least = min(double.values())
    better = _better(least, len(unit) - 2)
    # Of squares and cubes only where lower powers are distinctly worse: they are the stronger claim.
    two = next(power for power in double if double[power] <= least + better)
    alike = _misfit(base_ns[:, None], added, white)
    pair = double[two]
    margin = _better(min(alike, single[one]), len(unit) - 1)
    if alike < single[one] - margin and (alike <= pair + better if machine else alike < pair - margin):
        return (None,)
    return (0, two) if pair < single[one] - better else (one,)


def _better(misfit: float, freedom: int) -> float:
    """By how much chi-squared must be better than another's, where the better one is this."""
    return _DISTINCT * max(1.0, misfit / freedom)


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
    (*_, square) = _fit(columns, ns, np.diag(1 / (ns * errors)), len(unit) - columns.shape[1])
    error = (square.high - square.low) / 2 / student(0.975, max(len(unit) - columns.shape[1], 1))
    return 2 if square.value > max(_CURVED * error, _CURVED_SHARE * float(ns[np.argmax(unit)])) else 1


def _power(unit: F64, added: F64, white: F64) -> IntervalEstimate:
    misfits = np.array([_misfit((unit**power)[:, None], added, white) for power in _GRID])
    best = int(np.argmin(misfits))
    scale = max(1.0, misfits[best] / max(len(unit) - 2, 1))
    within = _GRID[misfits <= misfits[best] + _DISTINCT * scale]
    return IntervalEstimate(float(_GRID[best]), float(within.min()), float(within.max()))


def _misfit(columns: F64, values: F64, white: F64) -> float:
    """Chi-squared of the values around the best sum of columns; `white` makes their errors equal.

    Infinite where columns of different signs are needed: what is added in one place and taken in another fits anything.
    """
    rows, target = white @ columns, white @ values
    solution, *_ = np.linalg.lstsq(rows, target, rcond=None)
    if np.unique(np.sign(solution)).size > 1:
        return math.inf
    return float(((target - rows @ solution) ** 2).sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Solution:
    """Coefficients by weighted least squares."""

    values: F64
    covariance: F64
    """Widened by `scale`."""
    quantile: float
    misfit: float
    """Chi-squared."""
    scale: float
    """Chi-squared over its degrees of freedom, 1 at least."""

    def estimate(self, number: int) -> IntervalEstimate:
        """One of them."""
        return self.combined(np.eye(len(self.values))[number])

    def combined(self, weights: F64) -> IntervalEstimate:
        """Their weighted sum."""
        value = float(weights @ self.values)
        half = self.quantile * math.sqrt(float(weights @ self.covariance @ weights))
        return IntervalEstimate(value, value - half, value + half)


def _solve(columns: F64, values: F64, white: F64, freedom: int) -> _Solution:
    rows, target = white @ columns, white @ values
    solution = np.asarray(np.linalg.lstsq(rows, target, rcond=None)[0], dtype=np.float64)
    left = len(values) - columns.shape[1]
    misfit = float(((target - rows @ solution) ** 2).sum())
    scale = max(1.0, misfit / left) if left > 0 else 1.0
    covariance = np.linalg.pinv(rows.T @ rows) * scale
    return _Solution(solution, covariance, student(0.975, max(freedom, 1)), misfit, scale)


def _fit(columns: F64, values: F64, white: F64, freedom: int) -> list[IntervalEstimate]:
    """Coefficients of columns by weighted least squares."""
    solution = _solve(columns, values, white, freedom)
    return [solution.estimate(number) for number in range(columns.shape[1])]


def _times(found: IntervalEstimate, factor: float) -> IntervalEstimate:
    return IntervalEstimate(found.value * factor, found.low * factor, found.high * factor)


def _check(sizes: F64) -> None:
    count = len(np.unique(sizes))
    if count < LEAST_SIZES or count < len(sizes):
        raise ScalingError(f"{plural(count, 'different size')}: a curve needs {LEAST_SIZES} or more")
