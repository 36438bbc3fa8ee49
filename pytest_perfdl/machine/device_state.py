"""What the driver says of the GPUs of a run while they are measured: clocks, sensors, memory errors, other processes.

The process that runs pytest asks NVML (the package nvidia-ml-py, whose module is pynvml) before and after each turn of
a side; it opens no device. Where the package or the driver is missing, nothing is known, and nothing is said.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pytest_perfdl.machine import proc
from pytest_perfdl.machine.findings import Level
from pytest_perfdl.machine.visible_devices import visible_gpus
from pytest_perfdl.system import clocks

REASONS: tuple[tuple[int, Level, str], ...] = (
    (0x08, "bad", "hardware slowdown"),
    (0x40, "bad", "hardware thermal slowdown"),
    (0x80, "bad", "power brake"),
    (0x20, "warn", "thermal slowdown"),
    (0x04, "warn", "power cap"),
    (0x10, "note", "synchronized boost"),
    (0x100, "note", "display clock setting"),
)
"""Bits of NVML's `nvmlClocksEventReason*`; idle (0x1) and application clocks (0x2) are harmless."""
POLICIES = {
    "the power limit": "NVML_PERF_POLICY_POWER",
    "temperature": "NVML_PERF_POLICY_THERMAL",
    "synchronized boost": "NVML_PERF_POLICY_SYNC_BOOST",
    "the board's limit": "NVML_PERF_POLICY_BOARD_LIMIT",
    "reliability": "NVML_PERF_POLICY_RELIABILITY",
}
"""What reduces the clock -> NVML's counter of how long it did (`nvmlDeviceGetViolationStatus`, nanoseconds)."""
REDUCED = 0.02
"""Share of the time of a side's turns with a reduced clock from which on the side is throttled."""
_MIG_ON = 1
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class DeviceState:
    """GPUs at a moment; what the driver does not say is missing."""

    wall_ns: int
    violations_ns: Mapping[tuple[str, str], int]
    """How long each GPU's clock was reduced since the driver was loaded, by address and cause."""
    reasons: frozenset[str]
    """Names of `REASONS` that reduce a clock now, without notes."""
    processes: frozenset[tuple[str, int]]
    """Address of the GPU, and id, of each process that computes there. In a container, ids may be the host's."""
    celsius: Mapping[str, int]
    """Temperature of each GPU, by address."""
    watts: Mapping[str, float]
    """Power that each GPU draws, by address; on many models the mean of the last second."""
    memory_errors: Mapping[str, int]
    """Errors that ECC found in the memory of each GPU since the driver was loaded, by address; most are corrected."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What happened on the GPUs while one side had its turns."""

    wall_ns: int = 0
    reduced_ns: Mapping[str, int] = field(default_factory=dict)
    """How long a clock was reduced, by cause."""
    reasons: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()
    """Processes of others that were there, such as "python (4711)"."""
    celsius: int | None = None
    """The highest temperature before or after a turn; `None` if it is unknown."""
    watts: float | None = None
    """The most power before or after a turn; `None` if it is unknown."""
    memory_errors: int = 0
    """Errors that ECC found."""

    @property
    def sensed(self) -> str:
        """Temperature and power, "71 °C, 310 W"; empty if both are unknown."""
        celsius = "" if self.celsius is None else f"{self.celsius} °C"
        watts = "" if self.watts is None else f"{self.watts:.0f} W"
        return ", ".join(filter(None, (celsius, watts)))

    @property
    def reduced(self) -> float:
        """Share of the time with a reduced clock."""
        return min(1.0, max(self.reduced_ns.values(), default=0) / self.wall_ns) if self.wall_ns else 0.0

    @property
    def throttled_by(self) -> tuple[str, ...]:
        """What reduced the clock for so long that times are affected, longest first; empty if nothing did."""
        by_time = sorted(self.reduced_ns, key=lambda cause: -self.reduced_ns[cause])
        counted = [cause for cause in by_time if self.reduced_ns[cause] > REDUCED * self.wall_ns]
        return tuple(counted or sorted(self.reasons))

    @classmethod
    def joined(cls, parts: Sequence[DeviceUse]) -> DeviceUse:
        """That of several turns together."""
        causes = {cause for part in parts for cause in part.reduced_ns}
        return cls(
            sum(part.wall_ns for part in parts),
            {cause: sum(part.reduced_ns.get(cause, 0) for part in parts) for cause in sorted(causes)},
            frozenset().union(*(part.reasons for part in parts)),
            tuple(dict.fromkeys(other for part in parts for other in part.others)),
            _highest(part.celsius for part in parts),
            _highest(part.watts for part in parts),
            sum(part.memory_errors for part in parts),
        )


@dataclass(frozen=True, slots=True)
class DeviceUses:
    """Both sides of a round, or of several together."""

    base: DeviceUse
    head: DeviceUse

    @classmethod
    def joined(cls, rounds: Sequence[DeviceUses]) -> DeviceUses:
        """That of several rounds together."""
        return cls(DeviceUse.joined([each.base for each in rounds]), DeviceUse.joined([each.head for each in rounds]))

    @property
    def sensed(self) -> str:
        """How warm the GPUs were and what power they drew, in a few words; empty if that is unknown."""
        base, head = self.base.sensed, self.head.sensed
        if base == head:
            return f"GPU at up to {base} on both sides" if base else ""
        return f"GPU at up to {base or '?'} with the baseline code and {head or '?'} with the current code"

    @property
    def withheld(self) -> str:
        """Why the round says nothing, in a few words; empty if it does.

        The rule is the same if the sides are swapped, so that the signs of the rounds that remain are as fair as
        before. A clock that is reduced on one side only may be that side's doing: the round stays.
        """
        if others := tuple(dict.fromkeys((*self.base.others, *self.head.others))):
            return f"other processes used the GPU: {', '.join(others)}"
        if self.base.throttled_by and self.head.throttled_by:
            causes = dict.fromkeys((*self.base.throttled_by, *self.head.throttled_by))
            return f"the clock of the GPU was reduced on both sides by {', '.join(causes)}"
        return ""


def _highest(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


class DeviceWatch:
    """The GPUs that a run may use, as NVML sees them.

    Parameters
    ----------
    nvml
        The module pynvml, initialized.
    handles
        Of the GPUs, by address.
    root
        Folder that has `proc`.
    """

    def __init__(self, nvml: Any, handles: Mapping[str, Any], root: Path = proc.ROOT) -> None:
        self._nvml = nvml
        self._handles = handles
        self._root = root

    @classmethod
    def of(cls, environment: Mapping[str, str], root: Path = proc.ROOT) -> DeviceWatch | None:
        """Those that processes with this environment may use; `None` where NVML is missing or knows none."""
        try:
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            buses = visible_gpus(environment, root)
            handles = {bus: nvml.nvmlDeviceGetHandleByPciBusId(bus.encode()) for bus in buses}
            if not handles:
                numbers = range(nvml.nvmlDeviceGetCount())
                handles = {f"GPU {number}": nvml.nvmlDeviceGetHandleByIndex(number) for number in numbers}
        except Exception:
            # A module of another kind under this name, or a driver that does not answer.
            return None
        return cls(nvml, handles, root) if handles else None

    def read(self) -> DeviceState:
        """The present state, from a dozen questions to the driver for each GPU."""
        violations: dict[tuple[str, str], int] = {}
        reasons: set[str] = set()
        processes: set[tuple[str, int]] = set()
        celsius: dict[str, int] = {}
        watts: dict[str, float] = {}
        errors: dict[str, int] = {}
        nvml = self._nvml
        for bus, handle in self._handles.items():
            for cause, policy in POLICIES.items():
                with self._unsupported():
                    found = self._nvml.nvmlDeviceGetViolationStatus(handle, getattr(self._nvml, policy))
                    violations[bus, cause] = int(found.violationTime)
            with self._unsupported():
                bits = self._bits(handle)
                reasons |= {name for bit, level, name in REASONS if bits & bit and level != "note"}
            with self._unsupported():
                if not self._is_partitioned(handle):
                    running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                    processes |= {(bus, int(each.pid)) for each in running}
            with self._unsupported():
                celsius[bus] = int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            with self._unsupported():
                watts[bus] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            for kind in ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"):
                with self._unsupported():
                    count = nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC)
                    errors[bus] = errors.get(bus, 0) + int(count)
        now = clocks.perf_counter_ns()
        return DeviceState(now, violations, frozenset(reasons), frozenset(processes), celsius, watts, errors)

    def use(self, before: DeviceState, after: DeviceState, own: int) -> DeviceUse:
        """What happened between two moments.

        Parameters
        ----------
        own
            Number of processes of this run that have a device open. Where ids are not those of this container, only
            the number of processes tells whether others are among them.
        """
        reduced: dict[str, int] = {}
        for (bus, cause), now in after.violations_ns.items():
            grown = now - before.violations_ns.get((bus, cause), now)
            reduced[cause] = max(reduced.get(cause, 0), grown)
        return DeviceUse(
            after.wall_ns - before.wall_ns,
            reduced,
            before.reasons & after.reasons,
            self._others(after, own),
            _highest([*before.celsius.values(), *after.celsius.values()]),
            _highest([*before.watts.values(), *after.watts.values()]),
            sum(count - before.memory_errors.get(bus, count) for bus, count in after.memory_errors.items()),
        )

    def _others(self, state: DeviceState, own: int) -> tuple[str, ...]:
        ids = sorted({pid for _, pid in state.processes})
        foreign = [pid for pid in ids if not proc.descends(pid, os.getpid(), self._root)]
        if len(foreign) == len(ids) > 0 and own:
            # None of ours has the id that it has here: the driver counts in the host's ids.
            return tuple(f"process {pid} of the host" for pid in foreign[own:])
        return tuple(f"{self._name(pid)} ({pid})" for pid in foreign)

    def _name(self, pid: int) -> str:
        found = proc.process(self._root / f"proc/{pid}")
        return "process" if found is None else found.name

    def _bits(self, handle: Any) -> int:
        """Why the clock is reduced; the function has an older name, too."""
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return int(next(getattr(self._nvml, name) for name in names if hasattr(self._nvml, name))(handle))

    def _is_partitioned(self, handle: Any) -> bool:
        """Whether a GPU is divided (MIG): processes on other parts of it are none on this one."""
        mode = None
        with self._unsupported():
            mode = self._nvml.nvmlDeviceGetMigMode(handle)[0]
        return bool(mode == _MIG_ON)

    def _unsupported(self) -> contextlib.AbstractContextManager[None]:
        """A context that a question ends which this GPU or driver does not answer."""
        return contextlib.suppress(self._nvml.NVMLError, StopIteration, AttributeError)
