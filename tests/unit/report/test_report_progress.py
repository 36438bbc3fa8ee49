"""What is said before anything is measured: how long it will take."""

import pytest

from pytest_perfdl.judge.sequential import LOOKS
from pytest_perfdl.report import progress
from pytest_perfdl.report.progress import Expected, estimate

BEFORE = [Expected(4.0, 10), Expected(70.0, 1)]


@pytest.mark.parametrize(
    "tests, against, line",
    [
        (BEFORE, False, "perf: 2 tests, about 1 min 50 s; a suspect takes up to 2 min 0 s more (--perf-budget)"),
        ([Expected(3.0, 1)], True, "perf: 1 test, about 36 s to 1 min 36 s"),
        # The budget ends the rounds of the second: 120 s, and one repeat on each side.
        (BEFORE, True, "perf: 2 tests, about 5 min 8 s to 6 min 28 s"),
        (
            [*BEFORE, Expected(None, 10)],
            False,
            "perf: 3 tests, about 1 min 50 s; 1 of them without a baseline to tell how long it takes",
        ),
        (
            [Expected(None, 1)],
            False,
            "perf: 1 test; how long they take is not known before a baseline is recorded",
        ),
    ],
    ids=["screened", "one against a revision", "two against a revision", "one unknown", "all unknown"],
)
def test_the_line_before_the_first_test(tests, against, line):
    assert estimate(tests, 120, against=against) == line


def test_the_least_and_most_rounds_are_the_judges():
    assert (LOOKS[0], LOOKS[-1]) == progress.LOOKS
