"""Which way of spreading a training step over devices is fastest and fits: a search over degrees of parallelism."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import orjson

from pytest_perfdl.analysis.efficiency.operator_costs import size_of
from pytest_perfdl.whatif.facts import gradients, inside, operator_costs, optimizer_steps, time_of
from pytest_perfdl.whatif.layers import Layer, gradient_share, layers, saved
from pytest_perfdl.whatif.parallelism import DeviceLayout, LayerCost, Network, peak_bytes, staged
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.transform import Context

STATES = {"Adam": 2, "AdamW": 2, "Adagrad": 1, "RMSprop": 1, "SGD": 0}
"""Tensors as large as the parameters that an optimizer keeps; others are taken for Adam."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way of spreading the step, simulated."""

    layout: DeviceLayout
    step_ns: float
    """Of the same global batch as the trace's step."""
    peak_bytes: int
    """Memory of the fullest device."""
    fits: bool | None
    """Whether that is within the limit; `None` without one."""


def search(
    context: Context, devices: int, *, memory_bytes: int | None = None, micro_batches: int = 8, layer: str = ""
) -> list[Strategy]:
    """Rank the degrees of data, pipeline and tensor parallelism whose product is `devices`, by predicted period.

    Every step of the whole batch is simulated as a graph of stages (see `staged`); pipelines run with 1, 2, 4, ... up
    to `micro_batches` micro-batches. What fits into `memory_bytes` (by default the device's) comes first, then
    the faster.

    Raises
    ------
    MissingConstant, NotApplicable
        Without the network's bandwidth, or modules.
    """
    costs = layer_costs(context, layer)
    network, states = network_of(context), optimizer_states(context)
    limit = memory_bytes or context.known.memory_bytes
    # Without a profile of memory nobody knows what is kept for the backward pass, without shapes no parameter.
    is_known = context.memory is not None and any(each.parameter_bytes for each in costs)
    found = []
    for layout in _layouts(devices, len(costs), micro_batches):
        peak = round(peak_bytes(costs, layout, states))
        span = simulate(staged(costs, layout, network)).span_ns
        found.append(Strategy(layout, float(span), peak, peak <= limit if limit and is_known else None))
    return sorted(found, key=lambda each: (each.fits is False, each.step_ns, each.peak_bytes))


def _layouts(devices: int, layer_count: int, micro_batches: int) -> list[DeviceLayout]:
    found = []
    for data in _divisors(devices):
        for pipeline in _divisors(devices // data):
            if pipeline > layer_count:
                continue
            counts = [2**n for n in range(int(math.log2(micro_batches)) + 1)] if pipeline > 1 else [1]
            found += [DeviceLayout(data, pipeline, devices // data // pipeline, count) for count in counts]
    return found


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def network_of(context: Context) -> Network:
    """The network between devices.

    Raises
    ------
    MissingConstant
        If its bandwidth is not known.
    """
    machine = context.known
    return Network(machine.rate("network_bytes_per_s", "the bandwidth between devices"), machine.network_latency_ns)


def optimizer_states(context: Context) -> float:
    """Tensors as large as the parameters that the trace's optimizer keeps."""
    return STATES.get(optimizer_steps(context.trace)[1], 2)


def layer_costs(context: Context, pattern: str = "") -> list[LayerCost]:
    """What each layer of a mean step takes and holds; what comes before the first and behind the last goes to those.

    Raises
    ------
    NotApplicable
        If the trace has no modules, or none that fits.
    """
    graph, trace = context.graph, context.trace
    found = layers(context, pattern)
    steps = max(len(graph.steps), 1)
    rows, _ = optimizer_steps(trace)
    updating = inside(graph, rows)
    busy = graph.is_device if graph.on_device else ~graph.is_device
    update = time_of(graph, updating & busy) / steps
    total_bytes = gradients(trace).total_bytes
    by_path: dict[str, list[Layer]] = {}
    for layer in found:
        by_path.setdefault(layer.path, []).append(layer)
    costs = []
    for path, own in by_path.items():
        share = gradient_share(trace, {path})
        forward = np.array([layer.times(graph) for layer in own], dtype=np.float64).mean(axis=0)
        backward = np.array([layer.times(graph, backward=True) for layer in own], dtype=np.float64).mean(axis=0)
        memory = context.memory
        kept = 0.0 if memory is None else float(np.mean([memory.bytes[saved(context, layer)].sum() for layer in own]))
        which = 1 if graph.on_device else 0
        costs.append(
            LayerCost(
                path,
                float(forward[which]),
                float(backward[which]),
                float(forward[0]) if which else 0.0,
                float(backward[0]) if which else 0.0,
                update * share,
                total_bytes * share,
                kept,
                _sent(context, own[0]),
            )
        )
    return _with_ends(context, costs, found, updating & busy, update, total_bytes)


def _with_ends(
    context: Context,
    costs: list[LayerCost],
    found: list[Layer],
    updating: np.typing.NDArray[np.bool_],
    update: float,
    size: float,
) -> list[LayerCost]:
    """The layers, one before and one behind them: what computes outside, by whether it begins before a layer does."""
    graph = context.graph
    busy = (graph.is_device if graph.on_device else ~graph.is_device) & ~updating & (graph.tasks.row >= 0)
    busy &= graph.tasks.step >= 0 if graph.steps else True
    first = {layer.step: layer for layer in reversed(found)}
    before = behind = 0.0
    for layer in found:
        busy[layer.forward] = busy[layer.backward] = False
    for step, layer in first.items():
        own = busy & (graph.tasks.step == step) if graph.steps else busy
        early = own & (graph.tasks.start < graph.tasks.start[layer.forward].min())
        before += time_of(graph, early)
        behind += time_of(graph, own & ~early)
    steps = max(len(first), 1)
    rest = max(size - sum(each.parameter_bytes for each in costs), 0.0)
    left = max(update - sum(each.update_ns for each in costs), 0.0)
    ends = [
        LayerCost(name, ns / steps / 3, ns / steps * 2 / 3, 0.0, 0.0, left / 2, rest / 2, 0.0, costs[0].sent_bytes)
        for name, ns in (("before the layers", before), ("behind the layers", behind))
    ]
    return [each for each in (ends[0], *costs, ends[1]) if each.forward_ns or each.parameter_bytes]


def _sent(context: Context, layer: Layer) -> float:
    """Bytes of what a layer is given, which is as large as what it hands on: the first input of its first operator."""
    costs = operator_costs(context.trace)
    calls = costs.of_tasks(context.graph)[layer.forward]
    for call in calls[calls >= 0].tolist():
        number = int(costs.number[call])
        dims = orjson.loads(costs.keys[number].partition(" ")[2])
        if dims and isinstance(dims[0], list) and len(dims[0]) > 1:
            return float(math.prod(dims[0]) * size_of(costs.costs[number].dtype))
    return 0.0
