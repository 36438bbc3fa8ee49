"""The record of a device: what is missing of it, whether its clock is the host's, and transfers without a kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import GRAPH_LAUNCH, UNSET, launch_calls, launches, pair_codes
from pytest_perfdl.trace.annotations import step_annotations
from pytest_perfdl.trace.model import I64, Category, GraphNode, Rows, Trace, device_properties, once
from pytest_perfdl.trace.times import TOGETHER_NS

# Streams, and which of their events belong to no step because they were launched before.


def streams_of(trace: Trace, device: Rows) -> Rows:
    """Number of each device event's stream, counted from 0 over all devices: by device, then by stream."""
    return np.unique(pair_codes(trace.pid[device], trace.tid[device]), return_inverse=True)[1]


@once
def carried_over(trace: Trace) -> npt.NDArray[np.bool_]:
    """Unlinked device events ahead of the first linked one of their stream, in each recording of the file.

    A stream runs in the order of launches, so they were launched before profiling began. A recording of its own begins
    where the numbers of the steps do not go on. Of an event whose correlation was never set, and of one that was
    refused, it is not known.
    """
    joined = launches(trace)
    rows, numbers = step_annotations(trace)
    again = np.flatnonzero(np.diff(numbers) != 1) + 1 if len(numbers) > 1 else np.zeros(0, dtype=np.intp)
    stream = streams_of(trace, joined.device)
    order = np.argsort(stream, kind="stable")
    session = np.searchsorted(trace.start[rows[again]], trace.start[joined.call], side="right")[order]
    linked = np.flatnonzero(joined.linked[order])
    place = np.searchsorted(linked, np.arange(len(order)))
    before, after = linked[np.maximum(place - 1, 0)] if len(linked) else linked, np.append(linked, 0)[place]
    carried = np.zeros(len(order), dtype=bool)
    if len(linked):
        own = stream[order]
        has_before = (place > 0) & (own[before] == own)
        has_after = (place < len(linked)) & (own[after] == own)
        first = ~has_before | (session[before] < session[after])
        carried[order] = has_after & first & ~joined.linked[order]
    carried &= ~np.isin(trace.correlation[joined.device], UNSET) & ~joined.refused
    own = np.flatnonzero(carried)
    if len(own):
        # One whose operator is in the file was launched in it, by a call that is lost.
        asked = trace.external_ids(joined.device[own])
        operators = trace.rows(Category.CPU_OP)
        operators = operators[trace.start[operators] < trace.end[joined.device[own]].max()]
        carried[own[(asked > 0) & np.isin(asked, trace.external_ids(operators))]] = False
    return carried


# Whether the record of a device is whole and on the host's clock: work that is missing, and clocks that disagree.


WRONG_SHARE = 0.1
"""Share of the links that may have a wrong time or call while the clocks are right."""
MISSING_SHARE = 0.05
"""Share of a step's device work that may be missing for figures of the device to be made of the rest."""

_BEGIN_CAPTURE = re.compile(r"StreamBeginCapture", re.IGNORECASE)
_END_CAPTURE = re.compile(r"StreamEndCapture", re.IGNORECASE)
_MOVE = re.compile(r"mem(cpy|set)", re.IGNORECASE)
"""Calls that copy or set memory of a device."""
_WAITS_FOR_DEVICE = re.compile(r"(cuda|hip)(Device|Stream)Synchronize$|cu(Ctx|Stream)Synchronize$", re.IGNORECASE)
_DEVICE_PROCESS = re.compile(r"hardware|\bnpu\b|ascend|\bgpu\b|\bxpu\b|\btpu\b|accelerator", re.IGNORECASE)
"""Names of processes of a trace that stand for a device."""

_VENDORS = {"cuda": "CUDA", "hip": "HIP", "ur": "XPU", "cu": "CUDA"}
"""Runtimes by what their calls begin with."""
_FEW = 2
"""Events that may be odd while clocks are sane."""
_IDLE_NS = 100_000
DELAY_NS = 1_000_000
"""An idle device begins what is launched within 2 to 20 microseconds. After a hundred of them without any work, what
was launched over a thousand before cannot have waited for a stream or an event: it is the clocks' difference."""
_CLOCK_NOISE_NS = 50_000
"""Clocks of host and device that are aligned differ by some microseconds, and times may be whole microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class MissingWork:
    """Device events that launches of a trace must have had and that are not in it; columns are as long as `call`."""

    call: Rows
    """Rows of the launches of kernels and graphs, each launch once, in the order of start."""
    expected: I64
    """Device events that each one must have: 1, of a graph what its replays have together, 0 inside a capture."""
    missing: I64
    """Those of them that are not in the trace."""
    moves: int
    """Calls that copy or set memory without a device event: of no bytes, done by the CPU, or missing."""


@once
def missing_work(trace: Trace) -> MissingWork:
    """Compare launches with device events.

    Not missing: what is launched while a stream is captured; the nodes of a graph that is recorded as one event; a
    launch that has no event of its own where as many events that no launch owns begin after it (their correlation is
    unset or was refused, or they are in the middle of their stream).
    """
    joined, calls = launches(trace), launch_calls(trace)
    row = calls.row
    expected = np.ones(len(row), dtype=np.int64)
    # What has no time of its own was put where its call begins (trace/times.py): it is as good as missing.
    device = joined.device[joined.linked]
    timeless = (trace.duration[device] == 0) & (trace.start[device] == trace.start[joined.call[joined.linked]])
    without = np.bincount(joined.call[joined.linked][timeless], minlength=len(trace))[row]
    missing = ((calls.events == 0) | (without == calls.events)).astype(np.int64)
    _compare_replays(trace, row, calls.events, expected, missing)
    captured = _find_captures(trace).contains(trace.start[row]) & (calls.events == 0)
    expected[captured] = missing[captured] = 0
    lost = np.flatnonzero(missing & (calls.events == 0))
    if len(lost):
        missing[lost[_explain(trace, trace.start[row[lost]])]] = 0
    moves = trace.matching(_MOVE.search, trace.launch_rows())
    moves = moves[~_find_captures(trace).contains(trace.start[moves])]
    owned = np.isin(moves, joined.call[joined.linked])
    return MissingWork(row, expected, missing, int(np.count_nonzero(~owned)))


def _compare_replays(trace: Trace, row: Rows, events: I64, expected: I64, missing: I64) -> None:
    """Of graphs, what a replay lacks that other replays of the graph have; in place."""
    graphs = np.flatnonzero(trace.named(GRAPH_LAUNCH.search)[trace.name[row]] & (events > 1))
    if len(graphs) < 2:
        return
    joined = launches(trace)
    order = np.argsort(joined.call, kind="stable")
    first, last = (
        np.searchsorted(joined.call[order], row[graphs]),
        np.searchsorted(joined.call[order], row[graphs], side="right"),
    )
    nodes: dict[int, set[int]] = {}
    replays: list[tuple[int, int, int]] = []
    for at, since, until in zip(graphs.tolist(), first.tolist(), last.tolist(), strict=True):
        found = trace.decode_args(joined.device[order[since:until]], GraphNode)
        graph = found[0].graph if found else 0
        own = {each.node for each in found}
        # Without ids of its nodes, or with several events of one, counts are all there is to compare.
        if graph and len(own) == len(found) and 0 not in own:
            nodes.setdefault(graph, set()).update(own)
            replays.append((at, graph, len(own)))
    for at, graph, had in replays:
        expected[at] = len(nodes[graph])
        missing[at] = len(nodes[graph]) - had


@once
def _find_captures(trace: Trace) -> Intervals:
    """From the begin of each capture of a stream to its end: what is launched meanwhile runs later, in a graph."""
    calls = trace.launch_rows()
    begin = trace.matching(_BEGIN_CAPTURE.search, calls)
    if len(begin) == 0:
        return Intervals.between(0, 0)
    end = np.append(np.sort(trace.end[trace.matching(_END_CAPTURE.search, calls)]), trace.end.max())
    start = trace.start[begin]
    place = np.minimum(np.searchsorted(end, start, side="right"), len(end) - 1)
    return Intervals.union_of(start, end[place])


def _explain(trace: Trace, called: I64) -> Rows:
    """Which of the launches, by time, a kernel without a known launch may be of; each kernel is of one at most."""
    joined = launches(trace)
    loose = ~joined.linked & (trace.category[joined.device] == Category.KERNEL) & ~carried_over(trace)
    starts = trace.start[joined.device[loose]].tolist()
    found, at = [], 0
    for place, time in enumerate(called.tolist()):
        while at < len(starts) and starts[at] < time:
            at += 1
        if at == len(starts):
            break
        found.append(place)
        at += 1
    return np.array(found, dtype=np.intp)


def unrecorded_device(trace: Trace) -> str:
    """Why a trace without device events is not one of a CPU alone; empty if nothing says so, or it has some."""
    if len(trace.device_rows()):
        return ""
    if names := [device.get("name") or "without a name" for device in device_properties(trace)]:
        return f"the trace names a device ({names[0]})"
    # Another type than the host's, which is 0; absent types are -1.
    return "the trace has memory events of a device" if (trace.memory.device_type > 0).any() else ""


@once
def unread_rows(trace: Trace) -> tuple[int, str, bool]:
    """Events without a category: how many, the process of the first, and whether it is named like a device.

    Of several processes that named like a device comes first.
    """
    rows = np.flatnonzero(trace.category == Category.NONE)
    names = {pid: trace.process_names.get(pid, trace.label(pid)) for pid in np.unique(trace.pid[rows]).tolist()}
    for pid, name in names.items():
        if _DEVICE_PROCESS.search(name):
            return int(np.count_nonzero(trace.pid[rows] == pid)), name, True
    return len(rows), names[int(trace.pid[rows[0]])] if names else "", False


def clock_difference(trace: Trace) -> int:
    """By how many nanoseconds the clock of a device is behind the host's (negative: ahead of it), at least; 0 if sane.

    *Ahead*: device events begin before the calls that launch them do. *Behind*: whatever begins after `_IDLE_NS` in
    which no device ran anything was launched over `DELAY_NS` before, or all streams go on after a call that waits for
    a device or a stream has returned. Of several devices the worst.
    """
    joined = launches(trace)
    found, late, delays = [0], [], []
    # One device may wait for another.
    busy_until = np.maximum.accumulate(trace.end[joined.device])
    busy_until = np.concatenate((trace.start[joined.device[:1]], busy_until[:-1]))
    waits = trace.matching(_WAITS_FOR_DEVICE.search, trace.launch_rows())
    stream = streams_of(trace, joined.device)
    for pid in np.unique(trace.pid[joined.device]).tolist():
        own = np.flatnonzero(trace.pid[joined.device] == pid)
        start, end = trace.start[joined.device[own]], trace.end[joined.device[own]]
        linked = joined.linked[own]
        called = trace.start[joined.call[own]]
        delay = np.sort((start - called)[linked])
        if len(delay) == 0:
            continue
        # Some times may be wrong; clocks that disagree do so for more.
        found.append(min(0, int(delay[min(len(delay) - 1, max(_FEW, int(WRONG_SHARE * len(delay))))])))
        fresh = (start - called)[linked & (start - busy_until[own] > _IDLE_NS)]
        if len(fresh) > _FEW and fresh.min() > DELAY_NS:
            delays.append(int(fresh.min()))
        tracks = stream[own][linked]
        for track in np.unique(tracks).tolist():
            on = tracks == track
            by_call = np.argsort(called[linked][on], kind="stable")
            reach = np.maximum.accumulate(end[linked][on][by_call])
            place = np.searchsorted(called[linked][on][by_call], trace.start[waits]) - 1
            # A stream without work before a call has none to go on with.
            late.append(np.where(place >= 0, reach[place] - trace.end[waits], 0))
    if late and len(waits):
        # A call waits for one device or stream, and it is not told for which: it is one that is not late, if any.
        found.append(max(0, int(np.median(np.min(late, axis=0)))))
        # Calls that return just after the device's last event say that the clocks agree, and something else delays.
        if np.median(np.abs(np.max(late, axis=0))) < _IDLE_NS:
            delays = []
    found += delays
    worst = max(found, key=abs)
    return worst if abs(worst) > _CLOCK_NOISE_NS else 0


def stream_overlaps(trace: Trace) -> tuple[int, int]:
    """Device events that overlap the next launch's of their stream, and for how long together.

    Not nodes of one graph launch, nor the few microseconds of programmatic dependent launches (`TOGETHER_NS`).
    """
    joined = launches(trace)
    stream = streams_of(trace, joined.device)
    rows = joined.device[np.argsort(stream, kind="stable")]
    same = np.diff(np.sort(stream, kind="stable")) == 0
    same &= trace.correlation[rows[1:]] != trace.correlation[rows[:-1]]
    together = np.where(same, np.minimum(trace.end[rows[:-1]], trace.end[rows[1:]]) - trace.start[rows[1:]], 0)
    over = together > TOGETHER_NS
    return int(np.count_nonzero(over)), int(together[over].sum())


def devices_of(trace: Trace) -> tuple[str, ...]:
    """What ran the trace's device events: the name of each device that has some, by number; of a CPU alone nothing.

    Where the file names none, by the vendor's runtime, as its calls tell it: "unnamed CUDA device".
    """
    used = np.unique(trace.pid[trace.device_rows()]).tolist()
    names = {each.get("id", place): each.get("name") for place, each in enumerate(device_properties(trace))}
    calls = [trace.names[name] for name in np.unique(trace.name[trace.launch_rows()]).tolist()]
    vendor = next((f"{name} " for prefix, name in _VENDORS.items() if any(map(re.compile(prefix).match, calls))), "")
    only = names[min(names)] if len(names) == 1 else None
    return tuple(str(names.get(pid) or only or f"unnamed {vendor}device") for pid in used)


# Transfers that no kernel accompanies: between the kernel that sends and the one that receives.


_WORD = re.compile(r"(?<![a-z])(send|recv|receive)(?![a-z])", re.IGNORECASE)
"""A word of its own, as in `dispatch_send`: `ncclDevKernel_SendRecv` does both at once."""

_LOW_LATENCY = re.compile(r"(internode_ll|low_latency)\w*::(dispatch|combine)\b", re.IGNORECASE)

_WAITING = re.compile(r"notify_dispatch|cached_notify|notify_combine|barrier|wait_until|signal_wait", re.IGNORECASE)

_NESTED = re.compile(r"\(anonymous namespace\)::")


def in_flight(trace: Trace, communication: Rows) -> Intervals:
    """When data was under way without a kernel: from the end of a send to the start of its receive.

    Only names count as evidence; without it nothing is in flight. On each stream:

    - A kernel whose name holds the word `send` (`dispatch_send`) is received by the next kernel there whose name,
      up to its template or call arguments, is the same with `recv` or `receive`.
    - DeepEP's low-latency kernels (`internode_ll::dispatch`, `internode_ll::combine`) run twice under one name when
      a receive hook was asked for, first to send and then to receive, and once, doing both, when not. Two of the
      same kind with no other low-latency kernel of the stream between them are a send and its receive.

    Parameters
    ----------
    trace
        The trace.
    communication
        Rows of communication kernels, by start.
    """
    phases = [_phase(name) for name in trace.names]
    rows = trace.matching(_phase, communication)
    sent: dict[tuple[int, int, str], int] = {}
    last: dict[tuple[int, int], tuple[str, int]] = {}
    gaps: list[tuple[int, int]] = []
    ends = (trace.start[rows] + trace.duration[rows]).tolist()
    columns = (trace.name[rows], trace.pid[rows], trace.tid[rows], trace.start[rows])
    for name, pid, tid, start, end in zip(*(column.tolist() for column in columns), ends, strict=True):
        kind, stem = phases[name] or ("", "")
        if kind == "send":
            sent[pid, tid, stem] = end
        elif kind == "receive":
            gaps.append((sent.pop((pid, tid, stem), start), start))
        elif last.get((pid, tid), ("", 0))[0] == stem:
            gaps.append((last.pop((pid, tid))[1], start))
        else:
            last[pid, tid] = (stem, end)
    found = np.array(gaps, dtype=np.int64).reshape(-1, 2)
    return Intervals.union_of(found[:, 0], found[:, 1])


def waiting_rows(trace: Trace, communication: Rows) -> Rows:
    """Those communication kernels that move no data and only wait to be notified: DeepEP's notifications, barriers."""
    return trace.matching(_WAITING.search, communication)


def _phase(name: str) -> tuple[str, str] | None:
    """What a kernel does to a transfer (send, receive or either) and what must agree between the two."""
    stem = re.split(r"[<(]", _NESTED.sub("", name), maxsplit=1)[0]
    words = {word.lower() for word in _WORD.findall(stem)}
    if len(words) == 1:
        kind = "send" if words == {"send"} else "receive"
        return kind, _WORD.sub("", stem)
    low_latency = _LOW_LATENCY.search(stem)
    return ("either", low_latency[2].lower()) if low_latency else None
