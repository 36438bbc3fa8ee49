"""What NVML says of GPUs between turns; its stand-in answers here."""

import importlib.util
import os
from types import SimpleNamespace

import pytest
from stand_in.stand_in_gpu import FOLDERS

from pytest_perfdl.machine import device_state
from pytest_perfdl.machine.device_state import DeviceUse, DeviceUses, DeviceWatch
from unit.machine.test_visible_devices import BUSES, machine

SECOND = 10**9
SPEC = importlib.util.spec_from_file_location("pynvml", FOLDERS[1] / "pynvml.py")
pynvml = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pynvml)


class Nvml:
    """Answers for one device, all at once or one by one refused."""

    NVMLError = pynvml.NVMLError
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
    NVML_TEMPERATURE_GPU, NVML_VOLATILE_ECC = 0, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1

    def __init__(
        self, *, violations=(0, 0), reasons=0, pids=(), mig=None, older=False, celsius=None, watts=None, errors=None
    ):
        self.violations, self.pids, self.mig = violations, pids, mig
        self.celsius, self.watts, self.errors = celsius, watts, errors
        name = "nvmlDeviceGetCurrentClocks" + ("ThrottleReasons" if older else "EventReasons")
        setattr(self, name, lambda _: reasons)

    def nvmlDeviceGetViolationStatus(self, handle, policy):  # noqa: N802
        return SimpleNamespace(violationTime=self.violations[policy])

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        return [self._told(self.mig)] * 2

    def nvmlDeviceGetTemperature(self, handle, sensor):  # noqa: N802
        return self._told(self.celsius)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return 1000 * self._told(self.watts)

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, since):  # noqa: N802
        return self._told(self.errors)[kind]

    def _told(self, value):
        if value is None:
            raise self.NVMLError
        return value


def used(before, after, own=1, seconds=2, monkeypatch=None, root=None):
    now = iter((0, seconds * SECOND))
    monkeypatch.setattr(device_state.clocks, "perf_counter_ns", lambda: next(now))
    first, last = (DeviceWatch(nvml, {"0000:17:00.0": 0}, *([root] if root else ())) for nvml in (before, after))
    return last.use(first.read(), last.read(), own)


def test_counters_of_violations_are_read_before_and_after(monkeypatch):
    found = used(Nvml(violations=(SECOND, 7 * SECOND)), Nvml(violations=(SECOND, 8 * SECOND)), monkeypatch=monkeypatch)
    assert found.reduced_ns == {"the power limit": 0, "temperature": SECOND}
    assert found.reduced == 0.5
    assert found.throttled_by == ("temperature",)
    assert found.others == ()


def test_a_moment_with_a_reduced_clock_is_none(monkeypatch):
    found = used(Nvml(), Nvml(violations=(SECOND // 100, 0)), monkeypatch=monkeypatch)
    assert found.throttled_by == ()


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    "before, after, causes",
    [
        (0x48, 0x48, ("hardware slowdown", "hardware thermal slowdown")),
        (0x40, 0, ()),  # it has passed
        (0x1, 0x1, ()),  # idle
        (0x10, 0x10, ()),  # a note
    ],
)
def test_reasons_that_stay_reduce_the_clock(monkeypatch, before, after, causes, older):
    found = used(Nvml(reasons=before, older=older), Nvml(reasons=after, older=older), monkeypatch=monkeypatch)
    assert found.throttled_by == causes


@pytest.mark.parametrize(
    "mig, others", [(None, ("shell (4711)",)), (0, ("shell (4711)",)), (1, ())], ids=["no MIG", "MIG off", "MIG on"]
)
def test_processes_of_others_are_named(monkeypatch, tmp_path, mig, others):
    for pid, name, parent in ((os.getpid(), "pytest", 1), (12, "worker", os.getpid()), (4711, "shell", 1)):
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {' 0' * 40}")
    nvml = Nvml(pids=(12, 4711), mig=mig)
    assert used(Nvml(), nvml, monkeypatch=monkeypatch, root=tmp_path).others == others


@pytest.mark.parametrize("pids, others", [((900,), ()), ((900, 901, 902), ("process 902 of the host",))])
def test_where_the_driver_counts_in_the_hosts_ids_the_number_of_processes_tells(monkeypatch, tmp_path, pids, others):
    # Two of ours, of which the driver knows other ids.
    assert used(Nvml(), Nvml(pids=pids), own=2, monkeypatch=monkeypatch, root=tmp_path).others == others


def test_what_a_driver_does_not_tell_is_not_said(monkeypatch):
    class Silent(Nvml):
        def nvmlDeviceGetViolationStatus(self, handle, policy):  # noqa: N802
            raise self.NVMLError

        def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
            raise self.NVMLError

    silent = Silent()
    del silent.nvmlDeviceGetCurrentClocksEventReasons
    found = used(silent, silent, monkeypatch=monkeypatch)
    assert (found.reduced, found.throttled_by, found.others) == (0.0, (), ())


def test_the_gpus_are_those_that_the_run_may_use(monkeypatch, tmp_path):
    asked = []
    nvml = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetHandleByPciBusId=lambda bus: asked.append(bus) or len(asked)
    )
    monkeypatch.setattr(device_state, "import_module", lambda name: {"pynvml": nvml}[name])
    assert DeviceWatch.of({"CUDA_VISIBLE_DEVICES": "0,2"}, machine(tmp_path)) is not None
    assert asked == [BUSES[0].encode(), BUSES[2].encode()]


def test_without_nvml_or_a_driver_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.delenv("STAND_IN_GPU", raising=False)
    monkeypatch.setattr(device_state, "import_module", lambda _: pynvml)
    assert DeviceWatch.of({}, tmp_path) is None
    monkeypatch.setenv("STAND_IN_GPU", "{}")
    assert DeviceWatch.of({}, tmp_path) is not None

    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(device_state, "import_module", missing)
    assert DeviceWatch.of({}, tmp_path) is None


@pytest.mark.parametrize(
    "before, after, sensed, errors",
    [
        (Nvml(), Nvml(), "", 0),
        (Nvml(celsius=61), Nvml(celsius=60), "61 °C", 0),
        (Nvml(watts=119.5), Nvml(watts=310.2), "310 W", 0),
        (Nvml(celsius=60, watts=300, errors=(5, 1)), Nvml(celsius=71, watts=299, errors=(7, 2)), "71 °C, 300 W", 3),
    ],
    ids=["nothing", "temperature", "power", "all"],
)
def test_sensors_and_memory_errors_are_read_before_and_after(monkeypatch, before, after, sensed, errors):
    found = used(before, after, monkeypatch=monkeypatch)
    assert (found.sensed, found.memory_errors) == (sensed, errors)


WARM, WARMER = DeviceUse(SECOND, celsius=60, watts=200.0, memory_errors=1), DeviceUse(SECOND, celsius=55, watts=210.0)


def test_the_highest_figures_of_turns_and_rounds_are_shown():
    both = DeviceUse.joined([WARM, WARMER, DeviceUse(SECOND)])
    assert (both.sensed, both.memory_errors) == ("60 °C, 210 W", 1)
    one, other = DeviceUses(WARM, WARMER), DeviceUses(WARMER, WARMER)
    assert DeviceUses.joined([]).sensed == ""
    assert DeviceUses.joined([other, other]).sensed == "GPU at up to 55 °C, 210 W on both sides"
    assert DeviceUses.joined([one, other]).sensed == (
        "GPU at up to 60 °C, 210 W with the baseline code and 55 °C, 210 W with the current code"
    )


IDLE = DeviceUse(SECOND)
HOT = DeviceUse(SECOND, {"temperature": SECOND // 3, "the power limit": SECOND // 2})
SHARED = DeviceUse(SECOND, others=("python (12)",))


@pytest.mark.parametrize(
    "one, other, why",
    [
        (IDLE, IDLE, ""),
        (HOT, IDLE, ""),
        (HOT, HOT, "the clock of the GPU was reduced on both sides by the power limit, temperature"),
        (SHARED, IDLE, "other processes used the GPU: python (12)"),
        (SHARED, HOT, "other processes used the GPU: python (12)"),
    ],
)
def test_a_round_is_withheld_by_a_rule_that_is_the_same_if_the_sides_are_swapped(one, other, why):
    assert DeviceUses(one, other).withheld == DeviceUses(other, one).withheld == why


def test_turns_are_joined():
    assert DeviceUse.joined([HOT, IDLE, SHARED]) == DeviceUse(
        3 * SECOND, {"temperature": SECOND // 3, "the power limit": SECOND // 2}, frozenset(), ("python (12)",)
    )
    assert DeviceUse.joined([]).reduced == 0.0
