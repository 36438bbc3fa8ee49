"""Selected rows of a trace as a new trace."""

from __future__ import annotations

from dataclasses import fields, replace

from pytest_perfdl.trace.model import MemoryEvents, Rows, Trace


def subset(trace: Trace, rows: Rows, memory: Rows) -> Trace:
    """The events of these rows, and these `[memory]` instants, with everything else as it is."""
    return replace(
        trace,
        start=trace.start[rows],
        duration=trace.duration[rows],
        name=trace.name[rows],
        category=trace.category[rows],
        pid=trace.pid[rows],
        tid=trace.tid[rows],
        correlation=trace.correlation[rows],
        memory=MemoryEvents(
            **{field.name: getattr(trace.memory, field.name)[memory] for field in fields(MemoryEvents)}
        ),
        raw_args=trace.raw_args.take(rows),
    )
