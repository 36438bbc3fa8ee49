"""Other buckets of gradients in a job of several ranks that uses DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.trace.model import I64, Category, Rows
from pytest_perfdl.whatif.collective_costs import Cost, fitted, transfers
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.editing.insertion import NewTask
from pytest_perfdl.whatif.facts import Gradients, gradients
from pytest_perfdl.whatif.from_trace.job import communication_tasks
from pytest_perfdl.whatif.gradient_collectives import completing
from pytest_perfdl.whatif.model import NO_RELEASE, Constants, Job, Meetings, TaskGraph, TaskKind, of_kinds
from pytest_perfdl.whatif.transform import Change, Context, transform
from pytest_perfdl.whatif.transforms.collectives import BUCKET, FIRST_BUCKET, completing_tasks
from pytest_perfdl.whatif.transforms.ranks import ENDS, ONE_SIZE, job_of

_MIB = 2**20
_NAME = "all-reduce of a bucket"
_NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True, eq=False)
class _Exchange:
    """The gradients of a job and the all-reduces that exchange them."""

    lines: Rows
    """Of `Job.meetings`."""
    filled: I64
    """The gradient that completes the bucket of each on each rank: lines by ranks, indices into `gradients`."""
    bytes: I64
    transfer: I64


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
    exchange = _exchange(job)
    size = round(cap_mb * _MIB) or BUCKET
    first = size if cap_mb else FIRST_BUCKET
    cost = fitted(exchange.bytes, exchange.transfer)
    rest = float((exchange.transfer - cost.of(exchange.bytes)).mean())
    costs = (cost, *_ends(cost, float(exchange.bytes.mean()), size))
    plans = [Plan().rejoin(partial(_rebucketed, first=first, size=size, cost=each, rest=rest)) for each in costs]
    return Change.of(plans, trust="ok" if cost.known else "low", notes=() if cost.known else (ONE_SIZE,))


def _ends(cost: Cost, old: float, size: int) -> list[Cost]:
    """Costs at the favorable and at the unfavorable end for buckets of another size."""
    # Larger buckets gain by what the latency is, smaller ones lose by it.
    samples = sorted(cost.samples.tolist(), key=lambda each: each[0], reverse=size > old)
    place = [round(share * (len(samples) - 1)) for share in (ENDS if cost.known else (0.0, 1.0))]
    return [replace(cost, latency_ns=samples[at][0], ns_per_byte=samples[at][1]) for at in place]


def _exchange(job: Job) -> _Exchange:
    found = job.meetings
    columns = []
    for column, part in enumerate(job.parts):
        if part.trace is None:
            raise NotApplicable("gradients are only known in graphs that were made from traces")
        rows = found.row[:, column]
        there = np.flatnonzero(rows >= 0)
        there = there[np.argsort(part.trace.start[rows[there]], kind="stable")]
        filled = np.full(len(rows), -1, dtype=np.intp)
        filled[there] = completing(part.trace, rows[there])
        columns.append(filled)
    both = np.stack(columns, axis=1)
    lines = np.flatnonzero((both >= 0).all(axis=1))
    if not len(lines):
        raise NotApplicable(
            "the all-reduces of the traces do not add up to the gradients of their backward passes: bucket_size needs "
            "traces of DistributedDataParallel with record_shapes=True"
        )
    return _Exchange(lines, both[lines], found.bytes[lines], transfers(found)[lines])


def _composed(sizes: Gradients, first: int, size: int, steps: Sequence[int]) -> list[tuple[int, int, int]]:
    """Buckets as (step, place of the gradient in its step that completes it, bytes)."""
    found = []
    for step in steps:
        own = np.flatnonzero(sizes.step == step)
        limit, held = first, 0
        for place, added in enumerate(sizes.bytes[own].tolist()):
            held += added
            if held >= limit or place == len(own) - 1:
                found.append((step, place, held))
                limit, held = size, 0
    return found


def _rebucketed(job: Job, first: int, size: int, cost: Cost, rest: float) -> Job:
    """The job with other buckets; the same where its buckets have this size already."""
    exchange = _exchange(job)
    known = [gradients(part.trace) for part in job.parts if part.trace is not None]
    steps = [sorted(set(own.step[exchange.filled[:, column]].tolist())) for column, own in enumerate(known)]
    # Rank 0 tells the others what its buckets are (Reducer::sync_bucket_indices).
    buckets = [_composed(own, first, size, its) for own, its in zip(known, steps, strict=True)]
    count = min(map(len, buckets))
    if any(len(own) != count for own in buckets):
        raise NotApplicable("the ranks do not have the same gradients")
    ns = np.rint(np.maximum(cost.of(np.array([held for _, _, held in buckets[0]])) + rest, 1.0)).astype(np.int64)
    filling = [
        np.array([np.flatnonzero(own.step == step)[place] for step, place, _ in its], dtype=np.intp)
        for own, its in zip(known, buckets, strict=True)
    ]
    if all(set(at.tolist()) == set(exchange.filled[:, column].tolist()) for column, at in enumerate(filling)):
        return job
    parts, rows = [], np.full((count, len(known)), -1, dtype=np.intp)
    for column, (part, own, at) in enumerate(zip(job.parts, known, filling, strict=True)):
        rows[:, column] = own.row[at]
        old = job.meetings.row[exchange.lines, column]
        parts.append(_exchanging(part, own, at, old, exchange.filled[:, column], ns))
    kept = np.setdiff1d(np.arange(len(job.meetings)), exchange.lines)
    new = np.repeat(ns[:, None], len(known), axis=1)
    late = np.rint(job.meetings.late[exchange.lines].mean(axis=0)).astype(np.int64) + np.zeros_like(new)
    added = Meetings(
        rows,
        rows >= 0,
        new,
        new,
        late,
        ("all_reduce",) * count,
        np.array([held for _, _, held in buckets[0]], dtype=np.int64),
        np.repeat(job.meetings.members[exchange.lines].max(), count),
    )
    return replace(job, parts=tuple(parts), meetings=job.meetings.take(kept).joined(added))


def _exchanging(part: TaskGraph, own: Gradients, at: Rows, old: Rows, filled: Rows, ns: I64) -> TaskGraph:
    """A rank with new all-reduces behind the gradients `at` instead of the old ones, which the gradients `filled`."""
    trace = part.trace
    assert trace is not None
    gone = communication_tasks(part, old)
    track = part.tracks[int(part.tasks.track[gone[0]])]
    edges = part.edges
    waiting = np.zeros(len(part), dtype=bool)
    waiting[edges.target[np.isin(edges.source, gone)]] = True
    waiting &= ~of_kinds(part.tasks, TaskKind.COMMUNICATION)
    overhead, pieces = _overhead(part, own, filled)
    duration = part.tasks.duration.copy()
    for each in pieces:
        total = max(int(duration[each].sum()), 1)
        duration[each] -= np.minimum(duration[each], np.rint(duration[each] * (overhead / total)).astype(np.int64))
    anchor = completing_tasks(part, trace.end[own.row[at]], own.row[at])
    after = np.zeros(len(part), dtype=bool)
    after[anchor] = True
    launch = round(overhead) if not part.on_device else _launch_ns(part, gone)
    order = np.argsort(anchor, kind="stable")
    new = NewTask(_NAME, tuple(ns[order].tolist()), TaskKind.COMMUNICATION, launch)
    usual = part.constants if part.on_device else _usual(part, gone, trace.end[own.row[filled]])
    made = Plan().timed(duration).insert(new, after, track=track, before=waiting).apply(replace(part, constants=usual))
    added = np.flatnonzero((made.tasks.name == made.names.index(_NAME)) & of_kinds(made.tasks, TaskKind.COMMUNICATION))
    added = added[np.argsort(made.tasks.start[added], kind="stable")]
    row = made.tasks.row.copy()
    row[added] = own.row[at]
    made = replace(made, tasks=replace(made.tasks, row=row), constants=part.constants)
    removed = np.zeros(len(made), dtype=bool)
    removed[communication_tasks(made, old)] = True
    return Plan().remove(removed).apply(made)


def _usual(part: TaskGraph, gone: Rows, ready: I64) -> Constants:
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


def _overhead(part: TaskGraph, own: Gradients, filled: Rows) -> tuple[float, list[Rows]]:
    """What completing a bucket costs the host more than another gradient, and the pieces in which it did so far."""
    trace = part.trace
    assert trace is not None
    nodes = trace.matching(_NODE.__eq__, trace.rows(Category.CPU_OP))
    nodes = nodes[np.argsort(trace.start[nodes], kind="stable")]
    place = np.searchsorted(trace.start[nodes], trace.start[own.row], side="right") - 1
    if part.on_device or not len(nodes) or (place < 0).any():
        return 0.0, []
    nodes = nodes[place]
    completes = np.zeros(len(nodes), dtype=bool)
    completes[filled] = True
    took = trace.duration[nodes]
    more = float(np.median(took[completes]) - np.median(took[~completes])) if not completes.all() else 0.0
    track = part.tasks.on_track(part.owner)
    start = part.tasks.start[track]
    pieces = [
        np.arange(*np.searchsorted(start, (trace.start[row], trace.end[node])).tolist()) + track.start
        for row, node in zip(own.row[filled].tolist(), nodes[filled].tolist(), strict=True)
    ]
    return max(more, 0.0), pieces
