"""What is reported about the ranks of a job, in addition to the report on one trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_perfdl.model.units import format_quantity, plural

if TYPE_CHECKING:
    from pytest_perfdl.whatif.advice import Note
    from pytest_perfdl.whatif.model import Job


def listing(job: Job) -> str:
    """The ranks' numbers: "0, 1 and 2"."""
    *most, last = map(str, job.numbers)
    return f"{', '.join(most)} and {last}"


def notes(job: Job, span_ns: int) -> list[Note]:
    """How the ranks hang together, what limits the figures, and what the advice leaves out."""
    from pytest_perfdl.whatif.advice import Note

    figures = job.figures
    times = plural(len(job.meetings), "time")
    text = f"step times are for ranks {listing(job)} together: they wait for each other {times}"
    if figures.most_often_last is not None:
        text += f"; rank {figures.most_often_last} most often starts last"
    waits = max(figures.ranks, key=lambda rank: rank.waiting_ns)
    if waits.waiting_ns:
        text += f"; rank {waits.rank} waits longest for others, {format_quantity(waits.waiting_ns, 'ns')} in the trace"
    told = "advice about operators needs the trace of a single rank"
    share = min(waits.waiting_ns / max(span_ns, 1), 1.0)
    return [Note("ranks", text, share), *(Note("ranks", finding, 0.0) for finding in (*figures.findings, told))]


def to_json(job: Job) -> dict[str, Any]:
    """The ranks, and how many times they wait for each other: in collectives, and where one receives."""
    figures = job.figures
    return {
        "ranks": [
            {
                "rank": rank.rank,
                "source": rank.source,
                "clock_offset_ns": rank.clock_offset_ns,
                "waiting_ns": rank.waiting_ns,
                "last": rank.last,
            }
            for rank in figures.ranks
        ],
        "meetings": len(job.meetings),
        "straggler": None if figures.straggler is None else figures.straggler.rank,
    }
