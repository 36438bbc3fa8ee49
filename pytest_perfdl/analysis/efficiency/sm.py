"""How well kernels fill the device, estimated from how they were launched: SM efficiency and occupancy."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import F64, I64, Category, Rows, Trace


class _Geometry(msgspec.Struct, gc=False):
    blocks: float | str | None = msgspec.field(name="blocks per SM", default=None)
    occupancy: float | str | None = msgspec.field(name="est. achieved occupancy %", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class LaunchGeometry:
    """What kineto computed from each kernel's grid and block: columns of equal length, NaN where it is missing."""

    rows: Rows
    """Rows of all kernels, by start."""
    blocks_per_sm: F64
    """Blocks of the grid over the SMs of the device."""
    occupancy: F64
    """`est. achieved occupancy %`, 0 to 100: active warps over the SM's most, bounded by registers and memory."""


@once
def launch_geometry(trace: Trace) -> LaunchGeometry:
    """Read the launch geometry of every kernel; CUDA traces have it, those of ROCm and XPU do not.

    Values that are no finite, non-negative number (kineto wrote `inf` where it did not know the number of SMs)
    are missing.
    """
    rows = trace.rows(Category.KERNEL)
    found = trace.decode_args(rows, _Geometry)
    return LaunchGeometry(rows, _numbers([args.blocks for args in found]), _numbers([args.occupancy for args in found]))


@once
def sm_efficiency_est(trace: Trace) -> float | None:
    """Share of the device's SMs that had a block to run, from 0 to 1: an estimate from launch geometry.

    The integral over time of min(1, sum over the kernels running then of min(1, blocks per SM)), over the span
    from the first device event's start to the last one's end. With several devices it is the mean over those that
    run kernels. Kernels whose blocks per SM are missing add nothing; `None` where no kernel has them (ROCm) or the
    span has no length.

    As defined by PyTorch's TensorBoard plugin, "Est. SM Efficiency", which divides by the span of the steps instead.
    """
    geometry = launch_geometry(trace)
    has = ~np.isnan(geometry.blocks_per_sm)
    rows, filled = geometry.rows[has], np.minimum(geometry.blocks_per_sm[has], 1.0)
    device = trace.device_rows()
    if len(rows) == 0:
        return None
    span = int((trace.start[device] + trace.duration[device]).max() - trace.start[device].min())
    if span == 0:
        return None
    devices = np.unique(trace.pid[rows])
    total = sum(_capped_integral(trace, rows[own], filled[own]) for own in (trace.pid[rows] == pid for pid in devices))
    return total / (span * len(devices))


@once
def occupancy_est(trace: Trace) -> float | None:
    """Duration-weighted mean of the kernels' `est. achieved occupancy %`, in percent as in the field: 0 to 100.

    It is a bound from registers, shared memory and block size, not a measurement. Kernels without the field are
    left out; `None` where none has it (ROCm) or none has a duration.
    """
    geometry = launch_geometry(trace)
    return weighted_mean(geometry.occupancy, trace.duration[geometry.rows])


def weighted_mean(values: F64, weights: I64) -> float | None:
    """Mean of the values that are not NaN; `None` if their weights add up to 0."""
    known = ~np.isnan(values)
    total = int(weights[known].sum())
    return float(np.dot(values[known], weights[known])) / total if total else None


def _capped_integral(trace: Trace, rows: Rows, filled: F64) -> float:
    """Nanoseconds times the running kernels' sum of `filled`, which counts at most as 1."""
    bounds = np.concatenate((trace.start[rows], trace.start[rows] + trace.duration[rows]))
    change = np.concatenate((filled, -filled))
    order = np.argsort(bounds, kind="stable")
    level = np.minimum(np.cumsum(change[order])[:-1], 1.0)
    return float(np.dot(level, np.diff(bounds[order])))


def _numbers(values: list[float | str | None]) -> F64:
    found = np.array([value if isinstance(value, float) else np.nan for value in values], dtype=np.float64)
    found[~np.isfinite(found) | (found < 0)] = np.nan
    return found
