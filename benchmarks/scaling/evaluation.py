"""Errors on what was held out: every model on every data set and split, beside scikit-learn's regressors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.choose import choose, evaluate
from pytest_perfdl.scaling.generic import ADDITIVE, PRODUCT
from pytest_perfdl.scaling.laws import AFFINE
from pytest_perfdl.scaling.physical import PHYSICAL
from pytest_perfdl.scaling.points import Points

TWELVE = 12
PAPER = "generic product"
"""The published form; the additive one is a variant of it."""
OURS = "chosen"


@dataclass(frozen=True, slots=True)
class Split:
    """Which configurations are fitted, and which predicted."""

    name: str
    fitted: tuple[int, ...]
    held_out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """One model on one split."""

    data_set: str
    split: str
    model: str
    mape: float | None
    """Mean absolute error of configurations' mean times; None where the model cannot be fitted."""
    seconds: float
    """What fitting took: for `chosen` all models with all their intervals and held-out errors."""


def splits(points: Points, seeds: int) -> Iterator[Split]:
    """Random 70/30 and 12 configurations, `seeds` times each; every axis extrapolated to twice what was seen.

    And three sizes of one axis, the others fixed, from which the next is predicted.
    """
    rows = points.configurations()
    first = np.array([int(row[0]) for row in rows])
    everything = np.arange(len(rows))
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(everything)
        for name, count in (("random 70/30", round(0.7 * len(rows))), ("12 points", TWELVE)):
            if count < len(rows):
                yield Split(name, tuple(order[:count].tolist()), tuple(order[count:].tolist()))
    for axis in points.varying:
        sizes = points.columns[axis][first]
        values = np.unique(sizes)
        if len(values) >= 3 and values[-1] <= 2 * values[-2]:
            inside = sizes < values[-1]
            yield Split(f"{axis} x2", tuple(everything[inside].tolist()), tuple(everything[~inside].tolist()))
        if len(values) >= 4:
            yield from _three(points, first, axis, values)


def _three(points: Points, first: np.ndarray, axis: str, values: np.ndarray) -> Iterator[Split]:
    """The last of four sizes from the three before, at each setting of the other factors."""
    others = [name for name in points.varying if name != axis]
    settings = {tuple(float(points.columns[name][row]) for name in others) for row in first}
    for setting in sorted(settings):
        same = np.ones(len(first), dtype=bool)
        for name, value in zip(others, setting, strict=True):
            same &= points.columns[name][first] == value
        sizes = points.columns[axis][first]
        fitted = np.flatnonzero(same & np.isin(sizes, values[-4:-1]))
        held_out = np.flatnonzero(same & (sizes == values[-1]))
        if len(fitted) == 3 and len(held_out) == 1:
            yield Split("three on an axis", tuple(fitted.tolist()), tuple(held_out.tolist()))


def take(points: Points, which: Sequence[int]) -> Points:
    rows = points.configurations()
    return points.take(np.concatenate([rows[number] for number in which]))


def scores(name: str, points: Points, seeds: int, regressors: Mapping[str, Callable[[], object]]) -> Iterator[Score]:
    """Every model on every split."""
    for split in splits(points, seeds):
        fitted, held_out = take(points, split.fitted), take(points, split.held_out)
        for model, fit in models(fitted, regressors).items():
            start = time.perf_counter()
            try:
                predict = fit(fitted)
            except ScalingError:
                yield Score(name, split.name, model, None, 0.0)
                continue
            seconds = time.perf_counter() - start
            errors = []
            for rows in held_out.configurations():
                one = held_out.take(rows[:1])
                errors.append(abs(float(predict(one)[0]) / held_out.ns[rows].mean() - 1))
            yield Score(name, split.name, model, statistics.fmean(errors), seconds)


def models(points: Points, regressors: Mapping[str, Callable[[], object]]) -> dict[str, Callable]:
    forms = [PHYSICAL, PRODUCT, ADDITIVE]
    if len(points.varying) == 1:
        forms.insert(0, AFFINE)
    found: dict[str, Callable] = {OURS: _chosen}
    found |= {form.name: lambda fitted, form=form: _alone(form, fitted) for form in forms}
    return found | {name: lambda fitted, make=make: _regressor(make(), fitted) for name, make in regressors.items()}


def _chosen(points: Points) -> Callable:
    fit = choose(points).chosen
    return lambda at: fit.curve.times(at.columns)


def _alone(form: object, points: Points) -> Callable:
    curve = form.fit(points)
    return lambda at: curve.times(at.columns)


def _regressor(model: object, points: Points) -> Callable:
    # Logarithms of times, so that they too minimise relative errors; trees do not care for those of factors.
    model.fit(_matrix(points), np.log(points.ns))
    return lambda at: np.exp(model.predict(_matrix(at)))


def _matrix(points: Points) -> np.ndarray:
    return np.column_stack([points.columns[name] for name in points.factors])


def sklearn_regressors() -> dict[str, Callable[[], object]]:
    """Random forest and gradient boosting with their default settings; nothing where scikit-learn is missing."""
    try:
        from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
    except ImportError:
        return {}
    return {
        "random forest": lambda: RandomForestRegressor(random_state=0),
        "gradient boosting": lambda: GradientBoostingRegressor(random_state=0),
    }


def fit_seconds(points: Points) -> dict[str, float]:
    """What fitting all points takes, the median of five times, without the held-out fits."""
    found = {}
    for form in (PHYSICAL, PRODUCT, ADDITIVE):
        try:
            found[form.name] = statistics.median(evaluate(form, points).fit_seconds for _ in range(5))
        except ScalingError:
            continue
    return found
