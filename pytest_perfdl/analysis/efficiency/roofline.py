"""How close operators come to what their device could do at best, and how well kernels fill it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.efficiency.costs import ModeledCalls, OperatorCost, modeled_calls
from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import call_tree, launches, launching_operator
from pytest_perfdl.analysis.events.operators import operator_self_ns
from pytest_perfdl.analysis.events.steps import device_steps, device_time, steps_of
from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.machine.utilization import Bound, OperatorWork
from pytest_perfdl.model.copy_names import direction, host_memory
from pytest_perfdl.trace.model import F64, I64, Category, Rows, Trace, device_properties, once

# How close each operator comes to what its device could do at best.


_TF32 = re.compile(r"tf32|s1688(gemm|fprop|dgrad|wgrad)", re.IGNORECASE)
"""Kernels of tensor cores that round float32 to TF32."""

NO_MODEL = "no model"
NO_ARGUMENTS = "arguments not recorded"
HOST_COPY = "copy between host and device"
NO_OPERATOR = "no operator known"


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """The calls of one operator with equal shapes and element type; or one that has no model, with its time only."""

    operator: str
    """Empty for device events whose launching operator is not known."""
    shapes: str
    """`Input Dims`, as JSON; empty without a model."""
    dtype: str
    """Element type that the arithmetic is done on: float32, tf32, bfloat16, ...; empty without a model."""
    count: int
    """Calls."""
    time_ns: int
    """With device events |U(the calls' device events)|, else their time on the host, operators inside included."""
    share: float
    """Of the durations of all device events (else the time in operators), 0 to 1; all rows add up to 1."""
    roofline_flops: int | None = None
    """Floating-point operations of all calls, from shapes; not the counted metric `flops`."""
    bytes: int | None = None
    """Bytes that all calls must move: every input read once, every output written once."""
    floor_ns: float | None = None
    """Least time for all calls: the sum of max(FLOPs / peak FLOP/s, bytes / peak bandwidth)."""
    bound: Bound | None = None
    """Which of the two is larger."""
    not_covered: str = ""
    """Why there is no model's figure; empty if there is."""

    @property
    def efficiency(self) -> float | None:
        """Floor over measured time; `None` where either is not known.

        It may pass 1 where inputs came from a cache instead of memory.
        """
        return self.floor_ns / self.time_ns if self.floor_ns is not None and self.time_ns else None

    @property
    def flops_per_s(self) -> float | None:
        """Achieved FLOP/s; `None` for what is not covered or does no arithmetic worth counting."""
        return self.roofline_flops * 1e9 / self.time_ns if self.roofline_flops and self.time_ns else None

    @property
    def bytes_per_s(self) -> float | None:
        """Achieved bytes per second, of the bytes that must be moved."""
        return self.bytes * 1e9 / self.time_ns if self.bytes is not None and self.time_ns else None


class WorkRate(NamedTuple):
    """What is done while a call runs on the host, or while one of its device events runs."""

    start_ns: int
    end_ns: int
    flops_per_s: float
    bytes_per_s: float


class _Key(NamedTuple):
    """What the rows of the result are told apart by."""

    operator: str
    shapes: str = ""
    dtype: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Group:
    """What makes one `RooflineRow`."""

    calls: dict[int, int] = field(default_factory=dict)
    """Rows of calls, and the number of each one's cost."""
    events: list[int] = field(default_factory=list)
    """Rows that the time is taken from."""
    owners: list[int] = field(default_factory=list)
    """The call of each event."""
    spent: int = 0
    """Nanoseconds of all events together."""
    measured: int = 0
    """Nanoseconds in which any of them ran."""
    costs: list[OperatorCost] = field(default_factory=list)
    """Of each call; empty without a model."""

    def add(self, event: int, call: int, cost: int) -> None:
        self.calls[call] = cost
        self.events.append(event)
        self.owners.append(call)

    def within(self, inside: npt.NDArray[np.bool_]) -> _Group:
        """The events among these rows, with their calls."""
        found = _Group()
        for event, call in zip(self.events, self.owners, strict=True):
            if inside[event]:
                found.add(event, call, self.calls[call])
        return found

    def measure(self, trace: Trace) -> None:
        """Take the times and the costs of what was added."""
        on_device = len(trace.device_rows()) > 0
        events = np.array(self.events, dtype=np.intp)
        self.spent = int((trace.duration if on_device else operator_self_ns(trace))[events].sum())
        self.measured = covered(trace, events).length if on_device else self.spent
        calls = modeled_calls(trace).calls
        self.costs = [calls[number].cost for number in self.calls.values() if number >= 0]


def roofline(trace: Trace, peaks: Peaks | None = None) -> tuple[RooflineRow, ...]:
    """Efficiency of operators against the roofline: the least time that they need over the time measured.

    The least time is max(FLOPs / peak FLOP/s, compulsory bytes / peak bandwidth) (S. Williams, A. Waterman,
    D. Patterson, "Roofline", CACM 52(4), 2009). FLOPs and bytes come from the shapes in the trace, by `cost_model`;
    a fused multiply-add is 2 FLOPs. An operator with a model stands for everything inside it, so that a `linear` is
    one call and not also the `addmm` in it; device events count for the outermost operator with a model around
    their launch. `peaks` are those of the trace's device unless given; without them floors are `None`, achieved
    rates are not.

    What has no model, or lacks the arguments that its model needs, is listed by operator with its time, and so are
    copies between host and device and events without an operator. Largest share first. With device events,
    operators that launched none are left out; without, time is host time.
    """
    peaks = peaks or peaks_of(trace)
    groups = _groups(trace)
    whole = sum(group.spent for group in groups.values())
    rows = [_row(key, group, group.spent / whole if whole else 0.0, peaks) for key, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.share, row.operator, row.shapes, row.dtype, row.not_covered)))


def step_work(trace: Trace) -> tuple[OperatorWork, ...]:
    """What the operators of the trace's steps had to do and how long they took: the same calls as in `roofline`.

    What lies outside of the steps, and their setup, is left out. Longest first.
    """
    joined = launches(trace)
    steps = steps_of(trace)
    inside = np.zeros(len(trace), dtype=np.bool_)
    if len(joined.device):
        inside[joined.device] = device_steps(trace) >= 0
    else:
        inside[:] = steps.of_host_time(trace.start) >= 0
    found = []
    for key, whole in _groups(trace).items():
        group = whole.within(inside)
        if not group.events:
            continue
        group.measure(trace)
        found.append(_work(key, group))
    return tuple(sorted(found, key=lambda work: (-work.time_ns, work.operator, work.shapes, work.dtype)))


def work_rates(trace: Trace) -> list[WorkRate]:
    """What the calls with a cost model achieve, each over its own time: with device events over those it launched."""
    on_device = len(trace.device_rows()) > 0
    calls = modeled_calls(trace)
    found = []
    for group in (group for key, group in _groups(trace).items() if not key.reason):
        events: dict[int, list[int]] = defaultdict(list)
        for event, call in zip(group.events, group.owners, strict=True):
            events[call].append(event)
        for call, number in group.calls.items():
            rows = events[call] if on_device else [call]
            cost, whole = calls.calls[number].cost, int(trace.duration[rows].sum())
            if whole:
                rates = cost.flops * 1e9 / whole, cost.bytes * 1e9 / whole
                found += [WorkRate(int(trace.start[row]), int(trace.end[row]), *rates) for row in rows]
    return sorted(found)


@once
def _groups(trace: Trace) -> dict[_Key, _Group]:
    """What rows are made of, with its time."""
    modeled = modeled_calls(trace)
    keys = [_Key(call.name, call.shapes, call.cost.dtype) for call in modeled.calls]
    caller = call_tree(trace).outermost(modeled.number >= 0)
    on_device = len(trace.device_rows()) > 0
    groups: dict[_Key, _Group] = defaultdict(_Group)
    numbers = modeled.number.tolist()
    types = _types_inside(modeled, caller)
    attributed = list(_on_device(trace, caller) if on_device else _on_host(trace, caller))
    is_tf32 = trace.named(_TF32.search)
    rounding = {call for event, _, call, _ in attributed if is_tf32[trace.name[event]]}
    for event, operator, call, reason in attributed:
        if call >= 0:
            key = keys[numbers[call]]
            dtype = types.get(call, key.dtype)
            key = key._replace(dtype="tf32" if dtype == "float32" and call in rounding else dtype)
            groups[key].add(event, call, numbers[call])
        else:
            name = "" if operator < 0 else trace.name_of(operator)
            has_model = operator >= 0 and modeled.has_model[trace.name[operator]]
            key = _Key(name, reason=reason or (NO_ARGUMENTS if has_model else NO_MODEL))
            groups[key].add(event, operator if operator >= 0 else event, -1)
    for group in groups.values():
        group.measure(trace)
    return groups


def _types_inside(modeled: ModeledCalls, caller: Rows) -> dict[int, str]:
    """Element type of calls that do their arithmetic in another than their own arguments': autocast casts inside."""
    found: dict[int, tuple[int, str]] = {}
    inside = np.flatnonzero((modeled.number >= 0) & (caller >= 0) & (caller != np.arange(len(caller))))
    for row, call in zip(inside.tolist(), caller[inside].tolist(), strict=True):
        cost = modeled.calls[modeled.number[row]].cost
        # The innermost of those with all of the arithmetic comes last.
        if cost.flops and cost.flops >= found.get(call, (0, ""))[0]:
            found[call] = cost.flops, cost.dtype
    return {call: dtype for call, (_, dtype) in found.items()}


def _row(key: _Key, group: _Group, share: float, peaks: Peaks | None) -> RooflineRow:
    work, costs = _work(key, group), group.costs
    if key.reason:
        return RooflineRow(key.operator, "", "", work.calls, work.time_ns, share, not_covered=key.reason)
    called = key.operator, key.shapes, key.dtype, work.calls, work.time_ns, share, work.flops, work.bytes
    # Calls of equal shapes differ in their strides, and so in what they must move: each has a least time of its own.
    pairs = [peaks.least_ns(cost.flops, cost.bytes, key.dtype, overwritten=cost.overwritten) for cost in costs if peaks]
    known = [max(pair) for pair in pairs if pair is not None]
    if peaks is None or not known or len(known) < len(costs):
        return RooflineRow(*called)
    return RooflineRow(*called, sum(known), work.bound(peaks))


def _work(key: _Key, group: _Group) -> OperatorWork:
    """What the calls of a group had to do, and how long they took."""
    flops = None if key.reason else sum(cost.flops for cost in group.costs)
    moved = None if key.reason else sum(cost.bytes for cost in group.costs)
    overwritten = sum(cost.overwritten for cost in group.costs)
    called = key.operator, key.shapes, key.dtype, len(group.calls)
    return OperatorWork(*called, group.measured, flops, moved, overwritten)


_Attributed = Iterator[tuple[int, int, int, str]]
"""A row whose time is counted, the operator whose it is, its caller (the operator with a model, or -1), the reason."""


def _on_device(trace: Trace, caller: Rows) -> _Attributed:
    device = trace.device_rows()
    operator = launching_operator(trace)[device]
    call = np.where(operator >= 0, caller[operator], -1)
    between = trace.named(lambda name: direction(name) in ("h2d", "d2h", "h2h") or host_memory(name))
    copies = between[trace.name[device]] & (trace.category[device] == Category.GPU_MEMCPY)
    for row, own, modeled, copy in zip(device.tolist(), operator.tolist(), call.tolist(), copies.tolist(), strict=True):
        if own < 0:
            yield row, -1, -1, NO_OPERATOR
        elif copy:
            yield row, own, -1, HOST_COPY
        else:
            yield row, own, modeled, ""


def _on_host(trace: Trace, caller: Rows) -> _Attributed:
    rows = np.flatnonzero(trace.category == Category.CPU_OP)
    return ((row, row, call, "") for row, call in zip(rows.tolist(), caller[rows].tolist(), strict=True))


def peaks_of(trace: Trace) -> Peaks | None:
    """The peaks of the first device that the trace names."""
    names = (device.get("name") for device in device_properties(trace))
    return next((Peaks.of_device(name) for name in names if isinstance(name, str)), None)


# How well kernels fill the device, estimated from how they were launched: SM efficiency and occupancy.


class _Geometry(msgspec.Struct, gc=False):
    blocks: float | str | None = msgspec.field(name="blocks per SM", default=None)
    occupancy: float | str | None = msgspec.field(name="est. achieved occupancy %", default=None)


@once
def launch_geometry(trace: Trace) -> tuple[F64, F64]:
    """What kineto computed from each kernel's grid and block: one value per row of the trace, NaN where it is missing.

    *Blocks per SM*: blocks of the grid over the SMs of the device. *Occupancy*: `est. achieved occupancy %`, 0 to 100,
    active warps over the SM's most, bounded by registers and memory. CUDA traces have both, those of ROCm and XPU do
    not. Values that are no finite, non-negative number (kineto wrote `inf` where it did not know the number of SMs) are
    missing.
    """
    rows = trace.rows(Category.KERNEL)
    found = trace.decode_args(rows, _Geometry)
    blocks, occupancy = np.full((2, len(trace)), np.nan)
    blocks[rows] = _numbers([args.blocks for args in found])
    occupancy[rows] = _numbers([args.occupancy for args in found])
    return blocks, occupancy


@once
def sm_efficiency_est(trace: Trace) -> float | None:
    """Share of the device's SMs that had a block to run, from 0 to 1: an estimate from launch geometry.

    The integral over `device_time` of min(1, sum over the kernels running then of min(1, blocks per SM)), over its
    length. With several devices it is the mean over those that run kernels. Kernels whose blocks per SM are missing
    add nothing; `None` where no kernel has them (ROCm) or the span has no length.

    As defined by PyTorch's TensorBoard plugin, "Est. SM Efficiency", which divides by the span of the steps instead.
    """
    blocks, _ = launch_geometry(trace)
    rows = trace.rows(Category.KERNEL)
    rows = rows[~np.isnan(blocks[rows])]
    filled = np.minimum(blocks[rows], 1.0)
    time = device_time(trace)
    if len(rows) == 0 or not time.length:
        return None
    devices = np.unique(trace.pid[rows])
    of_each = (trace.pid[rows] == pid for pid in devices)
    total = sum(_capped_integral(trace, time, rows[own], filled[own]) for own in of_each)
    return total / (time.length * len(devices))


@once
def occupancy_est(trace: Trace) -> float | None:
    """Duration-weighted mean of the kernels' `est. achieved occupancy %`, in percent as in the field: 0 to 100.

    It is a bound from registers, shared memory and block size, not a measurement. Kernels without the field are
    left out; `None` where none has it (ROCm) or none has a duration.
    """
    rows = trace.rows(Category.KERNEL)
    return weighted_mean(launch_geometry(trace)[1][rows], trace.duration[rows])


def weighted_mean(values: F64, weights: I64) -> float | None:
    """Mean of the values that are not NaN; `None` if their weights add up to 0."""
    known = ~np.isnan(values)
    total = int(weights[known].sum())
    return float(np.dot(values[known], weights[known])) / total if total else None


def _capped_integral(trace: Trace, time: Intervals, rows: Rows, filled: F64) -> float:
    """Nanoseconds of `time` times the running kernels' sum of `filled`, which counts at most as 1."""
    bounds = np.concatenate((trace.start[rows], trace.start[rows] + trace.duration[rows]))
    change = np.concatenate((filled, -filled))
    order = np.argsort(bounds, kind="stable")
    level = np.minimum(np.cumsum(change[order])[:-1], 1.0)
    bounds = bounds[order]
    return float(np.dot(level, time.within(bounds[:-1], bounds[1:])))


def _numbers(values: list[float | str | None]) -> F64:
    found = np.array([value if isinstance(value, float) else np.nan for value in values], dtype=np.float64)
    found[~np.isfinite(found) | (found < 0)] = np.nan
    return found
