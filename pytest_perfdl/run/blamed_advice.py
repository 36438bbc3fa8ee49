"""Selects the tasks that belong to the causes of a slower step: advice is limited to these."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence

import numpy as np

from pytest_perfdl.diff.account import PYTHON
from pytest_perfdl.model.step_part import ANY
from pytest_perfdl.results.verdict import Cause
from pytest_perfdl.trace.model import Category, Trace
from pytest_perfdl.whatif.editing.select import Select
from pytest_perfdl.whatif.facts import input_tasks, inside
from pytest_perfdl.whatif.model import Mask, TaskGraph, TaskKind, of_kinds

MOST = 20
"""Causes that are looked for: each one takes a millisecond or so, and what matters comes first."""

LEAST = 0.1
"""Share of the largest cause from which another counts: what is a tenth of that is not what made the step slower."""

_INPUT = "input"
_IDLE: dict[str, tuple[TaskKind, ...]] = {
    "communication": (TaskKind.COMMUNICATION,),
    "launch latency": (TaskKind.CALL,),
    "synchronization": (TaskKind.WAIT, TaskKind.RETURN),
    "operator overhead": (TaskKind.OPERATOR, TaskKind.CALL),
    PYTHON: (TaskKind.GAP,),
    "device wait": (),
    "unattributed": (),
}
"""What happens on the host, or between ranks, during each class of idle time (`device_accounts`, `host_accounts`)."""


def blamed(causes: Sequence[Cause]) -> Callable[[TaskGraph], Mask]:
    """A selector of what causes of a change cost more of, for the graph of a trace of the new side.

    An operator stands for what runs inside it and what it launches, in the cause's module if the trace knows it; idle
    time for what the host does meanwhile; Python's for the gaps between operators, or for all that runs in the
    annotation that it is named after. What got faster, or is gone, stands for nothing, nor what is small beside the
    largest cause (`LEAST`) and recurs no more often than before.

    Parameters
    ----------
    causes
        Of one call, the largest first: `Judgement.blame`. No more than `MOST` are looked for.
    """
    least = max(LEAST * max((cause.delta_ns for cause in causes), default=0), 1)
    more = [cause for cause in causes if cause.delta_ns >= least or (cause.kind != "idle" and _recurs(cause))][:MOST]

    def selected(graph: TaskGraph) -> Mask:
        found = np.zeros(len(graph), dtype=bool)
        if graph.trace is not None:
            for cause in more:
                found |= _idle(graph, graph.trace, cause) if cause.kind == "idle" else _named(graph, graph.trace, cause)
        return found

    return selected


def _recurs(cause: Cause) -> bool:
    return cause.new_count > cause.base_count


def _named(graph: TaskGraph, trace: Trace, cause: Cause) -> Mask:
    members = {*cause.members} or {cause.name}
    names = [index for index, name in enumerate(trace.names) if name in members]
    if cause.kind == "kernel":
        found = graph.is_device & np.isin(graph.tasks.name, names)
    else:
        found = np.zeros(len(graph), dtype=bool)
        for index in names:
            found |= Select(operator=glob.escape(trace.names[index]))(graph)
    layer = ANY.join(map(glob.escape, cause.module.split(ANY)))
    if layer and (narrow := found & Select(layer=layer)(graph)).any():
        return narrow
    return found


def _idle(graph: TaskGraph, trace: Trace, cause: Cause) -> Mask:
    if cause.name == _INPUT:
        return input_tasks(graph)
    if cause.name in _IDLE:
        return of_kinds(graph.tasks, *_IDLE[cause.name])
    annotations = trace.matching(lambda name: name == cause.name, trace.rows(Category.USER_ANNOTATION))
    # What is neither a class nor an annotation is a function of Python's, which a trace without frames does not show.
    return inside(graph, annotations) if len(annotations) else of_kinds(graph.tasks, *_IDLE[PYTHON])
