"""What the judgement says of a machine that became faster or slower: it names it, and lets it decide nothing."""

import math

import pytest
from making import record, timed

from pytest_perfdl.judge import stored_repeats
from pytest_perfdl.judge.settle import settle
from pytest_perfdl.judge.stored_repeats import confirm
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import Limits
from pytest_perfdl.model.record import Occasion
from pytest_perfdl.results.verdict import MetricVerdict

BASE = (100.0, 102.0, 98.0, 101.0, 99.0, 103.0, 97.0, 100.0, 101.0, 99.0)
STEADY = (5_000_000,) * 10
LIMITS = Limits.parse({"step_time": "10%"})


def occasion(repeats, reference_ns=()):
    return Occasion(repeats, "2026-05-01T10:00:00Z", None, None, tuple(map(round, reference_ns)))


def of(values, reference_ns=(), *, name="step_time", occasions=None, **series):
    occasions = occasions or (occasion(len(values), reference_ns),)
    return record({name: timed(*values, **series)}, occasions=occasions)


def at(speed, repeats=5):
    """Reference times of fresh repeats on a machine of this speed."""
    return [5_000_000 / speed] * repeats


def judge(factor, reference_ns=(), base=None, name="step_time", **series):
    """Five fresh repeats that take so many times as long as the baseline's."""
    limits = Limits.parse({name: "10%"})
    base = base or of(BASE, STEADY, name=name, **series)
    fresh = of(tuple(factor * value for value in BASE[:5]), reference_ns, name=name, **series)
    return confirm(standing(fresh, base, (), limits), base, fresh, limits).metrics[0]


@pytest.mark.parametrize("speed, said", [
    (1.3, "; the machine is 30% faster than when the baseline was recorded (reference load)"),
    (1 / 1.12, "; the machine is 12% slower than when the baseline was recorded (reference load)"),
    (1.0, ""),
    (1.049, ""),
    (1 / 1.049, ""),
])  # fmt: skip
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.07, 1.12, 1.4])
def test_a_machine_of_another_speed_is_named_and_decides_nothing(factor, speed, said):
    metric, plain = judge(factor, at(speed)), judge(factor)
    assert (metric.verdict, metric.effect, metric.ci95) == (plain.verdict, plain.effect, plain.ci95)
    assert metric.reason == plain.reason + (said if plain.verdict != "unchanged" else "")


@pytest.mark.parametrize("factor", [0.8, 1.2, 1.4])
def test_without_a_reference_on_both_sides_nothing_is_named(factor):
    plain = judge(factor)
    assert judge(factor, at(1.3), base=of(BASE)) == plain
    assert judge(factor, (), base=of(BASE, STEADY)) == plain


def test_repeats_from_before_the_reference_was_timed_are_left_out():
    occasions = (occasion(10), occasion(10, STEADY))
    base = of(tuple(value * 1.02 for value in BASE) + BASE, occasions=occasions)
    assert base.reference_ns == (None,) * 10 + STEADY
    assert stored_repeats.find_drift(base, of((100.0,), at(1.3, 1))) == pytest.approx(-math.log(1.3))


@pytest.mark.parametrize(
    "reference_ns, speed, moved",
    [
        (STEADY, 1.051, True),
        (STEADY, 1.049, False),
        (STEADY, 1 / 1.051, True),
        # The logarithms spread by .1058, so 2.821 * .1058 * sqrt(1.1) = .313 is needed: a factor of 1.367.
        ((4_500_000, 5_500_000) * 5, 1.33, False),
        ((4_500_000, 5_500_000) * 5, 1.41, True),
        # One repeat: 2.326 * .10 * sqrt(2) = .329, a factor of 1.39.
        ((5_000_000,), 1.37, False),
        ((5_000_000,), 1.41, True),
    ],
    ids=["past-least", "below-least", "slower", "within-spread", "beyond-spread", "one-within", "one-beyond"],
)
def test_a_change_counts_beyond_five_percent_and_beyond_the_spread(reference_ns, speed, moved):
    base = of(BASE[: len(reference_ns)], reference_ns)
    found = stored_repeats.find_drift(base, of((100.0,), at(speed, 1)))

    assert (found is not None) == moved
    if found:
        mean = sum(map(math.log, reference_ns)) / len(reference_ns)
        assert found == pytest.approx(math.log(5e6 / speed) - mean, abs=1e-6)


@pytest.mark.parametrize(
    "name, unit, better, named",
    [
        ("step_time", "ns", "lower", True),
        ("tokens", "tok/s", "higher", True),
        ("mine", "ms", "lower", True),
        ("loss", "nat", "lower", False),
        ("kernel_time", "ns", "lower", False),
        ("forward.kernel_time", "ns", "lower", False),
    ],
)
def test_what_follows_the_machine(name, unit, better, named):
    metric = judge(0.6 if better == "higher" else 1.5, at(0.8), name=name, unit=unit, better=better)
    assert metric.verdict == "regressed"
    assert ("the machine is" in metric.reason) == named


def test_rounds_do_not_name_it():
    """Both sides ran in the same moment."""
    decided = MetricVerdict("step_time", "timed", "ns", "lower", 100.0, 125.0, verdict="regressed", reason="so")
    base, new = of(BASE, STEADY), of((125.0,), at(1.3, 1))
    found = standing(new, base, (), LIMITS)
    (metric,) = settle(found, new, base, base, {"step_time": decided}, [], LIMITS).metrics
    assert metric.reason == "so"
