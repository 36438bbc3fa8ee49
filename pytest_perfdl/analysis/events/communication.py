"""Which device events are communication, by which evidence, how much hides behind computing; and hosts that wait."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.nesting import innermost
from pytest_perfdl.analysis.events.threads import AUTOGRAD, Thread, input_rows, on_thread
from pytest_perfdl.trace import collective_names
from pytest_perfdl.trace.model import I64, Category, Rows, Trace, once

Evidence = npt.NDArray[np.int8]
"""For each row of a trace an index into `EVIDENCE`, -1 for rows that are not communication."""

EVIDENCE = ("collective arguments", "parent operator", "name")
"""What can show that a kernel communicates, the strongest first."""

_PLAIN = re.compile(r"at::native::")
"""Kernels of torch's own operators, which a collective may launch to flatten, cast or average."""

_LAST = np.iinfo(np.int64).max
"""After all events."""


class CollectiveArgs(msgspec.Struct, gc=False):
    """Arguments of a collective's kernel, as kineto copies them from the `record_param_comms` that launched it."""

    # Any: what one of them should not be must not cost the others.
    kind: Any = msgspec.field(name="Collective name", default="")
    group: Any = msgspec.field(name="Process Group Name", default="")
    ranks: Any = msgspec.field(name="Process Group Ranks", default="")
    sequence: Any = msgspec.field(name="Seq", default=-1)
    into: Any = msgspec.field(name="In msg nelems", default=-1)
    out: Any = msgspec.field(name="Out msg nelems", default=-1)
    size: Any = msgspec.field(name="Group size", default=0)
    dtype: Any = msgspec.field(name="dtype", default="")
    source: Any = msgspec.field(name="Src Rank", default=-1)
    target: Any = msgspec.field(name="Dst Rank", default=-1)


@once
def communication_evidence(trace: Trace) -> Evidence:
    """By which evidence each row of the trace is a communication kernel: an index into `EVIDENCE`, -1 for none.

    *Collective arguments*: the kernel carries a `Collective name` or a `Process Group Name`, which kineto copies
    from the `record_param_comms` that launched it.

    *Parent operator*: the innermost operator or annotation around the launching call, on its thread, is `c10d::*`,
    `symm_mem::*`, `record_param_comms` or a backend's annotation (`nccl:*`, `hccl:*`, ...). It has to be the innermost
    one: collectives also copy, flatten, cast and divide, by operators of their own (`aten::copy_` inside
    `c10d::allreduce_`) whose kernels are computing. For the same reason kernels of `at::native::` are never
    communication by this evidence, even where the operator around them was not recorded.

    *Name*: see `collective_names.KERNEL`.

    Copies and memsets are never communication.
    """
    rows = trace.rows(Category.KERNEL)
    found = np.full(len(rows), -1, dtype=np.int8)
    found[trace.named(collective_names.KERNEL.search)[trace.name[rows]]] = EVIDENCE.index("name")
    found[_launched_by_collectives(trace, rows)] = EVIDENCE.index("parent operator")
    found[_with_collective_arguments(trace, rows)] = EVIDENCE.index("collective arguments")
    evidence = np.full(len(trace), -1, dtype=np.int8)
    evidence[rows] = found
    return evidence


def evidence_counts(evidence: Evidence) -> Mapping[str, int]:
    """How many kernels count as communication by each kind of evidence; those without any are left out."""
    counts = np.bincount(evidence[evidence >= 0], minlength=len(EVIDENCE)).tolist()
    return {name: count for name, count in zip(EVIDENCE, counts, strict=True) if count}


def communication_kernels(trace: Trace) -> npt.NDArray[np.bool_]:
    """Whether each row of the trace is a communication kernel: see `communication_evidence`."""
    found: npt.NDArray[np.bool_] = communication_evidence(trace) >= 0
    return found


def collective_annotation_rows(trace: Trace) -> Rows:
    """Host rows of collectives, on any thread: `gloo:all_reduce`, `nccl:*`, `c10d::*` and their like."""
    return trace.matching(collective_names.is_annotated, trace.rows(Category.USER_ANNOTATION, Category.CPU_OP))


def covered(trace: Trace, rows: Rows) -> Intervals:
    """The union of the intervals of these events, over all streams and threads."""
    return Intervals.union_of(trace.start[rows], trace.end[rows])


def waits_for_input(trace: Trace, thread: Thread) -> Intervals:
    """When a thread is in an annotation of a loader: `input_rows`."""
    return covered(trace, on_thread(trace, input_rows(trace), thread))


def exposed_communication(trace: Trace) -> Intervals:
    """When a device communicates and does not compute: the union over all devices. Copies hide nothing."""
    kernels = trace.rows(Category.KERNEL)
    communicates = communication_kernels(trace)[kernels]
    exposed = Intervals.between(0, 0)
    for device in np.unique(trace.pid[kernels[communicates]]):
        own = trace.pid[kernels] == device
        computing = covered(trace, kernels[own & ~communicates])
        exposed = exposed.union(covered(trace, kernels[own & communicates]).difference(computing))
    return exposed


def computing_rows(trace: Trace, thread: Thread) -> Rows:
    """Operators of a thread that compute something.

    Not those that issue collectives or wait for them, and not the autograd engine's frames around operators: where DDP
    or FSDP waits in a hook of the backward pass, such a frame is open, and no operator computes.
    """
    operators = on_thread(trace, trace.rows(Category.CPU_OP), thread)
    return trace.matching(lambda name: not (collective_names.is_operator(name) or AUTOGRAD.match(name)), operators)


def waits_for_collectives(trace: Trace, thread: Thread) -> Intervals:
    """When a thread only waits for collectives; never, with device events, where a stream waits instead.

    That is where an annotation of a collective is open, on any thread, and this one neither computes (`computing_rows`)
    nor waits for input: up to where the last one ends before it goes on. What the thread does after that, or while one
    is open that does not end (a message to receive later), is its own.

    Gloo closes an annotation after it has released who waits for the collective, on busy cores milliseconds later. So
    one during which the thread is idle for at least half of the time also ends where the thread goes on, if it had been
    idle for as long as the annotation is open after that.
    """
    if len(launches(trace).device):
        return Intervals.between(0, 0)
    annotations = collective_annotation_rows(trace)
    annotations = annotations[trace.category[annotations] == Category.USER_ANNOTATION]
    waiting = waits_for_input(trace, thread)
    busy = covered(trace, computing_rows(trace, thread)).union(waiting)
    gaps = covered(trace, annotations).difference(busy)
    end = np.sort(np.concatenate([trace.end[annotations], *_releases(trace, annotations, busy)]))
    until = np.append(busy.start, _LAST)[np.searchsorted(busy.start, gaps.start, side="right")]
    known = np.append(end, -_LAST)[np.searchsorted(end, until, side="right") - 1]
    return Intervals.union_of(gaps.start, np.maximum(np.minimum(gaps.end, known), gaps.start))


def _releases(trace: Trace, annotations: Rows, busy: Intervals) -> Iterator[I64]:
    """Where a thread goes on, though the annotation of the collective that it waited for is not closed yet."""
    start, end = trace.start[annotations], trace.end[annotations]
    idle = 2 * busy.within(start, end) <= end - start
    before = np.append(-_LAST, busy.end)
    for opens, closes in zip(start[idle], end[idle], strict=True):
        first, last = np.searchsorted(busy.start, (opens, closes))
        goes_on = busy.start[first:last]
        waited = goes_on - np.maximum(before[first:last], opens)
        yield goes_on[waited >= closes - goes_on]


def _with_collective_arguments(trace: Trace, rows: Rows) -> npt.NDArray[np.bool_]:
    place = np.argsort(rows)
    rows = rows[place]  # in the order of the file, in which their text lies together
    named = trace.raw_args.containing(rows, (b'"Collective name"', b'"Process Group Name"'))
    known = trace.decode_args(rows[named], CollectiveArgs)
    found = np.zeros(len(rows), dtype=bool)
    found[place[named]] = [args.kind not in ("", None) or args.group not in ("", None) for args in known]
    return found


def _launches(name: str) -> bool:
    """Whether kernels that an operator launches itself are communication."""
    return collective_names.is_annotated(name) or bool(collective_names.PARAMETERS.match(name))


def _launched_by_collectives(trace: Trace, rows: Rows) -> npt.NDArray[np.bool_]:
    """Which of these kernels a collective launched itself, not through another operator."""
    found = np.zeros(len(rows), dtype=bool)
    hosts = trace.rows(Category.CPU_OP, Category.USER_ANNOTATION)
    is_parent = trace.named(_launches)
    parents = hosts[is_parent[trace.name[hosts]]]
    if len(parents) == 0 or len(rows) == 0:
        return found
    joined = launches(trace)
    call = joined.spread(joined.call, len(trace))[rows]
    asked = np.flatnonzero((call >= 0) & ~trace.named(_PLAIN.search)[trace.name[rows]])
    # An operator that matters runs while a collective does, which leaves few.
    near = covered(trace, parents)
    asked = asked[near.contains(trace.start[call[asked]])]
    hosts = hosts[near.contains(trace.start[hosts])]
    calls = call[asked]
    parent = innermost(trace, hosts, trace.start[calls], trace.pid[calls], trace.tid[calls])
    found[asked] = (parent >= 0) & is_parent[trace.name[parent]]
    return found
