"""Layers on several devices: model parallel, pipeline parallel, tensor parallel."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.whatif.editing.edit import Plan, primitive
from pytest_perfdl.whatif.model import TaskGraph
from pytest_perfdl.whatif.parallelism import DeviceLayout, Network, peak_bytes, staged
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.strategy import layer_costs, network_of, optimizer_states
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, transform

_NOTES = ("micro-batches are assumed to take time in proportion",)


@primitive("steps_take")
def _steps_take(graph: TaskGraph, ns: int) -> TaskGraph:
    """Every task takes so much longer or less that the mean step takes `ns`."""
    mean = float(simulate(graph).steps_ns.mean())
    return graph.with_durations(np.rint(graph.tasks.duration * (ns / mean)).astype(np.int64))


def spread(context: Context, layout: DeviceLayout, layer: str) -> Change:
    """The step over devices: the graph of `staged`, simulated.

    The answer is exact for the staged graph; the graph of one device is scaled to it as a whole.
    """
    costs = layer_costs(context, layer)
    if len(costs) < layout.pipeline:
        raise NotRecorded(f"{len(costs)} layers make no {layout.pipeline} stages")
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
    """Layers on several devices, with the batch in micro-batches.

    Bubbles take a share of (p - 1) / (m + p - 1).

    Layers (see `checkpointing`) are divided into stages of which the slowest is as fast as can be, and one step is
    simulated in 1F1B order: see `staged`. Peak memory: that of the fullest device.

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
    """Layers on several devices, one device at a time.

    No device works while another does.

    A pipeline with one micro-batch. It costs what travels between devices, and is for what does not fit on one.
    """
    if devices < 2:
        raise ValueError("model_parallel needs at least 2 devices")
    return spread(context, DeviceLayout(pipeline=devices), layer)


@transform("tensor_parallel")
def tensor_parallel(context: Context, devices: int, layer: str = "") -> Change:
    """Each layer split over several devices (Megatron).

    A layer takes 1 / t of its time, and two all-reduces forward and backward each.

    What is divided is all of a layer, though norms and residuals are not: optimistic for small layers.
    """
    if devices < 2:
        raise ValueError("tensor_parallel needs at least 2 devices")
    return spread(context, DeviceLayout(tensor=devices), layer)
