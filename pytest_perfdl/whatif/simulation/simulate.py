"""When every task of a graph starts and ends, given what each has to wait for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pytest_perfdl.trace.model import F64, I64, Rows
from pytest_perfdl.whatif.model import NO_RELEASE, TaskGraph
from pytest_perfdl.whatif.simulation.lags import anchors
from pytest_perfdl.whatif.simulation.path import Path, path_of
from pytest_perfdl.whatif.simulation.periods import MIN_STEPS, step_times
from pytest_perfdl.whatif.simulation.structure import Structure, offsets, structure

Lags = Literal["measured", "constant"]
"""Which lags of the edges to use: see `Edges`."""

_NEVER = -(2**60)
"""Below every moment, with room for sums."""

_LOOP_NS, _LEVEL_NS = 400, 12_000
"""What a head costs in the loop, and a level in numpy: which of the two is faster depends on the graph only."""


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """The times of all tasks of a graph, nanoseconds."""

    graph: TaskGraph = field(repr=False)
    start: I64
    end: I64
    lags: Lags
    derived: dict[str, Any] = field(init=False, repr=False, default_factory=dict)

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

    @property
    def binding(self) -> Rows:
        """The edge that decided each task's start, -1 where its release did or nothing: an index into the edges.

        Of several the one from another track, of these the first.
        """
        if "binding" not in self.derived:
            self.derived["binding"] = _binding(self)
        found: Rows = self.derived["binding"]
        return found

    @property
    def path(self) -> Path:
        """The chain of binding edges from the last end to the first start, which covers the whole span."""
        if "path" not in self.derived:
            self.derived["path"] = path_of(self.graph, self.start, self.end, self.binding)
        found: Path = self.derived["path"]
        return found

    @property
    def busy(self) -> F64:
        """Share of the span during which each track had a task, 0 to 1; tasks of one track may overlap a little."""
        total = np.bincount(self.graph.tasks.track, self.end - self.start, minlength=len(self.graph.tracks))
        found: F64 = np.minimum(total / self.span_ns, 1.0) if self.span_ns else np.zeros(len(self.graph.tracks))
        return found


def simulate(graph: TaskGraph, duration: I64 | None = None, *, lags: Lags = "measured") -> Simulation:
    """Start and end of every task: the earliest that its edges and its release allow.

    start = max(release, max over edges of anchor(source) + lag), end = start + duration (Daydream's Algorithm 1 with
    fixed orders on threads and streams). Works in O(V + E); the compiled structure is kept with the edges, so
    that other durations of the same graph cost a small part of the first simulation.

    Parameters
    ----------
    graph
        The graph.
    duration
        Nanoseconds of each task instead of the graph's own.
    lags
        "measured" replays the trace exactly; "constant" replaces every launch lag, kernel gap and return of a
        call by one constant each, which measures how far the model explains the trace.

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


def _binding(simulation: Simulation) -> Rows:
    graph = simulation.graph
    edges, tasks = graph.edges, graph.tasks
    lag = edges.lag if simulation.lags == "measured" else edges.constant_lag
    decided = anchors(edges, simulation.start, simulation.end) + lag == simulation.start[edges.target]
    found = np.full(len(graph), -1, dtype=np.intp)
    own = np.flatnonzero(decided)
    across = tasks.track[edges.source[own]] != tasks.track[edges.target[own]]
    for chosen in (own[~across], own[across]):
        found[edges.target[chosen[::-1]]] = chosen[::-1]
    return found
