"""What is said before anything is measured: how long it will take."""

import contextlib
import io
import itertools
import re

import pytest
from _pytest._io import TerminalWriter

from pytest_perfdl.run import progress
from pytest_perfdl.run.progress import ExpectedDuration, Progress, estimate
from pytest_perfdl.system.device_lock import waiting_for

BEFORE = [ExpectedDuration(4.0, 1), ExpectedDuration(12.0, 1)]
RECORDED = ExpectedDuration(4.0, 10, recorded=True)


@pytest.mark.parametrize(
    "tests, line",
    [
        # By hand: one process a side and 3 to 12 rounds, 5 and 14 times a repeat's seconds.
        ([ExpectedDuration(3.0, 1)], "Measuring 1 perf test, about 15 s to 42 s"),
        # The budget ends the rounds of the second: 120 s, and one process a side.
        (BEFORE, "Measuring 2 perf tests, about 1 min 20 s to 3 min 20 s"),
        ([RECORDED, RECORDED], "Measuring 2 perf tests, about 1 min 20 s"),
        ([RECORDED, ExpectedDuration(3.0, 1)], "Measuring 2 perf tests, about 55 s to 1 min 22 s"),
        (
            [*BEFORE, ExpectedDuration(None, 10)],
            (
                "Measuring 3 perf tests, about 1 min 20 s to 3 min 20 s "
                "(no time estimate for 1 of them without a baseline)"
            ),
        ),
        ([ExpectedDuration(None, 1)], "Measuring 1 perf test (no time estimate without a baseline)"),
    ],
    ids=["one", "two", "recorded", "recorded and not", "one unknown", "all unknown"],
)
def test_the_line_before_the_first_test(tests, line):
    assert estimate(tests, 120, 9) == line


@pytest.mark.parametrize("seconds, said", [
    (26.6, ""),  # nine rounds in twice the budget
    (27.0, "; --perf-budget=120 allows 8 rounds of 27 s, but a regression needs 9 rounds"),
    (400.0, "; --perf-budget=120 allows 1 round of 6 min 40 s, but a regression needs 9 rounds"),
])  # fmt: skip
def test_a_budget_without_room_to_fail_is_said_before_anything_is_measured(seconds, said):
    line = estimate([ExpectedDuration(3.0, 1), ExpectedDuration(seconds, 1)], 120, 9)
    assert line.partition(";")[1:] == ((";", said[1:]) if said else ("", ""))
    assert "allows" not in estimate([ExpectedDuration(seconds, 10, recorded=True)], 120, 9)


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
    monkeypatch.setattr(progress.clocks, "monotonic", lambda: float(next(times)))
    assert shown(Screen(isatty=False)) == [
        "perf: test 1 of 2, process 1 of 2: test_a",
        "perf: test 1 of 2, process 2 of 2: test_a",
        "U",
        "perf: test 2 of 2, process 1 of 2: test_b",
        "perf: test 2 of 2, process 2 of 2: test_b",
        "U",
    ]


@pytest.mark.parametrize("holder, who", [(4711, " (PID 4711)"), (None, "")])
def test_who_waits_says_for_whom(holder, who):
    screen = Screen(isatty=True)
    made = Progress(screen, contextlib.nullcontext, tests=2, repeats=1)
    made.start_test()
    made.start(waiting_for(holder), "test_a")
    said = f"waiting for another run of pytest-perfdl on this machine{who}"
    assert screen.lines == [f"perf: test 1 of 2, {said}: test_a"]
    made.clear()
    assert screen.lines == [""]
