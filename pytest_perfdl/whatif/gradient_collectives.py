"""Which collectives of a trace exchange which gradients: buckets, as DistributedDataParallel fills them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.analysis.efficiency.operator_costs import bytes_of_type
from pytest_perfdl.analysis.ranks.calls import kind_of
from pytest_perfdl.trace.model import I64, Rows, Trace
from pytest_perfdl.whatif.facts import gradients

_ITEM = {"half": 2, "bfloat16": 2, "double": 8}
"""Bytes of an element by the name that kineto gives NCCL's kernels; others have 4."""

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
    sizes = reduced_bytes(trace, rows)
    reduces = sizes > 0
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


class _Sizes(msgspec.Struct, gc=False):
    elements: int = msgspec.field(name="In msg nelems", default=0)
    dtype: str = msgspec.field(name="dtype", default="")
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)


def reduced_bytes(trace: Trace, rows: Rows) -> I64:
    """Bytes of all-reduces by their own arguments, of NCCL's kernels or gloo's annotations; 0 for others."""
    found = np.zeros(len(rows), dtype=np.int64)
    for place, (row, told) in enumerate(zip(rows.tolist(), trace.decode_args(rows, _Sizes), strict=True)):
        if kind_of(trace.name_of(row)) != "all_reduce":
            continue
        if told.elements:
            found[place] = told.elements * _ITEM.get(told.dtype.lower(), 4)
        elif isinstance(told.dims, list):
            first = told.types[0] if isinstance(told.types, list) and told.types else ""
            found[place] = sum(map(math.prod, _shapes(told.dims))) * bytes_of_type(str(first))
    return found


def _shapes(dims: list[Any]) -> Iterator[list[int]]:
    """Shapes of tensors, in lists of tensors, too."""
    for each in dims:
        if isinstance(each, list) and each and all(isinstance(size, int) for size in each):
            yield each
        elif isinstance(each, list):
            yield from _shapes(each)
