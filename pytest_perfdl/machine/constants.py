"""Rates of a machine that utilization and predictions need: measured, given, or from data sheets.

`baselines/<machine ID>/machine.json` has the rates from `measure.calibration`, for all tests with this ID and both
sides of a comparison; `perfdl constants` adds the rates that predictions need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import orjson

from pytest_perfdl.machine.peaks import Peaks
from pytest_perfdl.model.errors import ConstantsError, MissingMachineConstant
from pytest_perfdl.model.untrusted_files import read_bytes
from pytest_perfdl.system.files import write_files

FILE = "machine.json"
"""Name of the file in the directory of a machine ID."""
LIMIT = 2**20
"""Bytes that the file may have."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a machine; `None` if unknown. Bandwidths are in bytes per second."""

    memory_bytes_per_s: float | None = None
    """Memory bandwidth that streaming kernels reach."""
    pinned_bytes_per_s: float | None = None
    """Copies from pinned host memory to the device."""
    pageable_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    """Between ranks, for one all-reduce of `S` bytes on `n` ranks: `B` in 2 (n - 1) / n S / B."""
    network_latency_ns: float = 0.0
    """Latency of one message; a ring all-reduce of n ranks has 2 (n - 1) of them in sequence."""
    memory_bytes: int | None = None
    """Memory of one device."""
    cores: int | None = None
    """CPU cores that DataLoader workers can use."""
    contention: float | None = None
    """Slowdown of a computation when another process computes: 1 on separate cores, up to 2 on two threads of one
    core."""
    hand_over_ns: float | None = None
    """CPU time to receive a finished batch from a DataLoader worker."""
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """Peak rates by element type: measured, or from data sheets."""
    bandwidths: tuple[tuple[int, float], ...] = ()
    """Working-set sizes in bytes, ascending, with the bandwidth of an operator of that size."""
    cache_bytes: int | None = None
    """Size of the last-level cache."""
    event_ns: float | None = None
    """Profiler overhead per operator, with recorded shapes."""
    ratios: Mapping[str, Mapping[str, tuple[float, float, float]]] = field(default_factory=dict)
    """Relative time of an operator in another form: by form ("bfloat16", "float16", "channels_last"), then by operator
    and shapes (`operator_key`); lower quartile, median and upper quartile of interleaved replays."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Relative spread of measured rates: half the interquartile range of the repeats, divided by their median. By
    element type, and by working-set size in bytes."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Origin of the values."""
    key: str = ""
    """Machine ID and torch version of the measured rates; empty if none were measured."""
    date: str = ""
    """Day on which peak rates were measured, as 2026-11-23; empty if they were not."""

    @property
    def peaks(self) -> Peaks | None:
        """Measured peak rates for a roofline; `None` if they were not measured."""
        if not self.bandwidths or not self.flops_per_s:
            return None
        source = f"measured {self.date}"
        return Peaks(self.flops_per_s, self.bandwidths[-1][1], source, self.bandwidths, self.cache_bytes)

    def rate(self, name: str, what: str) -> float:
        """The value of a rate that must be known.

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
        """A copy with values given by the user."""
        return replace(self, **known, source={**self.source, **dict.fromkeys(known, "given")})

    def or_else(self, other: Machine) -> Machine:
        """A copy with another machine's values where this one has none."""
        mine = {name: value for name in _NAMES if (value := getattr(self, name))}
        mine["flops_per_s"] = {**other.flops_per_s, **self.flops_per_s}
        forms = dict.fromkeys((*other.ratios, *self.ratios))
        mine["ratios"] = {form: {**other.ratios.get(form, {}), **self.ratios.get(form, {})} for form in forms}
        return replace(other, **mine, source={**other.source, **self.source}, key=self.key or other.key)

    def without_limits(self) -> Machine:
        """A copy without the rates that `measure.calibration` measures."""
        return replace(
            self,
            memory_bytes_per_s=None,
            flops_per_s={},
            bandwidths=(),
            cache_bytes=None,
            event_ns=None,
            spread={},
            key="",
            date="",
        )

    @classmethod
    def load(cls, path: Path) -> Machine:
        """Read what `save` wrote.

        Raises
        ------
        ConstantsError
            If it is not a machine.json file; the message is one line.
        """
        try:
            data = orjson.loads(read_bytes(path, LIMIT))
            unknown = sorted(data.keys() - {each.name for each in fields(cls)}) if isinstance(data, dict) else []
            if unknown:
                raise ValueError(f"unknown field {unknown[0]!r}")
            return msgspec.convert(data, cls)
        except OSError as error:
            raise ConstantsError(f"{path} cannot be read: {error.strerror}") from error
        except (msgspec.ValidationError, ValueError) as error:
            raise ConstantsError(f"{path} is not a machine.json file: {error}") from error

    def dump(self) -> bytes:
        """The known values as JSON: names sorted, rates with four digits."""
        known = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) not in _UNKNOWN}
        return orjson.dumps(_rounded(known), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"

    def save(self, path: Path) -> None:
        """Write `dump`, atomically.

        Raises
        ------
        OSError
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files({path: self.dump()})


_NAMES = tuple(each.name for each in fields(Machine) if each.name not in ("source", "key"))
_UNKNOWN: tuple[object, ...] = (None, "", (), {}, 0.0)


def _rounded(value: Any) -> Any:
    """Values with four significant digits, the precision of the measurement."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
