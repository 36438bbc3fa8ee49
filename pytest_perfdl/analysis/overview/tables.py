"""Tables of a whole file: kernels, operators, and launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from pytest_perfdl.analysis.efficiency.roofline import launch_geometry, weighted_mean
from pytest_perfdl.analysis.events.communication import communication_evidence
from pytest_perfdl.analysis.events.device_record import streams_of
from pytest_perfdl.analysis.events.launches import CallTree, Launches, call_tree, launches, launching_operator
from pytest_perfdl.analysis.events.nesting import Mask
from pytest_perfdl.analysis.events.operators import operator_args, operator_self_ns
from pytest_perfdl.analysis.events.origins import module_paths, parent_path, source_lines
from pytest_perfdl.trace.model import I64, Category, Rows, Trace

# Every kernel, copy and memset of a file by name: how often, how long, and how much of it nothing hides.


KernelKind = Literal["compute", "communication", "copy"]
_KINDS: tuple[KernelKind, ...] = ("compute", "communication", "copy")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """The device events of one name and kind."""

    name: str
    kind: KernelKind
    """Memsets are copies."""
    count: int
    total_ns: int
    """Sum of durations; events that run at once count each."""
    min_ns: int
    max_ns: int
    exposed_ns: int
    """Time that only this row fills: |U(own) minus U(other rows of its kind or of one before it)|.

    The order of kinds is compute, communication, copy, as in *exposed communication* and *exposed copies*, so
    that the exposed times of a kind's rows add up to at most that kind's.
    """
    occupancy_est: float | None
    """Duration-weighted mean of `est. achieved occupancy %`, 0 to 100; `None` where the trace has none."""
    blocks_per_sm: float | None
    """Duration-weighted mean of `blocks per SM`; `None` where the trace has none."""

    @property
    def mean_ns(self) -> float:
        """`total_ns / count`."""
        return self.total_ns / self.count


def kernel_table(trace: Trace) -> tuple[KernelRow, ...]:
    """All device events by name and kind, the longest total first, then by name.

    Events count wherever they run, inside steps or not, linked to a launch or not.
    """
    device = trace.device_rows()
    if len(device) == 0:
        return ()
    kind = np.full(len(device), _KINDS.index("copy"), dtype=np.intp)
    is_kernel = trace.category[device] == Category.KERNEL
    evidence = communication_evidence(trace)
    kind[is_kernel] = np.where(evidence[device[is_kernel]] >= 0, 1, 0)
    keys, group = np.unique(trace.name[device].astype(np.intp) * len(_KINDS) + kind, return_inverse=True)
    kind_of = keys % len(_KINDS)
    duration = trace.duration[device]
    count = np.bincount(group)
    first = np.concatenate(([0], np.cumsum(count)[:-1]))
    order = np.argsort(group, kind="stable")
    total, least, most = (function.reduceat(duration[order], first) for function in (np.add, np.minimum, np.maximum))
    exposed = _measure_exposed(trace.start[device], duration, group, kind_of)
    blocks, occupancy = (column[device] for column in launch_geometry(trace))
    rows = []
    for index, members in enumerate(np.split(order, first[1:])):
        rows.append(
            KernelRow(
                name=trace.names[int(keys[index]) // len(_KINDS)],
                kind=_KINDS[int(kind_of[index])],
                count=int(count[index]),
                total_ns=int(total[index]),
                min_ns=int(least[index]),
                max_ns=int(most[index]),
                exposed_ns=int(exposed[index]),
                occupancy_est=weighted_mean(occupancy[members], duration[members]),
                blocks_per_sm=weighted_mean(blocks[members], duration[members]),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.name)))


def _measure_exposed(start: I64, duration: I64, group: Rows, kind_of: Rows) -> I64:
    """Nanoseconds of each group during which no other group of its kind or of an earlier one runs."""
    bounds, place = np.unique(np.concatenate((start, start + duration)), return_inverse=True)
    opens, closes, group = _union_by_group(place[: len(start)], place[len(start) :], group, len(bounds))
    step = np.diff(bounds)
    exposed = np.zeros(len(kind_of), dtype=np.int64)
    for kind in range(len(_KINDS)):
        use = kind_of[group] <= kind
        # Where one group runs, the sum of the running groups' numbers is its number.
        running, number = np.zeros((2, len(bounds)), dtype=np.int64)
        for at, sign in ((opens[use], 1), (closes[use], -1)):
            np.add.at(running, at, sign)
            np.add.at(number, at, sign * group[use])
        alone = np.cumsum(running)[:-1] == 1
        owner = np.cumsum(number)[:-1][alone]
        own = np.zeros(len(kind_of), dtype=np.int64)
        np.add.at(own, owner, step[alone])
        exposed[kind_of == kind] = own[kind_of == kind]
    return exposed


def _union_by_group(opens: Rows, closes: Rows, group: Rows, places: int) -> tuple[Rows, Rows, Rows]:
    """The union of each group's intervals; times are places in an order, from 0 to `places - 1`."""
    order = np.lexsort((opens, group))
    opens, closes, group = opens[order], closes[order], group[order]
    # Groups lie behind one another on one line, so that one running maximum serves all.
    shift = group * np.intp(places)
    reach = np.maximum.accumulate(closes + shift)
    first = np.concatenate(([True], opens[1:] + shift[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return opens[first], reach[last] - shift[last], group[first]


# Operators in tables: how often, how long on the host, how long on the device, by name, shapes, module or line.


Grouping = Literal["name", "shapes", "module", "line"]


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """A group of operators. What the table does not group by is empty, and so is what the trace does not know."""

    name: str
    shapes: str
    """`Input Dims` of the operator, as JSON."""
    module: str
    line: str
    count: int
    """Operators of the group."""
    self_ns: int
    """Time on the host in these operators and not in operators inside them."""
    total_ns: int
    """Time on the host in these operators; one inside another of the same group counts once."""
    device_self_ns: int
    """Sum of durations of the device events that these operators launched themselves."""
    device_total_ns: int
    """The same with those launched by operators inside them; one inside another of the same group counts once."""
    kernels: int
    """Device events (kernels, copies, memsets) that these operators launched themselves."""


_UNKNOWN: Mapping[str, Any] = {"name": "", "shapes": "", "module": "", "line": ""}


def operator_tables(trace: Trace) -> Mapping[Grouping, tuple[OperatorRow, ...]]:
    """The operators of a trace in groups, those with most time of their own on the device, else the host, first.

    "shapes" groups by name and shapes, "module" and "line" by these alone (see `module_paths` and `source_lines`). The
    total of a module holds the modules inside it; a module has a row also if all its operators are in modules inside
    it. Operators without module or line share a row whose `module` or `line` is empty.

    Over all rows of a table `self_ns` adds up to the time that operators cover on each thread, summed over threads, and
    `device_self_ns` with what no operator launched to the sum of durations of all device events.
    """
    tree = call_tree(trace)
    is_operator = trace.category == Category.CPU_OP
    around = np.where(tree.parent >= 0, tree.nearest(is_operator)[tree.parent], -1)
    columns = _columns(trace, tree, is_operator)
    return {by: _table(around, columns, by, *_keys(trace, by)) for by in get_args(Grouping)}


def _columns(trace: Trace, tree: CallTree, is_operator: Mask) -> Mapping[str, I64]:
    """What rows add up, by field of `OperatorRow`: one value per row of the trace, 0 for what is no operator."""
    joined = launches(trace)
    operator = launching_operator(trace)[joined.device]
    known = operator >= 0
    device_ns, kernels = np.zeros(len(trace), dtype=np.int64), np.zeros(len(trace), dtype=np.int64)
    np.add.at(device_ns, operator[known], trace.duration[joined.device[known]])
    np.add.at(kernels, operator[known], 1)
    return {
        "count": is_operator.astype(np.int64),
        "self_ns": operator_self_ns(trace),
        "total_ns": np.where(is_operator, trace.duration, 0),
        "device_self_ns": device_ns,
        "device_total_ns": tree.subtree_sums(device_ns),
        "kernels": kernels,
    }


def _table(
    around: Rows, columns: Mapping[str, I64], by: Grouping, code: Rows, labels: Sequence[Mapping[str, str]]
) -> tuple[OperatorRow, ...]:
    """One row for each label; `code` is the label of each row of the trace, `around` the operator around it."""
    outer = _outermost_of_key(around, code)
    sums = {}
    for name, values in columns.items():
        own = outer if name in ("total_ns", "device_total_ns") else code >= 0
        sums[name] = np.zeros(len(labels), dtype=np.int64)
        np.add.at(sums[name], code[own], values[own])
    if by == "module":
        paths = [label["module"] for label in labels]
        for total, own_ns in (("total_ns", "self_ns"), ("device_total_ns", "device_self_ns")):
            sums[total] = _over_submodules(paths, sums[own_ns])
    rows = []
    for label, *row in zip(labels, *(column.tolist() for column in sums.values()), strict=True):
        known = {**_UNKNOWN, **label, **dict(zip(sums, row, strict=True))}
        if known["count"] or known["total_ns"] or known["device_total_ns"]:
            rows.append(OperatorRow(**known))
    return tuple(sorted(rows, key=_largest_first))


def _largest_first(row: OperatorRow) -> tuple[int, int, int, str, str, str, str]:
    return -row.device_self_ns, -row.self_ns, -row.total_ns, row.name, row.shapes, row.module, row.line


def _keys(trace: Trace, by: Grouping) -> tuple[Rows, Sequence[Mapping[str, str]]]:
    """The group of each row of the trace, -1 for what is no operator, and what the groups are called."""
    operators = np.flatnonzero(trace.category == Category.CPU_OP)
    code = np.full(len(trace), -1, dtype=np.intp)
    if by == "name":
        code[operators] = trace.name[operators]
        return code, [{"name": name} for name in trace.names]
    if by == "shapes":
        args = operator_args(trace)
        shapes = [args.shapes(call) for call in range(len(args.calls))]
        return args.call, [
            {"name": trace.names[name], "shapes": text} for (name, _), text in zip(args.calls, shapes, strict=True)
        ]
    index, texts = module_paths(trace) if by == "module" else source_lines(trace)
    code[operators] = index[operators] + 1
    return code, [{by: text} for text in ("", *texts)]


def _outermost_of_key(above: Rows, code: Rows) -> Mask:
    """Whether each operator is inside no other of its group; `above` is the operator around each."""
    outer = code >= 0
    rows = np.flatnonzero(outer)
    around = above[rows]
    while len(rows):
        rows, around = rows[around >= 0], around[around >= 0]
        same = code[around] == code[rows]
        outer[rows[same]] = False
        rows, around = rows[~same], above[around[~same]]
    return outer


def _over_submodules(paths: Sequence[str], values: I64) -> I64:
    """Sums of `values`, one per path, over each path and the paths inside it."""
    total: I64 = values.copy()
    index = {path: number for number, path in enumerate(paths)}
    for path in sorted(filter(None, index), key=lambda path: -path.count(".")):
        around = parent_path(path)
        # A list of modules is never called itself, and has no row.
        while around and around not in index:
            around = parent_path(around)
        if around:
            total[index[around]] += total[index[path]]
    return total


# How the host feeds the device: delay of launches, what the calls cost, and how much work is queued.


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of durations, nanoseconds; each quantile is one of the values, the lower where two meet."""

    mean_ns: float
    min_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class StreamQueue:
    """Work launched on one stream and not yet started, from its first launch to the last start."""

    device: int
    stream: int
    launches: int
    max_length: int
    mean_length: float
    """Weighted by time; 0 where there is none."""
    span_ns: int
    """From the stream's first launching call to the last start of what was launched."""
    empty_ns: int
    """Time of the span during which nothing was queued: the device could only wait for the host."""


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """The calls of a trace whose device work is in it, each counted once, a graph launch too."""

    launches: int
    delay: Quantiles
    """Start of the call's first device event minus start of the call; negative where clocks disagree."""
    call: Quantiles
    """Durations of the calls."""
    kernel_launches: int
    """Calls that launch at least one kernel."""
    short_kernels: int
    """Those of `kernel_launches` that last longer than all the device work they launch, their kernels together."""
    queues: tuple[StreamQueue, ...]
    """By device, then by stream."""


def launch_stats(trace: Trace) -> LaunchStats | None:
    """Join device events (kernels, copies, memsets) to their calls and sum up; `None` where none can be joined.

    *Launch delay* is device start minus launch call start. *Queue length* of a stream goes up by 1 at a launching
    call's start and down by 1 when its first event on the stream starts (at the call, if that is recorded before).
    A graph launch is one call, and one entry in the queue of each stream that it uses. Lengths that last no
    time do not count.
    """
    joined = launches(trace)
    linked = joined.linked
    joined = joined.take(linked)
    if len(joined.device) == 0:
        return None
    # Device events come by start, so the first of each call is the earliest.
    calls, first, group = np.unique(joined.call, return_index=True, return_inverse=True)
    duration = trace.duration[calls]
    work = np.zeros(len(calls), dtype=np.int64)
    np.add.at(work, group, trace.duration[joined.device])
    kernels = np.bincount(group[trace.category[joined.device] == Category.KERNEL], minlength=len(calls)) > 0
    return LaunchStats(
        launches=len(calls),
        delay=_quantiles(trace.start[joined.device[first]] - trace.start[calls]),
        call=_quantiles(duration),
        kernel_launches=int(np.count_nonzero(kernels)),
        short_kernels=int(np.count_nonzero(kernels & (duration > work))),
        queues=_queues(trace, joined),
    )


def _quantiles(values: I64) -> Quantiles:
    # Nearest ranks: each is one of the values.
    p50, p90, p99 = map(int, np.percentile(values, (50, 90, 99), method="inverted_cdf"))
    return Quantiles(float(values.mean()), int(values.min()), p50, p90, p99, int(values.max()))


def _queues(trace: Trace, joined: Launches) -> tuple[StreamQueue, ...]:
    stream = streams_of(trace, joined.device)
    pairs = stream * (int(joined.call.max()) + 1) + joined.call
    _, first = np.unique(pairs, return_index=True)
    # Sorted by pair, hence by stream.
    stream = stream[first]
    cuts = np.flatnonzero(np.diff(stream)) + 1
    return tuple(_queue(trace, joined.device[own], joined.call[own]) for own in np.split(first, cuts))


def _queue(trace: Trace, device: Rows, call: Rows) -> StreamQueue:
    called = trace.start[call]
    started = np.maximum(trace.start[device], called)
    bounds, place = np.unique(np.concatenate((called, started)), return_inverse=True)
    length = np.cumsum(np.bincount(place[: len(call)], minlength=len(bounds)))
    length -= np.cumsum(np.bincount(place[len(call) :], minlength=len(bounds)))
    lasts, length = np.diff(bounds), length[:-1]
    span = int(lasts.sum())
    return StreamQueue(
        device=int(trace.pid[device[0]]),
        stream=int(trace.tid[device[0]]),
        launches=len(call),
        max_length=int(length.max(initial=0)),
        mean_length=float(np.dot(length.astype(np.float64), lasts)) / span if span else 0.0,
        span_ns=span,
        empty_ns=int(lasts[length == 0].sum()),
    )
