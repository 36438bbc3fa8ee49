"""What a fitted model is good for: speed-up and efficiency along an axis, the knee, a price, the next measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.choose import Fit, TimePrediction
from pytest_perfdl.scaling.physical import PROCESSORS
from pytest_perfdl.scaling.points import F64, Points

Kind = Literal["processors", "work"]
"""More processors share the same work; more work is done in one step."""
NOTHING_GAINED = 0.05
"""Share of the best speed that is as good as the best: where the knee is."""
_MOST_VALUES = 64
"""A curve has every whole number in its range up to so many, else what was measured."""
_MOST_CANDIDATES = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class SpeedUp:
    """How speed grows along one axis, the other factors held; within the measured range."""

    axis: str
    kind: Kind
    sizes: F64
    measured: npt.NDArray[np.bool_]
    """Which of the sizes were."""
    ns: F64
    """Time of a step at each size."""
    speedup: F64
    """Speed over that at the least size: steps per second, or work per second where the axis is the work."""
    efficiency: F64
    """The speed-up over the ratio of processors; for work, the time per unit at best over that here."""
    knee: float | None
    """The least size beyond which no more than 5 % of speed are gained; None where speed grows to the end."""


@dataclass(frozen=True, slots=True)
class Next:
    """The configuration which, measured once more, would narrow a prediction most."""

    at: Mapping[str, float]
    measured: bool
    """Whether it was measured before: then the measurement repeats it."""
    before_ns: float
    """Standard error of the curve where the prediction is."""
    after_ns: float
    """The same, expected after the measurement."""


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What an epoch takes and costs, with the ends of the 95 % interval of each."""

    steps: float
    hours: tuple[float, float, float]
    price: tuple[float, float, float] | None
    """In the currency of the price per hour; None where none is given."""


def speed_up(fit: Fit, points: Points, at: Mapping[str, float], axis: str) -> SpeedUp:
    """Time, speed-up and efficiency of a model along one axis.

    With processors p: S(p) = t(p0) / t(p), efficiency S(p) * p0 / p (Amdahl's strong scaling: the work of a step is
    the same). With work x in a step: S(x) = (x / t(x)) / (x0 / t(x0)), efficiency (x / t(x)) / max (x / t(x)).

    Raises
    ------
    ScalingError
        The factor is unknown, does not vary or is 0 somewhere.
    """
    if axis not in points.varying:
        raise ScalingError(f"{axis} does not vary in the measured points, so there is no curve along {axis}")
    measured = np.unique(points.columns[axis])
    if measured[0] <= 0:
        raise ScalingError(f"{axis} is 0 in a measured point: speed-up relative to 0 cannot be computed")
    low, high = measured[0], measured[-1]
    whole = bool((measured == np.round(measured)).all()) and high - low < _MOST_VALUES
    sizes = np.arange(low, high + 1) if whole else measured
    columns = {name: np.full(len(sizes), at.get(name, points.columns[name][0])) for name in points.factors}
    columns[axis] = sizes
    ns = fit.curve.times(columns)
    if not (np.isfinite(ns).all() and (ns > 0).all()):
        raise ScalingError(f"{fit.name} does not predict positive times everywhere along {axis}")
    kind: Kind = "processors" if axis in PROCESSORS else "work"
    speed = (1.0 if kind == "processors" else sizes) / ns
    gain = speed / speed[0]
    efficiency = gain * sizes[0] / sizes if kind == "processors" else speed / speed.max()
    # The knee is sought at what was measured and between; at the last size itself nothing is known of what follows.
    enough = float(sizes[np.flatnonzero(speed >= (1 - NOTHING_GAINED) * speed.max())[0]])
    return SpeedUp(axis, kind, sizes, np.isin(sizes, measured), ns, gain, efficiency, enough if enough < high else None)


def next_measurement(fit: Fit, points: Points, at: Mapping[str, float]) -> Next:
    """Which configuration to measure for the sake of the prediction at `at`.

    The jackknife's replicas are taken for a sample of what the curve may be: with V(c) their variance at c, C(c) their
    covariance with the prediction, and s(c) the error of a configuration left out, measuring c once leaves
    V(at) - C(c)^2 / (V(c) + s(c)^2) (conditioning of normal variables). Candidates are all combinations of measured
    values, and the place itself where it lies within the measured ranges.
    """
    values = [np.unique(points.columns[name]).tolist() for name in points.factors]
    target = tuple(float(at.get(name, points.columns[name][0])) for name in points.factors)
    known = set(zip(*(points.columns[name].tolist() for name in points.factors), strict=True))
    total = float(np.prod([float(len(each)) for each in values]))
    candidates = list(known) if total > _MOST_CANDIDATES else list(product(*values))
    inside = all(each[0] <= value <= each[-1] for each, value in zip(values, target, strict=True))
    if inside and target not in candidates:
        candidates.append(target)
    candidates.sort()
    rows = np.array([target, *candidates])
    columns = {name: rows[:, number] for number, name in enumerate(points.factors)}
    replicas = np.stack([replica.times(columns) for replica in fit.replicas])
    spread = (replicas - replicas.mean(axis=0)) * ((len(replicas) - 1) / len(replicas)) ** 0.5
    variance = (spread**2).sum(axis=0)
    covariance = spread[:, :1].T @ spread
    noise = (fit.errors**2).mean() * fit.curve.times(columns) ** 2
    gain = covariance[0] ** 2 / np.maximum(variance + noise, np.finfo(float).tiny)
    best = 1 + int(np.argmax(gain[1:]))
    chosen = candidates[best - 1]
    after = max(float(variance[0] - gain[best]), 0.0)
    named = dict(zip(points.factors, chosen, strict=True))
    return Next(named, chosen in known, float(variance[0]) ** 0.5, after**0.5)


def epoch(found: TimePrediction, steps: float, price: float | None = None) -> EpochCost:
    """What so many steps take, and cost at a price per hour of everything that runs.

    Raises
    ------
    ScalingError
        A number is not finite and positive.
    """
    for name, value in (("steps", steps), ("price", price)):
        if value is not None and not (np.isfinite(value) and value > 0):
            raise ScalingError(f"{name} must be a number above 0, not {value:g}")
    first, low, high = (ns * steps / 3600e9 for ns in (found.ns, found.low, found.high))
    paid = None if price is None else (first * price, low * price, high * price)
    return EpochCost(steps, (first, low, high), paid)
