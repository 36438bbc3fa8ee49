"""A fitted model with what is known of its worth: errors on configurations it has not seen, and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.units import plural
from pytest_perfdl.scaling.model import C, Curve, Form
from pytest_perfdl.scaling.points import F64, Points
from pytest_perfdl.stats.quantiles import student
from pytest_perfdl.system import clocks

LEAST_CONFIGURATIONS = 3
"""With two, leaving one out leaves nothing to fit."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A fitted number with its 95 % interval, in nanoseconds (`unit` "ns") or bare ("1")."""

    name: str
    value: float
    low: float
    high: float
    unit: str


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """One model of one set of points."""

    name: str
    curve: Curve
    """Fitted to all points."""
    replicas: tuple[Curve, ...]
    """Fitted without one configuration each."""
    coefficients: tuple[Coefficient, ...]
    """What the model consists of, less what is zero with and without any configuration."""
    errors: F64
    """Each configuration's predicted mean time over the measured, less 1, predicted without it."""
    freedom: int
    """Degrees of freedom of the intervals: configurations less coefficients, 1 at least."""
    fit_seconds: float
    """How long fitting all points took, without the replicas."""

    @property
    def loo_mape(self) -> float:
        """Mean absolute error of configurations left out, a fraction."""
        return float(np.abs(self.errors).mean())

    def interval(self, columns: Mapping[str, F64]) -> tuple[F64, F64, F64]:
        """Times in nanoseconds and the ends of the 95 % intervals of a configuration's mean time.

        t * (1 -+ q sqrt(s^2 + e^2)), q Student's quantile: s is the jackknife's relative standard error of the curve
        there, e the root mean square of the errors of what was left out, so that a form that is wrong has wide
        intervals as well as one that is uncertain. An end below zero becomes zero.
        """
        ns = self.curve.times(columns)
        replicated = np.stack([replica.times(columns) for replica in self.replicas])
        spread = _jackknife(replicated) ** 2 + (self.errors**2).mean() * ns**2
        half = student(0.975, self.freedom) * np.sqrt(spread)
        return ns, np.maximum(ns - half, 0.0), ns + half


def evaluate(form: Form[C], points: Points) -> Fit:
    """Fit a form to all points, and once without each configuration.

    Replicates of a configuration are left out together: one would betray the other's time. The same fits give the
    coefficients' intervals, by the jackknife: value -+ q se, se^2 = (n - 1) / n * sum (value_i - mean)^2 over the n
    configurations (Tukey 1958; Efron and Stein, "The Jackknife Estimate of Variance", Annals of Statistics 9, 1981),
    q the 97.5 % quantile of Student's t.

    Raises
    ------
    ScalingError
        Fewer than three configurations, or the form cannot be fitted.
    """
    configurations = points.configurations()
    if len(configurations) < LEAST_CONFIGURATIONS:
        count = len(configurations)
        raise ScalingError(f"{plural(count, 'configuration')} measured, but at least {LEAST_CONFIGURATIONS} are needed")
    import_module("scipy.optimize")  # half a second that is no part of fitting
    before = clocks.monotonic()
    curve = form.fit(points)
    seconds = clocks.monotonic() - before
    replicas = tuple(form.refit(curve, points.without(rows)) for rows in configurations)
    errors = []
    for rows, replica in zip(configurations, replicas, strict=True):
        left_out = points.take(rows)
        errors.append(float(replica.times(left_out.columns)[0] / left_out.ns.mean() - 1))
    constants = curve.constants()
    values = np.array([[constant.value for constant in replica.constants()] for replica in replicas])
    used = [at for at, constant in enumerate(constants) if constant.value or values[:, at].any()]
    freedom = max(len(configurations) - sum(constant.value != 0 for constant in constants), 1)
    half = student(0.975, freedom) * _jackknife(values)
    coefficients = tuple(
        Coefficient(
            constants[at].name,
            constants[at].value,
            constants[at].value - float(half[at]),
            constants[at].value + float(half[at]),
            constants[at].unit,
        )
        for at in used
    )
    return Fit(form.name, curve, replicas, coefficients, np.array(errors), freedom, seconds)


def _jackknife(values: F64) -> F64:
    """Standard errors of columns, a row per configuration left out."""
    count = len(values)
    squares = ((values - values.mean(axis=0)) ** 2).sum(axis=0)
    return np.sqrt(np.asarray(squares, dtype=np.float64) * (count - 1) / count)
