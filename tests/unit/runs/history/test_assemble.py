"""From measurements to series: values, intervals, environments, chains of rounds and change points."""

import math
from dataclasses import replace

import pytest

from pytest_perfdl.baseline.text import dump
from pytest_perfdl.model.record import Key, Series
from pytest_perfdl.runs.history import ALL, histories, mean, of_baseline, of_run
from unit.runs.history.records import CONTEXT, TEST, paired, record, run_file


def baseline(number, one):
    return of_baseline(dump(one), f"{number:040x}", f"2026-05-{number + 1:02}T00:00:00Z", f"Commit {number}")


def test_a_point_is_the_geometric_mean_of_processes_with_its_interval():
    # By hand: logs -0.006, -0.002, 0.002, 0.006 have a deviation of 0.0051640; Student's quantile for 3 is 3.18245.
    value, (low, high) = mean(
        Series("timed", "ns", "lower", tuple(4e7 * math.exp(0.004 * each) for each in (-1.5, -0.5, 0.5, 1.5)))
    )
    assert value == pytest.approx(4e7)
    assert high == pytest.approx(4e7 * math.exp(3.18245 * 0.0051640 / 2), rel=1e-6)
    assert low * high == pytest.approx(16e14)


def test_intervals_of_one_process_of_counts_and_of_shares():
    assert mean(Series("timed", "ns", "lower", (5.0,))) == (5.0, None)
    assert mean(Series("counted", "1", "lower", (5.0,))) == (5.0, (5.0, 5.0))
    assert mean(Series("timed", "%", "lower", (0.0, 0.0))) == (0.0, (0.0, 0.0))
    value, (low, high) = mean(Series("timed", "%", "lower", (0.0, 2.0)))
    assert value == 1.0
    # Student's quantile for 1 is 12.7062, the standard error 1.
    assert (low, high) == (pytest.approx(1 - 12.7062, rel=1e-4), pytest.approx(1 + 12.7062, rel=1e-4))


def test_series_are_by_test_metric_and_machine():
    other = Key("cpu-b", {})
    found = histories(
        [baseline(0, record()), baseline(1, record(key=other)), baseline(2, record(test="tests/a.py::test_a"))], "", ALL
    )
    assert [(each.id, each.machine_id, each.metric) for each in found] == [
        ("tests/a.py::test_a", "cpu-a", "ops"), ("tests/a.py::test_a", "cpu-a", "step_time"),
        (TEST, "cpu-a", "ops"), (TEST, "cpu-a", "step_time"),
        (TEST, "cpu-b", "ops"), (TEST, "cpu-b", "step_time"),
    ]  # fmt: skip


def test_which_metrics_are_shown():
    one = record(call="forward")
    two = replace(one, calls=(*one.calls, replace(one.calls[0], name="backward")))
    counted = replace(one, calls=(replace(one.calls[0], series={"ops": one.calls[0].series["ops"]}),))

    def shown(of, metric=None, test=""):
        return [each.metric for each in histories([baseline(0, of)], test, metric)]

    assert shown(two) == ["forward.step_time", "backward.step_time"]
    assert shown(two, "ops") == ["forward.ops", "backward.ops"]
    assert shown(two, "backward.ops") == ["backward.ops"]
    assert shown(counted) == ["forward.ops"]
    assert shown(two, "nothing") == []
    assert shown(two, test="test_gpt") == shown(two)
    assert shown(two, test="test_bert") == []


def test_a_change_of_the_environment_is_marked_where_it_is():
    newer = CONTEXT | {"torch": "2.13.0", "driver": "580"}
    found = [baseline(number, record(context=newer if number >= 2 else CONTEXT)) for number in range(4)]
    (history,) = histories(found, "", None)
    assert [point.environment_changes for point in history.points] == [
        (), (), (("driver", "none", "580"), ("torch", "2.12.0", "2.13.0")), (),
    ]  # fmt: skip
    digests = [point.environment for point in history.points]
    assert digests[0] == digests[1] != digests[2] == digests[3]


def test_a_count_changes_where_it_differs():
    found = [baseline(number, record(ops=1699 if number < 2 else 1708)) for number in range(4)]
    (history,) = histories(found, "", "ops")
    ((change),) = history.change_points
    assert (change.index, change.probability) == (2, 1.0)
    assert change.effect == pytest.approx(9 / 1699)
    assert history.is_worse(change)


def test_a_time_changes_where_its_level_does():
    steps = [4e7 * (1 + 0.002 * (number % 3)) * (1.06 if number >= 12 else 1) for number in range(20)]
    (history,) = histories([baseline(number, record(step)) for number, step in enumerate(steps)], "", None)
    (change,) = history.change_points
    assert change.index == 12
    assert history.points[change.index].subject == "Commit 12"
    assert change.effect == pytest.approx(0.06, abs=0.01)


def run(number, effect, base, commit="", reach=0.01, **of):
    data = run_file(
        # The stored value of the run's one process says another thing, which must not matter.
        9e7, date=f"2026-06-{number + 1:02}T00:00:00Z", commit=commit or f"{number:040x}", base=base,
        paired=paired(effect, reach), **of,
    )  # fmt: skip
    return of_run(data)[0]


def test_rounds_are_chained_to_the_level_of_their_baseline():
    first = record(4e7, commit="a" * 40)
    second = record(7e7, commit="b" * 40)
    found = [
        run(0, 0.01, first),
        run(1, 0.02, first, commit="b" * 40),
        # From here on against a baseline of the commit before, which was recorded while the machine was slow.
        run(2, 0.0, second),
        run(3, 0.10, second),
    ]
    (history,) = histories(found, "", None)
    level = mean(of_run(run_file())[0].metrics["step_time"])[0]
    assert [point.value / level for point in history.points] == pytest.approx([1.01, 1.02, 1.02, 1.122], rel=2e-4)
    assert [point.is_paired for point in history.points] == [True] * 4
    low, high = history.points[3].interval
    assert (low / level, high / level) == (pytest.approx(1.02 * 1.09, rel=2e-4), pytest.approx(1.02 * 1.11, rel=2e-4))


def test_points_of_rounds_count_by_their_errors():
    """Nights before a step whose rounds say little, as their intervals tell, do not hide it."""
    base = record(4e7, commit="a" * 40)
    noise = [(-1) ** number * 0.06 if number % 3 else 0.0 for number in range(16)]
    effects = [*noise, 0.047, 0.045, 0.046, 0.043]

    def changes(far):
        nights = [
            run(number, effect, base, reach=far if abs(effect) > 0.05 else 0.01)
            for number, effect in enumerate(effects)
        ]
        # Without rounds, as where the baseline was recorded: as uncertain as the least certain one.
        nights.insert(0, *of_run(run_file(4e7, date="2026-05-31", base=base)))
        (history,) = histories(nights, "", None)
        return [each.index for each in history.change_points]

    assert changes(far=0.12) == [17]
    assert changes(far=0.01) == []


def test_an_interval_without_width_is_no_error():
    base = record(4e7, commit="a" * 40)
    (history,) = histories([run(number, 0.001 * (number % 3), base, reach=0.0) for number in range(12)], "", None)
    assert history.change_points == ()


def test_rounds_against_the_baseline_of_another_machine_use_what_its_code_took_here():
    found = run(0, 0.5, record(4e7, key=Key("cpu-b", {})))
    (history,) = histories([found], "", None)
    assert history.points[0].value == pytest.approx(4e7 * 1.5)


def test_a_run_without_rounds_has_the_value_of_its_processes():
    (history,) = histories(of_run(run_file(5e7, base=record())), "", None)
    (point,) = history.points
    assert (point.value, point.interval, point.is_paired) == (5e7, None, False)
