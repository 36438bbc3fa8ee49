"""What one rank's trace contributes to the comparison of a job's ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.account.accounts import idle_time, profile_tables
from pytest_perfdl.analysis.events.communication import (
    collective_annotation_rows,
    communication_kernels,
    computing_rows,
    covered,
    waits_for_collectives,
    waits_for_input,
)
from pytest_perfdl.analysis.events.intervals import Intervals, Steps
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import device_steps, steps_of
from pytest_perfdl.analysis.ranks.calls import Calls, IssueArgs, calls_of, process_groups
from pytest_perfdl.trace.model import I64, Category, Rows, Trace, job_properties

_WAITS = re.compile(r"synchronize", re.IGNORECASE)
"""Calls of the runtime that wait for the device."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The steps of one rank, in order: columns of equal length. Nanoseconds; moments on the rank's own clock.

    With device events a step is its window on the device, without them its annotation on the host (see
    `events.steps`), each without `perfdl.setup`. `compute_ns + input_ns + host_ns + exposed_communication_ns +
    exposed_copies_ns` is `window_ns` exactly.
    """

    number: tuple[int, ...]
    """N of `ProfilerStep#N`, -1 for the one step of a trace without annotations."""
    start: I64
    end: I64
    window_ns: I64
    compute_ns: I64
    """With device events |U(compute)|, without them operators on the step's thread, those of collectives left out."""
    input_ns: I64
    """Nothing runs on the device, or no operator, because the step's thread waits for its next batch."""
    host_ns: I64
    """The rest: idle time of the device by any other cause, or gaps between operators."""
    exposed_communication_ns: I64
    """Communication, waiting included, while nothing computes."""
    exposed_copies_ns: I64
    """Copies and memsets of a device while it neither computes nor communicates."""
    communication_ns: I64
    """All communication in the step, hidden or not: |U(comm)|."""
    account: Mapping[str, I64]
    """The classes of `accounts.device_accounts` or `accounts.host_accounts`; they add up to `window_ns` exactly."""

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class Traffic:
    """How much of one kind of collective one rank takes part in; tuples have one value per step. Exact counts."""

    kind: str
    calls: tuple[int, ...]
    bytes: tuple[int | None, ...]
    """As nccl-tests count them, `None` in steps with a call whose size the trace does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class RankActivity:
    """One rank's part of a job: a compact value that can be pickled, without its trace.

    Moments are nanoseconds since 1970 on the rank's own clock (`Trace.base_ns` added).
    """

    source: str
    rank: int | None
    """As `distributedInfo` says; `None` where it does not."""
    world_size: int | None
    host: str
    """`host_name` of the trace, empty where it has none; ranks of one host share a clock."""
    groups: Mapping[str, tuple[int, ...]]
    """Process groups of this rank and their members, as far as `distributedInfo` lists them."""
    on_device: bool
    begin_ns: int
    """When its first event begins; 0 without events."""
    span_ns: int
    busy_ns: int
    """|U(device events)|."""
    compute_ns: int
    """|U(compute)| of the whole trace; 0 without device events."""
    communication_ns: int
    """|U(comm)| of the whole trace; without device events |U(annotations of collectives on any thread)|."""
    exposed_communication_ns: int
    overlap: float | None
    """Share of the communication that overlaps with computing, 0 to 1 (definitions: `communication_overlap`); without
    device events with operators of the step's thread. `None` without communication."""
    steps: StepTimes
    calls: Calls
    exposed: Intervals
    """Where communication is in flight and nothing computes."""
    compute: Intervals
    """Where it computes."""
    input: Intervals
    """Where it waits for its next batch; of a device the idle intervals that are mostly that."""
    late: Intervals
    """Communication is in flight, nothing computes, and the host has not begun to launch what computes next, nor waits
    for the device: a host that is slow while something is communicated. Empty without device events."""
    work: str = ""
    """Digest of what it computes in a step: names and sizes (grids, or dimensions of inputs) of all kernels, without
    device events of all operators. Ranks with the same one have equally much to do. Empty without steps."""

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """Calls and bytes per step by kind of collective, by kind."""
        return tuple(_traffic(self.calls, kind, len(self.steps)) for kind in sorted(set(self.calls.kinds)))


def _traffic(calls: Calls, kind: str, steps: int) -> Traffic:
    own = np.flatnonzero(calls.of_kind(kind) & (calls.step >= 0))
    step, size = calls.step[own], calls.bytes[own]
    count = np.bincount(step, minlength=steps).tolist()
    unknown = np.bincount(step[size < 0], minlength=steps)
    total: npt.NDArray[np.int64] = np.zeros(steps, dtype=np.int64)
    np.add.at(total, step, np.maximum(size, 0))
    known = [None if missing else sum_ for sum_, missing in zip(total.tolist(), unknown.tolist(), strict=True)]
    return Traffic(kind, tuple(count), tuple(known))


def activity(trace: Trace) -> RankActivity:
    """Reduce one rank's trace to what `compare` needs.

    Steps are those of `steps_of`. With device events the classes of a step are those of `device_accounts`. Without,
    *computing* is time inside operators of the step's thread that compute (`computing_rows`), *input* is time inside a
    DataLoader's `__next__`, *communication* is where the thread waits for collectives (`waits_for_collectives`), and
    the rest is *host*.
    """
    joined = launches(trace)
    steps = steps_of(trace)
    on_device = len(joined.device) > 0
    parts = _device_parts(trace) if on_device else _host_parts(trace, steps)
    rank, world_size = rank_of(trace)
    rows = joined.device if on_device else trace.rows(Category.CPU_OP, Category.USER_ANNOTATION)
    communication, exposed = parts.communication, parts.exposed
    hidden = communication.intersection(parts.compute).length
    return RankActivity(
        source=trace.source,
        rank=rank,
        world_size=world_size,
        host=host if isinstance(host := trace.metadata.get("host_name"), str) else "",
        groups=process_groups(trace),
        on_device=on_device,
        begin_ns=int(trace.start.min()) + trace.base_ns if len(trace) else 0,
        span_ns=int(trace.end[rows].max() - trace.start[rows].min()) if len(rows) else 0,
        busy_ns=covered(trace, joined.device).length,
        compute_ns=parts.compute.length,
        communication_ns=communication.length,
        exposed_communication_ns=communication.difference(parts.compute).difference(parts.input).length,
        overlap=hidden / communication.length if communication.length else None,
        steps=_step_times(trace, steps, parts, on_device),
        calls=calls_of(trace, exposed),
        exposed=exposed.shifted(trace.base_ns),
        compute=parts.compute.shifted(trace.base_ns),
        input=parts.input.shifted(trace.base_ns),
        late=parts.late.difference(steps.setup).shifted(trace.base_ns),
        work=_work(trace, parts.computes, parts.step),
    )


def rank_of(trace: Trace) -> tuple[int | None, int | None]:
    """Number of the rank and how many there are, as `distributedInfo` says; `None` where it does not."""
    told = job_properties(trace)
    rank, size = (value if type(value) is int else None for value in (told.get("rank"), told.get("world_size")))
    return rank, size


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Where the time of a trace goes, as unions."""

    compute: Intervals
    input: Intervals
    communication: Intervals
    exposed: Intervals
    """Communication while nothing computes; on the CPU only until one ends: what a thread does with a message open that
    it does not wait for is its own."""
    computes: Rows
    """What computes: kernels, or operators of the step's thread."""
    step: Rows
    """Index of the step of each, -1 for none."""
    late: Intervals
    """Exposed communication during which what computes next is not launched, and the host does not wait."""


def _device_parts(trace: Trace) -> _Parts:
    joined = launches(trace)
    kernels = trace.rows(Category.KERNEL)
    communicates = communication_kernels(trace)[kernels]
    compute, communication = covered(trace, kernels[~communicates]), covered(trace, kernels[communicates])
    idle = idle_time(trace)
    mostly = 2 * idle.by_cause["input"] > idle.end - idle.start
    waiting = Intervals.union_of(idle.start[mostly], idle.end[mostly])
    step = joined.spread(device_steps(trace), len(trace))
    computes = kernels[~communicates]
    exposed = communication.difference(compute)
    late = _late_launches(trace, computes, compute).intersection(exposed)
    return _Parts(compute, waiting, communication, exposed, computes, step[computes], late)


def _late_launches(trace: Trace, computes: Rows, compute: Intervals) -> Intervals:
    """From the end of computing until the host launches what computes next, but where it waits for the device."""
    joined = launches(trace)
    call = joined.spread(joined.call, len(trace))
    first = computes[np.searchsorted(trace.start[computes], compute.start[1:])]
    launched = np.where(call[first] >= 0, trace.start[call[first]], compute.end[:-1])
    idle = Intervals.union_of(compute.end[:-1], np.clip(launched, compute.end[:-1], compute.start[1:]))
    return idle.difference(covered(trace, trace.matching(_WAITS.search, trace.launch_rows())))


def _host_parts(trace: Trace, steps: Steps) -> _Parts:
    annotations = collective_annotation_rows(trace)
    communication = covered(trace, annotations[trace.category[annotations] == Category.USER_ANNOTATION])
    if not steps.windows:
        nothing = Intervals.between(0, 0)
        none = np.zeros(0, dtype=np.intp)
        return _Parts(nothing, nothing, communication, communication, none, none, nothing)
    thread = steps.thread
    waiting = waits_for_input(trace, thread)
    computing = computing_rows(trace, thread)
    compute = covered(trace, computing).difference(waiting)
    exposed = waits_for_collectives(trace, thread)
    own = computing[~waiting.contains(trace.start[computing])]
    step = steps.of_host_time(trace.start[own])
    return _Parts(compute, waiting, communication, exposed, own, step, Intervals.between(0, 0))


def _work(trace: Trace, rows: Rows, step: Rows) -> str:
    """Of the step like most: one that is cut off, or that also logs or saves something, does not count."""
    names: Counter[bytes] = Counter()
    first: dict[bytes, Rows] = {}
    for number in np.unique(step[step >= 0]).tolist():
        own = rows[step == number]
        key = np.sort(trace.name[own]).tobytes()
        names[key] += 1
        first.setdefault(key, own)
    if not names:
        return ""
    typical = first[names.most_common(1)[0][0]]
    told = trace.decode_args(typical, IssueArgs)
    each = sorted(f"{trace.name_of(row)} {size.grid} {size.dims}" for row, size in zip(typical, told, strict=True))
    return blake2b("\n".join(each).encode(), digest_size=8).hexdigest()


def _step_times(trace: Trace, steps: Steps, parts: _Parts, on_device: bool) -> StepTimes:
    windows = steps.windows
    accounts = profile_tables(trace).accounts
    account = {
        name: np.array([each[name] for each in accounts], dtype=np.int64) for name in (accounts[0] if accounts else ())
    }
    start, end = steps.starts, steps.ends
    window_ns = np.array([window.window_ns for window in windows], dtype=np.int64)

    def within(what: Intervals) -> I64:
        return what.difference(steps.setup).within(start, end)

    nothing = np.zeros(len(windows), dtype=np.int64)
    if on_device and account:
        compute, input_, exposed = account["compute"], account["input"], account["exposed communication"]
        copies = account["exposed copies"]
    else:
        compute, input_, exposed, copies = within(parts.compute), within(parts.input), within(parts.exposed), nothing
    return StepTimes(
        number=tuple(window.number for window in windows),
        start=start + trace.base_ns,
        end=end + trace.base_ns,
        window_ns=window_ns,
        compute_ns=compute,
        input_ns=input_,
        host_ns=window_ns - compute - input_ - exposed - copies,
        exposed_communication_ns=exposed,
        exposed_copies_ns=copies,
        communication_ns=within(parts.communication),
        account=account,
    )
