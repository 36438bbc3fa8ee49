"""The critical path of a simulation: from the last end back along the edges that decided each start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.model import EdgeKind, TaskGraph, TaskKind


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
        total: dict[str, int] = {}
        length = self.end - self.start
        labels = np.full(len(length), len(TaskKind) + len(EdgeKind), dtype=np.intp)
        ran, lagged = self.task >= 0, self.edge >= 0
        labels[ran] = graph.tasks.kind[self.task[ran]]
        labels[lagged] = len(TaskKind) + graph.edges.kind[self.edge[lagged]]
        for code in np.unique(labels).tolist():
            total[_LABELS[code]] = int(length[labels == code].sum())
        return total

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
