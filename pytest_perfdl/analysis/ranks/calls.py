"""The communication of one rank, call by call: what ran when, in which group, how much, and who issued it."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.communication import (
    CollectiveArgs,
    collective_annotation_rows,
    communication_kernels,
)
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.nesting import innermost
from pytest_perfdl.analysis.events.steps import device_steps, steps_of
from pytest_perfdl.trace import collective_names
from pytest_perfdl.trace.model import I64, Category, Rows, Trace, job_properties, once

_KINDS = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("sendrecv", "other"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("recv", "recv"),
    ("send", "send"),
)
"""What a name has in it, without its underscores, and the kind that it then is of: the first that fits."""

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv", "other"})
"""Kinds of which one rank may be done before another has started."""

_ITEM = {
    "bool": 1, "byte": 1, "char": 1, "uint8": 1, "int8": 1, "unsignedchar": 1, "signedchar": 1,
    "half": 2, "bfloat16": 2, "short": 2, "float16": 2, "int16": 2,
    "float": 4, "int": 4, "float32": 4, "int32": 4,
    "double": 8, "long": 8, "longint": 8, "float64": 8, "int64": 8, "complexfloat": 8,
}  # fmt: skip
"""Bytes of an element, by the names that kineto's arguments of collectives and of operators have."""

_RUN_AS = {"reduce_scatter": ("reduce_scatter", "all_reduce")}
"""What gloo's annotation may say for an operator of a kind: it reduces all and scatters itself."""

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Communication kernels of a rank, on ranks without device events annotations such as `gloo:all_reduce`.

    Columns of equal length, in the order of issue. Moments are nanoseconds since 1970 on the rank's own clock.
    """

    name: tuple[str, ...]
    """Name of each event up to its first parenthesis."""
    kinds: tuple[str, ...]
    """Kind of each: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather",
    "scatter", "barrier", "send", "recv", or "other"."""
    group: tuple[str, ...]
    """Process group; where the trace does not name it "stream N" (N counts the streams with communication) or "host".
    """
    members: tuple[tuple[int, ...], ...]
    """Numbers of the ranks of each one's group; empty where the trace does not say."""
    sequence: I64
    """`Seq` of each, -1 where the trace has none."""
    start: I64
    """When it began to run: of the kernel, or of the annotation."""
    end: I64
    issued: I64
    """When the host issued it: start of the launching call, or of the `c10d::*` operator; `start` where unknown."""
    ready: I64
    """When it could have started, had its queue been empty: all kernels issued before it have ended, as a collective
    waits for what it sends; without device events when it was issued."""
    bytes: I64
    """Size as nccl-tests count it: of the larger of input and output over all ranks of the group, so that of an
    all_gather what each rank has afterwards; -1 where the trace does not say."""
    group_size: I64
    """Ranks of the group, 0 where the trace does not say."""
    step: Rows
    """Index of the step that issued it, -1 for none."""
    peer: I64
    """For "send" the rank that it goes to, for "recv" the rank that it comes from; -1 for others, or unknown."""
    exposed_ns: I64
    """The part of its time in which nothing computes."""
    row: Rows
    """Row in the trace."""

    def __len__(self) -> int:
        return len(self.name)

    def of_kind(self, kind: str) -> npt.NDArray[np.bool_]:
        """Which are of a kind."""
        return np.array([each == kind for each in self.kinds], dtype=bool)


def kind_of(name: str) -> str:
    """The kind of collective that a kernel's, operator's or annotation's name says.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kind_of("c10d::_allgather_base_"), kind_of("gloo:send")
    ('all_reduce', 'all_gather', 'send')
    """
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KINDS if part in plain), "other")


@dataclass(frozen=True, slots=True)
class _Call:
    """One call, as far as the trace tells; moments relative to the trace's."""

    row: int
    kind: str
    group: str
    members: tuple[int, ...] = ()
    sequence: int = -1
    issued: int = -1
    bytes: int = -1
    group_size: int = 0
    peer: int = -1


def calls_of(trace: Trace, exposed: Intervals) -> Calls:
    """The communication of a trace, call by call.

    With device events these are the communication kernels, whose arguments say group, `Seq`, sizes and peers as far as
    kineto wrote them. Without, they are the annotations of a back end such as `gloo:all_reduce`, on whichever thread;
    of these group and sequence are not recorded (torch 2.13), and the `c10d::*` operator that issued one says what it
    is, how large, and, where DTensor or functional collectives called it, in which group. An operator's annotation is
    the first one of its kind that starts after it and has no operator yet: gloo runs calls in the order of issue.

    Parameters
    ----------
    trace
        The trace.
    exposed
        When communication is in flight and nothing computes.
    """
    on_device = len(trace.device_rows()) > 0
    found = _on_device(trace) if on_device else _on_host(trace)
    start, end = trace.start, trace.end
    found = sorted(found, key=lambda call: (call.issued if call.issued >= 0 else start[call.row], start[call.row]))
    rows: Rows = np.array([call.row for call in found], dtype=np.intp)
    issued = np.array([call.issued for call in found], dtype=np.int64)
    issued = np.where(issued >= 0, issued, start[rows])
    if on_device:
        step = launches(trace).spread(device_steps(trace), len(trace))[rows]
        ready = np.minimum(_find_computing_end(trace, issued), start[rows])
    else:
        step = steps_of(trace).of_host_time(issued)
        ready = issued

    def column(name: str) -> I64:
        return np.array([getattr(call, name) for call in found], dtype=np.int64)

    return Calls(
        name=tuple(trace.name_of(row).partition("(")[0] for row in rows.tolist()),
        kinds=tuple(call.kind for call in found),
        group=tuple(call.group for call in found),
        members=tuple(call.members for call in found),
        sequence=column("sequence"),
        start=start[rows] + trace.base_ns,
        end=end[rows] + trace.base_ns,
        issued=issued + trace.base_ns,
        ready=ready + trace.base_ns,
        bytes=column("bytes"),
        group_size=column("group_size"),
        step=step,
        peer=column("peer"),
        exposed_ns=exposed.within(start[rows], end[rows]),
        row=rows,
    )


@once
def process_groups(trace: Trace) -> Mapping[str, tuple[int, ...]]:
    """Process groups of the rank and their members, as far as `distributedInfo` lists them."""
    listed = job_properties(trace).get("pg_config")
    found = {}
    for group in listed if isinstance(listed, list) else []:
        members = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(members, list) and all(type(member) is int for member in members):
            found[str(group.get("pg_name", ""))] = tuple(members)
    return found


def _find_computing_end(trace: Trace, issued: I64) -> I64:
    """When all kernels that compute and are launched before a moment have ended; not before that moment."""
    joined = launches(trace)
    computes = joined.linked & ~communication_kernels(trace)[joined.device]
    launched, ended = trace.start[joined.call[computes]], trace.end[joined.device[computes]]
    order = np.argsort(launched, kind="stable")
    latest = np.maximum.accumulate(ended[order])
    before = np.searchsorted(launched[order], issued)
    return np.where(before > 0, np.maximum(latest[before - 1], issued), issued) if len(latest) else issued


def _on_device(trace: Trace) -> list[_Call]:
    groups = process_groups(trace)
    rows = trace.rows(Category.KERNEL)
    rows = rows[communication_kernels(trace)[rows]]
    joined = launches(trace)
    calls = joined.spread(joined.call, len(trace))[rows]
    issued = np.where(calls >= 0, trace.start[calls], -1).tolist()
    streams = {tid: str(number) for number, tid in enumerate(dict.fromkeys(trace.tid[rows].tolist()))}
    found = []
    columns = (rows.tolist(), trace.decode_args(rows, CollectiveArgs), trace.tid[rows].tolist(), issued)
    for row, told, tid, moment in zip(*columns, strict=True):
        kind = kind_of(_text(told.kind) or trace.name_of(row))
        members = _members(told.ranks) or groups.get(_text(told.group), ())
        size = _number(told.size, 0) or len(members)
        found.append(
            _Call(
                row=row,
                kind=kind,
                group=_text(told.group) or f"stream {streams[tid]}",
                members=members,
                sequence=_number(told.sequence),
                issued=moment,
                bytes=_bytes(kind, _number(told.into), _number(told.out), _text(told.dtype), size),
                group_size=size,
                peer=_number({"send": told.target, "recv": told.source}.get(kind)),
            )
        )
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object, otherwise: int = -1) -> int:
    return value if type(value) is int and 0 <= value < 2**62 else otherwise


def _members(value: object) -> tuple[int, ...]:
    """Ranks of a group, which kineto writes as a list or as its text; of many only the first and last, so none."""
    if isinstance(value, list):
        return tuple(value) if all(type(each) is int for each in value) else ()
    text = _text(value)
    return () if "..." in text else tuple(map(int, _NUMBERS.findall(text)))


def _bytes(kind: str, into: int, out: int, dtype: str, size: int) -> int:
    """Bytes of the larger of input and output over all ranks of the group, -1 where unknown.

    >>> _bytes("all_gather", 100, 400, "Float", 4), _bytes("all_gather", 100, -1, "Float", 4)
    (1600, 1600)
    """
    item = _item(dtype)
    elements = max(into, out)
    if kind == "all_gather" and into > 0 and size:
        elements = max(elements, into * size)
    if kind == "reduce_scatter" and out > 0 and size:
        elements = max(elements, out * size)
    return elements * item if elements >= 0 and item > 0 else -1


class IssueArgs(msgspec.Struct, gc=False):
    """Arguments of what issues a collective, or computes."""

    dims: Any = msgspec.field(name="Input Dims", default=())
    types: Any = msgspec.field(name="Input type", default=())
    values: Any = msgspec.field(name="Concrete Inputs", default=())
    grid: Any = ()


def _on_host(trace: Trace) -> list[_Call]:
    groups = process_groups(trace)
    annotations = collective_annotation_rows(trace)
    annotations = annotations[trace.category[annotations] == Category.USER_ANNOTATION]
    operators = trace.matching(collective_names.OPERATOR.match, trace.rows(Category.CPU_OP))
    left: defaultdict[str, defaultdict[int, deque[_Run]]] = defaultdict(lambda: defaultdict(deque))
    starts = trace.start[annotations].tolist()
    for row, start, told in zip(annotations.tolist(), starts, trace.decode_args(annotations, IssueArgs), strict=True):
        size = next(iter(_sizes(told)), -1)
        left[kind_of(trace.name_of(row))][size].append((start, row, size, _dtype(told)))
    found, rest = [], list[int]()
    # Where all groups have the same members it does not matter which one it is.
    only = members[0] if len(members := list(dict.fromkeys(groups.values()))) == 1 else ()
    named = _functional_groups(trace, operators)
    for operator, issue, group in zip(operators.tolist(), trace.decode_args(operators, IssueArgs), named, strict=True):
        kind = kind_of(trace.name_of(operator))
        since = int(trace.start[operator])
        queues = [own for each in _RUN_AS.get(kind, (kind,)) for own in left[each].values()]
        for own in queues:
            while own and own[0][0] < since:  # issued before the trace began, or not by an operator
                rest.append(own.popleft()[1])
        if any(queues):
            ran = _take([own for own in queues if own], _sizes(issue))
            found.append(_make_call(ran, kind, group, groups.get(group, only), since, issue))
    rest += [row for by_size in left.values() for _, row, *_ in chain.from_iterable(by_size.values())]
    return found + [_Call(row, kind_of(trace.name_of(row)), "host", only) for row in rest]


_Run = tuple[int, int, int, str]
"""An annotation of a back end's thread: start, row, elements of its input (-1 where the trace does not say), type."""


def _take(queues: Sequence[deque[_Run]], sizes: list[int]) -> _Run:
    """The first of a size that the operator has, else the first.

    A group's threads run its calls in the order of issue, while those of other groups, of other sizes, may run first.
    """
    fitting = [own for own in queues if own[0][2] in sizes] or queues
    return min(fitting, key=lambda own: own[0][0]).popleft()


def _sizes(issue: IssueArgs) -> list[int]:
    return [size for size in map(_elements, issue.dims if isinstance(issue.dims, list) else []) if size >= 0]


def _dtype(issue: IssueArgs) -> str:
    """The first type that has a size; tensors in a list have none."""
    types = issue.types if isinstance(issue.types, list) else []
    return next((each for each in types if isinstance(each, str) and _item(each) > 0), "")


def _item(dtype: str) -> int:
    """Bytes of an element, -1 where unknown."""
    plain = dtype.lower().replace("c10::", "").replace(" ", "")
    return 1 if plain.startswith("float8") else _ITEM.get(plain, -1)


def _make_call(ran: _Run, kind: str, group: str, members: tuple[int, ...], since: int, issue: IssueArgs) -> _Call:
    values = issue.values if isinstance(issue.values, list) else []
    sizes = _sizes(issue)
    _, row, _, own_dtype = ran
    dtype = _dtype(issue) or own_dtype
    # Output comes first where an operator has both.
    into, out = (sizes[1], sizes[0]) if len(sizes) > 1 else (sizes[0], -1) if sizes else (-1, -1)
    ratio = max(into, out) // min(into, out) if kind in ("all_gather", "reduce_scatter") and min(into, out) > 0 else 0
    peer = values[2] if kind in ("send", "recv") and len(values) > 2 and isinstance(values[2], str) else ""
    return _Call(
        row=row,
        kind=kind,
        group=group or "host",
        members=members,
        issued=since,
        bytes=_bytes(kind, into, out, dtype, ratio if ratio > 1 else len(members)),
        group_size=ratio if ratio > 1 else len(members),
        peer=int(peer) if peer.isdecimal() else -1,
    )


def _elements(dims: object) -> int:
    """Elements of a tensor, or of all tensors of a list; -1 for what is none."""
    if not isinstance(dims, list) or not dims:
        return -1
    if all(type(each) is int for each in dims):
        return int(np.prod(dims, dtype=np.int64))
    inner = [_elements(each) for each in dims]
    return sum(size for size in inner if size >= 0) if any(size >= 0 for size in inner) else -1


def _functional_groups(trace: Trace, operators: Rows) -> Sequence[str]:
    """Name of the group that the functional collective around each operator was called with, empty without one."""
    # Before torch 2.4 they had no underscore, and tag, ranks and size in the place of a name.
    hosts = trace.matching(lambda name: name.startswith("_c10d_functional::"), trace.rows(Category.CPU_OP))
    if not len(hosts):
        return [""] * len(operators)
    around = innermost(trace, hosts, trace.start[operators], trace.pid[operators], trace.tid[operators])
    told = trace.decode_args(np.maximum(around, 0), IssueArgs)
    values = [each.values if isinstance(each.values, list) else [] for each in told]
    return [_text(value[-1]) if row >= 0 and value else "" for row, value in zip(around.tolist(), values, strict=True)]
