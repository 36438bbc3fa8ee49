"""Task graphs written by hand, and a simulator that is slow and plain."""

from heapq import heappop, heappush

import numpy as np

from pytest_perfdl.whatif.model import (
    NO_RELEASE,
    NO_SCOPE,
    Constants,
    EdgeKind,
    Edges,
    TaskGraph,
    TaskKind,
    Tasks,
    Track,
    TrackKind,
)

HOST = Track(TrackKind.THREAD, 100, 100)
STREAMS = tuple(Track(TrackKind.STREAM, 0, number) for number in (7, 8, 9))
CHANNEL = Track(TrackKind.CHANNEL, 100, 5)


def graph(tracks, edges=(), *, constants=None, steps=(), on_device=True):
    """A graph of tracks, each (track, tasks), a task (name, start, duration, more); tasks are named in edges.

    Tasks of a track follow each other without a lag. An edge is (kind, source, target, lag, more).
    """
    names, columns, links = [], [], []
    for number, (track, tasks) in enumerate(tracks):
        kind = TaskKind.OPERATOR if track.kind == TrackKind.THREAD else TaskKind.KERNEL
        for place, (name, start, duration, *more) in enumerate(tasks):
            told = more[0] if more else {}
            if place:
                chain = EdgeKind.THREAD if track.kind == TrackKind.THREAD else EdgeKind.STREAM
                links.append((chain, names[-1], name, 0))
            names.append(name)
            columns.append(
                (
                    told.get("kind", kind),
                    number,
                    start,
                    duration,
                    told.get("release", NO_RELEASE),
                    told.get("submitted", start),
                    told.get("launcher", ""),
                    told.get("step", -1),
                    told.get("scope", NO_SCOPE),
                )
            )
    at = {name: index for index, name in enumerate(names)}
    found = [
        Edges.of(kind, np.array([at[source]]), np.array([at[target]]), lag, **(more[0] if more else {}))
        for kind, source, target, lag, *more in [*links, *edges]
    ]
    empty = Edges.of(EdgeKind.THREAD, np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp), 0)
    column = list(zip(*columns, strict=True))
    tasks = Tasks.of(
        kind=column[0],
        track=column[1],
        name=np.arange(len(names)),
        start=column[2],
        duration=column[3],
        release=column[4],
        submitted=column[5],
        launcher=[at.get(name, -1) for name in column[6]],
        step=column[7],
        scope=column[8],
    )
    return TaskGraph(
        tasks=tasks,
        edges=Edges.joined(empty, *found),
        tracks=tuple(track for track, _ in tracks),
        names=tuple(names),
        steps=tuple(steps),
        on_device=on_device,
        constants=constants or Constants(),
    )


def times(made, simulation, unit=1):
    """Start and end of each task by name."""
    return {
        made.name_of(task): (start / unit, end / unit)
        for task, (start, end) in enumerate(zip(simulation.start.tolist(), simulation.end.tolist(), strict=True))
    }


def slow(made, lags="lag", duration=None):
    """Starts, event by event: a task starts when the last of what it waits for is there."""
    edges, count = made.edges, len(made)
    duration = made.tasks.duration.tolist() if duration is None else list(duration)
    out = [[] for _ in range(count)]
    missing = [0] * count
    lag = getattr(edges, lags).tolist()
    for source, target, how_long, at_start in zip(
        edges.source.tolist(), edges.target.tolist(), lag, edges.at_start.tolist(), strict=True
    ):
        out[source].append((target, how_long, at_start))
        missing[target] += 1
    moments = [[each] if each > NO_RELEASE else [] for each in made.tasks.release.tolist()]
    begin = min([*made.tasks.start.tolist(), *(each for held in moments for each in held)], default=0)
    frontier = []
    for task in range(count):
        if not missing[task]:
            heappush(frontier, (max(moments[task], default=begin), task))
    start = [None] * count
    while frontier:
        now, task = heappop(frontier)
        start[task] = now
        for target, how_long, at_start in out[task]:
            moments[target].append(now + how_long + (0 if at_start else duration[task]))
            missing[target] -= 1
            if not missing[target]:
                heappush(frontier, (max(moments[target]), target))
    assert None not in start
    return start
