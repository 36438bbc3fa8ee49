"""Pairs begin and end events (phases B and E) to what complete events are, as the Trace Event Format defines it.

The ends belong to the beginnings of their thread as a stack. A file should have the events of a thread in the order of
time, and then its own order is that of the stack, also among equal times. Where it has them in another order, that is
still the stack's unless fewer events are left over in the order of time (it is of a file whose complete events were
rewritten as two events each, say); among equal times, what ends then comes before what begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.model.units import plural
from pytest_perfdl.trace.model import I32, I64

COMPLETE, BEGIN, END = 0, 1, 2
"""Phases of rows, X, B and E."""

Phases = npt.NDArray[np.int8]


@dataclass(slots=True)
class Pairs:
    """Which row of phase E ends which row of phase B."""

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    inside: list[tuple[int, int]] = field(default_factory=list)
    """Beginnings without an end, and the row of the end of what is around them; -1 where nothing is."""
    unbegun: int = 0
    """Ends without a beginning."""
    reversed: int = 0
    """Pairs that end before they begin."""

    @property
    def misfits(self) -> int:
        """Events that are in no pair as it should be."""
        return self.unbegun + self.reversed + len(self.inside)

    def __iadd__(self, other: Pairs) -> Pairs:
        self.begin += other.begin
        self.end += other.end
        self.inside += other.inside
        self.unbegun += other.unbegun
        self.reversed += other.reversed
        return self

    def findings(self) -> Iterator[str]:
        """What does not pair, one line each."""
        if self.unbegun:
            yield plural(
                self.unbegun,
                "end event (phase E) has no begin event and was ignored",
                "end events (phase E) have no begin event and were ignored",
            )
        if self.reversed:
            yield plural(
                self.reversed,
                "end event (phase E) lies before its begin event: its duration was read as 0",
                "end events (phase E) lie before their begin events: their durations were read as 0",
            )
        if self.inside:
            yield plural(
                len(self.inside),
                "begin event (phase B) has no end event: it was ended with the event around it, or with the last event "
                "of its thread",
                "begin events (phase B) have no end event: each was ended with the event around it, or with the last "
                "event of its thread",
            )


def pair(phase: Phases, start: I64, name: I32, pid: I64, tid: I64, unnamed: int) -> Pairs:
    """Pair the rows of phases B and E, thread by thread.

    Parameters
    ----------
    phase, start, name, pid, tid
        Of all rows, in the order of the file; of a row of phase E, `start` is when it ends.
    unnamed
        The name of an end that has none, which ends the innermost; one with a name ends the innermost of that name.
    """
    found = Pairs()
    rows = np.flatnonzero(phase != COMPLETE)
    by_thread = np.lexsort((rows, tid[rows], pid[rows]))
    rows = rows[by_thread]
    cuts = np.flatnonzero((np.diff(tid[rows]) != 0) | (np.diff(pid[rows]) != 0)) + 1
    for thread in np.split(rows, cuts):
        begins = (phase[thread] == BEGIN).tolist()
        events = list(zip(thread.tolist(), begins, start[thread].tolist(), name[thread].tolist(), strict=True))
        pairs = _stack(events, unnamed)
        if pairs.misfits and (np.diff(start[thread]) < 0).any():
            pairs = min(pairs, _stack(_in_time(events, unnamed), unnamed), key=lambda each: each.misfits)
        found += pairs
    return found


def set_durations(pairs: Pairs, start: I64, duration: I64, pid: I64, tid: I64) -> None:
    """Put the durations of all beginnings into the column `duration`; an end never lies before its beginning."""
    begin, end = np.array(pairs.begin, dtype=np.intp), np.array(pairs.end, dtype=np.intp)
    duration[begin] = np.maximum(start[end] - start[begin], 0)
    if pairs.inside:
        rows, around = np.array(pairs.inside, dtype=np.intp).T
        ends = np.where(around >= 0, start[around], _last_ends(start + duration, pid, tid)[rows])
        duration[rows] = np.maximum(ends - start[rows], 0)


def merged(begin: bytes, end: bytes) -> bytes:
    """The arguments of both events as JSON text; of equal keys the end's value counts, as the format says."""
    try:
        both = [msgspec.json.decode(text, type=dict[str, msgspec.Raw]) for text in (begin, end)]
    except (msgspec.DecodeError, RecursionError):
        return begin
    return msgspec.json.encode({**both[0], **both[1]})


_Event = tuple[int, bool, int, int]
"""Row, whether it begins, time, name."""


class _Opened:
    """The beginnings of a thread that are not ended yet, the innermost last."""

    def __init__(self, unnamed: int) -> None:
        self.events: list[_Event] = []
        self._names: Counter[int] = Counter()
        self._unnamed = unnamed

    def push(self, event: _Event) -> None:
        self.events.append(event)
        self._names[event[3]] += 1

    def pop(self, end: _Event) -> list[_Event]:
        """Take out what an event ends, with all that is inside it; nothing where it ends nothing."""
        name = end[3]
        if name != self._unnamed and not self._names[name]:
            return []
        place = len(self.events) - 1
        while name != self._unnamed and self.events[place][3] != name:
            place -= 1
        taken = self.events[max(place, 0) :]
        del self.events[max(place, 0) :]
        self._names.subtract(event[3] for event in taken)
        return taken


def _stack(events: list[_Event], unnamed: int) -> Pairs:
    """The pairs of one thread, whose events are in the order of its stack."""
    found = Pairs()
    opened = _Opened(unnamed)
    for event in events:
        row, begins, time, _ = event
        if begins:
            opened.push(event)
            continue
        taken = opened.pop(event)
        if not taken:
            found.unbegun += 1
            continue
        begun = taken[0]
        found.begin.append(begun[0])
        found.end.append(row)
        found.reversed += time < begun[2]
        for each in taken[1:]:
            # What began at the same time may as well be around it: those have no order among themselves.
            if each[2] > begun[2]:
                found.inside.append((each[0], row))
            else:
                opened.push(each)
    found.inside += [(each[0], -1) for each in opened.events]
    return found


def _in_time(events: list[_Event], unnamed: int) -> list[_Event]:
    """The events by time; among equal times, those first that end what began before."""
    found: list[_Event] = []
    opened = _Opened(unnamed)
    for _, group in groupby(sorted(events, key=_time), _time):
        late: list[_Event] = []
        for event in group:
            taken = [] if event[1] else opened.pop(event)
            (found if taken else late).append(event)
            for each in taken[1:]:
                opened.push(each)
        for event in late:
            if event[1]:
                opened.push(event)
            else:
                for each in opened.pop(event)[1:]:
                    opened.push(each)
        found += late
    return found


def _time(event: _Event) -> int:
    return event[2]


def _last_ends(end: I64, pid: I64, tid: I64) -> I64:
    """When the last event of the thread of each row ends."""
    order = np.lexsort((tid, pid))
    first = np.concatenate(([True], (np.diff(tid[order]) != 0) | (np.diff(pid[order]) != 0)))
    latest = np.maximum.reduceat(end[order], np.flatnonzero(first))
    found = np.empty_like(end)
    found[order] = latest[np.cumsum(first) - 1]
    return found
