"""Several ranks as one task graph: each one's own tasks, and the collectives in which they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pytest_perfdl.analysis.ranks import RankFigures, ranks
from pytest_perfdl.analysis.ranks.activity import rank_of
from pytest_perfdl.trace.model import I64, Rows, Trace
from pytest_perfdl.whatif.collectives import reduced_bytes
from pytest_perfdl.whatif.from_trace.graph import task_graph
from pytest_perfdl.whatif.model import (
    NO_RELEASE,
    EdgeKind,
    Edges,
    Job,
    Mask,
    Meetings,
    StepSpan,
    TaskGraph,
    TaskKind,
    Tasks,
    Track,
    TrackKind,
)

# Where the ranks of a job wait for each other: in collectives of all of them, and for what one sends another.


def clocks(traces: Sequence[Trace], figures: RankFigures) -> list[int]:
    """What to add to the times of each rank's trace to get those of a clock that all share."""
    return [trace.base_ns + rank.clock_offset_ns for trace, rank in zip(traces, figures.ranks, strict=True)]


def meetings(traces: Sequence[Trace], graphs: Sequence[TaskGraph], figures: RankFigures) -> Meetings:
    """What the communication tasks of several ranks have in common.

    They are the collectives and messages that `analysis.ranks` matched. What ended on a waiting rank before the last
    had come is left out. Traces and graphs are in the order of the ranks' numbers.
    """
    column_of = {rank.rank: column for column, rank in enumerate(figures.ranks)}
    known = [set(graph.tasks.row[graph.tasks.kind == TaskKind.COMMUNICATION].tolist()) - {-1} for graph in graphs]
    matched = [
        each
        for each in figures.collectives
        if all(row in known[column_of[rank]] for rank, row in zip(each.ranks, each.row, strict=True))
    ]
    shape = len(matched), len(traces)
    row, waits = np.full(shape, -1, dtype=np.intp), np.zeros(shape, dtype=bool)
    for line, each in enumerate(matched):
        columns = [column_of[rank] for rank in each.ranks]
        row[line, columns], waits[line, columns] = each.row, True
        waits[line, columns[0]] = each.kind != "send"
    start, end = np.zeros((2, *shape), dtype=np.int64)
    for column, (trace, clock) in enumerate(zip(traces, clocks(traces, figures), strict=True)):
        own = np.flatnonzero(row[:, column] >= 0)
        start[own, column] = trace.start[row[own, column]] + clock
        end[own, column] = trace.end[row[own, column]] + clock
    last = np.where(row >= 0, start, NO_RELEASE).max(axis=1, initial=NO_RELEASE)[:, None]
    lines = np.flatnonzero((~waits | (end >= last)).all(axis=1))
    lines = lines[np.argsort(last[lines, 0], kind="stable")]
    matched = [matched[line] for line in lines.tolist()]
    row, waits, end, last, duration = row[lines], waits[lines], end[lines], last[lines], (end - start)[lines]
    shortest = np.where(row >= 0, duration, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    transfer = np.where(waits, np.minimum(shortest[:, None], end - last), 0)
    size = np.array([each.bytes or 0 for each in matched], dtype=np.int64)
    # Annotations of a back end that no operator of torch asked for may have sizes of their own.
    for column, trace in enumerate(traces):
        unknown = np.flatnonzero((size == 0) & (row[:, column] >= 0))
        size[unknown] = reduced_bytes(trace, row[unknown, column])
    return Meetings(
        row,
        waits,
        duration,
        transfer,
        np.where(waits, end - transfer - last, 0),
        np.array([each.kind for each in matched], dtype=str),
        size,
        np.array([max(each.group_size, len(each.ranks)) for each in matched], dtype=np.int64),
    )


# Several ranks as one task graph: each one's own tasks, and in each collective all wait for the last to come.
#
# A rank's own trace has its waiting for others inside its collectives. Here each collective that a rank waits in is cut
# in two: the rank's arrival, a moment, and the transfer, which begins when all have arrived. So a straggler's slow
# kernel has its effect on every rank, and without it the others do not wait.


def job_graph(traces: Sequence[Trace], graph_of: Callable[[Trace], TaskGraph] = task_graph) -> TaskGraph:
    """The ranks of one job as one graph, whose unchanged replay gives the measured times of all of them.

    Clocks are aligned, collectives matched and ranks numbered by `analysis.ranks`. In a collective the transfer takes
    the duration of the shortest-running rank; it begins on no rank before the last has arrived; what passes beyond
    that on a rank, because ends differ or clocks do, is a lag of its own. A kernel that receives waits likewise for
    the start of the one that sends to it, and that for nothing. Where an edit makes a rank's kernel longer or shorter
    its transfer becomes so in the same proportion. Traces come in any order.

    Returns
    -------
    TaskGraph
        Steps are those that all ranks have. Its `trace` is `None`: labels are looked up in the ranks' own graphs,
        each of which an edit is carried out on (`Plan.apply`).

    Raises
    ------
    ValueError
        If there are fewer than two traces.
    """
    if len(traces) < 2:
        raise ValueError("a job needs the traces of at least two ranks")
    numbers = [rank_of(trace)[0] for trace in traces]
    if None not in numbers and len(set(numbers)) == len(numbers):
        traces = [trace for _, trace in sorted(zip(numbers, traces, strict=True), key=lambda each: each[0] or 0)]
    figures = ranks(traces)
    parts = tuple(replace(graph_of(trace), rank=own.rank) for trace, own in zip(traces, figures.ranks, strict=True))
    shifts = tuple(clock - traces[0].base_ns for clock in clocks(traces, figures))
    found = meetings(traces, parts, figures)
    return couple(Job(parts, shifts, found, figures, _caveat(traces, found)))


def _caveat(traces: Sequence[Trace], found: Meetings) -> str:
    if not len(found):
        return "the ranks cannot be simulated together, because no collective runs on all ranks"
    world = max((rank_of(trace)[1] or 0 for trace in traces), default=0)
    if world > len(traces):
        return (
            f"only {len(traces)} of {world} ranks are given, so waiting for the missing ranks counts as communication"
        )
    return ""


def couple(job: Job) -> TaskGraph:
    """The graph of all ranks: their tasks by rank, and a moment for each meeting at which all have arrived.

    A meeting that an edit took from all ranks but one couples nothing: there it stays as it was measured.
    """
    at = np.stack(
        [communication_tasks(part, rows) for part, rows in zip(job.parts, job.meetings.row.T, strict=True)], axis=1
    )
    held = np.count_nonzero(at >= 0, axis=1) > 1
    cut = [_cut_meetings(job, column, at[:, column], held) for column in range(len(job.parts))]
    tasks, edges, tracks, names = list[Tasks](), list[Edges](), list[Track](), list[str]()
    begins = np.full(at.shape, NO_RELEASE, dtype=np.int64)
    into, out_of = list[Edges](), list[Edges]()
    counts = np.cumsum([0, *(len(own) for own, *_ in cut)])
    all_tasks, lines = int(counts[-1]), np.flatnonzero(held)
    hub = np.full(len(job.meetings), -1, dtype=np.intp)
    hub[lines] = all_tasks + np.arange(len(lines))
    for column, (part, (own, its, arrival, transfer)) in enumerate(zip(job.parts, cut, strict=True)):
        first = int(counts[column])
        tasks.append(
            replace(
                own,
                track=own.track + np.int32(len(tracks)),
                name=own.name + np.int32(len(names)),
                launcher=np.where(own.launcher >= 0, own.launcher + first, -1),
                scope=np.where(own.scope >= 0, own.scope + np.int32(len(tracks)), own.scope),
            )
        )
        edges.append(its.with_(source=its.source + first, target=its.target + first))
        tracks += [replace(track, rank=job.numbers[column]) for track in part.tracks]
        names += part.names
        arriving = np.flatnonzero(held & (at[:, column] >= 0))
        begins[arriving, column] = own.start[arrival[arriving]]
        # What a rank does not wait in is not cut in two: it has arrived when it starts.
        whole = ~job.meetings.waits[arriving, column]
        source = arrival[arriving] + first
        into.append(Edges.of(EdgeKind.COMMUNICATION, source, hub[arriving], 0, at_start=whole))
        waiting = np.flatnonzero(transfer >= 0)
        late = job.meetings.late[waiting, column]
        source, target = hub[waiting], transfer[waiting] + first
        out_of.append(Edges.of(EdgeKind.COMMUNICATION, source, target, late, np.zeros_like(late)))
    if len(lines):
        tasks.append(_moments(begins[lines].max(axis=1), len(tracks), len(names)))
        tracks.append(Track(TrackKind.CHANNEL, 0, 0, rank=-1))
        names.append("all ranks have arrived")
    return TaskGraph(
        tasks=Tasks(*(np.concatenate([getattr(own, name) for own in tasks]) for name in Tasks.__slots__)),
        edges=Edges.joined(*edges, *into, *out_of),
        tracks=tuple(tracks),
        names=tuple(names),
        steps=tuple(_span(job, number) for number in job.steps),
        owner=job.owners[0],
        on_device=any(part.on_device for part in job.parts),
        constants=job.parts[0].constants,
        contradicted=sum(part.contradicted for part in job.parts),
        job=job,
    )


def communication_tasks(part: TaskGraph, rows: Rows) -> Rows:
    """The communication task of each row, -1 for none."""
    own = np.flatnonzero(part.tasks.kind == TaskKind.COMMUNICATION)
    known, first = np.unique(part.tasks.row[own], return_index=True)
    if not len(known):
        return np.full(len(rows), -1, dtype=np.intp)
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where((known[at] == rows) & (rows >= 0), own[first[at]], -1)


def _moments(start: I64, track: int, name: int) -> Tasks:
    """The moments at which all have arrived, as tasks without duration."""
    kind, tracks, names = (np.full(len(start), value) for value in (TaskKind.COMMUNICATION, track, name))
    return Tasks.of(kind, tracks, names, start, np.zeros_like(start))


def _cut_meetings(job: Job, column: int, at: Rows, held: Mask) -> tuple[Tasks, Edges, Rows, Rows]:
    """A rank's graph with the meetings that it waits in cut in two, numbered as its own; and tasks by meeting.

    Those that are the rank's arrival, -1 where it takes no part, and those that wait for all to arrive, -1 where it
    does not wait.
    """
    part, found, shift = job.parts[column], job.meetings, job.shifts[column]
    lines = np.flatnonzero(held & found.waits[:, column] & (at >= 0))
    lines = lines[np.argsort(at[lines], kind="stable")]
    old = at[lines]
    every = np.arange(len(part))
    split = np.zeros(len(part), dtype=bool)
    split[old] = True
    number = every + np.cumsum(split)
    arrives = number - split
    new = number[old]
    tasks = part.tasks.take(np.insert(every, old, old))
    measured, transfer = found.duration[lines, column], found.transfer[lines, column]
    now = part.tasks.duration[old] / np.maximum(measured, 1)
    tasks.start[new] = part.tasks.start[old] + measured - transfer
    tasks.duration[new] = np.rint(transfer * now).astype(np.int64)
    tasks.duration[new - 1], tasks.release[new], tasks.unexplained[new] = 0, NO_RELEASE, 0
    tasks.start[:] += shift
    tasks.submitted[:] += shift
    tasks.release[tasks.release > NO_RELEASE] += shift
    launcher = np.where(tasks.launcher >= 0, number[tasks.launcher], -1)
    tasks = replace(tasks, launcher=launcher, step=job.step_of(column, tasks.step))
    edges = part.edges
    source = np.where(edges.at_start, arrives[edges.source], number[edges.source])
    edges = edges.with_(source=source, target=arrives[edges.target])
    edges = Edges.joined(edges, Edges.of(EdgeKind.STREAM, new - 1, new, 0))
    arrival, waiting = np.where(at >= 0, arrives[at], -1), np.full(len(at), -1, dtype=np.intp)
    waiting[lines] = new
    return tasks, edges, arrival, waiting


def _span(job: Job, number: int) -> StepSpan:
    """A step of all ranks: from the first begin of its windows to their last end."""
    spans = [
        (step.start + shift, step.end + shift)
        for part, shift in zip(job.parts, job.shifts, strict=True)
        for step in part.steps
        if step.number == number
    ]
    return StepSpan(number, min(start for start, _ in spans), max(end for _, end in spans))
