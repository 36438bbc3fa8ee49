"""Change points of a series under autocorrelation: places from which on its level is another one.

The values of successive days are not independent: a machine is fast for a while, then slower for a while. A method for
independent noise takes that for changes. Here, the noise is part of the question: a series is either noise of some
model around one level, or noise of some model around a level with steps.

*Noise.* On the log scale, a value is level + u + e: u is autoregressive of first order (coefficient phi, up to almost a
random walk), e is white. Such a sum is the model of Romano, Rigaill, Runge and Fearnhead, "Detecting abrupt changes in
the presence of local fluctuations and autocorrelated noise" (JASA 117, 2022). That paper estimates phi and the share of
e; here, both are averaged over a grid, since 20 points do not determine them, and a phi that is too small is a false
change point. The scale is integrated out, with a weak prior (inverse gamma), so tails are Student's.

*Known errors.* If the errors of the values are known, such as those of paired rounds, of which some days have 3 and
others 60, then e has variances in proportion to their squares (generalized least squares with a covariance that is
known up to its scale; Aitken, Proceedings of the Royal Society of Edinburgh 55, 1935). The errors are only weights: how
much of the noise they make up is the share of e, which is averaged over, and its scale is that of the series. So a
constant factor in the errors does not matter, and errors that say nothing about the values get little probability.

*Changes.* A step from one point on, or a step that is undone later, has an effect that is normal around 0 (deviation
`EFFECT_SD` of the log). Steps come at `RATE` per point before any value is seen. The Bayes factor of every place
against no change is that of a linear model with a covariance that is known up to its scale (Box and Tiao,
"Intervention analysis", JASA 70, 1975; O'Hagan, Kendall's Advanced Theory of Statistics 2B, chapter 9), averaged over
the grid with each model's likelihood. The most probable change is added to the model if the probability that there is
one is at least `CERTAIN`, and the search starts again with it, until nothing is found.

*Outliers.* A value that is far from the median of its neighbors is drawn to them first (Hampel's filter), so that one
bad day is no change. A change therefore has at least `LEAST` points on both sides.

Long series are searched in windows that overlap, so the noise is that of the time around.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST = 3
"""Points that a level has at least."""
RATE = 0.008
"""Changes per point before any value is seen."""
CERTAIN = 0.95
"""Probability from which on a change is one."""
EFFECT_SD = 0.06
"""Deviation of the effects on the log scale."""
SMALLEST = 0.01
"""Effects below this on the log scale are left out: nobody acts on them."""
WINDOW = 240
"""Points that are searched at once."""

_PHIS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.97)
_WHITE = (0.0, 0.4, 0.8)
"""Shares of the variance that are white."""
_SCALE, _SCALE_POINTS = 0.006, 2.0
"""Prior scale of the noise on the log scale, and how many points the prior counts as."""
_HAMPEL = 3
"""Neighbors on either side, and the number of deviations from their median that a value may have."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A place from which on the level is another one."""

    index: int
    """The first point of the new level."""
    effect: float
    """Change of the level as a ratio: 0.1 is 10 % more."""
    interval: tuple[float, float]
    """Ends of the 95 % interval of the effect, given the place."""
    probability: float
    """Posterior probability that there is a change, given those that are more certain."""


def change_points(values: Sequence[float], errors: Sequence[float] | None = None) -> tuple[ChangePoint, ...]:
    """The change points of a series of positive values in the order of time.

    Parameters
    ----------
    errors
        Standard error of each value on the log scale, above 0; `None` if they are not known.

    Raises
    ------
    ValueError
        A value or an error is not positive or not finite, or there is not one error per value.
    """
    if not all(0 < value < math.inf for value in values):
        raise ValueError("change points need positive values")
    if errors is not None and not (len(errors) == len(values) and all(0 < error < math.inf for error in errors)):
        raise ValueError("change points need a positive error of every value, or none")
    if len(values) < 2 * LEAST or min(values) == max(values):
        return ()
    logs = _without_outliers(np.log(np.asarray(values, np.float64)))
    variances = None if errors is None else np.square(np.asarray(errors, np.float64))
    found: list[ChangePoint] = []
    for start, first, last in _windows(len(logs)):
        inside = slice(start, start + WINDOW)
        for place, effect, interval, probability in _search(
            logs[inside], None if variances is None else variances[inside]
        ):
            change = ChangePoint(start + place, effect, interval, probability)
            # Two windows may place the same change on either side of the border between them.
            if found and change.index - found[-1].index < LEAST:
                continue
            if first - LEAST < change.index < last + LEAST:
                found.append(change)
    return tuple(found)


def exact_changes(values: Sequence[float]) -> tuple[ChangePoint, ...]:
    """The change points of a series without noise, such as a count: every point that differs from the one before it."""
    found = []
    for index in range(1, len(values)):
        before, after = values[index - 1], values[index]
        if before != after:
            effect = after / before - 1 if before else math.inf
            found.append(ChangePoint(index, effect, (effect, effect), 1.0))
    return tuple(found)


def _windows(points: int) -> list[tuple[int, int, int]]:
    """The first point of each window, and the range of places that it decides."""
    if points <= WINDOW:
        return [(0, 0, points)]
    step = WINDOW // 2
    starts = [*range(0, points - WINDOW, step), points - WINDOW]
    # Between two windows, the place in the middle of what they share.
    ends = [(later + earlier + WINDOW) // 2 for earlier, later in itertools.pairwise(starts)]
    return list(zip(starts, [0, *ends], [*ends, points], strict=True))


def _without_outliers(logs: Floats) -> Floats:
    """Values within three deviations of the median of their neighbors."""
    wide = np.concatenate([np.full(_HAMPEL, np.nan), logs, np.full(_HAMPEL, np.nan)])
    around = np.lib.stride_tricks.sliding_window_view(wide, 2 * _HAMPEL + 1)
    medians = np.nanmedian(around, axis=1)
    far = 3 * 1.4826 * float(np.median(np.abs(logs - medians)))
    return np.clip(logs, medians - far, medians + far)


@dataclass(frozen=True, slots=True)
class _Noise:
    """The noise models of a series: level and steps as each of them sees them, with white noise of variance 1."""

    logs: Floats
    """models x points."""
    steps: Floats
    """models x points x places: the step from each place on; the first is the level."""
    log_determinants: Floats
    """Of the covariance matrices."""


def _noise(logs: Floats, variances: Floats | None) -> _Noise:
    """Whiten by the prediction errors of each model (Kalman filter of u + e)."""
    points = len(logs)
    columns = np.concatenate([logs[:, None], np.tri(points)], axis=1)
    phi, white = (grid.ravel()[:, None] for grid in np.meshgrid(_PHIS, _WHITE, indexing="ij"))
    if variances is None:
        # A share of white noise beside uncorrelated noise of the same variances is the same model again.
        kept = ~((phi == 0) & (white > 0)).ravel()
        phi, white = phi[kept], white[kept]
    relative = np.ones(points) if variances is None else variances / variances.mean()
    own = 1 - white
    state, variance = np.zeros((len(phi), columns.shape[1])), own.copy()
    out = np.empty((len(phi), points, columns.shape[1]))
    determinants = np.zeros(len(phi))
    for point in range(points):
        total = variance + white * relative[point]
        error = columns[point] - state
        out[:, point] = error / np.sqrt(total)
        determinants += np.log(total[:, 0])
        gain = variance / total
        state = phi * (state + gain * error)
        variance = phi**2 * variance * (1 - gain) + own * (1 - phi**2)
    return _Noise(out[:, :, 0], out[:, :, 1:], determinants)


def _search(logs: Floats, variances: Floats | None) -> list[tuple[int, float, tuple[float, float], float]]:
    """The changes of one window, each with its effect, the interval of it and its probability."""
    noise = _noise(logs - logs.mean(), variances)
    places: dict[int, float] = {}
    while True:
        found, probability = _next(noise, sorted(places))
        if probability < CERTAIN:
            break
        places |= dict.fromkeys(found, probability)
    estimates = _estimates(noise, sorted(places))
    return [
        (place, math.expm1(effect), (math.expm1(low), math.expm1(high)), places[place])
        for place, (effect, low, high) in zip(sorted(places), estimates, strict=True)
        if abs(effect) >= SMALLEST
    ]


def _next(noise: _Noise, places: Sequence[int]) -> tuple[tuple[int, ...], float]:
    """The most probable further change, one place or a step and where it is undone, and that there is any."""
    models, points, _ = noise.steps.shape
    allowed = np.zeros(points, bool)
    allowed[LEAST : points - LEAST + 1] = True
    for place in places:
        allowed[max(0, place - LEAST + 1) : place + LEAST] = False
    free = np.flatnonzero(allowed)
    if not len(free):
        return (), 0.0
    known = [0, *places]
    apart = free[None, :] - free[:, None] >= LEAST
    apart &= ~_separated(free, places)
    freedom = _SCALE_POINTS + points - len(known)
    log_none = np.empty(models)
    log_single = np.empty((models, len(free)))
    log_undone = np.full((models, len(free), len(free)), -np.inf)
    for model in range(models):
        basis, _ = np.linalg.qr(noise.steps[model][:, known])
        rest = noise.logs[model] - basis @ (basis.T @ noise.logs[model])
        steps = noise.steps[model][:, free]
        steps = steps - basis @ (basis.T @ steps)
        square = float(rest @ rest) + _SCALE_POINTS * _SCALE**2
        # The level and the known steps have flat priors: their determinant is the same with and without a change.
        flat = float(np.linalg.slogdet(noise.steps[model][:, known].T @ noise.steps[model][:, known])[1])
        log_none[model] = -0.5 * (noise.log_determinants[model] + flat + freedom * math.log(square))
        gram = steps.T @ steps
        dots, norms = steps.T @ rest, np.diag(gram)
        scale = square / freedom
        log_single[model] = log_none[model] + _factor(dots, norms, square, freedom, scale)
        undone = norms[:, None] + norms[None, :] - 2 * gram
        log_undone[model] = log_none[model] + np.where(
            apart, _factor(dots[:, None] - dots[None, :], undone, square, freedom, scale), -np.inf
        )
    none = _log_sum(log_none)
    single = _log_sum(log_single) + math.log(RATE)
    undone = _log_sum(log_undone.reshape(models, -1)).reshape(len(free), -1) + math.log(RATE**2)
    changed = np.logaddexp(_log_sum(single), _log_sum(undone.ravel()))
    probability = float(1 / (1 + np.exp(np.clip(none - changed, -700, 700))))
    if single.max() >= undone.max():
        return (int(free[single.argmax()]),), probability
    first, last = np.unravel_index(int(undone.argmax()), undone.shape)
    return (int(free[first]), int(free[last])), probability


def _separated(free: NDArray[np.int64], places: Sequence[int]) -> NDArray[np.bool_]:
    """Whether a known change lies between two places: what is undone has one level."""
    level = np.searchsorted(np.asarray(places), free)
    separated: NDArray[np.bool_] = level[:, None] != level[None, :]
    return separated


def _factor(dots: Floats, norms: Floats, square: float, freedom: float, scale: float) -> Floats:
    """Log Bayes factor of a step with a normal effect, the scale of the noise integrated out.

    `norms` are 1 / (variance of the estimate) in units of the noise's variance; the prior's deviation is in the same
    units by the estimate `scale` of that variance.
    """
    prior = scale / EFFECT_SD**2
    explained = np.minimum(dots**2 / (norms + prior), square * (1 - 1e-12))
    factor: Floats = 0.5 * np.log(prior / (norms + prior)) - 0.5 * freedom * np.log1p(-explained / square)
    return factor


def _estimates(noise: _Noise, places: Sequence[int]) -> list[tuple[float, float, float]]:
    """Effect of each change with its 95 % interval, by generalized least squares under the likeliest model."""
    if not places:
        return []
    from pytest_perfdl.stats.quantiles import student

    known = [0, *places]
    points = noise.logs.shape[1]
    freedom = _SCALE_POINTS + points - len(known)
    best: tuple[float, list[tuple[float, float, float]]] = (-math.inf, [])
    for logs, steps, determinant in zip(noise.logs, noise.steps[:, :, known], noise.log_determinants, strict=True):
        inverse = np.linalg.inv(steps.T @ steps)
        levels = inverse @ (steps.T @ logs)
        square = float(((logs - steps @ levels) ** 2).sum()) + _SCALE_POINTS * _SCALE**2
        likelihood = -0.5 * (determinant - float(np.linalg.slogdet(inverse)[1]) + freedom * math.log(square))
        if likelihood > best[0]:
            reach = student(0.975, freedom) * np.sqrt(square / freedom * np.diag(inverse))
            best = likelihood, [(each, each - far, each + far) for each, far in zip(levels, reach, strict=True)][1:]
    return best[1]


def _log_sum(logs: Floats) -> Floats:
    """Log of the sum of exponentials over the first axis."""
    most = logs.max(axis=0)
    finite = np.where(np.isfinite(most), most, 0.0)
    with np.errstate(divide="ignore"):
        total: Floats = finite + np.log(np.exp(logs - finite).sum(axis=0))
    return total
