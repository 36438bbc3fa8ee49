"""Findings on a critical path, and the transform that each finding suggests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.whatif.advice.evidence import Evidence
from pytest_perfdl.whatif.editing.select import of_rows
from pytest_perfdl.whatif.facts import SHORT_TYPES, autocast, input_tasks, inside, operator_costs, optimizer_steps
from pytest_perfdl.whatif.model import EdgeKind, Mask, TaskKind, TrackKind, of_kinds
from pytest_perfdl.whatif.transforms.layout import TRANSPOSING
from pytest_perfdl.whatif.transforms.operators import operator_rows
from pytest_perfdl.whatif.transforms.precision import LOWER
from pytest_perfdl.whatif.transforms.waiting import ALLOCATES, PAGEABLE, TO_HOST, named

LEAST_SHARE = 0.01
"""A class of the path below this share cannot gain 2 %."""

LAUNCH_SHARE, OPTIMIZER_SHARE, FULL_MEMORY = 0.1, 0.05, 0.8
"""Least shares for a finding: launching and the update, of the path; peak memory, of the device's memory."""


@dataclass(frozen=True, slots=True, eq=False)
class AdviceFinding:
    """A waste of time or memory, and what to do about it."""

    kind: str
    text: str
    """One sentence with numbers."""
    tasks: Mask
    """The tasks that it concerns."""
    transform: str
    how: str
    """What to do, in terms of the PyTorch API."""
    example: str
    """File in examples/strategies."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    saves_memory: bool = False
    """Whether it is worth its cost in time for the memory that it saves."""


Rule = Callable[[Evidence], Iterator[AdviceFinding]]

RULES: list[Rule] = []
"""All of them, in no particular order."""


def rule(function: Rule) -> Rule:
    """Add a rule."""
    RULES.append(function)
    return function


def amount(found: Evidence, share: float) -> str:
    """A share of the path in words: "12.3% of the critical path (4.1 ms/step)"."""
    steps = max(len(found.graph.steps), 1)
    each = format_quantity(share * found.span_ns / steps, "ns")
    return f"{format_percent(share, signed=False)} of the critical path ({each}/step)"


@rule
def waits_for_input(found: Evidence) -> Iterator[AdviceFinding]:
    """Input loading on the critical path: DataLoader workers."""
    tasks = input_tasks(found.graph)
    share = found.share(tasks)
    if share < LEAST_SHARE or found.graph.trace is None:
        return
    text = f"The step waits for input data in {amount(found, share)}."
    spent = found.graph.tasks.duration[tasks].sum()
    rest = max(found.span_ns - float(spent), found.span_ns * 0.05)
    count = max(1, math.ceil(float(spent) / rest))
    how = f"DataLoader(num_workers={count})"
    yield AdviceFinding("input", text, tasks, "workers", how, "test_async_loading.py", {"workers": count})


@rule
def copies_pageable_memory(found: Evidence) -> Iterator[AdviceFinding]:
    """Copies from pageable memory, and the host waiting for them."""
    graph = found.graph
    copies = named(graph, PAGEABLE) & of_kinds(graph.tasks, TaskKind.COPY)
    share = found.share(copies)
    waited = copies[graph.edges.source] & of_kinds(graph.edges, EdgeKind.COPY)
    if share >= LEAST_SHARE or waited.any():
        text = f"Batches are copied from pageable host memory in {amount(found, share)}."
        how = "DataLoader(pin_memory=True) and .to(device, non_blocking=True)"
        yield AdviceFinding(
            "pageable", text, copies, "pin_memory", how, "test_pinned_memory.py", {"non_blocking": True}
        )


@rule
def synchronizes(found: Evidence) -> Iterator[AdviceFinding]:
    """The host waits for the device on the path."""
    graph = found.graph
    waits = found.waits(EdgeKind.SYNC)
    copies = found.waits(EdgeKind.COPY)
    edges = graph.edges
    back = np.zeros(len(graph), dtype=bool)
    to_host = named(graph, TO_HOST)
    back[edges.target[of_kinds(edges, EdgeKind.COPY) & to_host[edges.source]]] = True
    tasks = waits | (copies & back)
    if tasks.any():
        count = int(np.count_nonzero(tasks))
        names = sorted({graph.name_of(task) for task in np.flatnonzero(tasks).tolist()})
        text = f"The host waits for the device {plural(count, 'time')} on the critical path, in {', '.join(names[:3])}."
        how = "remove .item(), .cpu() and synchronize() from the step; log every n steps"
        yield AdviceFinding("synchronization", text, tasks, "remove_sync", how, "test_synchronization.py")


@rule
def launches_too_slowly(found: Evidence) -> Iterator[AdviceFinding]:
    """The device waits for the host to launch."""
    graph = found.graph
    if not graph.on_device:
        return
    host = of_kinds(graph.tasks, TaskKind.OPERATOR, TaskKind.CALL, TaskKind.GAP) & ~input_tasks(graph)
    share = found.share(host) + found.lag_share(EdgeKind.LAUNCH)
    if share >= LAUNCH_SHARE:
        text = f"The device waits for the host to launch kernels in {amount(found, share)}."
        how = 'torch.compile(mode="reduce-overhead") or a CUDA graph, or larger batches'
        yield AdviceFinding("launches", text, host, "cuda_graph", how, "test_cuda_graph.py")


@rule
def updates_one_by_one(found: Evidence) -> Iterator[AdviceFinding]:
    """The update takes long, or consists of many small kernels."""
    graph = found.graph
    if graph.trace is None:
        return
    rows, kind = optimizer_steps(graph.trace)
    tasks = inside(graph, rows)
    share = found.share(tasks)
    if share >= OPTIMIZER_SHARE:
        text = f"{kind} updates the parameters in {amount(found, share)}."
        for name, how in (("fused_optimizer", f"{kind}(..., fused=True)"), ("foreach", f"{kind}(..., foreach=True)")):
            yield AdviceFinding("optimizer", text, tasks, name, how, "test_fused_optimizer.py")


@rule
def computes_in_float32(found: Evidence) -> Iterator[AdviceFinding]:
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
        text = f"Matrix products and convolutions compute in float32 in {amount(found, share)}."
        how = f"torch.autocast(..., dtype=torch.{types[0]})"
        yield AdviceFinding("float32", text, tasks, "amp", how, "test_mixed_precision.py", {"dtype": types[0]})


@rule
def transposes_images(found: Evidence) -> Iterator[AdviceFinding]:
    """Kernels that convert the memory format around convolutions, or measured ratios of both formats."""
    graph = found.graph
    tasks = named(graph, TRANSPOSING) & graph.is_device
    share = found.share(tasks)
    measured = bool(found.context.known.ratios.get("channels_last"))
    if share >= LEAST_SHARE or measured:
        text = f"Kernels convert the memory format around convolutions in {amount(found, share)}."
        if measured and share < LEAST_SHARE:
            text = "Convolutions run in channels-first memory format."
        how = "model.to(memory_format=torch.channels_last), and the same for the inputs"
        yield AdviceFinding("layout", text, tasks, "channels_last", how, "test_channels_last.py")


@rule
def allocates_from_the_device(found: Evidence) -> Iterator[AdviceFinding]:
    """`cudaMalloc` and `cudaFree` in steps: `empty_cache`, or too little memory for the cache."""
    graph = found.graph
    tasks = named(graph, ALLOCATES) & (graph.tasks.step >= 0)
    if tasks.any():
        calls = len(np.unique(graph.tasks.row[tasks]))
        text = f"Steps bypass the caching allocator: {plural(calls, 'call')} of cudaMalloc or cudaFree."
        how = "remove torch.cuda.empty_cache() from the step"
        yield AdviceFinding("allocator", text, tasks, "empty_cache", how, "test_memory_release.py")


@rule
def replicates(found: Evidence) -> Iterator[AdviceFinding]:
    """DataParallel scatters, replicates and gathers."""
    graph = found.graph
    if graph.trace is None:
        return
    moving = np.any([operator_rows(graph.trace, name) for name in ("Scatter", "Broadcast", "Gather")], axis=0)
    tasks = of_rows(graph, moving)
    devices = len({track.process for track in graph.tracks if track.kind == TrackKind.STREAM})
    if tasks.any() and devices > 1:
        text = f"DataParallel scatters, replicates and gathers in {amount(found, found.share(tasks))}."
        how = "DistributedDataParallel, one process per device"
        yield AdviceFinding(
            "replicas", text, tasks, "replace_data_parallel", how, "test_data_parallel.py", {"ranks": devices}
        )


@rule
def communicates_openly(found: Evidence) -> Iterator[AdviceFinding]:
    """Collectives on the path."""
    tasks = of_kinds(found.graph.tasks, TaskKind.COMMUNICATION)
    share = found.share(tasks)
    if share >= LEAST_SHARE:
        text = f"Collectives do not overlap with compute in {amount(found, share)}."
        how = "smaller buckets, overlap with the backward pass, or a stream of higher priority"
        yield AdviceFinding("communication", text, tasks, "hide_communication", how, "test_data_parallel.py")


@rule
def folds_no_batch_norm(found: Evidence) -> Iterator[AdviceFinding]:
    """Batch norms at inference."""
    if found.graph.trace is None:
        return
    tasks = of_rows(found.graph, operator_rows(found.graph.trace, "aten::batch_norm"))
    share = found.share(tasks)
    if share >= LEAST_SHARE:
        text = f"Batch norms run at inference in {amount(found, share)}."
        how = "fold them into the convolutions: torch.nn.utils.fuse_conv_bn_eval, or torch.compile with freezing"
        yield AdviceFinding("batch norm", text, tasks, "fold_batch_norm", how, "test_batch_norm.py")


@rule
def fills_the_memory(found: Evidence) -> Iterator[AdviceFinding]:
    """Peak memory close to the capacity of the device."""
    memory, limit = found.context.memory, found.context.known.memory_bytes
    if memory is None or not limit or memory.peak_bytes < FULL_MEMORY * limit:
        return
    peak, whole = format_quantity(memory.peak_bytes, "B"), format_quantity(limit, "B")
    text = f"Peak memory is {peak} of {whole}."
    every = np.ones(len(found.graph), dtype=bool)
    how = "torch.utils.checkpoint.checkpoint around each layer (slower, less memory)"
    yield AdviceFinding("memory", text, every, "checkpointing", how, "test_checkpointing.py", saves_memory=True)
    how = "layers on two devices (slower, less memory)"
    yield AdviceFinding(
        "memory", text, every, "model_parallel", how, "test_model_parallel.py", {"devices": 2}, saves_memory=True
    )
