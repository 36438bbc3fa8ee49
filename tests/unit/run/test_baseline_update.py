"""For which verdicts --perf-update writes a baseline anew."""

from dataclasses import replace

import pytest

from pytest_perfdl.model.limits import Budget, Limit
from pytest_perfdl.results.verdict import VERDICTS, Judgement, MetricVerdict
from pytest_perfdl.run import baseline_update

OPS = MetricVerdict("ops", "counted", "1", "lower", 412, 419, verdict="changed", reason="412 -> 419 (+7)")


def rewrites(mode, verdict, *, counts=False):
    """Whether a test that has a baseline gets a new one."""
    return baseline_update.rewrites(mode, Judgement("t", verdict, "", (OPS,) if counts else ()))


@pytest.mark.parametrize("verdict", VERDICTS)
def test_changed_rewrites_what_is_not_as_before(verdict):
    anew = verdict in ("regressed", "missing", "outdated", "changed", "improved", "incomparable")
    assert rewrites("changed", verdict) == anew


@pytest.mark.parametrize("verdict", ["unchanged", "inconclusive", "suspect", "improved", "regressed"])
def test_changed_rewrites_where_counts_changed_whatever_rounds_say(verdict):
    assert rewrites("changed", verdict, counts=True)
    assert not rewrites("new", verdict, counts=True)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_new_rewrites_what_is_not_whole(verdict):
    assert rewrites("new", verdict) == (verdict == "missing")


def test_a_budget_is_not_lifted_by_a_baseline():
    budget = MetricVerdict(
        "step_time", "timed", "ns", "lower", 1.0, 2.0, limit=Budget("1ms", "<="), verdict="regressed"
    )
    slower = MetricVerdict("block_time", "timed", "ns", "lower", 1.0, 2.0, limit=Limit("3%", 0.03), verdict="regressed")
    same = MetricVerdict("ops", "counted", "1", "lower", 412, 412, verdict="unchanged")
    alone = Judgement("t", "regressed", "", (budget, same))
    assert alone.over_budget == (budget,)
    assert not baseline_update.rewrites("changed", alone)
    for others in ((same, slower), (OPS,)):
        assert baseline_update.rewrites("changed", Judgement("t", "regressed", "", (budget, *others)))
    # Nothing but budgets is judged where the baseline is of another test, or there is none.
    unjudged = replace(same, verdict=None)
    assert baseline_update.rewrites("changed", Judgement("t", "regressed", "", (budget, unjudged)))
    assert baseline_update.rewrites("changed", replace(alone, environment=(slower,)))
