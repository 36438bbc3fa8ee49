"""Less launch overhead on the host: CUDA graphs, and compilation."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.trace.model import I64
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.facts import input_tasks
from pytest_perfdl.whatif.model import EdgeKind, Mask, TaskGraph, TaskKind, TrackKind, of_kinds
from pytest_perfdl.whatif.transform import Change, Context, transform
from pytest_perfdl.whatif.transforms.operators import fused_durations

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
    captured, syncs = _captured(graph)
    notes = (
        (f"{syncs} synchronizing calls per step must be removed first: a CUDA graph cannot wait for the host",)
        if syncs
        else ()
    )
    plans = [Plan().timed(_launched_once(graph, captured, ns)) for ns in (GRAPH_LAUNCH_NS, 5_000, 30_000)]
    return Change.of(plans, trust="low" if syncs else "ok", notes=notes)


@transform("compile")
def compiled(context: Context, cudagraphs: bool = True) -> Change:
    """Use `torch.compile`, which fuses chains of elementwise operators (see `fusion`) and launches a CUDA graph.

    With `cudagraphs=False` (mode "default"), generated code on the host still launches each remaining kernel. The
    host's time between the first and the last launch then shrinks in proportion to the number of kernels.

    A step does not include compile time. The confidence is low, because a trace does not show what the compiler will
    fuse.
    """
    graph = context.graph
    duration, gone = fused_durations(context, epilogues=False)
    if not graph.on_device:
        return Change(
            Plan().timed(duration),
            slow=Plan(),
            trust="low",
            notes=(("the fusion choices of the compiler are unknown"),),
        )
    captured, _ = _captured(graph)
    if cudagraphs:
        host = _launched_once(graph, captured, GRAPH_LAUNCH_NS)
    else:
        left = 1 - float(gone.sum()) / max(int(graph.is_device.sum()), 1)
        host = np.where(captured, np.rint(graph.tasks.duration * left), graph.tasks.duration).astype(np.int64)
    both = np.where(graph.is_device, duration, host)
    plan, slow = Plan().timed(both), Plan().timed(host)
    return Change(
        plan.remove(gone, launches=False),
        slow=slow,
        trust="low",
        notes=("the prediction assumes which operators the compiler fuses",),
    )


def _captured(graph: TaskGraph) -> tuple[Mask, int]:
    """Host tasks between the first and the last launch of each step on each thread, and synchronizations per step."""
    tasks = graph.tasks
    launched = tasks.launcher[tasks.launcher >= 0]
    if not len(launched):
        raise NotApplicable("the host launches no work on a device")
    calls = {graph.name_of(task) for task in np.unique(launched).tolist()}
    if any("GraphLaunch" in name for name in calls):
        raise NotApplicable("the step already launches CUDA graphs")
    launching = np.zeros(len(graph), dtype=bool)
    launching[launched] = True
    found = np.zeros(len(graph), dtype=bool)
    for track in [number for number, each in enumerate(graph.tracks) if each.kind == TrackKind.THREAD]:
        first, last = np.searchsorted(tasks.track, (track, track + 1))
        own = np.arange(first, last)
        for step in range(len(graph.steps)):
            mine = own[launching[first:last] & (tasks.step[first:last] == step)]
            if len(mine):
                found[mine[0] : mine[-1] + 1] = True
    synced = np.unique(graph.edges.target[of_kinds(graph.edges, EdgeKind.SYNC, EdgeKind.COPY)])
    count = int(np.count_nonzero(found[synced]))
    found &= of_kinds(tasks, TaskKind.OPERATOR, TaskKind.CALL, TaskKind.GAP) & ~input_tasks(graph)
    return found, -(-count // max(len(graph.steps), 1))


def _launched_once(graph: TaskGraph, captured: Mask, launch_ns: int) -> I64:
    duration: I64 = np.where(captured, 0, graph.tasks.duration)
    own = np.flatnonzero(captured & (graph.tasks.track == graph.owner))
    own = own if len(own) else np.flatnonzero(captured)
    for step in range(len(graph.steps)):
        first = own[graph.tasks.step[own] == step][:1]
        duration[first] = launch_ns
    return duration
