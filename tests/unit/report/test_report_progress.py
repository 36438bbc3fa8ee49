"""What is said before anything is measured: how long it will take."""

import contextlib
import io
import itertools
import re

import pytest
from _pytest._io import TerminalWriter

from pytest_perfdl.judge.sequential import LOOKS
from pytest_perfdl.report import progress
from pytest_perfdl.report.progress import Expected, Progress, estimate

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


class Screen:
    """pytest's reporter over a terminal that is emulated as far as one line goes: what people see at the end."""

    def __init__(self, isatty):
        self.file = io.StringIO()
        self.isatty = isatty
        self._tw = TerminalWriter(self.file)

    def ensure_newline(self):
        """As in pytest where nothing but letters was written."""

    def write(self, content, *, flush=False):
        self._tw.write(content, flush=flush)

    @property
    def lines(self):
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[2K|\x1b\[1A|\r|\n|[^\x1b\r\n]+", self.file.getvalue()):
            if part == "\x1b[2K":
                lines[row] = " " * column
            elif part == "\x1b[1A":
                row -= 1
            elif part == "\r":
                column = 0
            elif part == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            else:
                lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
                column += len(part)
        return [line.rstrip() for line in lines]


def shown(screen):
    made = Progress(screen, contextlib.nullcontext, tests=2, repeats=2)
    for test in ("test_a", "test_b"):
        made.start_test()
        made.start_repeat(1, 2, test)
        made.start_repeat(2, 2, test)
        made.clear()
        screen.write("U")
    return screen.lines


def test_letters_before_and_after_the_line_stay():
    assert shown(Screen(isatty=True)) == ["U", "U"]


def test_a_log_has_the_line_to_itself(monkeypatch):
    times = itertools.count(0, 100)
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(times)))
    assert shown(Screen(isatty=False)) == [
        "perf: test 1 of 2, repeat 1 of 2: test_a",
        "perf: test 1 of 2, repeat 2 of 2: test_a",
        "U",
        "perf: test 2 of 2, repeat 1 of 2: test_b",
        "perf: test 2 of 2, repeat 2 of 2: test_b",
        "U",
    ]
