"""What is counted, and which limits follow."""

import pytest

from pytest_perfdl.runs.qualify import TOGETHER, ini_lines, summarize
from pytest_perfdl.stats.quantiles import Rate
from unit.runs.qualify.runs_of_suites import case_of, outcome

A, B = "a.py::test_a", "b.py::test_b"


def found(count, of, *, inject, effect=None):
    """Runs of one test in which a slowdown was found so often."""
    verdicts = ["regressed"] * count + ["inconclusive"] * (of - count)
    return [outcome(case_of(each, basis="paired", effect=effect or inject), inject=inject) for each in verdicts]


def unchanged(*effects):
    return [outcome(case_of(effect=effect)) for effect in effects]


def test_false_alarms_are_counted_by_test_and_basis():
    summary = summarize(
        [
            outcome(case_of("regressed", A, basis="paired"), case_of("suspect", B)),
            outcome(case_of("regressed", A, basis="unpaired"), case_of("regressed", B, basis="other")),
            outcome(case_of("unchanged", A), case_of("improved", B)),
            outcome(case_of("invalid", A), case_of("changed", B)),
            outcome(case_of("regressed", A, basis="paired"), inject=0.05),
        ]
    )
    counted = {name: (t.judged, t.regressed, t.paired, t.unpaired, t.suspect) for name, t in summary.alarms.items()}

    assert counted == {TOGETHER: (7, 3, 1, 1, 1), A: (3, 2, 1, 1, 0), B: (4, 1, 0, 0, 1)}
    assert next(iter(summary.alarms)) == TOGETHER
    assert summary.alarmed_runs == Rate(2, 4)
    assert summary.unjudged == {"invalid": 1}
    assert summary.runs == {0.0: 4, 0.05: 1}


def test_alternatives_alone_are_left_out():
    summary = summarize(
        [outcome(case_of("regressed", A, compared=False), case_of("unchanged", B)), outcome(case_of("unchanged", B))]
    )

    assert summary.left_out == (A,)
    assert list(summary.alarms) == [TOGETHER, B]
    assert summary.alarmed_runs == Rate(0, 2)
    assert summary.unjudged == {}


def test_the_smallest_effect_found():
    summary = summarize([*found(7, 10, inject=0.03), *found(8, 10, inject=0.05), *found(10, 10, inject=0.1)])

    assert summary.effects[0.05][A].found == Rate(8, 10)
    assert summary.smallest_found() == summary.smallest_found(A) == 0.05
    assert summarize(found(7, 10, inject=0.03)).smallest_found() is None
    assert summarize(unchanged(0.1)).smallest_found() is None


@pytest.mark.parametrize(
    "noise, limit",
    [((0.01, -0.02), "5%"), ((0.01, -0.07), "10%"), ((0.05,), "5%"), ((0.3,), None), ((), None)],
    ids=["quiet", "noisy", "equal", "too-noisy", "unknown"],
)
def test_a_limit_is_beyond_the_noise_and_is_found(noise, limit):
    runs = [*found(3, 10, inject=0.03), *found(8, 10, inject=0.05), *found(10, 10, inject=0.1)]
    summary = summarize([*unchanged(*noise), *runs])

    assert ini_lines(summary) == ([] if limit is None else ["perf_limits =", f"    step_time:{limit}"])


def test_every_time_has_its_own_limit_over_all_calls():
    runs = [
        outcome(case_of(**{"step_time": ("unchanged", 0.01), "x.block_time": ("unchanged", -0.002)})),
        outcome(
            case_of("regressed", **{"step_time": ("regressed", 0.05), "x.block_time": ("inconclusive", 0.05)}),
            inject=0.05,
        ),
        outcome(
            case_of("regressed", **{"step_time": ("regressed", 0.1), "x.block_time": ("regressed", 0.1)}), inject=0.1
        ),
    ]
    summary = summarize(runs)

    assert ini_lines(summary) == ["perf_limits =", "    step_time:5%", "    block_time:10%"]
    assert [limit.noise for limit in summary.limits] == [0.01, 0.002]
    assert summary.limits[1].found == {0.05: Rate(0, 1), 0.1: Rate(1, 1)}


def test_the_noise_is_a_quantile_over_tests_and_runs():
    summary = summarize(unchanged(*[step / 1000 for step in range(101)]))

    assert summary.limits[0].noise == pytest.approx(0.099)


def test_nothing_at_all():
    summary = summarize([])

    assert (summary.runs, summary.effects, summary.limits, summary.alarmed_runs) == ({}, {}, (), Rate(0, 0))
