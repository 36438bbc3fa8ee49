"""What the driver says of the GPUs of a run while they are measured: clocks, sensors, memory errors, other processes.

The process that runs pytest asks NVML (the package nvidia-ml-py, whose module is pynvml), or AMD SMI (the package
amdsmi, of ROCm), before and after each turn of a side; it opens no device. Where the package or the driver is missing,
nothing is known, and nothing is said.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

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
RESIDENCIES = {
    "the power limit": "ppt_residency_acc",
    "temperature": "socket_thm_residency_acc",
    "temperature of the memory": "hbm_thm_residency_acc",
    "temperature of voltage regulators": "vr_thm_residency_acc",
    "the board's limit": "prochot_residency_acc",
}
"""What reduces the clock -> AMD SMI's counter of how long it did, as part of `accumulation_counter` (from MI300 on).

Flags of the present moment (`indep_throttle_status`) are not read: on some models they are always set."""
REDUCED = 0.02
"""Share of the time of a side's turns with a reduced clock from which on the side is throttled."""
_MIG_ON = 1
_MPS_SERVER = "nvidia-cuda-mps"
"""Name of the processes of CUDA MPS, as far as the system keeps it."""
_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that choose AMD GPUs."""
_Number = TypeVar("_Number", int, float)


DRAWN = frozenset({"the power limit", "power cap"})
"""What reduces the clock because of the power that the step draws: large matrix products run at this limit all the
time (H. He, "Strangely, Matrix Multiplications on GPUs Run Faster When Given Predictable Data", 2024)."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """GPUs at a moment; what the driver does not say is missing."""

    wall_ns: int
    violations: Mapping[tuple[str, str], tuple[int, int]]
    """How long each GPU's clock was reduced since the driver was loaded, and since when that is counted, in a unit of
    the driver's, by address and cause."""
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
    has_clients: bool = False
    """Whether processes are clients of CUDA MPS, which lets kernels of several of them run at the same time."""


@dataclass(slots=True)
class Reading:
    """What a driver says of one GPU; what it does not say stays as it is here."""

    violations: dict[str, tuple[int, int]] = field(default_factory=dict)
    reasons: set[str] = field(default_factory=set)
    processes: set[int] = field(default_factory=set)
    clients: set[int] = field(default_factory=set)
    """Those of the processes that are clients of CUDA MPS."""
    celsius: int | None = None
    watts: float | None = None
    memory_errors: int | None = None


class Driver(Protocol):
    """The library of a vendor's driver, whose errors its methods raise."""

    def gpus(self, environment: Mapping[str, str], root: Path, /) -> Mapping[str, Any]:
        """Handles of the GPUs that processes with this environment may use, by address."""
        ...

    def read(self, gpu: Any, now: int, /) -> Reading:
        """All that it answers; `now` is the present moment in nanoseconds."""
        ...


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
    has_clients: bool = False
    """Whether processes were clients of CUDA MPS."""

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
            any(part.has_clients for part in parts),
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
    def at_power_limit(self) -> bool:
        """Whether the power that the steps draw, and nothing else, reduced the clock on both sides."""
        return all(each.throttled_by and DRAWN.issuperset(each.throttled_by) for each in (self.base, self.head))

    @property
    def withheld(self) -> str:
        """Why the round says nothing, in a few words; empty if it does.

        The rule is the same if the sides are swapped, so that the signs of the rounds that remain are as fair as
        before. A clock that is reduced on one side only may be that side's doing: the round stays. So it does at the
        power limit, where the times of such steps always are.
        """
        if others := tuple(dict.fromkeys((*self.base.others, *self.head.others))):
            return f"other processes used the GPU: {', '.join(others)}"
        causes = dict.fromkeys((*self.base.throttled_by, *self.head.throttled_by))
        if self.base.throttled_by and self.head.throttled_by and not self.at_power_limit:
            return f"the clock of the GPU was reduced on both sides by {', '.join(causes)}"
        return ""


def _highest(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


class DeviceWatch:
    """The GPUs that a run may use, as their driver sees them.

    Parameters
    ----------
    driver
        The library, initialized.
    handles
        Of the GPUs, by address.
    root
        Folder that has `proc`.
    """

    def __init__(self, driver: Driver, handles: Mapping[str, Any], root: Path = proc.ROOT) -> None:
        self._driver = driver
        self._handles = handles
        self._root = root

    @classmethod
    def of(cls, environment: Mapping[str, str], root: Path = proc.ROOT) -> DeviceWatch | None:
        """Those that processes with this environment may use; `None` where no library knows one."""
        for kind in (Nvml, AmdSmi):
            # A module of another kind under this name, or a driver that does not answer.
            with contextlib.suppress(Exception):
                driver: Driver = kind()
                if handles := driver.gpus(environment, root):
                    return cls(driver, handles, root)
        return None

    def read(self) -> DeviceState:
        """The present state, from a dozen questions to the driver for each GPU."""
        now = clocks.perf_counter_ns()
        found = {bus: self._driver.read(handle, now) for bus, handle in self._handles.items()}
        return DeviceState(
            now,
            {(bus, cause): times for bus, each in found.items() for cause, times in each.violations.items()},
            frozenset().union(*(each.reasons for each in found.values())),
            frozenset((bus, pid) for bus, each in found.items() for pid in each.processes),
            {bus: each.celsius for bus, each in found.items() if each.celsius is not None},
            {bus: each.watts for bus, each in found.items() if each.watts is not None},
            {bus: each.memory_errors for bus, each in found.items() if each.memory_errors is not None},
            any(each.clients for each in found.values()),
        )

    def use(self, before: DeviceState, after: DeviceState, own: int) -> DeviceUse:
        """What happened between two moments.

        Parameters
        ----------
        own
            Number of processes of this run that have a device open. Where ids are not those of this container, only
            the number of processes tells whether others are among them.
        """
        wall_ns = after.wall_ns - before.wall_ns
        reduced: dict[str, int] = {}
        for (bus, cause), (now, end) in after.violations.items():
            then, begin = before.violations.get((bus, cause), (now, end))
            share = (now - then) / (end - begin) if end > begin else 0.0
            reduced[cause] = max(reduced.get(cause, 0), round(share * wall_ns))
        return DeviceUse(
            wall_ns,
            reduced,
            before.reasons & after.reasons,
            self._others(after, own),
            _highest([*before.celsius.values(), *after.celsius.values()]),
            _highest([*before.watts.values(), *after.watts.values()]),
            sum(count - before.memory_errors.get(bus, count) for bus, count in after.memory_errors.items()),
            after.has_clients,
        )

    def _others(self, state: DeviceState, own: int) -> tuple[str, ...]:
        ids = sorted({pid for _, pid in state.processes})
        foreign = [pid for pid in ids if not proc.descends(pid, os.getpid(), self._root)]
        if len(foreign) == len(ids) > 0 and own:
            # None of ours has the id that it has here: the driver counts in the host's ids, also the server of MPS.
            return tuple(f"process {pid} of the host" for pid in foreign[own + state.has_clients :])
        named = {pid: self._name(pid) for pid in foreign}
        # What the server of MPS runs is work of its clients.
        return tuple(f"{name} ({pid})" for pid, name in named.items() if name != _MPS_SERVER)

    def _name(self, pid: int) -> str:
        found = proc.process(self._root / f"proc/{pid}")
        return "process" if found is None else found.name


class Nvml:
    """NVIDIA's driver.

    Parameters
    ----------
    nvml
        The module pynvml, initialized; by default that which is installed.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml or import_module("pynvml")
        if nvml is None:
            self._nvml.nvmlInit()

    def gpus(self, environment: Mapping[str, str], root: Path) -> Mapping[str, Any]:
        """Handles of the GPUs that processes with this environment may use, by address."""
        nvml = self._nvml
        buses = visible_gpus(environment, root)
        handles = {bus: nvml.nvmlDeviceGetHandleByPciBusId(bus.encode()) for bus in buses}
        numbers = range(0 if handles else nvml.nvmlDeviceGetCount())
        return handles or {f"GPU {number}": nvml.nvmlDeviceGetHandleByIndex(number) for number in numbers}

    def read(self, gpu: Any, now: int) -> Reading:
        """All that it answers."""
        found, nvml = Reading(), self._nvml
        for cause, policy in POLICIES.items():
            with self._unsupported():
                times = nvml.nvmlDeviceGetViolationStatus(gpu, getattr(nvml, policy))
                found.violations[cause] = int(times.violationTime), now
        with self._unsupported():
            bits = self._bits(gpu)
            found.reasons |= {name for bit, level, name in REASONS if bits & bit and level != "note"}
        if not self._is_partitioned(gpu):
            with self._unsupported():
                found.processes |= {int(each.pid) for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
            with self._unsupported():
                found.clients = {int(each.pid) for each in nvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)}
                found.processes |= found.clients
        with self._unsupported():
            found.celsius = int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
        with self._unsupported():
            found.watts = nvml.nvmlDeviceGetPowerUsage(gpu) / 1000
        for kind in ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"):
            with self._unsupported():
                count = nvml.nvmlDeviceGetTotalEccErrors(gpu, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC)
                found.memory_errors = (found.memory_errors or 0) + int(count)
        return found

    def _bits(self, gpu: Any) -> int:
        """Why the clock is reduced; the function has an older name, too."""
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return int(next(getattr(self._nvml, name) for name in names if hasattr(self._nvml, name))(gpu))

    def _is_partitioned(self, gpu: Any) -> bool:
        """Whether a GPU is divided (MIG): processes on other parts of it are none on this one."""
        mode = None
        with self._unsupported():
            mode = self._nvml.nvmlDeviceGetMigMode(gpu)[0]
        return bool(mode == _MIG_ON)

    def _unsupported(self) -> contextlib.AbstractContextManager[None]:
        """A context that a question ends which this GPU or driver does not answer."""
        return contextlib.suppress(self._nvml.NVMLError, StopIteration, AttributeError)


class AmdSmi:
    """AMD's driver.

    Parameters
    ----------
    amdsmi
        The module, initialized; by default that which is installed.
    """

    def __init__(self, amdsmi: Any = None) -> None:
        self._amdsmi = amdsmi or import_module("amdsmi")
        if amdsmi is None:
            self._amdsmi.amdsmi_init()

    def gpus(self, environment: Mapping[str, str], _root: Path) -> Mapping[str, Any]:
        """Handles of the GPUs that processes with this environment may use, by address.

        All GPUs, unless exactly one variable chooses some, by numbers: those of HIP, where the driver tells them.
        """
        smi = self._amdsmi
        handles = {smi.amdsmi_get_gpu_device_bdf(gpu): gpu for gpu in smi.amdsmi_get_processor_handles()}
        numbers = {bus: number for number, bus in enumerate(handles)}
        with self._unsupported():
            numbers = {bus: int(smi.amdsmi_get_gpu_enumeration_info(gpu)["hip_id"]) for bus, gpu in handles.items()}
        given = [environment[name].split(",") for name in _VISIBLE if name in environment]
        chosen = {each.strip() for each in given[0]} if len(given) == 1 else set()
        if not chosen or not chosen <= {str(number) for number in numbers.values()}:
            return handles
        return {bus: gpu for bus, gpu in handles.items() if str(numbers[bus]) in chosen}

    def read(self, gpu: Any, _now: int) -> Reading:
        """All that it answers."""
        found, smi = Reading(), self._amdsmi
        with self._unsupported():
            # `amdsmi_get_violation_status` has the same counters, and takes 100 ms.
            metrics = smi.amdsmi_get_gpu_metrics_info(gpu)
            end = int(metrics["accumulation_counter"])
            told = {cause: metrics[name] for cause, name in RESIDENCIES.items()}
            # Firmware that does not count them shows the time that has passed, as if the clock had always been reduced.
            found.violations = {cause: (int(each), end) for cause, each in told.items() if each not in (end, "N/A")}
        with self._unsupported():
            # Processes of other GPUs are listed too, without memory here.
            listed = smi.amdsmi_get_gpu_process_list(gpu)
            found.processes = {int(each["pid"]) for each in listed if each["memory_usage"]["vram_mem"]}
        with self._unsupported():
            sensor, present = smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
            found.celsius = int(smi.amdsmi_get_temp_metric(gpu, sensor, present))
        with self._unsupported():
            power = smi.amdsmi_get_power_info(gpu)
            figures = [power.get(name, "N/A") for name in ("current_socket_power", "average_socket_power")]
            found.watts = float(next(each for each in figures if each != "N/A"))
        with self._unsupported():
            counts = smi.amdsmi_get_gpu_total_ecc_count(gpu)
            found.memory_errors = int(counts["correctable_count"]) + int(counts["uncorrectable_count"])
        return found

    def _unsupported(self) -> contextlib.AbstractContextManager[None]:
        """A context that a question ends which this GPU or version does not answer, or not in the form of others."""
        refused = self._amdsmi.AmdSmiException
        return contextlib.suppress(refused, StopIteration, AttributeError, LookupError, TypeError, ValueError)
