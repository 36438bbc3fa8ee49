"""Layers spread over devices, as a task graph of its own: stages, micro-batches, and what they send each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from pytest_perfdl.whatif.model import (
    NO_RELEASE,
    NO_SCOPE,
    EdgeKind,
    Edges,
    TaskGraph,
    TaskKind,
    Tasks,
    Track,
    TrackKind,
)


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
        """An all-reduce over a ring."""
        return 2 * (ranks - 1) / ranks * size / self.bytes_per_s * 1e9 + 2 * (ranks - 1) * self.latency_ns


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


def staged(layers: Sequence[LayerCost], layout: DeviceLayout, network: Network) -> TaskGraph:
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
    made = _Building()
    for number, group in enumerate(groups):
        reduce = sum(2 * _reduced(layer, layout, network) for layer in group)
        forward = max(sum(layer.forward_ns for layer in group) / part, sum(layer.host_forward_ns for layer in group))
        backward = max(sum(layer.backward_ns for layer in group) / part, sum(layer.host_backward_ns for layer in group))
        ahead = min(layout.pipeline - number, layout.micro_batches)
        order = [("forward", index) for index in range(ahead)]
        for index in range(layout.micro_batches):
            order.append(("backward", index))
            if index + ahead < layout.micro_batches:
                order.append(("forward", index + ahead))
        for kind, index in order:
            made.add(number, (kind, number, index), (forward if kind == "forward" else backward) + reduce)
        made.add(number, ("update", number, 0), sum(layer.update_ns for layer in group) / layout.tensor)
        if layout.data > 1:
            gradients = sum(layer.parameter_bytes for layer in group) / layout.tensor
            made.add(layout.pipeline + number, ("reduce", number, 0), network.reduce_ns(gradients, layout.data))
    for number, group in enumerate(groups):
        sent = network.send_ns(group[-1].sent_bytes / (layout.data * layout.micro_batches))
        for index in range(layout.micro_batches):
            if number + 1 < len(groups):
                made.link(("forward", number, index), ("forward", number + 1, index), sent)
                made.link(("backward", number + 1, index), ("backward", number, index), sent)
        if layout.data > 1:
            made.link(("backward", number, layout.micro_batches - 1), ("reduce", number, 0), 0, at_start=True)
            made.link(("reduce", number, 0), ("update", number, 0), 0)
    return made.graph(2 * layout.pipeline)


def _reduced(layer: LayerCost, layout: DeviceLayout, network: Network) -> float:
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


class _Building:
    """Collects tasks by track, and edges by their names."""

    def __init__(self) -> None:
        self.tasks: dict[Key, tuple[int, int]] = {}
        self.edges: list[tuple[Key, Key, float, bool]] = []

    def add(self, track: int, key: Key, ns: float) -> None:
        self.tasks[key] = track, round(ns)

    def link(self, source: Key, target: Key, lag: float, *, at_start: bool = False) -> None:
        self.edges.append((source, target, lag, at_start))

    def graph(self, tracks: int) -> TaskGraph:
        keys = sorted(self.tasks, key=lambda key: self.tasks[key][0])
        at = {key: number for number, key in enumerate(keys)}
        track = np.array([self.tasks[key][0] for key in keys], dtype=np.int32)
        duration = np.array([self.tasks[key][1] for key in keys], dtype=np.int64)
        count = len(keys)
        behind = np.flatnonzero(track[1:] == track[:-1])
        chains = Edges.of(EdgeKind.STREAM, behind, behind + 1, 0)
        source = np.array([at[each] for each, _, _, _ in self.edges], dtype=np.intp)
        target = np.array([at[each] for _, each, _, _ in self.edges], dtype=np.intp)
        lags = np.array([round(edge[2]) for edge in self.edges], dtype=np.int64)
        starts = np.array([edge[3] for edge in self.edges], dtype=bool)
        zeros = np.zeros(count, dtype=np.int64)
        return TaskGraph(
            tasks=Tasks(
                kind=np.where([key[0] == "reduce" for key in keys], TaskKind.COMMUNICATION, TaskKind.KERNEL).astype(
                    np.int8
                ),
                track=track,
                name=np.arange(count, dtype=np.int32),
                row=np.full(count, -1, dtype=np.intp),
                start=zeros,
                duration=duration,
                release=np.full(count, NO_RELEASE, dtype=np.int64),
                submitted=zeros,
                launcher=np.full(count, -1, dtype=np.intp),
                step=np.full(count, -1, dtype=np.int32),
                scope=np.full(count, NO_SCOPE, dtype=np.int32),
                setup=np.zeros(count, dtype=bool),
                unexplained=zeros,
            ),
            edges=Edges.joined(chains, Edges.of(EdgeKind.COMMUNICATION, source, target, lags, at_start=starts)),
            tracks=tuple(Track(TrackKind.STREAM, number, 0) for number in range(tracks)),
            names=tuple(f"{kind} {index} of stage {stage}" for kind, stage, index in keys),
        )
