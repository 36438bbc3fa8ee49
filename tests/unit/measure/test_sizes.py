"""Steps are reduced to what a share of the budget holds, and what still cannot end in time says what helps."""

import re

import pytest

from pytest_perfdl.measure.sizes import (
    ROUNDS,
    Pace,
    TimeLimit,
    cannot_finish,
    full,
    longest_ns,
    reduction_note,
    seconds_of_steps,
    step_count,
    within,
)
from pytest_perfdl.model.record import MeasurementPlan

PLAN = MeasurementPlan(warmup=15, steps=40)


def test_cheap_steps_are_what_the_test_asks_for():
    wanted = full(PLAN, 1, 8)
    assert within(wanted, 1, 10_000_000, 17.0) == wanted
    assert reduction_note(wanted, wanted, 10_000_000) == ""


def test_the_reason_for_fewer_steps_is_what_takes_the_time():
    wanted = full(PLAN, 1, 8)
    for start, ends in ((0.5, "one step takes 1.000 s"), (6.0, "1.000 s, and starting a process 6.000 s")):
        pace = Pace(1.0, {"": 10**9}, start)
        pace.agreed(wanted, 1, "")
        assert pace.note.endswith(ends)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 5.0, 20.0, 60.0, 300.0])
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("step_ns", [10**7, 10**8, 10**9, 20 * 10**9])
def test_reduced_steps_fit_and_are_never_less_than_two_turns_of_a_period(seconds, period, step_ns):
    wanted = full(PLAN, period, 8)
    sizes = within(wanted, period, step_ns, seconds)
    timed = sizes.turns * sizes.steps
    for steps in (sizes.warmup, sizes.most, sizes.block, sizes.steps, sizes.profiled):
        assert steps >= period
        assert steps % period == 0
    assert sizes.turns >= 2
    assert sizes.most >= sizes.warmup
    cost = (sizes.warmup + timed + sizes.profiled) * step_ns / 1e9
    assert cost <= seconds or (sizes.warmup, timed, sizes.profiled)[1] == 2 * period or sizes == wanted
    assert (sizes.warmup, sizes.turns * sizes.steps) <= (wanted.warmup, wanted.turns * wanted.steps)


def test_turns_are_kept_as_long_as_each_has_a_step():
    sizes = within(full(PLAN, 1, 8), 1, 10**9, 32.0)
    assert (sizes.turns, sizes.steps) == (8, 2)


def test_several_calls_share_the_seconds_by_what_they_take():
    slow, quick = "slow", "quick"
    pace = Pace(20.0, {slow: 2 * 10**9, quick: 10**6})
    wanted = full(PLAN, 1, 8)
    assert pace.agreed(wanted, 1, quick) == wanted
    assert pace.agreed(wanted, 1, slow).turns == 4


def test_the_first_that_asks_settles_the_sizes_of_a_round_and_its_times_those_of_later_ones():
    pace, wanted = Pace(20.0), full(PLAN, 1, 8)
    pace.begin()
    pace.warmed_up("", 2, 10**9)
    first = pace.agreed(wanted, 1, "")
    pace.warmed_up("", 2, 5 * 10**9)
    assert pace.agreed(wanted, 1, "") == first
    assert (first.warmup, first.turns) == (2, 8)
    pace.timed("", 10**6)
    pace.begin()
    pace.warmed_up("", 20, 10**6)
    assert pace.agreed(wanted, 1, "") == wanted


def test_a_budget_holds_the_rounds_of_a_verdict():
    for start in (0.0, 1.0, 5.0, 19.0):
        rounds = 300 / (start + 2 * seconds_of_steps(300, start))
        assert rounds == pytest.approx(min(ROUNDS, 300 // (2 * start) if start else ROUNDS))
    assert 300 / (100 + 2 * seconds_of_steps(300, 100.0)) == 2
    assert seconds_of_steps(300, 1000.0) == 0


def too_slow(step_s, seconds, limit, plan=PLAN, *, besides=4):
    return cannot_finish(plan, 1, 4, int(step_s * 1e9), seconds, limit, besides=besides)


def test_what_cannot_end_in_time_is_said_with_the_arithmetic():
    assert too_slow(1.0, 300.0, TimeLimit(60.0, elapsed=3.0)) == (
        "one step takes 1.000 s; 63 steps need 63 s, more than --perf-timeout=60: add --perf-steps=20, or set "
        "--perf-timeout=86"
    )
    assert too_slow(1.0, 300.0, TimeLimit(66.0, "timeout", 8.0)) == (
        "one step takes 1.000 s; 63 steps need 63 s, but timeout=66 leaves only 58 s after setup: add "
        "--perf-steps=20, or set timeout=93"
    )
    assert too_slow(100.0, 37.5, TimeLimit(600.0)).endswith(
        "8 steps need 800 s, more than --perf-timeout=600: set --perf-timeout=1100"
    ), "no fewer steps would do"
    assert too_slow(1.0, 300.0, TimeLimit(80.0, elapsed=3.0)) == ""


@pytest.mark.parametrize("left", [20.0, 60.0, 600.0])
@pytest.mark.parametrize("seconds", [2.0, 37.5, 300.0, 5000.0])
@pytest.mark.parametrize("step_s", [0.01, 0.3, 1.0, 3.0, 7.0, 30.0, 100.0])
def test_what_is_suggested_ends_in_time(step_s, seconds, left):
    text = too_slow(step_s, seconds, TimeLimit(left))
    if not text:
        return
    given = dict(re.findall(r"--perf-(\w+)=(\d+)", text.partition(": ")[2]))
    assert too_slow(step_s, seconds, TimeLimit(float(given.pop("timeout")))) == ""
    if given:
        less = MeasurementPlan(int(given.get("warmup", PLAN.warmup)), int(given.get("steps", PLAN.steps)))
        share = float(given["budget"]) / ROUNDS if "budget" in given else seconds
        assert too_slow(step_s, share, TimeLimit(left), less) == ""


@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("left", [20.0, 60.0, 600.0])
@pytest.mark.parametrize("seconds", [2.0, 37.5, 300.0, 5000.0])
def test_a_step_above_the_longest_never_ends_in_time_and_one_well_below_does(seconds, left, period):
    wanted = full(PLAN, period, 4)
    longest = longest_ns(wanted, period, seconds, left, besides=4 * period)
    for factor in (1.1, 2.0, 30.0):
        assert cannot_finish(PLAN, period, 4, int(factor * longest), seconds, TimeLimit(left), besides=4 * period), (
            "stopping in the warm-up takes nothing away"
        )
    sizes = within(wanted, period, int(longest), seconds, besides=4 * period)
    assert step_count(sizes, 4 * period) * longest <= left * 1e9
