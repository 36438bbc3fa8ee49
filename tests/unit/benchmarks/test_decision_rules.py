"""Other tools' rules against cases worked out by hand."""

import math
from functools import partial

import numpy as np
import pytest

from unit.benchmarks.recorded_runs import MILLISECOND

import rules  # isort: skip (recorded_runs makes it importable)


def steps(*milliseconds):
    return np.array([round(ms * MILLISECOND) for ms in milliseconds], np.int64)


def alternating(low, high, count):
    return steps(*([low, high] * count)[:count])


class TestPytestBenchmark:
    @pytest.mark.parametrize("first, recorded, rounds", [
        (10, 200, 100),
        (10.5, 200, 96),
        (3, 200, 200),
        (300, 10, 5),
        (300, 3, 3),
    ], ids=["whole", "rounded-up", "all-recorded", "least", "too-few-recorded"])  # fmt: skip
    def test_as_many_rounds_as_a_second_holds(self, first, recorded, rounds):
        assert rules.benchmark_rounds(steps(*[first] * recorded)) == rounds

    @pytest.mark.parametrize("low, high, rounds", [
        (10, 10, 5),
        (9.9, 10.1, 5),
        # z = 2.5758, deviation .5: 42 rounds give 2.011 %, 43 give 1.989 %.
        (9.5, 10.5, 43),
        # Needs 166 rounds; a second holds 112 of 9 ms.
        (9, 11, 112),
    ], ids=["exact", "least", "by-hand", "time-is-up"])  # fmt: skip
    def test_rounds_until_the_mean_is_precise(self, low, high, rounds):
        assert rules.precise_rounds(alternating(low, high, 300)) == rounds

    @pytest.mark.parametrize("after, fails", [(105, False), (106, True), (50, False)], ids=["at", "past", "faster"])
    def test_fails_past_the_threshold(self, after, fails):
        check = partial(rules.compare_fail, field=np.mean, percent=5)
        assert check([steps(*[100] * 20)], [steps(*[after] * 20)]) is fails

    @pytest.mark.parametrize("field, fails", [(np.mean, True), (np.median, False), (np.min, False)],
                             ids=["mean", "median", "min"])  # fmt: skip
    def test_the_field_decides_what_a_spike_does(self, field, fails):
        check = partial(rules.compare_fail, field=field, percent=5)
        assert check([steps(*[100] * 10)], [steps(*[100] * 9, 400)]) is fails

    def test_only_the_rounds_it_runs_count(self):
        # A second holds ten of 100 ms: what comes later is not seen.
        check = partial(rules.compare_fail, field=np.mean, percent=5)
        assert not check([steps(*[100] * 20)], [steps(*[100] * 10, *[400] * 10)])


class TestAsv:
    def test_a_sample_lasts_ten_milliseconds(self):
        assert rules.asv_samples(steps(*[12] * 40)).tolist() == [12e6] * 5
        assert rules.asv_samples(steps(*[3, 4, 5] * 10)).tolist() == [4e6] * 5
        assert rules.asv_samples(steps(*[3, 4, 5] * 3)).tolist() == [4e6] * 3

    def test_ten_samples_apart_differ(self):
        low, high = np.arange(10.0), np.arange(10.0) + 10
        assert rules.asv_different(low, high)
        # Of all orders 2 in 184756 are as far apart.
        assert not rules.asv_different(low, high, threshold=2 / math.comb(20, 10))

    def test_three_samples_cannot_differ(self):
        assert not rules.asv_different(np.array([1.0, 2, 3]), np.array([11.0, 12, 13]))

    @pytest.mark.parametrize("count, low, high", [(7, -math.inf, math.inf), (10, 0, 9), (12, 1, 10)],
                             ids=["too-few", "range", "inside"])  # fmt: skip
    def test_interval_of_a_median(self, count, low, high):
        # Binomial tails at one half: 1/128, 1/1024 and 13/4096 against .005.
        assert rules.asv_interval(np.arange(float(count))) == (low, high)

    @pytest.mark.parametrize("after, slower", [(109, False), (112, True), (50, False)],
                             ids=["within-factor", "past-factor", "faster"])  # fmt: skip
    def test_significant_and_past_the_factor(self, after, slower):
        noise = np.arange(10) * MILLISECOND // 100
        before = [steps(*[100] * 10) + noise, steps(*[100] * 10) + noise]
        now = [steps(*[after] * 10) + noise, steps(*[after] * 10) + noise]
        assert rules.asv_continuous(before, now) is slower


class TestGoogleBenchmark:
    def test_a_repetition_is_a_mean_of_successive_steps(self):
        assert rules.repetitions(steps(*range(1, 24)), 10).tolist() == [(2 * i + 1.5) * 1e6 for i in range(10)]

    @pytest.mark.parametrize("factor, slower", [(1.0, False), (1.001, False), (1.05, True), (0.95, False)],
                             ids=["same", "among-noise", "slower", "faster"])  # fmt: skip
    def test_significant_and_slower(self, factor, slower):
        before = np.linspace(100, 104, 100) * MILLISECOND
        assert rules.google_compare([before.astype(np.int64)], [(factor * before).astype(np.int64)]) is slower


class TestCriterion:
    @pytest.mark.parametrize("factor, slower", [(1.0, False), (1.005, False), (1.05, True), (0.95, False)],
                             ids=["same", "within-noise-threshold", "slower", "faster"])  # fmt: skip
    def test_significant_and_past_the_noise_threshold(self, factor, slower):
        before = (100 + np.sin(np.arange(100)) * 0.5) * MILLISECOND
        after = np.roll(before, 7) * factor
        assert rules.criterion([before.astype(np.int64)], [after.astype(np.int64)]) is slower

    def test_the_same_samples_give_the_same_answer(self):
        rng = np.random.default_rng(0)
        before, after = (np.rint(rng.normal(mean, 5, 100) * MILLISECOND).astype(np.int64) for mean in (100, 102))
        assert len({rules.criterion([before], [after]) for _ in range(3)}) == 1


class TestPyperf:
    def test_values_last_a_tenth_of_a_second(self):
        assert rules.pyperf_values(steps(*[50] * 6)).tolist() == [50e6] * 3
        assert rules.pyperf_values(steps(*[60, 40] * 3)).tolist() == [50e6] * 3
        assert rules.pyperf_values(steps(*[10] * 9)).tolist() == [10e6] * 3

    @pytest.mark.parametrize("after, slower", [
        ((103, 104, 105), True),
        ((102, 103, 104), False),
        ((90, 91, 92), False),
    ], ids=["3.67", "2.45", "faster"])  # fmt: skip
    def test_pooled_t_against_2_776(self, after, slower):
        # Differences of 3 and of 2 over 1 * sqrt(2 / 3), 4 degrees of freedom.
        assert rules.pyperf_compare([steps(100, 101, 102)], [steps(*after)]) is slower


class TestRustcPerf:
    def test_threshold_of_an_odd_and_of_an_even_number_of_changes(self):
        # Changes 0, 0, 1, 2, 5 %: quartiles 0 and 3.5.
        odd = np.array([100, 101, 101, 103.02, 103.02, 108.171])
        assert rules.rustc_threshold(odd) == pytest.approx(0.14)
        # Changes 0, 1, 2, 5 %: quartiles 0 and 5.
        even = np.array([100, 101, 103.02, 103.02, 108.171])
        assert rules.rustc_threshold(even) == pytest.approx(0.20)

    @pytest.mark.parametrize("after, slower", [(123.2, False), (123.4, True), (80, False)],
                             ids=["within", "past", "faster"])  # fmt: skip
    def test_the_change_from_the_last_result_decides(self, after, slower):
        # 14 % above the last result, 108.171, is 123.315.
        history = [steps(each) for each in (100, 101, 101, 103.02, 103.02, 108.171)]
        assert rules.rustc_perf(history, [steps(after)]) is slower


class TestBencher:
    def test_limit(self):
        # Mean 100, deviation sqrt(8 / 3), t of .99 at 2 degrees of freedom 6.9646.
        assert rules.bencher_limit(np.array([98.0, 100, 102])) == pytest.approx(111.373, abs=1e-3)

    @pytest.mark.parametrize(
        "after, slower", [(111, False), (112, True), (50, False)], ids=["within", "past", "faster"]
    )
    def test_the_new_mean_against_the_limit(self, after, slower):
        assert rules.bencher([steps(98), steps(100), steps(102)], [steps(after)]) is slower


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.name)
def test_every_rule_sees_twice_the_time_and_no_other_change(rule):
    rng = np.random.default_rng(1)

    def processes(count, level):
        # The same spread in all of them, so that chance has no part in what is unchanged.
        spread = np.exp(0.005 * rng.standard_normal(100))
        return [np.rint(level * MILLISECOND * np.roll(spread, place)).astype(np.int64) for place in range(count)]

    stored = processes(rule.stored, 10)
    assert rule.slower(stored, processes(rule.fresh, 20))
    assert not rule.slower(stored, processes(rule.fresh, 5))
    assert not rule.slower(stored, [stored[0]] * rule.fresh)
    assert 5 <= rule.taken(stored[0]) <= 100
