"""What transforms ask of a trace: what operators cost, what a range of the host holds, how large gradients are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.analysis.account.parts import PHASES, labels
from pytest_perfdl.analysis.efficiency.costs import OperatorCost, bytes_of_type, modeled_calls
from pytest_perfdl.analysis.events.intervals import Intervals, StepWindow
from pytest_perfdl.analysis.events.launches import call_tree, launching_operator
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import input_rows
from pytest_perfdl.trace.model import I64, Category, Rows, Trace, once
from pytest_perfdl.whatif.machine import operator_key
from pytest_perfdl.whatif.model import Mask, TaskGraph, TrackKind

OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(\w+)\.step$")
"""torch's annotation of one optimizer's update."""

SHORT_TYPES = ("bfloat16", "float16")
"""What autocast computes in."""

_ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """The least that operators with a cost model have to do: see `operator_costs`."""

    call: Rows
    """For each row of the trace the outermost operator with a model around it, or around its launch; -1 for none."""
    number: Rows
    """For each row that is such an operator the index of its cost, -1 for none."""
    costs: tuple[OperatorCost, ...]
    keys: tuple[str, ...]
    """As `operator_key`."""
    largest: tuple[int, ...]
    """Bytes of the largest tensor that it reads, which for elementwise operators is what it writes."""

    def of_tasks(self, graph: TaskGraph) -> Rows:
        """The call of each task, -1 for none."""
        rows = graph.tasks.row
        return np.where(rows >= 0, self.call[rows], -1)

    def of_computing(self, graph: TaskGraph, *, updates: bool = True) -> Rows:
        """The same of tasks whose time is the computing's, with or without those of updates; -1 for others."""
        call = np.where(tasks_of_computing(graph), self.of_tasks(graph), -1)
        if not updates and graph.trace is not None:
            rows = graph.tasks.row
            call[(rows >= 0) & (labels(graph.trace).phase[rows] == PHASES.index("optimizer"))] = -1
        return call

    def name(self, number: int) -> str:
        """Name of the operator that a cost is of."""
        return self.keys[number].partition(" ")[0]


@once
def operator_costs(trace: Trace) -> Costs:
    """Costs by `cost_model`, from the shapes that the trace records; none without `record_shapes=True`."""
    modeled = modeled_calls(trace)
    call_of = call_tree(trace).outermost(modeled.number >= 0)
    operator = launching_operator(trace)
    device = np.flatnonzero(operator >= 0)
    call_of[device] = call_of[operator[device]]
    return Costs(
        call_of,
        modeled.number,
        tuple(call.cost for call in modeled.calls),
        tuple(operator_key(call.name, call.shapes) for call in modeled.calls),
        tuple(max((tensor.bytes for tensor in call.arguments.tensors), default=0) for call in modeled.calls),
    )


@once
def autocast(trace: Trace) -> frozenset[int]:
    """Numbers of the costs of calls that compute in 16 bits inside, whatever type they were given: autocast's."""
    known = operator_costs(trace)
    short = [number for number, cost in enumerate(known.costs) if cost.dtype in SHORT_TYPES]
    inner = np.flatnonzero(np.isin(known.number, short))
    outer = known.number[known.call[inner]]
    return frozenset(outer[(outer >= 0) & ~np.isin(outer, short)].tolist())


def time_of(graph: TaskGraph, tasks: Mask) -> int:
    """Nanoseconds of some tasks together, of all steps."""
    return int(graph.tasks.duration[tasks].sum())


def tasks_of_computing(graph: TaskGraph) -> Mask:
    """Tasks whose time is the computing's: those of streams on a device, else those of host threads."""
    return graph.is_device if graph.on_device else ~graph.is_device


def tasks_inside(graph: TaskGraph, rows: Rows) -> Mask:
    """Tasks that run while host events do, on their threads, and what those launched: gaps between events, too."""
    trace, tasks = graph.trace, graph.tasks
    found = np.zeros(len(graph), dtype=bool)
    if trace is None or not len(rows):
        return found
    for thread, places in by_thread(graph, rows):
        own = rows[places]
        covered = Intervals.union_of(trace.start[own], trace.end[own])
        begins, ends = tasks.start[thread], tasks.end[thread]
        # A gap that begins inside and ends behind is mostly what comes behind.
        found[thread] = covered.contains(begins) & covered.contains(np.maximum(ends - 1, begins))
    launched = tasks.launcher >= 0
    found[launched] |= found[tasks.launcher[launched]]
    return found


def by_thread(graph: TaskGraph, rows: Rows) -> Iterator[tuple[slice, Rows]]:
    """For each host thread that has some of the rows of a trace its tasks, and the places of its rows."""
    if graph.trace is None:
        return
    process, thread = graph.trace.pid[rows], graph.trace.tid[rows]
    for number, track in enumerate(graph.tracks):
        places = np.flatnonzero((process == track.process) & (thread == track.number))
        if track.kind == TrackKind.THREAD and len(places):
            yield graph.tasks.on_track(number), places


def input_tasks(graph: TaskGraph) -> Mask:
    """Tasks of the host while it gets the next batch, what a DataLoader without workers runs included."""
    if graph.trace is None:
        return np.zeros(len(graph), dtype=bool)
    return tasks_inside(graph, input_rows(graph.trace)) & ~graph.is_device


def optimizer_steps(trace: Trace) -> tuple[Rows, str]:
    """Annotations of updates, and the class of the optimizer; empty where there is none, or several of them."""
    rows = trace.matching(OPTIMIZER_STEP.match, trace.rows(Category.USER_ANNOTATION))
    kinds = {match[1] for row in rows.tolist() if (match := OPTIMIZER_STEP.match(trace.name_of(row)))}
    return (rows, kinds.pop()) if len(kinds) == 1 else (rows[:0], "")


def per_step(graph: TaskGraph, tasks: Rows) -> list[Rows]:
    """Tasks by the step that they belong to; those of none are left out."""
    step = graph.tasks.step[tasks]
    return [found for index in range(len(graph.steps)) if len(found := tasks[step == index])]


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """Gradients of parameters in the order in which the backward passes of a trace complete them."""

    row: Rows
    elements: I64
    bytes: I64
    step: Rows
    """Index of the step, -1 for none."""

    @property
    def count(self) -> float:
        """Parameters with a gradient, of a mean step."""
        return self._mean(np.ones_like(self.bytes))

    @property
    def total(self) -> float:
        """Elements of all gradients of a mean step."""
        return self._mean(self.elements)

    @property
    def total_bytes(self) -> float:
        """Bytes of all gradients of a mean step."""
        return self._mean(self.bytes)

    def _mean(self, sizes: I64) -> float:
        own = self.step >= 0
        return float(sizes[own].sum() / max(len(np.unique(self.step[own])), 1))


class InputArgs(msgspec.Struct, gc=False):
    """What a trace records of the inputs of an operator, or of a collective's kernel."""

    dims: Any = msgspec.field(name="Input Dims", default_factory=list)
    types: Any = msgspec.field(name="Input type", default_factory=list)
    strides: Any = msgspec.field(name="Input Strides", default_factory=list)
    texts: Any = msgspec.field(name="Concrete Inputs", default_factory=list)
    elements: int = msgspec.field(name="In msg nelems", default=0)
    dtype: str = msgspec.field(name="dtype", default="")

    @property
    def item_bytes(self) -> int:
        """Bytes of an element of the first input; those of a float where its type is not recorded."""
        return bytes_of_type(str(self.types[0]) if isinstance(self.types, list) and self.types else "")


@once
def gradients(trace: Trace) -> Gradients:
    """From the shapes of what autograd accumulates; empty without a backward pass or recorded shapes."""
    rows = trace.matching(lambda name: name == _ACCUMULATE, trace.rows(Category.CPU_OP))
    args = trace.decode_args(rows, InputArgs)
    elements = np.array([_elements(each.dims) for each in args], dtype=np.int64)
    width = np.array([each.item_bytes for each in args], dtype=np.int64)
    rows, elements, width = rows[elements > 0], elements[elements > 0], width[elements > 0]
    order = np.argsort(trace.start[rows], kind="stable")
    step = step_at(steps_of(trace).windows, trace.start[rows[order]])
    return Gradients(rows[order], elements[order], (elements * width)[order], step)


def step_at(windows: Sequence[StepWindow], time: I64) -> Rows:
    """Index of the step during which the host was at each moment, setup included; -1 for none."""
    if not windows:
        return np.full(len(time), -1, dtype=np.intp)
    starts = np.array([window.host_start for window in windows], dtype=np.int64)
    ends = np.array([window.host_end for window in windows], dtype=np.int64)
    index = np.searchsorted(starts, time, side="right") - 1
    return np.where((index >= 0) & (time < ends[index]), index, -1)


def _elements(dims: Any) -> int:
    first = dims[0] if isinstance(dims, list) and dims else None
    return math.prod(first) if isinstance(first, list) and all(isinstance(size, int) for size in first) else 0
