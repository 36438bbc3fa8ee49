"""New tasks in a graph, and tasks on other streams."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pytest_perfdl.trace.model import F64, I64
from pytest_perfdl.whatif.editing.surgery import apart_from_chains, rebuilt, with_track
from pytest_perfdl.whatif.model import (
    DEVICE_KINDS,
    NO_RELEASE,
    NO_SCOPE,
    EdgeKind,
    Edges,
    Mask,
    TaskGraph,
    TaskKind,
    Tasks,
    Track,
    TrackKind,
)


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
        kind, track, start, duration, submitted, launcher, step, setup, name = columns
        count = len(start)
        return Tasks(
            kind=kind.astype(np.int8),
            track=track.astype(np.int32),
            name=name.astype(np.int32),
            row=np.full(count, -1, dtype=np.intp),
            start=start,
            duration=duration,
            release=np.full(count, NO_RELEASE, dtype=np.int64),
            submitted=submitted,
            launcher=launcher.astype(np.intp),
            step=step.astype(np.int32),
            scope=np.full(count, NO_SCOPE, dtype=np.int32),
            setup=setup.astype(bool),
            unexplained=np.zeros(count, dtype=np.int64),
        )

    def made(self) -> TaskGraph:
        """The graph with all that was added."""
        graph = self.graph
        new = self.tasks()
        kind, source, target, lag, at_start = np.array(self.edges, dtype=np.int64).reshape(-1, 5).T
        edges = Edges.of(EdgeKind.EVENT, source, target, lag, at_start=at_start.astype(bool))
        edges = Edges.joined(apart_from_chains(graph), edges.with_(kind=kind.astype(np.int8)))
        origin = np.concatenate((np.arange(len(graph)), np.full(len(new), -1)))
        place: F64 = np.concatenate((np.arange(len(graph), dtype=np.float64), np.array(self.place)))
        return rebuilt(replace(graph, names=(*graph.names, *self.added)), graph.tasks, origin, place, edges, new)


def inserted(graph: TaskGraph, task: NewTask, after: Mask, track: Track | None, before: Mask | None) -> TaskGraph:
    """A graph with one new task behind each of some tasks: see `Plan.insert`."""
    on_device = task.kind in DEVICE_KINDS
    if track is not None:
        graph, number = with_track(graph, track.kind, track.process, track.number)
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
            made.append(
                (
                    moment,
                    adding.add(task.name, task.kind, home, anchor, moment, anchor + 0.5, duration=duration_ns),
                )
            )
            continue
        is_host = graph.tracks[tasks.track[anchor]].kind == TrackKind.THREAD
        caller = anchor if is_host else int(tasks.launcher[anchor])
        submitted, launch = int(tasks.submitted[anchor]), caller
        if caller >= 0 and (task.launch_ns is not None or is_host):
            caller = _last_of_call(tasks, caller)
            submitted = int(end[caller])
            cost = task.launch_ns or 0
            launch = adding.add(
                f"launch of {task.name}",
                TaskKind.CALL,
                int(tasks.track[caller]),
                caller,
                submitted,
                caller + 0.5,
                duration=cost,
            )
        same = home == tasks.track[anchor]
        place = adding.at(home, moment if not same else None, submitted)
        place = max(place, anchor + 0.5) if same else place
        found = adding.add(
            task.name,
            task.kind,
            home,
            anchor,
            moment,
            place,
            duration=duration_ns,
            submitted=submitted,
            launcher=launch,
        )
        if launch >= 0:
            adding.edges.append((EdgeKind.LAUNCH, launch, found, graph.constants.launch_lag, True))
        if not same and not is_host:
            kind = EdgeKind.COMMUNICATION if task.kind == TaskKind.COMMUNICATION else EdgeKind.EVENT
            adding.edges.append((kind, anchor, found, 0 if task.beside else graph.constants.kernel_gap, task.beside))
        made.append((moment, found))
    _hold(adding, graph, task, made, before)
    return adding.made()


def _last_of_call(tasks: Tasks, task: int) -> int:
    """The last task of the call that a task is a piece of: a new call cannot begin inside it."""
    row, track = tasks.row[task], tasks.track[task]
    while row >= 0 and task + 1 < len(tasks) and tasks.row[task + 1] == row and tasks.track[task + 1] == track:
        task += 1
    return task


def _hold(adding: _Adding, graph: TaskGraph, task: NewTask, made: list[tuple[int, int]], before: Mask | None) -> None:
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


def moved(graph: TaskGraph, chosen: Mask, track: Track) -> TaskGraph:
    """A graph with some device tasks on another stream, in the order of submission: see `Plan.move`."""
    if (chosen & ~graph.is_device).any():
        raise ValueError("only device tasks can be moved to another stream")
    if track.kind == TrackKind.THREAD:
        raise ValueError("device tasks cannot run on a host thread")
    graph, number = with_track(graph, track.kind, track.process, track.number)
    tasks = graph.tasks
    tracks = np.where(chosen, number, tasks.track).astype(np.int32)
    place: F64 = np.arange(len(graph), dtype=np.float64)
    own = np.flatnonzero(tracks == number)
    # A stream runs what it is given in the order in which it is given it.
    order = own[np.lexsort((tasks.start[own], tasks.submitted[own]))]
    place[order] = np.arange(len(own))
    origin = np.arange(len(graph))
    edges = apart_from_chains(graph)
    return rebuilt(graph, replace(tasks, track=tracks), origin, place, edges)
