"""Verdicts that join a test's own: the worst counts, and a new baseline lifts only what was held against it."""

from dataclasses import replace

import pytest

from pytest_perfdl.model.record import Finding
from pytest_perfdl.results.verdict import FAILS_BY_DEFAULT
from pytest_perfdl.run.context import joined
from unit.report import runs


def result(verdict="unchanged", reason="", **rest):
    return runs.result(verdict, reason=reason, metrics=(runs.quiet(),), **rest)


def metric(verdict, name="step_time over batch", reason="as it is"):
    return runs.timed(name, verdict=verdict, reason=reason)


def join(one, *metrics, findings=(), **rest):
    return joined(one, metrics, findings, fail_on=FAILS_BY_DEFAULT, **rest)


@pytest.mark.parametrize(
    "known, added, verdict, reason",
    [
        ("unchanged", ["unchanged"], "unchanged", "step_time over batch: as it is; own"),
        ("unchanged", [None], "unchanged", "own"),
        ("unchanged", ["regressed", "unchanged"], "regressed", "step_time over batch: as it is"),
        ("regressed", ["regressed"], "regressed", "step_time over batch: as it is; own"),
        ("regressed", ["suspect"], "regressed", "own"),
        ("suspect", ["invalid"], "invalid", "step_time over batch: as it is"),
    ],
    ids=["both-hold", "only-shown", "added-is-worse", "both-regressed", "own-is-worse", "broken"],
)
def test_the_worst_verdict_and_who_tells_it(known, added, verdict, reason):
    found = join(result(known, "own"), *map(metric, added))
    assert found.judgement.verdict == verdict
    assert found.judgement.reason == reason
    assert found.fails is (verdict in FAILS_BY_DEFAULT)
    assert [each.verdict for each in found.judgement.metrics] == ["unchanged", *added]


def test_findings_tell_where_no_metric_does():
    broken, note = Finding("invalid", "curve", "no such axis"), Finding("note", "curve", "not judged")
    found = join(result(), findings=[broken])
    assert (found.judgement.verdict, found.judgement.reason, found.fails) == ("invalid", "no such axis", True)
    assert join(result(), metric("invalid"), findings=[broken]).judgement.reason == "step_time over batch: as it is"
    noted = join(result("suspect", "own"), findings=[note])
    assert (noted.judgement.verdict, noted.judgement.reason) == ("suspect", "own")
    assert noted.judgement.integrity == (note,)


def test_a_new_baseline_lifts_what_was_held_against_the_old_one():
    written = replace(result("regressed", fails=False), updated=True)
    assert not join(written, metric("regressed"), of_baseline=True).fails
    assert join(written, metric("invalid"), of_baseline=True).fails
    # An expectation of the test's own stays, and what comes after it does not lift it.
    expected = join(written, metric("regressed"))
    assert expected.fails
    assert join(expected, metric("unchanged"), of_baseline=True).fails
