"""A part of a trace: some of its steps, and rows of its tables by name, module, shapes or source line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from pytest_perfdl.analysis.events.device_steps import device_steps
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.model.errors import SelectionError
from pytest_perfdl.trace.model import Trace
from pytest_perfdl.trace.subset import subset

Row = TypeVar("Row")

COLUMNS = ("name", "module", "shapes", "line")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class Selection:
    """What to look at; empty selects everything."""

    steps: tuple[tuple[int, int], ...] = ()
    """First and last N of `ProfilerStep#N`, both included; a step must be in one of them."""
    streams: tuple[int, ...] = ()
    """What a device ran must be on one of these."""
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
    streams: list[int] = []
    patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
    for text in texts:
        key, sign, value = _split(text)
        if key == "step" and sign == "=":
            match = _RANGE.fullmatch(value)
            if match is None:
                raise SelectionError(f"{text!r}: a step is a number or a range such as 3-5")
            steps.append((int(match[1]), int(match[2] or match[1])))
        elif key == "stream" and sign == "=":
            if not _NUMBER.fullmatch(value):
                raise SelectionError(f"{text!r}: a stream is a number such as 7")
            streams.append(int(value))
        elif key in COLUMNS and sign:
            try:
                pattern = re.compile(value if sign == "~" else f"^{re.escape(value)}$")
            except re.error as error:
                raise SelectionError(f"{text!r}: {value!r} is not a regular expression: {error}") from error
            patterns[key] = (*patterns.get(key, ()), pattern)
        else:
            known = ", ".join(f"{column}~REGEX" for column in COLUMNS)
            raise SelectionError(
                f"{text!r} is not understood: write step=3, step=3-5, stream=7, {known}, or = for an exact text"
            )
    return Selection(tuple(steps), tuple(streams), patterns)


def select(trace: Trace, selection: Selection) -> Trace:
    """The events of the selected steps and streams.

    Of steps, what starts in them on any host thread, and what that launched; memory events come along by their time. Of
    streams, what a device ran on them, with everything that the host did. Without steps or streams, the trace itself.

    Raises
    ------
    SelectionError
        When the trace has no such step or stream.
    """
    return _of_streams(_of_steps(trace, selection), selection)


def _of_streams(trace: Trace, selection: Selection) -> Trace:
    if not selection.streams:
        return trace
    device = trace.device_rows()
    wanted = np.isin(trace.tid[device], selection.streams)
    if not wanted.any():
        # Names are numbered below zero.
        numbers = sorted({number for number in trace.tid[device].tolist() if number >= 0})
        has = f"its streams are {', '.join(map(str, numbers))}" if numbers else "it has no streams"
        raise SelectionError(f"holds nothing of {trace.source or 'the trace'}: {has}")
    keep = np.ones(len(trace), dtype=bool)
    keep[device[~wanted]] = False
    return subset(trace, np.flatnonzero(keep), np.arange(len(trace.memory)))


def _of_steps(trace: Trace, selection: Selection) -> Trace:
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
