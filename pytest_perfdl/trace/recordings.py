"""The recordings in one file: those of several processes may have been merged into it.

A recording is what a profiler wrote of one process. Figures of two processes must not be added up, so a file of several
is split by process, or refused where its processes cannot be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.model.units import plural, some
from pytest_perfdl.trace.annotations import STEP
from pytest_perfdl.trace.arrays import Lookup, groups
from pytest_perfdl.trace.model import DEVICE_CATEGORIES, FIRST_LABEL, I64, Category, Rows, Trace, job_properties, subset

MERGED = "merged"
"""The metadata in which `report.trace.chrome` says what it wrote into one file: a list of `MergedRank`."""

_CALLS = (Category.CUDA_RUNTIME, Category.CUDA_DRIVER, Category.XPU_RUNTIME, Category.XPU_DRIVER)
"""Calls that are filed under the profiled process; plugins of other vendors number processes of their own."""
_UNDER_DEVICES = (
    *DEVICE_CATEGORIES,
    Category.GPU_USER_ANNOTATION,
    Category.CUDA_SYNC,
    Category.CUDA_EVENT,
    Category.XPU_SYNC,
)
"""What is filed under a device: its index is the process id, its stream the thread id."""
_RANK = re.compile(r"\brank[\s_:#-]*(\d+)", re.IGNORECASE)
_MANY = re.compile(r"graph|runfunction", re.IGNORECASE)
"""Calls that launch several kernels on one device."""
_UNSET = 2**32 - 1
"""A correlation that says nothing, as 0 and less do."""
_FITS = 0.99
"""Share of a group's events that must fit the process that they are given to."""
_MAY_FIT = 0.9
"""Share of a group's events from which they may be of a process."""
_ACROSS = 0.25
"""Share of kernels whose call may have launched another one on another device."""
_ROUNDED_NS = 1000
"""In whole microseconds, as old traces have them, events that nest may seem to overlap by this much."""
_FEW = 10
"""Signs of a second process that damage may leave in a recording of one."""
_SHARE = 0.05
"""Share of a thread's operators up to which overlapping is damage, and of device events that no process launched."""
_ALIKE = 0.5
"""Share of their operators that two threads have in common if they do the same work."""

_CROSSING_SHARE = 0.05
"""Share of a step by which two annotations of it begin and end apart where they are those of two processes."""

Mask = npt.NDArray[np.bool_]


class MergedRank(msgspec.Struct, kw_only=True, gc=False):
    """One rank of a file that `report.trace.chrome` wrote, and what undoes the merging."""

    rank: int
    source: str = ""
    clock_offset_ns: int = 0
    pid: int
    """The process that has all of its events."""
    threads: list[tuple[int, int | str, int | str]]
    """A thread of it, and the process and thread that the events had before, as text where they were text."""
    metadata: dict[str, Any]
    process_names: list[tuple[int | str, str]]
    thread_names: list[tuple[int | str, int | str, str]]


def recordings(trace: Trace) -> tuple[Trace, ...]:
    """The recordings in the file of a trace, each a trace; the trace itself where it is one.

    A process is what operators, runtime calls or steps are filed under. What a device ran goes to the process in whose
    part of the file it stands, if the processes stand one after the other and its calls have the correlations; else
    device by device, then stream by stream, to the one process whose calls have them. A rank's number is what the
    process is called (`rank 3`), or its id where the ids are 0 to N - 1; recordings come by rank, else as in the file.

    Raises
    ------
    TraceError
        The file has several processes that cannot be told apart; the message is one line.
    """
    found = _undo_merging(trace)
    if not found:
        pids = _processes(trace)
        found = (trace,) if len(pids) < 2 else _split(trace, pids)
    for each in found:
        _refuse_several(each)
    return found


def one_recording(trace: Trace) -> Trace:
    """The trace, where it is one recording.

    Raises
    ------
    TraceError
        It is several; the message is one line.
    """
    found = recordings(trace)
    if len(found) > 1:
        raise TraceError(f"{several(trace, found)}, where the trace of one is needed: use one file per process")
    return found[0]


def several(trace: Trace, found: Sequence[Trace]) -> str:
    """What is said of a file with several recordings: how many, and what they are called."""
    named = some([each.source.removeprefix(f"{trace.source}: ") for each in found])
    return f"{trace.source or 'the trace'} contains {plural(len(found), 'process', 'processes')} ({named})"


def _processes(trace: Trace) -> list[int]:
    """Ids of the recorded processes, in the order of the file."""
    rows = np.flatnonzero(np.isin(trace.category, (Category.CPU_OP, *_CALLS)))
    annotations = trace.rows(Category.USER_ANNOTATION)
    if len(rows) == 0 or (trace.pid[annotations] != trace.pid[rows[0]]).any():
        # A worker that annotates what it does is no recording of its own, but what has steps is.
        rows = np.sort(np.concatenate((rows, trace.matching(STEP.match, annotations))))
    pids = trace.pid[rows]
    if len(pids) == 0 or (pids == pids[0]).all():
        return []
    found, first = np.unique(pids, return_index=True)
    return [int(pid) for pid in found[np.argsort(first)]]


def _is_valid(correlation: I64) -> Mask:
    return np.asarray((correlation > 0) & (correlation != _UNSET))


@dataclass(frozen=True, slots=True, eq=False)
class _Links:
    """Which processes have the calls of what devices ran."""

    device: Rows
    """Rows of device events with a correlation that some process has."""
    fits: Mask
    """For each of them and each process, whether a call of it may be theirs: a column per process."""
    calls: list[Lookup]
    """Of each process the rows of its calls, by correlation."""

    @classmethod
    def of(cls, trace: Trace, pids: Sequence[int]) -> _Links:
        device, calls = trace.device_rows(), trace.launch_rows()
        device = device[_is_valid(trace.correlation[device])]
        calls = calls[_is_valid(trace.correlation[calls])]
        known, matched, fits = [], [], []
        for pid in pids:
            own = calls[trace.pid[calls] == pid]
            known.append(Lookup(trace.correlation[own], own))
            call = known[-1].find(trace.correlation[device])
            matched.append(call >= 0)
            # What ended before a call began was not launched by it.
            fits.append((call >= 0) & (trace.end[device] >= trace.start[call]))
        each, some = np.stack(fits, axis=1), np.stack(matched, axis=1)
        each = np.where(each.any(axis=1, keepdims=True), each, some)
        linked = each.any(axis=1)
        return cls(device[linked], each[linked], known)

    def hold(self, trace: Trace, owner: Rows) -> bool:
        """Whether what devices ran can be divided like this: by a process for each row, -1 for none of them."""
        given = owner[self.device]
        asked = given >= 0
        fits = self.fits[asked, given[asked]]
        if np.count_nonzero(fits) < _FITS * len(fits):
            return False
        return all(self.may_own(trace, place, np.flatnonzero(owner == place)) for place in range(len(self.calls)))

    def may_own(self, trace: Trace, place: int, rows: Rows) -> bool:
        """Whether all kernels among some rows can be of one process: a call launches one, unless it is of a graph.

        On several devices it may launch one on each; but if many do, they are those of another process.
        """
        kernels = rows[(trace.category[rows] == Category.KERNEL) & _is_valid(trace.correlation[rows])]
        call = self.calls[place].find(trace.correlation[kernels])
        launches_one = ~trace.named(_MANY.search)[trace.name[call]] & (call >= 0)
        pid, correlation = trace.pid[kernels[launches_one]], trace.correlation[kernels[launches_one]]
        order = np.lexsort((pid, correlation))
        again = correlation[order[1:]] == correlation[order[:-1]]
        here = again & (pid[order[1:]] == pid[order[:-1]])
        return not here.any() and int(np.count_nonzero(again)) <= _ACROSS * len(kernels)


def _split(trace: Trace, pids: Sequence[int]) -> tuple[Trace, ...]:
    under_device = np.isin(trace.category, _UNDER_DEVICES)
    process = _place_of(trace.pid, pids)
    owner = np.where(under_device, -1, process)
    links = _Links.of(trace, pids)
    by_file = _by_file(owner, len(pids))
    if by_file is not None and links.hold(trace, np.where(under_device, by_file, owner)):
        owner = np.where(owner < 0, by_file, owner)
    else:
        owner = _by_calls(trace, links, np.flatnonzero(under_device), process, owner)
        if not links.hold(trace, owner):
            raise _refusal(trace, pids, links.device)
    device = trace.device_rows()
    unknown = links.device[owner[links.device] < 0]
    lost = device[owner[device] < 0]
    if len(unknown) or len(lost) > _SHARE * len(device):
        raise _refusal(trace, pids, unknown if len(unknown) else lost)
    return _make_parts(trace, pids, owner)


def _place_of(pid: I64, pids: Sequence[int]) -> Rows:
    """The place of each process among `pids`, -1 for all others."""
    known = np.array(pids, dtype=np.int64)
    order = np.argsort(known)
    place = order[np.minimum(np.searchsorted(known[order], pid), len(known) - 1)]
    return np.where(known[place] == pid, place, -1)


def _by_file(owner: Rows, count: int) -> Rows | None:
    """The process in whose part of the file each row stands, if what is known shows one part for each, in their order.

    A profiler writes what the host did before what devices did, so a part begins with a row of the process.
    """
    rows = np.flatnonzero(owner >= 0)
    begins = rows[1:][np.diff(owner[rows]) != 0]
    return np.searchsorted(begins, np.arange(len(owner)), side="right") if len(begins) == count - 1 else None


def _by_calls(trace: Trace, links: _Links, left: Rows, process: Rows, owner: Rows) -> Rows:
    """Give what is filed under devices to processes: a device, or a stream, to the one that has the calls of all of it.

    Where there is none, an event whose calls one process has goes to that. What is filed there and is no work of a
    device, such as annotations, goes along, and what is of the host, too.
    """
    owner = owner.copy()
    place = np.full(len(trace), -1, dtype=np.intp)
    place[links.device] = np.arange(len(links.device))
    for keys in ((trace.pid,), (trace.pid, trace.tid)):
        unsure, before = list(_groups(left[owner[left] < 0], *keys)), -1
        while len(unsure) != before:
            # What one group is given takes calls from which another could have come.
            before = len(unsure)
            unsure = [rows for rows in unsure if not _give(trace, links, rows, place[rows], process, owner)]
    left_over = links.device[owner[links.device] < 0]
    fits = links.fits[place[left_over]]
    owner[left_over] = np.where(fits.sum(axis=1) == 1, fits.argmax(axis=1), -1)
    for rows in _groups(np.flatnonzero(owner < 0), trace.pid):
        others = np.unique(owner[left[trace.pid[left] == trace.pid[rows[0]]]])
        if len(others) == 1:
            owner[rows] = others[0]
    return owner


def _give(trace: Trace, links: _Links, rows: Rows, place: Rows, process: Rows, owner: Rows) -> bool:
    """Whether only one process can have launched a group's rows; if so, `owner` says so."""
    linked = place[place >= 0]
    own = int(process[rows[0]])
    if len(linked):
        share = links.fits[linked].mean(axis=0)
        # An id that is that of a process may also be a device's index.
        asked = [own] if own >= 0 and share[own] >= _FITS else np.flatnonzero(share >= _MAY_FIT).tolist()
        able = [
            each for each in asked if links.may_own(trace, each, np.concatenate((np.flatnonzero(owner == each), rows)))
        ]
        own = able[0] if len(able) == 1 and share[able[0]] >= _FITS else -1
    if own >= 0:
        owner[rows] = own
    return own >= 0


def _groups(rows: Rows, *keys: I64) -> Iterator[Rows]:
    """Rows that have the same keys."""
    return (rows[own] for own in groups(*(key[rows] for key in keys)))


def _make_parts(trace: Trace, pids: Sequence[int], owner: Rows) -> tuple[Trace, ...]:
    """Each process's rows as a trace, by rank."""
    memory = _place_of(trace.memory.pid, pids)
    span = np.isin(trace.category, [code for code, name in enumerate(trace.categories) if name == "Trace"])
    lost = np.count_nonzero((owner < 0) & ~span) + np.count_nonzero(memory < 0)
    of = f"of none of the {plural(len(pids), 'process', 'processes')}"
    said = plural(int(lost), f"event {of} was left out", f"events {of} were left out")
    findings = (*trace.findings, said) if lost else trace.findings
    numbers = _rank_numbers(trace, pids)
    told = {name: value for name, value in job_properties(trace).items() if name != "rank"}
    found = []
    for place, pid in enumerate(pids):
        part = subset(trace, *(np.flatnonzero(own == place) for own in (owner, memory)))
        called, about = f"process {trace.label(pid)}", told
        if numbers:
            called, about = f"rank {numbers[place]}", told | {"rank": numbers[place]}
        metadata = {name: value for name, value in trace.metadata.items() if name != "distributedInfo"}
        if about:
            metadata["distributedInfo"] = about
        found.append(replace(part, metadata=metadata, findings=findings, source=_name_part(trace, called)))
    return tuple(found[place] for place in (np.argsort(numbers).tolist() if numbers else range(len(pids))))


def _name_part(trace: Trace, what: str) -> str:
    return f"{trace.source}: {what}" if trace.source else what


def _rank_numbers(trace: Trace, pids: Sequence[int]) -> list[int]:
    """Ranks of processes, where all of them say one and no two the same; else empty."""
    for told in (
        [_RANK.search(trace.labels.get(pid, "")) for pid in pids],
        [_RANK.search(trace.process_names.get(pid, "")) for pid in pids],
    ):
        numbers = [int(match[1]) for match in told if match is not None]
        if len(set(numbers)) == len(pids):
            return numbers
    return list(pids) if sorted(pids) == list(range(len(pids))) else []


def _undo_merging(trace: Trace) -> tuple[Trace, ...]:
    """The ranks of a file that `report.trace.chrome` wrote, as they were; empty for other files."""
    try:
        ranks = msgspec.convert(trace.metadata.get(MERGED), list[MergedRank])
        if {rank.pid for rank in ranks}.issuperset(_processes(trace)):
            return tuple(_restore(trace, rank) for rank in ranks)
    except (msgspec.ValidationError, OverflowError, UnicodeError):
        # Something else called this metadata so, or changed it.
        pass
    return ()


def _restore(trace: Trace, rank: MergedRank) -> Trace:
    """One rank, without what was drawn for it: threads that it did not have."""
    threads = {lane: (pid, tid) for lane, pid, tid in rank.threads}
    lanes = np.array(sorted(threads), dtype=np.int64)
    own = np.flatnonzero((trace.pid == rank.pid) & np.isin(trace.tid, lanes))
    ids = (
        *(each for ids in threads.values() for each in ids),
        *(pid for pid, _ in rank.process_names),
        *(each for *ids, _ in rank.thread_names for each in ids),
    )
    labels = {FIRST_LABEL - place: text for place, text in enumerate(sorted({e for e in ids if isinstance(e, str)}))}
    numbers = {text: number for number, text in labels.items()}

    def number(of: int | str) -> int:
        return numbers[of] if isinstance(of, str) else of

    before = np.array([[number(each) for each in threads[lane]] for lane in lanes.tolist()], dtype=np.int64)
    pid, tid = before.reshape(-1, 2)[np.searchsorted(lanes, trace.tid[own])].T
    none = np.zeros(0, dtype=np.intp)
    return replace(
        subset(trace, own, none),
        pid=pid.copy(),
        tid=tid.copy(),
        labels=labels,
        process_names={number(of): name for of, name in rank.process_names},
        thread_names={(number(pid), number(tid)): name for pid, tid, name in rank.thread_names},
        metadata=rank.metadata,
        source=_name_part(trace, f"rank {rank.rank}"),
    )


def _refusal(trace: Trace, pids: Sequence[int], rows: Rows) -> TraceError:
    """The error for device events that may be of several processes."""
    devices = sorted({trace.label(pid) for pid in trace.pid[rows].tolist()})
    processes = f"{plural(len(pids), 'process', 'processes')} ({some([trace.label(pid) for pid in pids])})"
    return TraceError(
        f"{trace.source or 'the trace'} contains {processes}, and which of them "
        f"launched the kernels of device {some(devices)} cannot be determined: use one file per process"
    )


def _refuse_several(trace: Trace) -> None:
    """Refuse a recording whose one process id is that of several processes, as each container may have a process 1.

    Raises
    ------
    TraceError
    """
    found = _repeated_calls(trace) or _overlapping_operators(trace) or _crossing_steps(trace) or _parallel_steps(trace)
    if found:
        raise TraceError(
            f"{trace.source or 'the trace'} contains events of several processes with one process id: {found}; use one "
            "file per process"
        )


def _repeated_calls(trace: Trace) -> str:
    """Calls of one time that have the same correlation, of which a process has each once; empty if there are none.

    A later cycle of a process may count from 1 again, and a call into the driver has the correlation of the call into
    the runtime that it is part of.
    """
    calls = trace.launch_rows()
    calls = calls[_is_valid(trace.correlation[calls]) & np.isin(trace.category[calls], _CALLS)]
    if (np.diff(trace.correlation[calls]) > 0).all():
        return ""
    order = calls[np.argsort(trace.correlation[calls], kind="stable")]
    first, again = order[:-1], order[1:]
    same = trace.correlation[first] == trace.correlation[again]
    inside = (trace.tid[first] == trace.tid[again]) & (trace.end[again] <= trace.end[first] + _ROUNDED_NS)
    parts = same & inside
    pairs = same & ~inside
    repeated = np.unique(trace.correlation[first[pairs]])
    if len(repeated) <= _FEW:
        return ""
    begins, repeats = trace.start[first[pairs]], trace.start[again[pairs]]
    restarts, last = 0, -1
    for at in np.argsort(repeats, kind="stable").tolist():
        # Restarts that explain all repeats: each lies between a call and the next with its correlation.
        if restarts == 0 or begins[at] > last:
            restarts, last = restarts + 1, int(repeats[at])
    alone = np.setdiff1d(calls, again[parts], assume_unique=True)
    alone = alone[np.argsort(trace.start[alone], kind="stable")]
    back = int(np.count_nonzero(np.diff(trace.correlation[alone]) <= 0))
    if restarts <= _FEW and back <= max(_FEW, _SHARE * len(alone)):
        return ""
    return f"{len(repeated):,} correlations, such as {repeated[0]}, belong to two calls each at one time"


def _overlapping_operators(trace: Trace) -> str:
    """Operators of one thread that overlap without nesting, which those of a process cannot; empty for few of them."""
    rows = trace.rows(Category.CPU_OP)
    for own in _groups(rows, trace.tid):
        start, end = trace.start[own], trace.end[own]
        begun, ended = np.diff(start), np.diff(end)
        overlap = (begun > _ROUNDED_NS) & (ended > _ROUNDED_NS) & (end[:-1] - start[1:] > _ROUNDED_NS)
        count = int(np.count_nonzero(overlap))
        if count > max(_FEW, _SHARE * len(own)):
            thread = trace.label(int(trace.tid[own[0]]))
            return f"{count:,} of the {len(own):,} operators of thread {thread} overlap without nesting"
    return ""


def _crossing_steps(trace: Trace) -> str:
    """Steps of one number whose annotations on one thread overlap in part, each after the other; empty without some."""
    steps = trace.matching(STEP.match, trace.rows(Category.USER_ANNOTATION))
    order = steps[np.lexsort((trace.start[steps], trace.name[steps], trace.tid[steps]))]
    one, other = order[:-1], order[1:]
    same = (trace.name[one] == trace.name[other]) & (trace.tid[one] == trace.tid[other])
    apart = _CROSSING_SHARE * trace.duration[one]
    begins, ends = trace.start[other] - trace.start[one], trace.end[other] - trace.end[one]
    crossing = same & (begins > apart) & (ends > apart) & (trace.start[other] < trace.end[one])
    if np.count_nonzero(crossing) < 2:
        return ""
    return f"{int(np.count_nonzero(crossing)):,} steps are annotated twice, each at two times that overlap in part"


def _parallel_steps(trace: Trace) -> str:
    """Threads that do the same work in steps of one number at one time, as ranks do; empty if there are none.

    Where calls have correlations these tell processes apart: then two such threads are those of one process.
    """
    if len(trace.launch_rows()):
        return ""
    steps = trace.matching(STEP.match, trace.rows(Category.USER_ANNOTATION))
    if len(steps) == 0 or (trace.tid[steps] == trace.tid[steps[0]]).all():
        return ""
    work = trace.rows(Category.CPU_OP)
    threads = [
        (own, np.bincount(trace.name[work[trace.tid[work] == trace.tid[own[0]]]], minlength=len(trace.names)))
        for own in _groups(steps, trace.pid, trace.tid)
    ]
    for (one, does), (other, same) in combinations(threads, 2):
        if np.minimum(does, same).sum() <= _ALIKE * np.maximum(does, same).sum():
            continue
        for step in one.tolist():
            twin = other[trace.name[other] == trace.name[step]]
            if ((trace.start[twin] < trace.end[step]) & (trace.start[step] < trace.end[twin])).any():
                tids = ", ".join(trace.label(int(trace.tid[each[0]])) for each in (one, other))
                return f"the threads {tids} do the same work in {trace.name_of(step)} at one time"
    return ""
