"""Measured and predicted timeline as one Chrome trace: two processes each, aligned at their beginning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_perfdl.trace.writer import Event, write
from pytest_perfdl.whatif.model import TrackKind
from pytest_perfdl.whatif.simulation.simulate import Simulation

_NAMES = {TrackKind.THREAD: "thread", TrackKind.STREAM: "stream", TrackKind.CHANNEL: "channel"}


def write_timelines(path: Path, measured: Simulation, predicted: Simulation, name: str) -> None:
    """Write both; tasks without duration are left out.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    events = [*_lanes(measured, 1, "measured"), *_lanes(predicted, 2, f"predicted: {name}")]
    write(path, events, {"whatif": name})


def _lanes(simulation: Simulation, pid: int, title: str) -> Iterator[Event]:
    graph = simulation.graph
    yield Event.process_name(pid, title)
    several = len({track.rank for track in graph.tracks}) > 1
    for number, track in enumerate(graph.tracks):
        rank = ("all ranks: " if track.rank < 0 else f"rank {track.rank}: ") if several else ""
        yield Event.thread_name(pid, number + 1, f"{rank}{_NAMES[track.kind]} {track.number}")
    begin = int(simulation.start.min()) if len(graph) else 0
    columns = (graph.tasks.track, simulation.start - begin, simulation.end - simulation.start, graph.tasks.name)
    for track_number, start, duration, label in zip(*(column.tolist() for column in columns), strict=True):
        if duration:
            yield Event("X", graph.names[label], pid, track_number + 1, start, duration)
