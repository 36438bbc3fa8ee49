"""Edits of a task graph, composed without changing it: Daydream's primitives, and those that users add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, TypeVar

import numpy as np

from pytest_perfdl.model.errors import CycleError
from pytest_perfdl.trace.model import F64, I64, Rows
from pytest_perfdl.whatif.editing.select import Selector, select_tasks
from pytest_perfdl.whatif.editing.surgery import (
    NewTask,
    apart_from_chains,
    insert_tasks,
    move_tasks,
    rebuild,
    remove_tasks,
    with_launches,
)
from pytest_perfdl.whatif.from_trace.job import couple
from pytest_perfdl.whatif.model import NO_SCOPE, EdgeKind, Job, Mask, TaskGraph, Track, TrackKind
from pytest_perfdl.whatif.simulation.structure import inherit

# The order in which a stream takes its tasks when it may choose: another policy than first come, first served.


Policy = Callable[[TaskGraph], "I64 | F64"]
"""One number per task: of the tasks that could start, the one with the lowest goes first."""


def reschedule(graph: TaskGraph, tracks: Mask, policy: Policy) -> TaskGraph:
    """A graph in which the tasks of some streams run in the order that a policy leads to: see `Plan.schedule`.

    List scheduling without preemption: whenever a stream is free it starts, of the tasks that wait for nothing else,
    the one of lowest priority value (then the one ready first, then in the order before); if there is none, the next
    that becomes ready. Between two tasks of such a stream passes the usual kernel gap. `tracks` has one boolean per
    track.

    Raises
    ------
    CycleError
        If tasks wait for each other in a circle.
    ValueError
        If host threads are to be scheduled, whose program order is fixed.
    """
    for number in np.flatnonzero(tracks).tolist():
        if graph.tracks[number].kind == TrackKind.THREAD:
            raise ValueError(
                f"the order of tasks on the host thread {graph.tracks[number]} cannot be changed, because the program "
                "determines this order"
            )
    priority = np.asarray(policy(graph), dtype=np.float64)
    if priority.shape != (len(graph),):
        raise ValueError(f"expected priorities of {len(graph)} tasks, got an array of shape {priority.shape}")
    own = tracks[graph.tasks.track]
    start = _list_scheduling(graph, own, priority)
    place: F64 = np.arange(len(graph), dtype=np.float64)
    tasks = np.flatnonzero(own)
    order = tasks[np.lexsort((tasks, start[tasks], graph.tasks.track[tasks]))]
    place[order] = np.sort(place[tasks])
    # The lag of a task behind its neighbor was that of the old order.
    origin = np.where(own, -1, np.arange(len(graph)))
    return rebuild(graph, graph.tasks, origin, place, apart_from_chains(graph))


def _list_scheduling(graph: TaskGraph, own: Mask, priority: F64) -> I64:
    """Start of every task, one event after the other; `own` are those whose order is free."""
    tasks, edges, count = graph.tasks, graph.edges, len(graph)
    # The edges that hold: without the order of the streams in question.
    dropped = own[edges.target] & (edges.source == edges.target - 1) & (edges.kind == EdgeKind.STREAM)
    edges = edges.take(~dropped)
    waiting = np.bincount(edges.target, minlength=count).tolist()
    by_source = np.argsort(edges.source, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(edges.source, minlength=count)))).tolist()
    targets, lags = edges.target[by_source].tolist(), edges.lag[by_source].tolist()
    at_start = edges.at_start[by_source].tolist()
    origin = graph.begin
    ready = np.maximum(tasks.release, origin).tolist()
    duration, track, free_order, rank = (each.tolist() for each in (tasks.duration, tasks.track, own, priority))
    idle_from = [origin] * len(graph.tracks)
    queue: list[list[tuple[float, int, int]]] = [[] for _ in graph.tracks]
    start = np.zeros(count, dtype=np.int64)
    # Events: a task becomes ready (0), or a track looks for its next task (1), in that order at one moment.
    events: list[tuple[int, int, int]] = [(ready[task], 0, task) for task in range(count) if not waiting[task]]
    events.sort()
    done = 0
    while events:
        now, looks, which = heappop(events)
        if not looks and free_order[which]:
            heappush(queue[track[which]], (rank[which], now, which))
            heappush(events, (max(now, idle_from[track[which]]), 1, track[which]))
            continue
        if looks:
            if idle_from[which] > now or not queue[which]:
                continue
            task = heappop(queue[which])[2]
            idle_from[which] = now + duration[task] + graph.constants.kernel_gap
            if queue[which]:
                heappush(events, (idle_from[which], 1, which))
        else:
            task = which
        start[task] = now
        done += 1
        for at in range(first[task], first[task + 1]):
            target = targets[at]
            moment = now + lags[at] + (0 if at_start[at] else duration[task])
            ready[target] = max(ready[target], moment)
            waiting[target] -= 1
            if not waiting[target]:
                heappush(events, (ready[target], 0, target))
    if done < count:
        raise CycleError("the tasks cannot be scheduled, because they wait for each other in a cycle")
    return start


# Functions by name: how edits and optimizations are added, those that come with the package and those of users.


Named = TypeVar("Named", bound=Callable[..., Any])


def registering(known: dict[str, Any], name: str, what: str) -> Callable[[Named], Named]:
    """A decorator that adds a function to those known under a name; the same function may be added again.

    Raises
    ------
    ValueError
        When the decorator meets another function of that name; `what` they are is said.
    """

    def register(function: Named) -> Named:
        there = known.get(name)
        if there is not None and (there.__module__, there.__qualname__) != (function.__module__, function.__qualname__):
            raise ValueError(f"{what} named {name!r} already exists: choose another name")
        known[name] = function
        return function

    return register


# Edits of a task graph, composed without changing it: Daydream's primitives, and those that users add.
#
#     plan = Plan().scale(Select(name="gemm"), 0.5).remove(Select(operator="aten::dropout"))
#     faster = plan.apply(graph)
#
# Each method returns a longer plan; `apply` carries out its edits one after the other, each on the graph that the one
# before left, and selections are looked up then. What a program decides while it runs (what a synchronization waits
# for, when the launch queue is full) is worked out again after every edit that changes tasks.


Edit = Callable[..., TaskGraph]
"""Takes a graph and parameters, and returns another graph."""

Durations = int | Callable[[I64], int]
"""Nanoseconds, or what makes them of those of the tasks that are replaced."""

PRIMITIVES: dict[str, Edit] = {}
"""The edits that plans know, by name."""

OF_JOBS: set[str] = set()
"""Names of those that change a job as a whole; the others are carried out on each rank."""

Function = TypeVar("Function", bound=Edit)


def primitive(name: str, *, of_job: bool = False) -> Callable[[Function], Function]:
    """Register an edit under a name, for `Plan.then`; with `of_job` one that is given the graph of all ranks.

    >>> @primitive("stop_the_world")
    ... def stop_the_world(graph, *, ns):
    ...     return graph.with_durations(graph.tasks.duration + ns)
    >>> Plan().then("stop_the_world", ns=5)
    Plan(stop_the_world(ns=5))

    Raises
    ------
    ValueError
        If the name is taken by another function.
    """
    if of_job:
        OF_JOBS.add(name)
    return registering(PRIMITIVES, name, "an edit")


@dataclass(frozen=True, slots=True)
class Step:
    """One edit of a plan with its parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items() if value is not None)
        return f"{self.name}({told})"


@dataclass(frozen=True, slots=True)
class Plan:
    """Edits in the order in which they are carried out."""

    edits: tuple[Step, ...] = ()

    def __repr__(self) -> str:
        return f"Plan({', '.join(map(repr, self.edits))})"

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.edits + other.edits)

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph that the edits make of one, which itself stays as it is; in a job each rank's, one by one.

        Raises
        ------
        ValueError
            If an edit cannot be carried out on the graph; the message says why.
        """
        for edit in self.edits:
            if graph.job is not None and edit.name not in OF_JOBS:
                edit = Step("each_rank", {"plans": (Plan((edit,)),) * len(graph.job.parts)})
            graph = PRIMITIVES[edit.name](graph, **edit.parameters)
        return graph

    def then(self, edit: str, /, **parameters: Any) -> Plan:
        """Any registered edit.

        Raises
        ------
        ValueError
            If there is none of that name.
        """
        if edit not in PRIMITIVES:
            raise ValueError(f"there is no edit named {edit!r}; known edits: {', '.join(sorted(PRIMITIVES))}")
        return Plan((*self.edits, Step(edit, parameters)))

    def scale(self, tasks: Selector, factor: float) -> Plan:
        """Tasks take `factor` times as long, rounded to nanoseconds; at least 0."""
        return self.then("scale", tasks=tasks, factor=factor)

    def retime(self, tasks: Selector, ns: int | I64 | Callable[[TaskGraph, Rows], I64]) -> Plan:
        """Tasks take so long: one value, one each, or what a function of the graph and the tasks gives."""
        return self.then("retime", tasks=tasks, ns=ns)

    def timed(self, ns: I64) -> Plan:
        """All tasks take so long, one value each."""
        return self.then("timed", ns=ns)

    def remove(self, tasks: Selector, *, launches: bool = True) -> Plan:
        """Tasks vanish; with `launches` also what they launched, and calls that have nothing left to launch.

        What waited for them waits for what was ahead of them on their track (see `surgery.remove_tasks`).
        """
        return self.then("remove", tasks=tasks, launches=launches)

    def insert(
        self, task: NewTask, after: Selector, *, track: Track | None = None, before: Selector | None = None
    ) -> Plan:
        """A new task behind each of the tasks `after`.

        A device task goes on `track`, or the track of the task before it; on another track than that it waits for
        it, or starts with it (`NewTask.beside`). It is launched by a call of its own behind that task's (Daydream: a
        GPU insert is a launch and a kernel), unless it has no `launch_ns`. A task of a host thread goes on the same
        thread. Each of the tasks `before` waits for the last new task that belongs before it; calls that synchronize
        wait for new tasks as for others.
        """
        return self.then("insert", task=task, after=after, track=track, before=before)

    def replace(self, tasks: Selector, name: str, ns: Durations) -> Plan:
        """Each run of neighboring tasks becomes one task, in the place of its first: a fusion.

        Launches of the others vanish. `ns` is the new duration, or a function of the durations of the run.
        """
        return self.then("replace", tasks=tasks, name=name, ns=ns)

    def move(self, tasks: Selector, track: Track) -> Plan:
        """Device tasks go to another stream, which may be new, and run there in the order of their submission."""
        return self.then("move", tasks=tasks, track=track)

    def schedule(self, tracks: Track | TrackKind | Iterable[Track], policy: Policy) -> Plan:
        """Streams or channels take their tasks in the order of a policy: see `edit.reschedule`."""
        return self.then("schedule", tracks=tracks, policy=policy)

    def each_rank(self, plans: Sequence[Plan]) -> Plan:
        """Each rank of a job has its own plan, in the order of their numbers."""
        return self.then("each_rank", plans=tuple(plans))

    def rejoin(self, job: Callable[[Job], Job]) -> Plan:
        """The ranks become those that a function makes of them, with other collectives between them, too."""
        return self.then("rejoin", job=job)

    def drop_edges(self, kind: EdgeKind, within: Selector | None = None) -> Plan:
        """Edges of a kind vanish, all of them or those into some tasks.

        Dropped synchronizations stay dropped whatever is edited later; dropping any QUEUE edge ends back-pressure.
        """
        return self.then("drop_edges", kind=kind, within=within)


@primitive("scale")
def _scale(graph: TaskGraph, tasks: Selector, factor: float) -> TaskGraph:
    if not factor >= 0:
        raise ValueError(f"a duration cannot be scaled by {factor}")
    own = select_tasks(graph, tasks)
    duration = graph.tasks.duration.copy()
    duration[own] = np.rint(duration[own] * factor).astype(np.int64)
    return graph.with_durations(duration)


@primitive("retime")
def _retime(graph: TaskGraph, tasks: Selector, ns: int | I64 | Callable[[TaskGraph, Rows], I64]) -> TaskGraph:
    own = np.flatnonzero(select_tasks(graph, tasks))
    duration = graph.tasks.duration.copy()
    duration[own] = ns(graph, own) if callable(ns) else ns
    if (duration[own] < 0).any():
        raise ValueError("a duration cannot be negative")
    return graph.with_durations(duration)


@primitive("timed")
def _timed(graph: TaskGraph, ns: I64) -> TaskGraph:
    if ns.shape != (len(graph),) or (ns < 0).any():
        raise ValueError(f"expected {len(graph)} durations of 0 ns or more")
    return graph.with_durations(ns)


@primitive("remove")
def _remove(graph: TaskGraph, tasks: Selector, launches: bool = True) -> TaskGraph:
    own = select_tasks(graph, tasks)
    return remove_tasks(graph, with_launches(graph, own) if launches else own)


@primitive("insert")
def _insert(
    graph: TaskGraph, task: NewTask, after: Selector, track: Track | None = None, before: Selector | None = None
) -> TaskGraph:
    waiting = None if before is None else select_tasks(graph, before)
    return insert_tasks(graph, task, select_tasks(graph, after), track, waiting)


@primitive("replace")
def _replace(graph: TaskGraph, tasks: Selector, name: str, ns: Durations) -> TaskGraph:
    own = select_tasks(graph, tasks)
    behind = graph.behind(own)
    first = np.flatnonzero(own & ~behind)
    duration, names = graph.tasks.duration.copy(), graph.names if name in graph.names else (*graph.names, name)
    runs = np.split(graph.tasks.duration[own], np.flatnonzero(~behind[own])[1:])
    for task, old in zip(first.tolist(), runs if len(first) else [], strict=True):
        duration[task] = ns(old) if callable(ns) else ns
    renamed = graph.tasks.name.copy()
    renamed[first] = names.index(name)
    fused = replace(graph, names=names, tasks=replace(graph.tasks, name=renamed, duration=duration))
    return remove_tasks(fused, with_launches(fused, own & behind))


@primitive("move")
def _move(graph: TaskGraph, tasks: Selector, track: Track) -> TaskGraph:
    return move_tasks(graph, select_tasks(graph, tasks), track)


@primitive("schedule")
def _schedule(graph: TaskGraph, tracks: Track | TrackKind | Iterable[Track], policy: Policy) -> TaskGraph:
    wanted = (tracks,) if isinstance(tracks, Track | TrackKind) else tuple(tracks)
    own = np.array([track in wanted or track.kind in wanted for track in graph.tracks], dtype=bool)
    return reschedule(graph, own, policy)


@primitive("drop_edges")
def _drop_edges(graph: TaskGraph, kind: EdgeKind, within: Selector | None = None) -> TaskGraph:
    edges = graph.edges
    dropped = edges.kind == kind
    if within is not None:
        dropped &= select_tasks(graph, within)[edges.target]
    tasks, constants = graph.tasks, graph.constants
    if kind == EdgeKind.SYNC:
        scope = tasks.scope.copy()
        scope[edges.target[dropped]] = NO_SCOPE
        tasks = replace(tasks, scope=scope)
    if kind == EdgeKind.QUEUE and dropped.any():
        constants = replace(constants, queue_depth=0)
    left = edges.take(~dropped)
    inherit(graph, left, np.arange(len(graph)))
    return replace(graph, tasks=tasks, edges=left, constants=constants)


@primitive("each_rank", of_job=True)
def _each_rank(graph: TaskGraph, plans: Sequence[Plan]) -> TaskGraph:
    job = graph.job
    if job is None or len(plans) != len(job.parts):
        raise ValueError(f"expected one plan for each of the {len(graph.owners)} ranks, got {len(plans)}")
    parts = tuple(plan.apply(part) for plan, part in zip(plans, job.parts, strict=True))
    return couple(replace(job, parts=parts))


@primitive("rejoin", of_job=True)
def _rejoin(graph: TaskGraph, job: Callable[[Job], Job]) -> TaskGraph:
    if graph.job is None:
        raise ValueError("the collectives of one rank alone couple nothing")
    return couple(job(graph.job))
