"""Utilization of one process: work of the profiled operators, relative to the time of the timed steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_perfdl.machine.utilization import NO_LIMITS, Utilization, host_overhead, mfu, mix_of, utilization

if TYPE_CHECKING:
    from pytest_perfdl.machine.constants import Machine
    from pytest_perfdl.machine.peaks import Peaks
    from pytest_perfdl.measure.commands import CallResult, Profiled, SideResult


def step_utilization(
    result: CallResult | SideResult,
    machine: Machine | None,
    step_ns: float,
    mix: Mapping[str, float] | None = None,
) -> Utilization:
    """The metrics of one process, shares in percent; empty but for the CPU's where it profiled nothing.

    Parameters
    ----------
    machine
        Peak rates of the machine; `None` if unknown.
    step_ns
        What a timed step takes.
    mix
        Share of each element type in the FLOPs of the base side; by default in those of this one.
    """
    values: dict[str, float] = {}
    threads = result.info.key.parts.get("threads")
    if isinstance(threads, int) and (wall_ns := result.timed.per_step("wall_ns")) > 0:
        values["cpu_utilization"] = 100 * result.timed.per_step("cpu_ns") / (wall_ns * threads)
    profiled = result.profiled
    if profiled is None or not profiled.step_ns:
        return Utilization(values)
    peaks = None if machine is None else machine.peaks
    known = utilization(profiled.work, len(profiled.step_ns), step_ns, peaks, mix)
    absent = dict(known.absent)
    values |= {name: value if name == "achieved_flops" else 100 * value for name, value in known.values.items()}
    values |= {name: 100 * share for name, share in profiled.device.items()}
    if result.info.model_flops is not None:
        _add("mfu", _mfu(result.info.model_flops, step_ns, peaks, mix or mix_of(profiled.work)), values, absent)
    if profiled.device_busy_ns is None:
        _add("host_overhead", _host_overhead(profiled, machine, step_ns), values, absent)
    return Utilization(values, absent, known.coverage)


def _add(name: str, found: float | str, values: dict[str, float], absent: dict[str, str]) -> None:
    """A share from 0 to 1, or why there is none."""
    if isinstance(found, str):
        absent[name] = found
    else:
        values[name] = 100 * found


def _mfu(model_flops: float, step_ns: float, peaks: Peaks | None, mix: Mapping[str, float]) -> float | str:
    share = mfu(model_flops, step_ns, peaks, mix)
    if share is not None:
        return share
    return NO_LIMITS if peaks is None else "the peak rate of the most used element type is unknown"


def _host_overhead(profiled: Profiled, machine: Machine | None, step_ns: float) -> float | str:
    if machine is None or machine.event_ns is None:
        return NO_LIMITS
    steps = len(profiled.step_ns)
    gap = sum(row.ns for row in profiled.rows if row.kind == "idle") / steps
    events, profiled_ns = sum(profiled.op_counts) / len(profiled.op_counts), sum(profiled.step_ns) / steps
    share = host_overhead(gap, events, machine.event_ns, profiled_ns, step_ns)
    return "profiler overhead is above 15 % of the step" if share is None else share
