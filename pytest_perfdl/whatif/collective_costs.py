"""What collectives cost: a latency and a time per byte, fitted to those of a job, and what both are for more ranks.

A call of S bytes takes t = alpha + S / beta from the moment at which its last rank has arrived (Hockney, "The
communication challenge for MPP", 1994). Waiting for that rank is no part of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.trace.model import F64, I64
from pytest_perfdl.whatif.model import Meetings

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


def fitted(size: F64 | I64, ns: F64 | I64) -> Cost:
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
            samples.append(_line(size[own], ns[own]))
    best = _line(size, ns)
    return Cost(*best, np.array(samples or [best]), known=True)


def _line(size: F64 | I64, ns: F64 | I64) -> tuple[float, float]:
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
