"""More or less work, other memory formats, and layers on several devices."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_perfdl.analysis.account.parts import PHASES, labels
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.threads import AUTOGRAD
from pytest_perfdl.model.errors import MissingMachineConstant, NotApplicable, TraceError
from pytest_perfdl.trace import read
from pytest_perfdl.trace.model import F64, I64
from pytest_perfdl.trace.recordings import one_recording
from pytest_perfdl.whatif.editing.edit import Plan, primitive
from pytest_perfdl.whatif.editing.select import tasks_of_rows
from pytest_perfdl.whatif.facts import (
    gradients,
    input_tasks,
    operator_costs,
    optimizer_steps,
    tasks_inside,
    tasks_of_computing,
)
from pytest_perfdl.whatif.from_trace.graph import task_graph
from pytest_perfdl.whatif.model import TaskGraph, TaskKind, are_of_kinds
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.strategy import (
    STATES,
    DeviceLayout,
    Network,
    enclosing_modules,
    gradient_share,
    graph_of_stages,
    layer_costs,
    layers,
    network_of,
    optimizer_states,
    peak_bytes,
)
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, transform

# More or less work: another batch size, another number of layers.


@transform("batch")
def batch(context: Context, to: int, now: int, other: str = "", other_batch: int = 0) -> Change:
    """Change the batch size.

    With a second trace `other`, recorded with batch size `other_batch`, the simulation draws a line
    `a + b * batch size` through the times in both traces. Each operator has its own line, and so does the Python
    between operators. The simulation matches operators by the operators around them and by their phase, separately on
    host and device. The confidence is low if `to` is outside of both batch sizes by more than the distance between the
    two batch sizes.

    Without a second trace, compute in the forward and backward pass, and input loading, grow in proportion to the batch
    size. The update, the accumulation of gradients, collectives, and the host's time between operators stay the same.
    Small operators grow less than in proportion, so the range of the prediction extends to half of the predicted
    change, and the confidence is low.

    For the peak memory, an allocation of the forward or backward pass grows in proportion to the batch size, if the
    memory is freed before the update or the end of the step. Weights, gradients and the optimizer's memory keep their
    size.

    Raises
    ------
    NotApplicable
        If the other trace has another model, or the same batch size.
    """
    if min(to, now) < 1:
        raise ValueError("batch sizes must be at least 1")
    if other:
        if other_batch < 1 or other_batch == now:
            raise ValueError(
                "batch:other_batch=... must be the batch size of the other trace, and must differ from now"
            )
        try:
            second = task_graph(one_recording(read(Path(other))))
        except TraceError as error:
            raise ValueError(f"batch:other: {error}") from error
        share = (to - now) / (other_batch - now)
        change = replace(affine(context, second, share), peak_bytes=scaled_peak(context, to / now))
        if -1 <= share <= 2:
            return change
        # The noise of both traces grows with it.
        note = (
            f"the prediction extrapolates {abs(share):.3g} times the distance between the two traces: profile a batch "
            f"size closer to {to}"
        )
        return replace(change, trust="low", notes=(*change.notes, note))
    graph, ratio = context.graph, to / now
    grows = tasks_of_computing(graph) & (graph.tasks.row >= 0)
    costs = operator_costs(context.trace)
    if costs.costs and not graph.on_device:
        grows &= costs.of_tasks(graph) >= 0
    grows &= ~tasks_of_rows(graph, labels(context.trace).phase == PHASES.index("optimizer"))
    # Gradients are as large as before.
    grows &= ~are_of_kinds(graph.tasks, TaskKind.COMMUNICATION)
    grows |= input_tasks(graph)
    plans = [Plan().scale(grows, factor) for factor in (ratio, (1 + ratio) / 2)]
    unknown = "one trace does not show the part of the time that is independent of batch size"
    notes = (f"{unknown}: set other=... to a second trace",)
    return Change(plans[0], fast=plans[1], peak_bytes=scaled_peak(context, ratio), trust="low", notes=notes)


def affine(context: Context, other: TaskGraph, share: float) -> Change:
    """A graph on the line through itself (share 0) and another (share 1): see `batch`.

    Raises
    ------
    NotApplicable
        If less than half of its time is in operators that the other has too.
    """
    graph = context.graph
    mine, theirs = _by_operator(graph), _by_operator(other)
    steps, other_steps = max(len(graph.steps), 1), max(len(other.steps), 1)
    factor: F64 = np.ones(len(graph))
    matched = whole = 0
    for key, tasks in mine.items():
        time = int(graph.tasks.duration[tasks].sum())
        whole += time
        if key in theirs and time:
            matched += time
            there = int(other.tasks.duration[theirs[key]].sum()) / other_steps
            factor[tasks] = max(1 + share * (there * steps / time - 1), 0.0)
    if matched < whole / 2:
        raise NotRecorded("the two traces have different operators")
    return Change(Plan().timed(graph.scaled(factor)))


def _by_operator(graph: TaskGraph) -> dict[tuple[object, ...], list[int]]:
    """Tasks by keys that are the same in all traces of a model."""
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    if graph.trace is None:
        raise NotRecorded("operators are only known in a graph that was made from a trace")
    marks, trace = labels(graph.trace), graph.trace
    device = graph.is_device.tolist()
    paths, phases = marks.path.tolist(), marks.phase.tolist()
    for task, row in enumerate(graph.tasks.row.tolist()):
        if row < 0:
            found["gap", device[task]].append(task)
            continue
        path = marks.paths[paths[row]] if paths[row] >= 0 else ()
        # Kernels are other ones for other shapes, operators are not.
        name = "" if device[task] else trace.name_of(row)
        found[path, phases[row], name, device[task]].append(task)
    return found


def scaled_peak(context: Context, ratio: float) -> int | None:
    """Peak memory if temporary allocations of the forward and backward pass were `ratio` times as large.

    Temporary allocations, such as activations, are made outside of updates, and freed before the next update or the end
    of the step. Gradients, weights, optimizer state and the optimizer's temporaries keep their size.
    """
    memory, trace = context.memory, context.trace
    if memory is None:
        return None
    updates, _ = optimizer_steps(trace)
    ends: I64 = np.array([step.end for step in context.graph.steps], dtype=np.int64)
    ends = np.sort(np.concatenate((ends, trace.start[updates])))
    until = np.append(ends, np.iinfo(np.int64).max)[np.searchsorted(ends, memory.begin, side="right")]
    updating = Intervals.union_of(trace.start[updates], trace.end[updates]).contains(memory.begin)
    return memory.scaled((memory.row >= 0) & (memory.end <= until) & ~updating, ratio).peak_bytes


@transform("layers")
def layer_count(context: Context, to: int, now: int, layer: str = "") -> Change:
    """Change the number of equal layers.

    The layers take `t' = t * to / now`, forward and backward, with the Python code in between. The update grows by the
    layers' share of the parameters. Everything else stays the same.

    The memory that the layers allocate grows by the factor `to / now`, and so do their parameters and optimizer state.

    Raises
    ------
    NotApplicable
        If the trace has no modules, or none that fits.
    """
    if min(to, now) < 1:
        raise ValueError("the number of layers must be at least 1")
    graph, trace, ratio = context.graph, context.trace, to / now
    found = layers(context, layer)
    paths = {each.path for each in found}
    factor: F64 = np.ones(len(graph))
    for each in found:
        factor[each.forward] = factor[each.backward] = ratio
    share = gradient_share(trace, paths)
    rows, kind = optimizer_steps(trace)
    growth = 1 + share * (ratio - 1)
    factor[tasks_inside(graph, rows)] = growth
    factor[graph.named(lambda name: AUTOGRAD.match(name) and "AccumulateGrad" in name)] = growth
    plan = Plan().timed(graph.scaled(factor))
    memory, peak = context.memory, None
    if memory is not None:
        marks = labels(trace)
        inner = enclosing_modules(marks.modules, paths) >= 0
        own = (memory.row >= 0) & inner[np.where(memory.row >= 0, marks.module[memory.row], -1)]
        # Of the memory from before the trace, parameters and the optimizer's state are theirs by share.
        static = gradients(trace).total_bytes * share * (1 + STATES.get(kind, 0)) * (ratio - 1)
        peak = memory.scaled(own, ratio).with_more(round(static)).peak_bytes
    return Change(plan, peak_bytes=peak)


# Memory formats of images.


TRANSPOSING = re.compile(
    r"nchwTo(nhwc|NHWC)|nhwcTo(nchw|NCHW)|(nchw|nhwc)_to_|batched_transpose_\d+x\d+", re.IGNORECASE
)
"""Kernels of cuDNN and MIOpen that convert the format around a convolution."""

_FORM = "channels_last"


@transform("channels_last")
def channels_last(context: Context) -> Change:
    """Use channels-last memory format for weights and images.

    - Kernels that transpose around convolutions (nchwToNhwc, nhwcToNchw, batched_transpose) take no time, but the host
      still launches them. Removing transposing kernels needs no constant of the machine. Without measured ratios, the
      simulation changes nothing else, and the confidence is low.
    - With measured ratios r (`Machine.ratios`, from `perfdl constants`), each measured operator also takes `t' = t r`,
      forward and backward. `perfdl constants` replays the operators in both memory formats, interleaved.

    The simulation does not add the time to convert the batch to channels-last format. The conversion is one
    transposition per step, and counts as input time. The conversion takes twice the bytes of the batch, divided by the
    memory bandwidth.

    The simulation assumes that gradients are in channels-last format, too. The slow end of the predicted range comes
    from replays with one tensor in the old format.

    Raises
    ------
    MissingMachineConstant, NotApplicable
        If there is no transposing kernel and no ratio; if nothing works on images.
    """
    graph = context.graph
    ratios = context.known.ratios.get(_FORM, {})
    transposing = graph.named(TRANSPOSING.search) & graph.is_device
    costs = operator_costs(context.trace)
    convolves = [number for number, key in enumerate(costs.keys) if "conv" in key.partition(" ")[0]]
    if not convolves and not transposing.any():
        raise NotApplicable("the trace has no convolution")
    if not ratios and not transposing.any():
        raise MissingMachineConstant(
            "no kernel converts the memory format around convolutions, and the speed of convolutions in "
            "channels-last is unknown",
            "measured ratios",
        )
    call = costs.of_computing(graph, updates=False)
    some = np.flatnonzero(call >= 0)
    plans = []
    for which in (1, 0, 2):
        factor = np.ones(len(graph))
        factor[some] = [ratios.get(costs.keys[number], (1.0, 1.0, 1.0))[which] for number in costs.number[call[some]]]
        factor[transposing] = 0.0
        plans.append(Plan().timed(graph.scaled(factor)))
    if not ratios:
        note = "the prediction only removes conversion kernels; the convolutions may also become faster or slower"
        return Change(plans[0], trust="low", notes=(note,))
    return Change.of(plans)


# Layers on several devices: model parallel, pipeline parallel, tensor parallel.


_NOTES = ("the prediction assumes that the time of a micro-batch is proportional to its size",)


@primitive("steps_take")
def _steps_take(graph: TaskGraph, ns: int) -> TaskGraph:
    """Scale the durations of all tasks so that the mean step takes `ns`."""
    mean = float(simulate(graph).steps_ns.mean())
    return graph.with_durations(graph.scaled(ns / mean))


def spread(context: Context, layout: DeviceLayout, layer: str) -> Change:
    """The step distributed over devices: the graph of `staged`, simulated.

    The prediction is exact for that graph. The graph of the trace is scaled as a whole to the predicted step time.
    """
    costs = layer_costs(context, layer)
    if len(costs) < layout.pipeline:
        raise NotRecorded(f"{len(costs)} layers cannot be divided into {layout.pipeline} stages")
    network = network_of(context)
    best = simulate(graph_of_stages(costs, layout, network)).span_ns
    slow = simulate(
        graph_of_stages(costs, layout, Network(network.bytes_per_s / 1.7, network.latency_ns * 1.7))
    ).span_ns
    alone = simulate(graph_of_stages(costs, DeviceLayout(), network)).span_ns
    # What is no layer's, such as getting input, stays.
    rest = max(float(simulate(context.graph).steps_ns.mean()) - alone, 0.0)
    known = context.memory is not None and any(each.parameter_bytes for each in costs)
    peak = round(peak_bytes(costs, layout, optimizer_states(context))) if known else None
    plans = [Plan().then("steps_take", ns=round(ns + rest)) for ns in (best, slow)]
    return Change(plans[0], slow=plans[1], peak_bytes=peak, trust="low", notes=_NOTES)


@transform("pipeline_parallel")
def pipeline_parallel(context: Context, stages: int, micro_batches: int = 4, layer: str = "") -> Change:
    """Put layers on several devices, and split the batch into micro-batches.

    The simulation divides the layers into stages, so that the slowest stage is as fast as possible. The simulation runs
    one step in 1F1B order, in which each stage of a full pipeline alternates one forward and one backward pass. For p
    equal stages and m micro-batches, the devices idle for a share of `(p - 1) / (m + p - 1)` of the step (the bubble).

    The simulation assumes that the time of a micro-batch is in proportion to its size. The range of the prediction
    covers a network that is up to 1.7 times slower. The confidence is low.

    The predicted peak memory is the peak of the device that needs most memory.

    Raises
    ------
    MissingConstant, NotApplicable
        Without the network's bandwidth; without modules, or with fewer than there are stages.
    """
    if stages < 2 or micro_batches < 1:
        raise ValueError("pipeline_parallel needs at least 2 stages and 1 micro-batch")
    return spread(context, DeviceLayout(pipeline=stages, micro_batches=micro_batches), layer)


@transform("model_parallel")
def model_parallel(context: Context, devices: int, layer: str = "") -> Change:
    """Put layers on several devices, which compute one device at a time.

    `model_parallel` is the same as `pipeline_parallel` with one micro-batch. Model parallelism saves no time, because
    it adds transfers between devices. Use `model_parallel` for models that do not fit on one device.
    """
    if devices < 2:
        raise ValueError("model_parallel needs at least 2 devices")
    return spread(context, DeviceLayout(pipeline=devices), layer)


@transform("tensor_parallel")
def tensor_parallel(context: Context, devices: int, layer: str = "") -> Change:
    """Split each layer over several devices (Megatron).

    A layer takes `1 / devices` of its time, plus two all-reduces in the forward pass and two in the backward pass.

    The simulation divides the whole layer, although real tensor parallelism does not divide norms and residual
    connections. So the prediction is optimistic for small layers. Assumptions and range are the same as in
    `pipeline_parallel`.
    """
    if devices < 2:
        raise ValueError("tensor_parallel needs at least 2 devices")
    return spread(context, DeviceLayout(tensor=devices), layer)
