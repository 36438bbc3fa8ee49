"""What the judgement makes of a machine that became faster or slower; figures by hand."""

import math
import random
from dataclasses import replace

import pytest
from making import record, timed
from scipy.stats import t

from pytest_perfdl.judge import drift
from pytest_perfdl.judge.screen import screen, with_machine, with_modes
from pytest_perfdl.judge.verdict import MetricVerdict
from pytest_perfdl.limits import Limits
from pytest_perfdl.record import Occasion

BASE = (100.0, 102.0, 98.0, 101.0, 99.0, 103.0, 97.0, 100.0, 101.0, 99.0)
STEADY = (5_000_000,) * 10
LIMITS = Limits.parse({"step_time": "10%"})


def occasion(repeats, reference_ns=()):
    return Occasion(repeats, "2026-05-01T10:00:00Z", None, None, tuple(map(round, reference_ns)))


def of(values, reference_ns=(), *, name="step_time", occasions=None, **series):
    occasions = occasions or (occasion(len(values), reference_ns),)
    return record({name: timed(*values, **series)}, occasions=occasions)


def at(speed, *repeats):
    """Reference times of fresh repeats on a machine of this speed."""
    return [5_000_000 / speed] * (len(repeats) or 1)


def judge(value, speed=1.0, base=None, limits=LIMITS):
    judgement = screen(of((value,), at(speed)), base or of(BASE, STEADY), (), limits)
    return judgement, judgement.metrics[0]


def test_a_slowdown_that_a_faster_machine_hides_is_suspected():
    judgement, metric = judge(125 / 1.3, speed=1.3)

    plain = screen(of((125 / 1.3,)), of(BASE), (), LIMITS).metrics[0]
    assert (plain.verdict, metric.verdict, judgement.suspects) == ("unchanged", "suspect", ("step_time",))
    shift = math.log(125) - sum(map(math.log, BASE)) / 10
    assert f"; at the baseline's speed {math.expm1(shift) * 100:+.1f}% [" in metric.reason
    assert metric.reason.endswith("; the machine itself is 30% faster than at the baseline (reference load)")
    # The figures stay those of the times as they were measured.
    assert (metric.effect, metric.ci95, metric.mde) == (plain.effect, plain.ci95, plain.mde)
    assert metric.reason.startswith(f"{plain.reason}; ")


def test_the_second_reading_is_the_screen_of_times_at_the_baselines_speed():
    _, metric = judge(125 / 1.3, speed=1.3)
    direct = screen(of((125.0,)), of(BASE), (), LIMITS).metrics[0]

    assert f"at the baseline's speed {direct.reason}" in metric.reason


def test_each_repeat_is_taken_at_its_own_speed():
    # The step follows the machine: at one speed the baseline's repeats are all alike, however they look.
    speeds = (1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9, 1.05, 0.95)
    base = of(tuple(100 / speed for speed in speeds), [5e6 / speed for speed in speeds])
    metric = judge(106 / 1.4, speed=1.4, base=base, limits=Limits.parse({"step_time": "5%"}))[1]

    assert metric.verdict == "suspect"
    # sd is at its floor of 1 %, so five percent of the logarithm's t quantile of one percent is far away.
    assert 0.06 / (0.01 * math.sqrt(1.1)) > t.ppf(0.99, 9)


def test_a_faster_machine_and_the_same_code_is_no_suspect():
    judgement, metric = judge(100 / 1.3, speed=1.3)

    assert (metric.verdict, judgement.suspects) == ("improved", ())
    assert metric.reason.endswith("; the machine itself is 30% faster than at the baseline (reference load)")


def test_an_improvement_that_is_none_at_one_speed_is_suspected():
    assert judge(115 / 1.3, speed=1.3)[1].verdict == "suspect"
    assert screen(of((115 / 1.3,)), of(BASE), (), LIMITS).metrics[0].verdict == "improved"


def test_what_is_unsure_at_one_speed_is_not_called_unchanged():
    noisy = (100.0, 112.0, 90.0, 105.0, 95.0, 108.0, 93.0, 100.0, 104.0, 97.0)
    judgement, metric = judge(100.0, speed=1.06, base=of(noisy, STEADY), limits=Limits.parse({"step_time": "14%"}))

    assert screen(of((100.0,)), of(noisy), (), Limits.parse({"step_time": "14%"})).verdict == "unchanged"
    assert (judgement.verdict, judgement.suspects) == ("inconclusive", ())
    assert "at the baseline's speed +5" in metric.reason


def test_a_slower_machine_explains_and_decides_nothing():
    for value in (112.0, 140.0, 100.0, 80.0):
        judgement, metric = judge(value, speed=1 / 1.12)
        plain = screen(of((value,)), of(BASE), (), LIMITS)
        assert (judgement.verdict, judgement.suspects) == (plain.verdict, plain.suspects)
        assert replace(metric, reason="") == replace(plain.metrics[0], reason="")
        named = "" if metric.verdict == "unchanged" else "; the machine itself is 12% slower than at the baseline"
        assert metric.reason.startswith(plain.metrics[0].reason + named)


@pytest.mark.parametrize("speed", [1.0, 1.049, 1 / 1.049], ids=["same", "hardly-faster", "hardly-slower"])
@pytest.mark.parametrize("value", [80, 91, 96, 100, 104, 109, 112, 140])
def test_on_a_steady_machine_nothing_changes(value, speed):
    assert judge(value, speed)[0] == screen(of((value,)), of(BASE), (), LIMITS)


@pytest.mark.parametrize("value", [80, 96, 109, 140])
def test_without_a_reference_on_both_sides_nothing_changes(value):
    plain = screen(of((value,)), of(BASE), (), LIMITS)

    assert screen(of((value,), at(1.3)), of(BASE), (), LIMITS) == plain
    assert screen(of((value,)), of(BASE, STEADY), (), LIMITS) == plain


def test_repeats_from_before_the_reference_was_timed_are_left_out_of_the_second_reading():
    # Ten old repeats, of a slow day, and ten with their references.
    occasions = (occasion(10), occasion(10, STEADY))
    base = of(tuple(value * 1.02 for value in BASE) + BASE, occasions=occasions)
    metric = judge(125 / 1.3, speed=1.3, base=base)[1]

    assert base.reference_ns == (None,) * 10 + STEADY
    direct = screen(of((125.0,)), of(BASE), (), LIMITS).metrics[0]
    assert f"at the baseline's speed {direct.reason}" in metric.reason


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
    found = drift.between(base, of((100.0,), at(speed)))

    assert (found is not None) == moved
    if found:
        mean = sum(map(math.log, reference_ns)) / len(reference_ns)
        assert found.log_ratio == pytest.approx(math.log(5e6 / speed) - mean, abs=1e-6)


@pytest.mark.parametrize(
    "name, unit, better, value, verdict",
    [
        ("tokens", "tok/s", "higher", 80 * 1.3, "suspect"),
        ("tokens", "tok/s", "higher", 100 * 1.3, "improved"),
        ("mine", "ms", "lower", 125 / 1.3, "suspect"),
        ("loss", "nat", "lower", 100, "unchanged"),
        ("kernel_time", "ns", "lower", 100, "unchanged"),
        ("forward.kernel_time", "ns", "lower", 100, "unchanged"),
    ],
)
def test_what_follows_the_machine(name, unit, better, value, verdict):
    base = of(BASE, STEADY, name=name, unit=unit, better=better)
    new = of((value,), at(1.3), name=name, unit=unit, better=better)

    assert screen(new, base, (), Limits.parse({name: "10%"})).metrics[0].verdict == verdict


def test_what_does_not_follow_the_machine_is_not_explained_by_it():
    base, new = of(BASE, STEADY, name="kernel_time"), of((140.0,), at(0.8), name="kernel_time")

    assert "machine" not in screen(new, base, (), Limits.parse({"kernel_time": "10%"})).reason


def test_values_without_a_logarithm_and_times_without_a_limit_are_left_alone():
    assert judge(0.0, speed=1.3)[1].reason.startswith(
        "has values of zero or below: no ratio can be judged; the machine"
    )
    assert judge(125 / 1.3, speed=1.3, limits=Limits())[1].verdict is None


def test_unpaired_verdicts_are_on_raw_times_and_name_the_machine():
    base, fresh = of(BASE, STEADY), of((125 / 1.3,) * 5, at(1.3, *range(5)))
    limit = LIMITS.for_metric("step_time")
    unpaired = MetricVerdict("step_time", "timed", "ns", "lower", 100.0, 96.0, verdict="unchanged", reason="so")

    # What raw times call unchanged is warned of; what they call regressed stays so, explained.
    hidden = with_machine(unpaired, base, fresh, limit)
    assert hidden.verdict == "suspect"
    assert hidden.reason.startswith("so; at the baseline's speed +2")
    regressed = with_machine(replace(unpaired, verdict="regressed"), base, fresh, limit)
    assert regressed.verdict == "regressed"
    assert regressed.reason == "so; the machine itself is 30% faster than at the baseline (reference load)"
    slower = with_machine(replace(unpaired, verdict="regressed"), base, of((140.0,), at(0.8)), limit)
    assert slower.reason == "so; the machine itself is 25% slower than at the baseline (reference load)"


def test_paired_verdicts_do_not_name_it():
    decided = MetricVerdict("step_time", "timed", "ns", "lower", 100.0, 125.0, verdict="regressed", reason="so")

    assert with_modes(decided, of(BASE, STEADY), of((125.0,), at(1.3))) == decided


def suspects(*, code=1.0, speed=1.0, follows=1.0, runs=600, with_reference=True):
    """How many of these runs the screen suspects; a step's time goes with `1 / speed ** follows`."""
    rng = random.Random(20260601)
    found = 0
    for _ in range(runs):
        base = [100 * math.exp(rng.gauss(0, 0.02)) for _ in range(10)]
        references = [5e6 * math.exp(rng.gauss(0, 0.03)) for _ in range(11)]
        new = 100 * code / speed**follows * math.exp(rng.gauss(0, 0.02))
        times = (references[:10], [references[10] / speed]) if with_reference else ((), ())
        found += bool(screen(of((new,), times[1]), of(tuple(base), times[0]), (), LIMITS).suspects)
    return found / runs


def test_the_reference_costs_a_steady_machine_at_most_one_percent_more_suspects():
    assert suspects() - suspects(with_reference=False) <= drift.ALPHA


def test_a_quarter_more_work_is_suspected_on_a_machine_that_is_a_third_faster():
    assert suspects(code=1.25, speed=4 / 3, runs=200) > 0.95
    assert suspects(code=1.25, speed=4 / 3, runs=200, with_reference=False) < 0.05
    assert suspects(speed=4 / 3, runs=200) < 0.15
