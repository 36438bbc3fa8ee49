"""Which collectives of a trace exchange which gradients: buckets, as DistributedDataParallel fills them."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.trace.model import I64, Rows, Trace
from pytest_perfdl.whatif.collective_costs import sizes_of
from pytest_perfdl.whatif.facts import gradients

_COMPRESSED = (1, 2)
"""Bytes of gradients by byte that is sent: as they are, and cast to 16 bits by a communication hook."""


def completing(trace: Trace, rows: Rows) -> Rows:
    """The gradient that completes the bucket of each collective: an index into `gradients(trace)`, -1 for none.

    Buckets are runs of gradients in the order in which the backward pass completes them, and all-reduces send them in
    their order. So in each step the bytes of the all-reduces must add up, one after the other, to those of some of
    the gradients, and all of them to those of all. Other collectives of a step, such as of a loss, fit in nowhere.

    Parameters
    ----------
    trace
        The trace of one rank.
    rows
        Its collectives in the order in which they start.

    Returns
    -------
    Rows
        -1 for all of a step whose bytes do not add up.
    """
    found = np.full(len(rows), -1, dtype=np.intp)
    known = gradients(trace)
    kinds, sizes = sizes_of(trace, rows)
    reduces = np.array([kind == "all_reduce" for kind in kinds], dtype=bool) & (sizes > 0)
    for step in np.unique(known.step[known.step >= 0]).tolist():
        own = np.flatnonzero(known.step == step)
        since = trace.start[known.row[own[0]]]
        later = known.row[known.step > step]
        until = trace.start[later].min() if len(later) else np.iinfo(np.int64).max
        there = np.flatnonzero(reduces & (trace.start[rows] >= since) & (trace.start[rows] < until))
        for factor in _COMPRESSED:
            places = _filled(np.cumsum(known.bytes[own]), sizes[there] * factor)
            if places is not None:
                found[there] = np.where(places >= 0, own[places], -1)
                break
    return found


def _filled(until: I64, sizes: I64) -> Rows | None:
    """Where in the running sum of gradients' bytes each bucket ends, -1 for what is none; `None` if it does not fit."""
    ends = {int(total): place for place, total in enumerate(until.tolist())}
    held, found = 0, np.full(len(sizes), -1, dtype=np.intp)
    for place, size in enumerate(sizes.tolist()):
        if held + size in ends:
            held += size
            found[place] = ends[held]
    return found if held == int(until[-1]) else None
