"""What an edit makes of a graph, task by task and edge by edge: rows of plain numbers, built anew from nothing."""

import numpy as np

from pytest_perfdl.whatif.model import (
    CHAIN_KINDS,
    EDGE_COLUMNS,
    NO_RELEASE,
    NO_SCOPE,
    WHOLE_DEVICE,
    EdgeKind,
    TaskGraph,
    Tasks,
    TrackKind,
)

HANDED_ON = (EdgeKind.EVENT, EdgeKind.OTHER_STREAM, EdgeKind.COMMUNICATION, EdgeKind.JOIN)


def rows(columns, names):
    """Columns as one dict per row."""
    lists = [getattr(columns, name).tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def told(graph):
    """A graph as its tasks and edges."""
    return rows(graph.tasks, Tasks.__slots__), rows(graph.edges, EDGE_COLUMNS)


def chains_of(graph):
    """The edges from each task to the next of its track by target, and the others."""
    chains, others = {}, []
    for edge in rows(graph.edges, EDGE_COLUMNS):
        next_to = edge["kind"] in CHAIN_KINDS and edge["source"] == edge["target"] - 1
        if next_to and edge["target"] not in chains:
            chains[edge["target"]] = edge
        else:
            others.append(edge)
    return chains, others


def rebuilt(graph, tasks, origin, place, edges, added=None):
    """Tasks and edges as `surgery.rebuild` describes them."""
    new, links = rows(tasks, Tasks.__slots__), rows(edges, EDGE_COLUMNS)
    new += [] if added is None else rows(added, Tasks.__slots__)
    place = list(place)
    order = sorted(range(len(new)), key=lambda task: (new[task]["track"], place[task]))
    number = {task: index for index, task in enumerate(order)}
    new, origin = [new[task] for task in order], [int(origin[task]) for task in order]
    for task in new:
        task["launcher"] = number.get(task["launcher"], -1)
    for edge in links:
        edge["source"], edge["target"] = number[edge["source"]], number[edge["target"]]
    before, track = chains_of(graph)[0], graph.tasks.track.tolist()
    found = []
    for index in range(1, len(new)):
        own, was = new[index]["track"], origin[index]
        if new[index - 1]["track"] != own:
            continue
        on_host = graph.tracks[own].kind == TrackKind.THREAD
        lag = 0 if on_host else graph.constants.kernel_gap
        edge = {"at_start": False, "lag": lag, "constant_lag": lag}
        if was >= 0 and track[was] == own:
            if was in before:
                edge = {name: before[was][name] for name in edge}
            elif was > 0 and track[was - 1] == own:
                continue
        kind = int(EdgeKind.THREAD if on_host else EdgeKind.STREAM)
        found.append({"source": index - 1, "target": index, "kind": kind, **edge, "confidence": 1.0})
    found += at_run_time(graph, new, links)
    # Of one target in the order in which they were found: Python's sort keeps that.
    return new, sorted(({name: edge[name] for name in EDGE_COLUMNS} for edge in found), key=lambda each: each["target"])


def at_run_time(graph, new, links):
    """All edges but chains: those that stay, then synchronizations, then back-pressure."""
    links = sorted(links, key=lambda edge: edge["target"])
    of_track = {}
    for index, task in enumerate(new):
        of_track.setdefault(task["track"], []).append(index)
    streams = [number for number, track in enumerate(graph.tracks) if track.kind == TrackKind.STREAM]
    waits, queued, stays = [], [], []
    for edge in links:
        waiting = edge["kind"] == EdgeKind.SYNC and new[edge["target"]]["scope"] != NO_SCOPE
        (waits if waiting else queued if edge["kind"] == EdgeKind.QUEUE else stays).append(edge)
    pairs = {(new[edge["source"]]["track"], edge["target"]) for edge in waits}
    for track in set(of_track) & set(streams) - set(graph.tasks.track.tolist()):
        pairs |= {(track, index) for index, task in enumerate(new) if task["scope"] == WHOLE_DEVICE}
    last = set()
    for track, target in pairs:
        ahead = []
        for index in of_track.get(track, ()):
            if max(new[each]["submitted"] for each in [*ahead, index]) >= new[target]["submitted"]:
                break
            ahead.append(index)
        if ahead:
            last.add((ahead[-1], target))
    stays += with_lags(waits, EdgeKind.SYNC, last, graph.constants.sync_return)
    depth = graph.constants.queue_depth
    if not depth:
        return stays + queued
    full = set()
    for track in streams:
        submissions = []
        for index in of_track.get(track, ()):
            launcher = new[index]["launcher"]
            if submissions and launcher >= 0 and new[submissions[-1][-1]]["launcher"] == launcher:
                submissions[-1].append(index)
            else:
                submissions.append([index])
        for place in range(depth, len(submissions)):
            launcher = new[submissions[place][0]]["launcher"]
            if launcher >= 0:
                full.add((submissions[place - depth][-1], launcher))
    return stays + with_lags(queued, EdgeKind.QUEUE, full, 0)


def with_lags(before, kind, pairs, lag):
    """An edge for each pair: the first that was there before, else a new one; new ones behind."""
    known = {}
    for edge in before:
        known.setdefault((edge["source"], edge["target"]), edge)
    new = {"kind": int(kind), "at_start": False, "lag": lag, "constant_lag": lag, "confidence": 1.0}
    found = [known[pair] for pair in sorted(pairs) if pair in known]
    return found + [
        {"source": source, "target": target, **new} for source, target in sorted(pairs) if (source, target) not in known
    ]


def without(graph, removed):
    """Tasks and edges as `surgery.remove_tasks` describes them."""
    removed, track = removed.tolist(), graph.tasks.track.tolist()
    count = len(removed)
    if not any(removed):
        return told(graph)

    ahead, behind = [], []
    for task in range(count):
        near = ahead[-1] if task and track[task - 1] == track[task] else None
        ahead.append(near if removed[task] else task)
    for task in reversed(range(count)):
        near = behind[-1] if task + 1 < count and track[task + 1] == track[task] else None
        behind.append(near if removed[task] else task)
    behind = behind[::-1]
    kept = [task for task in range(count) if not removed[task]]
    number = {task: index for index, task in enumerate(kept)}
    links = []
    for edge in chains_of(graph)[1]:
        source, target = ahead[edge["source"]], behind[edge["target"]]
        gone, waits = removed[edge["source"]], removed[edge["target"]]
        if source is None or target is None or source == target or (gone and waits):
            continue
        if (waits and edge["kind"] not in HANDED_ON) or (gone and edge["kind"] == EdgeKind.CONTENTION):
            continue
        if track[source] == track[target] and source > target:
            continue
        at_start = edge["at_start"] and not gone
        links.append({**edge, "source": number[source], "target": number[target], "at_start": at_start})
    tasks = rows(graph.tasks, Tasks.__slots__)
    for task in range(count):
        if removed[task] and ahead[task] is None and behind[task] is not None and tasks[task]["release"] > NO_RELEASE:
            next_one = tasks[behind[task]]
            next_one["release"] = max(next_one["release"], tasks[task]["release"])
    left = [tasks[task] for task in kept]
    for task in left:
        launcher = ahead[task["launcher"]] if task["launcher"] >= 0 else None
        task["launcher"] = -1 if launcher is None else number[launcher]
    return rebuilt(graph, _Rows(left, Tasks.__slots__), kept, kept, _Rows(links, EDGE_COLUMNS))


class _Rows:
    """Rows as columns again."""

    def __init__(self, found, names):
        for name in names:
            setattr(self, name, np.array([row[name] for row in found]))


def steps(graph: TaskGraph, start, end):
    """The length of each step: from the completion of the one before, or its own first task of the host, to its own.

    One that did not begin where the one before it ended, as measured, begins when what a device did of earlier ones is
    done, if that is before its own end.
    """
    tasks, found = graph.tasks, []
    if graph.steps and graph.steps[0].number < 0:
        return [end.max() - start.min()] if len(graph) else [0]
    host = tasks.track == graph.owner
    setup = []
    for task in np.flatnonzero(host).tolist():
        if tasks.setup[task] and not (task > 0 and host[task - 1] and tasks.setup[task - 1]):
            later = [each for each in np.flatnonzero(host).tolist() if each > task and not tasks.setup[each]]
            setup.append((start[task], start[later[0]] if later else start[np.flatnonzero(host)[-1]]))
    before = None
    for index, span in enumerate(graph.steps):
        first = index == 0 or span.start != graph.steps[index - 1].end
        if first and index:
            before = None
        own = tasks.step == index
        complete = own & (host | graph.is_device) if graph.on_device else own & host
        tiles = before is not None and graph.on_device
        if not complete.any() or not (tiles or (own & host).any()):
            found.append(0)
            continue
        begin = before if tiles else start[own & host].min()
        until = max(end[complete].max(), begin)
        if before is None and graph.on_device and first:
            early = graph.is_device & (tasks.step < index) & (tasks.start < span.start) & (end <= until)
            begin = max([begin, *end[early]])
        before = until
        found.append(before - begin - sum(max(min(last, before) - max(first, begin), 0) for first, last in setup))
    return found
