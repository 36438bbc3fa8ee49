"""What a trace, or the key of a record, tells of its machine (`machine.rates.Machine`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_perfdl.analysis.account.transfers import copy_figures
from pytest_perfdl.analysis.efficiency.roofline import roofline
from pytest_perfdl.machine.rates import Machine, Peaks
from pytest_perfdl.trace.model import Trace, device_properties, once

ACHIEVED = 0.8
"""Share of a data sheet's bandwidth that streaming kernels reach (STREAM-like kernels reach 75 to 92 %)."""

_LARGE_CALL, _LARGE_COPY = 256 * 2**10, 2**20
"""Bytes of a call, and of all copies of a kind, from which on their rate says something of the machine."""


def operator_key(operator: str, shapes: str) -> str:
    """What ratios are told apart by.

    >>> operator_key("aten::mm", "[[4, 8], [8, 2]]")
    'aten::mm [[4, 8], [8, 2]]'
    """
    return f"{operator} {shapes}"


def machine_of_key(parts: Mapping[str, Any]) -> Machine:
    """What the key of a record tells of its machine, of which a kept trace of one step holds nothing."""
    cores, peaks = parts.get("cores"), Peaks.of_device(str(parts.get("accelerator") or ""))
    return Machine(
        cores=cores if isinstance(cores, int) else None,
        flops_per_s=peaks.flops_per_s if peaks else {},
        memory_bytes_per_s=ACHIEVED * peaks.bytes_per_s if peaks else None,
    )


@once
def machine_of(trace: Trace) -> Machine:
    """What a trace says of the machine that it was recorded on.

    Peaks and memory from the device's name and properties; copies' rates from large copies in the trace; on devices
    that are in no table, and on CPUs, the memory's rate is that of the fastest tenth (by time) of operators that
    move at least 256 KiB a call and compute next to nothing.
    """
    device: Mapping[str, Any] = next(iter(device_properties(trace)), {})
    peaks = Peaks.of_device(str(device.get("name", "")))
    memory = device.get("totalGlobalMem")
    known: dict[str, Any] = {}
    source: dict[str, str] = {}
    if peaks is not None:
        known |= {"flops_per_s": peaks.flops_per_s, "memory_bytes_per_s": ACHIEVED * peaks.bytes_per_s}
        source |= {"flops_per_s": peaks.source, "memory_bytes_per_s": f"{ACHIEVED:.0%} of {peaks.source}"}
    elif (rate := _achieved(trace)) is not None:
        known["memory_bytes_per_s"], source["memory_bytes_per_s"] = rate, "operators of the trace"
    if isinstance(memory, int):
        known["memory_bytes"], source["memory_bytes"] = memory, "the trace"
    for row in copy_figures(trace):
        if row.kind == "h2d" and row.host_memory and row.bytes >= _LARGE_COPY and row.bandwidth:
            name = f"{row.host_memory}_bytes_per_s"
            known[name], source[name] = row.bandwidth, "copies of the trace"
    return Machine(**known, source=source)


def _achieved(trace: Trace) -> float | None:
    rows = [
        (row.bytes_per_s, row.time_ns)
        for row in roofline(trace)
        if row.bytes
        and row.bytes_per_s
        and row.bytes >= _LARGE_CALL * row.count
        and not (row.roofline_flops or 0) > row.bytes
    ]
    whole = sum(time for _, time in rows)
    passed = 0
    for rate, time in sorted(rows, reverse=True):
        passed += time
        if passed >= whole / 10:
            return rate
    return None
