"""Where the ranks of a job wait for each other: in collectives of all of them, and for what one sends another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.ranks import RankFigures
from pytest_perfdl.trace.model import Trace
from pytest_perfdl.whatif.gradient_collectives import reduced_bytes
from pytest_perfdl.whatif.model import Meetings, TaskGraph, TaskKind


@dataclass(frozen=True, slots=True)
class _Part:
    """A rank's part in a meeting, on a clock that all ranks share."""

    column: int
    row: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Meeting:
    parts: tuple[_Part, ...]
    sender: int | None = None
    """Its column where one sends and the other receives."""
    kind: str = ""
    bytes: int = 0
    members: int = 0

    def waiting(self, part: _Part) -> bool:
        """Whether a rank waits for others."""
        return self.sender != part.column

    @property
    def last(self) -> int:
        """When all had come."""
        return max(part.start for part in self.parts)


def clocks(traces: Sequence[Trace], figures: RankFigures) -> list[int]:
    """What to add to the times of each rank's trace to get those of a clock that all share."""
    return [trace.base_ns + rank.clock_offset_ns for trace, rank in zip(traces, figures.ranks, strict=True)]


def meetings(traces: Sequence[Trace], graphs: Sequence[TaskGraph], figures: RankFigures) -> Meetings:
    """What the communication tasks of several ranks have in common.

    They are the collectives and messages that `analysis.ranks` matched. What ended on a waiting rank before the last
    had come is left out.

    Parameters
    ----------
    traces, graphs
        Of each rank, in the order of their numbers.
    figures
        `ranks(traces)`.
    """
    parts = [_parts(*each) for each in zip(range(len(traces)), traces, graphs, clocks(traces, figures), strict=True)]
    found = [
        each
        for each in _matched(figures, parts)
        if all(part.end >= each.last for part in each.parts if each.waiting(part))
    ]
    found.sort(key=lambda each: each.last)
    shape = len(found), len(traces)
    row, (duration, transfer, late) = np.full(shape, -1, dtype=np.intp), np.zeros((3, *shape), dtype=np.int64)
    waits = np.zeros(shape, dtype=bool)
    size = np.array([each.bytes for each in found], dtype=np.int64)
    for line, each in enumerate(found):
        shortest = min(part.end - part.start for part in each.parts)
        for part in each.parts:
            at = line, part.column
            row[at], duration[at] = part.row, part.end - part.start
            waits[at] = each.waiting(part)
            if waits[at]:
                transfer[at] = min(shortest, part.end - each.last)
                late[at] = part.end - transfer[at] - each.last
    # Annotations of a back end that no operator of torch asked for may have sizes of their own.
    for column, trace in enumerate(traces):
        unknown = np.flatnonzero((size == 0) & (row[:, column] >= 0))
        size[unknown] = reduced_bytes(trace, row[unknown, column])
    return Meetings(
        row,
        waits,
        duration,
        transfer,
        late,
        tuple(each.kind for each in found),
        size,
        np.array([each.members for each in found], dtype=np.int64),
    )


def _parts(column: int, trace: Trace, graph: TaskGraph, clock: int) -> list[_Part]:
    """The communication tasks of one rank in the order of time."""
    tasks = graph.tasks
    rows = tasks.row[(tasks.kind == TaskKind.COMMUNICATION) & (tasks.row >= 0)]
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    columns = (rows, trace.start[rows] + clock, trace.end[rows] + clock)
    return [_Part(column, *each) for each in zip(*(values.tolist() for values in columns), strict=True)]


def _matched(figures: RankFigures, parts: Sequence[Sequence[_Part]]) -> Iterator[_Meeting]:
    known = {rank.rank: {part.row: part for part in own} for rank, own in zip(figures.ranks, parts, strict=True)}
    for each in figures.collectives:
        members = [known[rank].get(row) for rank, row in zip(each.ranks, each.row, strict=True)]
        here = tuple(member for member in members if member is not None)
        if len(here) == len(members):
            sender = here[0].column if each.kind == "send" else None
            yield _Meeting(here, sender, each.kind, each.bytes or 0, max(each.group_size, len(here)))
