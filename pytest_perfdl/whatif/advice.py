"""Advice: what wastes time on a trace's critical path, which optimization helps, and its predicted gain.

`advise` asks each `rule` for what wastes time, predicts the optimization that the rule suggests, and keeps those with a
certain gain. `notes` explains waits that no optimization removes. `run.advice` restricts the advice to the causes of a
regression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_perfdl.analysis.waiting.waits import QUEUE
from pytest_perfdl.model.copy_names import is_from_pageable, is_to_host
from pytest_perfdl.model.errors import CycleError
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.trace.model import I64
from pytest_perfdl.whatif.editing.select import Selector, select_tasks, tasks_of_rows
from pytest_perfdl.whatif.facts import SHORT_TYPES, autocast, input_tasks, operator_costs, optimizer_steps, tasks_inside
from pytest_perfdl.whatif.model import EdgeKind, Mask, TaskGraph, TaskKind, TrackKind, are_of_kinds, mask_of
from pytest_perfdl.whatif.predict import Base, Prediction, predict
from pytest_perfdl.whatif.transform import Context
from pytest_perfdl.whatif.transforms.launching import ALLOCATES
from pytest_perfdl.whatif.transforms.operators import LOWER, operator_rows
from pytest_perfdl.whatif.transforms.sizes import TRANSPOSING

EXAMPLES = "examples/strategies"

SAVED_MEMORY = 0.1
"""Share of the peak that advice to save memory has to save."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommendation."""

    finding: str
    """The kind of waste: "input", "optimizer", ..."""
    text: str
    """The finding, one sentence with numbers."""
    transform: str
    how: str
    """What to do, in terms of the PyTorch API."""
    prediction: Prediction
    example: str
    """An example that shows it before and after, as a path in the repository."""


# The input of the rules: how much of the critical path each task takes, and what the path waits for.


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """A graph and its critical path."""

    context: Context
    base: Base
    scope: Mask | None
    """The tasks to which advice is restricted."""
    on_path: I64
    """Nanoseconds of the path in each task."""
    span_ns: int

    @classmethod
    def of(cls, context: Context, base: Base, within: Selector | None) -> Evidence:
        """Evidence from the critical path of the unchanged graph."""
        path = base.simulation.path
        ran = path.task >= 0
        spent = np.zeros(len(context.graph), dtype=np.int64)
        np.add.at(spent, path.task[ran], (path.end - path.start)[ran])
        scope = None if within is None else select_tasks(context.graph, within)
        return cls(context, base, scope, spent, max(base.simulation.span_ns, 1))

    @property
    def graph(self) -> TaskGraph:
        """The graph."""
        return self.context.graph

    def share(self, tasks: Mask) -> float:
        """Share of the path in some tasks, 0 to 1."""
        return float(self.on_path[tasks].sum() / self.span_ns)

    def amount(self, share: float) -> str:
        """A share of the path in words: "12.3% of the critical path (4.1 ms/step)"."""
        each = format_quantity(share * self.span_ns / max(len(self.graph.steps), 1), "ns")
        return f"{format_percent(share, signed=False)} of the critical path ({each}/step)"

    def waits(self, *kinds: EdgeKind) -> Mask:
        """Tasks for which the path waits along edges of these kinds, whether or not a lag passes."""
        edges, passed = self.graph.edges, self.base.simulation.path.passed
        return mask_of(len(self.graph), edges.target[passed[are_of_kinds(edges, *kinds)[passed]]])

    def lag_share(self, *kinds: EdgeKind) -> float:
        """Share of the path in lags of these kinds, 0 to 1."""
        path, edges = self.base.simulation.path, self.graph.edges
        lags = np.flatnonzero(path.edge >= 0)
        own = lags[are_of_kinds(edges, *kinds)[path.edge[lags]]]
        return float((path.end - path.start)[own].sum() / self.span_ns)

    def advice(
        self,
        finding: str,
        text: str,
        tasks: Mask,
        transform: str,
        how: str,
        example: str,
        *,
        saves_memory: bool = False,
        **parameters: Any,
    ) -> Iterator[Advice]:
        """Advice for a waste in some tasks: one piece if its prediction is worthwhile, else none.

        Parameters
        ----------
        finding, text, transform, how
            As in `Advice`.
        tasks
            The tasks that it concerns, of which most of the time must be in scope.
        example
            File in examples/strategies.
        saves_memory
            Whether it is worth its cost in time for the memory that it saves.
        parameters
            Of the transform.
        """
        weight = np.maximum(self.on_path, 1)
        if self.scope is not None and 2 * weight[tasks & self.scope].sum() <= weight[tasks].sum():
            return
        try:
            found = predict(self.context, transform, self.base, **parameters)
        except CycleError:
            return
        worthwhile = found.worthwhile
        if saves_memory:
            before, after = found.peak_bytes, found.predicted_peak_bytes
            worthwhile = before is not None and after is not None and after < (1 - SAVED_MEMORY) * before
        if worthwhile:
            yield Advice(finding, text, transform, how, found, f"{EXAMPLES}/{example}")


# What wastes time or memory, and the transform that each rule suggests.


LEAST_SHARE = 0.01
"""A class of the path below this share cannot gain 2 %."""

LAUNCH_SHARE, OPTIMIZER_SHARE, FULL_MEMORY = 0.1, 0.05, 0.8
"""Least shares for a finding: launching and the update, of the path; peak memory, of the device's memory."""

Rule = Callable[[Evidence], Iterator[Advice]]

RULES: list[Rule] = []
"""All of them, in no particular order."""


def rule(function: Rule) -> Rule:
    """Add a rule."""
    RULES.append(function)
    return function


@rule
def waits_for_input(found: Evidence) -> Iterator[Advice]:
    """Input loading on the critical path: DataLoader workers."""
    tasks = input_tasks(found.graph)
    share = found.share(tasks)
    if share < LEAST_SHARE or found.graph.trace is None:
        return
    text = f"The step waits for input data in {found.amount(share)}."
    spent = found.graph.tasks.duration[tasks].sum()
    rest = max(found.span_ns - float(spent), found.span_ns * 0.05)
    count = max(1, math.ceil(float(spent) / rest))
    how = f"DataLoader(num_workers={count})"
    yield from found.advice("input", text, tasks, "workers", how, "test_async_loading.py", workers=count)


@rule
def copies_pageable_memory(found: Evidence) -> Iterator[Advice]:
    """Copies from pageable memory, and the host waiting for them."""
    graph = found.graph
    copies = graph.named(is_from_pageable) & are_of_kinds(graph.tasks, TaskKind.COPY)
    share = found.share(copies)
    waited = copies[graph.edges.source] & are_of_kinds(graph.edges, EdgeKind.COPY)
    if share >= LEAST_SHARE or waited.any():
        text = f"Batches are copied from pageable host memory in {found.amount(share)}."
        how = "DataLoader(pin_memory=True) and .to(device, non_blocking=True)"
        yield from found.advice("pageable", text, copies, "pin_memory", how, "test_pinned_memory.py", non_blocking=True)


@rule
def synchronizes(found: Evidence) -> Iterator[Advice]:
    """The host waits for the device on the path."""
    graph = found.graph
    edges, to_host = graph.edges, graph.named(is_to_host)
    back = mask_of(len(graph), edges.target[are_of_kinds(edges, EdgeKind.COPY) & to_host[edges.source]])
    tasks = found.waits(EdgeKind.SYNC) | (found.waits(EdgeKind.COPY) & back)
    if tasks.any():
        count = int(np.count_nonzero(tasks))
        names = sorted({graph.name_of(task) for task in np.flatnonzero(tasks).tolist()})
        text = f"The host waits for the device {plural(count, 'time')} on the critical path, in {', '.join(names[:3])}."
        how = "remove .item(), .cpu() and synchronize() from the step; log every n steps"
        yield from found.advice("synchronization", text, tasks, "remove_sync", how, "test_synchronization.py")


@rule
def launches_too_slowly(found: Evidence) -> Iterator[Advice]:
    """The device waits for the host to launch."""
    graph = found.graph
    if not graph.on_device:
        return
    host = are_of_kinds(graph.tasks, TaskKind.OPERATOR, TaskKind.CALL, TaskKind.GAP) & ~input_tasks(graph)
    share = found.share(host) + found.lag_share(EdgeKind.LAUNCH)
    if share >= LAUNCH_SHARE:
        text = f"The device waits for the host to launch kernels in {found.amount(share)}."
        how = 'torch.compile(mode="reduce-overhead") or a CUDA graph, or larger batches'
        yield from found.advice("launches", text, host, "cuda_graph", how, "test_cuda_graph.py")


@rule
def updates_one_by_one(found: Evidence) -> Iterator[Advice]:
    """The update takes long, or consists of many small kernels."""
    graph = found.graph
    if graph.trace is None:
        return
    rows, kind = optimizer_steps(graph.trace)
    tasks = tasks_inside(graph, rows)
    share = found.share(tasks)
    if share >= OPTIMIZER_SHARE:
        text = f"{kind} updates the parameters in {found.amount(share)}."
        for name, how in (("fused_optimizer", f"{kind}(..., fused=True)"), ("foreach", f"{kind}(..., foreach=True)")):
            yield from found.advice("optimizer", text, tasks, name, how, "test_fused_optimizer.py")


@rule
def computes_in_float32(found: Evidence) -> Iterator[Advice]:
    """Matrix products in float32 where 16 bits are faster."""
    graph, machine = found.graph, found.context.known
    if graph.trace is None:
        return
    costs = operator_costs(graph.trace)
    call = costs.of_tasks(graph)
    number = np.where(call >= 0, costs.number[call], -1)
    already = autocast(graph.trace)
    products = [
        index
        for index, cost in enumerate(costs.costs)
        if cost.dtype in ("float32", "tf32")
        and costs.name(index).removeprefix("aten::") in LOWER
        and index not in already
    ]
    tasks = np.isin(number, products)
    share = found.share(tasks)
    types = [name for name in SHORT_TYPES if name in machine.ratios or name in machine.flops_per_s]
    if share >= LEAST_SHARE and types:
        text = f"Matrix products and convolutions compute in float32 in {found.amount(share)}."
        how = f"torch.autocast(..., dtype=torch.{types[0]})"
        yield from found.advice("float32", text, tasks, "amp", how, "test_mixed_precision.py", dtype=types[0])


@rule
def transposes_images(found: Evidence) -> Iterator[Advice]:
    """Kernels that convert the memory format around convolutions, or measured ratios of both formats."""
    graph = found.graph
    tasks = graph.named(TRANSPOSING.search) & graph.is_device
    share = found.share(tasks)
    measured = bool(found.context.known.ratios.get("channels_last"))
    if share >= LEAST_SHARE or measured:
        text = f"Kernels convert the memory format around convolutions in {found.amount(share)}."
        if measured and share < LEAST_SHARE:
            text = "Convolutions run in channels-first memory format."
        how = "model.to(memory_format=torch.channels_last), and the same for the inputs"
        yield from found.advice("layout", text, tasks, "channels_last", how, "test_channels_last.py")


@rule
def allocates_from_the_device(found: Evidence) -> Iterator[Advice]:
    """`cudaMalloc` and `cudaFree` in steps: `empty_cache`, or too little memory for the cache."""
    graph = found.graph
    tasks = graph.named(ALLOCATES.search) & (graph.tasks.step >= 0)
    if tasks.any():
        calls = len(np.unique(graph.tasks.row[tasks]))
        text = f"Steps bypass the caching allocator: {plural(calls, 'call')} of cudaMalloc or cudaFree."
        how = "remove torch.cuda.empty_cache() from the step"
        yield from found.advice("allocator", text, tasks, "empty_cache", how, "test_memory_release.py")


@rule
def replicates(found: Evidence) -> Iterator[Advice]:
    """DataParallel scatters, replicates and gathers."""
    graph = found.graph
    if graph.trace is None:
        return
    moving = np.any([operator_rows(graph.trace, name) for name in ("Scatter", "Broadcast", "Gather")], axis=0)
    tasks = tasks_of_rows(graph, moving)
    devices = len({track.process for track in graph.tracks if track.kind == TrackKind.STREAM})
    if tasks.any() and devices > 1:
        text = f"DataParallel scatters, replicates and gathers in {found.amount(found.share(tasks))}."
        how = "DistributedDataParallel, one process per device"
        yield from found.advice(
            "replicas", text, tasks, "replace_data_parallel", how, "test_data_parallel.py", ranks=devices
        )


@rule
def communicates_openly(found: Evidence) -> Iterator[Advice]:
    """Collectives on the path."""
    tasks = are_of_kinds(found.graph.tasks, TaskKind.COMMUNICATION)
    share = found.share(tasks)
    if share >= LEAST_SHARE:
        text = f"Collectives do not overlap with compute in {found.amount(share)}."
        how = "smaller buckets, overlap with the backward pass, or a stream of higher priority"
        yield from found.advice("communication", text, tasks, "hide_communication", how, "test_data_parallel.py")


@rule
def folds_no_batch_norm(found: Evidence) -> Iterator[Advice]:
    """Batch norms at inference."""
    if found.graph.trace is None:
        return
    tasks = tasks_of_rows(found.graph, operator_rows(found.graph.trace, "aten::batch_norm"))
    share = found.share(tasks)
    if share >= LEAST_SHARE:
        text = f"Batch norms run at inference in {found.amount(share)}."
        how = "fold them into the convolutions: torch.nn.utils.fuse_conv_bn_eval, or torch.compile with freezing"
        yield from found.advice("batch norm", text, tasks, "fold_batch_norm", how, "test_batch_norm.py")


@rule
def fills_the_memory(found: Evidence) -> Iterator[Advice]:
    """Peak memory close to the capacity of the device."""
    memory, limit = found.context.memory, found.context.known.memory_bytes
    if memory is None or not limit or memory.peak_bytes < FULL_MEMORY * limit:
        return
    peak, whole = format_quantity(memory.peak_bytes, "B"), format_quantity(limit, "B")
    text = f"Peak memory is {peak} of {whole}."
    every = np.ones(len(found.graph), dtype=bool)
    how = "torch.utils.checkpoint.checkpoint around each layer (slower, less memory)"
    yield from found.advice("memory", text, every, "checkpointing", how, "test_checkpointing.py", saves_memory=True)
    how = "layers on two devices (slower, less memory)"
    yield from found.advice(
        "memory", text, every, "model_parallel", how, "test_model_parallel.py", devices=2, saves_memory=True
    )


# The advice that is worth most, and how to interpret what no advice is about.


NOTED_SHARE = 0.02
"""Share of the span from which a kind of wait is explained."""


@dataclass(frozen=True, slots=True)
class Note:
    """How to interpret a wait."""

    kind: str
    text: str
    share: float
    """Share of the span, 0 to 1."""


def advise(context: Context, base: Base | None = None, within: Selector | None = None) -> tuple[Advice, ...]:
    """Optimizations that would make the step faster, largest predicted gain first; empty if there are none.

    Each finding is predicted with its transform. It is reported if the predicted gain exceeds both 2 % and half the
    width of its range. Advice that trades time for memory is reported if memory is nearly full and the peak falls by 10
    %. If several transforms fit a finding, the best is reported. There is no advice from a graph with confidence
    "refuse", nor for a transform that lacks a constant or whose edits lead to a cycle.

    Parameters
    ----------
    context
        The graph, and the constants of the machine.
    base
        `Base.of(context.graph)`, if it is known already.
    within
        Tasks to which the advice is restricted, such as those of a module that caused a regression. A finding is kept
        if more than half of its time on the critical path is in these tasks.
    """
    base = base or Base.of(context.graph)
    if base.quality.trust == "refuse":
        return ()
    evidence = Evidence.of(context, base, within)
    best: dict[str, Advice] = {}
    for advice in (each for rule in RULES for each in rule(evidence)):
        known = best.get(advice.finding)
        if known is None or (advice.prediction.gain or 0) > (known.prediction.gain or 0):
            best[advice.finding] = advice
    return tuple(sorted(best.values(), key=lambda each: -(each.prediction.gain or 0)))


def notes(context: Context, base: Base | None = None) -> tuple[Note, ...]:
    """Waits that are easily misinterpreted, largest share of the span first."""
    base = base or Base.of(context.graph)
    simulation, tasks, edges = base.simulation, context.graph.tasks, context.graph.edges
    decided = simulation.binding
    waiting = np.flatnonzero(decided >= 0)
    waiting = waiting[(waiting > 0) & (tasks.track[waiting] == tasks.track[waiting - 1])]
    waited = simulation.start[waiting] - simulation.end[waiting - 1]
    kinds = edges.kind[decided[waiting]]
    found = []
    for kind, text in _READ_AS.items():
        share = float(np.maximum(waited[kinds == kind], 0).sum() / max(simulation.span_ns, 1))
        if share >= NOTED_SHARE:
            told = f"{text} ({format_percent(share, signed=False)} of the span)"
            found.append(Note(kind.name.lower().replace("_", " "), told, share))
    return tuple(sorted(found, key=lambda note: -note.share))


_READ_AS = {
    EdgeKind.QUEUE: f"the host waits for room in the launch queue ({QUEUE} launches): the host is ahead of the device, "
    "so faster launches gain nothing",
    EdgeKind.SPIN: "the host polls for the end of a kernel: the time of polling belongs to the kernel",
    EdgeKind.CONTENTION: (
        "kernels start late because a kernel of another stream occupies the SMs: partition the SMs, or run the "
        "kernels one after the other"
    ),
}
"""How to interpret waits of a kind."""
