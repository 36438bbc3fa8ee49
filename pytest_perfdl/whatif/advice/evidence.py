"""The input of the rules: how much of the critical path each task takes, and what the path waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.trace.model import I64
from pytest_perfdl.whatif.model import EdgeKind, Mask, TaskGraph, of_kinds
from pytest_perfdl.whatif.predict import Base
from pytest_perfdl.whatif.transform import Context


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """A graph and its critical path."""

    context: Context
    base: Base
    on_path: I64
    """Nanoseconds of the path in each task."""
    span_ns: int

    @classmethod
    def of(cls, context: Context, base: Base) -> Evidence:
        """Evidence from the critical path of the unchanged graph."""
        path = base.simulation.path
        ran = path.task >= 0
        spent = np.zeros(len(context.graph), dtype=np.int64)
        np.add.at(spent, path.task[ran], (path.end - path.start)[ran])
        return cls(context, base, spent, max(base.simulation.span_ns, 1))

    @property
    def graph(self) -> TaskGraph:
        """The graph."""
        return self.context.graph

    def share(self, tasks: Mask) -> float:
        """Share of the path in some tasks, 0 to 1."""
        return float(self.on_path[tasks].sum() / self.span_ns)

    def waits(self, *kinds: EdgeKind) -> Mask:
        """Tasks for which the path waits along edges of these kinds, whether or not a lag passes."""
        edges, passed = self.graph.edges, self.base.simulation.path.passed
        found = np.zeros(len(self.graph), dtype=bool)
        found[edges.target[passed[of_kinds(edges, *kinds)[passed]]]] = True
        return found

    def lag_share(self, *kinds: EdgeKind) -> float:
        """Share of the path in lags of these kinds, 0 to 1."""
        path, edges = self.base.simulation.path, self.graph.edges
        lags = np.flatnonzero(path.edge >= 0)
        own = lags[of_kinds(edges, *kinds)[path.edge[lags]]]
        return float((path.end - path.start)[own].sum() / self.span_ns)
