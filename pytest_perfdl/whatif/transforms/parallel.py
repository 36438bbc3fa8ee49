"""Layers on several devices: model parallel, pipeline parallel, tensor parallel."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.whatif.editing.edit import Plan, primitive
from pytest_perfdl.whatif.model import TaskGraph
from pytest_perfdl.whatif.parallelism import DeviceLayout, Network, peak_bytes, staged
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.strategy import layer_costs, network_of, optimizer_states
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, transform

_NOTES = ("the prediction assumes that the time of a micro-batch is proportional to its size",)


@primitive("steps_take")
def _steps_take(graph: TaskGraph, ns: int) -> TaskGraph:
    """Scale the durations of all tasks so that the mean step takes `ns`."""
    mean = float(simulate(graph).steps_ns.mean())
    return graph.with_durations(np.rint(graph.tasks.duration * (ns / mean)).astype(np.int64))


def spread(context: Context, layout: DeviceLayout, layer: str) -> Change:
    """The step distributed over devices: the graph of `staged`, simulated.

    The prediction is exact for that graph. The graph of the trace is scaled as a whole to the predicted step time.
    """
    costs = layer_costs(context, layer)
    if len(costs) < layout.pipeline:
        raise NotRecorded(f"{len(costs)} layers cannot be divided into {layout.pipeline} stages")
    network = network_of(context)
    best = simulate(staged(costs, layout, network)).span_ns
    slow = simulate(staged(costs, layout, Network(network.bytes_per_s / 1.7, network.latency_ns * 1.7))).span_ns
    alone = simulate(staged(costs, DeviceLayout(), network)).span_ns
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
