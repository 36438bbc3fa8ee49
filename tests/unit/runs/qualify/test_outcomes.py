"""What is kept of a run file, and what a verdict rests on."""

import pytest

from pytest_perfdl.runs.qualify import outcome_of
from unit.runs.qualify.runs_of_suites import metric, result_of, run_of


def kept(*tests):
    return outcome_of(run_of(*tests), inject=0.05, seconds=12.5, arguments=["tests"])


def test_what_is_kept():
    found = kept(
        result_of(
            "suspect",
            **{
                "step_time": metric("suspect", 0.04),
                "forward.block_time": metric("unchanged", None),
                "cpu_time": metric(None, 0.2, limit=None),
                "compile_time": metric("unchanged", 0.2, limit="<= 45s"),
                "tokens": metric("suspect", 0.2),
                "ops": metric("changed", 0.2, kind="counted"),
            },
        )
    )
    (test,) = found.cases

    assert (found.inject, found.seconds, found.arguments, found.key) == (0.05, 12.5, ("tests",), "cpu-1t")
    assert {name: (each.verdict, each.effect) for name, each in test.metrics.items()} == {
        "step_time": ("suspect", 0.04),
        "forward.block_time": ("unchanged", None),
    }
    assert test.judged


@pytest.mark.parametrize(
    "metrics, basis",
    [
        ({"step_time": metric("regressed", evidence="paired")}, "paired"),
        ({"step_time": metric("regressed", evidence="unpaired")}, "unpaired"),
        ({"ops": metric("regressed", kind="counted", limit="0")}, "other"),
        ({"step_time": metric("regressed", limit="<= 1ms")}, "other"),
        ({"step_time": metric("unchanged", evidence="paired"), "ops": metric("regressed", kind="counted")}, "other"),
        ({"step_time": metric("regressed", evidence="paired"), "ops": metric("regressed", kind="counted")}, "paired"),
    ],
    ids=["paired", "unpaired", "count", "budget", "other-time", "both"],
)
def test_what_a_verdict_rests_on(metrics, basis):
    (test,) = kept(result_of("regressed", **metrics)).cases

    assert test.basis == basis


@pytest.mark.parametrize(
    "verdict, record, judged",
    [("unchanged", True, True), ("unchanged", False, False), ("missing", True, False), ("invalid", False, False)],
    ids=["judged", "alternatives", "missing", "invalid"],
)
def test_what_is_a_trial(verdict, record, judged):
    (test,) = kept(result_of(verdict, record=record)).cases

    assert test.judged == judged


ONE = {"settings": {"perf_limits": "step_time:3%"}, "context": {"torch": "2.13.0"}}
OTHER = {
    "limits": ({"settings": {"perf_limits": "step_time:9%"}}, {}, "perf_limits step_time:3%, not step_time:9%"),
    "an option": ({"settings": {**ONE["settings"], "--perf-steps": "9"}}, {}, "--perf-steps none, not 9"),
    "environment": ({"context": {"torch": "2.14.0"}}, {}, "torch 2.13.0, not 2.14.0"),
    "baseline": ({}, {"base": "2026-02"}, "baseline of a.py::test_a 2026-01, not 2026-02"),
    "a test that was not measured": ({}, {"base": None}, ""),
    "the slowdown": ({"settings": {**ONE["settings"], "--perf-inject": "0.05"}}, {}, ""),
}


@pytest.mark.parametrize("run, case, said", OTHER.values(), ids=OTHER)
def test_runs_of_one_campaign_were_compared_with_the_same_in_the_same_way(run, case, said):
    def outcome(run, case):
        return outcome_of(run_of(result_of(**case), **run), inject=0.0, seconds=1.0, arguments=())

    first = outcome(ONE, {"base": "2026-01"})
    assert first.differs(first) == ""
    assert outcome({**ONE, **run}, {"base": "2026-01", **case}).differs(first) == said
