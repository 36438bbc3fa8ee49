"""Operators of each step: how many, which in which order, and their self time on the host."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.communication import covered, waits_for_collectives
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.nesting import Ownership, ownership
from pytest_perfdl.analysis.events.operator_args import operator_args
from pytest_perfdl.analysis.events.operator_time import operator_time
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.threads import Thread, input_rows, on_thread
from pytest_perfdl.trace.model import I32, I64, Rows, Trace


@dataclass(frozen=True, slots=True, eq=False)
class ThreadOperators:
    """The operators of one thread that start inside a step, and the self time of its operators.

    Time inside an input annotation of the thread belongs to the input, not to the operators that run in it, and time in
    which the thread waits for collectives to communication, not to the operator that it waits in.
    """

    names: tuple[Mapping[str, int], ...]
    """How often each operator starts in each step."""
    digests: tuple[str, ...]
    """Digest of the sequence of (name, shapes) of each step, outside the input."""
    self_ns: Mapping[str, int]
    """Self time by operator, clipped to the steps and summed over them."""
    step_self_ns: tuple[int, ...]
    """Self time of all operators in each step."""
    overlapping: int
    """Operators of the thread that began inside another and ended after it."""


def thread_operators(trace: Trace, steps: Steps, thread: Thread) -> ThreadOperators:
    """Count and time the operators of one thread inside the steps' time on the host.

    Annotations (ProfilerStep, record_function ranges, `Optimizer.step#...`) are not operators and take no time.
    Where operators overlap without nesting, a moment belongs to the one that started last (see `ownership`).
    """
    none: I64 = np.zeros(0, dtype=np.int64)
    rows, owned = operator_time(trace).get(thread) or (none, ownership(none, none))
    start = trace.start[rows]
    waiting = covered(trace, on_thread(trace, input_rows(trace), thread))
    step = steps.of_host_time(start)
    works = ~waiting.contains(start)
    time, per_step = _time_in_steps(owned, steps, waiting.union(waits_for_collectives(trace, thread)))
    return ThreadOperators(
        names=_names(trace, rows, step, len(steps.windows)),
        digests=_digests(trace, rows[works], step[works], len(steps.windows)),
        self_ns=_by_name(trace, rows[owned.owner], time),
        step_self_ns=per_step,
        overlapping=owned.overlapping,
    )


def _time_in_steps(owned: Ownership, steps: Steps, waiting: Intervals) -> tuple[I64, tuple[int, ...]]:
    """Nanoseconds of each piece in which the thread does not wait, in the steps, and their sum by step."""
    time = np.zeros(len(owned.owner), dtype=np.int64)
    per_step = []
    for index, window in enumerate(steps.windows):
        first = np.searchsorted(owned.end, window.host_start, side="right")
        last = np.searchsorted(owned.start, window.host_end)
        own = slice(int(first), max(int(first), int(last)))
        inside = steps.host_time(index).difference(waiting).within(owned.start[own], owned.end[own])
        time[own] += inside
        per_step.append(int(inside.sum()))
    return time, tuple(per_step)


def _names(trace: Trace, rows: Rows, step: Rows, steps: int) -> tuple[Mapping[str, int], ...]:
    """How often each name occurs in each step, in the order of first occurrence."""
    found: list[Mapping[str, int]] = []
    for index in range(steps):
        names = trace.name[rows[step == index]]
        counts = np.bincount(names, minlength=len(trace.names))
        found.append(Counter({trace.names[name]: int(counts[name]) for name in _first_seen(names)}))
    return tuple(found)


def _by_name(trace: Trace, rows: Rows, time: I64) -> Mapping[str, int]:
    """Sums of `time` by the names of `rows`, in the order of first occurrence."""
    names = trace.name[rows]
    totals = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(totals, names, time)
    return Counter({trace.names[name]: int(totals[name]) for name in _first_seen(names)})


def _first_seen(names: I32) -> list[int]:
    """Distinct values, by where each one first occurs."""
    first = np.full(int(names.max()) + 1 if len(names) else 0, -1, dtype=np.intp)
    first[names[::-1]] = np.arange(len(names) - 1, -1, -1)
    seen = np.flatnonzero(first >= 0)
    return [int(name) for name in seen[np.argsort(first[seen])]]


def _digests(trace: Trace, rows: Rows, step: Rows, steps: int) -> tuple[str, ...]:
    """Digest of the sequence of (name, shapes) in each step; rows come by time, -1 for those outside the steps."""
    rows, step = rows[step >= 0], step[step >= 0]
    args = operator_args(trace)
    calls = args.call[rows]
    texts = dict.fromkeys(calls.tolist(), b"")
    for call in texts:
        name, dims = args.calls[call]
        texts[call] = b"%b\0%b\n" % (trace.names[name].encode(), b"".join(dims.split()))
    bounds = np.searchsorted(step, np.arange(steps + 1)).tolist()
    return tuple(
        hashlib.blake2b(b"".join(map(texts.__getitem__, calls[first:last].tolist())), digest_size=8).hexdigest()
        for first, last in itertools.pairwise(bounds)
    )
