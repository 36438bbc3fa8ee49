"""One progress line: the current test, and the estimated time.

On a terminal the line is rewritten in place; elsewhere (a CI log) it is printed twice a minute at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_perfdl.model.shard import Shard
from pytest_perfdl.model.units import duration, plural
from pytest_perfdl.model.visible import harmless, visible
from pytest_perfdl.system import clocks
from pytest_perfdl.system.pytest_internals import is_at_line_start

if TYPE_CHECKING:
    import pytest

ROUNDS = (3, 12)
"""Minimum and usual maximum number of paired rounds per test."""
PRINT_EVERY_SECONDS = 30.0


ERASE = "\r\x1b[2K"
"""Clears the cursor's line."""
TO_COLUMN_ZERO = "\x1b[1A\n"
"""Leaves an empty line as it is; the newline in it tells pytest, which adds up what it wrote, that nothing is there."""


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
        terminal: pytest.TerminalReporter | None,
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
        self._printed = clocks.monotonic()

    def start_test(self) -> None:
        """The next test begins."""
        self._test += 1

    def start_repeat(self, repeat: int, repeats: int, test: str) -> None:
        """A repeat begins: `repeat` counts from 1; `repeats` is how many this test takes as far as known."""
        left = max(0, repeats - repeat + 1) + max(0, self._tests - self._test) * self._repeats
        self._show(line(self._test, self._tests, repeat, repeats, self._left(left), test))

    def start(self, what: str, test: str) -> None:
        """Something else than a repeat begins: "locating the change"."""
        self._show(f"perf: test {self._test} of {self._tests}, {what}: {test}"[:118])

    def start_calibration(self, *, again: bool = False) -> None:
        """Peak rates are measured, once per machine ID, or checked `again` once per run."""
        how = "again (about 5 s)" if again else "once per machine (about 20 s)"
        self._show(f"perf: measuring peak rates of this machine {how}")

    def end_repeat(self, seconds: float) -> None:
        """A process took this many seconds."""
        self._taken.append(seconds)

    def clear(self) -> None:
        """Clear the line before pytest writes."""
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
            elif clocks.monotonic() - self._printed > PRINT_EVERY_SECONDS:
                self._printed = clocks.monotonic()
                _begin_line(terminal)
                terminal.write(f"{harmless(visible(text))}\n", flush=True)


def share_line(shard: Shard, tests: int) -> str:
    """How many of all perf tests are in a shard.

    >>> share_line(Shard(2, 4, tests=47), 12)
    'shard 2 of 4: 12 of 47 perf tests'
    """
    return f"{shard}: {tests} of {plural(shard.tests, 'perf test')}"


def _begin_line(terminal: pytest.TerminalReporter) -> None:
    terminal.ensure_newline()
    # pytest's check covers file names only: with -q, status letters may be on the line.
    if not is_at_line_start(terminal):
        terminal.write("\n")


def line(test: int, tests: int, repeat: int, repeats: int, seconds_left: float | None, name: str) -> str:
    """The line's text.

    >>> line(3, 12, 4, 10, 80.0, "test_gpt.py::test_step")
    'perf: test 3 of 12, process 4 of 10, about 1 min 20 s left: test_gpt.py::test_step'
    """
    left = "" if seconds_left is None else f", about {duration(seconds_left)} left"
    return f"perf: test {test} of {tests}, process {repeat} of {repeats}{left}: {name}"[:118]


@dataclass(frozen=True, slots=True)
class ExpectedDuration:
    """Expected duration of a test."""

    repeat_seconds: float | None
    """Duration of one process, from the baseline; `None` without a baseline."""
    repeats: int
    recorded: bool = False
    """Whether the test is recorded, in `repeats` processes, rather than compared in paired rounds."""

    def with_rounds(self, rounds: int, budget: float) -> float | None:
        """Seconds, if it takes this many paired rounds in at most `budget` seconds; `None` without a baseline.

        A test takes one process per side and its paired rounds. The estimate of a round is the time of one process: its
        two processes start at the same time, and half of their work is interleaved.
        """
        seconds = self.repeat_seconds
        if seconds is None:
            return None
        return seconds * self.repeats if self.recorded else min(seconds * rounds, budget) + 2 * seconds

    def typical(self, budget: float) -> float | None:
        """Seconds, midway between few and many rounds; `None` without a baseline."""
        ends = [seconds for rounds in ROUNDS if (seconds := self.with_rounds(rounds, budget)) is not None]
        return sum(ends) / len(ends) if ends else None


def estimate(tests: Sequence[ExpectedDuration], budget: float, least_to_fail: int, shard: Shard | None = None) -> str:
    """The line before the first test, with the estimated time of all tests (`ExpectedDuration.with_rounds`).

    >>> estimate([ExpectedDuration(4.0, 10, recorded=True), ExpectedDuration(5.0, 10, recorded=True)], 300, 9)
    'Measuring 2 perf tests, about 1 min 30 s'
    >>> estimate([ExpectedDuration(4.0, 1), ExpectedDuration(None, 1)], 300, 9)
    'Measuring 2 perf tests, about 20 s to 56 s (no time estimate for 1 of them without a baseline)'
    >>> estimate([ExpectedDuration(40.0, 1)], 100, 9)
    'Measuring 1 perf test, about 3 min 0 s; --perf-budget=100 allows 5 rounds of 40 s, but a regression needs 9 rounds'
    >>> estimate([ExpectedDuration(4.0, 10, recorded=True)], 300, 9, Shard(2, 4, tests=47))
    'shard 2 of 4: 1 of 47 perf tests, about 40 s'

    Parameters
    ----------
    budget
        Time limit of the paired rounds of one test, in seconds; doubled if the test looks slower.
    least_to_fail
        Minimum number of paired rounds for the verdict regressed.
    shard
        The shard whose tests these are; `None` if they are all tests.
    """
    known = [(test.repeat_seconds, test) for test in tests if test.repeat_seconds is not None]
    line = f"Measuring {plural(len(tests), 'perf test')}" if shard is None else share_line(shard, len(tests))
    if not known:
        return f"{line} (no time estimate without a baseline)"
    ends = [sum(test.with_rounds(rounds, budget) or 0.0 for _, test in known) for rounds in ROUNDS]
    line += f", about {' to '.join(dict.fromkeys(map(duration, ends)))}"
    if unknown := len(tests) - len(known):
        line += f" (no time estimate for {unknown} of them without a baseline)"
    slowest = max((seconds for seconds, test in known if not test.recorded), default=0.0)
    if least_to_fail * slowest > 2 * budget:
        rooms = plural(max(1, int(2 * budget / slowest)), "round")
        line += (
            f"; --perf-budget={budget:g} allows {rooms} of {duration(slowest)}, but a regression needs "
            f"{least_to_fail} rounds"
        )
    return line
