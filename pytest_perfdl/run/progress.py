"""One line that says what is being measured and how long it will take.

On a terminal the line is rewritten in place; elsewhere (a CI log) it is printed twice a minute at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import harmless, visible
from pytest_perfdl.system.pytest_internals import is_at_line_start

ROUNDS = (3, 12)
"""Rounds that a test takes at least, and that most take at most."""
PRINT_EVERY_SECONDS = 30.0


ERASE = "\r\x1b[2K"
"""Takes the text of the cursor's line away."""
TO_COLUMN_ZERO = "\x1b[1A\n"
"""Leaves an empty line as it is; the newline in it tells pytest, which adds up what it wrote, that nothing is there."""


class Terminal(Protocol):
    """The part of pytest's TerminalReporter that is used."""

    isatty: bool

    def write(self, content: str, *, flush: bool = False) -> None:
        """Write without a newline."""
        ...

    def ensure_newline(self) -> None:
        """Begin a new line unless the cursor is at one."""
        ...


class Progress:
    """The progress of a session over its tests and repeats.

    Parameters
    ----------
    suspended_capture
        A context in which writing reaches the terminal.
    tests
        How many tests will be measured.
    repeats
        How many repeats each is expected to take.
    """

    def __init__(
        self,
        terminal: Terminal | None,
        suspended_capture: Callable[[], AbstractContextManager[object]],
        *,
        tests: int,
        repeats: int,
    ) -> None:
        self._terminal = terminal
        self._suspended_capture = suspended_capture
        self._tests = tests
        self._repeats = repeats
        self._test = 0
        self._taken: list[float] = []
        self._shown = False
        self._printed = time.monotonic()

    def start_test(self) -> None:
        """The next test begins."""
        self._test += 1

    def start_repeat(self, repeat: int, repeats: int, test: str) -> None:
        """A repeat begins: `repeat` counts from 1; `repeats` is how many this test takes as far as known."""
        left = max(0, repeats - repeat + 1) + max(0, self._tests - self._test) * self._repeats
        self._show(line(self._test, self._tests, repeat, repeats, self._left(left), test))

    def start_round(self, number: int, test: str, spent: float, budget: float) -> None:
        """A pair of processes begins to take turns; `spent` seconds of the budget are gone."""
        room = f"{duration(spent)} of {duration(budget)}"
        self._show(f"perf: test {self._test} of {self._tests}, round {number}, {room}: {test}"[:118])

    def start_stacks(self, test: str) -> None:
        """Python's frames are recorded, to see where a change comes from or which operators it touches."""
        self._show(f"perf: test {self._test} of {self._tests}, looking where the change comes from: {test}"[:118])

    def start_memory(self, test: str) -> None:
        """Every allocation is recorded, to see whose memory it is."""
        self._show(f"perf: test {self._test} of {self._tests}, looking whose memory it is: {test}"[:118])

    def start_calibration(self, *, again: bool = False) -> None:
        """The machine's limits are measured, once a key; or once a run whether it still reaches them."""
        how = "again: about 5 s" if again else "once for all tests: about 20 s"
        self._show(f"perf: measuring the limits of this machine, {how}")

    def end_repeat(self, seconds: float) -> None:
        """A repeat took so long."""
        self._taken.append(seconds)

    def clear(self) -> None:
        """Take the line away, before pytest writes there."""
        if self._shown and self._terminal is not None:
            with self._suspended_capture():
                self._terminal.write(ERASE + TO_COLUMN_ZERO, flush=True)
            self._shown = False

    def _left(self, repeats: int) -> float | None:
        return None if not self._taken else repeats * sum(self._taken) / len(self._taken)

    def _show(self, text: str) -> None:
        terminal = self._terminal
        if terminal is None:
            return
        with self._suspended_capture():
            if terminal.isatty:
                if not self._shown:
                    _begin_line(terminal)
                terminal.write(f"{ERASE}{visible(text)}", flush=True)
                self._shown = True
            elif time.monotonic() - self._printed > PRINT_EVERY_SECONDS:
                self._printed = time.monotonic()
                _begin_line(terminal)
                terminal.write(f"{harmless(visible(text))}\n", flush=True)


def _begin_line(terminal: Terminal) -> None:
    terminal.ensure_newline()
    # That knows of files' names only: with -q the letters of tests may stand there.
    if not is_at_line_start(terminal):
        terminal.write("\n")


def line(test: int, tests: int, repeat: int, repeats: int, seconds_left: float | None, name: str) -> str:
    """The line's text.

    >>> line(3, 12, 4, 10, 80.0, "test_gpt.py::test_step")
    'perf: test 3 of 12, repeat 4 of 10, about 1 min 20 s left: test_gpt.py::test_step'
    """
    left = "" if seconds_left is None else f", about {duration(seconds_left)} left"
    return f"perf: test {test} of {tests}, repeat {repeat} of {repeats}{left}: {name}"[:118]


@dataclass(frozen=True, slots=True)
class ExpectedDuration:
    """What a test is expected to take."""

    repeat_seconds: float | None
    """One repeat, as noted when the baseline was recorded."""
    repeats: int
    recorded: bool = False
    """Whether it is measured to be recorded, in so many repeats, rather than held against its baseline in rounds."""


def estimate(tests: Sequence[ExpectedDuration], budget: float, least_to_fail: int) -> str:
    """The line before the first test: how long all of them will take.

    A test takes one process of each side and then its rounds. A round is taken for one repeat's time: its two processes
    start side by side, and half of what they do is done in turns.

    >>> estimate([ExpectedDuration(4.0, 10, recorded=True), ExpectedDuration(5.0, 10, recorded=True)], 300, 9)
    'perf: 2 tests, about 1 min 30 s'
    >>> estimate([ExpectedDuration(4.0, 1), ExpectedDuration(None, 1)], 300, 9)
    'perf: 2 tests, about 20 s to 56 s; 1 of them without a baseline to tell how long it takes'
    >>> estimate([ExpectedDuration(40.0, 1)], 100, 9)
    'perf: 1 test, about 3 min 0 s; --perf-budget=100 has room for 5 rounds of 40 s, and a regression takes 9'

    Parameters
    ----------
    budget
        Seconds that the rounds of one test may take; twice as many where it looks slower.
    least_to_fail
        Rounds that a regression takes at least to be called one.
    """
    known = [(test.repeat_seconds, test) for test in tests if test.repeat_seconds is not None]
    line = f"perf: {plural(len(tests), 'test')}"
    if not known:
        return f"{line}; how long they take is not known before a baseline is recorded"
    ends = [
        sum(
            seconds * test.repeats if test.recorded else min(seconds * rounds, budget) + 2 * seconds
            for seconds, test in known
        )
        for rounds in ROUNDS
    ]
    line += f", about {' to '.join(dict.fromkeys(map(duration, ends)))}"
    if unknown := len(tests) - len(known):
        line += f"; {unknown} of them without a baseline to tell how long it takes"
    slowest = max((seconds for seconds, test in known if not test.recorded), default=0.0)
    if least_to_fail * slowest > 2 * budget:
        rooms = plural(max(1, int(2 * budget / slowest)), "round")
        line += f"; --perf-budget={budget:g} has room for {rooms} of {duration(slowest)}, and a regression "
        line += f"takes {least_to_fail}"
    return line


def duration(seconds: float) -> str:
    """Minutes and seconds in words.

    >>> duration(80.4), duration(7.6), duration(3700)
    ('1 min 20 s', '8 s', '1 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
