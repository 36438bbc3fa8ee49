"""Screen and confirmation together, as a session runs them, on seeded synthetic processes.

The figures of statistics.md, section 8: with 10 stored and 5 fresh repeats and a drift of 3 % between
occasions, a limit of 10 % gives up to 0.4 % false alarms a test, one of 3 % gives 3 to 5 %.
"""

import math
import random
from collections import Counter

import pytest
from making import record, timed

from pytest_perfdl.judge.confirm import confirm, settled
from pytest_perfdl.judge.screen import screen
from pytest_perfdl.limits import Limits

STORED, FRESH, RUNS = 10, 5, 1000


def verdicts(*, slower=0.0, sd=0.02, drift=0.0, limit="10%", runs=RUNS, modal=False):
    """What `runs` tests were first said to be, and what they were in the end."""
    rng, limits = random.Random(20260501), Limits.parse({"step_time": limit})

    def processes(number, shift=0.0):
        return [1e7 * math.exp(shift + rng.gauss(0, sd) + modal * 0.5 * (rng.random() < 0.5)) for _ in range(number)]

    def of(values):
        return record({"step_time": timed(*values)})

    first, last = Counter(), Counter()
    for _ in range(runs):
        base, moment = of(processes(STORED)), math.log1p(slower) + rng.gauss(0, drift)
        judgement = screen(of(processes(1, moment)), base, (), limits)
        first[judgement.verdict] += 1
        drawn = []
        while judgement.suspects and len(drawn) < FRESH:
            drawn += processes(1, moment)
            if settled(judgement, base, of(drawn), FRESH - len(drawn), limits):
                break
        if drawn:
            judgement = confirm(judgement, base, of(drawn), limits, remaining=FRESH - len(drawn))
        last[judgement.verdict] += 1
    return first, last


def most(rate, runs=RUNS):
    """The number of alarms that a true rate exceeds in one of a thousand simulations (normal bound)."""
    return rate * runs + 3.1 * math.sqrt(runs * rate * (1 - rate)) + 1


def test_the_screen_suspects_what_it_says_it_does():
    first, _ = verdicts(runs=2000, limit="0%")
    assert abs(first["suspect"] - 200) < 3.3 * math.sqrt(2000 * 0.1 * 0.9)


def test_most_unchanged_tests_cost_one_repeat():
    first, last = verdicts(runs=2000)
    assert first["suspect"] <= 0.02 * 2000  # the others are surely within the limit
    assert last["regressed"] == 0
    assert last["unchanged"] >= 0.97 * 2000


@pytest.mark.parametrize("limit", ["1%", "10%"])
@pytest.mark.parametrize("modal", [False, True])
def test_code_that_is_slower_by_just_the_limit_fails_in_at_most_one_of_a_hundred_tests(limit, modal):
    # The worst case that the limit allows; every screened test goes on to the confirmation.
    _, last = verdicts(slower=float(limit[:-1]) / 100, limit=limit, modal=modal)
    assert last["regressed"] <= most(0.01)


@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_with_drift_the_built_in_limit_keeps_false_alarms_below_half_a_percent(sd):
    _, last = verdicts(drift=0.03, sd=sd)
    assert last["regressed"] <= most(0.004)


def test_with_drift_a_limit_of_three_percent_does_not_keep_the_promise():
    # Why the unpaired limit is 10 %: this is what the narrower one gives.
    _, last = verdicts(drift=0.03, limit="3%")
    assert 0.02 * RUNS <= last["regressed"] <= 0.06 * RUNS


@pytest.mark.parametrize("slower, least", [(0.15, 0.60), (0.20, 0.90), (0.50, 0.995)])
def test_real_slowdowns_are_found(slower, least):
    _, last = verdicts(slower=slower, drift=0.03, runs=500)
    assert last["regressed"] >= least * 500


@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_what_is_past_the_limit_is_rarely_called_unchanged(sd):
    _, last = verdicts(slower=0.12, sd=sd)
    assert last["unchanged"] <= most(0.05)


def test_stopping_early_changes_no_verdict_into_or_out_of_regressed():
    rng, limits = random.Random(7), Limits.parse({"step_time": "10%"})
    stopped = 0
    for _ in range(300):
        base = record({"step_time": timed(*(rng.gauss(100, 3) for _ in range(STORED)))})
        screened = screen(record({"step_time": timed(150.0)}), base, (), limits)
        values = [rng.gauss(113, 3) for _ in range(FRESH)]
        full = confirm(screened, base, record({"step_time": timed(*values)}), limits).verdict
        for drawn in range(1, FRESH):
            fresh = record({"step_time": timed(*values[:drawn])})
            if settled(screened, base, fresh, FRESH - drawn, limits):
                early = confirm(screened, base, fresh, limits, remaining=FRESH - drawn).verdict
                assert "regressed" not in (early, full)
                stopped += 1
                break
    assert stopped > 50
