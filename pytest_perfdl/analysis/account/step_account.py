"""What a step's time is made of: operators, kernels and classes of idle time, as one closed account."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.account.device_account import IDLE_CLASSES, device_accounts
from pytest_perfdl.analysis.account.host_account import HOST_IDLE_CLASSES, host_accounts
from pytest_perfdl.analysis.account.operators import ThreadOperators, thread_operators
from pytest_perfdl.analysis.account.transfers import copies
from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.device_steps import carried_over, device_steps
from pytest_perfdl.analysis.events.launches import Launches, kernel_launch_rows, launches
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import operator_threads, thread_of
from pytest_perfdl.model.record import ProfiledRow
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import Category, Rows, Trace


@dataclass(frozen=True, slots=True)
class Integrity:
    """What a measurement must look at before it believes its figures. Counts are over the whole trace."""

    device_events: int
    unlinked: int
    """Device events whose launching call is not in the trace."""
    carry_over: int
    """Device events launched before the first step began; they count in no step."""
    zero_duration: int
    """Device events without a duration, as whole microseconds (before 2024) make of short kernels."""
    overlapping_operators: int
    """Operators that began inside another on their thread and ended after it."""
    other_operators: int
    """Operators in the steps that ran on threads that are neither the step's nor the autograd engine's."""

    @property
    def zero_duration_share(self) -> float:
        """Share of the device events that have no duration, 0 to 1."""
        return self.zero_duration / self.device_events if self.device_events else 0.0


@dataclass(frozen=True, slots=True)
class ProfileTables:
    """The profiled steps of one trace; per-step tuples are in the order of the steps."""

    steps: int
    numbers: tuple[int, ...]
    """N of each `ProfilerStep#N`."""
    on_device: bool
    """Whether the trace has device events: decides what `step_ns`, `rows` and `account` mean."""
    step_ns: tuple[int, ...]
    """`host_ns` of each step on CPU-only traces, `window_ns` with device events (see `step_windows`)."""
    rows: tuple[ProfiledRow, ...]
    """By kind, then the longest first, then by name. Rows of idle classes without time are left out."""
    accounts: tuple[Mapping[str, int], ...]
    """Nanoseconds of each class in each step; the classes of a step add up to its `step_ns` exactly."""
    op_counts: tuple[int, ...]
    kernel_counts: tuple[int, ...]
    """Kernels launched in each step, copies and memsets not included."""
    launch_counts: tuple[int, ...]
    """Calls that launch kernels or graphs in each step."""
    op_names: tuple[Mapping[str, int], ...]
    """How often each operator starts in each step."""
    step_signatures: tuple[str, ...]
    """Digest of each step's ordered (operator, shapes): equal steps do equal work.

    Operators in input annotations are left out: what a DataLoader with workers runs depends on their timing.
    """
    device_busy_ns: tuple[int, ...]
    """|U(all device events)| in each window."""
    h2d_bytes: tuple[int, ...]
    """Bytes copied from the host to the device by each step."""
    integrity: Integrity

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
    steps = steps_of(trace, joined)
    windows = steps.windows
    on_device = len(joined.device) > 0
    threads = operator_threads(trace, thread_of(windows[0])) if windows else []
    found = [thread_operators(trace, steps, thread) for thread in threads]
    device_step = device_steps(trace, steps, joined)
    accounts = device_accounts(trace, steps, joined) if on_device else host_accounts(trace, steps)
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
    calls = steps.of_host_time(trace.start[kernel_launch_rows(trace)])
    names = _names(found, len(windows))
    return ProfileTables(
        steps=len(windows),
        numbers=tuple(window.number for window in windows),
        on_device=on_device,
        step_ns=tuple(window.window_ns for window in windows),
        rows=tuple(sorted(rows, key=lambda row: (kinds.index(row.kind), -row.ns, row.name))),
        accounts=accounts,
        op_counts=tuple(sum(step.values()) for step in names),
        kernel_counts=_histogram(device_step[is_kernel], len(windows)),
        launch_counts=_histogram(calls, len(windows)),
        op_names=names,
        step_signatures=_signatures(found, len(windows)),
        device_busy_ns=_busy(trace, joined, steps),
        h2d_bytes=copies(trace).h2d_bytes,
        integrity=_integrity(trace, steps, joined, found, names),
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
    names = trace.name[rows]
    counts = np.bincount(names, minlength=len(trace.names))
    totals = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(totals, names, trace.duration[rows])
    return [
        ProfiledRow("kernel", trace.names[name], int(counts[name]), int(totals[name]))
        for name in np.unique(names).tolist()
    ]


def _names(found: list[ThreadOperators], steps: int) -> tuple[Mapping[str, int], ...]:
    names: list[Counter[str]] = [Counter() for _ in range(steps)]
    for thread in found:
        for step, counts in zip(names, thread.names, strict=True):
            step.update(counts)
    return tuple(names)


def _signatures(found: list[ThreadOperators], steps: int) -> tuple[str, ...]:
    """The step thread's sequence, then the engine threads' in a fixed order: which thread is first may vary."""
    signatures = []
    for step in range(steps):
        own, *engine = (thread.digests[step] for thread in found)
        signatures.append(hashlib.blake2b("".join((own, *sorted(engine))).encode(), digest_size=8).hexdigest())
    return tuple(signatures)


def _busy(trace: Trace, joined: Launches, steps: Steps) -> tuple[int, ...]:
    starts = np.array([window.start for window in steps.windows], dtype=np.int64)
    ends = np.array([window.end for window in steps.windows], dtype=np.int64)
    return tuple(covered(trace, joined.device).difference(steps.setup).within(starts, ends).tolist())


def _histogram(step: Rows, steps: int) -> tuple[int, ...]:
    return tuple(np.bincount(step[step >= 0], minlength=steps).tolist())


def _integrity(
    trace: Trace,
    steps: Steps,
    joined: Launches,
    found: list[ThreadOperators],
    names: tuple[Mapping[str, int], ...],
) -> Integrity:
    operators = trace.rows(Category.CPU_OP)
    in_steps = int(np.count_nonzero(steps.of_host_time(trace.start[operators]) >= 0))
    carried = carried_over(trace, joined)
    if steps.windows:
        carried = carried | joined.linked & (trace.start[joined.call] < steps.windows[0].host_start)
    return Integrity(
        device_events=len(joined.device),
        unlinked=int(np.count_nonzero(~joined.linked)),
        carry_over=int(np.count_nonzero(carried)),
        zero_duration=int(np.count_nonzero(trace.duration[joined.device] == 0)),
        overlapping_operators=sum(thread.overlapping for thread in found),
        other_operators=in_steps - sum(sum(step.values()) for step in names),
    )
