"""Bytes that each step copies between host and device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
import numpy as np

from pytest_perfdl.analysis.device_steps import device_steps
from pytest_perfdl.analysis.launches import launches
from pytest_perfdl.analysis.steps import steps_of
from pytest_perfdl.trace.model import I64, Category, Rows, Trace

_KINDS = (
    ("h2d", re.compile(r"HtoD|HostToDevice|H2D|Host -> Device", re.IGNORECASE)),
    ("d2h", re.compile(r"DtoH|DeviceToHost|D2H|Device -> Host", re.IGNORECASE)),
    ("d2d", re.compile(r"DtoD|DeviceToDevice|D2D|PtoP|P2P", re.IGNORECASE)),
)


class _Copy(msgspec.Struct, gc=False):
    bytes: int | str = 0
    size: int | str = 0
    """Older ROCm's name for `bytes`; on calls both are numerals in quotes."""

    @property
    def amount(self) -> int:
        """Bytes copied, 0 if unknown."""
        text = str(self.bytes or self.size)
        return int(text) if text.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Copies:
    """Bytes copied in each step, in the order of the steps, by direction; memsets are not copies."""

    h2d_bytes: tuple[int, ...]
    d2h_bytes: tuple[int, ...]
    d2d_bytes: tuple[int, ...]


def copies(trace: Trace) -> Copies:
    """Bytes of the copies launched in each step, from the device's `gpu_memcpy` events.

    The direction is read from the event's name. ROCm writes the size on the launching call, from where it is
    taken if the device event has none. A copy whose launch is not known belongs to the step in whose window it runs.
    """
    joined = launches(trace)
    steps = steps_of(trace, joined)
    is_copy = trace.category[joined.device] == Category.GPU_MEMCPY
    device, call = joined.device[is_copy], joined.call[is_copy]
    step = device_steps(trace, steps, joined)[is_copy]
    sizes = _sizes(trace, device, call)
    totals = {}
    for kind, pattern in _KINDS:
        named = np.array([bool(pattern.search(name)) for name in trace.names], dtype=bool)
        own = named[trace.name[device]] & (step >= 0)
        total = np.zeros(len(steps.windows), dtype=np.int64)
        np.add.at(total, step[own], sizes[own])
        totals[kind] = tuple(total.tolist())
    return Copies(totals["h2d"], totals["d2h"], totals["d2d"])


def _sizes(trace: Trace, device: Rows, call: Rows) -> I64:
    sizes = np.array([copy.amount for copy in trace.decode_args(device, _Copy)], dtype=np.int64)
    missing = np.flatnonzero((sizes == 0) & (call >= 0))
    sizes[missing] = [copy.amount for copy in trace.decode_args(call[missing], _Copy)]
    return sizes
