"""Changing the tasks of a graph so that it stays a graph: removed, moved and new tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pytest_perfdl.trace.model import F64, I32, I64, Rows
from pytest_perfdl.whatif.model import (
    DEVICE_KINDS,
    NO_RELEASE,
    Column,
    EdgeKind,
    Edges,
    Mask,
    TaskGraph,
    TaskKind,
    Tasks,
    Track,
    TrackKind,
    are_of_kinds,
    mask_of,
    taker,
)
from pytest_perfdl.whatif.simulation.structure import Chains, inherit, link_chains, rederive, split_chains

# Changing the tasks of a graph so that it stays a graph: new numbers, chains linked again, waits handed on.


_HANDED_ON = (EdgeKind.EVENT, EdgeKind.OTHER_STREAM, EdgeKind.COMMUNICATION, EdgeKind.JOIN)
"""What a stream or thread waits for, not only the one task: without that task the next one waits."""

_CALLING = (TaskKind.CALL, TaskKind.WAIT, TaskKind.RETURN)


def rebuild(
    graph: TaskGraph, tasks: Tasks, origin: Rows, place: F64, edges: Edges, new: Tasks | None = None
) -> TaskGraph:
    """A graph of other tasks, in their order, with chains linked and run-time dependencies worked out again.

    Parameters
    ----------
    graph
        The graph before; its tracks may have grown already.
    tasks
        Its tasks in any order; `launcher` and `edges` count in this order.
    origin
        Task of the graph that each one was, -1 for new ones.
    place
        Where each one belongs on its track: tasks are ordered by this, of equal ones as given.
    edges
        All edges except those from a task to the next of its track (`structure.split_chains`), which are made here: a
        task keeps the lag that it had after the task before it, a new one gets the usual kernel gap. Tasks whose
        order was dropped stay free.
    new
        Further tasks, which count behind the others; for `origin` and `place`, too.
    """
    order = np.lexsort((place, tasks.track if new is None else np.concatenate((tasks.track, new.track))))
    number = np.empty(len(order), dtype=np.intp)
    number[order] = np.arange(len(order))
    tasks, origin = tasks.take(order, new), origin[order]
    launched = np.flatnonzero(tasks.launcher >= 0)
    tasks.launcher[launched] = number[tasks.launcher[launched]]
    edges = edges.with_(source=number[edges.source], target=number[edges.target])
    return _link_again(graph, tasks, origin, taker(np.maximum(origin, 0)), edges)


def _link_again(
    graph: TaskGraph, tasks: Tasks, origin: Rows, take: Callable[..., Column], edges: Edges, left: Mask | None = None
) -> TaskGraph:
    """As `rebuild`, of tasks in their order; `take` takes those of `origin` from columns of the graph before."""
    on_host = np.array([track.kind == TrackKind.THREAD for track in graph.tracks], dtype=bool)
    chains = _chains(graph, tasks, origin, take, on_host)
    new_tracks = np.flatnonzero(_used_tracks(graph, tasks) & ~_used_tracks(graph, graph.tasks))
    others = rederive(replace(graph, tasks=tasks), edges, new_tracks, left)
    found = link_chains(chains, others, on_host[tasks.track])
    inherit(graph, found, origin)
    return replace(graph, tasks=tasks, edges=found)


def _used_tracks(graph: TaskGraph, tasks: Tasks) -> Mask:
    """Which tracks have tasks."""
    bounds = np.arange(len(graph.tracks) + 1, dtype=tasks.track.dtype)
    return np.diff(np.searchsorted(tasks.track, bounds)) > 0


def _chains(graph: TaskGraph, tasks: Tasks, origin: Rows, take: Callable[..., Column], on_host: Mask) -> Chains:
    known, _ = split_chains(graph.edges, len(graph))
    track = graph.tasks.track
    there, ended, lag, constant_lag = map(take, (known.there, known.ended, known.lag, known.constant_lag))
    was_first = take(_first_of_tracks(track)) & ~there
    fresh = np.flatnonzero((origin < 0) | (take(track) != tasks.track) | was_first)
    usual = np.where(on_host[tasks.track[fresh]], 0, graph.constants.kernel_gap)
    first = np.flatnonzero(_first_of_tracks(tasks.track))
    for column, values in ((there, True), (ended, True), (lag, usual), (constant_lag, usual)):
        column[fresh] = values
        column[first] = 0
    return Chains(there, ended, lag, constant_lag)


def _first_of_tracks(track: I32) -> Mask:
    return np.concatenate((np.ones(min(len(track), 1), dtype=bool), track[1:] != track[:-1]))


def apart_from_chains(graph: TaskGraph) -> Edges:
    """The edges that `rebuild` wants."""
    return split_chains(graph.edges, len(graph))[1]


def remove_tasks(graph: TaskGraph, removed: Mask) -> TaskGraph:
    """A graph without some tasks.

    What waited for a removed task waits for the last one before it on its track instead, as a synchronization
    does; contention vanishes with it. What a removed task of a stream or thread waited for from another track, the
    next one there waits for. A thread that loses its first tasks begins when it did.
    """
    tasks, edges = graph.tasks, apart_from_chains(graph)
    stays = ~removed
    kept = np.flatnonzero(stays)
    if len(kept) == len(graph):
        return graph
    left = tasks.take(stays)
    if not len(kept):
        return replace(graph, tasks=left, edges=edges.take(kept))
    until = np.cumsum(stays)

    def neighbor(of: Rows, number: Rows) -> Rows:
        """Of the tasks that are left those with these numbers, -1 where they are of another track."""
        there = (number >= 0) & (number < len(kept))
        number = np.where(there, number, 0)
        return np.where(there & (left.track[number] == tasks.track[of]), number, -1)

    def ahead(of: Rows) -> Rows:
        return neighbor(of, until[of] - 1)

    def behind(of: Rows) -> Rows:
        return neighbor(of, until[of] - stays[of])

    source, target = until[edges.source] - 1, until[edges.target] - 1
    gone_source, gone_target = removed[edges.source], removed[edges.target]
    gone = np.flatnonzero(gone_source | gone_target)
    source[gone], target[gone] = ahead(edges.source[gone]), behind(edges.target[gone])
    good = (source >= 0) & (target >= 0) & (~gone_target | are_of_kinds(edges, *_HANDED_ON)) & (source != target)
    good &= ~(gone_source & (gone_target | (edges.kind == EdgeKind.CONTENTION)))
    # A task can be handed a wait for what comes after it on its own track, which it must not keep.
    good &= (left.track[source] != left.track[target]) | (source < target)
    edges = edges.with_(source=source, target=target, at_start=edges.at_start & ~gone_source)
    held = np.flatnonzero(removed & (tasks.release > NO_RELEASE))
    held = held[(ahead(held) < 0) & (behind(held) >= 0)]
    np.maximum.at(left.release, behind(held), tasks.release[held])
    launched = np.flatnonzero(left.launcher >= 0)
    left.launcher[launched] = ahead(left.launcher[launched])
    return _link_again(graph, left, kept, taker(stays), edges, good)


def with_launches(graph: TaskGraph, removed: Mask) -> Mask:
    """What goes with removed tasks: what they launched, and launching calls that have nothing left to launch."""
    tasks = graph.tasks
    launched = np.flatnonzero(tasks.launcher >= 0)
    launcher = tasks.launcher[launched]
    found = removed.copy()
    found[launched] |= removed[launcher]
    goes = found[launched]
    idle = mask_of(len(graph), launcher[goes])
    idle[launcher[~goes]] = False
    # A call without duration is no task: what stands for it is a piece of the operator around it, which stays.
    gone = np.flatnonzero(idle)
    gone = gone[np.isin(tasks.kind[gone], _CALLING)]
    found[gone] = True
    calls = tasks.row[gone]
    called = mask_of(int(tasks.row.max(initial=-1)) + 2, calls[calls >= 0])
    found |= called[tasks.row] & ~graph.is_device
    return np.asarray(found, dtype=bool)


def with_track(graph: TaskGraph, track: Track) -> tuple[TaskGraph, int]:
    """A graph that has a track, and the number of it."""
    track = replace(track, rank=0)
    if track in graph.tracks:
        return graph, graph.tracks.index(track)
    return replace(graph, tracks=(*graph.tracks, track)), len(graph.tracks)


# New tasks in a graph, and tasks on other streams.


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to insert: a kernel unless its kind says otherwise."""

    name: str
    duration_ns: int | tuple[int, ...]
    """One for all, or one for each task that it is inserted behind, in their order."""
    kind: TaskKind = TaskKind.KERNEL
    launch_ns: int | None = None
    """Time that the launching thread spends on launching it; `None` for a device task that costs no launch of its
    own (as within a graph), which then goes with the launch of the task that it comes after."""
    beside: bool = False
    """Whether a device task, on a stream of its own, starts with the task that it is inserted at instead of behind
    it."""


_ADDED = ("kind", "track", "start", "duration", "submitted", "launcher", "step", "setup", "name")


class _Adding:
    """Collects new tasks and their edges; a task's number counts on from those of the graph."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.names = {name: number for number, name in reversed(list(enumerate(graph.names)))}
        self.added: list[str] = []
        self.rows: list[tuple[int, ...]] = []
        self.place: list[float] = []
        self.edges: list[tuple[int, int, int, int, bool]] = []
        self.orders: dict[int, tuple[int, I64, I64]] = {}

    def _number(self, name: str) -> int:
        if name not in self.names:
            self.names[name] = len(self.graph.names) + len(self.added)
            self.added.append(name)
        return self.names[name]

    def add(self, name: str, kind: TaskKind, track: int, like: int, start: int, place: float, **more: int) -> int:
        """A new task at a moment and place, of the step of another task."""
        tasks = self.graph.tasks
        submitted, duration = more.get("submitted", start), more.get("duration", 0)
        launcher, step = more.get("launcher", -1), int(tasks.step[like])
        setup = int(tasks.setup[like]) if kind not in DEVICE_KINDS else 0
        self.rows.append((kind, track, start, duration, submitted, launcher, step, setup, self._number(name)))
        self.place.append(place)
        return len(self.graph) + len(self.rows) - 1

    def at(self, track: int, moment: int | None, submitted: int) -> float:
        """The place behind the tasks of a track that were submitted earlier, and behind those begun up to a moment."""
        if track not in self.orders:
            tasks = self.graph.tasks
            own = tasks.on_track(track)
            latest = np.maximum.accumulate
            self.orders[track] = own.start, latest(tasks.submitted[own]), latest(tasks.start[own])
        first, were_submitted, began = self.orders[track]
        ahead = int(np.searchsorted(were_submitted, submitted, side="left"))
        if moment is not None:
            ahead = max(ahead, int(np.searchsorted(began, moment, side="right")))
        return float(first) + ahead - 0.5

    def tasks(self) -> Tasks:
        """The new tasks as columns."""
        columns = np.array(self.rows, dtype=np.int64).reshape(-1, 9).T
        return Tasks.of(**dict(zip(_ADDED, columns, strict=True)))

    def made(self) -> TaskGraph:
        """The graph with all that was added."""
        graph = self.graph
        new = self.tasks()
        kind, source, target, lag, at_start = np.array(self.edges, dtype=np.int64).reshape(-1, 5).T
        edges = Edges.of(EdgeKind.EVENT, source, target, lag, at_start=at_start.astype(bool))
        edges = Edges.joined(apart_from_chains(graph), edges.with_(kind=kind.astype(np.int8)))
        origin = np.concatenate((np.arange(len(graph)), np.full(len(new), -1)))
        place: F64 = np.concatenate((np.arange(len(graph), dtype=np.float64), np.array(self.place)))
        return rebuild(replace(graph, names=(*graph.names, *self.added)), graph.tasks, origin, place, edges, new)


def insert_tasks(graph: TaskGraph, task: NewTask, after: Mask, track: Track | None, before: Mask | None) -> TaskGraph:
    """A graph with one new task behind each of some tasks: see `Plan.insert`."""
    on_device = task.kind in DEVICE_KINDS
    if track is not None:
        graph, number = with_track(graph, track)
    adding = _Adding(graph)
    tasks, end = graph.tasks, graph.tasks.end
    made: list[tuple[int, int]] = []
    anchors = np.flatnonzero(after).tolist()
    each = (task.duration_ns,) * len(anchors) if isinstance(task.duration_ns, int) else task.duration_ns
    if len(each) != len(anchors):
        raise ValueError(f"expected one duration for each of the {len(anchors)} new tasks, got {len(each)}")
    for anchor, duration_ns in zip(anchors, each, strict=True):
        home = number if track is not None else int(tasks.track[anchor])
        if task.beside and home == tasks.track[anchor]:
            raise ValueError(f"a task that runs beside another task needs a different track than {graph.tracks[home]}")
        if (graph.tracks[home].kind != TrackKind.THREAD) != on_device:
            raise ValueError(
                f"a {task.kind.name.lower()} cannot run on {graph.tracks[home]}: set a track for the new task"
            )
        moment = int(tasks.start[anchor] if task.beside else end[anchor])
        if not on_device:
            if home != tasks.track[anchor]:
                raise ValueError("a task of a host thread can only be inserted after a task of the same thread")
            found = adding.add(task.name, task.kind, home, anchor, moment, anchor + 0.5, duration=duration_ns)
            made.append((moment, found))
            continue
        is_host = graph.tracks[tasks.track[anchor]].kind == TrackKind.THREAD
        caller = anchor if is_host else int(tasks.launcher[anchor])
        submitted, launch = int(tasks.submitted[anchor]), caller
        if caller >= 0 and (task.launch_ns is not None or is_host):
            caller = _last_of_call(tasks, caller)
            submitted, thread = int(end[caller]), int(tasks.track[caller])
            title, cost = f"launch of {task.name}", task.launch_ns or 0
            launch = adding.add(title, TaskKind.CALL, thread, caller, submitted, caller + 0.5, duration=cost)
        same = home == tasks.track[anchor]
        place = adding.at(home, moment if not same else None, submitted)
        place = max(place, anchor + 0.5) if same else place
        more = {"duration": duration_ns, "submitted": submitted, "launcher": launch}
        found = adding.add(task.name, task.kind, home, anchor, moment, place, **more)
        if launch >= 0:
            adding.edges.append((EdgeKind.LAUNCH, launch, found, graph.constants.launch_lag, True))
        if not same and not is_host:
            kind = EdgeKind.COMMUNICATION if task.kind == TaskKind.COMMUNICATION else EdgeKind.EVENT
            adding.edges.append((kind, anchor, found, 0 if task.beside else graph.constants.kernel_gap, task.beside))
        made.append((moment, found))
    _hold_up(adding, graph, task, made, before)
    return adding.made()


def _last_of_call(tasks: Tasks, task: int) -> int:
    """The last task of the call that a task is a piece of: a new call cannot begin inside it."""
    row, track = tasks.row[task], tasks.track[task]
    while row >= 0 and task + 1 < len(tasks) and tasks.row[task + 1] == row and tasks.track[task + 1] == track:
        task += 1
    return task


def _hold_up(
    adding: _Adding, graph: TaskGraph, task: NewTask, made: list[tuple[int, int]], before: Mask | None
) -> None:
    """Tasks that have to wait for the new one that comes last before each of them."""
    if before is None or not made:
        return
    made = sorted(made)
    moments = np.array([moment for moment, _ in made], dtype=np.int64)
    kind = EdgeKind.COMMUNICATION if task.kind == TaskKind.COMMUNICATION else EdgeKind.EVENT
    for target in np.flatnonzero(before).tolist():
        index = int(np.searchsorted(moments, graph.tasks.start[target], side="right")) - 1
        if index >= 0:
            lag = graph.constants.kernel_gap if graph.is_device[target] else 0
            adding.edges.append((kind, made[index][1], target, lag, False))


def move_tasks(graph: TaskGraph, chosen: Mask, track: Track) -> TaskGraph:
    """A graph with some device tasks on another stream, in the order of submission: see `Plan.move`."""
    if (chosen & ~graph.is_device).any():
        raise ValueError("only device tasks can be moved to another stream")
    if track.kind == TrackKind.THREAD:
        raise ValueError("device tasks cannot run on a host thread")
    graph, number = with_track(graph, track)
    tasks = graph.tasks
    tracks = np.where(chosen, number, tasks.track).astype(np.int32)
    place: F64 = np.arange(len(graph), dtype=np.float64)
    own = np.flatnonzero(tracks == number)
    # A stream runs what it is given in the order in which it is given it.
    order = own[np.lexsort((tasks.start[own], tasks.submitted[own]))]
    place[order] = np.arange(len(own))
    origin = np.arange(len(graph))
    edges = apart_from_chains(graph)
    return rebuild(graph, replace(tasks, track=tracks), origin, place, edges)
