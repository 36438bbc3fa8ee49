"""How far a graph explains its trace, and whether a prediction from it deserves trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_perfdl.trace.model import Rows
from pytest_perfdl.whatif.model import TaskGraph
from pytest_perfdl.whatif.simulation.simulate import Path, simulate

Trust = Literal["ok", "low", "refuse"]

MAX_ERROR = 0.005
"""Error of the constant-lag replay up to which a graph is trusted (worst of nine public traces: 0.37 %)."""

MAX_UNEXPLAINED = 0.10
"""Share of unexplained waiting from which a graph is refused: what decides the step is not in the trace."""

REFUSED_ERROR = 0.05
"""Error of the constant-lag replay from which a graph is refused."""

MAX_HELD = 0.10
"""Share of the span that passes before an absolute release, from which trust is low: no edit can shorten that."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of a graph as measured, before any edit. Shares and errors are fractions of the span."""

    replay_error: float
    """Span with measured lags over the measured span, less 1: 0 by construction, an invariant and no evidence."""
    constant_error: float
    """The same with one constant each for launch lags, kernel gaps and returns of calls: the honest figure. Times of
    the host and inferred lags stay as measured."""
    unexplained_share: float
    """Waiting on the critical path for which no edge gives a reason."""
    inferred_share: float
    """Span during which the critical path waits because of an edge that only times suggest."""
    held_share: float
    """Share of the path before a release: work from earlier than the window, or launches that the trace lacks."""
    contradicted: int
    """Edges that were left out because they led in a circle."""
    trust: Trust
    reason: str
    """What decides the trust, one line; empty for "ok"."""


def quality(graph: TaskGraph) -> Quality:
    """Replay a graph and see what it rests on.

    Trust is "refuse" where unexplained waiting is 10 % of the span or more, or the constant-lag replay is off by
    5 % or more; "low" where it is off by more than 0.5 %, 10 % of the path pass before releases, or not all ranks of
    a job are given; else "ok". Thresholds: replays of public traces, where |error| <= 0.5 % held for all with less
    than 10 % unexplained. A prediction inherits the trust of the graph that it edits, and a graph without the
    profiler's time that of the one with it, which has the trace's times.
    """
    if graph.measured is not None:
        return quality(graph.measured)
    if not len(graph):
        return Quality(0.0, 0.0, 0.0, 0.0, 0.0, graph.contradicted, "refuse", "the trace has no tasks")
    start, end = graph.span
    span = max(end - start, 1)
    exact = simulate(graph)
    constant = simulate(graph, lags="constant")
    path = exact.path
    unexplained = _unexplained_ns(graph, path) / span
    inferred = _inferred_ns(graph, path.passed) / span
    held = (path.task < 0) & (path.edge < 0)
    held_share = float((path.end - path.start)[held].sum()) / span
    error = (constant.span_ns - span) / span
    trust, reason = _trust(unexplained, error, held_share)
    if trust == "ok" and graph.job is not None and graph.job.caveat:
        trust, reason = "low", graph.job.caveat
    return Quality(
        (exact.span_ns - end + start) / span,
        error,
        unexplained,
        inferred,
        held_share,
        graph.contradicted,
        trust,
        reason,
    )


def _unexplained_ns(graph: TaskGraph, path: Path) -> int:
    """Unexplained time before the tasks that the path waits for, as much of each as is on the path."""
    delayed = np.flatnonzero(path.waiting >= 0)
    length = path.end[delayed] - path.start[delayed]
    return int(np.minimum(length, graph.tasks.unexplained[path.waiting[delayed]]).sum())


def _inferred_ns(graph: TaskGraph, followed: Rows) -> int:
    """For how long targets of inferred edges on the path were held up beyond their next best reason."""
    tasks, edges = graph.tasks, graph.edges
    total = 0
    first = edges.first(len(tasks))
    for edge in followed[edges.inferred[followed]].tolist():
        target = int(edges.target[edge])
        others = [at for at in range(int(first[target]), int(first[target + 1])) if not edges.inferred[at]]
        moments = [
            int((tasks.start if edges.at_start[at] else tasks.end)[edges.source[at]] + edges.lag[at]) for at in others
        ]
        known = max(moments, default=int(tasks.start.min()))
        total += max(int(tasks.start[target]) - known, 0)
    return total


def _trust(unexplained: float, error: float, held: float) -> tuple[Trust, str]:
    if unexplained >= MAX_UNEXPLAINED:
        return "refuse", f"{unexplained:.0%} of the trace's time is waiting without a known cause"
    if abs(error) >= REFUSED_ERROR:
        return "refuse", f"the simulation differs from the trace by {error:+.1%}"
    if abs(error) > MAX_ERROR:
        return "low", f"the simulation differs from the trace by {error:+.1%}"
    if held >= MAX_HELD:
        return "low", f"{held:.0%} of the trace's time is waiting for work whose launch is not in the trace"
    return "ok", ""
