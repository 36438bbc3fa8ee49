"""The generic performance model: powers of intrinsic factors, scaled by powers of extrinsic ones, and a constant.

Kavarakuntla et al., "A Generic Performance Model for Deep Learning in a Distributed Environment" (arXiv 2305.11665,
2023), as this project reads it; its abstract alone was at hand, so neither the form nor the cost below is verified to
be theirs to the letter:

    product:   t(I, E) = (sum_i a_i I_i^p_i) * prod_j E_j^q_j + C
    additive:  t(I, E) = sum_i a_i I_i^p_i + sum_j b_j E_j^q_j + C

Factors are divided by their geometric means, so a coefficient is the time that its term takes at the middle of the
measured range, and exponents and coefficients vary nearly independently. Coefficients are not negative.

A fit minimizes mean(r^2) + regularization * penalty, with r = (model - t) / t, and as penalty the sum of the squares of
the constants, coefficients in units of the median time. The least regularization settles what the points leave open
(the exponent of a vanished term) and shows in nothing else. The global optimum is sought by differential evolution
(Storn and Price, Journal of Global Optimization 11, 1997) over the logarithms of the coefficients, 1e-6 to 1e3 of the
median time, and over exponents from -2 to 3; a bounded least-squares step from there, with exact derivatives, polishes
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.units import plural
from pytest_perfdl.scaling.laws import CONSTANT, Constant, Form
from pytest_perfdl.scaling.points import F64, Points

Shape = Literal["product", "additive"]

REGULARIZATION = 1e-7
SEED = 0
_POPULATION, _GENERATIONS = 10, 250
"""Members per constant, and how often they change at most."""
_LOG_BOUNDS = (math.log(1e-6), math.log(1e3))
"""Bounds of the coefficients' logarithms in the search, in units of the median time."""
_EXPONENTS = (-2.0, 3.0)
_LARGEST = 1e3
_HOPELESS = 1e100
"""No search tells worse costs from this one; the variance of costs, by which it ends, must stay finite."""


@dataclass(frozen=True, slots=True)
class PowerSum:
    """A fitted generic model."""

    terms: tuple[str, ...]
    """The factors with a coefficient and an exponent each."""
    scales: tuple[str, ...]
    """The factors with an exponent only, by which all terms are multiplied."""
    reference: Mapping[str, float]
    """Geometric mean of each factor: where its power is 1."""
    unit_ns: float
    """Median time, in which `theta` holds its coefficients."""
    theta: tuple[float, ...]
    """Coefficients of the terms, their exponents, exponents of the scales, the constant."""

    def constants(self) -> tuple[Constant, ...]:
        """Coefficients in nanoseconds at the reference, then exponents, then what does not scale."""
        count = len(self.terms)
        coefficients, exponents = self.theta[:count], self.theta[count:-1]
        return (
            *(
                Constant(f"time of {name}", value * self.unit_ns, "ns")
                for name, value in zip(self.terms, coefficients, strict=True)
            ),
            *(
                Constant(f"exponent of {name}", value, "1")
                for name, value in zip(self.terms + self.scales, exponents, strict=True)
            ),
            Constant(CONSTANT, self.theta[-1] * self.unit_ns, "ns"),
        )

    def times(self, columns: Mapping[str, F64]) -> F64:
        """Times in nanoseconds, one per row."""
        logs = _logs(columns, self.terms + self.scales, self.reference)
        return _times(np.array(self.theta)[:, None], logs, len(self.terms))[:, 0] * self.unit_ns


def parts(shape: Shape, points: Points) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The factors that are terms, and those that scale them; with extrinsic factors alone the first is the term."""
    intrinsic = tuple(name for name in points.intrinsic if name in points.varying)
    extrinsic = tuple(name for name in points.extrinsic if name in points.varying)
    if shape == "additive":
        return intrinsic + extrinsic, ()
    return (intrinsic, extrinsic) if intrinsic else (extrinsic[:1], extrinsic[1:])


def size(shape: Shape, points: Points) -> int:
    """The number of constants."""
    terms, scales = parts(shape, points)
    return 2 * len(terms) + len(scales) + 1


def _search(shape: Shape, points: Points) -> PowerSum:
    """The global optimum; the same points give the same curve. Only factors that vary take part.

    Raises
    ------
    ScalingError
        No factor varies, a factor is zero somewhere, or there are fewer configurations than constants.
    """
    from scipy.optimize import Bounds, differential_evolution

    terms, scales = parts(shape, points)
    if not terms:
        raise ScalingError("no factor varies: measure at different sizes")
    for name in terms + scales:
        if points.columns[name].min() <= 0:
            raise ScalingError(f"factor {name} is 0 in a point, but a power law needs positive factors")
    constants = size(shape, points)
    if (count := len(points.configurations())) < constants:
        known = plural(count, "configuration")
        raise ScalingError(f"{known} cannot determine the {constants} constants of {FORMS[shape].name}")
    reference = {name: float(np.exp(np.log(points.columns[name]).mean())) for name in terms + scales}
    unit = float(np.median(points.ns))
    count, exponents = len(terms), len(terms) + len(scales)
    logs = _logs(points.columns, terms + scales, reference)
    target = points.ns / unit
    logarithmic = np.r_[np.arange(count), constants - 1]

    def cost(search: Any, /) -> Any:
        theta = np.array(search.reshape(constants, -1))
        theta[logarithmic] = np.exp(theta[logarithmic])
        with np.errstate(over="ignore"):
            residuals = (_times(theta, logs, count) - target[:, None]) / target[:, None]
            misfit = np.minimum((residuals**2).mean(axis=0), _HOPELESS)
        return misfit + REGULARIZATION * (theta**2).sum(axis=0)

    least, most = np.array([_LOG_BOUNDS] * count + [_EXPONENTS] * exponents + [_LOG_BOUNDS]).T
    found = differential_evolution(
        cost,
        Bounds(least, most),
        seed=np.random.default_rng(SEED),
        popsize=_POPULATION,
        maxiter=_GENERATIONS,
        tol=1e-3,
        polish=False,
        updating="deferred",
        vectorized=True,
    )
    start = np.array(found.x)
    start[logarithmic] = np.exp(start[logarithmic])
    return _polish(PowerSum(terms, scales, reference, unit, tuple(start.tolist())), points)


def _polish(curve: PowerSum, points: Points) -> PowerSum:
    """The optimum that lies next to a curve.

    For fewer points than the curve was fitted to, too: a search for each configuration left out would cost seconds;
    that none is made may flatter the held-out error where several optima compete.
    """
    from scipy.optimize import least_squares

    count, constants = len(curve.terms), len(curve.theta)
    logs = _logs(points.columns, curve.terms + curve.scales, curve.reference)
    target = points.ns / curve.unit_ns
    weights = target * np.sqrt(len(target))
    strength = REGULARIZATION**0.5

    def residuals(theta: F64) -> F64:
        misfit = (_times(theta[:, None], logs, count)[:, 0] - target) / weights
        return np.concatenate([misfit, strength * theta])

    def slopes(theta: F64) -> F64:
        return np.vstack([_slopes(theta, logs, count) / weights[:, None], strength * np.eye(constants)])

    exponents = constants - count - 1
    lower = np.r_[np.zeros(count), np.full(exponents, _EXPONENTS[0]), 0.0]
    upper = np.r_[np.full(count, _LARGEST), np.full(exponents, _EXPONENTS[1]), _LARGEST]
    start = np.clip(np.array(curve.theta), lower, upper)
    options: dict[str, Any] = {"xtol": 1e-9, "ftol": 1e-12, "gtol": 1e-12, "max_nfev": 100}
    found = least_squares(residuals, start, jac=slopes, bounds=(lower, upper), x_scale="jac", **options)
    return replace(curve, theta=tuple(found.x.tolist()))


PRODUCT = Form("generic product", PowerSum, fit=partial(_search, "product"), refit=_polish)
ADDITIVE = Form("generic additive", PowerSum, fit=partial(_search, "additive"), refit=_polish)
FORMS: Mapping[Shape, Form[PowerSum]] = {"product": PRODUCT, "additive": ADDITIVE}


def _logs(columns: Mapping[str, F64], names: tuple[str, ...], reference: Mapping[str, float]) -> F64:
    """Logarithms of factors over their references: a row per factor, a column per point; of 0, -inf."""
    with np.errstate(divide="ignore"):
        return np.log(np.stack([columns[name] / reference[name] for name in names]))


def _times(theta: F64, logs: F64, terms: int) -> F64:
    """Times of several models in units of the median time: a row per point, a column per column of `theta`."""
    factors = len(logs)
    total = np.zeros((logs.shape[1], theta.shape[1]))
    for at in range(terms):
        total += theta[at] * np.exp(logs[at][:, None] * theta[terms + at])
    if factors > terms:
        total *= np.exp(logs[terms:].T @ theta[2 * terms : terms + factors])
    return np.asarray(total + theta[-1])


def _slopes(theta: F64, logs: F64, terms: int) -> F64:
    """Derivatives of one model's times: a row per point, a column per constant."""
    factors = len(logs)
    scale = np.exp(theta[2 * terms : terms + factors] @ logs[terms:])
    powers = np.exp(logs[:terms] * theta[terms : 2 * terms, None]) * scale
    parts = powers * theta[:terms, None]
    scaled = logs[terms:] * parts.sum(axis=0)
    rows: F64 = np.vstack([powers, parts * logs[:terms], scaled, np.ones((1, logs.shape[1]))]).T
    return rows
