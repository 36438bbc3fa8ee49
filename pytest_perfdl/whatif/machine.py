"""What a machine can do, as far as predictions need it: from the trace, from data sheets, or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import orjson

from pytest_perfdl.analysis.account.transfers import copy_figures
from pytest_perfdl.analysis.efficiency.peaks import Peaks
from pytest_perfdl.analysis.efficiency.roofline import roofline
from pytest_perfdl.model.errors import MissingMachineConstant
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import Trace

ACHIEVED = 0.8
"""Share of a data sheet's bandwidth that streaming kernels reach (STREAM-like kernels reach 75 to 92 %)."""

_LARGE_CALL, _LARGE_COPY = 256 * 2**10, 2**20
"""Bytes of a call, and of all copies of a kind, from which on their rate says something of the machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates in bytes a second, `None` where nobody knows."""

    memory_bytes_per_s: float | None = None
    """Of the memory that the kernels work on, as streaming kernels reach it."""
    pinned_bytes_per_s: float | None = None
    """Copies from pinned host memory to the device."""
    pageable_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    """Between ranks, for one all-reduce: `B` of 2 (n - 1) / n S / B."""
    network_latency_ns: float = 0.0
    """Of one message; an all-reduce over a ring of n ranks has 2 (n - 1) of them one after the other."""
    memory_bytes: int | None = None
    """Memory of one device."""
    cores: int | None = None
    """Processor cores that DataLoader workers can use."""
    contention: float | None = None
    """Time of a computation beside another process that computes, over its time alone: 1 on cores of their own, up to 2
    on two threads of one core."""
    hand_over_ns: float | None = None
    """Host time of taking a finished batch from a DataLoader's worker."""
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """Peak rates by element type, from data sheets."""
    ratios: Mapping[str, Mapping[str, tuple[float, float, float]]] = field(default_factory=dict)
    """Time of an operator in another form over its time as it is: by form ("bfloat16", "float16", "channels_last"),
    then by operator and shapes as `operator_key` has them; the lower quartile, the median and the upper quartile of
    interleaved replays."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Where each figure is from."""
    key: str = ""
    """The machine and the torch that they were measured with; empty where nothing was."""

    def rate(self, name: str, what: str) -> float:
        """A rate that has to be known.

        Raises
        ------
        MissingMachineConstant
            If it is not.
        """
        value = getattr(self, name)
        if value is None:
            raise MissingMachineConstant(f"{what} is not in the trace", name=name)
        return float(value)

    def with_(self, **known: Any) -> Machine:
        """The same with some figures given by the user."""
        return replace(self, **known, source={**self.source, **dict.fromkeys(known, "given")})

    def or_else(self, other: Machine) -> Machine:
        """These figures, and another machine's where this one has none: of rates and ratios each by itself."""
        mine = {name: value for name in _NAMES if (value := getattr(self, name))}
        mine["flops_per_s"] = {**other.flops_per_s, **self.flops_per_s}
        forms = dict.fromkeys((*other.ratios, *self.ratios))
        mine["ratios"] = {form: {**other.ratios.get(form, {}), **self.ratios.get(form, {})} for form in forms}
        return replace(other, **mine, source={**other.source, **self.source})

    @classmethod
    def load(cls, path: Path) -> Machine:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file does not hold a machine's figures; the message is one line.
        """
        try:
            data = orjson.loads(path.read_bytes())
            unknown = sorted(data.keys() - {each.name for each in fields(cls)}) if isinstance(data, dict) else []
            if unknown:
                raise ValueError(f"there is no figure {unknown[0]!r}")
            return msgspec.convert(data, cls)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
        except (msgspec.ValidationError, ValueError) as error:
            raise ValueError(f"{path} does not hold the figures of a machine: {error}") from error

    def save(self, path: Path) -> None:
        """Write the figures as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(self, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")


_NAMES = tuple(each.name for each in fields(Machine) if each.name not in ("source", "key"))


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
    devices = trace.metadata.get("deviceProperties")
    device: Mapping[str, Any] = (
        next((each for each in devices if isinstance(each, dict)), {}) if isinstance(devices, list) else {}
    )
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
