"""Operators of each step: how many, which in which order, and their self time on the host."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from pytest_perfdl.analysis.communication import covered
from pytest_perfdl.analysis.intervals import Intervals
from pytest_perfdl.analysis.nesting import Ownership, nesting_order, ownership
from pytest_perfdl.analysis.steps import Steps
from pytest_perfdl.analysis.threads import Thread, input_rows, on_thread
from pytest_perfdl.trace.model import I32, I64, Category, Rows, Trace

_DIMS = operator.attrgetter("dims")
_BLOCK = 4096
"""Rows whose args are decoded at a time: their text then stays in the cache."""


class _Shapes(msgspec.Struct, gc=False):
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))


@dataclass(frozen=True, slots=True, eq=False)
class ThreadOperators:
    """The operators of one thread that start inside a step, and the self time of its operators.

    Time inside an input annotation of the thread belongs to the input, not to the operators that run in it.
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
    mine = (trace.category == Category.CPU_OP) & (trace.pid == thread[0]) & (trace.tid == thread[1])
    rows = np.flatnonzero(mine)
    start, end = trace.start[rows], trace.start[rows] + trace.duration[rows]
    order = nesting_order(start, end)
    rows, start, end = rows[order], start[order], end[order]
    waiting = covered(trace, on_thread(trace, input_rows(trace), thread))
    step = steps.of_host_time(start)
    works = ~waiting.contains(start)
    owned = ownership(start, end)
    time, per_step = _time_in_steps(owned, steps, waiting)
    return ThreadOperators(
        names=_names(trace, rows, step, len(steps.windows)),
        digests=_digests(trace, rows[works], step[works], len(steps.windows)),
        self_ns=_by_name(trace, rows[owned.owner], time),
        step_self_ns=per_step,
        overlapping=owned.overlapping,
    )


def _time_in_steps(owned: Ownership, steps: Steps, waiting: Intervals) -> tuple[I64, tuple[int, ...]]:
    """Nanoseconds of each piece that lie in the steps and outside the input, and their sum by step."""
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


class _Texts(dict[tuple[int, bytes], bytes]):
    """What a digest is fed for an operator, by name and shapes as the file has them; made when first asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __missing__(self, key: tuple[int, bytes]) -> bytes:
        name, dims = key
        text = self[key] = b"%b\0%b\n" % (self.names[name].encode(), b"".join(dims.split()))
        return text


def _digests(trace: Trace, rows: Rows, step: Rows, steps: int) -> tuple[str, ...]:
    """Digest of the sequence of (name, shapes) in each step; rows come by time, -1 for those outside the steps."""
    rows, step = rows[step >= 0], step[step >= 0]
    texts = _Texts(trace.names)
    listed: list[bytes] = []
    # In the order of the file the args of many rows are one piece of text.
    filed = np.argsort(rows)
    for block in range(0, len(rows), _BLOCK):
        own = rows[filed[block : block + _BLOCK]]
        dims = map(bytes, map(_DIMS, trace.decode_args(own, _Shapes)))
        listed.extend(map(texts.__getitem__, zip(trace.name[own].tolist(), dims, strict=True)))
    place = np.empty(len(rows), dtype=np.intp)
    place[filed] = np.arange(len(rows))
    sequence = [listed[at] for at in place.tolist()]
    bounds = np.searchsorted(step, np.arange(steps + 1)).tolist()
    return tuple(
        hashlib.blake2b(b"".join(sequence[first:last]), digest_size=8).hexdigest()
        for first, last in itertools.pairwise(bounds)
    )
