"""Transfers that no kernel accompanies: between the kernel that sends and the one that receives."""

from __future__ import annotations

import re

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.trace.model import Rows, Trace

_WORD = re.compile(r"(?<![a-z])(send|recv|receive)(?![a-z])", re.IGNORECASE)
"""A word of its own, as in `dispatch_send`: `ncclDevKernel_SendRecv` does both at once."""

_LOW_LATENCY = re.compile(r"(internode_ll|low_latency)\w*::(dispatch|combine)\b", re.IGNORECASE)

_WAITING = re.compile(r"notify_dispatch|cached_notify|notify_combine|barrier|wait_until|signal_wait", re.IGNORECASE)

_NESTED = re.compile(r"\(anonymous namespace\)::")


def in_flight(trace: Trace, communication: Rows) -> Intervals:
    """When data was under way without a kernel: from the end of a send to the start of its receive.

    Only names count as evidence; without it nothing is in flight. On each stream:

    - A kernel whose name holds the word `send` (`dispatch_send`) is received by the next kernel there whose name,
      up to its template or call arguments, is the same with `recv` or `receive`.
    - DeepEP's low-latency kernels (`internode_ll::dispatch`, `internode_ll::combine`) run twice under one name when
      a receive hook was asked for, first to send and then to receive, and once, doing both, when not. Two of the
      same kind with no other low-latency kernel of the stream between them are a send and its receive.

    Parameters
    ----------
    trace
        The trace.
    communication
        Rows of communication kernels, by start.
    """
    phases = [_phase(name) for name in trace.names]
    rows = trace.matching(_phase, communication)
    sent: dict[tuple[int, int, str], int] = {}
    last: dict[tuple[int, int], tuple[str, int]] = {}
    gaps: list[tuple[int, int]] = []
    ends = (trace.start[rows] + trace.duration[rows]).tolist()
    columns = (trace.name[rows], trace.pid[rows], trace.tid[rows], trace.start[rows])
    for name, pid, tid, start, end in zip(*(column.tolist() for column in columns), ends, strict=True):
        kind, stem = phases[name] or ("", "")
        if kind == "send":
            sent[pid, tid, stem] = end
        elif kind == "receive":
            gaps.append((sent.pop((pid, tid, stem), start), start))
        elif last.get((pid, tid), ("", 0))[0] == stem:
            gaps.append((last.pop((pid, tid))[1], start))
        else:
            last[pid, tid] = (stem, end)
    found = np.array(gaps, dtype=np.int64).reshape(-1, 2)
    return Intervals.union_of(found[:, 0], found[:, 1])


def waiting_rows(trace: Trace, communication: Rows) -> Rows:
    """Those communication kernels that move no data and only wait to be notified: DeepEP's notifications, barriers."""
    return trace.matching(_WAITING.search, communication)


def _phase(name: str) -> tuple[str, str] | None:
    """What a kernel does to a transfer (send, receive or either) and what must agree between the two."""
    stem = re.split(r"[<(]", _NESTED.sub("", name), maxsplit=1)[0]
    words = {word.lower() for word in _WORD.findall(stem)}
    if len(words) == 1:
        kind = "send" if words == {"send"} else "receive"
        return kind, _WORD.sub("", stem)
    low_latency = _LOW_LATENCY.search(stem)
    return ("either", low_latency[2].lower()) if low_latency else None
