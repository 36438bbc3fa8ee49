"""Which way of spreading a training step over devices is fastest and fits: a search over degrees of parallelism."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate

import numpy as np
import orjson

from pytest_perfdl.analysis.account.parts import PHASES, labels
from pytest_perfdl.analysis.efficiency.costs import size_of
from pytest_perfdl.trace.model import I32, Category, Rows, Trace, once
from pytest_perfdl.whatif.collectives import rounds, volume
from pytest_perfdl.whatif.facts import (
    gradients,
    operator_costs,
    optimizer_steps,
    tasks_inside,
    tasks_of_computing,
    time_of,
)
from pytest_perfdl.whatif.model import (
    EdgeKind,
    Edges,
    Mask,
    TaskGraph,
    TaskKind,
    Tasks,
    Track,
    TrackKind,
)
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.transform import Context, NotRecorded

# Layers spread over devices, as a task graph of its own: stages, micro-batches, and what they send each other.


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer in a mean step of one device, or what comes before the first or behind the last."""

    name: str
    forward_ns: float
    """Of the device, or of the host where there is none."""
    backward_ns: float
    host_forward_ns: float
    """Of the host while it launches, which micro-batches do not divide; 0 where the host computes itself."""
    host_backward_ns: float
    update_ns: float
    parameter_bytes: float
    kept_bytes: float
    """What its forward pass keeps for its backward pass."""
    sent_bytes: float
    """What it hands to the next layer; the gradient that comes back is as large."""


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """How many devices share the batch, the layers and each layer."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    micro_batches: int = 1

    @property
    def devices(self) -> int:
        """All of them."""
        return self.data * self.pipeline * self.tensor


@dataclass(frozen=True, slots=True)
class Network:
    """Between devices: bytes a second, and nanoseconds of a message."""

    bytes_per_s: float
    latency_ns: float = 0.0

    def send_ns(self, size: float) -> float:
        """From one device to another."""
        return size / self.bytes_per_s * 1e9 + self.latency_ns if size else 0.0

    def reduce_ns(self, size: float, ranks: int) -> float:
        """An all-reduce over a ring: 2 (n - 1) / n * S / B + 2 (n - 1) alpha.

        >>> Network(1e9, 1000).reduce_ns(4e6, 2)
        4002000.0
        """
        sent, messages = volume("all_reduce", ranks), rounds("all_reduce", ranks, "ring")
        return sent * size / self.bytes_per_s * 1e9 + messages * self.latency_ns


def stages(layers: Sequence[LayerCost], count: int) -> list[list[LayerCost]]:
    """Neighboring layers in so many groups, of which the slowest is as fast as can be (dynamic programming)."""
    sums = [0.0, *accumulate(layer.forward_ns + layer.backward_ns for layer in layers)]
    size = len(layers)
    best = [[float("inf")] * (size + 1) for _ in range(count + 1)]
    cut = [[0] * (size + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for group in range(1, count + 1):
        for until in range(group, size + 1):
            for since in range(group - 1, until):
                slowest = max(best[group - 1][since], sums[until] - sums[since])
                if slowest < best[group][until]:
                    best[group][until], cut[group][until] = slowest, since
    found, until = [], size
    for group in range(count, 0, -1):
        since = cut[group][until]
        found.append(list(layers[since:until]))
        until = since
    return found[::-1]


def graph_of_stages(layers: Sequence[LayerCost], layout: DeviceLayout, network: Network) -> TaskGraph:
    """One step of the layers over devices as a graph: a stream for each stage, a channel for each stage's gradients.

    The batch is shared by `data` replicas and cut into `micro_batches`. Stages run as 1F1B does: stage s of p does
    p - s forward passes ahead, then forward and backward passes alternate (Narayanan et al., "PipeDream", SOSP 2019;
    the bubble is (p - 1) / (m + p - 1) of the step when stages are equal). Within a stage a layer over t
    tensor-parallel devices takes 1 / t, and two all-reduces of what it hands on, forward and backward each (Shoeybi
    et al., "Megatron-LM", 2019). Between stages what is handed on travels. When a stage's last backward pass begins,
    the gradients of its layers start to be reduced over the replicas; the update waits for both.

    Raises
    ------
    ValueError
        If there are fewer layers than stages.
    """
    if layout.pipeline > len(layers):
        raise ValueError(f"{len(layers)} layers cannot be divided into {layout.pipeline} stages")
    groups = stages(layers, layout.pipeline)
    part = layout.data * layout.micro_batches * layout.tensor
    tasks: dict[Key, tuple[int, float]] = {}
    links: list[tuple[Key, Key, float, bool]] = []
    for number, group in enumerate(groups):
        reduce = sum(2 * _reduce_ns(layer, layout, network) for layer in group)
        forward = max(sum(layer.forward_ns for layer in group) / part, sum(layer.host_forward_ns for layer in group))
        backward = max(sum(layer.backward_ns for layer in group) / part, sum(layer.host_backward_ns for layer in group))
        ahead = min(layout.pipeline - number, layout.micro_batches)
        order = [("forward", index) for index in range(ahead)]
        for index in range(layout.micro_batches):
            order.append(("backward", index))
            if index + ahead < layout.micro_batches:
                order.append(("forward", index + ahead))
        for kind, index in order:
            tasks[kind, number, index] = number, (forward if kind == "forward" else backward) + reduce
        tasks["update", number, 0] = number, sum(layer.update_ns for layer in group) / layout.tensor
        if layout.data > 1:
            gradients = sum(layer.parameter_bytes for layer in group) / layout.tensor
            tasks["reduce", number, 0] = layout.pipeline + number, network.reduce_ns(gradients, layout.data)
    for number, group in enumerate(groups):
        sent = network.send_ns(group[-1].sent_bytes / (layout.data * layout.micro_batches))
        for index in range(layout.micro_batches):
            if number + 1 < len(groups):
                links.append((("forward", number, index), ("forward", number + 1, index), sent, False))
                links.append((("backward", number + 1, index), ("backward", number, index), sent, False))
        if layout.data > 1:
            links.append((("backward", number, layout.micro_batches - 1), ("reduce", number, 0), 0, True))
            links.append((("reduce", number, 0), ("update", number, 0), 0, False))
    return _graph_of(tasks, links, 2 * layout.pipeline)


def _reduce_ns(layer: LayerCost, layout: DeviceLayout, network: Network) -> float:
    if layout.tensor == 1:
        return 0.0
    return network.reduce_ns(layer.sent_bytes / (layout.data * layout.micro_batches), layout.tensor)


def peak_bytes(layers: Sequence[LayerCost], layout: DeviceLayout, states: float) -> float:
    """Memory of the fullest device.

    Parameters, gradients and `states` times as much for the optimizer, and what the micro-batches in flight keep:
    p - s of them on stage s.
    """
    fullest = 0.0
    for number, group in enumerate(stages(layers, layout.pipeline)):
        held = min(layout.pipeline - number, layout.micro_batches) / (layout.micro_batches * layout.data)
        static = sum(layer.parameter_bytes for layer in group) * (2 + states + (layout.data > 1))
        fullest = max(fullest, (static + sum(layer.kept_bytes for layer in group) * held) / layout.tensor)
    return fullest


Key = tuple[str, int, int]
"""Of a task: what it does, its stage, the number of its micro-batch."""


def _graph_of(
    made: Mapping[Key, tuple[int, float]], links: Sequence[tuple[Key, Key, float, bool]], tracks: int
) -> TaskGraph:
    """Tasks by track and nanoseconds, and edges (source, target, lag, from the source's start) as a graph."""
    keys = sorted(made, key=lambda key: made[key][0])
    at = {key: number for number, key in enumerate(keys)}
    track = np.array([made[key][0] for key in keys], dtype=np.int32)
    duration = np.array([round(made[key][1]) for key in keys], dtype=np.int64)
    kind = np.where([key[0] == "reduce" for key in keys], TaskKind.COMMUNICATION, TaskKind.KERNEL)
    behind = np.flatnonzero(track[1:] == track[:-1])
    rows = [(at[source], at[target], round(lag), start) for source, target, lag, start in links]
    source, target, lags, starts = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    sent = Edges.of(EdgeKind.COMMUNICATION, source, target, lags, at_start=starts.astype(bool))
    return TaskGraph(
        tasks=Tasks.of(kind, track, np.arange(len(keys)), np.zeros(len(keys), dtype=np.int64), duration),
        edges=Edges.joined(Edges.of(EdgeKind.STREAM, behind, behind + 1, 0), sent),
        tracks=tuple(Track(TrackKind.STREAM, number, 0) for number in range(tracks)),
        names=tuple(f"{kind} {index} of stage {stage}" for kind, stage, index in keys),
    )


# The layers of a model in a task graph: which tasks are their forward and backward passes, and what they keep.


NO_MODULES = "the trace has no modules: profile with with_modules=True and with_stack=True, or with pytest --perf"

_NUMBERED = re.compile(r"^(.*?[._])\d+$")
_BACKWARD = PHASES.index("backward")


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One module in one step."""

    path: str
    step: int
    forward: Rows
    """Its tasks, gaps of the host within it included, in the order of the graph."""
    backward: Rows

    def times(self, graph: TaskGraph, *, backward: bool = False) -> tuple[int, int]:
        """Nanoseconds of a pass on the host and on the device."""
        own = self.backward if backward else self.forward
        device = graph.is_device[own]
        duration = graph.tasks.duration[own]
        return int(duration[~device].sum()), int(duration[device].sum())

    def first_backward(self, graph: TaskGraph) -> tuple[int, int]:
        """The first task of its backward pass on the host, and the first on the device; -1 for none."""
        device = graph.is_device[self.backward]
        return _first(graph, self.backward[~device]), _first(graph, self.backward[device])

    def last_forward(self, graph: TaskGraph) -> tuple[int, int]:
        """The last task of its forward pass on the host, and the last on the device; -1 for none."""
        device = graph.is_device[self.forward]
        return _last(graph, self.forward[~device]), _last(graph, self.forward[device])


def _first(graph: TaskGraph, own: Rows) -> int:
    return int(own[np.argmin(graph.tasks.start[own])]) if len(own) else -1


def _last(graph: TaskGraph, own: Rows) -> int:
    return int(own[np.argmax(graph.tasks.end[own])]) if len(own) else -1


def layers(context: Context, pattern: str = "") -> list[Layer]:
    """The outermost modules whose path fits a pattern (`*` and `?` as in file names), step by step.

    Without a pattern the modules that repeat: those that differ in the number at the end of their path, of the group
    that most tasks belong to, such as `GPT.blocks.0`, `GPT.blocks.1`.

    Raises
    ------
    NotApplicable
        If the trace has no modules, or none that fits.
    """
    graph, marks = context.graph, labels(context.trace)
    if not marks.modules:
        raise NotRecorded(NO_MODULES)
    row = graph.tasks.row
    module = np.where(row >= 0, marks.module[row], -1)
    chosen = _matching_modules(marks.modules, pattern) if pattern else _repeated_modules(marks.modules, module)
    if not chosen:
        raise NotRecorded(
            f"no module matches {pattern!r}" if pattern else "no module is repeated: select the layers with layer=..."
        )
    unit = _with_gaps(graph, enclosing_modules(marks.modules, chosen)[module])
    backward = np.where(row >= 0, marks.phase[row] == _BACKWARD, False)
    backward |= (row < 0) & np.concatenate(([False], backward[:-1]))
    found = []
    order = np.argsort(unit, kind="stable")
    bounds = np.searchsorted(unit[order], np.arange(len(chosen) + 1))
    for number, path in enumerate(chosen):
        own = order[bounds[number] : bounds[number + 1]]
        for step in range(max(len(graph.steps), 1)):
            mine = own[graph.tasks.step[own] == step] if graph.steps else own
            if len(mine):
                found.append(Layer(path, step, mine[~backward[mine]], mine[backward[mine]]))
    start = graph.tasks.start
    return sorted(found, key=lambda layer: (layer.step, int(start[layer.forward].min()) if len(layer.forward) else 0))


def _matching_modules(modules: tuple[str, ...], pattern: str) -> list[str]:
    fits = [path for path in modules if fnmatchcase(path, pattern)]
    return [path for path in fits if not any(path.startswith(f"{other}.") for other in fits)]


def _repeated_modules(modules: tuple[str, ...], module: Rows) -> list[str]:
    counts = np.bincount(module[module >= 0], minlength=len(modules))
    groups: dict[str, dict[str, int]] = {}
    for path in modules:
        # A module counts for all those around it.
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            around = ".".join(parts[:depth])
            if match := _NUMBERED.match(around):
                group = groups.setdefault(match[1], {})
                group[around] = group.get(around, 0) + int(counts[modules.index(path)])
    several = {key: group for key, group in groups.items() if len(group) > 1}
    best = max(several.values(), key=lambda group: sum(group.values()), default={})
    return list(best)


def enclosing_modules(modules: Sequence[str], chosen: Collection[str]) -> Rows:
    """Index of the chosen module that each module is, or is inside; -1 for none, and at the end for no module."""

    def place(path: str) -> int:
        return next((at for at, other in enumerate(chosen) if path == other or path.startswith(f"{other}.")), -1)

    return np.array([*map(place, modules), -1], dtype=np.intp)


def _with_gaps(graph: TaskGraph, unit: Rows) -> Rows:
    """Gaps between two tasks of one layer belong to it."""
    found: Rows = unit.copy()
    known = np.where(graph.tasks.row >= 0, np.arange(len(unit)), 0)
    before = unit[np.maximum.accumulate(known)]
    known = np.where(graph.tasks.row >= 0, np.arange(len(unit)), len(unit) - 1)
    after = unit[np.minimum.accumulate(known[::-1])[::-1]]
    gaps = (graph.tasks.kind == TaskKind.GAP) & (before == after)
    found[gaps] = before[gaps]
    return found


@once
def gradient_modules(trace: Trace) -> I32:
    """The module of each gradient: that of the backward operator before its accumulation, as an index; -1 for none."""
    marks, sizes = labels(trace), gradients(trace)
    rows = np.flatnonzero((trace.category == Category.CPU_OP) & (marks.phase == _BACKWARD) & (marks.module >= 0))
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    if not len(rows):
        return np.full(len(sizes.row), -1, dtype=np.int32)
    place = np.searchsorted(trace.start[rows], trace.start[sizes.row], side="right") - 1
    return np.where(place >= 0, marks.module[rows[np.maximum(place, 0)]], -1).astype(np.int32)


def gradient_share(trace: Trace, paths: set[str]) -> float:
    """Share of the gradients' elements that modules have, 0 to 1; 0 if none are known."""
    sizes = gradients(trace)
    own = enclosing_modules(labels(trace).modules, paths)[gradient_modules(trace)] >= 0
    whole = int(sizes.elements.sum())
    return float(sizes.elements[own].sum() / whole) if whole else 0.0


def kept_allocations(context: Context, layer: Layer) -> Mask:
    """Allocations that a layer's forward pass makes and its backward pass still needs, but for its result.

    One boolean for each of `context.memory`: made between the first and the last moment of the forward pass on the
    host, freed after the backward pass of the layer began. The last that outlives the forward pass is its result, which
    the next layer gets.
    """
    memory, graph = context.memory, context.graph
    if memory is None or not len(layer.forward) or not len(layer.backward):
        return np.zeros(0 if memory is None else len(memory), dtype=bool)
    opened, closed, returned = pass_bounds(graph, layer)
    left = (memory.begin >= opened) & (memory.begin <= closed) & (memory.end > closed) & (memory.row >= 0)
    found: Mask = left & (memory.end > returned)
    found[np.flatnonzero(left)[-1:]] = False
    return found


def pass_bounds(graph: TaskGraph, layer: Layer) -> tuple[int, int, int]:
    """When the host began and ended a layer's forward pass, and when it began the backward pass."""
    tasks = graph.tasks
    forward, backward = (own[~graph.is_device[own]] for own in (layer.forward, layer.backward))
    if not len(forward) or not len(backward):
        return 0, 0, 0
    return int(tasks.start[forward].min()), int(tasks.end[forward].max()), int(tasks.start[backward].min())


# Which way of spreading a training step over devices is fastest and fits: a search over degrees of parallelism.


STATES = {"Adam": 2, "AdamW": 2, "Adagrad": 1, "RMSprop": 1, "SGD": 0}
"""Tensors as large as the parameters that an optimizer keeps; others are taken for Adam."""


MICRO_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way of spreading the step, simulated."""

    layout: DeviceLayout
    step_ns: float
    """Of the same global batch as the trace's step."""
    peak_bytes: int
    """Memory of the fullest device."""
    fits: bool | None
    """Whether that is within the device's memory; `None` where that is not known."""


def search(context: Context, devices: int) -> list[Strategy]:
    """Rank the degrees of data, pipeline and tensor parallelism whose product is `devices`, by predicted period.

    Every step of the whole batch is simulated as a graph of stages (see `graph_of_stages`); pipelines run with 1 to 8
    micro-batches. What fits into the device's memory comes first, then the faster.

    Raises
    ------
    MissingConstant, NotApplicable
        Without the network's bandwidth, or modules.
    """
    costs = layer_costs(context)
    network, states = network_of(context), optimizer_states(context)
    limit = context.known.memory_bytes
    # Without a profile of memory nobody knows what is kept for the backward pass, without shapes no parameter.
    is_known = context.memory is not None and any(each.parameter_bytes for each in costs)
    found = []
    for layout in _layouts(devices, len(costs)):
        peak = round(peak_bytes(costs, layout, states))
        span = simulate(graph_of_stages(costs, layout, network)).span_ns
        found.append(Strategy(layout, float(span), peak, peak <= limit if limit and is_known else None))
    return sorted(found, key=lambda each: (each.fits is False, each.step_ns, each.peak_bytes))


def _layouts(devices: int, layer_count: int) -> list[DeviceLayout]:
    return [
        DeviceLayout(data, pipeline, devices // data // pipeline, count)
        for data in _divisors(devices)
        for pipeline in _divisors(devices // data)
        if pipeline <= layer_count
        for count in (MICRO_BATCHES if pipeline > 1 else (1,))
    ]


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def network_of(context: Context, between: str = "devices") -> Network:
    """The network between devices, or ranks.

    Raises
    ------
    MissingConstant
        If its bandwidth is not known.
    """
    machine = context.known
    return Network(machine.rate("network_bytes_per_s", f"the bandwidth between {between}"), machine.network_latency_ns)


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
    updating = tasks_inside(graph, rows)
    busy = tasks_of_computing(graph)
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
        kept = (
            0.0
            if memory is None
            else float(np.mean([memory.bytes[kept_allocations(context, layer)].sum() for layer in own]))
        )
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
                _sent_bytes(context, own[0]),
            )
        )
    return _with_ends(context, costs, found, updating & busy, update, total_bytes)


def _with_ends(
    context: Context,
    costs: list[LayerCost],
    found: list[Layer],
    updating: Mask,
    update: float,
    size: float,
) -> list[LayerCost]:
    """The layers, one before and one behind them: what computes outside, by whether it begins before a layer does."""
    graph = context.graph
    busy = tasks_of_computing(graph) & ~updating & (graph.tasks.row >= 0)
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


def _sent_bytes(context: Context, layer: Layer) -> float:
    """Bytes of what a layer is given, which is as large as what it hands on: the first input of its first operator."""
    costs = operator_costs(context.trace)
    calls = costs.of_tasks(context.graph)[layer.forward]
    for call in calls[calls >= 0].tolist():
        number = int(costs.number[call])
        dims = orjson.loads(costs.keys[number].partition(" ")[2])
        if dims and isinstance(dims[0], list) and len(dims[0]) > 1:
            return float(math.prod(dims[0]) * size_of(costs.costs[number].dtype))
    return 0.0
