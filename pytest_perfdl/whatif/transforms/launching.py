"""Less work and waiting of the host: launches, synchronizations, loading of batches."""

from __future__ import annotations

import re

import numpy as np

from pytest_perfdl.model.copy_names import is_from_pageable, is_to_host
from pytest_perfdl.model.errors import MissingConstant, MissingMachineConstant, NotApplicable
from pytest_perfdl.trace.model import I64
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.facts import input_tasks, per_step
from pytest_perfdl.whatif.model import EdgeKind, Mask, TaskGraph, TaskKind, are_of_kinds, mask_of
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.transform import Change, Context, transform
from pytest_perfdl.whatif.transforms.operators import fused_durations

# Less launch overhead on the host: CUDA graphs, and compilation.


GRAPH_LAUNCH_NS = 10_000
"""Host time of one `cudaGraphLaunch` (5 to 15 us for some hundred kernels)."""


@transform("cuda_graph")
def cuda_graph(context: Context) -> Change:
    """Capture each step as a CUDA graph, with one launch per step and the same kernels.

    On each thread, one launch of 10 us replaces the host's time between the first and the last launch of a step. The
    range of the prediction covers launches of 5 to 30 us. Python code before and after the launches, input loading and
    blocking waits stay the same. Kernels keep their durations and the gaps between them.

    The simulation assumes that CUDA can capture the step. A capture needs static shapes and no synchronization within
    the step. If the step synchronizes, confidence is low.

    Raises
    ------
    NotApplicable
        If nothing is launched, or the step already launches graphs.
    """
    graph = context.graph
    captured, syncs = _captured_tasks(graph)
    plans = [Plan().timed(_launch_once(graph, captured, ns)) for ns in (GRAPH_LAUNCH_NS, 5_000, 30_000)]
    note = f"{syncs} synchronizing calls per step must be removed first: a CUDA graph cannot wait for the host"
    return Change.of(plans, trust="low" if syncs else "ok", notes=(note,) if syncs else ())


@transform("compile")
def compile_step(context: Context, cudagraphs: bool = True) -> Change:
    """Use `torch.compile`, which fuses chains of elementwise operators (see `fusion`) and launches a CUDA graph.

    With `cudagraphs=False` (mode "default"), generated code on the host still launches each remaining kernel. The
    host's time between the first and the last launch then shrinks in proportion to the number of kernels.

    A step does not include compile time. The confidence is low, because a trace does not show what the compiler will
    fuse.
    """
    graph = context.graph
    duration, gone = fused_durations(context, epilogues=False)
    if not graph.on_device:
        notes = ("the fusion choices of the compiler are unknown",)
        return Change(Plan().timed(duration), slow=Plan(), trust="low", notes=notes)
    captured, _ = _captured_tasks(graph)
    if cudagraphs:
        host = _launch_once(graph, captured, GRAPH_LAUNCH_NS)
    else:
        left = 1 - float(gone.sum()) / max(int(graph.is_device.sum()), 1)
        host = np.where(captured, graph.scaled(left), graph.tasks.duration)
    plan = Plan().timed(np.where(graph.is_device, duration, host)).remove(gone, launches=False)
    notes = ("the prediction assumes which operators the compiler fuses",)
    return Change(plan, slow=Plan().timed(host), trust="low", notes=notes)


def _captured_tasks(graph: TaskGraph) -> tuple[Mask, int]:
    """Host tasks between the first and the last launch of each step on each thread, and synchronizations per step."""
    tasks = graph.tasks
    launching = np.unique(tasks.launcher[tasks.launcher >= 0])
    if not len(launching):
        raise NotApplicable("the host launches no work on a device")
    if any("GraphLaunch" in graph.name_of(task) for task in launching.tolist()):
        raise NotApplicable("the step already launches CUDA graphs")
    found = np.zeros(len(graph), dtype=bool)
    for thread in np.unique(tasks.track[launching]).tolist():
        for own in per_step(graph, launching[tasks.track[launching] == thread]):
            found[own[0] : own[-1] + 1] = True
    synced = np.unique(graph.edges.target[are_of_kinds(graph.edges, EdgeKind.SYNC, EdgeKind.COPY)])
    count = int(np.count_nonzero(found[synced]))
    found &= are_of_kinds(tasks, TaskKind.OPERATOR, TaskKind.CALL, TaskKind.GAP) & ~input_tasks(graph)
    return found, -(-count // max(len(graph.steps), 1))


def _launch_once(graph: TaskGraph, captured: Mask, launch_ns: int) -> I64:
    duration: I64 = np.where(captured, 0, graph.tasks.duration)
    own = np.flatnonzero(captured & (graph.tasks.track == graph.owner))
    own = own if len(own) else np.flatnonzero(captured)
    for tasks in per_step(graph, own):
        duration[tasks[0]] = launch_ns
    return duration


# Unnecessary waits of the host: synchronizations, pageable copies, the device's allocator.


ALLOCATES = re.compile(r"(cuda|hip)(Malloc|Free)$")
"""Calls that bypass the caching allocator. `Free` waits for the device."""


@transform("remove_sync")
def remove_sync(context: Context, name: str = "") -> Change:
    """Remove synchronization from the step, such as `.item()`, `.cpu()` or `torch.cuda.synchronize()`.

    The host continues instead of waiting for the device. Synchronizing calls, and calls that copy to the host, no
    longer depend on the device (edges "GPU to CPU" in Daydream). With `name`, the simulation changes only calls whose
    name contains `name`. The copies themselves stay the same.

    The simulation assumes that the value that the host waited for does not change what the host launches. A step still
    ends when the device has completed the step.

    Raises
    ------
    NotApplicable
        If the host waits for nothing.
    """
    graph = context.graph
    edges = graph.edges
    back = graph.named(is_to_host)
    waits = are_of_kinds(edges, EdgeKind.SYNC) | (are_of_kinds(edges, EdgeKind.COPY) & back[edges.source])
    targets = mask_of(len(graph), edges.target[waits]) & graph.named(lambda each: name in each)
    if not targets.any():
        raise NotApplicable("the host does not wait for a synchronization" + (f" in {name}" if name else ""))
    return Change(Plan().drop_edges(EdgeKind.SYNC, targets).drop_edges(EdgeKind.COPY, targets))


@transform("pin_memory")
def pin_memory(context: Context, non_blocking: bool = False) -> Change:
    """Copy batches from pinned memory, and with `non_blocking` do not wait for the copy.

    Copies from pageable memory to the device take `t' = t * B(pageable) / B(pinned)`. The bandwidths B of both kinds of
    copies come from the trace or from `--machine`. A trace without pinned copies does not contain B(pinned).

    Pinned memory alone removes no wait, because without `non_blocking=True` the host still waits for the copy (Copy.cu
    in PyTorch). With `non_blocking`, the simulation removes these waits. Pinning adds no time to the step, because the
    DataLoader pins memory in a separate thread.

    Raises
    ------
    MissingMachineConstant, NotApplicable
        If the bandwidth of pinned memory is not known; if no pageable memory is copied to the device.
    """
    graph, machine = context.graph, context.known
    pageable = graph.named(is_from_pageable) & are_of_kinds(graph.tasks, TaskKind.COPY)
    if not pageable.any():
        raise NotApplicable("no pageable memory is copied to the device")
    plan, notes = Plan(), tuple[str, ...]()
    if machine.pinned_bytes_per_s and machine.pageable_bytes_per_s:
        plan = plan.scale(pageable, min(machine.pageable_bytes_per_s / machine.pinned_bytes_per_s, 1.0))
    elif not non_blocking:
        missing = "pageable" if machine.pinned_bytes_per_s else "pinned"
        what = f"the bandwidth of {missing} memory is not in the trace"
        raise MissingMachineConstant(what, name=f"{missing}_bytes_per_s")
    else:
        why = "the bandwidth of pinned or pageable memory is unknown"
        notes = (f"the prediction does not make copies faster, because {why}",)
    if non_blocking:
        edges = graph.edges
        targets = edges.target[are_of_kinds(edges, EdgeKind.COPY, EdgeKind.SYNC) & pageable[edges.source]]
        plan = plan.drop_edges(EdgeKind.COPY, targets).drop_edges(EdgeKind.SYNC, targets)
    return Change(plan, notes=notes)


@transform("empty_cache")
def empty_cache(context: Context) -> Change:
    """Remove `torch.cuda.empty_cache()` from the step.

    The simulation removes calls of cudaMalloc and cudaFree (hipMalloc, hipFree) with their waits, because cudaFree
    waits for the whole device.

    Reserved memory may become larger, because the caching allocator keeps freed memory. The peak of allocated memory
    stays the same.

    Raises
    ------
    NotApplicable
        If no step allocates past the caching allocator.
    """
    graph = context.graph
    calls = graph.named(ALLOCATES.search) & (graph.tasks.step >= 0) & (graph.tasks.row >= 0)
    if not calls.any():
        raise NotApplicable("no step calls cudaMalloc or cudaFree")
    return Change(Plan().remove(calls))


# Load batches while the step computes.


HAND_OVER_NS = (50_000, 0, 300_000)
"""Host time to receive a batch from a worker's queue, if it was not measured: likely, least, most."""

UNKNOWN_CONTENTION = (1.0, 1.0, 1.5)
"""How much longer step and workers take when they share the CPU, if it was not measured: likely, least, most."""

_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter")


@transform("workers")
def workers(context: Context, workers: int, now: int = -1) -> Change:
    """Use `DataLoader(num_workers=...)`, whose worker processes prepare the batches.

    With workers, the step time is `period = max(C, L / min(workers, cores - 1))`, plus the time to receive a batch from
    a worker:

    - C is the simulated step time without input loading.
    - L is the time to prepare a batch. If the trace has no workers, L is the host's time in the DataLoader. If the step
      in the trace waits for `now` workers, L is `now` times the step time.
    - Receiving a batch takes `hand_over_ns`, by default 50 us. The range of the prediction covers 0 to 300 us for
      receiving a batch.

    If the step computes on the CPU, the step shares the CPU with the workers, and both take `contention` times as long.
    If `contention` is unknown, the factor is 1, the range of the prediction covers factors of 1 to 1.5, and the
    confidence is low. A step that computes on a device is not slowed down.

    The simulation assumes that a worker needs as long for a batch as the main process. The constants `hand_over_ns`,
    `contention` and `cores` come from the machine. If `cores` is unknown, the simulation assumes as many free cores as
    workers.

    Raises
    ------
    MissingConstant, NotApplicable
        If there are workers already and `now` does not say how many; if the step waits for no input.
    """
    if workers < 1:
        raise ValueError(f"workers:workers={workers}: expected at least 1")
    graph = context.graph
    tasks = input_tasks(graph)
    spent = graph.tasks.duration[tasks].sum() / max(len(graph.steps), 1)
    period = float(_mean(simulate(graph).steps_ns))
    if not spent or not period:
        raise NotApplicable("the step spends no time in a DataLoader")
    idle = Plan().scale(tasks, 0.0).apply(graph)
    computing = float(_mean(simulate(idle).steps_ns))
    load = float(spent)
    if any(_WORKERS.search(name) for name in context.trace.names):
        if now < 1:
            raise MissingConstant(
                "the DataLoader has workers, but the trace does not contain the number of workers: set now=..."
            )
        if spent < 0.02 * period:
            raise NotApplicable("the step hardly waits for the workers of the DataLoader")
        load = now * period
    cores, known = context.known.cores, context.known.contention
    busy = min(workers, max(cores - 1, 1)) if cores else workers
    taking = context.known.hand_over_ns
    shared = (1.0,) * 3 if graph.on_device else (known,) * 3 if known else UNKNOWN_CONTENTION
    plans = [
        Plan().scale(~tasks, slower).scale(tasks, (max(load * slower / busy - computing * slower, 0.0) + ns) / spent)
        for slower, ns in zip(shared, HAND_OVER_NS if taking is None else (taking,) * 3, strict=True)
    ]
    notes: tuple[str, ...] = () if cores else ("the prediction assumes as many free cores as workers",)
    if shared is UNKNOWN_CONTENTION:
        unknown = "the effect of workers on a step that computes on the CPU is unknown"
        notes += (f"{unknown}: run `perfdl constants` to measure it",)
    return Change.of(plans, trust="low" if shared is UNKNOWN_CONTENTION else "ok", notes=notes)


@transform("prefetch")
def prefetch(context: Context) -> Change:
    """Use one DataLoader worker, which prepares the next batch while the step computes.

    `prefetch` is the same as `workers` with `workers=1`.

    Raises
    ------
    NotApplicable
        If workers do so already, or the step waits for no input.
    """
    if any(_WORKERS.search(name) for name in context.trace.names):
        raise NotApplicable(
            "the DataLoader already has workers: use workers:workers=...,now=... to predict more workers"
        )
    return workers(context, 1)


def _mean(steps: I64) -> float:
    return float(steps.mean()) if len(steps) else 0.0
