"""Joins the replies of the ranks of a job to the reply of one process, which has each rank's own beside it.

The job is as slow as its slowest rank, so its times are that rank's. What ranks allocate and compute adds up; peak
memory is that of the rank that needs most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_perfdl.measure.commands import Block, CallInfo, Compiled, Counted, Profiled, Settled, Timed
from pytest_perfdl.model.metrics import OF_MEMORY, is_zero_if_absent
from pytest_perfdl.model.record import Finding


def joined(parts: Sequence[Any]) -> Any:
    """One announcement or reply of those of all ranks, in the order of the ranks."""
    first = parts[0]
    if len(parts) == 1 and not isinstance(first, (Timed, Profiled)):
        return first
    join: Callable[[Sequence[Any]], Any] | None = _JOINS.get(type(first))
    return first if join is None else join(parts)


def _calls(parts: Sequence[CallInfo]) -> CallInfo:
    """The announcement of a call; items add up, FLOPs of the model are a rank's."""
    items = [part.items for part in parts if part.items is not None]
    return replace(parts[0], items=sum(items) if items else None)


def _join_settled(parts: Sequence[Settled]) -> Settled:
    return Settled(
        steps=parts[0].steps,
        settled=all(part.settled for part in parts),
        spread=max((part.spread for part in parts), key=abs),
        step_ns=max(part.step_ns for part in parts),
    )


def slowest(parts: Sequence[Timed]) -> int:
    """The rank whose blocks took longest together."""
    return max(range(len(parts)), key=lambda rank: sum(block.wall_ns for block in parts[rank].blocks))


def _join_timed(parts: Sequence[Timed]) -> Timed:
    """The slowest rank's times, with what any rank waited or worked at most: all ranks wait for it."""
    chosen = parts[slowest(parts)]
    return replace(
        chosen,
        wait_ns=max((part.wait_ns for part in parts), key=sum),
        delay_ns=_most([part.delay_ns for part in parts]),
        blocks=tuple(map(_block, chosen.blocks, zip(*(part.blocks for part in parts), strict=True))),
        tracer=next((part.tracer for part in parts if part.tracer), ""),
        compiles=tuple(dict.fromkeys(name for part in parts for name in part.compiles)),
        findings=_findings([part.findings for part in parts]),
        ranks=tuple(parts),
    )


def _block(chosen: Block, ranks: Sequence[Block]) -> Block:
    """A block of the slowest rank, with the most that any rank used in it."""
    used = ("cpu_ns", "system_ns", "run_delay_ns", "minor_faults")
    return replace(chosen, **{name: max(getattr(block, name) for block in ranks) for name in used})


def _most(columns: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The largest value of each step; empty where a rank has none."""
    return tuple(map(max, zip(*columns, strict=True))) if all(columns) else ()


def _join_profiled(parts: Sequence[Profiled]) -> Profiled:
    """The first rank's profile, with those of all ranks and their comparison."""
    from pytest_perfdl.analysis.ranks import compare

    activities = [part.activity for part in parts if part.activity is not None]
    return replace(
        parts[0],
        signatures=tuple(dict.fromkeys(signature for part in parts for signature in part.signatures)),
        findings=_findings([part.findings for part in parts]),
        activity=None,
        ranks=tuple(replace(part, activity=None) for part in parts),
        figures=compare(activities) if len(activities) == len(parts) else None,
    )


def _join_counted(parts: Sequence[Counted]) -> Counted:
    """Counts of a job: the sums, of memory the rank's with most."""
    counts = {}
    for name in dict.fromkeys(name for part in parts for name in part.counts):
        values = [part.counts[name] for part in parts if name in part.counts]
        if len(values) == len(parts) or is_zero_if_absent(name):
            counts[name] = max(values) if name in OF_MEMORY else sum(values)
    return replace(
        parts[0],
        counts=counts,
        uncounted=tuple(sorted({name for part in parts for name in part.uncounted})),
        findings=_findings([part.findings for part in parts]),
    )


def _join_compiled(parts: Sequence[Compiled]) -> Compiled:
    return Compiled(
        used=any(part.used for part in parts),
        compile_ns=max(part.compile_ns for part in parts),
        recompiles=max(part.recompiles for part in parts),
        graph_breaks=max(part.graph_breaks for part in parts),
        findings=_findings([part.findings for part in parts]),
        cold_ns=max((part.cold_ns for part in parts if part.cold_ns is not None), default=None),
    )


def _findings(parts: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """Those of all ranks; one that all have stands once, others name their rank."""
    every = [finding for finding in parts[0] if all(finding in part for part in parts)]
    own = [
        replace(finding, message=f"rank {rank}: {finding.message}")
        for rank, part in enumerate(parts)
        for finding in part
        if finding not in every
    ]
    return (*every, *own)


_JOINS: dict[type, Callable[[Sequence[Any]], Any]] = {
    CallInfo: _calls,
    Settled: _join_settled,
    Timed: _join_timed,
    Profiled: _join_profiled,
    Counted: _join_counted,
    Compiled: _join_compiled,
}


def metrics(profiled: Profiled) -> dict[str, float]:
    """Timed metrics that compare the ranks, per step; empty without ranks.

    `rank_spread` is the mean over the steps of the largest own work of a rank less the smallest; own work is the step
    less the waiting in collectives in which nothing computes. `collective_wait` is that waiting, as the mean over the
    ranks. `bus_bandwidth` is that of all collectives together, as nccl-tests define it (doc/PERFORMANCE.md).
    """
    figures = profiled.figures
    if figures is None or not figures.step_numbers:
        return {}
    steps = len(figures.step_numbers)
    own = [rank.own_ns for rank in figures.ranks]
    found = {
        "rank_spread": sum(max(step) - min(step) for step in zip(*own, strict=True)) / steps,
        "collective_wait": sum(rank.exposed_waiting_ns for rank in figures.ranks) / len(figures.ranks) / steps,
    }
    sent = [(each.bus_bandwidth, each.transfer_ns) for each in figures.buckets if each.bus_bandwidth is not None]
    if busy := sum(ns for _, ns in sent):
        found["bus_bandwidth"] = sum(rate * ns for rate, ns in sent) / busy
    overlap = [rank.overlap for rank in figures.ranks if rank.overlap is not None]
    if overlap:
        found["overlap"] = 100 * sum(overlap) / len(overlap)
    spans = sum(rank.span_ns for rank in figures.ranks)
    if spans:
        found["exposed_communication"] = 100 * sum(rank.exposed_communication_ns for rank in figures.ranks) / spans
    return found
