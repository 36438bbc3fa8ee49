"""How many tests were compared, with what, and what to say where that is too few.

A run that compares nothing passes by its verdicts; whoever reads that it is green must also read this.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_perfdl.model.units import plural, some
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results.verdict import SAME_CODE, VERDICTS, Verdict

if TYPE_CHECKING:
    from pytest_perfdl.results.run import Result

COMPARED: frozenset[Verdict] = frozenset(
    {"regressed", "waived", "suspect", "changed", "inconclusive", "improved", "unchanged"}
)
"""Verdicts that say how a test stands to its baseline, or to the other revision."""


def compared(result: Result) -> bool:
    """Whether a time or a count of the test, or its code, was held against another side's, with a verdict on it."""
    if result.judgement.reason == SAME_CODE:
        return True
    return result.judgement.verdict in COMPARED and any(
        metric.verdict is not None and metric.base is not None for metric in result.judgement.metrics
    )


def not_compared(results: Sequence[Result], *, required: int = 0, tests_of_head: bool = False) -> str:
    """What a run that passes all the same did not compare, and what to do about it; empty where that is nothing.

    Parameters
    ----------
    required
        What `--perf-require` wants.
    tests_of_head
        Whether both revisions of `--perf-against` run the working tree's tests already.
    """
    held = sum(map(compared, results))
    absent = [
        result for result in results if result.other_side and result.base is None and result.judgement.verdict == "new"
    ]
    if absent:
        which = f"{plural(len(absent), 'test')} not compared" if held else "nothing was compared"
        those = some([visible(each.id) for each in absent])
        how = (
            ""
            if tests_of_head
            else "; set perf_against_tests = head in the ini file to run the working tree's tests on both sides"
        )
        return f"{which}, because {absent[0].against} does not have {those}{how}"
    if held or required or not results or any(result.fails or result.updated for result in results):
        return ""
    how = "use --perf-require N to fail a run that compares fewer than N tests"
    return f"nothing was compared: {by_verdict(results)} ({how})"


def not_measured(results: Sequence[Result]) -> str:
    """How many tests `--perf-skip-same` left out; empty for none."""
    count = sum(result.judgement.reason == SAME_CODE for result in results)
    its = "its baseline" if count == 1 else "their baselines"
    return f"{plural(count, 'test')} not measured: same code as {its} (--perf-skip-same)" if count else ""


def shortfall(results: Sequence[Result], required: int, *, of: str = "") -> str:
    """Why a run that compared fewer tests than `--perf-require` wants fails; empty if it does not.

    `of` says which part of the tests the requirement is for: " in shard 2 of 4".
    """
    held = sum(map(compared, results))
    if held >= required:
        return ""
    others = [result for result in results if not compared(result)]
    rest = f" ({by_verdict(others)})" if others else ""
    was = "was" if held == 1 else "were"
    return f"{plural(held, 'test')} {was} compared, but --perf-require requires {required}{of}{rest}"


TEST_ERROR_WORD = "test error"


def verdict_word(result: Result) -> str:
    """What people read as the verdict: its word, or that the test itself failed, which no measurement can change."""
    return TEST_ERROR_WORD if result.judgement.is_test_error else result.judgement.verdict


def by_verdict(results: Sequence[Result], *, always: Container[str] = ()) -> str:
    """How many tests have each verdict, worst first: "1 regressed, 3 unchanged"; some even where that is 0."""
    found = [verdict_word(result) for result in results]
    errors = found.count(TEST_ERROR_WORD)
    counts = [plural(errors, TEST_ERROR_WORD)] if errors else []
    counts += [f"{found.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in found or verdict in always]
    return ", ".join(counts)


def against(results: Iterable[Result]) -> str:
    """The revision and interpreter of the other side, as given, and its commit; empty for a run against baselines."""
    found = [result for result in results if result.other_side]
    if not found:
        return ""
    commits = [result.base.occasions[-1].commit for result in found if result.base is not None and result.against]
    at = next((f" at {commit[:9]}" for commit in commits if commit), "")
    return found[0].other_side + at


def measured(results: Sequence[Result]) -> str:
    """How much was measured, "7 to 20 paired rounds per test" or "5 processes against 10"."""
    # Of a test the most: some of its metrics may have been decided after fewer rounds.
    most = (max((metric.rounds or 0 for metric in result.judgement.metrics), default=0) for result in results)
    if rounds := [count for count in most if count]:
        per_test = " per test" if len(set(rounds)) > 1 else ""
        return f"{_span(rounds)} paired {'round' if max(rounds) == 1 else 'rounds'}{per_test}"
    if any(result.other_side for result in results):
        return "counts only" if any(map(compared, results)) else ""
    new = _span([result.new.repeats for result in results if result.new is not None])
    base = _span([result.base.repeats for result in results if result.base is not None])
    if not new:
        return ""
    return f"{new} {'process' if new == '1' else 'processes'}" + (f" against {base}" if base else "")


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
