"""Which model of time is chosen, how its errors on what it has not seen decide that, and how it is put into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.scaling import generic
from pytest_perfdl.scaling.laws import AFFINE, CONSTANT, PIECEWISE, C, Curve, Form, find_cliff
from pytest_perfdl.scaling.physical import PHYSICAL
from pytest_perfdl.scaling.points import F64, Points, Rows
from pytest_perfdl.stats.quantiles import student
from pytest_perfdl.system import clocks

# A fitted model with what is known of its worth: errors on configurations it has not seen, and intervals.


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
    configurations = _configurations(points)
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
        Coefficient(each.name, each.value, each.value - off, each.value + off, each.unit)
        for each, off in ((constants[at], float(half[at])) for at in used)
    )
    return Fit(form.name, curve, replicas, coefficients, np.array(errors), freedom, seconds)


def _configurations(points: Points) -> list[Rows]:
    """Rows of each configuration, of which there must be three."""
    found = points.configurations()
    if len(found) < LEAST_CONFIGURATIONS:
        known = plural(len(found), "configuration")
        raise ScalingError(f"{known} measured, but at least {LEAST_CONFIGURATIONS} are needed")
    return found


def _jackknife(values: F64) -> F64:
    """Standard errors of columns, a row per configuration left out."""
    count = len(values)
    squares = ((values - values.mean(axis=0)) ** 2).sum(axis=0)
    return np.sqrt(np.asarray(squares, dtype=np.float64) * (count - 1) / count)


# What a fitted model says of each factor, in words.


_NEGLIGIBLE = 0.001
"""Share of the least time below which a fixed part is not worth a sentence."""


def doublings(fit: Fit, points: Points) -> dict[str, float]:
    """For each factor that varies, the time with it doubled over the time without.

    Doubled about the middle of its range, from m / sqrt(2) to m sqrt(2), m the square root of its least positive
    value times its largest, others at their middle: the question is asked where the model was measured.
    """
    middle = {name: _middle(points, name) for name in points.factors}
    found = {}
    for name in points.varying:
        columns = {other: np.array([value, value]) for other, value in middle.items()}
        columns[name] = middle[name] * np.array([0.5**0.5, 2**0.5])
        less, more = fit.curve.times(columns).tolist()
        found[name] = more / less if less > 0 else float("nan")
    return found


def importance(fit: Fit, points: Points) -> tuple[str, ...]:
    """One sentence per factor, the most important first, and one for the time that does not scale.

    That last one only where the constant's interval is above zero. Like so: "doubling batch: 1.93x the time",
    "doubling workers: 0.55x the time", "12.00 ms do not depend on size".
    """
    ratios = {name: ratio for name, ratio in doublings(fit, points).items() if ratio > 0}
    ordered = sorted(ratios, key=lambda name: (-abs(np.log(ratios[name])), name))
    said = [f"doubling {name}: {ratios[name]:.2f}x the time" for name in ordered]
    fixed = next((each for each in fit.coefficients if each.name == CONSTANT), None)
    if fixed is not None and fixed.low > 0 and fixed.value >= _NEGLIGIBLE * float(points.ns.min()):
        said.append(f"{format_quantity(fixed.value, 'ns')} do not depend on size")
    return tuple(said)


def _middle(points: Points, name: str) -> float:
    column = points.columns[name]
    positive = column[column > 0]
    return float(np.sqrt(positive.min() * positive.max())) if len(positive) else 0.0


# Which model, and what it predicts: every model's error on what it has not seen is reported, the least decides.


MAX_STRETCH = 2.0
"""How far beyond the measured range a factor may lie, as a ratio, unless extrapolation is asked for."""
COLLINEAR = 1e6
"""Condition number of the scaled logarithms of factors from which no points can tell them apart."""
WIDE = 1e6
"""Ratio of the largest time to the smallest from which points hardly describe one thing."""
POOR = 0.5
"""Held-out error from which no prediction is worth much."""
STRAIGHT = 0.01
"""Held-out error of a line up to which three configurations lie on it."""
_EQUAL = 1e-4
"""Held-out errors that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class TimePrediction:
    """A time in nanoseconds with the 95 % interval of a configuration's mean."""

    ns: float
    low: float
    high: float
    stretch: float
    """How far the sizes lie beyond the measured ranges, as a ratio; 1 within."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Every model that could be fitted, and the one to use."""

    points: Points
    fits: tuple[Fit, ...]
    """Least held-out error first."""
    chosen: Fit
    explanation: tuple[str, ...]
    """One sentence each: what was chosen and why, the importance of each factor, the replicates' spread."""
    warnings: tuple[str, ...]

    def predict(self, at: Mapping[str, float], *, extrapolate: bool = False) -> TimePrediction:
        """The chosen model's time for one configuration; see `predict`."""
        return predict(self.chosen, self.points, at, extrapolate=extrapolate)


def candidates(points: Points) -> tuple[Form[Any], ...]:
    """The forms that the points could determine and still check.

    Affine along one axis, piecewise where a cliff shows there, physical always, generic where one configuration can
    be left out and every factor is positive; its two shapes are one where only one factor varies or none is
    extrinsic. Of three configurations along one axis generic too, which its regularization determines.
    """
    varying, count = points.varying, len(points.configurations())
    forms: list[Form[Any]] = []
    if len(varying) == 1:
        forms.append(AFFINE)
        if find_cliff(points) is not None:
            forms.append(PIECEWISE)
    forms.append(PHYSICAL)
    if all(points.columns[name].min() > 0 for name in varying):
        one = generic.parts("product", points) == generic.parts("additive", points)
        shapes = list(generic.FORMS)[: 1 if one else 2]
        found = [each for each in shapes if count > generic.size(each, points) or _three_along_one(points)]
        forms += [generic.FORMS[each] for each in found]
    return tuple(forms)


def choose(points: Points, forms: tuple[Form[Any], ...] | None = None) -> Choice:
    """Fit every form and choose by the error on configurations left out.

    The form with the least mean absolute error wins. Along one axis, where a line is a part of every form, one of fewer
    coefficients wins that is as good: its errors exceed the least by no more than the standard error of the paired
    difference (the one-standard-error rule of Breiman et al., "Classification and Regression Trees", 1984, with pairs).
    Forms of several factors are no parts of each other, and their coefficients no measure of what is simple.

    Three configurations along one axis cannot tell forms apart: through two of them any form passes. If they do not lie
    on a line (`STRAIGHT`) it is generic there, a power with a constant, which predicts the next size best: of 62 such
    triples of `benchmarks/scaling` 4.8 % off in the median, physical 5.8 %, affine 6.2 %, what the rule above
    chooses 7.7 %. Without `forms` the `candidates` are fitted.

    Raises
    ------
    ScalingError
        Too few configurations, no factor varies, or no form can be fitted.
    """
    _configurations(points)
    fits, refused = [], []
    for form in candidates(points) if forms is None else forms:
        try:
            fits.append(evaluate(form, points))
        except ScalingError as error:
            refused.append(f"{form.name}: {error}")
    if not fits:
        raise ScalingError(f"no model can be fitted ({'; '.join(refused)})")
    fits.sort(key=lambda fit: (round(fit.loo_mape / _EQUAL), len(fit.coefficients)))
    # Of equals the first: a line is said more simply as a line than as a sum of features.
    one_axis = len(points.varying) == 1
    good = [fit for fit in fits if _is_as_good(fit, fits[0])] if one_axis else fits[:1]
    chosen = min(good, key=lambda fit: len(fit.coefficients))
    if _three_along_one(points):
        by_name = {fit.name: fit for fit in fits}
        line, power = by_name.get(AFFINE.name), by_name.get(generic.PRODUCT.name)
        chosen = line if line and line.loo_mape <= STRAIGHT else power or chosen
    spread = points.replicate_spread()
    repeated = "no configuration was measured twice"
    if spread is not None:
        repeated = f"repeated measurements differ by {_percent(spread)}"
    said = (_verdict(chosen, fits), *importance(chosen, points), repeated)
    return Choice(points, tuple(fits), chosen, said, (*_warnings(points, chosen), *refused))


def predict(fit: Fit, points: Points, at: Mapping[str, float], *, extrapolate: bool = False) -> TimePrediction:
    """A model's time for one configuration, with its interval; `points` are what it was fitted to.

    Beyond the measured range the interval is widened by the ratio of the farthest factor to the end of its range:
    held-out errors speak of sizes between others, and nothing was measured that says how the error grows outside. A
    rule of caution, no estimate.

    `at` has a value for each factor that varies; `extrapolate` answers beyond twice the measured range as well.

    Raises
    ------
    ScalingError
        A factor is missing, unknown or not measurable, differs from the only value measured, lies beyond twice
        the measured range without `extrapolate`, or is 0 where only positive values were measured.
    """
    unknown = sorted(set(at) - set(points.factors))
    if unknown:
        raise ScalingError(f"there is no factor {unknown[0]!r}; known factors: {', '.join(points.factors)}")
    values, stretches = {}, {}
    for name in points.factors:
        column = points.columns[name]
        if name not in points.varying:
            only = float(column[0])
            if at.get(name, only) != only:
                raise ScalingError(
                    f"{name} was {only:g} in every measured point, so the effect of other values is unknown"
                )
            values[name] = only
            continue
        if name not in at:
            raise ScalingError(f"the value of factor {name} is missing")
        values[name] = float(at[name])
        stretches[name] = _stretch(values[name], float(column.min()), float(column.max()), name)
    farthest = max(stretches, key=lambda name: stretches[name])
    stretch = stretches[farthest]
    column = points.columns[farthest]
    where = f"{farthest} {values[farthest]:g} is outside the measured range {column.min():g} to {column.max():g}"
    if stretch > MAX_STRETCH and not extrapolate:
        raise ScalingError(f"{where} by more than {MAX_STRETCH:g}x: add --extrapolate to predict anyway")
    if not np.isfinite(stretch):
        raise ScalingError(f"{where}: a prediction at 0 needs a measurement at 0")
    columns = {name: np.array([value]) for name, value in values.items()}
    with np.errstate(over="ignore", invalid="ignore"):
        ns, low, high = (float(value[0]) for value in fit.interval(columns))
    if not np.isfinite([ns, low, high]).all():
        raise ScalingError(f"{fit.name} predicts no finite time for these values of the factors")
    # Through two values any power goes, and the interval is of errors between them.
    bent = " from only two values, so a curved relation cannot be detected" if len(np.unique(column)) == 2 else ""
    warnings = (f"{where}: extrapolated{bent}",) if stretch > 1 else ()
    return TimePrediction(ns, max(ns - (ns - low) * stretch, 0.0), ns + (high - ns) * stretch, stretch, warnings)


def _three_along_one(points: Points) -> bool:
    return len(points.varying) == 1 and len(points.configurations()) == LEAST_CONFIGURATIONS


def _stretch(value: float, least: float, most: float, name: str) -> float:
    if not (np.isfinite(value) and value >= 0):
        raise ScalingError(f"factor {name} is {value:g}; it must be finite and not negative")
    if value > most:
        return value / most
    if value < least:
        return least / value if value else float("inf")
    return 1.0


def _is_as_good(fit: Fit, best: Fit) -> bool:
    excess = np.abs(fit.errors) - np.abs(best.errors)
    error = float(excess.std(ddof=1)) / len(excess) ** 0.5
    mean = float(excess.mean())
    return mean <= _EQUAL or (mean <= error and len(fit.coefficients) < len(best.coefficients))


def _verdict(chosen: Fit, fits: list[Fit]) -> str:
    others = ", ".join(f"{fit.name} {_percent(fit.loo_mape)}" for fit in fits if fit is not chosen)
    text = f"{chosen.name}: leave-one-out error {_percent(chosen.loo_mape)}"
    return f"{text} ({others})" if others else text


def _warnings(points: Points, chosen: Fit) -> list[str]:
    said = [
        f"{name} is {points.columns[name][0]:g} in every measured point, so its effect is unknown"
        for name in points.factors
        if name not in points.varying
    ]
    names = [name for name in points.varying if points.columns[name].min() > 0]
    if len(names) > 1:
        logs = np.stack([np.log(points.columns[name]) for name in names], axis=1)
        logs = (logs - logs.mean(axis=0)) / logs.std(axis=0)
        if np.linalg.cond(logs) > COLLINEAR:
            said.append(f"{', '.join(names)} vary together, so the effect of each cannot be separated")
    if points.ns.max() / points.ns.min() > WIDE:
        said.append(
            f"times differ by a factor of {points.ns.max() / points.ns.min():.0e}: few models fit such a wide range"
        )
    if np.ptp(points.ns) == 0:
        said.append("all measured times are equal, so no factor has an effect")
    if chosen.loo_mape > POOR:
        poor = _percent(chosen.loo_mape)
        said.append(
            f"no model fits the points well: the leave-one-out error of the best model ({chosen.name}) is {poor}"
        )
    return said


def _percent(share: float) -> str:
    return format_percent(share, signed=False)
