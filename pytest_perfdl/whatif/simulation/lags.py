"""How long a constraint usually takes to have its effect, and how sure an inferred one is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pytest_perfdl.trace.model import I64
from pytest_perfdl.whatif.model import CHAIN_KINDS, EdgeKind, Edges, Mask, Tasks

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


def settled(tasks: Tasks, edges: Edges) -> tuple[Tasks, Edges]:
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
