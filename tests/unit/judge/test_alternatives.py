"""What a test expects of two alternatives: shown, refuted or open, from rounds worked out by hand."""

from __future__ import annotations

import pytest

from pytest_perfdl.judge.kernels import demand, judge_comparison, order_sides
from pytest_perfdl.judge.round_data import Round, orders
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.model.limits import Expected

LABELS = ("loop", "fused")


def rounds(ratio, count=12, spread=0.001):
    """The second alternative takes `ratio` times the first one's time, within a spread."""
    found = []
    for number, order in enumerate(orders(1, count)):
        wobble = 1 + spread * (number % 5 - 2)
        found.append(Round(order, {"step_time": 1e6 + number}, {"step_time": 1e6 * ratio * wobble}))
    return found


def look(measured, kind, amount, tests=1):
    asked = demand("step_time", Expected(kind, amount))
    gate = Gate((asked,), tests, resolution=asked.limit.relative)
    return gate.look(order_sides(measured, Expected(kind, amount)), Spent(600, 300)).verdicts["step_time"]


def judged(ratio, kind, amount, count=12, **more):
    return judge_comparison(look(rounds(ratio, count, **more), kind, amount), Expected(kind, amount), LABELS)


@pytest.mark.parametrize(
    ("ratio", "kind", "amount", "said"),
    [
        (0.80, "faster", "10%", "unchanged"),
        (0.95, "faster", "10%", "regressed"),
        (1.00, "faster", "10%", "regressed"),
        (1.20, "faster", "10%", "regressed"),
        (0.98, "faster", "0%", "unchanged"),
        (1.00, "not slower", "3%", "unchanged"),
        (0.70, "not slower", "3%", "unchanged"),
        (1.02, "not slower", "3%", "unchanged"),
        (1.06, "not slower", "3%", "regressed"),
    ],
    ids=lambda value: str(value),
)
def test_an_expectation_holds_or_does_not(ratio, kind, amount, said):
    found = judged(ratio, kind, amount)
    assert found.verdict == said
    assert found.effect == pytest.approx(ratio - 1, abs=2e-3)
    assert found.ci95[0] <= found.effect <= found.ci95[1]
    assert found.base == pytest.approx(1e6, rel=1e-3)
    assert found.new == pytest.approx(ratio * 1e6, rel=2e-3)


def test_the_reason_names_both_and_what_was_expected():
    found = judged(0.80, "faster", "10%")
    assert str(found.limit) == "at least 10% faster"
    assert found.reason.startswith("fused compared with loop: 1.25x as fast [1.25x, 1.25x]")
    assert found.reason.endswith("(95% interval, 12 paired rounds), expected at least 10% faster")
    refuted = judged(1.06, "not slower", "3%")
    assert refuted.reason.endswith("expected at most 3% slower")


def test_ten_percent_faster_is_not_eleven_percent_slower():
    """1 / (1 - 0.10) - 1 = 11.1 %: the first takes that much longer when the second is 10 % faster."""
    assert demand("step_time", Expected("faster", "10%")).limit.relative == pytest.approx(1 / 9)
    assert judged(0.905, "faster", "10%").verdict != "unchanged"
    assert judged(0.890, "faster", "10%").verdict == "unchanged"


@pytest.mark.parametrize("kind", ["faster", "not slower"])
def test_what_looks_so_in_every_round_is_open_until_it_is_shown(kind):
    """The rule for suspects of a baseline is none for alternatives: where it is not shown, nobody has won."""
    measured = rounds(0.80 if kind == "faster" else 1.25, count=8, spread=0.02)
    found = look(measured, kind, "10%")
    assert (found.verdict, found.in_every_round) == ("suspect", True)
    said = judge_comparison(found, Expected(kind, "10%"), LABELS)
    assert (said.verdict, said.in_every_round) == ("inconclusive", False)


def test_too_few_rounds_leave_it_open():
    """That there is a difference is shown at the level of a false alarm, which three rounds cannot."""
    found = judged(0.80, "faster", "10%", count=3)
    assert found.verdict == "inconclusive"
    assert found.reason.endswith(
        "(95% interval, 3 paired rounds), expected at least 10% faster: undecided when the time budget ended "
        "(--perf-budget)"
    )
    assert judged(1.0, "faster", "10%", count=3).verdict == "regressed"


def test_expectations_share_the_level_of_the_run():
    measured = rounds(0.80, 12)
    assert [
        judge_comparison(look(measured, "faster", "10%", tests), Expected("faster", "10%"), LABELS).verdict
        for tests in (1, 40)
    ] == [
        "unchanged",
        "inconclusive",
    ]


@pytest.mark.parametrize("kind", ["faster", "not slower"])
def test_the_budget_leaves_no_more_than_the_expectation_itself(kind):
    """An expectation has no resolution beside its own amount."""
    ratio = 0.90 if kind == "faster" else 1.025
    assert judged(ratio, kind, "10%" if kind == "faster" else "3%", spread=0.02, count=8).verdict == "inconclusive"


def test_noise_leaves_it_open():
    assert judged(0.90, "faster", "10%", spread=0.2).verdict == "inconclusive"


def test_rounds_that_share_state_are_invalid():
    same = [Round(order, {"step_time": 5.0}, {"step_time": 5.0}) for order in orders(1, 12)]
    found = judge_comparison(look(same, "faster", "10%"), Expected("faster", "10%"), LABELS)
    assert found.verdict == "invalid"
    assert "not independent" in found.reason
