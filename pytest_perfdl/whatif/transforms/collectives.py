"""Gradients exchanged between ranks: data parallel training, and ways to make its communication cheaper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pytest_perfdl.analysis.account.parts.labels import PHASES, labels
from pytest_perfdl.machine.constants import Machine
from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.trace.model import I32, Rows
from pytest_perfdl.whatif.editing.edit import Plan, primitive
from pytest_perfdl.whatif.editing.insertion import NewTask
from pytest_perfdl.whatif.editing.select import of_rows
from pytest_perfdl.whatif.facts import Gradients, gradients, inside, optimizer_steps
from pytest_perfdl.whatif.layers import gradient_modules
from pytest_perfdl.whatif.model import EdgeKind, Edges, Mask, TaskGraph, TaskKind, Track, TrackKind, of_kinds
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, quantity, transform
from pytest_perfdl.whatif.transforms.operators import operator_rows

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Bytes of DistributedDataParallel's first bucket and of the others (its defaults)."""

CONTENTION = (1.34, 1.0, 1.7)
"""NCCL beside computing takes a third longer than size over bandwidth (Daydream's observation): likely, least, most."""

SLICE = 4 * 2**20
"""Bytes of a slice of P3: small enough to overtake, large enough for the latency."""

_PROCESS = 900
"""Where a channel is that the trace does not have."""


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Gradients that are exchanged together: the task that completes each, its bytes, and its last gradient."""

    task: Rows
    bytes: Rows
    gradient: Rows


def buckets(context: Context, first: int = FIRST_BUCKET, size: int = BUCKET) -> Buckets:
    """Gradients in the order in which they are complete, in buckets that are sent when they are full.

    Raises
    ------
    NotApplicable
        If the trace has no shapes of gradients.
    """
    sizes: Gradients = gradients(context.trace)
    if not len(sizes.row):
        raise NotRecorded("the trace has no shapes of gradients: profile with record_shapes=True")
    graph = context.graph
    completes = _completing(graph, context.trace.end[sizes.row], sizes.row)
    tasks: dict[int, tuple[int, int]] = {}
    for step in np.unique(sizes.step[sizes.step >= 0]).tolist():
        own = np.flatnonzero(sizes.step == step)
        limit, held = first, 0
        for place in own.tolist():
            held += int(sizes.bytes[place])
            if (held >= limit or place == own[-1]) and completes[place] >= 0:
                task = int(completes[place])
                tasks[task] = tasks.get(task, (0, 0))[0] + held, place
                limit, held = size, 0
    order = sorted(tasks)
    columns = [order, [tasks[task][0] for task in order], [tasks[task][1] for task in order]]
    return Buckets(*(np.array(column, dtype=np.intp) for column in columns))


def _completing(graph: TaskGraph, moments: np.typing.NDArray[np.int64], rows: Rows) -> Rows:
    """The task behind which each gradient is there: on a device the last one launched until then, else the host's."""
    trace, tasks = graph.trace, graph.tasks
    assert trace is not None
    host = np.full(len(rows), -1, dtype=np.intp)
    for number, track in enumerate(graph.tracks):
        if track.kind != TrackKind.THREAD:
            continue
        own = np.flatnonzero((trace.pid[rows] == track.process) & (trace.tid[rows] == track.number))
        first, last = np.searchsorted(tasks.track, (number, number + 1))
        place = np.searchsorted(tasks.start[first:last], moments[own], side="left") - 1
        host[own] = np.where(place >= 0, first + place, -1)
    if not graph.on_device:
        return host
    kernels = np.flatnonzero(of_kinds(tasks, TaskKind.KERNEL))
    kernels = kernels[np.argsort(tasks.submitted[kernels], kind="stable")]
    place = np.searchsorted(tasks.submitted[kernels], moments, side="left") - 1
    return np.where(place >= 0, kernels[np.maximum(place, 0)], -1) if len(kernels) else host * 0 - 1


def ring_ns(size: float, ranks: int, rate: float, latency_ns: float) -> float:
    """Nanoseconds of an all-reduce over a ring: 2 (n - 1) / n S / B + 2 (n - 1) alpha.

    >>> ring_ns(4e6, 2, 1e9, 1000)
    4002000.0
    """
    return 2 * (ranks - 1) / ranks * size / rate * 1e9 + 2 * (ranks - 1) * latency_ns


def exchange(context: Context, found: Buckets, ns: list[float], name: str, *, copies: bool = True) -> Plan:
    """One collective a bucket on a channel, in the order of the buckets; the update waits for the last.

    `copies`: gradients are copied into the bucket and back, 8 bytes each time over the memory's bandwidth.
    """
    graph = context.graph
    duration = graph.tasks.duration.copy()
    updating = _first_of_updates(context)
    rate = context.known.memory_bytes_per_s
    if copies and rate:
        duration[found.task] += np.rint(found.bytes * 2 / rate * 1e9).astype(np.int64)
        for step in np.unique(graph.tasks.step[found.task]).tolist():
            own = updating & (graph.tasks.step == step)
            back = found.bytes[graph.tasks.step[found.task] == step].sum() * 2 / rate * 1e9
            duration[np.flatnonzero(own)[:1]] += round(back)
    after = np.zeros(len(graph), dtype=bool)
    after[found.task] = True
    new = NewTask(name, tuple(round(each) for each in ns), TaskKind.COMMUNICATION, 0 if not graph.on_device else 10_000)
    return Plan().timed(duration).insert(new, after, track=_channel(graph), before=updating if updating.any() else None)


def _channel(graph: TaskGraph) -> Track:
    device = next((track.process for track in graph.tracks if track.kind == TrackKind.STREAM), None)
    return Track(TrackKind.CHANNEL, _PROCESS, 0) if device is None else Track(TrackKind.STREAM, device, 1000)


def _first_of_updates(context: Context) -> Mask:
    """The first task of each update on the device, else on the host."""
    graph = context.graph
    rows, _ = optimizer_steps(context.trace)
    tasks = np.flatnonzero(inside(graph, rows) & (graph.is_device if graph.on_device else ~graph.is_device))
    found = np.zeros(len(graph), dtype=bool)
    for step in np.unique(graph.tasks.step[tasks]).tolist():
        own = tasks[graph.tasks.step[tasks] == step]
        found[own[np.argmin(graph.tasks.start[own])]] = True
    return found


def _peak(context: Context, more: float) -> int | None:
    memory = context.memory
    return None if memory is None else memory.with_more(round(more)).peak_bytes


@transform("data_parallel")
def data_parallel(context: Context, ranks: int, bucket: float = BUCKET, contention: float = 0.0) -> Change:
    """DistributedDataParallel over `ranks` devices, each with the batch size of the trace.

    Gradients fill buckets (1 MiB, then `bucket` bytes) in the order of the backward pass; each bucket is reduced on a
    channel of its own behind its last gradient, one after the other, t = 2 (n - 1) / n S / B + 2 (n - 1) alpha, and the
    update waits for the last. They are copied into the bucket and back. B and alpha are the network's (`--machine`).
    Unless `contention` says otherwise t is 1.34 times as long (Daydream: NCCL beside computing; 1 to 1.7 in the
    interval). Ranks are assumed to be equally fast. Peak memory: the buckets, as large as the gradients.

    Raises
    ------
    MissingConstant, NotApplicable
        Without the network's bandwidth; without shapes of gradients.
    """
    machine = _several(context, ranks)
    rate = machine.rate("network_bytes_per_s", "the bandwidth between ranks")
    found = buckets(context, size=round(bucket))
    plans = []
    for factor in (contention,) * 3 if contention else CONTENTION:
        ns = [ring_ns(size, ranks, rate, machine.network_latency_ns) * factor for size in found.bytes.tolist()]
        plans.append(exchange(context, found, ns, "all-reduce"))
    return Change.of(plans, peak_bytes=_peak(context, gradients(context.trace).total_bytes))


def _several(context: Context, ranks: int) -> Machine:
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: expected at least 2")
    return context.known


@transform("dgc")
def dgc(context: Context, ranks: int, ratio: float = 0.001) -> Change:
    """Deep Gradient Compression: data parallel, exchanging only the largest gradients.

    As `data_parallel`, with an all-gather of value and index of `ratio` of a bucket's elements, (n - 1) 2 `ratio` S / B
    + (n - 1) alpha, and 12 bytes an element over the memory's bandwidth for finding and adding them up (momentum
    correction reads and writes two buffers). 0.001 is the paper's ratio (Lin et al., ICLR 2018). Peak memory: two
    buffers as large as the gradients.
    """
    machine = _several(context, ranks)
    rate = machine.rate("network_bytes_per_s", "the bandwidth between ranks")
    memory = machine.rate("memory_bytes_per_s", "the bandwidth of the memory")
    found = buckets(context)
    sent = [
        ((ranks - 1) * 2 * ratio * size / rate * 1e9 + (ranks - 1) * machine.network_latency_ns)
        for size in found.bytes.tolist()
    ]
    graph = context.graph
    duration = graph.tasks.duration.copy()
    duration[found.task] += np.rint(found.bytes * 3 / memory * 1e9).astype(np.int64)
    plans = [
        Plan().timed(duration)
        + _without_timing(exchange(context, found, [ns * f for ns in sent], "all-gather", copies=False))
        for f in CONTENTION
    ]
    return Change.of(plans, peak_bytes=_peak(context, 2 * gradients(context.trace).total_bytes))


def _without_timing(plan: Plan) -> Plan:
    return Plan(plan.edits[1:])


@transform("blueconnect")
def blueconnect(context: Context, shape: str, bandwidths: str = "", contention: float = 0.0) -> Change:
    """BlueConnect: all-reduce in stages over a hierarchy of ranks, such as `shape=8x4`, innermost first.

    A stage over p_k ranks reduces and gathers S / (p_1 ... p_k-1) bytes: t = sum of 2 (p_k - 1) / p_k S / (p_1 ...
    p_k-1) / B_k + 2 (p_k - 1) alpha (Cho et al., MLSys 2019). `bandwidths=300GBx25GB` has one a stage; without, all
    have the network's. Beside computing it takes as much longer as in `data_parallel`. Stages of different buckets do
    not overlap here, though BlueConnect lets them: the interval reaches down to the slowest stage alone.
    """
    sizes = _numbers(shape, "shape", int)
    machine = _several(context, int(np.prod(sizes)))
    rates = _numbers(bandwidths, "bandwidths", float) if bandwidths else []
    rates = rates or [machine.rate("network_bytes_per_s", "the bandwidth between ranks")] * len(sizes)
    if len(rates) != len(sizes):
        raise ValueError(f"blueconnect:bandwidths: {len(rates)} of them for {len(sizes)} stages")
    found = buckets(context)
    stages: list[list[float]] = []
    for size in found.bytes.tolist():
        left, each = float(size), []
        for ranks, rate in zip(sizes, rates, strict=True):
            each.append(ring_ns(left, int(ranks), rate, machine.network_latency_ns))
            left /= ranks
        stages.append(each)
    likely, least, most = (contention,) * 3 if contention else CONTENTION
    plans = [
        exchange(context, found, [of(each) * factor for each in stages], "staged all-reduce")
        for of, factor in ((sum, likely), (max, least), (sum, most))
    ]
    return Change.of(plans, peak_bytes=_peak(context, gradients(context.trace).total_bytes))


def _numbers(text: str, name: str, kind: type) -> list[float]:
    try:
        found = [quantity(part) for part in text.split("x")]
    except ValueError as error:
        raise ValueError(f"blueconnect:{name}={text}: {error}") from None
    if any(value <= 0 or (kind is int and value != int(value)) for value in found):
        raise ValueError(f"blueconnect:{name}={text}: expected numbers above 0 with x between them")
    return found


@primitive("link")
def _link(graph: TaskGraph, pairs: Callable[[TaskGraph], tuple[Rows, Rows]]) -> TaskGraph:
    """Tasks that wait for others, pair by pair."""
    source, target = pairs(graph)
    more = Edges.of(EdgeKind.COMMUNICATION, source, target, 0)
    return replace(graph, edges=Edges.joined(graph.edges, more))


@transform("p3")
def p3(context: Context, ranks: int, slice: float = SLICE) -> Change:  # noqa: A002
    """P3: exchange gradients in slices, in the order in which the next step needs them.

    Each layer waits only for its slices.

    As `data_parallel`, but gradients go in slices of `slice` bytes; the channel takes, of the slices that are ready,
    that of the module whose forward pass comes first; and a module's forward pass of the next step waits for its own
    slices, instead of the update for all (Jayarajan et al., "Priority-based Parameter Propagation", MLSys 2019; in
    Daydream: Insert and Schedule). The update stays where it is, which is too early for the last slices by its length.

    Raises
    ------
    MissingConstant, NotApplicable
        As `data_parallel`; without modules.
    """
    machine = _several(context, ranks)
    rate = machine.rate("network_bytes_per_s", "the bandwidth between ranks")
    graph, marks = context.graph, labels(context.trace)
    module = gradient_modules(context.trace)
    if not len(module) or (module < 0).all():
        raise NotRecorded(
            "the trace has no modules: profile with with_modules=True and with_stack=True, or with pytest --perf"
        )
    found = buckets(context, round(slice), round(slice))
    of = module[found.gradient]
    forward = _forward_starts(graph, marks.module, marks.phase)
    priority = [forward.get((0, int(each)), (2**62, -1))[0] for each in of.tolist()]
    step = graph.tasks.step[found.task]
    waiting = [forward.get((int(s) + 1, int(m)), (0, -1))[1] for s, m in zip(step.tolist(), of.tolist(), strict=True)]
    after = np.zeros(len(graph), dtype=bool)
    after[found.task] = True
    track, name = _channel(graph), "slice of gradients"
    old_rows = graph.tasks.row

    def new_tasks(edited: TaskGraph) -> Rows:
        return np.flatnonzero((edited.tasks.name == edited.names.index(name)) & edited.is_device)

    def pairs(edited: TaskGraph) -> tuple[Rows, Rows]:
        slices = new_tasks(edited)
        places = zip(edited.tasks.row.tolist(), edited.tasks.start.tolist(), strict=True)
        rows = {place: number for number, place in enumerate(places)}
        both = [
            (own, rows[int(old_rows[held]), int(graph.tasks.start[held])])
            for own, held in zip(slices.tolist(), waiting, strict=True)
            if held >= 0
        ]
        columns = np.array(both, dtype=np.intp).reshape(-1, 2)
        return columns[:, 0], columns[:, 1]

    def policy(edited: TaskGraph) -> np.typing.NDArray[np.float64]:
        values = np.zeros(len(edited))
        values[new_tasks(edited)] = priority
        return values

    plans = []
    for factor in CONTENTION:
        ns = [round(ring_ns(size, ranks, rate, machine.network_latency_ns) * factor) for size in found.bytes.tolist()]
        new = NewTask(name, tuple(ns), TaskKind.COMMUNICATION, 0)
        plans.append(Plan().insert(new, after, track=track).then("link", pairs=pairs).schedule(track, policy))
    return Change.of(plans, peak_bytes=_peak(context, gradients(context.trace).total_bytes))


def _forward_starts(graph: TaskGraph, module: I32, phase: I32) -> dict[tuple[int, int], tuple[int, int]]:
    """Start and number of the first task of each module's forward pass in each step, of the device if it has any."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    rows = graph.tasks.row
    forward = PHASES.index("forward")
    own = np.flatnonzero((rows >= 0) & (graph.is_device if graph.on_device else ~graph.is_device))
    own = own[(module[rows[own]] >= 0) & (phase[rows[own]] == forward)]
    own = own[np.argsort(-graph.tasks.start[own], kind="stable")]
    for task in own.tolist():
        found[int(graph.tasks.step[task]), int(module[rows[task]])] = int(graph.tasks.start[task]), task
    return found


@transform("bandwidth")
def bandwidth(context: Context, factor: float) -> Change:
    """A network that is `factor` times as fast.

    Collectives take t' = t / factor.

    Of a collective's time a part is waiting for other ranks and latency, which stay: the interval reaches to half the
    change.
    """
    if factor <= 0:
        raise ValueError(f"bandwidth:factor={factor}: expected more than 0")
    tasks = of_kinds(context.graph.tasks, TaskKind.COMMUNICATION)
    if not tasks.any():
        raise NotApplicable("nothing communicates")
    plan, other = (Plan().scale(tasks, share) for share in (1 / factor, (1 + 1 / factor) / 2))
    return Change(plan, fast=other) if factor < 1 else Change(plan, slow=other)


@transform("hide_communication")
def hide_communication(context: Context) -> Change:
    """Overlap all collectives with compute: an upper bound of what better overlap gains.

    Collectives take no time. An upper bound, since how much computing is there to hide behind is not asked: the
    interval reaches to no gain, and trust is low.
    """
    tasks = of_kinds(context.graph.tasks, TaskKind.COMMUNICATION)
    if not tasks.any():
        raise NotApplicable("nothing communicates")
    return Change(Plan().scale(tasks, 0.0), slow=Plan(), trust="low", notes=("an upper bound",))


@transform("replace_data_parallel")
def replace_data_parallel(context: Context, ranks: int) -> Change:
    """DistributedDataParallel instead of DataParallel.

    No scatter, replicate and gather, but the buckets of `data_parallel`.

    The operators `Scatter`, `Broadcast`, `Gather` and their backward ones vanish with what they launch. All replicas'
    launches from one process stay, though each would get a process of its own: a gain that is not promised.
    """
    moving = np.zeros(len(context.trace), dtype=bool)
    for name in ("Scatter", "Broadcast", "Gather", "ReduceAddCoalesced"):
        moving |= operator_rows(context.trace, name)
    tasks = of_rows(context.graph, moving)
    if not tasks.any():
        raise NotApplicable("nothing scatters, replicates or gathers as DataParallel does")
    reducing = data_parallel(context, ranks)
    plans = [
        None if plan is None else plan.remove(lambda graph: of_rows(graph, moving))
        for plan in (reducing.plan, reducing.fast, reducing.slow)
    ]
    return Change(
        plans[0] or Plan(), plans[1], plans[2], reducing.peak_bytes, "low", ("replicas share one process here",)
    )
