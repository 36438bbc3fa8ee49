"""For which verdicts --perf-update writes a baseline anew."""

from dataclasses import replace

import pytest
from making import counted, record

from pytest_perfdl.baseline.text import keep_cases
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.limits import Budget, Limit
from pytest_perfdl.model.record import Call, Case, Occasion
from pytest_perfdl.results.verdict import VERDICTS, CaseVerdict, Judgement, MetricVerdict
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


def case(name, ns=1000.0, definition="0" * 16, ops=1):
    return Case(name, (ns,), 1, ops, 0, (), None, definition)


def verdicts(**given):
    return Judgement("t", "unchanged", "", cases=tuple(CaseVerdict(name, verdict) for name, verdict in given.items()))


def test_cases_without_a_baseline_are_added_unless_others_got_slower():
    added = verdicts(old="unchanged", added="new")
    for mode in ("new", "changed"):
        assert baseline_update.rewrites(mode, added)
        assert not baseline_update.rewrites(mode, verdicts(old="unchanged"))
    assert not baseline_update.rewrites("new", replace(added, verdict="regressed"))


@pytest.mark.parametrize(
    ("mode", "stays", "kept"),
    [
        ("new", True, {"same": 1, "slower": 1, "redefined": 2, "added": 2, "gone": 1}),
        ("changed", True, {"same": 1, "slower": 2, "redefined": 2, "added": 2, "gone": 1}),
        ("changed", False, {"same": 1, "slower": 2, "redefined": 2, "added": 2}),
        ("all", True, {"same": 2, "slower": 2, "redefined": 2, "added": 2, "gone": 1}),
        ("all", False, {"same": 2, "slower": 2, "redefined": 2, "added": 2}),
    ],
)
@pytest.mark.parametrize("repeats", [1, 3])
def test_a_new_baseline_keeps_the_cases_that_did_not_change(mode, stays, kept, repeats):
    other = "1" * 16
    base = table_of(case("gone", 1), case("redefined", 1), case("same", 1), case("slower", 1), repeats=repeats)
    new = table_of(case("added", 2), case("redefined", 2, other), case("same", 2), case("slower", 2), repeats=repeats)
    judged = verdicts(same="unchanged", slower="regressed", redefined="new", added="new")
    stored = baseline_update.kept_cases(new, base, judged, mode, stays=lambda name: stays)
    found = keep_cases(new, base, stored)
    assert {each.id: each.ns for each in found.calls[0].cases} == {name: (ns,) * repeats for name, ns in kept.items()}
    assert [each.id for each in found.calls[0].cases] == sorted(kept)
    assert found.metrics()["cases"].values == (len(kept),) * repeats


def test_cases_with_the_times_of_other_processes_are_not_joined():
    base, new = table_of(case("old"), repeats=2), table_of(case("added"))
    assert keep_cases(new, base, {}) == new
    with pytest.raises(BaselineError, match="cannot record a part of the cases") as error:
        keep_cases(new, base, {"old": base.table.cases[0]})
    assert "\n" not in str(error.value)


def table_of(*cases, repeats=1):
    cases = tuple(replace(each, ns=each.ns * repeats) for each in cases)
    call = Call("", {"cases": counted(*[len(cases)] * repeats)}, (), (0,) * repeats, cases=cases)
    return replace(record(), calls=(call,), occasions=(Occasion(repeats, "2026-11-27", None, None),))
