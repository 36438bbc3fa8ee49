"""For which verdicts --perf-update writes a baseline anew."""

import pytest

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
