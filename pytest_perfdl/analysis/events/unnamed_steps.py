"""What in a trace looks like steps though no annotation says so: ranges of one name, and equal repetitions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import numpy as np

from pytest_perfdl.analysis.events.launches import Launches, launch_calls
from pytest_perfdl.trace.annotations import NUMBER
from pytest_perfdl.trace.model import I32, Category, Rows, Trace

LEAST = 3
"""Annotations of one name, or repetitions, that may be steps."""
LEAST_EVENTS = 6
"""Operators and launches of all repetitions together."""
WORK_SHARE = 0.5
"""Share of the operators and launches that must begin inside the annotations."""
LOOP_SHARE = 0.95
"""Share of the operators and launches of the steps' thread that the repetitions must be."""

_SEPARATOR = re.compile(r"[^A-Za-z0-9]+")
_OURS = "perfdl."
_GLANCE = 256
_CANDIDATES = 8
"""Names of operators, occurrences of each, and series of annotations that are looked at."""


def step_like(trace: Trace, joined: Launches) -> tuple[int, str]:
    """How many annotations look like steps, and the pattern for their names; 0 for none.

    They are at least `LEAST` of one thread, whose names differ in numbers at most, one after the other, with at least
    `WORK_SHARE` of the operators and launches of the process inside; of several names those with most of it inside.
    """
    work = np.concatenate((trace.rows(Category.CPU_OP), launch_calls(trace, joined).row))
    begins, pids = trace.start[work], trace.pid[work]
    best: tuple[int, str] = (0, "")
    most = WORK_SHARE
    for own in itertools.islice(_series(trace), _CANDIDATES):
        start, end = trace.start[own], trace.end[own]
        at = begins[pids == trace.pid[own[0]]]
        place = np.searchsorted(start, at, side="right") - 1
        share = np.count_nonzero((place >= 0) & (at < end[place])) / max(1, len(at))
        if (share > most or (share == most and not best[0])) and (pattern := _pattern(trace, own)):
            best, most = (len(own), pattern), share
    return best


def _series(trace: Trace) -> Iterator[Rows]:
    """Annotations of one thread, one after the other, whose names differ in numbers at most; the longest first."""
    rows = trace.rows(Category.USER_ANNOTATION)
    stems: dict[str, int] = {}
    code = np.zeros(len(trace.names), dtype=np.intp)
    for index in np.unique(trace.name[rows]).tolist():
        if not trace.names[index].startswith(_OURS):
            code[index] = stems.setdefault(NUMBER.sub("#", trace.names[index]), len(stems) + 1)
    rows = rows[code[trace.name[rows]] > 0]
    keys = np.column_stack((code[trace.name[rows]], trace.pid[rows], trace.tid[rows]))
    _, series = np.unique(keys, axis=0, return_inverse=True)
    series = series.reshape(-1)
    long = np.argsort(-np.bincount(series, trace.duration[rows]), kind="stable") if len(rows) else series
    for each in long.tolist():
        own = rows[series == each]
        if len(own) >= LEAST and not (trace.start[own[1:]] < trace.end[own[:-1]]).any():
            yield own


def _pattern(trace: Trace, rows: Rows) -> str:
    """The shortest pattern that the names of these annotations match, and no other annotation's does."""
    names: list[str] = [trace.names[index] for index in np.unique(trace.name[rows]).tolist()]
    annotations = trace.rows(Category.USER_ANNOTATION)
    others = [trace.names[index] for index in np.unique(trace.name[np.setdiff1d(annotations, rows)]).tolist()]
    # Of another thread the name may be the same: the steps are those of the thread with most work.
    others = [name for name in others if name not in names]
    stem = NUMBER.split(names[0])
    tries: list[str] = [re.escape(names[0])] if len(names) == 1 else []
    tries += [f"{re.escape(names[0][: each.end()])}.*" for each in _SEPARATOR.finditer(stem[0]) if each.start() > 0]
    tries += [r"\d+".join(re.escape(part) for part in stem[::2])]
    for text in tries:
        # As it is typed in a shell.
        pattern: str = text.replace("'", ".")
        if all(re.fullmatch(pattern, name) for name in names) and not any(
            re.fullmatch(pattern, each) for each in others
        ):
            return pattern
    return ""


def repetitions(trace: Trace, joined: Launches, thread: tuple[int, int], start: int, end: int) -> tuple[int, int]:
    """Operators and launches of one repetition of a thread's work from `start` to `end`, and how often; 0 for none.

    All repetitions run the same, one after the other, and are at least `LOOP_SHARE` of it.
    """
    rows = np.concatenate((trace.rows(Category.CPU_OP), launch_calls(trace, joined).row))
    rows = rows[(trace.pid[rows] == thread[0]) & (trace.tid[rows] == thread[1])]
    rows = rows[(trace.start[rows] >= start) & (trace.start[rows] < end)]
    count = len(rows)
    if count < LEAST_EVENTS:
        return 0, 0
    # Both come by start, so that this is a merge.
    names = trace.name[rows[np.argsort(trace.start[rows], kind="stable")]]
    middle = count // LEAST
    for lag in _lags(names):
        # All of the middle is in the loop, if there is one: a glance at it rules out most lengths.
        glance = names[middle : middle + min(lag, _GLANCE)]
        if not np.array_equal(glance, names[middle + lag : middle + lag + len(glance)]):
            continue
        equal = np.concatenate(([False], names[lag:] == names[:-lag], [False]))
        breaks = np.flatnonzero(~equal)
        longest = int(np.diff(breaks).max()) - 1
        times = (longest + lag) // lag
        if times >= LEAST and times * lag >= LOOP_SHARE * count:
            return lag, times
    return 0, 0


def _lags(names: I32) -> list[int]:
    """Lengths that a repetition may have, the shortest first: distances between the rarest names of it."""
    counts = np.bincount(names)
    often = np.flatnonzero(counts >= LEAST)
    rarest = often[np.argsort(counts[often], kind="stable")][:_CANDIDATES]
    found: set[int] = set()
    for name in rarest.tolist():
        at = np.flatnonzero(names == name)
        # From one in the middle on, which is behind what comes before a loop.
        at = at[len(at) // 3 :]
        found.update((at[1 : _CANDIDATES + 1] - at[0]).tolist())
    return sorted(lag for lag in found if LEAST * lag <= len(names))
