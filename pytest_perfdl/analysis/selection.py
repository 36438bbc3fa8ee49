"""A part of a trace: some of its steps, and rows of its tables by name, module, shapes or source line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from pytest_perfdl.analysis.device_steps import device_steps
from pytest_perfdl.analysis.launches import launches
from pytest_perfdl.analysis.steps import steps_of
from pytest_perfdl.trace.model import Trace
from pytest_perfdl.trace.subset import subset

Row = TypeVar("Row")

COLUMNS = ("name", "module", "shapes", "line")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class SelectionError(ValueError):
    """A selection cannot be understood or holds nothing; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to look at; empty selects everything."""

    steps: tuple[tuple[int, int], ...] = ()
    """First and last N of `ProfilerStep#N`, both included; a step must be in one of them."""
    patterns: Mapping[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)
    """By column of a table: every pattern must be found in it."""

    def rows(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Those rows of a table that match; a column that a table does not have does not narrow it."""
        return tuple(row for row in rows if all(_matches(row, *item) for item in self.patterns.items()))


def parse(texts: Sequence[str]) -> Selection:
    """Read `step=3`, `step=3-5`, `name~gemm` and the like, each narrowing further.

    Raises
    ------
    SelectionError
        One line that names the part that is not understood.
    """
    steps: list[tuple[int, int]] = []
    patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
    for text in texts:
        key, sign, value = _split(text)
        if key == "step" and sign == "=":
            match = _RANGE.fullmatch(value)
            if match is None:
                raise SelectionError(f"{text!r}: a step is a number or a range such as 3-5")
            steps.append((int(match[1]), int(match[2] or match[1])))
        elif key in COLUMNS and sign:
            try:
                pattern = re.compile(value if sign == "~" else f"^{re.escape(value)}$")
            except re.error as error:
                raise SelectionError(f"{text!r}: {value!r} is not a regular expression: {error}") from error
            patterns[key] = (*patterns.get(key, ()), pattern)
        else:
            known = ", ".join(f"{column}~REGEX" for column in COLUMNS)
            raise SelectionError(f"{text!r} is not understood: write step=3, step=3-5, {known}, or = for an exact text")
    return Selection(tuple(steps), patterns)


def select(trace: Trace, selection: Selection) -> Trace:
    """The events of the selected steps: what starts in them on any host thread, and what that launched.

    Memory events come along by their time. Without steps in the selection, the trace itself.

    Raises
    ------
    SelectionError
        When the trace has no such step.
    """
    if not selection.steps:
        return trace
    joined = launches(trace)
    steps = steps_of(trace, joined)
    wanted = np.array(
        [any(first <= window.number <= last for first, last in selection.steps) for window in steps.windows], dtype=bool
    )
    if not wanted.any():
        numbers = [window.number for window in steps.windows if window.number >= 0]
        has = f"its steps are {min(numbers)} to {max(numbers)}" if numbers else "it has no steps"
        raise SelectionError(f"holds nothing of {trace.source or 'the trace'}: {has}")
    # One more entry, false, is what the index -1 of an event outside all steps points at.
    keep_step = np.append(wanted, False)
    keep = keep_step[steps.of_host_time(trace.start)]
    keep[joined.device] = keep_step[device_steps(trace, steps, joined)]
    memory = keep_step[steps.of_host_time(trace.memory.time)]
    return subset(trace, np.flatnonzero(keep), np.flatnonzero(memory))


def _split(text: str) -> tuple[str, str, str]:
    match = re.match(r"(\w+)([=~])(.*)", text, re.DOTALL)
    return (match[1], match[2], match[3]) if match else (text, "", "")


def _matches(row: object, column: str, patterns: tuple[re.Pattern[str], ...]) -> bool:
    value = getattr(row, column, None)
    return value is None or all(pattern.search(str(value)) for pattern in patterns)
