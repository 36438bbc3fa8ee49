"""Steps are reduced to what a share of the budget holds."""

import pytest

from pytest_perfdl.measure.sizes import ROUNDS, Pace, full, reduction_note, seconds_of_steps, within
from pytest_perfdl.model.record import MeasurementPlan

PLAN = MeasurementPlan(warmup=15, steps=40)


def test_cheap_steps_are_what_the_test_asks_for():
    wanted = full(PLAN, 1, 8)
    assert within(wanted, 1, 10_000_000, 17.0) == wanted
    assert reduction_note(wanted, wanted, 10_000_000) == ""


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
