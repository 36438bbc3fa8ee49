"""Where the time of a step goes: closed accounts of its window, on the device and on the host, and its operators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pytest_perfdl.analysis.account.transfers import copied_to_device
from pytest_perfdl.analysis.events.communication import (
    communication_kernels,
    covered,
    waits_for_collectives,
    waits_for_input,
)
from pytest_perfdl.analysis.events.device_record import carried_over
from pytest_perfdl.analysis.events.intervals import Intervals, Steps
from pytest_perfdl.analysis.events.launches import Launches, call_tree, launch_calls, launches
from pytest_perfdl.analysis.events.nesting import Ownership, ownership, threads_of
from pytest_perfdl.analysis.events.operators import operator_time
from pytest_perfdl.analysis.events.steps import device_steps, steps_of
from pytest_perfdl.analysis.events.threads import (
    Thread,
    backward_rows,
    input_rows,
    on_thread,
    operator_threads,
    optimizer_rows,
)
from pytest_perfdl.model.record import ProfiledRow
from pytest_perfdl.model.step_part import Phase
from pytest_perfdl.trace.model import I32, I64, LAUNCH_CATEGORIES, Category, Rows, Trace, once

# Where a step's window goes on the device: computing, exposed communication and copies, and idle by cause.


_BLOCKING = re.compile(
    r"(cuda|hip)(Device|Stream|Event)Synchronize|(cu|hip)(Ctx|Stream|Event)Synchronize"
    r"|urQueueFinish$|urEventWait$"
    r"|(cuda|hip)Memcpy(WithStream|2D)?$|cuMemcpy(HtoD|DtoH|DtoD)(_v2)?$"
    r"|aten::(item|_local_scalar_dense|is_nonzero)$"
)
"""Calls that return only when the device has caught up, and operators that consist of one."""

BUSY_CLASSES = ("compute", "exposed communication", "exposed copies")
IDLE_CLASSES = (
    "launch latency",
    "input",
    "synchronization",
    "operator overhead",
    "Python and host",
    "device wait",
    "unattributed",
)


def device_accounts(trace: Trace) -> tuple[Mapping[str, int], ...]:
    """Nanoseconds of each class in each window without its setup; the classes of a window add up to it exactly.

    With U the union over all streams and devices: compute |U(compute)|; exposed communication
    |U(comm) minus U(compute)|; exposed copies |U(copies) minus U(compute) minus U(comm)|, memsets included; idle is the
    rest. An idle interval [a, b) ends with the event that starts at b, whose launching call starts at s on host
    thread h. With s < a it is *device wait*. Otherwise [s, b) is *launch latency*, and [a, s) goes by what h
    did: *input* in a DataLoader annotation, else *synchronization* in a blocking call, else *operator overhead*
    in any operator or call, else *Python and host*. Where b is beyond the window, only the part inside it counts. Of
    what no event ends, h is the steps' thread. Idle time whose launch is not known is *unattributed*.
    """
    steps = steps_of(trace)
    start, end, window = _pieces(steps)
    busy = (covered(trace, own).difference(covered(trace, above)) for own, above in busy_rows(trace))
    idle = idle_time(trace)
    columns = [
        *(_by_window(window, each.within(start, end), len(steps.windows)) for each in busy),
        *(_by_window(idle.window, ns, len(steps.windows)) for ns in idle.by_cause.values()),
    ]
    names = (*BUSY_CLASSES, *IDLE_CLASSES)
    return tuple(dict(zip(names, account, strict=True)) for account in zip(*columns, strict=True))


def busy_rows(trace: Trace) -> tuple[tuple[Rows, Rows], ...]:
    """Of each of `BUSY_CLASSES` its device events, and those behind which they count for nothing."""
    rows = trace.device_rows()
    is_kernel, is_communication = trace.category[rows] == Category.KERNEL, communication_kernels(trace)[rows]
    computing = rows[is_kernel & ~is_communication]
    return (computing, rows[:0]), (rows[is_kernel & is_communication], computing), (rows[~is_kernel], rows[is_kernel])


@dataclass(frozen=True, slots=True, eq=False)
class IdleTime:
    """The idle intervals of all windows: columns of equal length."""

    start: I64
    end: I64
    window: Rows
    call: Rows
    """Row of the call that launched what ends each one; -1 for none, and where it ends beyond the window."""
    by_cause: Mapping[str, I64]
    """Nanoseconds of each class of `IDLE_CLASSES`."""


@once
def idle_time(trace: Trace) -> IdleTime:
    """When nothing runs on any device, by cause: see `device_accounts`."""
    steps, joined = steps_of(trace), launches(trace)
    start, end, window, until = _idle(_pieces(steps), covered(trace, joined.device))
    call = _launching_call(trace, joined, until)
    causes = _explain(trace, steps, (start, end, until), call)
    ends = np.array([each.end for each in steps.windows], dtype=np.int64)
    call[until >= ends[window]] = -1
    return IdleTime(start, end, window, call, dict(zip(IDLE_CLASSES, causes, strict=True)))


_NEVER = np.iinfo(np.int64).max
_Pieces: TypeAlias = tuple[I64, I64, Rows]
"""Disjoint intervals by time, each of one window: start, end and window, columns of equal length."""


def _by_window(window: Rows, ns: I64, windows: int) -> list[int]:
    total = np.zeros(windows, dtype=np.int64)
    np.add.at(total, window, ns)
    found: list[int] = total.tolist()
    return found


def _pieces(steps: Steps) -> _Pieces:
    """The windows without their setup."""
    times = [steps.window_time(index) for index in range(len(steps.windows))]
    return (
        np.concatenate([np.empty(0, dtype=np.int64), *(time.start for time in times)]),
        np.concatenate([np.empty(0, dtype=np.int64), *(time.end for time in times)]),
        np.repeat(np.arange(len(times)), np.array([len(time) for time in times], dtype=np.intp)),
    )


def _idle(pieces: _Pieces, busy: Intervals) -> tuple[I64, I64, Rows, I64]:
    """The maximal intervals of each piece in which nothing runs, and when something does again (`_NEVER`)."""
    starts, ends, window = pieces
    gap_start = np.concatenate(([np.iinfo(np.int64).min], busy.end))
    gap_end = np.concatenate((busy.start, [_NEVER]))
    first = np.searchsorted(gap_end, starts, side="right")
    count = np.searchsorted(gap_start, ends, side="left") - first
    piece = np.repeat(np.arange(len(count)), count)
    gap = np.arange(len(piece)) + np.repeat(first - (np.cumsum(count) - count), count)
    until = gap_end[gap]
    return np.maximum(gap_start[gap], starts[piece]), np.minimum(until, ends[piece]), window[piece], until


def _launching_call(trace: Trace, joined: Launches, starts: I64) -> Rows:
    """Launching call of the device event that starts at each moment, -1 for none; of several the one first launched."""
    began = trace.start[joined.device]
    launched = np.where(joined.linked, trace.start[joined.call], _NEVER)
    order = np.lexsort((launched, began))
    call = np.full(len(starts), -1, dtype=np.intp)
    place = np.searchsorted(began[order], starts)
    some = place < len(order)
    some[some] = began[order[place[some]]] == starts[some]
    call[some] = joined.call[order[place[some]]]
    return call


def _explain(trace: Trace, steps: Steps, intervals: tuple[I64, I64, I64], call: Rows) -> list[I64]:
    """Nanoseconds of each idle interval by cause, in the order of `IDLE_CLASSES`; `call` launched what ends it."""
    opens, closes, until = intervals
    length = closes - opens
    last = until == _NEVER
    known = (call >= 0) | last
    launched = np.where(last, closes, np.minimum(trace.start[call], closes))
    own = steps.thread if steps.windows else (0, 0)
    host_pid, host_tid = (np.where(last, step, of[call]) for step, of in zip(own, (trace.pid, trace.tid), strict=True))
    late = known & (launched >= opens)
    latency = np.where(late, closes - launched, 0)
    waiting, blocked, busy = (np.zeros(len(opens), dtype=np.int64) for _ in range(3))
    calls = trace.rows(Category.CPU_OP, *LAUNCH_CATEGORIES)
    kinds = input_rows(trace), trace.matching(_BLOCKING.match, calls), calls
    asked = np.flatnonzero(late)
    for pid, tid, places in threads_of(host_pid[asked], host_tid[asked]):
        at = asked[places]
        inputs, blocking, any_call = (covered(trace, on_thread(trace, rows, (pid, tid))) for rows in kinds)
        causes = inputs, blocking.difference(inputs), any_call.difference(blocking.union(inputs))
        for total, cause in zip((waiting, blocked, busy), causes, strict=True):
            total[at] = cause.within(opens[at], launched[at])
    python = np.where(late, length - latency - waiting - blocked - busy, 0)
    device_wait = np.where(known & ~late, length, 0)
    return [latency, waiting, blocked, busy, python, device_wait, np.where(known, 0, length)]


# Where a step's time goes on a trace without device events: operators by class, input, communication, the rest.


OPERATOR_CLASSES = ("forward", "backward", "optimizer", "copies")
HOST_IDLE_CLASSES = ("input", "communication", "Python and host")

COPIES = frozenset({"aten::copy_", "aten::_foreach_copy_", "aten::_copy_from"})
"""Operators that move data themselves; `aten::to`, `aten::clone` and `aten::contiguous` call one of them."""


PHASES: tuple[Phase, ...] = ("", "forward", "backward", "optimizer")
"""By the numbers in `phases`."""


@once
def phases(trace: Trace) -> I32:
    """Of each row its index into `PHASES`.

    Optimizer inside its annotations, backward inside what the autograd engine runs, else forward for operators.
    """
    tree = call_tree(trace)
    found = np.where(trace.category == Category.CPU_OP, PHASES.index("forward"), 0).astype(np.int32)
    for name, rows in (("backward", backward_rows(trace)), ("optimizer", optimizer_rows(trace))):
        own = np.zeros(len(trace), dtype=bool)
        own[rows] = True
        found[tree.nearest(own) >= 0] = PHASES.index(name)
    return found


def operator_classes(trace: Trace, rows: Rows) -> Rows:
    """Index into `OPERATOR_CLASSES` of each of these operators: *copies* where it moves data, else its phase."""
    copying = trace.named(COPIES.__contains__)[trace.name[rows]]
    return np.where(copying, OPERATOR_CLASSES.index("copies"), phases(trace)[rows] - 1)


def host_accounts(trace: Trace, steps: Steps, operators: Sequence[Mapping[str, int]]) -> tuple[Mapping[str, int], ...]:
    """Nanoseconds of each class in each step, on the step thread's timeline; they add up to `host_ns` exactly.

    *Input* is time inside a DataLoader's `__next__` or `perfdl.data_wait`, operators in it included. *Communication* is
    where the thread waits for collectives (`waits_for_collectives`), be it inside a frame of the autograd engine. Other
    time inside operators is of the innermost one's class (`operator_classes`): `operators` has its sums in each step.
    What is left is *Python and host*.
    """
    if not steps.windows:
        return ()
    thread = steps.thread
    waiting = waits_for_input(trace, thread)
    communicating = waits_for_collectives(trace, thread)
    accounts = []
    for index, window in enumerate(steps.windows):
        time = steps.host_time(index)
        account = {
            **operators[index],
            "input": waiting.intersection(time).length,
            "communication": communicating.intersection(time).length,
        }
        accounts.append({**account, "Python and host": window.host_ns - sum(account.values())})
    return tuple(accounts)


# Operators of each step: how many, which in which order, and their self time on the host.


@dataclass(frozen=True, slots=True, eq=False)
class ThreadOperators:
    """The operators of one thread that start inside a step, and the self time of its operators.

    Time inside an input annotation of the thread belongs to the input, not to the operators that run in it, and time in
    which the thread waits for collectives to communication, not to the operator that it waits in.
    """

    names: tuple[Mapping[str, int], ...]
    """How often each operator starts in each step."""
    self_ns: Mapping[str, int]
    """Self time by operator, clipped to the steps and summed over them."""
    class_ns: tuple[Mapping[str, int], ...]
    """Self time in each step by class (`operator_classes`)."""


def thread_operators(trace: Trace, steps: Steps, thread: Thread) -> ThreadOperators:
    """Count and time the operators of one thread inside the steps' time on the host.

    Annotations (ProfilerStep, record_function ranges, `Optimizer.step#...`) are not operators and take no time.
    Where operators overlap without nesting, a moment belongs to the one that started last (see `ownership`).
    """
    none: I64 = np.zeros(0, dtype=np.int64)
    rows, owned = operator_time(trace).get(thread) or (none, ownership(none, none))
    start = trace.start[rows]
    waiting = waits_for_input(trace, thread)
    step = steps.of_host_time(start)
    classes = operator_classes(trace, rows)[owned.owner]
    time, class_ns = _time_in_steps(owned, classes, steps, waiting.union(waits_for_collectives(trace, thread)))
    return ThreadOperators(
        names=_names(trace, rows, step, len(steps.windows)),
        self_ns=_by_name(trace, rows[owned.owner], time),
        class_ns=class_ns,
    )


def _time_in_steps(
    owned: Ownership, classes: Rows, steps: Steps, waiting: Intervals
) -> tuple[I64, tuple[Mapping[str, int], ...]]:
    """Nanoseconds of each piece in which the thread does not wait, in the steps, and their sums by step and class."""
    time = np.zeros(len(owned.owner), dtype=np.int64)
    per_step = []
    for index, window in enumerate(steps.windows):
        first = np.searchsorted(owned.end, window.host_start, side="right")
        last = np.searchsorted(owned.start, window.host_end)
        own = slice(int(first), max(int(first), int(last)))
        inside = steps.host_time(index).difference(waiting).within(owned.start[own], owned.end[own])
        time[own] += inside
        totals = np.zeros(len(OPERATOR_CLASSES), dtype=np.int64)
        np.add.at(totals, classes[own], inside)
        per_step.append(dict(zip(OPERATOR_CLASSES, totals.tolist(), strict=True)))
    return time, tuple(per_step)


def _names(trace: Trace, rows: Rows, step: Rows, steps: int) -> tuple[Mapping[str, int], ...]:
    """How often each name occurs in each step, in the order of first occurrence."""
    return tuple(_by_name(trace, rows[step == index], 1) for index in range(steps))


def _by_name(trace: Trace, rows: Rows, values: I64 | int) -> Counter[str]:
    """Sums of `values` by the names of `rows`, in the order of first occurrence."""
    names = trace.name[rows]
    totals = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(totals, names, values)
    return Counter({trace.names[name]: int(totals[name]) for name in _first_seen(names)})


def _first_seen(names: I32) -> list[int]:
    """Distinct values, by where each one first occurs."""
    first = np.full(int(names.max()) + 1 if len(names) else 0, -1, dtype=np.intp)
    first[names[::-1]] = np.arange(len(names) - 1, -1, -1)
    seen = np.flatnonzero(first >= 0)
    return [int(name) for name in seen[np.argsort(first[seen])]]


# What a step's time is made of: operators, kernels and classes of idle time, as one closed account.


@dataclass(frozen=True, slots=True)
class ProfileTables:
    """The profiled steps of one trace; per-step tuples are in the order of the steps."""

    steps: int
    on_device: bool
    """Whether the trace has device events: decides what `step_ns`, `rows` and `account` mean."""
    step_ns: tuple[int, ...]
    """`host_ns` of each step on CPU-only traces, `window_ns` with device events (see `steps_of`)."""
    rows: tuple[ProfiledRow, ...]
    """By kind, then the longest first, then by name. Rows of idle classes without time are left out."""
    accounts: tuple[Mapping[str, int], ...]
    """Nanoseconds of each class in each step; the classes of a step add up to its `step_ns` exactly."""
    counts: Mapping[str, tuple[int, ...]]
    """By metric, how much of it each step has: operators that start ("ops"), kernels that it launches without copies
    and memsets ("kernels"), calls that launch kernels or graphs ("launches"), and bytes that it copies from the host to
    the device ("h2d_bytes")."""
    op_names: tuple[Mapping[str, int], ...]
    """How often each operator starts in each step."""
    device_busy_ns: tuple[int, ...]
    """|U(all device events)| in each window."""
    carry_over: int
    """Device events launched before the first step began; they count in no step."""

    @property
    def account(self) -> Mapping[str, int]:
        """Nanoseconds of each class over all steps; adds up to the sum of `step_ns` exactly."""
        names = self.accounts[0] if self.accounts else ()
        return {name: sum(account[name] for account in self.accounts) for name in names}


@once
def profile_tables(trace: Trace) -> ProfileTables:
    """Account for the steps of a trace.

    *CPU-only*: `accounts` and the idle rows are the host's (see `host_accounts`), and operator rows carry self
    time on the step's thread. The rows of kind operator and idle add up to the sum of `step_ns` to the nanosecond.

    *With device events*: `accounts` and the idle rows are the device's (see `device_accounts`); operator rows
    carry self time on the step's thread and the autograd engine's threads, kernel rows sums of durations of what
    was launched in the steps. Those overlap one another, so it is `accounts`, not `rows`, that add up.

    Operators are counted on the step's and the engine's threads, in input annotations too. What lies in a
    `perfdl.setup` annotation is part of no step. A trace without any event yields zero steps.
    """
    joined = launches(trace)
    steps = steps_of(trace)
    windows = steps.windows
    on_device = len(joined.device) > 0
    threads = operator_threads(trace, steps.thread) if windows else []
    found = [thread_operators(trace, steps, thread) for thread in threads]
    device_step = device_steps(trace)
    accounts = device_accounts(trace) if on_device else host_accounts(trace, steps, found[0].class_ns if found else ())
    idle = Counter[str]()
    for account in accounts:
        idle.update({name: account[name] for name in (IDLE_CLASSES if on_device else HOST_IDLE_CLASSES)})
    rows = [
        *_operator_rows(found, timed=found if on_device else found[:1]),
        *_kernel_rows(trace, joined, device_step),
        *(ProfiledRow("idle", name, 0, ns) for name, ns in idle.items() if ns),
    ]
    kinds = ("operator", "kernel", "idle")
    is_kernel = trace.category[joined.device] == Category.KERNEL
    calls = steps.of_host_time(trace.start[launch_calls(trace).row])
    names = _joined_names(found, len(windows))
    return ProfileTables(
        steps=len(windows),
        on_device=on_device,
        step_ns=tuple(window.window_ns for window in windows),
        rows=tuple(sorted(rows, key=lambda row: (kinds.index(row.kind), -row.ns, row.name))),
        accounts=accounts,
        counts={
            "ops": tuple(sum(step.values()) for step in names),
            "kernels": _histogram(device_step[is_kernel], len(windows)),
            "launches": _histogram(calls, len(windows)),
            "h2d_bytes": copied_to_device(trace),
        },
        op_names=names,
        device_busy_ns=_busy(trace, joined, steps),
        carry_over=_carry_over(trace, steps, joined),
    )


def _operator_rows(found: list[ThreadOperators], timed: list[ThreadOperators]) -> list[ProfiledRow]:
    counts: Counter[str] = Counter()
    for thread in found:
        for step in thread.names:
            counts.update(step)
    totals: Counter[str] = Counter()
    for thread in timed:
        totals.update(thread.self_ns)
    return [
        ProfiledRow("operator", name, counts[name], totals[name])
        for name in {**counts, **totals}
        if counts[name] or totals[name]
    ]


def _kernel_rows(trace: Trace, joined: Launches, device_step: Rows) -> list[ProfiledRow]:
    rows = joined.device[device_step >= 0]
    counts, totals = _by_name(trace, rows, 1), _by_name(trace, rows, trace.duration[rows])
    return [ProfiledRow("kernel", name, counts[name], totals[name]) for name in counts]


def _joined_names(found: list[ThreadOperators], steps: int) -> tuple[Mapping[str, int], ...]:
    names: list[Counter[str]] = [Counter() for _ in range(steps)]
    for thread in found:
        for step, counts in zip(names, thread.names, strict=True):
            step.update(counts)
    return tuple(names)


def _busy(trace: Trace, joined: Launches, steps: Steps) -> tuple[int, ...]:
    starts = np.array([window.start for window in steps.windows], dtype=np.int64)
    ends = np.array([window.end for window in steps.windows], dtype=np.int64)
    return tuple(covered(trace, joined.device).difference(steps.setup).within(starts, ends).tolist())


def _histogram(step: Rows, steps: int) -> tuple[int, ...]:
    return tuple(np.bincount(step[step >= 0], minlength=steps).tolist())


def _carry_over(trace: Trace, steps: Steps, joined: Launches) -> int:
    carried = carried_over(trace)
    if steps.windows:
        carried = carried | joined.linked & (trace.start[joined.call] < steps.windows[0].host_start)
    return int(np.count_nonzero(carried))
