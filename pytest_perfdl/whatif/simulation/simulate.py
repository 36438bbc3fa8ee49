"""When every task of a graph starts and ends, given what each has to wait for; its critical path and its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.model import CHAIN_KINDS, NO_RELEASE, EdgeKind, Edges, Mask, TaskGraph, TaskKind, Tasks
from pytest_perfdl.whatif.simulation.structure import Structure, offsets, structure

# How long a constraint usually takes to have its effect, and how sure an inferred one is.


CONFIDENCE = {
    EdgeKind.SPIN: 0.8,
    EdgeKind.OTHER_STREAM: 0.6,
    EdgeKind.CONTENTION: 0.5,
    EdgeKind.JOIN: 0.5,
    EdgeKind.COMMUNICATION: 0.5,
}
"""Of inferred edges: a ranking, not a frequency. A spin has a kernel that ran for most of the gap; another stream's
end within 15 us may be chance on a busy device; contention, joins and collectives rest on one coincidence in time."""


@dataclass(frozen=True, slots=True)
class Usual:
    """The lags of edges that were binding: their 5th percentile and their median, nanoseconds."""

    least: int = 0
    median: int = 0
    known: bool = False
    """Whether any edge was binding."""

    @classmethod
    def of(cls, lag: I64) -> Usual:
        """Both are 0 where no edge was binding."""
        if not len(lag):
            return cls()
        return cls(int(np.percentile(lag, 5, method="lower")), int(np.median(lag)), known=True)

    def lags(self, residual: I64, binding: Mask) -> I64:
        """What was measured where an edge was binding, else the least that is usual if it had as much."""
        found: I64 = np.where(binding, residual, np.minimum(residual, self.least))
        return found


def anchors(edges: Edges, start: I64, end: I64) -> I64:
    """The moment of its source that each edge counts from."""
    found: I64 = np.where(edges.at_start, start[edges.source], end[edges.source])
    return found


def settle(tasks: Tasks, edges: Edges) -> tuple[Tasks, Edges]:
    """Make the measured times the answer: lags that exceed them are cut, and what nothing explains is pinned.

    A task of a chain that starts later than all its constraints say keeps the rest as lag of its chain edge; one
    without a chain edge gets its measured start as release.
    """
    anchor = anchors(edges, tasks.start, tasks.end)
    residual = tasks.start[edges.target] - anchor
    lag = np.minimum(edges.lag, residual)
    bound = tasks.release.copy()
    np.maximum.at(bound, edges.target, anchor + lag)
    chain = np.flatnonzero(np.isin(edges.kind, CHAIN_KINDS) & (edges.source == edges.target - 1))
    late = chain[bound[edges.target[chain]] < tasks.start[edges.target[chain]]]
    constant = edges.constant_lag.copy()
    constant[late] += residual[late] - lag[late]
    lag[late] = residual[late]
    held = bound < tasks.start
    held[edges.target[late]] = False
    release = np.where(held, tasks.start, tasks.release)
    return replace(tasks, release=release), edges.with_(lag=lag, constant_lag=constant)


# How long the steps of a simulated graph take.


MIN_STEPS = 3
"""Steps from which on their mean is a period."""


def step_times(graph: TaskGraph, start: I64, end: I64) -> I64:
    """Length of each step, nanoseconds, given the start and end of every task; see `Simulation.steps_ns`.

    A step without a task of its own takes no time.
    """
    count = len(graph.steps)
    found = np.zeros(count, dtype=np.int64)
    if not len(graph) or not count:
        return found
    if graph.steps[0].number < 0:
        found[0] = end.max() - start.min()
        return found
    first, step, on_host = _runs_of_steps(graph)
    begins, ends = np.minimum.reduceat(start, first), np.maximum.reduceat(end, first)
    own, host = np.flatnonzero(step >= 0), np.flatnonzero((step >= 0) & on_host)
    opens, closes = np.full(count, end.max()), np.full(count, start.min())
    np.minimum.at(opens, step[host], begins[host])
    np.maximum.at(closes, step[own], ends[own])
    hosted, run = np.bincount(step[host], minlength=count) > 0, np.bincount(step[own], minlength=count) > 0
    setup = _setup(graph, start)
    carried = _carried_tasks(graph)
    before: int | None = None
    for index in np.flatnonzero(run).tolist():
        if index in carried:
            before = None
        if graph.on_device and before is not None:
            begin = before
        elif hosted[index]:
            # Ranks do not begin a step together: of a job it begins when the last has completed the one before.
            begin = int(opens[index]) if graph.job is None or before is None else max(int(opens[index]), before)
        else:
            continue
        until = max(int(closes[index]), begin)
        if before is None and graph.on_device and index in carried:
            earlier = end[carried[index]]
            begin = max(begin, int(earlier[earlier <= until].max(initial=begin)))
        found[index] = until - begin - sum(max(min(closed, until) - max(opened, begin), 0) for opened, closed in setup)
        before = until
    return found


def _runs_of_steps(graph: TaskGraph) -> tuple[Rows, Rows, Mask]:
    """Runs of neighboring tasks of one track that complete the same step; remembered for graphs of equal structure.

    The first task of each, its step (-1 for none), and whether the steps' thread runs it.
    """
    step, track = graph.tasks.step, graph.tasks.track
    known = graph.edges.derived.get("steps")
    if known is None or known[0] is not step or known[1] is not track:
        on_host = np.isin(track, graph.owners) if graph.job is not None else track == graph.owner
        completes = on_host | graph.is_device if graph.on_device else on_host
        step_of = np.where(completes, step, -1)
        first = np.flatnonzero((step_of[1:] != step_of[:-1]) | (track[1:] != track[:-1])) + 1
        first = np.concatenate(([0], first))
        known = graph.edges.derived["steps"] = step, track, (first, step_of[first], on_host[first])
    found: tuple[Rows, Rows, Mask] = known[2]
    return found


def _carried_tasks(graph: TaskGraph) -> dict[int, Rows]:
    """Device tasks from before each step that begins a run of consecutive numbers; see `step_windows`.

    Remembered for graphs of equal structure.
    """
    step, measured = graph.tasks.step, graph.tasks.start
    known = graph.edges.derived.get("carried")
    if known is None or known[0] is not step or known[1] is not measured:
        begins = [
            index for index, span in enumerate(graph.steps) if index == 0 or span.start != graph.steps[index - 1].end
        ]
        found = {
            index: np.flatnonzero(graph.is_device & (step < index) & (measured < graph.steps[index].start))
            for index in begins
        }
        known = graph.edges.derived["carried"] = step, measured, found
    carried: dict[int, Rows] = known[2]
    return carried


def _setup(graph: TaskGraph, start: I64) -> list[tuple[int, int]]:
    """When the steps' thread is in its setup: up to the first task behind that. In a job the first rank's."""
    own = graph.tasks.on_track(graph.owner)
    inside = np.concatenate(([False], graph.tasks.setup[own], [False]))
    opens = np.flatnonzero(inside[1:] & ~inside[:-1])
    closes = np.flatnonzero(~inside[1:] & inside[:-1])
    at = start[own]
    closes = np.minimum(closes, len(at) - 1)
    return list(zip(at[opens].tolist(), at[closes].tolist(), strict=True)) if len(at) else []


# The critical path of a simulation: from the last end back along the edges that decided each start.


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """Stretches in the order of time, one beginning where the other ends, that cover the whole span.

    A stretch is spent in a task, or in the lag of an edge, or before a release.
    """

    start: I64
    end: I64
    task: Rows
    """The task that ran, -1 for a lag."""
    edge: Rows
    """The edge whose lag passed, -1 for a task, and for time before a release."""
    waiting: Rows
    """The task that a lag or release held up, -1 for a task's own stretch."""
    passed: Rows
    """The binding edges that the path follows, those without a lag, too."""

    @property
    def length_ns(self) -> int:
        """The sum of all stretches, which is the span."""
        return int((self.end - self.start).sum())

    def by_kind(self, graph: TaskGraph) -> Mapping[str, int]:
        """Nanoseconds by kind of task, of edge (with " lag" behind it), and "release"; adds up to the span."""
        length = self.end - self.start
        labels = np.full(len(length), len(TaskKind) + len(EdgeKind), dtype=np.intp)
        ran, lagged = self.task >= 0, self.edge >= 0
        labels[ran] = graph.tasks.kind[self.task[ran]]
        labels[lagged] = len(TaskKind) + graph.edges.kind[self.edge[lagged]]
        return {_LABELS[code]: int(length[labels == code].sum()) for code in np.unique(labels).tolist()}

    def by_class(self, graph: TaskGraph) -> Mapping[str, int]:
        """The same by the classes that `analysis.waiting.critical_path` has, without those that have no time.

        The kernel gap is the lag between a stream's tasks; "dependency" is waiting that another stream, thread, rank or
        a full queue explains; "unexplained wait" what passes before a release, or between two tasks of a thread.
        """
        total: dict[str, int] = {}
        for kind, ns in self.by_kind(graph).items():
            total[_CLASSES[kind]] = total.get(_CLASSES[kind], 0) + ns
        return {name: ns for name, ns in total.items() if ns}


_LABELS = (
    *(kind.name.lower() for kind in TaskKind),
    *(f"{kind.name.lower().replace('_', ' ')} lag" for kind in EdgeKind),
    "release",
)

_CLASSES = {
    **dict.fromkeys(_LABELS, "dependency"),
    "operator": "operator",
    "call": "runtime call",
    "input": "input",
    "gap": "Python and host",
    "wait": "synchronization",
    "return": "synchronization",
    "kernel": "compute",
    "copy": "copy",
    "memset": "copy",
    "communication": "communication",
    "stream lag": "kernel gap",
    "launch lag": "launch latency",
    "sync lag": "synchronization",
    "copy lag": "synchronization",
    "thread lag": "unexplained wait",
    "release": "unexplained wait",
}


def path_of(graph: TaskGraph, start: I64, end: I64, binding: Rows) -> Path:
    """Walk back from the task that ends last; of several from the one on the first track.

    Where a source ends after its target began (contention, programmatic dependent launch) the stretch of the source
    ends where the target's begins, so that no moment counts twice.
    """
    stretches: list[tuple[int, int, int, int, int]] = []
    passed: list[int] = []
    if not len(graph):
        none = np.zeros(0, dtype=np.int64)
        return Path(none, none, *(none.astype(np.intp) for _ in range(4)))
    starts, ends, edge_of = start.tolist(), end.tolist(), binding.tolist()
    sources, at_start = graph.edges.source.tolist(), graph.edges.at_start.tolist()
    begin = int(start.min())
    task = int(np.argmax(end))
    now = ends[task]
    while True:
        if starts[task] < now:
            stretches.append((starts[task], now, task, -1, -1))
            now = starts[task]
        edge = edge_of[task]
        if edge < 0:
            if now > begin:
                stretches.append((begin, now, -1, -1, task))
            break
        passed.append(edge)
        source = sources[edge]
        anchor = starts[source] if at_start[edge] else ends[source]
        if anchor < now:
            stretches.append((anchor, now, -1, edge, task))
            now = anchor
        task = source
    found = np.array(stretches[::-1], dtype=np.int64).reshape(-1, 5)
    task_of, edge_of_lag, waiting = (found[:, column].astype(np.intp) for column in (2, 3, 4))
    return Path(found[:, 0], found[:, 1], task_of, edge_of_lag, waiting, np.array(passed[::-1], dtype=np.intp))


# When every task of a graph starts and ends, given what each has to wait for.


Lags = Literal["measured", "constant"]
"""Which lags of the edges to use: see `Edges`."""

_NEVER = -(2**60)
"""Below every moment, with room for sums."""

_LOOP_NS, _LEVEL_NS = 400, 12_000
"""What a head costs in the loop, and a level in numpy: which of the two is faster depends on the graph only."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """The times of all tasks of a graph, nanoseconds."""

    graph: TaskGraph = field(repr=False)
    start: I64
    end: I64
    lags: Lags

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        return int(self.end.max() - self.start.min()) if len(self.start) else 0

    @property
    def steps_ns(self) -> I64:
        """Length of each step's window: from the completion of the one before to its own, as `step_windows` has it.

        A step completes when its annotation has ended and, with device events, all that was launched in it. Time in
        a step's setup does not count. On traces without device events a window is the step's time on the host.
        """
        return step_times(self.graph, self.start, self.end)

    @property
    def period_ns(self) -> float | None:
        """Mean length of the windows, which tile the steps; `None` for fewer than 3 steps.

        One step's launch-to-last-kernel span is no period: the host runs ahead of the device.
        """
        steps = self.steps_ns
        return float(steps.mean()) if len(steps) >= MIN_STEPS else None

    @cached_property
    def binding(self) -> Rows:
        """The edge that decided each task's start, -1 where its release did or nothing: an index into the edges.

        Of several the one from another track, of these the first.
        """
        edges, tasks = self.graph.edges, self.graph.tasks
        lag = edges.lag if self.lags == "measured" else edges.constant_lag
        own = np.flatnonzero(anchors(edges, self.start, self.end) + lag == self.start[edges.target])
        across = tasks.track[edges.source[own]] != tasks.track[edges.target[own]]
        found = np.full(len(self.graph), -1, dtype=np.intp)
        for chosen in (own[~across], own[across]):
            found[edges.target[chosen[::-1]]] = chosen[::-1]
        return found

    @cached_property
    def path(self) -> Path:
        """The chain of binding edges from the last end to the first start, which covers the whole span."""
        return path_of(self.graph, self.start, self.end, self.binding)


def simulate(graph: TaskGraph, duration: I64 | None = None, *, lags: Lags = "measured") -> Simulation:
    """Start and end of every task: the earliest that its edges and its release allow.

    start = max(release, max over edges of anchor(source) + lag), end = start + duration (Daydream's Algorithm 1 with
    fixed orders on threads and streams). Works in O(V + E); the compiled structure is kept with the edges, so
    that other durations of the same graph cost a small part of the first simulation.

    `duration` has nanoseconds of each task instead of the graph's own. The lags that were "measured" replay the trace
    exactly; "constant" replaces every launch lag, kernel gap and return of a call by one constant each, which measures
    how far the model explains the trace.

    Raises
    ------
    CycleError
        If tasks wait for each other in a circle.
    ValueError
        If `duration` is not one value per task.
    """
    duration = graph.tasks.duration if duration is None else np.asarray(duration, dtype=np.int64)
    if duration.shape != (len(graph),):
        raise ValueError(f"durations of {len(graph)} tasks are needed, not {duration.shape}")
    start = _starts(graph, structure(graph), duration, lags)
    return Simulation(graph, start, start + duration, lags)


def _starts(graph: TaskGraph, compiled: Structure, duration: I64, lags: Lags) -> I64:
    others, heads = compiled.others, compiled.task
    if not len(heads):
        return np.zeros(0, dtype=np.int64)
    constant = lags == "constant"
    offset = offsets(compiled, duration, constant=constant)
    # Relative to its chain each head may start at `base` or later, and after every source by `cost`.
    release = graph.tasks.release[heads]
    base = np.where(release > NO_RELEASE, np.maximum(release, _NEVER) - offset[heads], _NEVER)
    loose = (release == NO_RELEASE) & (compiled.previous < 0) & (np.diff(compiled.first) == 0)
    # What nothing holds up at all begins when the graph does.
    base[loose] = graph.begin - offset[heads[loose]]
    cost = offset[others.source] - offset[others.target] + (others.constant_lag if constant else others.lag)
    cost += np.where(others.at_start, 0, duration[others.source])
    levels = len(compiled.levels) - 1
    thin = _LOOP_NS * (len(heads) + len(others)) < _LEVEL_NS * levels
    moved = _by_loop(compiled, base, cost) if thin else _by_level(compiled, base, cost)
    found: I64 = moved[compiled.head_of]
    found += offset
    return found


def _by_loop(compiled: Structure, base: I64, cost: I64) -> I64:
    found = base.tolist()
    previous, first = compiled.previous.tolist(), compiled.first.tolist()
    sources, costs = compiled.source.tolist(), cost.tolist()
    for head, latest in enumerate(found):
        before = previous[head]
        if before >= 0 and found[before] > latest:
            latest = found[before]
        for at in range(first[head], first[head + 1]):
            moment = found[sources[at]] + costs[at]
            if moment > latest:
                latest = moment
        found[head] = latest
    return np.array(found, dtype=np.int64)


def _by_level(compiled: Structure, base: I64, cost: I64) -> I64:
    """All heads of a level at once; along a chain the running maximum."""
    found, first = base, compiled.first
    waiting = np.flatnonzero(first[1:] > first[:-1])
    # A chain's heads of one level stand one behind the other: from the one that opens such a run on.
    number = np.arange(len(found))
    opening = compiled.previous != number - 1
    opening[compiled.levels[:-1]] = True
    opens = np.flatnonzero(opening)
    outer = opens[compiled.previous[opens] >= 0]
    behind = np.append(opens[1:], len(found))
    long = behind - opens > 1
    runs = list(zip(opens[long].tolist(), behind[long].tolist(), strict=True))
    bounds = [np.searchsorted(own, compiled.levels).tolist() for own in (waiting, outer, opens[long])]
    edges = first[compiled.levels].tolist()
    for level in range(len(compiled.levels) - 1):
        since, last = edges[level], edges[level + 1]
        if last > since:
            moments = found[compiled.source[since:last]] + cost[since:last]
            some = waiting[bounds[0][level] : bounds[0][level + 1]]
            found[some] = np.maximum(found[some], np.maximum.reduceat(moments, first[some] - since))
        some = outer[bounds[1][level] : bounds[1][level + 1]]
        found[some] = np.maximum(found[some], found[compiled.previous[some]])
        for run, until in runs[bounds[2][level] : bounds[2][level + 1]]:
            own = found[run:until]
            np.maximum.accumulate(own, out=own)
    return found
