"""Which tests count as compared, and what is said of a run that compared too few."""

from dataclasses import replace

import pytest

from pytest_perfdl.report import markdown, words
from pytest_perfdl.report.compared import compared, measured, not_compared, shortfall
from pytest_perfdl.report.html import render
from pytest_perfdl.results.verdict import VERDICTS
from unit.report import runs


def named(verdict, number=0, **rest):
    return runs.result(verdict, f"t.py::test_{number}", **rest)


def absent(number=0):
    """A test that the other revision does not have."""
    return named("new", number, against="origin/main")


def test_compared_is_what_was_held_against_another_side():
    held = {verdict for verdict in VERDICTS if compared(named(verdict))}
    assert held == {"regressed", "waived", "suspect", "changed", "inconclusive", "improved", "unchanged"}


def test_a_budget_and_figures_that_are_only_shown_compare_nothing():
    over_budget = runs.timed(base=None, new=5_000_000, effect=None, ci95=None, limit="<= 1ms", verdict="regressed")
    assert not compared(named("regressed", metrics=[over_budget], base=None))
    assert not compared(named("unchanged", metrics=[runs.quiet(verdict=None)]))
    run = runs.run(named("regressed", metrics=[over_budget], base=None))
    assert words.counts_sentence(run) == "0 compared. 1 regressed, 0 missing, 0 incomparable, 0 unmeasured."


def test_tests_that_the_other_revision_lacks_are_told_with_what_to_do():
    how = "; set perf_against_tests = head in the ini file to run the working tree's tests on both sides"
    assert not_compared([absent(1), absent(2)]) == (
        f"nothing was compared, because origin/main does not have t.py::test_1, t.py::test_2{how}"
    )
    assert not_compared([absent(), named("unchanged", 2, against="origin/main")]) == (
        f"1 test not compared, because origin/main does not have t.py::test_0{how}"
    )
    assert not_compared([absent()], tests_of_head=True) == (
        "nothing was compared, because origin/main does not have t.py::test_0"
    )


@pytest.mark.parametrize("verdict", ["unmeasured", "incomparable", "new"])
def test_a_run_that_passes_and_compares_nothing_says_so(verdict):
    assert not_compared([named(verdict, fails=False)]).startswith(
        f"nothing was compared: 1 {verdict} (use --perf-require"
    )
    # What fails is read anyway, a recording run compares nothing on purpose, and a requirement speaks for itself.
    assert not not_compared([named(verdict, fails=True)])
    assert not not_compared([named(verdict, fails=False), named("unchanged", 2)])
    assert not not_compared([replace(named(verdict, fails=False), updated=True)])
    assert not not_compared([named(verdict, fails=False)], required=1)
    assert not not_compared([])


@pytest.mark.parametrize(
    "verdicts, required, said",
    [
        ((), 0, ""),
        (("unchanged", "regressed"), 2, ""),
        (("unchanged", "inconclusive"), 2, ""),
        (
            ("unchanged", "incomparable", "unmeasured", "unmeasured"),
            2,
            "1 test was compared, but --perf-require requires 2 (1 incomparable, 2 unmeasured)",
        ),
        (("new", "missing"), 1, "0 tests were compared, but --perf-require requires 1 (1 missing, 1 new)"),
        (("unchanged", "changed"), 3, "2 tests were compared, but --perf-require requires 3"),
    ],
)
def test_a_run_that_compares_fewer_tests_than_required(verdicts, required, said):
    assert shortfall([named(verdict, number) for number, verdict in enumerate(verdicts)], required) == said


def test_repeats_are_told_of_both_sides():
    assert measured([named("unchanged")]) == "10 processes against 5"
    assert measured([named("missing")]) == "10 processes"
    assert measured([named("unmeasured")]) == ""
    assert measured([absent()]) == ""
    one = runs.record("t.py::test_0", repeats=1)
    assert measured([named("unchanged", new=one, base=one)]) == "1 process against 1"


def test_page_and_summary_name_the_revision_rather_than_repeats():
    run = runs.run(
        named("unchanged", against="main", metrics=[runs.quiet(rounds=8, evidence="paired")]), notes=("a note",)
    )
    text, page = markdown.summary(run), render(run, {})
    assert "against `main at 3f2c1abf9` · 8 paired rounds" in text
    assert "- a note\n" in text
    assert "main at 3f2c1abf9" in page
    assert "8 paired rounds" in page
    assert "baseline" not in text.splitlines()[5]
    assert "<dt>Baseline</dt>" not in page
