"""Change points: a dense calculation of the same probabilities, and series with and without steps."""

import math

import numpy as np
import pytest

from pytest_perfdl.stats import change_points as module
from pytest_perfdl.stats.change_points import change_points, exact_changes


def noise(points, deviation, *, phi=0.0, seed=0):
    """Autoregressive noise of first order on the log scale, with its own deviation."""
    draw = np.random.default_rng(seed)
    found = [draw.normal(0, deviation)]
    for _ in range(points - 1):
        found.append(phi * found[-1] + draw.normal(0, deviation * math.sqrt(1 - phi**2)))
    return np.array(found)


def slow_probability(logs, errors=None):
    """Probability of a first change by dense covariance matrices, one candidate at a time."""
    points = len(logs)
    logs = logs - logs.mean()
    ones, far = np.ones(points), np.abs(np.subtract.outer(np.arange(points), np.arange(points)))

    def step(first, last):
        return ((np.arange(points) >= first) & (np.arange(points) < last)).astype(float)

    allowed = range(module.LEAST, points - module.LEAST + 1)
    candidates = [(step(first, points), module.RATE) for first in allowed]
    candidates += [
        (step(first, last), module.RATE**2) for first in allowed for last in allowed if last - first >= module.LEAST
    ]
    freedom = module._SCALE_POINTS + points - 1
    relative = ones if errors is None else errors**2 / np.mean(errors**2)
    none, changed = [], []
    for phi in module._PHIS:
        for white in module._WHITE:
            if phi == 0 and white > 0 and errors is None:
                continue
            covariance = (1 - white) * phi ** far.astype(float) + white * np.diag(relative)

            def likelihood(covariance):
                inverse = np.linalg.inv(covariance)
                weight = ones @ inverse @ ones
                rest = logs - (ones @ inverse @ logs) / weight
                square = rest @ inverse @ rest + module._SCALE_POINTS * module._SCALE**2
                determinant = np.linalg.slogdet(covariance)[1]
                return -0.5 * (determinant + math.log(weight) + freedom * math.log(square)), square

            without, square = likelihood(covariance)
            none.append(without)
            variance = module.EFFECT_SD**2 * freedom / square
            changed += [
                math.log(rate) + likelihood(covariance + variance * np.outer(each, each))[0]
                for each, rate in candidates
            ]
    odds = np.logaddexp.reduce(changed) - np.logaddexp.reduce(none)
    return 1 / (1 + math.exp(-odds))


@pytest.mark.parametrize("seed, phi, effect", [(1, 0.0, 0.05), (2, 0.5, 0.05), (3, 0.8, 0.04)])
def test_the_probability_is_that_of_dense_matrices(seed, phi, effect):
    logs = noise(16, 0.008, phi=phi, seed=seed)
    logs[9:] += effect
    clean = module._without_outliers(logs)
    (found,) = change_points(np.exp(logs))

    assert found.index == 9
    # Not so near to 1 that all numbers are equal.
    assert found.probability < 0.99999
    assert found.probability == pytest.approx(slow_probability(clean), abs=1e-9)


def of_two_kinds(seed, *, points=40, most=0.03):
    """Points with errors of 0.4 % and more in alternation, and then a step to four of half a percent; errors."""
    errors = np.array([most, 0.004] * (points // 2) + [0.005] * 4)
    logs = np.random.default_rng(seed).normal(0, errors)
    logs[points:] += math.log(1.045)
    return logs, errors


def test_the_probability_with_known_errors_is_that_of_dense_matrices():
    logs, errors = of_two_kinds(5, points=12)
    (found,) = change_points(np.exp(logs), errors)
    assert found.index == 12
    assert found.probability < 0.99999
    expected = slow_probability(module._without_outliers(logs), errors)
    assert found.probability == pytest.approx(expected, abs=1e-9)


def test_known_errors_show_steps_that_they_do_not_hide():
    found = {True: 0, False: 0}
    for seed in range(10):
        logs, errors = of_two_kinds(seed, most=0.06)
        for known in found:
            changes = change_points(np.exp(logs), errors if known else None)
            found[known] += any(abs(each.index - 40) <= 1 for each in changes)
    assert found[True] >= 9
    assert found[False] <= 4


def test_a_factor_of_all_errors_does_not_matter():
    logs, errors = of_two_kinds(5)
    (first,), (second,) = (change_points(np.exp(logs), factor * errors) for factor in (1.0, 7.0))
    assert first.probability == pytest.approx(second.probability)


def test_errors_that_say_nothing_make_no_changes():
    draw = np.random.default_rng(8)
    series = [
        (noise(60, 0.01, phi=phi, seed=seed), draw.lognormal(-4, 2, 60)) for phi in (0, 0.6) for seed in range(15)
    ]
    # 1,800 points.
    assert sum(len(change_points(np.exp(logs), errors)) for logs, errors in series) <= 2


@pytest.mark.parametrize("errors", [[0.01] * 9, [0.01] * 9 + [0.0], [0.01] * 9 + [math.nan]])
def test_an_error_that_is_none_is_refused(errors):
    with pytest.raises(ValueError, match="positive error of every value"):
        change_points([1.0, 2.0] * 5, errors)


def test_a_step_has_its_place_and_effect():
    logs = noise(60, 0.006, phi=0.4)
    logs[37:] += math.log(1.045)
    (found,) = change_points(1e7 * np.exp(logs))
    assert abs(found.index - 37) <= 1
    assert found.interval[0] < 0.045 < found.interval[1]
    assert found.interval[0] < found.effect < found.interval[1]
    assert found.probability > 0.999


def test_the_unit_does_not_matter():
    logs = noise(40, 0.006)
    logs[20:] -= 0.05
    assert [each.index for each in change_points(np.exp(logs))] == [
        each.index for each in change_points(1e9 * np.exp(logs))
    ]


def test_five_points_after_a_step_are_enough():
    logs = noise(45, 0.006, phi=0.3)
    logs[40:] += math.log(1.045)
    (found,) = change_points(np.exp(logs))
    assert abs(found.index - 40) <= 1


def test_noise_without_a_step_has_no_change_points():
    series = [
        noise(60, deviation, phi=phi, seed=seed)
        for deviation in (0.005, 0.05)
        for phi in (0, 0.5, 0.9)
        for seed in range(10)
    ]
    found = [change_points(np.exp(each)) for each in series]
    # 3,600 points: one in a thousand.
    assert sum(map(len, found)) <= 3


def test_independent_noise_would_be_misread():
    """What makes the difference is that the noise is autocorrelated in the model, too."""
    wandering = [noise(120, 0.03, phi=0.9, seed=seed) for seed in range(8)]
    assert sum(len(change_points(np.exp(each))) for each in wandering) <= 1
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_PHIS", (0.0,))
        assert sum(len(change_points(np.exp(each))) for each in wandering) > 8


@pytest.mark.parametrize("at", [0, 20, 39])
def test_one_bad_day_is_no_change(at):
    logs = noise(40, 0.005)
    logs[at] += 0.4
    assert change_points(np.exp(logs)) == ()


def test_a_step_that_is_undone_is_two_changes():
    logs = noise(60, 0.006, phi=0.3)
    logs[25:32] += 0.06
    first, last = change_points(np.exp(logs))
    assert abs(first.index - 25) <= 1
    assert abs(last.index - 32) <= 1
    assert first.effect == pytest.approx(0.06, abs=0.015)
    assert last.effect == pytest.approx(-0.06, abs=0.015)


def test_several_steps():
    logs = noise(90, 0.006, phi=0.3)
    for place, effect in ((20, 0.04), (45, 0.05), (70, -0.06)):
        logs[place:] += effect
    found = change_points(np.exp(logs))
    assert [abs(each.index - place) <= 1 for each, place in zip(found, (20, 45, 70), strict=True)] == [True] * 3
    assert [each.effect > 0 for each in found] == [True, True, False]


@pytest.mark.long
def test_a_long_series_is_searched_in_windows():
    logs = noise(700, 0.006, phi=0.3)
    # On a border of two windows, and far from the start.
    borders = [first for _, first, _ in module._windows(700)]
    for place in (borders[2], 600):
        logs[place:] += 0.05
    found = change_points(np.exp(logs))
    assert [abs(each.index - place) <= 1 for each, place in zip(found, (borders[2], 600), strict=True)] == [True, True]


def test_windows_decide_every_place_once():
    for points in (1, 240, 241, 360, 361, 700, 1000):
        windows = module._windows(points)
        decided = [place for _, first, last in windows for place in range(first, last)]
        assert decided == list(range(points))
        assert all(start <= first and last <= start + module.WINDOW for start, first, last in windows)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 2.0, 2.0, 2.0], [3.0] * 50])
def test_nothing_to_find(values):
    assert change_points(values) == ()


def test_values_without_noise_change_where_they_change():
    (found,) = change_points([100.0] * 10 + [110.0] * 10)
    assert (found.index, round(found.effect, 6)) == (10, 0.1)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_has_no_logarithm_is_refused(value):
    with pytest.raises(ValueError, match="positive"):
        change_points([1.0] * 9 + [value])


def test_every_difference_of_a_count_is_a_change():
    found = exact_changes([4, 4, 5, 5, 0, 3])
    assert [(each.index, each.effect, each.probability) for each in found] == [
        (2, 0.25, 1.0), (4, -1.0, 1.0), (5, math.inf, 1.0),
    ]  # fmt: skip
