"""What a machine can do, as far as utilization and predictions need it: measured, given, or from data sheets.

`baselines/<key>/machine.json` holds what `measure.calibration` measured under a key, for all of its tests and both
sides of a comparison; `perfdl constants` adds what predictions ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import orjson

from pytest_perfdl.machine.peaks import Peaks
from pytest_perfdl.model.errors import MissingMachineConstant
from pytest_perfdl.system.files import write_files

FILE = "machine.json"
"""Its name in the folder of a key."""


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
    """Peak rates by element type: measured, or from data sheets."""
    bandwidths: tuple[tuple[int, float], ...] = ()
    """Working sets in bytes, ascending, and the bytes a second that an operator of that size reads and writes."""
    cache_bytes: int | None = None
    """Size of the last-level cache."""
    event_ns: float | None = None
    """What the profiler adds to the time of an operator, shapes recorded."""
    ratios: Mapping[str, Mapping[str, tuple[float, float, float]]] = field(default_factory=dict)
    """Time of an operator in another form over its time as it is: by form ("bfloat16", "float16", "channels_last"),
    then by operator and shapes as `operator_key` has them; the lower quartile, the median and the upper quartile of
    interleaved replays."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Of what was measured: half the distance between the quartiles of the repeats, over their median. By element type,
    and by working set in bytes."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Where each figure is from."""
    key: str = ""
    """The machine and the torch that they were measured with; empty where nothing was."""
    date: str = ""
    """Day on which peaks were measured, as 2026-11-23; empty where they were not."""

    @property
    def peaks(self) -> Peaks | None:
        """What was measured as the peaks of a roofline; `None` where it was not."""
        if not self.bandwidths or not self.flops_per_s:
            return None
        source = f"measured {self.date}"
        return Peaks(self.flops_per_s, self.bandwidths[-1][1], source, self.bandwidths, self.cache_bytes)

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
        return replace(other, **mine, source={**other.source, **self.source}, key=self.key or other.key)

    def without_limits(self) -> Machine:
        """The same without what `measure.calibration` measures."""
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
        """Write the figures as JSON, complete or not at all: what is known, names sorted, rates in four digits.

        Raises
        ------
        OSError
        """
        known = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) not in _UNKNOWN}
        data = orjson.dumps(_rounded(known), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files({path: data})


_NAMES = tuple(each.name for each in fields(Machine) if each.name not in ("source", "key"))
_UNKNOWN: tuple[object, ...] = (None, "", (), {}, 0.0)


def _rounded(value: Any) -> Any:
    """Figures as far as they can be trusted, so that the file says no more than was measured."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
