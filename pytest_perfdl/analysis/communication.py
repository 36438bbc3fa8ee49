"""Which device events are communication, and how much of it hides behind computing."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.intervals import Intervals
from pytest_perfdl.trace.model import Category, Rows, Trace

_KERNEL = re.compile(r"nccl|rccl|hccl|cross_device_reduce|deep_ep|dpsk::ep|nvshmem", re.IGNORECASE)
_COLLECTIVE = re.compile(r"(nccl|gloo|mpi|ucc|hccl|xccl):|c10d::", re.IGNORECASE)


class _Collective(msgspec.Struct, gc=False):
    name: str = msgspec.field(name="Collective name", default="")


def communication_kernels(trace: Trace) -> npt.NDArray[np.bool_]:
    """Whether each row of the trace is a communication kernel.

    Evidence first (collective arguments), then names: NCCL, RCCL, HCCL, `cross_device_reduce` (vLLM), DeepEP
    (`deep_ep`, `dpsk::ep`) and NVSHMEM. Copies are not communication.
    """
    rows = trace.rows(Category.KERNEL)
    named = np.array([bool(_KERNEL.search(name)) for name in trace.names], dtype=bool)
    evidence = np.array([bool(args.name) for args in trace.decode_args(rows, _Collective)], dtype=bool)
    found = np.zeros(len(trace), dtype=bool)
    found[rows] = named[trace.name[rows]] | evidence
    return found


def collective_annotation_rows(trace: Trace) -> Rows:
    """Host rows of collectives, on any thread: `gloo:all_reduce`, `nccl:*`, `c10d::*` and their like."""
    named = np.array([bool(_COLLECTIVE.match(name)) for name in trace.names], dtype=bool)
    return trace.matching(named, trace.rows(Category.USER_ANNOTATION, Category.CPU_OP))


def covered(trace: Trace, rows: Rows) -> Intervals:
    """The union of the intervals of these events, over all streams and threads."""
    return Intervals.union_of(trace.start[rows], trace.end[rows])


def communication_overlap(trace: Trace) -> float | None:
    """|U(comm) and U(compute)| / |U(comm)|, from 0 to 1; `None` without communication.

    U is the union over all streams. Copies do not count as computing.
    """
    kernels = trace.rows(Category.KERNEL)
    is_communication = communication_kernels(trace)[kernels]
    communication = covered(trace, kernels[is_communication])
    compute = covered(trace, kernels[~is_communication])
    if communication.length == 0:
        return None
    return communication.intersection(compute).length / communication.length
