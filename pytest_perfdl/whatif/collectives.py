"""Collectives of a job: which gradients they exchange, and what they cost for more ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_perfdl.analysis.ranks.calls import kind_of
from pytest_perfdl.trace.model import F64, I64, Rows, Trace
from pytest_perfdl.whatif.facts import InputArgs, gradients
from pytest_perfdl.whatif.model import Meetings

# What collectives cost: a latency and a time per byte, fitted to those of a job, and what both are for more ranks.
#
# A call of S bytes takes t = alpha + S / beta from the moment at which its last rank has arrived (Hockney, "The
# communication challenge for MPP", 1994). Waiting for that rank is no part of it.


ROUNDS = 200
"""Resamples of a bootstrap."""

SEED = 20261125
"""Of the resamples, so that the same traces give the same interval."""

APART = 2.0
"""Sizes of collectives that differ by this factor tell latency from time per byte; closer ones extrapolate noise."""


def transfers(found: Meetings) -> I64:
    """Nanoseconds that each collective of a job takes from the last arrival on, of the member that takes longest."""
    longest: I64 = np.where(found.row >= 0, found.transfer, 0).max(axis=1, initial=0)
    return longest


@dataclass(frozen=True, slots=True, eq=False)
class Cost:
    """t = latency + bytes x time per byte, with resamples of both."""

    latency_ns: float
    ns_per_byte: float
    samples: F64
    """Latency and time per byte, a line each: resamples of the collectives, or both ends where sizes tell nothing."""
    known: bool
    """Whether sizes differ enough to tell latency from time per byte."""

    def scaled(self, latency: float, per_byte: float) -> Cost:
        """So many times the latency and the time per byte."""
        factors = np.array((latency, per_byte))
        return Cost(self.latency_ns * latency, self.ns_per_byte * per_byte, self.samples * factors, self.known)

    def of(self, size: F64 | I64) -> F64:
        """Nanoseconds of calls of these bytes."""
        return np.asarray(self.latency_ns + self.ns_per_byte * size, dtype=np.float64)


def fit_cost(size: F64 | I64, ns: F64 | I64) -> Cost:
    """Fit latency and time per byte to collectives of one kind.

    Least squares of relative residuals over the medians of equal sizes, weighted by their numbers, with neither
    below 0. Where all sizes are about equal (`APART`) the time per byte has all of the time, and the samples hold the
    other end, at which the latency has it.
    """
    if not len(size):
        return Cost(0.0, 0.0, np.zeros((1, 2)), known=False)
    if size.max() < APART * max(float(size.min()), 1.0):
        whole = float(np.median(ns))
        per_byte = whole / max(float(np.median(size)), 1.0)
        return Cost(0.0, per_byte, np.array([(0.0, per_byte), (whole, 0.0)]), known=False)
    random = np.random.default_rng(SEED)
    samples = []
    for _ in range(ROUNDS):
        own = random.integers(len(size), size=len(size))
        if size[own].max() >= APART * size[own].min():
            samples.append(_fit_line(size[own], ns[own]))
    best = _fit_line(size, ns)
    return Cost(*best, np.array(samples or [best]), known=True)


def _fit_line(size: F64 | I64, ns: F64 | I64) -> tuple[float, float]:
    """Latency and time per byte."""
    values, number, counts = np.unique(size, return_inverse=True, return_counts=True)
    times = np.array([max(float(np.median(ns[number == own])), 1.0) for own in range(len(values))])
    weight = np.sqrt(counts) / times
    columns = np.stack((np.ones(len(values)), values.astype(np.float64)), axis=1)
    found = np.linalg.lstsq(columns * weight[:, None], times * weight, rcond=None)[0]
    for kept, dropped in ((1, 0), (0, 1)):
        if found[dropped] < 0:
            column = columns[:, kept] * weight
            found = np.zeros(2)
            found[kept] = column @ (times * weight) / (column @ column)
    return float(found[0]), float(found[1])


def volume(kind: str, ranks: int) -> float:
    """Bytes that each rank's link carries of a collective, as a multiple of its bytes.

    nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth": 2 (n - 1) / n of an all-reduce, (n - 1) / n of a reduce-scatter,
    an all-gather and an all-to-all, all of a broadcast and a reduce.

    >>> volume("all_reduce", 4), volume("all_gather", 4), volume("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in ("reduce_scatter", "all_gather", "all_to_all") else 1.0


def rounds(kind: str, ranks: int, algorithm: str) -> float:
    """Messages one after the other in a collective: what its latency is a multiple of.

    Over a ring 2 (n - 1) of an all-reduce and n - 1 of the others (Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009); over a tree 2 log2 n and log2 n (Thakur, Rabenseifner, Gropp,
    "Optimization of collective communication operations in MPICH", 2005). An all-to-all sends n - 1 in either.

    >>> rounds("all_reduce", 64, "ring"), rounds("all_reduce", 64, "tree")
    (126.0, 12.0)
    """
    passes = 2 if kind == "all_reduce" else 1
    if algorithm == "tree" and kind != "all_to_all":
        return float(passes * math.ceil(math.log2(ranks)))
    return float(passes * (ranks - 1))


# Which collectives of a trace exchange which gradients: buckets, as DistributedDataParallel fills them.


_ITEM = {"half": 2, "bfloat16": 2, "double": 8}
"""Bytes of an element by the name that kineto gives NCCL's kernels; others have 4."""

_COMPRESSED = (1, 2)
"""Bytes of gradients by byte that is sent: as they are, and cast to 16 bits by a communication hook."""


def completing_gradients(trace: Trace, rows: Rows) -> Rows:
    """The gradient that completes the bucket of each collective: an index into `gradients(trace)`, -1 for none.

    Buckets are runs of gradients in the order in which the backward pass completes them, and all-reduces send them in
    their order. So in each step the bytes of the all-reduces must add up, one after the other, to those of some of
    the gradients, and all of them to those of all; where they do not, all of the step are -1. Other collectives of a
    step, such as of a loss, fit in nowhere. Rows are in the order in which the collectives start.
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
            places = _bucket_ends(np.cumsum(known.bytes[own]), sizes[there] * factor)
            if places is not None:
                found[there] = np.where(places >= 0, own[places], -1)
                break
    return found


def _bucket_ends(until: I64, sizes: I64) -> Rows | None:
    """Where in the running sum of gradients' bytes each bucket ends, -1 for what is none; `None` if it does not fit."""
    ends = {int(total): place for place, total in enumerate(until.tolist())}
    held, found = 0, np.full(len(sizes), -1, dtype=np.intp)
    for place, size in enumerate(sizes.tolist()):
        if held + size in ends:
            held += size
            found[place] = ends[held]
    return found if held == int(until[-1]) else None


def reduced_bytes(trace: Trace, rows: Rows) -> I64:
    """Bytes of all-reduces by their own arguments, of NCCL's kernels or gloo's annotations; 0 for others."""
    found = np.zeros(len(rows), dtype=np.int64)
    for place, (row, told) in enumerate(zip(rows.tolist(), trace.decode_args(rows, InputArgs), strict=True)):
        if kind_of(trace.name_of(row)) != "all_reduce":
            continue
        if told.elements:
            found[place] = told.elements * _ITEM.get(told.dtype.lower(), 4)
        elif isinstance(told.dims, list):
            found[place] = sum(map(math.prod, _shapes(told.dims))) * told.item_bytes
    return found


def _shapes(dims: list[Any]) -> Iterator[list[int]]:
    """Shapes of tensors, in lists of tensors, too."""
    for each in dims:
        if isinstance(each, list) and each and all(isinstance(size, int) for size in each):
            yield each
        elif isinstance(each, list):
            yield from _shapes(each)
