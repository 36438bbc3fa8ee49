"""Changes of a job of several ranks: a slow rank, the network, the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.trace.model import F64, I64
from pytest_perfdl.whatif.collectives import Cost, fit_cost, rounds, transfers, volume
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.from_trace.job import communication_tasks
from pytest_perfdl.whatif.model import Job, Mask, Meetings, TaskKind, are_of_kinds
from pytest_perfdl.whatif.rank_work import (
    RankWork,
    blocking_lines,
    expected_maximum,
    harmonic,
    rank_work,
    variation,
)
from pytest_perfdl.whatif.simulation.quality import Trust
from pytest_perfdl.whatif.transform import Change, Context, transform

ENDS = (0.05, 0.95)
"""Quantiles of resamples that are the ends of an interval."""

SCALING = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
"""Kinds of collectives whose cost depends on the number of ranks."""

Sample = TypeVar("Sample")

ONE_SIZE = "all collectives have about one size, so their latency is not known, and the range covers all of it"


def job_of(context: Context) -> Job:
    """The ranks of the job.

    Raises
    ------
    NotApplicable
        If there is one rank only, or nothing couples the ranks.
    """
    job = context.graph.job
    if job is None:
        raise NotApplicable("the ranks of a job can only be changed together: pass the traces of several ranks")
    if not len(job.meetings):
        raise NotApplicable("no collective runs on all ranks of these traces")
    return job


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What the collectives of a job cost, fitted for each kind and size of its group."""

    bytes: I64
    transfer: I64
    """Nanoseconds from the last arrival on."""
    groups: tuple[tuple[str, int, Mask, Cost], ...]
    """Kind, number of ranks, which collectives, and what they cost; those without recorded bytes are in none."""

    @classmethod
    def of(cls, job: Job) -> Costs:
        """Fit them."""
        found, took = job.meetings, transfers(job.meetings)
        groups = []
        for kind, members in sorted(set(zip(found.kind.tolist(), found.members.tolist(), strict=True))):
            own = (found.kind == kind) & (found.members == members) & (found.bytes > 0)
            if own.any():
                cost = fit_cost(found.bytes[own], took[own])
                cost = cost if cost.known else _fit_any_kind(found, took, kind, members) or cost
                groups.append((kind, members, own, cost))
        return cls(found.bytes, took, tuple(groups))

    @property
    def sized(self) -> Mask:
        """Which have recorded bytes."""
        return np.asarray(self.bytes > 0, dtype=bool)

    @property
    def known(self) -> bool:
        """Whether latency and time per byte are told apart in all of them."""
        return bool(self.sized.all()) and all(cost.known for *_, cost in self.groups)


def _fit_any_kind(found: Meetings, took: I64, kind: str, members: int) -> Cost | None:
    """What a kind costs by all kinds on as many ranks, if these tell: a ring's message has one latency in all of them.

    t = m l + v S / B, with the messages m and the volume v of each kind: t / m is fitted to v S / m.
    """
    own = np.isin(found.kind, SCALING) & (found.members == members) & (found.bytes > 0)
    if kind not in SCALING or not own.any():
        return None
    messages = np.array([rounds(each, members, "ring") for each in found.kind[own].tolist()])
    shares = np.array([volume(each, members) for each in found.kind[own].tolist()])
    cost = fit_cost(found.bytes[own] * shares / messages, took[own] / messages)
    scale = rounds(kind, members, "ring"), volume(kind, members)
    return cost.scaled(*scale) if cost.known else None


def retime(job: Job, transfer: F64, work: Sequence[I64] | None = None) -> Plan:
    """Collectives whose transfers take so many nanoseconds each; waiting follows from that.

    `work` has other durations of all tasks, by rank.
    """
    share = np.maximum(transfer, 0.0) / np.maximum(transfers(job.meetings), 1)
    plans = []
    for column, part in enumerate(job.parts):
        tasks = communication_tasks(part, job.meetings.row[:, column])
        there = tasks >= 0
        duration = (part.tasks.duration if work is None else work[column]).copy()
        duration[tasks[there]] = np.rint(duration[tasks[there]] * share[there]).astype(np.int64)
        plans.append(Plan().timed(duration))
    return Plan().each_rank(plans)


@transform("straggler_removed", of_job=True)
def straggler_removed(context: Context, rank: int = -1) -> Change:
    """Let the slowest rank work as long as the other ranks.

    Without `rank`, the rank is the straggler that `perfdl trace` finds. The steps are divided at the collectives. In
    each part, the work of the rank on the host and on the device is multiplied by
    `mean over steps of the median of the other ranks / mean over steps of this rank`, from the step on in which the
    rank became slow. So the rank keeps its variation from step to step. The other ranks then wait less in their
    collectives.

    The range of the prediction covers 90 % of the ratios in resampled steps (bootstrap).

    Raises
    ------
    NotApplicable
        For one rank; without a straggler; for a rank that works no longer than the others.
    """
    job = job_of(context)
    number, since = (rank, None) if rank >= 0 else _straggler(job)
    if number not in job.numbers:
        raise ValueError(f"straggler_removed:rank={rank}: the traces are of ranks {', '.join(map(str, job.numbers))}")
    column = job.numbers.index(number)
    work = rank_work(job, np.arange(len(job.meetings)))
    own_steps = np.array([since is None or step >= since for step in job.steps], dtype=bool)
    if not own_steps.any():
        own_steps[:] = True
    others = np.arange(len(job.parts)) != column
    whole = (work.host + work.device).sum(axis=2)[:, own_steps]
    mine, theirs = whole[column], np.median(whole[others], axis=0)
    if theirs.mean() >= mine.mean():
        raise NotApplicable(f"rank {number} works no longer than the other ranks")
    ratios = [_ratio(table[:, own_steps], column, others) for table in (work.host, work.device)]
    likely = float(theirs.mean() / mine.mean())
    ends = np.quantile(_resampled_ratio(theirs, mine), ENDS) / likely
    plans = [_rework(job, work, column, own_steps, ratios, factor) for factor in (1.0, *ends.tolist())]
    return Change.of(plans)


def _straggler(job: Job) -> tuple[int, int | None]:
    """The rank that is slow, and since which step."""
    found = job.figures.straggler
    if found is None:
        raise NotApplicable(
            "no rank is slower than the others: name a rank to be made as fast as the others, "
            "as in straggler_removed:rank=1"
        )
    return found.rank, found.since_step


def _ratio(work: F64, column: int, others: Mask) -> F64:
    """By segment, of work by rank, step and segment: what the other ranks work, over what this one does."""
    mine, theirs = work[column].mean(axis=0), np.median(work[others], axis=0).mean(axis=0)
    return np.where(mine > 0, theirs / np.maximum(mine, 1.0), 1.0)


def _resampled_ratio(theirs: F64, mine: F64, count: int = 400) -> F64:
    random = np.random.default_rng(len(mine))
    own = random.integers(len(mine), size=(count, len(mine)))
    found: F64 = theirs[own].mean(axis=1) / mine[own].mean(axis=1)
    return found


def _rework(job: Job, work: RankWork, column: int, steps: Mask, ratios: Sequence[F64], factor: float) -> Plan:
    part = job.parts[column]
    segment, step = work.segment[column], work.step[column]
    own = np.flatnonzero((segment >= 0) & steps[step])
    duration = part.tasks.duration.copy()
    share = np.where(part.is_device[own], ratios[1][segment[own]], ratios[0][segment[own]]) * factor
    duration[own] = np.rint(duration[own] * share).astype(np.int64)
    return Plan().each_rank([Plan().timed(duration) if at == column else Plan() for at in range(len(job.parts))])


@transform("bandwidth", of_job=True)
def bandwidth(context: Context, factor: float = 0.0, bytes_per_s: float = 0.0) -> Change:
    """Use a network that is `factor` times as fast, or one of `bytes_per_s`.

    With the traces of several ranks, a collective of S bytes takes `t = alpha + S / beta` after its last rank has
    arrived. The latency alpha and the time per byte `1 / beta` are fitted to the collectives of each kind in the
    traces, or to those of all kinds by the messages and volumes of a ring if the sizes of one kind are about the same.
    The change is `t' = t - (1 - 1 / factor) S / beta`, so neither latency nor waiting for other ranks changes.
    `bytes_per_s` is a bus bandwidth: beta becomes this rate divided by `2 (n - 1) / n` for an all-reduce of n ranks
    (nccl-tests, PERFORMANCE.md).

    The range of the prediction covers 90 % of fits to resampled collectives (bootstrap). If the sizes do not differ by
    a factor of 2, the range covers everything from no latency to no transfer. The trust is then low.

    With the trace of one rank, a collective takes `t' = t / factor`. A faster network does not reduce latency and
    waiting for other ranks, which are a part of the time of a collective. So the range of the prediction extends to
    half of the predicted change.

    Raises
    ------
    NotApplicable
        Without communication, or with `bytes_per_s` without recorded sizes.
    """
    if (factor > 0) == (bytes_per_s > 0):
        raise ValueError(f"bandwidth:factor={factor:g}: expected either a factor or bytes_per_s above 0")
    if context.graph.job is not None:
        return _faster_network(job_of(context), factor, bytes_per_s)
    if not factor:
        raise NotApplicable("the bandwidth of one rank is not known: use a factor, or pass the traces of several ranks")
    tasks = are_of_kinds(context.graph.tasks, TaskKind.COMMUNICATION)
    if not tasks.any():
        raise NotApplicable("the trace has no communication")
    plan, other = (Plan().scale(tasks, share) for share in (1 / factor, (1 + 1 / factor) / 2))
    return Change(plan, fast=other) if factor < 1 else Change(plan, slow=other)


def _faster_network(job: Job, factor: float, bytes_per_s: float) -> Change:
    found = Costs.of(job)
    if bytes_per_s and not found.sized.all():
        raise NotApplicable("the traces have no sizes of collectives: profile with record_shapes=True, or use a factor")
    times = [found.transfer.astype(np.float64) for _ in range(3)]
    for place, share in enumerate((1.0, 1.0, 0.0)):
        if factor:
            times[place][~found.sized] *= 1 - share * (1 - 1 / factor)
    for kind, members, own, cost in found.groups:
        size = found.bytes[own].astype(np.float64)
        new = volume(kind, members) / bytes_per_s * 1e9 if bytes_per_s else 0.0
        deltas = [
            ((per_byte / factor if factor else new) - per_byte) * size
            for per_byte in (cost.ns_per_byte, *_ends(cost.samples[:, 1]))
        ]
        deltas[1:] = sorted(deltas[1:], key=lambda delta: float(delta.sum()))
        for place, delta in enumerate(deltas):
            times[place][own] = np.maximum(times[place][own] + delta, 0.0)
    plans = [retime(job, each) for each in times]
    trust: Trust = "ok" if found.known else "low"
    return Change.of(plans, trust=trust, notes=() if found.known else (ONE_SIZE,))


def _ends(samples: F64) -> tuple[float, float]:
    """The ends of an interval of 90 % of them; of two, which are the ends of what is possible, both."""
    low, high = np.quantile(samples, ENDS if len(samples) > 2 else (0.0, 1.0)).tolist()
    return low, high


def ends_of(ordered: Sequence[Sample]) -> tuple[Sample, Sample]:
    """The same of samples in their order."""
    low, high = (round(share * (len(ordered) - 1)) for share in (ENDS if len(ordered) > 2 else (0.0, 1.0)))
    return ordered[low], ordered[high]


@transform("ranks", of_job=True)
def ranks(context: Context, n: int, algorithm: str = "") -> Change:
    """Run the job on `n` ranks, each with the batch size of the traces, up to thousands from two to four traces.

    Collectives of all ranks change, those of a part of the ranks do not. Two effects are simulated:

    - Collectives: a call of S bytes takes `alpha + S / beta`, fitted to the traces as in `bandwidth`. On n ranks
      instead of k, the transfer is multiplied by `v(n) / v(k)`, where `v(n) = 2 (n - 1) / n` for an all-reduce and
      `(n - 1) / n` for an all-gather or reduce-scatter of the same total size (nccl-tests, PERFORMANCE.md). The latency
      is multiplied by `m(n) / m(k)`, where m is the number of messages in sequence: for an all-reduce `2 (n - 1)` on a
      ring (Patarasuk and Yuan, 2009), `2 log2 n` on a tree (Thakur et al., 2005). `algorithm` is `ring` or `tree`. The
      default is a ring on CPUs, which gloo uses, and the faster of both on devices, as NCCL chooses.
    - The slowest rank: the ranks vary around the mean of all ranks in the same step with a standard deviation sigma
      in each part of a step between collectives that ranks wait for. The slowest of n ranks is
      `sigma (E[n] - E[k])` later than the slowest of k, where `E[n]` is the expected maximum of n normal variables
      (David and Nagaraja, Order Statistics, 2003). The slowest measured rank is made slower by this time.

    The range of the prediction combines the ends of both effects: the 90 % interval of sigma (chi-squared), with an
    exponential tail, where `H(n) - H(k)` replaces `E[n] - E[k]` (H is the harmonic number), at the slow end; the 90 %
    interval of the fit, with a latency that does not grow with n, at the fast end. If the number of ranks is more than
    twice the measured number, the prediction is an extrapolation and the trust is low.

    The simulation assumes that all links are as fast as those between the measured ranks, and that each rank has the
    cores and the device that it had. If the ranks run on CPUs and `n` exceeds `--machine cores=...`, the result is
    flagged as oversubscribed.

    Raises
    ------
    NotApplicable
        For one rank; if no collective runs on all ranks.
    """
    job = job_of(context)
    count = len(job.parts)
    everyone = np.count_nonzero(job.meetings.row >= 0, axis=1) == count
    if n < 2:
        raise ValueError(f"ranks:n={n}: expected at least 2")
    if algorithm not in ("", "ring", "tree"):
        raise ValueError(f"ranks:algorithm={algorithm}: expected ring or tree")
    costs = Costs.of(job)
    if not everyone.any():
        raise NotApplicable("no collective runs on all ranks of these traces")
    on_device = any(part.on_device for part in job.parts)
    algorithms = (algorithm,) if algorithm else ("ring", "tree") if on_device else ("ring",)
    times = _on_more_ranks(costs, everyone, n, algorithms)
    work = rank_work(job, blocking_lines(job))
    later = _slowest_of(work, count, n)
    plans = [_slow_down(job, work, *each) for each in zip(times, later, strict=True)]
    notes = _warnings(context, job, costs, n)
    return Change.of(plans, trust="low" if notes else "ok", notes=notes)


def _on_more_ranks(found: Costs, everyone: Mask, n: int, algorithms: Sequence[str]) -> list[F64]:
    """Transfers on n ranks: likely, at the fast end, at the slow end."""
    times = [found.transfer.astype(np.float64) for _ in range(3)]
    for kind, count, own, cost in found.groups:
        if not everyone[own].all() or kind not in SCALING:
            continue
        size, measured = found.bytes[own].astype(np.float64), found.transfer[own]
        more = volume(kind, n) / volume(kind, count)
        messages = [rounds(kind, n, each) / rounds(kind, count, each) for each in algorithms]

        def added(latency: float, per_byte: float, messages: float, more: float = more, size: F64 = size) -> F64:
            return np.asarray(latency * (messages - 1) + per_byte * size * (more - 1), dtype=np.float64)

        samples = [added(latency, per_byte, min(messages)) for latency, per_byte in cost.samples.tolist()]
        low, high = ends_of(sorted(samples, key=lambda each: float(each.sum())))
        likely = added(cost.latency_ns, cost.ns_per_byte, min(messages))
        without = added(cost.latency_ns, cost.ns_per_byte, 1.0)
        fast = min((low, without, likely), key=lambda each: float(each.sum()))
        slow = max((high, likely), key=lambda each: float(each.sum()))
        for line, delta in zip(times, (likely, fast, slow), strict=True):
            line[own] = np.maximum(measured + delta, 0.0)
    return times


def _slowest_of(work: RankWork, count: int, n: int) -> list[F64]:
    """By segment how much later the slowest of n ranks is than the slowest of those measured: likely, least, most."""
    normal = expected_maximum(n) - expected_maximum(count)
    heavy = harmonic(n) - harmonic(count)
    sigma, least, most = np.array([variation(work.deciding[:, :, at]) for at in range(work.deciding.shape[2])]).T
    return [sigma * normal, np.minimum(least * normal, most * normal), (most if n > count else least) * heavy]


def _slow_down(job: Job, work: RankWork, transfer: F64, later: F64) -> Plan:
    """Other transfers, and more work of the rank that works longest in each step and segment."""
    deciding = work.deciding
    longest, most = deciding.argmax(axis=0), deciding.max(axis=0)
    factor = np.where(most > 0, np.maximum(1 + later / np.maximum(most, 1.0), 0.0), 1.0)
    durations = []
    for column, part in enumerate(job.parts):
        segment, step = work.segment[column], work.step[column]
        own = np.flatnonzero(segment >= 0)
        own = own[longest[step[own], segment[own]] == column]
        duration = part.tasks.duration.copy()
        duration[own] = np.rint(duration[own] * factor[step[own], segment[own]]).astype(np.int64)
        durations.append(duration)
    return retime(job, transfer, durations)


def _warnings(context: Context, job: Job, costs: Costs, n: int) -> tuple[str, ...]:
    notes = []
    count = len(job.parts)
    if n > 2 * count:
        notes.append(f"{n} ranks are extrapolated from {count}")
    cores = context.machine.cores
    if not any(part.on_device for part in job.parts) and cores is not None and n > cores:
        notes.append(f"oversubscribed: {n} ranks share {cores} cores, which the prediction does not include")
    if not costs.known:
        notes.append(ONE_SIZE)
    return tuple(notes)
