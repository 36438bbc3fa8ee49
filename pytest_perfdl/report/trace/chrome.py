"""The traces of a job's ranks as one Chrome trace: each rank a process, on one clock.

Ranks are written one after the other, so that only one of their traces is in memory. A thread of each rank shows when
it waits for which other rank; arrows lead from the last start of a collective to the ranks that wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.ranks import Collective, RankActivity, RankFigures
from pytest_perfdl.analysis.ranks.compare import SKEW_ABOVE_NS
from pytest_perfdl.analysis.ranks.meetings import clock_of
from pytest_perfdl.model.errors import ReportError
from pytest_perfdl.model.visible import visible
from pytest_perfdl.trace.model import DEVICE_CATEGORIES, I64, Category, Trace
from pytest_perfdl.trace.recordings import MERGED, MergedRank
from pytest_perfdl.trace.writer import Event, Lanes, compress, write, write_stream

_MOST_ID = 2**32 - 1
_THREADS = 10_000
"""Thread ids of a rank: some viewers look a thread up by its id alone."""
_STREAMS = 5_000
"""Where those of a device's streams begin among them."""
_FLOWS = 2**32
"""Ids of arrows that one rank may have."""
_JOINS = re.compile(
    rb'"(correlation|External id|external id|wait_on_cuda_event_record_corr_id)":\s*(?!(?:0|4294967295)\b)(\d+)'
)
"""What ties events of one rank to each other; 0 and 2**32 - 1 tie nothing, and stay."""
_BLOCK = 4096


def write_merged(path: Path, figures: RankFigures, activities: Sequence[RankActivity], traces: Iterable[Trace]) -> None:
    """Write the traces as one. Complete events, and arrows from launches to kernels; no memory events and counters.

    Parameters
    ----------
    activities, traces
        In the order of `figures.ranks`; each trace is used before the next is asked for.

    Raises
    ------
    ReportError
        When the file cannot be written; an earlier one is then still whole.
    """
    origin = _origin(figures, activities)
    told: list[dict[str, Any]] = []
    try:
        write_stream(path, _events(figures, traces, origin, told), _metadata(origin), {MERGED: told})
    except OSError as error:
        raise ReportError(f"{error.filename or path} cannot be written: {error.strerror or error}") from error


def merge_ranks(figures: RankFigures, activities: Sequence[RankActivity], traces: Iterable[Trace]) -> bytes:
    """What `write_merged` writes, gzip-compressed, for traces that are small: equal input gives equal bytes."""
    origin = _origin(figures, activities)
    told: list[dict[str, Any]] = []
    events = list(_events(figures, traces, origin, told))
    return compress(write(None, events, _metadata(origin) | {MERGED: told}))


def _origin(figures: RankFigures, activities: Sequence[RankActivity]) -> int:
    """When the first event of all ranks begins, on their common clock."""
    clocks = [clock_of(rank) for rank in figures.ranks]
    begins = [
        int(clock.moved(np.array([each.begin_ns]))[0])
        for clock, each in zip(clocks, activities, strict=True)
        if each.begin_ns
    ]
    return min(begins, default=0)


def _metadata(origin: int) -> dict[str, Any]:
    return {"baseTimeNanoseconds": origin}


def _events(figures: RankFigures, traces: Iterable[Trace], origin: int, told: list[dict[str, Any]]) -> Iterator[Event]:
    """The events of all ranks; `told` gets what `trace.recordings` needs to read each of them as it was."""
    met: list[list[tuple[int, Collective, int]]] = [[] for _ in figures.ranks]
    place = {rank.rank: at for at, rank in enumerate(figures.ranks)}
    for number, collective in enumerate(figures.collectives):
        for column, member in enumerate(collective.ranks):
            met[place[member]].append((number, collective, column))
    valid = all(0 <= rank.rank <= _MOST_ID for rank in figures.ranks)
    for at, (rank, trace) in enumerate(zip(figures.ranks, traces, strict=True)):
        moved = clock_of(rank).moved
        start = moved(trace.start + trace.base_ns) - origin
        # A clock that drifts moves both ends, so that what is nested stays nested.
        end = moved(trace.end + trace.base_ns) - origin
        one = _Rank(trace, start, end, at, rank.rank if valid else at, rank.rank, len(figures.ranks), origin, met[at])
        yield from one.events()
        about = MergedRank(
            rank=rank.rank,
            source=rank.source,
            clock_offset_ns=rank.clock_offset_ns,
            pid=one.pid,
            threads=one.threads,
            metadata=dict(trace.metadata),
            process_names=[(_id(trace, pid), name) for pid, name in trace.process_names.items()],
            thread_names=[(_id(trace, pid), _id(trace, tid), name) for (pid, tid), name in trace.thread_names.items()],
        )
        told.append(msgspec.structs.asdict(about))


def _id(trace: Trace, number: int) -> int | str:
    """A process or thread id as the file has it: text where it was interned."""
    return trace.labels.get(number, number)


@dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    trace: Trace
    start: I64
    """Of each row, in the merged trace's time."""
    end: I64
    place: int
    pid: int
    number: int
    ranks: int
    origin: int
    met: Sequence[tuple[int, Collective, int]]
    """Number and value of each of its collectives, and which of the members it is."""
    threads: list[tuple[int, int | str, int | str]] = field(default_factory=list)
    """Once its events were written: as in `MergedRank`."""

    def events(self) -> Iterator[Event]:
        trace = self.trace
        yield Event.process_name(self.pid, f"rank {self.number}: {visible(trace.source)}")
        yield Event("M", "process_sort_index", self.pid, 0, args={"sort_index": self.place})
        base = self.place * _THREADS + 1
        threads, names = self._threads(base + 1)
        for order, (tid, name) in enumerate([(base, "waits for other ranks"), *sorted(names.items())]):
            yield Event.thread_name(self.pid, tid, name)
            yield Event("M", "thread_sort_index", self.pid, tid, args={"sort_index": order})
        lanes = Lanes(
            ((self.pid, tid) for tid in (base, *names)),
            {(self.pid, tid): name for tid, name in [(base, "waits for other ranks"), *names.items()]},
        )
        tids = np.array(
            [threads[key] for key in zip(trace.pid.tolist(), trace.tid.tolist(), strict=True)], dtype=np.int64
        )
        yield from self._slices(tids, lanes)
        for lane, pid, tid in np.unique(np.stack((tids, trace.pid, trace.tid), axis=1), axis=0).tolist():
            self.threads.append((lane, _id(trace, pid), _id(trace, tid)))
        yield from self._waits(base, lanes)
        yield from lanes.added
        yield from self._launches(tids)
        yield from self._arrows(tids)

    def _threads(self, first: int) -> tuple[dict[tuple[int, int], int], dict[int, str]]:
        """The id of each thread and stream, and their names; host threads come before streams."""
        trace = self.trace
        keys = np.stack((trace.pid, trace.tid), axis=1)
        found, index = np.unique(keys, axis=0, return_inverse=True)
        on_device = np.zeros(len(found), dtype=bool)
        of_device = np.isin(trace.category, (*DEVICE_CATEGORIES, Category.GPU_USER_ANNOTATION))
        on_device[index.reshape(-1)[of_device]] = True
        processes = {side: len({pid for pid, _ in found[on_device == side].tolist()}) for side in (True, False)}
        threads: dict[tuple[int, int], int] = {}
        names = {}
        numbers = {True: first + _STREAMS, False: first}
        for (pid, tid), is_device in zip(found.tolist(), on_device.tolist(), strict=True):
            own = threads[pid, tid] = numbers[is_device]
            numbers[is_device] += 1
            name = trace.thread_names.get((pid, tid)) or f"{'stream' if is_device else 'thread'} {trace.label(tid)}"
            owner = trace.process_names.get(pid) or f"{'device' if is_device else 'process'} {trace.label(pid)}"
            names[own] = visible(f"{owner}: {name}" if processes[is_device] > 1 else name)
        return threads, names

    def _slices(self, tids: I64, lanes: Lanes) -> Iterator[Event]:
        """All rows in the order of time; `tids` then has the lanes that they are in."""
        trace = self.trace
        more = {collective.row[column]: self._told(*each) for each in self.met for _, collective, column in [each]}
        order = np.lexsort((-(self.end - self.start), self.start))
        for first in range(0, len(order), _BLOCK):
            rows = order[first : first + _BLOCK]
            columns = (rows, self.start[rows], self.end[rows], tids[rows], trace.name[rows], trace.category[rows])
            for row, start, end, tid, name, category in zip(*(column.tolist() for column in columns), strict=True):
                lane = lanes.place(self.pid, tid, start, end)
                tids[row] = lane
                args = self._args(trace.raw_args[row], more.get(row))
                kind = trace.categories[category]
                yield Event("X", trace.names[name], self.pid, lane, start, end - start, kind, json_args=args)

    def _args(self, text: bytes, more: Mapping[str, Any] | None) -> bytes | None:
        if text == b"{}" and more is None:
            return None
        text = _JOINS.sub(lambda found: b'"%b":%d' % (found[1], int(found[2]) * self.ranks + self.place), text)
        if more is None:
            return text
        try:
            known = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError:
            known = {}
        return msgspec.json.encode(known | dict(more))

    def _told(self, number: int, collective: Collective, column: int) -> dict[str, Any]:
        """What of a collective is known from all ranks together."""
        return {
            "collective across ranks": number,
            "last to start": f"rank {collective.last}",
            "waits (us)": collective.wait_ns[column] / 1000,
        }

    def _waits(self, tid: int, lanes: Lanes) -> Iterator[Event]:
        """When it waits for which rank."""
        own = sorted(self.met, key=lambda each: (each[1].start_ns[each[2]], -each[1].wait_ns[each[2]]))
        for number, collective, column in own:
            wait = collective.wait_ns[column]
            if wait > SKEW_ABOVE_NS:
                start = collective.start_ns[column] - self.origin
                lane = lanes.place(self.pid, tid, start, start + wait)
                args = {"collective": collective.name, "collective across ranks": number}
                name = f"wait for rank {collective.last}"
                yield Event("X", name, self.pid, lane, start, wait, "wait", args)

    def _launches(self, tids: I64) -> Iterator[Event]:
        """Arrows from launching calls to what the device runs."""
        joined = launches(self.trace)
        device, call = joined.device[joined.linked], joined.call[joined.linked]
        columns = (tids[call], self.start[call], tids[device], self.start[device])
        first = self.place * _FLOWS
        for number, (source, begin, target, end) in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
            yield Event("s", "launch", self.pid, source, begin, category="launch", flow=first + number)
            yield Event("f", "launch", self.pid, target, max(end, begin), category="launch", flow=first + number)

    def _arrows(self, tids: I64) -> Iterator[Event]:
        """Arrows of collectives: from the rank that starts last to those that wait for it."""
        for number, collective, column in self.met:
            begin = max(collective.start_ns)
            last = collective.start_ns.index(begin)
            tid = int(tids[collective.row[column]])
            for other, wait in enumerate(collective.wait_ns):
                if wait <= SKEW_ABOVE_NS or column not in (last, other):
                    continue
                flow = (self.ranks + number) * _FLOWS + other
                if column == last:
                    yield Event("s", "wait", self.pid, tid, begin - self.origin, category="wait", flow=flow)
                else:
                    left = collective.start_ns[other] + collective.duration_ns[other] - begin
                    time = begin + max(left // 2, 1) - self.origin
                    yield Event("f", "wait", self.pid, tid, time, category="wait", flow=flow)
