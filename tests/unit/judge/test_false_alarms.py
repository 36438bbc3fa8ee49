"""Times held against stored repeats, as a session runs it, on seeded synthetic processes.

The figures of statistics.md, section 8: with 10 stored and 5 fresh repeats and a drift of 3 % between
occasions, a limit of 10 % gives up to 0.4 % false alarms a test, one of 3 % gives 3 to 5 %.
"""

import math
import random
from collections import Counter

import pytest
from making import record, timed

from pytest_perfdl.judge.stored_repeats import confirm, is_settled
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import Limits

STORED, FRESH, RUNS = 10, 5, 1000


def verdicts(*, slower=0.0, sd=0.02, drift=0.0, limit="10%", runs=RUNS, modal=False):
    """What `runs` tests were said to be, and how many repeats they drew."""
    rng, limits = random.Random(20260501), Limits.parse({"step_time": limit})

    def processes(number, shift=0.0):
        return [1e7 * math.exp(shift + rng.gauss(0, sd) + modal * 0.5 * (rng.random() < 0.5)) for _ in range(number)]

    def of(values):
        return record({"step_time": timed(*values)})

    said, repeats = Counter(), Counter()
    for _ in range(runs):
        base, moment = of(processes(STORED)), math.log1p(slower) + rng.gauss(0, drift)
        drawn = processes(1, moment)
        found = standing(of(drawn), base, (), limits)
        while (left := FRESH - len(drawn)) and not is_settled(found, base, of(drawn), left, limits):
            drawn += processes(1, moment)
        said[confirm(found, base, of(drawn), limits, remaining=left).verdict] += 1
        repeats[len(drawn)] += 1
    return said, repeats


def most(rate, runs=RUNS):
    """The number of alarms that a true rate exceeds in one of a thousand simulations (normal bound)."""
    return rate * runs + 3.1 * math.sqrt(runs * rate * (1 - rate)) + 1


@pytest.mark.long
def test_most_unchanged_tests_cost_one_repeat():
    said, repeats = verdicts(runs=2000)
    assert repeats[1] >= 0.97 * 2000
    assert said["regressed"] == 0
    assert said["unchanged"] >= 0.97 * 2000


@pytest.mark.parametrize("limit", ["1%", "10%"])
@pytest.mark.parametrize("modal", [False, True])
def test_code_that_is_slower_by_just_the_limit_fails_in_at_most_one_of_a_hundred_tests(limit, modal):
    # The worst case that the limit allows.
    last, _ = verdicts(slower=float(limit[:-1]) / 100, limit=limit, modal=modal)
    assert last["regressed"] <= most(0.01)


@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_with_drift_the_built_in_limit_keeps_false_alarms_below_half_a_percent(sd):
    last, _ = verdicts(drift=0.03, sd=sd)
    assert last["regressed"] <= most(0.004)


def test_with_drift_a_limit_of_three_percent_does_not_keep_the_promise():
    # Why the unpaired limit is 10 %: this is what the narrower one gives.
    last, _ = verdicts(drift=0.03, limit="3%")
    assert 0.02 * RUNS <= last["regressed"] <= 0.06 * RUNS


@pytest.mark.parametrize("slower, least", [(0.15, 0.60), (0.20, 0.90), (0.50, 0.995)])
def test_real_slowdowns_are_found(slower, least):
    last, _ = verdicts(slower=slower, drift=0.03, runs=500)
    assert last["regressed"] >= least * 500


@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_what_is_past_the_limit_is_rarely_called_unchanged(sd):
    last, _ = verdicts(slower=0.12, sd=sd)
    assert last["unchanged"] <= most(0.05)


def test_stopping_early_changes_no_verdict_into_or_out_of_regressed():
    rng, limits = random.Random(7), Limits.parse({"step_time": "10%"})
    stopped = 0
    for _ in range(300):
        base = record({"step_time": timed(*(rng.gauss(100, 3) for _ in range(STORED)))})
        found = standing(record({"step_time": timed(150.0)}), base, (), limits)
        values = [rng.gauss(113, 3) for _ in range(FRESH)]
        full = confirm(found, base, record({"step_time": timed(*values)}), limits).verdict
        for drawn in range(1, FRESH):
            fresh = record({"step_time": timed(*values[:drawn])})
            if is_settled(found, base, fresh, FRESH - drawn, limits):
                early = confirm(found, base, fresh, limits, remaining=FRESH - drawn).verdict
                assert "regressed" not in (early, full)
                stopped += 1
                break
    assert stopped > 50
