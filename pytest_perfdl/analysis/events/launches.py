"""Which call launched a device event, and the call tree of the host that the call stands in."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.nesting import Mask, by_level, nest, nesting_order
from pytest_perfdl.trace.arrays import Lookup, groups
from pytest_perfdl.trace.model import I32, I64, LAUNCH_CATEGORIES, Category, Rows, Trace, once

# Which call of the host launched a device event: joined on `correlation`, never on flow arrows.


GRAPH_LAUNCH = re.compile(r"graphlaunch", re.IGNORECASE)
"""Calls that launch a graph, whose device events may be many."""
_LAUNCH = re.compile(r"launch\w*kernel|kernellaunch|graphlaunch|runfunction", re.IGNORECASE)
"""Calls that launch kernels or graphs, of CUDA, HIP, XPU and MTIA; copies and memsets are calls of their own."""
_MOVES = re.compile(r"mem(cpy|set|prefetch)|graph", re.IGNORECASE)
"""Calls of CUDA and HIP that may own several kernels: copies in pieces, copies by a kernel, and graphs."""

UNSET = (0, 2**32 - 1)
"""Values of a correlation that was never given: CUPTI counts from 1, and -1 as 32 bits without a sign."""


ODD_SHARE = 0.05
"""Share of a stream's links beyond which it is the stream that has another order than its launches."""


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Device events and the calls that launched them: columns of equal length, in the order of device start."""

    device: Rows
    """Rows of kernels, copies and memsets."""
    call: Rows
    """Row of each one's launching call; -1 where the trace does not have it."""
    refused: npt.NDArray[np.bool_]
    """Whether its correlation names a call that cannot have launched it."""

    @property
    def linked(self) -> npt.NDArray[np.bool_]:
        """Whether the launching call is known."""
        return self.call >= 0

    def spread(self, values: Rows, length: int) -> Rows:
        """Values of the device events as a column over the rows of the trace, -1 for all others."""
        column = np.full(length, -1, dtype=np.intp)
        column[self.device] = values
        return column

    def take(self, which: npt.NDArray[np.bool_]) -> Launches:
        """Some of the device events."""
        return Launches(self.device[which], self.call[which], self.refused[which])


@once
def launches(trace: Trace) -> Launches:
    """Join device events to their calls; a graph launch has many device events, some calls have none.

    A correlation is a claim: one that is unset, that gives a plain launch several kernels on one device, a call a
    kernel that ended before it began, or a stream another order than that of its launches, is refused
    (`Launches.refused`). Of calls within each other that have one
    correlation (a runtime call and the driver call inside it) the outer one counts; of others, from recordings one
    after the other, the last that begins before the device event does.
    """
    device = trace.device_rows()
    wanted = trace.correlation[device]
    found = _find_calls(trace, device, np.where(np.isin(wanted, UNSET), -1, wanted))
    refused = np.zeros(len(device), dtype=bool)
    for wrong in (_find_shared, _find_early, _find_out_of_order):
        refused |= wrong(trace, device, found)
        found[refused] = -1
    return Launches(device, found, refused)


def _find_calls(trace: Trace, device: Rows, wanted: I64) -> Rows:
    """Row of the call with each correlation, -1 for none."""
    found = np.full(len(device), -1, dtype=np.intp)
    calls = trace.launch_rows()
    calls = calls[trace.correlation[calls] > 0]
    if len(calls) == 0 or len(device) == 0:
        return found
    # Calls come by start, so the first of a correlation is the outer of two within each other.
    order = np.argsort(trace.correlation[calls], kind="stable")
    calls = calls[order]
    keys = trace.correlation[calls]
    again = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    if len(again):
        outer = np.ones(len(calls), dtype=bool)
        outer[again] = trace.start[calls[again]] >= _reach(trace.end[calls], keys)[again - 1]
        calls, keys = calls[outer], keys[outer]
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    match = (keys[place] == wanted) & (wanted > 0)
    found[match] = calls[place[match]]
    several = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    if len(several):
        last = np.searchsorted(keys, wanted, side="right") - 1
        for at in np.flatnonzero(match & (last > place)).tolist():
            own = calls[place[at] : last[at] + 1]
            before = int(np.searchsorted(trace.start[own], trace.start[device[at]], side="right"))
            found[at] = own[max(0, before - 1)]
    return found


def _reach(end: I64, keys: I64) -> I64:
    """The latest of the ends up to each one, among those of its key; keys ascend."""
    ranked, place = np.unique(end, return_inverse=True)
    group = np.cumsum(np.diff(keys, prepend=keys[:1]) != 0)
    reach: I64 = ranked[np.maximum.accumulate(group * len(ranked) + place) % len(ranked)]
    return reach


def _find_shared(trace: Trace, device: Rows, call: Rows) -> npt.NDArray[np.bool_]:
    """Which kernels share a call of CUDA or HIP that launches one kernel on a device, or none."""
    none = np.zeros(len(device), dtype=bool)
    kernel = np.flatnonzero((trace.category[device] == Category.KERNEL) & (call >= 0))
    # Launches on several devices at once have one kernel on each.
    pairs = np.column_stack((call[kernel], trace.pid[device[kernel]]))
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    same = np.concatenate(([False], (np.diff(pairs[order], axis=0) == 0).all(axis=1))) if len(order) else none[:0]
    if not same.any():
        return none
    many = same | np.append(same[1:], False)
    own = kernel[order[many]]
    single = np.isin(trace.category[call[own]], (Category.CUDA_RUNTIME, Category.CUDA_DRIVER))
    single &= ~trace.named(_MOVES.search)[trace.name[call[own]]]
    none[own[single]] = True
    return none


def _find_early(trace: Trace, device: Rows, call: Rows) -> npt.NDArray[np.bool_]:
    """Which events end before their call begins, by more than the others of their device are ahead of theirs."""
    linked = call >= 0
    lead = np.where(linked, trace.start[call] - trace.end[device], -1)
    found = linked & (lead > 0)
    for pid in np.unique(trace.pid[device[found]]).tolist():
        own = np.flatnonzero(linked & (trace.pid[device] == pid))
        if np.count_nonzero(found[own]) > max(3, 2 * ODD_SHARE * len(own)):
            # It is not these links, but the clocks.
            found[own] = False
            continue
        ahead = trace.start[call[own]] - trace.start[device[own]]
        found[own] &= lead[own] > int(ahead[~found[own]].max(initial=0))
    return found


def _find_out_of_order(trace: Trace, device: Rows, call: Rows) -> npt.NDArray[np.bool_]:
    """Which events were launched, by their calls, before others that their stream ran earlier, or after later ones.

    A stream runs in the order of launches; threads that launch at the same time may swap neighbors. Refused are the
    fewest links without which that order holds, where they are few: else the stream is none.
    """
    found = np.zeros(len(device), dtype=bool)
    linked = np.flatnonzero(call >= 0)
    order = linked[np.lexsort((trace.start[device[linked]], trace.tid[device[linked]], trace.pid[device[linked]]))]
    rows, calls = device[order], call[order]
    same = (np.diff(trace.pid[rows]) == 0) & (np.diff(trace.tid[rows]) == 0)
    wrong = same & (trace.end[calls[1:]] < trace.start[calls[:-1]])
    if not wrong.any():
        return found
    stream = np.concatenate(([0], np.cumsum(~same)))
    for number in np.unique(stream[1:][wrong]).tolist():
        own = order[stream == number]
        odd = ~_longest_ascent(trace.start[call[own]])
        if np.count_nonzero(odd) <= max(2, ODD_SHARE * len(own)):
            found[own[odd]] = True
    return found


def _longest_ascent(values: I64) -> npt.NDArray[np.bool_]:
    """Which values belong to a longest subsequence that never falls (patience sorting, Fredman 1975)."""
    tops: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for place, value in enumerate(values.tolist()):
        pile = bisect_right(tops, value)
        before.append(places[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [value]
        places[pile : pile + 1] = [place]
    found = np.zeros(len(values), dtype=bool)
    place = places[-1] if places else -1
    while place >= 0:
        found[place] = True
        place = before[place]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class LaunchCalls:
    """The calls that launch kernels or graphs, each once: columns of equal length, in the order of start."""

    row: Rows
    """The outermost call, where one is inside another."""
    events: I64
    """Device events that it, and the calls inside it, are known to have launched."""


@once
def launch_calls(trace: Trace) -> LaunchCalls:
    """Every launch once: a driver call inside a runtime call that launches is the same launch."""
    joined = launches(trace)
    rows = trace.matching(_LAUNCH.search, trace.launch_rows())
    events = np.bincount(joined.call[joined.linked], minlength=len(trace))[rows] if len(rows) else np.zeros(0, np.int64)
    outer = np.arange(len(rows))
    order = np.lexsort((trace.tid[rows], trace.pid[rows]))
    own = rows[order]
    # One thread after the other, and on each the order of nesting: what starts before all that came has ended.
    threads = np.concatenate(([True], (np.diff(trace.pid[own]) != 0) | (np.diff(trace.tid[own]) != 0)))[: len(own)]
    inside = ~threads[1:] & (trace.start[own[1:]] < trace.end[own[:-1]])
    if inside.any():
        for thread in np.split(order, np.flatnonzero(threads)[1:]):
            forest = nest(trace.start[rows[thread]], trace.end[rows[thread]])
            parent = forest.parent
            top = np.arange(len(thread))
            while (parent[top] >= 0).any():
                top = np.where(parent[top] >= 0, parent[top], top)
            outer[thread] = thread[top]
    total = np.zeros(len(rows), dtype=np.int64)
    np.add.at(total, outer, events)
    kept = np.flatnonzero(outer == np.arange(len(rows)))
    return LaunchCalls(rows[kept], total[kept])


# The call tree of the host: which operator, annotation, Python frame or runtime call runs inside which.


HOST_CATEGORIES = (Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION, *LAUNCH_CATEGORIES)
"""What a call tree is made of: events of host threads that nest as calls do."""


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
    """A forest over the rows of a trace; columns are as long as the trace."""

    parent: Rows
    """Row of the innermost host event that fully contains each one, on its thread; -1 for a root or no host event."""
    depth: I32
    """Number of ancestors; 0 for a root, -1 for what is no host event."""
    bled: Rows
    """Rows that began inside the innermost event then running and ended after it, in the order of rows.

    The parent of such an event is the innermost one that contains it, not the one it bled over.
    """
    levels: tuple[Rows, ...]
    """Rows that have a parent, those of one depth after the other."""

    def children(self) -> tuple[Rows, Rows]:
        """Children grouped by parent: those of row r are `rows[first[r] : first[r + 1]]`, in file order."""
        below = np.flatnonzero(self.parent >= 0)
        rows = below[np.argsort(self.parent[below], kind="stable")]
        counts = np.bincount(self.parent[below], minlength=len(self.parent))
        return np.concatenate(([0], np.cumsum(counts))).astype(np.intp), rows

    def nearest(self, mask: Mask) -> Rows:
        """For each row the nearest of itself and its ancestors that satisfies `mask`, one boolean per row; or -1."""
        found = np.where(mask, np.arange(len(mask)), -1)
        for rows in self.levels:
            found[rows] = np.where(mask[rows], rows, found[self.parent[rows]])
        return found

    def outermost(self, mask: Mask) -> Rows:
        """For each row the farthest of itself and its ancestors that satisfies `mask`, one boolean per row; or -1."""
        found = np.where(mask, np.arange(len(mask)), -1)
        for rows in self.levels:
            above = found[self.parent[rows]]
            found[rows] = np.where(above >= 0, above, found[rows])
        return found

    def subtree_sums(self, values: I64) -> I64:
        """For each row the sum of `values`, one per row, over itself and everything below it."""
        total: I64 = values.copy()
        for rows in reversed(self.levels):
            np.add.at(total, self.parent[rows], total[rows])
        return total


@once
def call_tree(trace: Trace) -> CallTree:
    """Nest the host events of each thread (process and thread id) by stack discipline.

    The events are operators, annotations, Python frames, and runtime and driver calls. The longer of two events
    that start together contains the other, of two equal ones the first in the file. Intervals are half-open:
    what begins where another ends is not inside it, and nothing is inside an event without duration.
    """
    parent = np.full(len(trace), -1, dtype=np.intp)
    depth = np.full(len(trace), -1, dtype=np.int32)
    bled = []
    for rows in by_thread(trace, np.flatnonzero(np.isin(trace.category, HOST_CATEGORIES))):
        forest = nest(trace.start[rows], trace.start[rows] + trace.duration[rows])
        inner = forest.parent >= 0
        parent[rows[inner]] = rows[forest.parent[inner]]
        depth[rows] = forest.depth
        bled.append(rows[forest.bled])
    below = np.flatnonzero(parent >= 0)
    order, bounds = by_level(depth[below])
    levels = tuple(below[level] for level in np.split(order, bounds[1:-1])[1:])
    return CallTree(parent, depth, np.sort(np.concatenate(bled)) if bled else np.zeros(0, dtype=np.intp), levels)


def pair_codes(first: I64, second: I64) -> Rows:
    """One number for each distinct pair of values, in the order of pairs; not every number need occur."""
    firsts, seconds = np.unique(first), np.unique(second)
    return np.searchsorted(firsts, first) * len(seconds) + np.searchsorted(seconds, second)


@once
def launching_operator(trace: Trace) -> Rows:
    """For each row that is a device event the row of the operator that launched it; -1 for all others.

    It is the innermost operator around the launching call, on the call's thread. Where the trace lacks the call, it
    is the operator that has the event's `External id`, unless it started after the event.
    """
    joined = launches(trace)
    is_operator = trace.category == Category.CPU_OP
    found = np.full(len(trace), -1, dtype=np.intp)
    linked = joined.linked
    if linked.any():
        found[joined.device[linked]] = call_tree(trace).nearest(is_operator)[joined.call[linked]]
    alone = joined.device[~linked]
    if len(alone):
        found[alone] = _by_external_id(trace, np.flatnonzero(is_operator), alone)
    return found


def _by_external_id(trace: Trace, operators: Rows, device: Rows) -> Rows:
    wanted = trace.external_ids(device)
    if not len(operators) or not (wanted > 0).any():
        return np.full(len(device), -1, dtype=np.intp)
    found = Lookup(trace.external_ids(operators), operators).find(wanted)
    return np.where((wanted > 0) & (trace.start[found] <= trace.start[device]), found, -1)


def by_thread(trace: Trace, rows: Rows) -> Iterator[Rows]:
    """The given rows of each thread, in the order in which a parent comes before its children."""
    for own in (rows[own] for own in groups(trace.pid[rows], trace.tid[rows])):
        yield own[nesting_order(trace.start[own], trace.end[own])]
