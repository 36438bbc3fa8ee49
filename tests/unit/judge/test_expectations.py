"""What a test expects of two alternatives: shown, refuted or open, from rounds worked out by hand."""

from __future__ import annotations

import pytest

from pytest_perfdl.judge.expectation import demand, sides, verdict
from pytest_perfdl.judge.paired import PairedTest
from pytest_perfdl.judge.rounds import Round, orders

LABELS = ("loop", "fused")


def rounds(ratio, count=12, spread=0.001):
    """The second alternative takes `ratio` times the first one's time, within a spread."""
    found = []
    for number, order in enumerate(orders(1, count)):
        wobble = 1 + spread * (number % 5 - 2)
        found.append(Round(order, {"step_time": 1e6 + number}, {"step_time": 1e6 * ratio * wobble}))
    return found


def judged(ratio, kind, amount, count=12, **more):
    suspect = demand("step_time", kind, amount)
    measured = rounds(ratio, count, **more)
    outcome = PairedTest((suspect,), 0.005).look(sides(measured, kind), ended=True)
    return verdict(outcome, "step_time", kind, amount, LABELS)


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
    assert found.limit == "faster by 10%"
    assert found.reason.startswith("fused against loop: -20.0% [-20.")
    assert found.reason.endswith("(95% interval, 10 paired rounds), expected faster by 10%")
    refuted = judged(1.06, "not slower", "3%")
    assert refuted.reason.endswith("expected not slower than 3%")


def test_ten_percent_faster_is_not_eleven_percent_slower():
    """1 / (1 - 0.10) - 1 = 11.1 %: the first takes that much longer when the second is 10 % faster."""
    assert demand("step_time", "faster", "10%").limit.relative == pytest.approx(1 / 9)
    assert judged(0.905, "faster", "10%").verdict != "unchanged"
    assert judged(0.890, "faster", "10%").verdict == "unchanged"


def test_too_few_rounds_leave_it_open():
    found = judged(0.80, "faster", "10%", count=3)
    assert found.verdict == "inconclusive"
    assert "3 rounds cannot prove it" in found.reason or "are needed" in found.reason


def test_noise_leaves_it_open():
    assert judged(0.90, "faster", "10%", spread=0.2).verdict == "inconclusive"


def test_rounds_that_share_state_are_invalid():
    same = [Round(order, {"step_time": 5.0}, {"step_time": 5.0}) for order in orders(1, 12)]
    suspect = demand("step_time", "faster", "10%")
    outcome = PairedTest((suspect,), 0.005).look(sides(same, "faster"), ended=True)
    found = verdict(outcome, "step_time", "faster", "10%", LABELS)
    assert found.verdict == "invalid"
    assert "share state" in found.reason
