"""The generic performance model: powers of intrinsic factors, scaled by powers of extrinsic ones, and a constant.

Kavarakuntla et al., "A Generic Performance Model for Deep Learning in a Distributed Environment" (arXiv 2305.11665,
2023), as this project reads it; its abstract alone was at hand, so neither the form nor the cost below is verified to
be theirs to the letter:

    product:   t(I, E) = (sum_i a_i I_i^p_i) * prod_j E_j^q_j + C
    additive:  t(I, E) = sum_i a_i I_i^p_i + sum_j b_j E_j^q_j + C

Factors are divided by their geometric means, so a coefficient is the time that its term takes at the middle of the
measured range, and exponents and coefficients vary nearly independently. Coefficients are not negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.units import plural
from pytest_perfdl.scaling.laws import CONSTANT, Constant
from pytest_perfdl.scaling.points import F64, Points

Shape = Literal["product", "additive"]
Penalty = Literal["l1", "l2"]

_LOG_BOUNDS = (math.log(1e-6), math.log(1e3))
"""Bounds of the coefficients' logarithms in the search, in units of the median time."""
_EXPONENTS = (-2.0, 3.0)
_LARGEST = 1e3
_HOPELESS = 1e100
"""No search tells worse costs from this one; the variance of costs, by which it ends, must stay finite."""
_KINK = 1e-6
"""Size of a constant below which its L1 penalty is rounded off, so that the polish has a derivative."""


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


@dataclass(frozen=True, slots=True)
class Generic:
    """How a generic model is fitted.

    Minimizes mean(r^2) + regularization * penalty, with r = (model - t) / t, or (model - t) / median(t) where
    `relative` is off, and the penalty the sum of the constants' absolute values ("l1") or squares ("l2"), coefficients
    in units of the median time. The least regularization settles what the points leave open (the exponent of a
    vanished term) and shows in nothing else. The global optimum is sought by differential evolution (Storn and Price,
    Journal of Global Optimization 11, 1997) over the logarithms of the coefficients, 1e-6 to 1e3 of the median time,
    and over exponents from -2 to 3; a bounded least-squares step from there, with exact derivatives, polishes it.
    """

    shape: Shape = "product"
    relative: bool = True
    penalty: Penalty = "l2"
    regularization: float = 1e-7
    seed: int = 0
    population: int = 10
    """Members per constant."""
    generations: int = 250

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"generic {self.shape}"

    def fit(self, points: Points) -> PowerSum:
        """Search for the global optimum; the same points and seed give the same curve.

        Only factors that vary take part. With extrinsic factors alone, the first is the term that others scale.

        Raises
        ------
        ScalingError
            No factor varies, a factor is zero somewhere, or there are fewer configurations than constants.
        """
        from scipy.optimize import Bounds, differential_evolution

        terms, scales = self.parts(points)
        if not terms:
            raise ScalingError("no factor varies: measure at different sizes")
        for name in terms + scales:
            if points.columns[name].min() <= 0:
                raise ScalingError(f"factor {name} is 0 in a point, but a power law needs positive factors")
        size = self.size(points)
        if (count := len(points.configurations())) < size:
            known = plural(count, "configuration")
            raise ScalingError(f"{known} cannot determine the {size} constants of {self.name}")
        reference = {name: float(np.exp(np.log(points.columns[name]).mean())) for name in terms + scales}
        unit = float(np.median(points.ns))
        count, exponents = len(terms), len(terms) + len(scales)
        logs = _logs(points.columns, terms + scales, reference)
        target = points.ns / unit
        logarithmic = np.r_[np.arange(count), size - 1]

        def cost(search: Any, /) -> Any:
            theta = np.array(search.reshape(size, -1))
            theta[logarithmic] = np.exp(theta[logarithmic])
            with np.errstate(over="ignore"):
                residuals = (_times(theta, logs, count) - target[:, None]) / self._weights(target)[:, None]
                misfit = np.minimum((residuals**2).mean(axis=0), _HOPELESS)
            return misfit + self.regularization * (self._roots(theta) ** 2).sum(axis=0)

        least, most = np.array([_LOG_BOUNDS] * count + [_EXPONENTS] * exponents + [_LOG_BOUNDS]).T
        found = differential_evolution(
            cost,
            Bounds(least, most),
            seed=np.random.default_rng(self.seed),
            popsize=self.population,
            maxiter=self.generations,
            tol=1e-3,
            polish=False,
            updating="deferred",
            vectorized=True,
        )
        start = np.array(found.x)
        start[logarithmic] = np.exp(start[logarithmic])
        return self._polished(PowerSum(terms, scales, reference, unit, tuple(start.tolist())), points)

    def refit(self, curve: PowerSum, points: Points) -> PowerSum:
        """The optimum for fewer points that lies next to `curve`'s.

        A search for each configuration left out would cost seconds; that none is made may flatter the held-out error
        where several optima compete.
        """
        return self._polished(curve, points)

    def parts(self, points: Points) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The factors that are terms, and those that scale them."""
        intrinsic = tuple(name for name in points.intrinsic if name in points.varying)
        extrinsic = tuple(name for name in points.extrinsic if name in points.varying)
        if self.shape == "additive":
            return intrinsic + extrinsic, ()
        return (intrinsic, extrinsic) if intrinsic else (extrinsic[:1], extrinsic[1:])

    def size(self, points: Points) -> int:
        """The number of constants."""
        terms, scales = self.parts(points)
        return 2 * len(terms) + len(scales) + 1

    def _polished(self, curve: PowerSum, points: Points) -> PowerSum:
        from scipy.optimize import least_squares

        count, size = len(curve.terms), len(curve.theta)
        logs = _logs(points.columns, curve.terms + curve.scales, curve.reference)
        target = points.ns / curve.unit_ns
        weights = self._weights(target) * np.sqrt(len(target))
        strength = self.regularization**0.5

        def residuals(theta: F64) -> F64:
            misfit = (_times(theta[:, None], logs, count)[:, 0] - target) / weights
            return np.concatenate([misfit, strength * self._roots(theta)])

        def slopes(theta: F64) -> F64:
            return np.vstack(
                [_slopes(theta, logs, count) / weights[:, None], np.diag(strength * self._root_slopes(theta))]
            )

        lower = np.r_[np.zeros(count), np.full(size - count - 1, _EXPONENTS[0]), 0.0]
        upper = np.r_[np.full(count, _LARGEST), np.full(size - count - 1, _EXPONENTS[1]), _LARGEST]
        start = np.clip(np.array(curve.theta), lower, upper)
        options: dict[str, Any] = {"xtol": 1e-9, "ftol": 1e-12, "gtol": 1e-12, "max_nfev": 100}
        found = least_squares(residuals, start, jac=slopes, bounds=(lower, upper), x_scale="jac", **options)
        return PowerSum(curve.terms, curve.scales, curve.reference, curve.unit_ns, tuple(found.x.tolist()))

    def _weights(self, target: F64) -> F64:
        """What residuals are divided by, times in units of the median."""
        return target if self.relative else np.ones(len(target))

    def _roots(self, theta: F64) -> F64:
        """Residuals of which the squares are what each constant adds, before the regularization's weight."""
        return (theta**2 + _KINK**2) ** 0.25 if self.penalty == "l1" else theta

    def _root_slopes(self, theta: F64) -> F64:
        """Derivatives of the roots."""
        return theta / 2 / (theta**2 + _KINK**2) ** 0.75 if self.penalty == "l1" else np.ones(len(theta))


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
