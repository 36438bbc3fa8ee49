"""What collectives cost: a latency and a time per byte, fitted to those of a job, and what both are for more ranks.

A call of S bytes takes t = alpha + S / beta from the moment at which its last rank has arrived (Hockney, "The
communication challenge for MPP", 1994). Waiting for that rank is no part of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.analysis.efficiency.operator_costs import bytes_of_type
from pytest_perfdl.trace.model import F64, I64, Rows, Trace
from pytest_perfdl.whatif.model import Job, Mask

ROUNDS = 200
"""Resamples of a bootstrap."""

SEED = 20261125
"""Of the resamples, so that the same traces give the same interval."""

APART = 1.5
"""Sizes of collectives that differ by this factor tell latency from time per byte; closer ones extrapolate noise."""

_KINDS = {
    "all_reduce": re.compile(r"all_?reduce", re.IGNORECASE),
    "reduce_scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all_gather": re.compile(r"all_?gather", re.IGNORECASE),
    "all_to_all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
    "reduce": re.compile(r"reduce", re.IGNORECASE),
}
"""What a collective is, the first that fits; what none fits is between two ranks, or unknown, and does not change with
their number."""

_NCCL_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"), 1),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long", "complexfloat"), 8),
}
"""Bytes of an element by the name that kineto gives NCCL's kernels (`dtype`)."""


class _Sizes(msgspec.Struct, gc=False):
    what: str = msgspec.field(name="Collective name", default="")
    sent: int = msgspec.field(name="In msg nelems", default=0)
    received: int = msgspec.field(name="Out msg nelems", default=0)
    dtype: str = msgspec.field(name="dtype", default="")
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)


def kind_of(name: str) -> str:
    """What a collective is by its name in a trace, empty if it says nothing.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"), kind_of("gloo:all_gather"), kind_of("gemm")
    ('all_reduce', 'all_gather', '')
    """
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), "")


def sizes_of(trace: Trace, rows: Rows) -> tuple[list[str], I64]:
    """The kind of each collective, and its bytes on one rank: of its larger side; 0 where they are not recorded."""
    kinds, found = [], np.zeros(len(rows), dtype=np.int64)
    for place, (row, told) in enumerate(zip(rows.tolist(), trace.decode_args(rows, _Sizes), strict=True)):
        kinds.append(kind_of(told.what) or kind_of(trace.name_of(row)))
        elements = max(told.sent, told.received)
        if elements:
            found[place] = elements * _NCCL_BYTES.get(told.dtype.lower(), 4)
        elif isinstance(told.dims, list):
            first = told.types[0] if isinstance(told.types, list) and told.types else ""
            found[place] = sum(map(math.prod, _shapes(told.dims))) * bytes_of_type(str(first))
    return kinds, found


def _shapes(dims: list[Any]) -> Iterable[list[int]]:
    """Shapes of tensors, in lists of tensors, too."""
    for each in dims:
        if isinstance(each, list) and each and all(isinstance(size, int) for size in each):
            yield each
        elif isinstance(each, list):
            yield from _shapes(each)


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """The collectives that couple the ranks of a job: one value each, in the order of `Job.meetings`."""

    kind: tuple[str, ...]
    bytes: I64
    """Of the whole tensor: what an all-reduce reduces, an all-gather has in the end. 0 where it is not recorded."""
    members: I64
    """How many ranks take part."""
    transfer: I64
    """Nanoseconds from the last arrival on, of the member that takes longest."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def sized(self) -> Mask:
        """Which have recorded bytes."""
        return np.asarray(self.bytes > 0, dtype=bool)


def collectives_of(job: Job) -> Collectives:
    """Kinds and sizes from the traces, transfers from what `rank_meetings` found."""
    found = job.meetings
    count = len(found)
    kind, size = [""] * count, np.zeros(count, dtype=np.int64)
    there = found.row >= 0
    for column, part in enumerate(job.parts):
        lines = np.flatnonzero(there[:, column])
        if part.trace is None:
            continue
        kinds, sizes = sizes_of(part.trace, found.row[lines, column])
        for line, own, its in zip(lines.tolist(), kinds, sizes.tolist(), strict=True):
            kind[line] = kind[line] or own
            size[line] = max(size[line], its)
    members = np.count_nonzero(there, axis=1)
    # gloo records what one rank brings to an all-gather, not what it has in the end.
    gathered = np.array([own == "all_gather" for own in kind], dtype=bool) & ~_on_device(job)
    return Collectives(
        tuple(kind),
        np.where(gathered, size * members, size),
        members,
        np.where(there, found.transfer, 0).max(axis=1, initial=0),
    )


def _on_device(job: Job) -> bool:
    return any(part.on_device for part in job.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Cost:
    """t = latency + bytes x time per byte, with resamples of both."""

    latency_ns: float
    ns_per_byte: float
    samples: F64
    """Latency and time per byte, a line each: resamples of the collectives, or both ends where sizes tell nothing."""
    known: bool
    """Whether sizes differ enough to tell latency from time per byte."""

    def of(self, size: F64 | I64) -> F64:
        """Nanoseconds of calls of these bytes."""
        return np.asarray(self.latency_ns + self.ns_per_byte * size, dtype=np.float64)


def fitted(size: I64, ns: I64) -> Cost:
    """Fit latency and time per byte to collectives of one kind.

    Least squares of relative residuals over the medians of equal sizes, weighted by their numbers, with neither
    below 0. Where all sizes are about equal (`APART`) the time per byte has all of the time, and the samples hold the
    other end, at which the latency has it.
    """
    if not len(size):
        return Cost(0.0, 0.0, np.zeros((1, 2)), known=False)
    if size.max() < APART * max(int(size.min()), 1):
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


def _line(size: I64, ns: I64) -> tuple[float, float]:
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

    >>> rounds("all_reduce", 64, "ring"), rounds("all_reduce", 64, "tree"), rounds("", 64, "ring")
    (126.0, 12.0, 1.0)
    """
    if not kind:
        return 1.0
    passes = 2 if kind == "all_reduce" else 1
    if algorithm == "tree" and kind != "all_to_all":
        return float(passes * math.ceil(math.log2(ranks)))
    return float(passes * (ranks - 1))
