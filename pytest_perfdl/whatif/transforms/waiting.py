"""Unnecessary waits of the host: synchronizations, pageable copies, the device's allocator."""

from __future__ import annotations

import re

import numpy as np

from pytest_perfdl.model.errors import MissingMachineConstant, NotApplicable
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.model import EdgeKind, Mask, TaskGraph, TaskKind, of_kinds
from pytest_perfdl.whatif.transform import Change, Context, transform

PAGEABLE = re.compile(r"(HtoD|HostToDevice|H2D).*Pageable|Pageable.*-> *Device", re.IGNORECASE)
TO_HOST = re.compile(r"DtoH|DeviceToHost|D2H|Device -> (Host|Pageable|Pinned)", re.IGNORECASE)
TO_DEVICE = re.compile(r"HtoD|HostToDevice|H2D|(Host|Pageable|Pinned) -> Device", re.IGNORECASE)
ALLOCATES = re.compile(r"(cuda|hip)(Malloc|Free)$")
"""Calls that bypass the caching allocator. `Free` waits for the device."""


def named(graph: TaskGraph, pattern: re.Pattern[str]) -> Mask:
    """Tasks whose name matches a pattern."""
    names = np.array([bool(pattern.search(name)) for name in graph.names], dtype=bool)
    found: Mask = names[graph.tasks.name]
    return found


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
    targets = np.zeros(len(graph), dtype=bool)
    back = named(graph, TO_HOST)
    waits = of_kinds(edges, EdgeKind.SYNC) | (of_kinds(edges, EdgeKind.COPY) & back[edges.source])
    targets[edges.target[waits]] = True
    if name:
        targets &= named(graph, re.compile(re.escape(name)))
    if not targets.any():
        raise NotApplicable("the host does not wait for a synchronization" + (f" in {name}" if name else ""))
    plan = Plan().drop_edges(EdgeKind.SYNC, targets).drop_edges(EdgeKind.COPY, targets)
    return Change(plan)


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
    pageable = named(graph, PAGEABLE) & of_kinds(graph.tasks, TaskKind.COPY)
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
        notes = (
            (
                "the prediction does not make copies faster, because the bandwidth of pinned or pageable memory is "
                "unknown"
            ),
        )
    if non_blocking:
        targets = np.zeros(len(graph), dtype=bool)
        edges = graph.edges
        blocking = of_kinds(edges, EdgeKind.COPY, EdgeKind.SYNC) & pageable[edges.source]
        targets[edges.target[blocking]] = True
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
    calls = named(graph, ALLOCATES) & (graph.tasks.step >= 0) & (graph.tasks.row >= 0)
    if not calls.any():
        raise NotApplicable("no step calls cudaMalloc or cudaFree")
    return Change(Plan().remove(calls))
