"""Rounds: the coin, and what makes a set of them no measurement."""

import itertools
import math

import pytest

from pytest_perfdl.judge.round_data import Round, broken, log_ratios, orders


def some(count, *, order=None):
    return [
        Round(
            order or drawn,
            {"step_time": 100.0 + number, "block_time": 2.0},
            {"step_time": 101.0 + 2 * number, "block_time": 3.0},
        )
        for number, drawn in enumerate(orders(3, count))
    ]


def changed(rounds, place, **values):
    head = {**rounds[place].head, **values}
    return [*rounds[:place], Round(rounds[place].order, rounds[place].base, head), *rounds[place + 1 :]]


def test_orders_are_fair_and_repeatable():
    drawn = orders(11, 4000)
    assert drawn[:30] == orders(11, 30)
    assert set(drawn) == {"base first", "head first"}
    assert abs(drawn.count("head first") - 2000) < 3.3 * math.sqrt(1000)
    after_same = sum(a == b for a, b in itertools.pairwise(drawn))
    assert abs(after_same - 2000) < 3.3 * math.sqrt(1000)
    assert orders(12, 30) != drawn[:30]


def test_log_ratios_are_of_head_to_base():
    rounds = [Round("base first", {"x": 2.0}, {"x": 4.0}), Round("head first", {"x": 8.0}, {"x": 4.0})]
    assert log_ratios(rounds, "x").tolist() == pytest.approx([math.log(2), -math.log(2)])


@pytest.mark.parametrize("count", [0, 1, 10, 30])
def test_honest_rounds_can_be_judged(count):
    assert broken(some(count), ("step_time", "block_time")) == ""


@pytest.mark.parametrize("count, refused", [(2, False), (14, False), (15, True), (30, True)])
@pytest.mark.parametrize("order", ["base first", "head first"])
def test_an_order_that_no_coin_draws_is_refused(count, refused, order):
    # By hand: fourteen equal orders have a chance of 2^-13 > 1e-4, fifteen of 2^-14 < 1e-4.
    why = broken(some(count, order=order), ("step_time",))
    first = {"base first": "baseline", "head first": "current"}[order]
    said = f"the {first} code ran first in all {count} paired rounds, so the order was not random"
    assert why == (said if refused else "")


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf], ids=["zero", "negative", "nan", "infinite"])
def test_a_value_without_a_logarithm_is_refused(value):
    rounds = changed(some(5), 2, step_time=value)
    why = f"paired round 3: step_time of the current code is {value:g}, so no ratio can be computed"
    assert broken(rounds, ("step_time",)) == why
    assert broken(rounds, ("block_time",)) == ""


def test_a_metric_that_a_side_lacks_is_refused():
    assert broken(some(5), ("step_time", "cpu_time")) == "paired round 1: the baseline code has no value of cpu_time"


def test_one_measurement_as_both_sides_is_refused():
    rounds, one = some(5), {"step_time": 5.0}
    rounds[3] = Round("base first", one, one)
    why = broken(rounds, ("step_time",))
    assert why == "paired round 4: the same measurement is used for baseline and current code"


def test_equal_numbers_are_refused_where_half_of_the_rounds_have_them():
    rounds = some(4)
    once = changed(rounds, 1, **rounds[1].base)
    assert broken(once, ("step_time", "block_time")) == ""
    twice = changed(once, 3, **rounds[3].base)
    why = "baseline and current code have identical times in paired rounds 2, 4, so they are not independent"
    assert broken(twice, ("step_time", "block_time")) == why
    partly = changed(once, 3, step_time=rounds[3].base["step_time"])
    assert broken(partly, ("step_time", "block_time")) == ""
    # A coarse clock ticks alike now and then.
    assert broken([*twice, some(5)[4]], ("step_time", "block_time")) == ""


def test_an_authors_figure_may_be_the_same_each_time():
    one = {"step_time": 5.0, "loss": 0.5}
    rounds = [Round("base first" if n % 2 else "head first", {**one}, {**one, "step_time": 6.0 + n}) for n in range(4)]
    assert broken(rounds, ("loss",)) == broken(rounds, ("step_time", "loss")) == ""
