"""Exchange of gradients between ranks: data-parallel training, its buckets, and cheaper communication."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pytest_perfdl.analysis.account.parts import PHASES, labels
from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.trace.model import F64, I32, I64, Category, Rows
from pytest_perfdl.whatif.collectives import Cost, completing_gradients, fit_cost, transfers
from pytest_perfdl.whatif.editing.edit import Plan, primitive
from pytest_perfdl.whatif.editing.select import tasks_of_rows
from pytest_perfdl.whatif.editing.surgery import NewTask
from pytest_perfdl.whatif.facts import (
    Gradients,
    by_thread,
    gradients,
    optimizer_steps,
    tasks_inside,
    tasks_of_computing,
)
from pytest_perfdl.whatif.from_trace.job import communication_tasks
from pytest_perfdl.whatif.model import (
    NO_RELEASE,
    Constants,
    EdgeKind,
    Edges,
    Job,
    Mask,
    Meetings,
    TaskGraph,
    TaskKind,
    Track,
    TrackKind,
    are_of_kinds,
    mask_of,
)
from pytest_perfdl.whatif.rank_work import expected_maximum
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.strategy import NO_MODULES, Network, gradient_modules, network_of
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, quantity, transform
from pytest_perfdl.whatif.transforms.operators import operator_rows
from pytest_perfdl.whatif.transforms.ranks import ONE_SIZE, ends_of, job_of

# Exchange of gradients between ranks: data-parallel training, and ways to make its communication cheaper.


FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Bytes of DistributedDataParallel's first bucket and of the others (its defaults)."""

CONTENTION = (1.34, 1.0, 1.7)
"""NCCL beside compute takes a third longer than size / bandwidth (observed by Daydream): likely, least, most."""

SLICE = 4 * 2**20
"""Bytes per slice of P3: small enough to be overtaken, large enough to amortize the latency."""

_PROCESS = 900
"""Process of a channel that the trace does not have."""


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Gradients that are exchanged together: the task that completes each bucket, its bytes, its last gradient."""

    task: Rows
    bytes: Rows
    gradient: Rows


def buckets(context: Context, first: int = FIRST_BUCKET, size: int = BUCKET) -> Buckets:
    """Divide the gradients, in the order in which the backward pass completes them, into buckets.

    A bucket is sent when it is full.

    Raises
    ------
    NotApplicable
        If the trace has no shapes of gradients.
    """
    sizes = gradients(context.trace)
    if not len(sizes.row):
        raise NotRecorded("the trace has no shapes of gradients: profile with record_shapes=True")
    completes = completing_tasks(context.graph, context.trace.end[sizes.row], sizes.row)
    tasks: dict[int, tuple[int, int]] = {}
    for step in np.unique(sizes.step[sizes.step >= 0]).tolist():
        own = np.flatnonzero(sizes.step == step)
        for place, held in _fill_buckets(sizes.bytes[own], first, size, completes[own] >= 0):
            task = int(completes[own[place]])
            tasks[task] = tasks.get(task, (0, 0))[0] + held, int(own[place])
    columns = np.array([(task, *tasks[task]) for task in sorted(tasks)], dtype=np.intp).reshape(-1, 3)
    return Buckets(*columns.T)


def _fill_buckets(sizes: I64, first: int, size: int, may_end: Mask | None = None) -> list[tuple[int, int]]:
    """Which gradient of a step completes each bucket, of those that may, and the bytes of the bucket."""
    found, limit, held = [], first, 0
    for place, added in enumerate(sizes.tolist()):
        held += added
        if (held >= limit or place == len(sizes) - 1) and (may_end is None or may_end[place]):
            found.append((place, held))
            limit, held = size, 0
    return found


def completing_tasks(graph: TaskGraph, moments: I64, rows: Rows) -> Rows:
    """The task that completes each gradient: on a device the last kernel launched before it, else the host's task."""
    tasks = graph.tasks
    host = np.full(len(rows), -1, dtype=np.intp)
    for thread, own in by_thread(graph, rows):
        place = np.searchsorted(tasks.start[thread], moments[own], side="left") - 1
        host[own] = np.where(place >= 0, thread.start + place, -1)
    if not graph.on_device:
        return host
    kernels = np.flatnonzero(are_of_kinds(tasks, TaskKind.KERNEL))
    kernels = kernels[np.argsort(tasks.submitted[kernels], kind="stable")]
    place = np.searchsorted(tasks.submitted[kernels], moments, side="left") - 1
    return np.where(place >= 0, kernels[np.maximum(place, 0)], -1) if len(kernels) else host * 0 - 1


def _add_exchange(context: Context, found: Buckets, ns: Iterable[float], name: str, duration: I64) -> Plan:
    """Add one collective per bucket on a separate channel, in the order of the buckets. The update waits for the last.

    `duration` is that of all tasks.
    """
    graph, updating = context.graph, _first_of_updates(context)
    new = NewTask(name, tuple(map(round, ns)), TaskKind.COMMUNICATION, 0 if not graph.on_device else 10_000)
    waiting = updating if len(updating) else None
    return Plan().timed(duration).insert(new, found.task, track=_channel(graph), before=waiting)


def _with_copies(context: Context, found: Buckets) -> I64:
    """Durations of all tasks, with each gradient copied into its bucket and back.

    Each copy reads and writes an element of 4 bytes: 8 bytes at the memory bandwidth.
    """
    tasks, rate = context.graph.tasks, context.known.memory_bytes_per_s
    duration: I64 = tasks.duration.copy()
    if rate:
        updating = np.sort(_first_of_updates(context))
        duration[found.task] += np.rint(found.bytes * 2 / rate * 1e9).astype(np.int64)
        for step in np.unique(tasks.step[found.task]).tolist():
            back = found.bytes[tasks.step[found.task] == step].sum() * 2 / rate * 1e9
            duration[updating[tasks.step[updating] == step][:1]] += round(back)
    return duration


def _channel(graph: TaskGraph) -> Track:
    device = next((track.process for track in graph.tracks if track.kind == TrackKind.STREAM), None)
    return Track(TrackKind.CHANNEL, _PROCESS, 0) if device is None else Track(TrackKind.STREAM, device, 1000)


def _first_of_updates(context: Context) -> Rows:
    """The first task of each update on the device, else on the host."""
    graph = context.graph
    tasks = np.flatnonzero(tasks_inside(graph, optimizer_steps(context.trace)[0]) & tasks_of_computing(graph))
    tasks = tasks[np.argsort(graph.tasks.start[tasks], kind="stable")]
    first: Rows = tasks[np.unique(graph.tasks.step[tasks], return_index=True)[1]]
    return first


def _peak(context: Context, buffers: int) -> int | None:
    """Peak memory with so many buffers that are as large as the gradients."""
    more = round(buffers * gradients(context.trace).total_bytes)
    return context.peak(lambda memory: memory.with_more(more))


@transform("data_parallel")
def data_parallel(context: Context, ranks: int, bucket: float = 0.0, contention: float = 0.0) -> Change:
    """Use DistributedDataParallel over `ranks` devices, each with the batch size of the trace.

    Gradients fill buckets in the order of the backward pass. Buckets have `bucket` bytes (`bucket_cap_mb`). By default,
    the first bucket has 1 MiB and the other buckets have 25 MiB. An all-reduce of a bucket starts when the last
    gradient of the bucket is computed. The all-reduces run one after the other on a separate channel, and the update
    waits for the last all-reduce.

    - An all-reduce takes `t = 2 (n - 1) / n * S / B + 2 (n - 1) alpha`, with the bandwidth B and the latency alpha of
      the network (`--machine`).
    - Contention with compute multiplies the time of an all-reduce by `contention`. The default of `contention` is 1.34
      (NCCL beside compute, from Daydream). The range of the prediction covers a contention of 1 to 1.7.
    - The simulation copies each gradient into its bucket and back, at the memory bandwidth.

    The simulation assumes that all ranks are equally fast, because the trace of one rank does not show how ranks
    differ. If they vary as its steps do, with the standard deviation sigma, the slowest of n ranks is `sigma E[n]` late
    in each step, where `E[n]` is the expected maximum of n normal variables. The range of the prediction covers this.

    The peak memory grows by the buckets, which are as large as the gradients.

    Raises
    ------
    MissingConstant, NotApplicable
        Without the network's bandwidth; without shapes of gradients.
    """
    network = _network(context, ranks)
    found = buckets(context, round(bucket) or FIRST_BUCKET, round(bucket) or BUCKET)
    ns, duration = [network.reduce_ns(size, ranks) for size in found.bytes.tolist()], _with_copies(context, found)
    plans = [
        _add_exchange(context, found, (each * factor for each in ns), "all-reduce", duration)
        for factor in _contention(contention)
    ]
    plans[2] = plans[2] + _delay_steps(context, ranks)
    return Change.of(plans, peak_bytes=_peak(context, 1))


def _contention(given: float) -> tuple[float, float, float]:
    return (given, given, given) if given else CONTENTION


def _delay_steps(context: Context, ranks: int) -> Plan:
    """Steps of the slowest of several ranks that vary as the steps of one do."""
    steps = simulate(context.graph).steps_ns
    late = float(steps.std(ddof=1)) * expected_maximum(ranks) if len(steps) > 1 else 0.0

    def first_of_steps(graph: TaskGraph) -> Rows:
        own = np.flatnonzero((graph.tasks.step >= 0) & tasks_of_computing(graph) & (graph.tasks.row >= 0))
        return own[np.unique(graph.tasks.step[own], return_index=True)[1]]

    return Plan().retime(first_of_steps, lambda graph, own: graph.tasks.duration[own] + round(late))


def _check_ranks(ranks: int) -> None:
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: expected at least 2")


def _network(context: Context, ranks: int) -> Network:
    _check_ranks(ranks)
    return network_of(context, "ranks")


@transform("dgc")
def dgc(context: Context, ranks: int, ratio: float = 0.001) -> Change:
    """Use data parallel with Deep Gradient Compression, which exchanges only the largest gradients.

    `dgc` is the same as `data_parallel`, with these differences:

    - An all-gather replaces the all-reduce. The all-gather sends the values and indices of a share `ratio` of all
      elements, and takes `t = (n - 1) * 2 ratio * S / B + (n - 1) alpha`. The default of `ratio`, 0.001, is the ratio
      of the paper (Lin et al., ICLR 2018).
    - Selecting and accumulating gradients moves 12 bytes per element at the memory bandwidth, because momentum
      correction reads and writes two buffers.
    - Gradients are not copied into buckets.

    The peak memory grows by two buffers that are as large as the gradients.
    """
    network = _network(context, ranks)
    memory = context.known.rate("memory_bytes_per_s", "the memory bandwidth")
    found = buckets(context)
    sent = [
        ((ranks - 1) * 2 * ratio * size / network.bytes_per_s * 1e9 + (ranks - 1) * network.latency_ns)
        for size in found.bytes.tolist()
    ]
    duration = context.graph.tasks.duration.copy()
    duration[found.task] += np.rint(found.bytes * 3 / memory * 1e9).astype(np.int64)
    plans = [
        _add_exchange(context, found, (ns * factor for ns in sent), "all-gather", duration) for factor in CONTENTION
    ]
    return Change.of(plans, peak_bytes=_peak(context, 2))


@transform("blueconnect")
def blueconnect(context: Context, shape: str, bandwidths: str = "", contention: float = 0.0) -> Change:
    """Use BlueConnect, an all-reduce in stages over a hierarchy of ranks, such as `shape=8x4`, innermost first.

    Stage k runs over p_k ranks, and reduces and gathers `S_k = S / (p_1 * ... * p_(k-1))` bytes (Cho et al., MLSys
    2019). The all-reduce takes the sum over all stages,
    `t = sum over k of (2 (p_k - 1) / p_k * S_k / B_k + 2 (p_k - 1) alpha)`.

    `bandwidths=300GBx25GB` sets the bandwidth B_k of each stage. Without `bandwidths`, all stages have the bandwidth of
    the network. Contention with compute is the same as in `data_parallel`.

    BlueConnect can overlap stages of different buckets. The simulation does not overlap stages, so the fast end of the
    range is the time of the slowest stage alone.
    """
    sizes = _numbers(shape, "shape", int)
    _check_ranks(int(np.prod(sizes)))
    rates = _numbers(bandwidths, "bandwidths", float) if bandwidths else []
    rates = rates or [network_of(context, "ranks").bytes_per_s] * len(sizes)
    if len(rates) != len(sizes):
        raise ValueError(
            f"blueconnect:bandwidths: expected one bandwidth for each of the {len(sizes)} stages, got {len(rates)}"
        )
    found = buckets(context)
    stages: list[list[float]] = []
    for size in found.bytes.tolist():
        left, each = float(size), []
        for ranks, rate in zip(sizes, rates, strict=True):
            each.append(Network(rate, context.known.network_latency_ns).reduce_ns(left, int(ranks)))
            left /= ranks
        stages.append(each)
    whole, slowest = [sum(each) for each in stages], [max(each) for each in stages]
    duration = _with_copies(context, found)
    plans = [
        _add_exchange(context, found, (ns * factor for ns in times), "staged all-reduce", duration)
        for times, factor in zip((whole, slowest, whole), _contention(contention), strict=True)
    ]
    return Change.of(plans, peak_bytes=_peak(context, 1))


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
    """Make tasks wait for other tasks, pair by pair."""
    source, target = pairs(graph)
    more = Edges.of(EdgeKind.COMMUNICATION, source, target, 0)
    return replace(graph, edges=Edges.joined(graph.edges, more))


@transform("p3")
def p3(context: Context, ranks: int, slice: float = SLICE) -> Change:  # noqa: A002
    """Use P3, which exchanges gradients in slices, in the order in which the next step needs them.

    `p3` is the same as `data_parallel`, with the differences below (Jayarajan et al., "Priority-based Parameter
    Propagation", MLSys 2019). Daydream models P3 with its operations Insert and Schedule.

    - The ranks send gradients in slices of `slice` bytes.
    - If several slices are ready, the channel first sends the slices of the module whose forward pass comes first.
    - In the next step, the forward pass of a module waits only for the slices of that module, not for the whole update.
    - Gradients are not copied into buckets.

    The update keeps its position in the step and does not wait for the slices. So the simulated update is too early for
    the last slices, by up to the duration of the update.

    Raises
    ------
    MissingConstant, NotApplicable
        As `data_parallel`; without modules.
    """
    network = _network(context, ranks)
    graph, marks = context.graph, labels(context.trace)
    module = gradient_modules(context.trace)
    if not len(module) or (module < 0).all():
        raise NotRecorded(NO_MODULES)
    found = buckets(context, round(slice), round(slice))
    of = module[found.gradient]
    forward = _forward_starts(graph, marks.module, marks.phase)
    priority = [forward.get((0, int(each)), (2**62, -1))[0] for each in of.tolist()]
    step = graph.tasks.step[found.task]
    waiting = [forward.get((int(s) + 1, int(m)), (0, -1))[1] for s, m in zip(step.tolist(), of.tolist(), strict=True)]
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

    def policy(edited: TaskGraph) -> F64:
        values = np.zeros(len(edited))
        values[new_tasks(edited)] = priority
        return values

    plans = []
    for factor in CONTENTION:
        ns = tuple(round(network.reduce_ns(size, ranks) * factor) for size in found.bytes.tolist())
        new = NewTask(name, ns, TaskKind.COMMUNICATION, 0)
        plans.append(Plan().insert(new, found.task, track=track).then("link", pairs=pairs).schedule(track, policy))
    return Change.of(plans, peak_bytes=_peak(context, 1))


def _forward_starts(graph: TaskGraph, module: I32, phase: I32) -> dict[tuple[int, int], tuple[int, int]]:
    """Start and index of the first task of each module's forward pass per step, on the device if there is one."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    rows = graph.tasks.row
    forward = PHASES.index("forward")
    own = np.flatnonzero((rows >= 0) & tasks_of_computing(graph))
    own = own[(module[rows[own]] >= 0) & (phase[rows[own]] == forward)]
    own = own[np.argsort(-graph.tasks.start[own], kind="stable")]
    for task in own.tolist():
        found[int(graph.tasks.step[task]), int(module[rows[task]])] = int(graph.tasks.start[task]), task
    return found


@transform("hide_communication")
def hide_communication(context: Context) -> Change:
    """Overlap all collectives with compute, as an upper bound of what better overlap gains.

    Collectives take no time in the simulation. The prediction is an upper bound of the gain, because the simulation
    does not check whether there is enough compute to overlap with. The lower end of the predicted gain is zero, and the
    confidence is low.
    """
    tasks = are_of_kinds(context.graph.tasks, TaskKind.COMMUNICATION)
    if not tasks.any():
        raise NotApplicable("the trace has no communication")
    notes = ("the prediction is an upper bound of the gain",)
    return Change(Plan().scale(tasks, 0.0), slow=Plan(), trust="low", notes=notes)


@transform("replace_data_parallel")
def replace_data_parallel(context: Context, ranks: int) -> Change:
    """Use DistributedDataParallel instead of DataParallel.

    The simulation removes the operators `Scatter`, `Broadcast` and `Gather`, their backward operators, and everything
    that these operators launch. The simulation adds the all-reduces of `data_parallel`.

    The launches of all replicas stay in one process. DistributedDataParallel uses one process per replica, so the real
    gain can be larger. Confidence is low.
    """
    moving = np.zeros(len(context.trace), dtype=bool)
    for name in ("Scatter", "Broadcast", "Gather", "ReduceAddCoalesced"):
        moving |= operator_rows(context.trace, name)
    tasks = tasks_of_rows(context.graph, moving)
    if not tasks.any():
        raise NotApplicable("the trace has no work of DataParallel (scatter, replicate, gather)")
    reducing = data_parallel(context, ranks)
    plans = [
        (plan or Plan()).remove(lambda graph: tasks_of_rows(graph, moving))
        for plan in (reducing.plan, reducing.fast, reducing.slow)
    ]
    notes = ("the trace does not show how fast replicas would be in separate processes",)
    return Change.of(plans, reducing.peak_bytes, "low", notes)


# Other buckets of gradients in a job of several ranks that uses DistributedDataParallel.


_MIB = 2**20
_NAME = "all-reduce of a bucket"
_NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@transform("bucket_size", of_job=True)
def bucket_size(context: Context, cap_mb: float = 0.0) -> Change:
    """Use DistributedDataParallel with another `bucket_cap_mb`, in MiB; without `cap_mb` with torch's default.

    The gradients fill buckets in the order in which the backward pass of the traces completes them. A bucket is full
    when it has at least `cap_mb`. With torch's default, the first bucket has 1 MiB and the others 25 MiB; a
    `bucket_cap_mb` that is given counts for the first bucket, too (torch 2.13, `_BucketCapacityConfig`, and
    `compute_bucket_assignment_by_size` in torch/csrc/distributed/c10d/reducer.cpp).

    The all-reduce of a bucket starts when all ranks have completed its last gradient. The all-reduces run one after the
    other, and what waited for the old ones waits for the last of the new ones. A bucket of S bytes takes
    `alpha + S / beta`, fitted to the all-reduces of the traces as in `bandwidth`, plus their mean residual. Each bucket
    also costs the host what completing a bucket costs more than completing another gradient in the traces (median).

    The range of the prediction covers 90 % of fits to resampled all-reduces (bootstrap). If these all have about the
    same size, the range covers everything from no latency to no transfer, and the trust is low.

    Raises
    ------
    NotApplicable
        For one rank; if the all-reduces do not add up to the gradients of the backward pass.
    """
    if cap_mb < 0:
        raise ValueError(f"bucket_size:cap_mb={cap_mb:g}: expected a size in MiB above 0")
    job = job_of(context)
    lines, _ = _exchanges(job)
    old, transfer = job.meetings.bytes[lines], transfers(job.meetings)[lines]
    size = round(cap_mb * _MIB) or BUCKET
    first = size if cap_mb else FIRST_BUCKET
    cost = fit_cost(old, transfer)
    rest = float((transfer - cost.of(old)).mean())
    # Larger buckets gain by what the latency is, smaller ones lose by it.
    samples = sorted(cost.samples.tolist(), key=lambda each: each[0], reverse=size > float(old.mean()))
    ends = [replace(cost, latency_ns=latency, ns_per_byte=per_byte) for latency, per_byte in ends_of(samples)]
    costs = (cost, *ends)
    plans = [Plan().rejoin(partial(_rebucket, first=first, size=size, cost=each, rest=rest)) for each in costs]
    return Change.of(plans, trust="ok" if cost.known else "low", notes=() if cost.known else (ONE_SIZE,))


def _exchanges(job: Job) -> tuple[Rows, Rows]:
    """The all-reduces that exchange gradients, as lines of `Job.meetings`.

    And the gradient that completes the bucket of each on each rank: lines by ranks, indices into `gradients`.
    """
    found = job.meetings
    columns = []
    for column, part in enumerate(job.parts):
        if part.trace is None:
            raise NotApplicable("gradients are only known in graphs that were made from traces")
        rows = found.row[:, column]
        there = np.flatnonzero(rows >= 0)
        there = there[np.argsort(part.trace.start[rows[there]], kind="stable")]
        filled = np.full(len(rows), -1, dtype=np.intp)
        filled[there] = completing_gradients(part.trace, rows[there])
        columns.append(filled)
    both = np.stack(columns, axis=1)
    lines = np.flatnonzero((both >= 0).all(axis=1))
    if not len(lines):
        raise NotApplicable(
            "the all-reduces of the traces do not add up to the gradients of their backward passes: bucket_size needs "
            "traces of DistributedDataParallel with record_shapes=True"
        )
    return lines, both[lines]


def _rebucket(job: Job, first: int, size: int, cost: Cost, rest: float) -> Job:
    """The job with other buckets; the same where its buckets have this size already."""
    lines, filled = _exchanges(job)
    known = [gradients(part.trace) for part in job.parts if part.trace is not None]
    # Rank 0 tells the others what its buckets are (Reducer::sync_bucket_indices): the bytes are those of its gradients.
    filling, held = list[Rows](), list[I64]()
    for column, own in enumerate(known):
        steps = [np.flatnonzero(own.step == step) for step in np.unique(own.step[filled[:, column]])]
        buckets = [
            (its[place], amount) for its in steps for place, amount in _fill_buckets(own.bytes[its], first, size)
        ]
        at, sizes = np.array(buckets, dtype=np.int64).T
        filling.append(at.astype(np.intp))
        held.append(sizes)
    count = len(held[0])
    if any(len(at) != count for at in filling):
        raise NotApplicable("the ranks do not have the same gradients")
    ns = np.rint(np.maximum(cost.of(held[0]) + rest, 1.0)).astype(np.int64)
    if all(set(at.tolist()) == set(filled[:, column].tolist()) for column, at in enumerate(filling)):
        return job
    rows = np.stack([own.row[at] for own, at in zip(known, filling, strict=True)], axis=1)
    parts = [
        _replace_exchange(part, own, at, job.meetings.row[lines, column], filled[:, column], ns)
        for column, (part, own, at) in enumerate(zip(job.parts, known, filling, strict=True))
    ]
    kept = np.setdiff1d(np.arange(len(job.meetings)), lines)
    new = np.repeat(ns[:, None], len(known), axis=1)
    late = np.rint(job.meetings.late[lines].mean(axis=0)).astype(np.int64) + np.zeros_like(new)
    members = np.repeat(job.meetings.members[lines].max(), count)
    added = Meetings(rows, rows >= 0, new, new, late, np.full(count, "all_reduce"), held[0], members)
    return replace(job, parts=tuple(parts), meetings=job.meetings.take(kept).joined(added))


def _replace_exchange(part: TaskGraph, own: Gradients, at: Rows, old: Rows, filled: Rows, ns: I64) -> TaskGraph:
    """A rank with new all-reduces behind the gradients `at` instead of the old ones, which the gradients `filled`."""
    trace = part.trace
    assert trace is not None
    gone = communication_tasks(part, old)
    track = part.tracks[int(part.tasks.track[gone[0]])]
    waiting = mask_of(len(part), part.edges.target[np.isin(part.edges.source, gone)])
    waiting &= ~are_of_kinds(part.tasks, TaskKind.COMMUNICATION)
    overhead, pieces = _bucket_overhead(part, own, filled)
    duration = part.tasks.duration.copy()
    for each in pieces:
        total = max(int(duration[each].sum()), 1)
        duration[each] -= np.minimum(duration[each], np.rint(duration[each] * (overhead / total)).astype(np.int64))
    anchor = completing_tasks(part, trace.end[own.row[at]], own.row[at])
    launch = round(overhead) if not part.on_device else _launch_ns(part, gone)
    order = np.argsort(anchor, kind="stable")
    new = NewTask(_NAME, tuple(ns[order].tolist()), TaskKind.COMMUNICATION, launch)
    usual = part.constants if part.on_device else _usual_lags(part, gone, trace.end[own.row[filled]])
    made = Plan().timed(duration).insert(new, anchor, track=track, before=waiting).apply(replace(part, constants=usual))
    added = np.flatnonzero(
        (made.tasks.name == made.names.index(_NAME)) & are_of_kinds(made.tasks, TaskKind.COMMUNICATION)
    )
    added = added[np.argsort(made.tasks.start[added], kind="stable")]
    row = made.tasks.row.copy()
    row[added] = own.row[at]
    made = replace(made, tasks=replace(made.tasks, row=row), constants=part.constants)
    return Plan().remove(communication_tasks(made, old)).apply(made)


def _usual_lags(part: TaskGraph, gone: Rows, ready: I64) -> Constants:
    """How long a channel of the host takes from a gradient that is ready to its collective, and between two of these.

    Medians: of the collectives that found their channel free, and of those that had to wait for it.
    """
    tasks = part.tasks
    before = np.maximum(gone - 1, 0)
    ended = np.where(tasks.track[before] == tasks.track[gone], tasks.end[before], NO_RELEASE)
    free = ended <= ready
    lag, gap = (tasks.start[gone] - ready)[free], (tasks.start[gone] - ended)[~free]
    return Constants(
        launch_lag=int(np.median(lag)) if len(lag) else 0, kernel_gap=int(np.median(gap)) if len(gap) else 0
    )


def _launch_ns(part: TaskGraph, gone: Rows) -> int:
    launcher = part.tasks.launcher[gone]
    return int(np.median(part.tasks.duration[launcher[launcher >= 0]])) if (launcher >= 0).any() else 0


def _bucket_overhead(part: TaskGraph, own: Gradients, filled: Rows) -> tuple[float, list[Rows]]:
    """What completing a bucket costs the host more than another gradient, and the pieces in which it did so far."""
    trace = part.trace
    assert trace is not None
    nodes = trace.matching(_NODE.__eq__, trace.rows(Category.CPU_OP))
    nodes = nodes[np.argsort(trace.start[nodes], kind="stable")]
    place = np.searchsorted(trace.start[nodes], trace.start[own.row], side="right") - 1
    if part.on_device or not len(nodes) or (place < 0).any():
        return 0.0, []
    nodes = nodes[place]
    completes = mask_of(len(nodes), filled)
    took = trace.duration[nodes]
    more = float(np.median(took[completes]) - np.median(took[~completes])) if not completes.all() else 0.0
    track = part.tasks.on_track(part.owner)
    start = part.tasks.start[track]
    pieces = [
        np.arange(*np.searchsorted(start, (trace.start[row], trace.end[node])).tolist()) + track.start
        for row, node in zip(own.row[filled].tolist(), nodes[filled].tolist(), strict=True)
    ]
    return max(more, 0.0), pieces
