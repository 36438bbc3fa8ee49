"""The smooth curve through times over sizes, with its 95 % band: what a picture shows beside the points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.scaling.points import F64
from pytest_perfdl.stats.quantiles import student

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
