"""Joins the replies of the ranks of a job to the reply of one process, which has each rank's own beside it.

The job is as slow as its slowest rank, so its times are that rank's; what ranks count is added up, and memory is that
of the rank that needs most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_perfdl.measure.commands import CallInfo, Compiled, Counted, Profiled, Settled, Timed
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


def _settled(parts: Sequence[Settled]) -> Settled:
    return Settled(
        steps=parts[0].steps,
        settled=all(part.settled for part in parts),
        spread=max((part.spread for part in parts), key=abs),
        step_ns=max(part.step_ns for part in parts),
    )


def slowest(parts: Sequence[Timed]) -> int:
    """The rank whose blocks took longest together."""
    return max(range(len(parts)), key=lambda rank: sum(block.wall_ns for block in parts[rank].blocks))


def _timed(parts: Sequence[Timed]) -> Timed:
    chosen = parts[slowest(parts)]
    return replace(
        chosen,
        tracer=next((part.tracer for part in parts if part.tracer), ""),
        compiles=tuple(dict.fromkeys(name for part in parts for name in part.compiles)),
        findings=_findings([part.findings for part in parts]),
        ranks=tuple(parts),
    )


def _profiled(parts: Sequence[Profiled]) -> Profiled:
    """The first rank's profile, with sums of what the ranks counted."""
    first = parts[0]

    def added(name: str) -> tuple[int, ...] | None:
        found = [getattr(part, name) for part in parts]
        if any(each is None or len(each) != len(found[0]) for each in found):
            return getattr(first, name)  # type: ignore[no-any-return]
        return tuple(sum(step) for step in zip(*found, strict=True))

    op_counts = added("op_counts")
    assert op_counts is not None
    return replace(
        first,
        op_counts=op_counts,
        kernel_counts=added("kernel_counts"),
        launch_counts=added("launch_counts"),
        h2d_bytes=added("h2d_bytes"),
        findings=_findings([part.findings for part in parts]),
        ranks=tuple(parts),
    )


def _counted(parts: Sequence[Counted]) -> Counted:
    def combined(name: str, how: Callable[[Sequence[float]], float]) -> float | None:
        values = [getattr(part, name) for part in parts]
        return None if None in values else how(values)

    return replace(
        parts[0],
        flops=combined("flops", sum),
        uncounted=tuple(sorted({name for part in parts for name in part.uncounted})),
        allocations=combined("allocations", sum),
        alloc_bytes=combined("alloc_bytes", sum),
        peak_memory=combined("peak_memory", max),
        static_memory=combined("static_memory", max),
        growth=max((part.growth for part in parts if part.growth is not None), default=None),
        findings=_findings([part.findings for part in parts]),
    )


def _compiled(parts: Sequence[Compiled]) -> Compiled:
    return Compiled(
        used=any(part.used for part in parts),
        compile_ns=max(part.compile_ns for part in parts),
        recompiles=max(part.recompiles for part in parts),
        graph_breaks=max(part.graph_breaks for part in parts),
        findings=_findings([part.findings for part in parts]),
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
    Settled: _settled,
    Timed: _timed,
    Profiled: _profiled,
    Counted: _counted,
    Compiled: _compiled,
}
