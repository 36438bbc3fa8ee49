"""What NVML and AMD SMI say of GPUs between turns; stand-ins answer here."""

import importlib.util
import json
import os
from types import SimpleNamespace

import pytest
from stand_in.stand_in_gpu import FOLDERS

from pytest_perfdl.machine import device_state
from pytest_perfdl.machine.device_state import AmdSmi, DeviceUse, DeviceUses, DeviceWatch
from unit.machine.test_visible_devices import BUSES, machine

SECOND = 10**9


def stand_in(name):
    """A module of the stand-ins that are not installed here."""
    spec = importlib.util.spec_from_file_location(name, FOLDERS[1] / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pynvml, amdsmi = stand_in("pynvml"), stand_in("amdsmi")


class Nvml:
    """Answers for one device, all at once or one by one refused."""

    NVMLError = pynvml.NVMLError
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
    NVML_TEMPERATURE_GPU, NVML_VOLATILE_ECC = 0, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1

    def __init__(
        self,
        *,
        violations=(0, 0),
        reasons=0,
        pids=(),
        clients=None,
        mig=None,
        older=False,
        celsius=None,
        watts=None,
        errors=None,
    ):
        self.violations, self.pids, self.clients, self.mig = violations, pids, clients, mig
        self.celsius, self.watts, self.errors = celsius, watts, errors
        name = "nvmlDeviceGetCurrentClocks" + ("ThrottleReasons" if older else "EventReasons")
        setattr(self, name, lambda _: reasons)

    def nvmlDeviceGetViolationStatus(self, handle, policy):  # noqa: N802
        return SimpleNamespace(violationTime=self.violations[policy])

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self._told(self.clients)]

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


class Smi:
    """Answers as AMD SMI does, for one device; a refused question raises."""

    AmdSmiException = amdsmi.AmdSmiException
    AmdSmiTemperatureType, AmdSmiTemperatureMetric = amdsmi.AmdSmiTemperatureType, amdsmi.AmdSmiTemperatureMetric

    def __init__(self, *, metrics=None, processes=(), celsius=None, power=None, ecc=None):
        self.metrics, self.processes = metrics, processes
        self.celsius, self.power, self.ecc = celsius, power, ecc

    def amdsmi_get_gpu_metrics_info(self, gpu):
        return self._told(self.metrics)

    def amdsmi_get_gpu_process_list(self, gpu):
        return self._told(self.processes)

    def amdsmi_get_temp_metric(self, gpu, sensor, metric):
        assert (sensor, metric) == (self.AmdSmiTemperatureType.JUNCTION, self.AmdSmiTemperatureMetric.CURRENT)
        return self._told(self.celsius)

    def amdsmi_get_power_info(self, gpu):
        return self._told(self.power)

    def amdsmi_get_gpu_total_ecc_count(self, gpu):
        return self._told(self.ecc)

    def _told(self, value):
        if value is None:
            raise self.AmdSmiException
        return value


def counters(end, **counted):
    """Counters of AMD's firmware."""
    return dict.fromkeys(device_state.RESIDENCIES.values(), 0) | {"accumulation_counter": end} | counted


def used(before, after, own=1, seconds=2, monkeypatch=None, root=None):
    now = iter((0, seconds * SECOND))
    monkeypatch.setattr(device_state.clocks, "perf_counter_ns", lambda: next(now))
    drivers = [AmdSmi(each) if isinstance(each, Smi) else device_state.Nvml(each) for each in (before, after)]
    first, last = (DeviceWatch(driver, {"0000:17:00.0": 0}, *([root] if root else ())) for driver in drivers)
    return last.use(first.read(), last.read(), own)


def run(folder, *processes):
    """Write what the system says of processes: (id, name, parent)."""
    for pid, name, parent in ((os.getpid(), "pytest", 1), *processes):
        of = folder / f"proc/{pid}"
        of.mkdir(parents=True)
        (of / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {' 0' * 40}")


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
    run(tmp_path, (12, "worker", os.getpid()), (4711, "shell", 1))
    nvml = Nvml(pids=(12, 4711), mig=mig)
    assert used(Nvml(), nvml, monkeypatch=monkeypatch, root=tmp_path).others == others


@pytest.mark.parametrize("pids, others", [((900,), ()), ((900, 901, 902), ("process 902 of the host",))])
def test_where_the_driver_counts_in_the_hosts_ids_the_number_of_processes_tells(monkeypatch, tmp_path, pids, others):
    # Two of ours, of which the driver knows other ids.
    assert used(Nvml(), Nvml(pids=pids), own=2, monkeypatch=monkeypatch, root=tmp_path).others == others


MPS = (4, "nvidia-cuda-mps", 1)
"""The server, whose name the system cuts."""


@pytest.mark.parametrize(
    "clients, others",
    [((12,), ()), ((12, 13, 4711), ("shell (4711)",))],
    ids=["ours", "one of others"],
)
def test_the_server_of_mps_is_no_process_of_others_and_other_clients_are(monkeypatch, tmp_path, clients, others):
    run(tmp_path, (12, "worker", os.getpid()), (13, "worker", os.getpid()), (4711, "shell", 1), MPS)
    found = used(Nvml(), Nvml(pids=(4,), clients=clients), monkeypatch=monkeypatch, root=tmp_path)
    assert (found.others, found.has_clients) == (others, True)


@pytest.mark.parametrize("clients, others", [((901, 902), ()), ((901, 902, 903), ("process 903 of the host",))])
def test_in_the_hosts_ids_the_server_of_mps_is_one_process_more(monkeypatch, tmp_path, clients, others):
    nvml = Nvml(pids=(900,), clients=clients)
    assert used(Nvml(), nvml, own=2, monkeypatch=monkeypatch, root=tmp_path).others == others


def test_without_mps_there_are_no_clients(monkeypatch):
    assert not used(Nvml(), Nvml(pids=(4,), clients=()), monkeypatch=monkeypatch).has_clients


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
    monkeypatch.setattr(device_state, "import_module", {"pynvml": pynvml, "amdsmi": amdsmi}.__getitem__)
    assert DeviceWatch.of({}, tmp_path) is None
    for vendor, celsius in (("NVIDIA", 61), ("AMD", 62)):
        monkeypatch.setenv("STAND_IN_GPU", json.dumps({"vendor": vendor, "celsius": celsius}))
        assert set(DeviceWatch.of({}, tmp_path).read().celsius.values()) == {celsius}
    monkeypatch.setenv("STAND_IN_GPU", json.dumps({"cards": []}))
    assert DeviceWatch.of({}, tmp_path) is None

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
DRAWING = DeviceUse(SECOND, {"temperature": 0, "the power limit": SECOND * 9 // 10})
SHARED = DeviceUse(SECOND, others=("python (12)",))


@pytest.mark.parametrize(
    "one, other, why",
    [
        (IDLE, IDLE, ""),
        (HOT, IDLE, ""),
        (HOT, HOT, "the clock of the GPU was reduced on both sides by the power limit, temperature"),
        (DRAWING, DRAWING, ""),
        (DRAWING, HOT, "the clock of the GPU was reduced on both sides by the power limit, temperature"),
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


def test_counters_of_amd_are_shares_of_the_time_that_was_counted(monkeypatch):
    before = Smi(metrics=counters(1000, ppt_residency_acc=700, socket_thm_residency_acc=100, vr_thm_residency_acc=9))
    after = Smi(metrics=counters(3000, ppt_residency_acc=701, socket_thm_residency_acc=600, vr_thm_residency_acc="N/A"))
    found = used(before, after, seconds=4, monkeypatch=monkeypatch)
    assert found.reduced_ns == {
        "the power limit": 2 * SECOND // 1000,
        "temperature": SECOND,
        "temperature of the memory": 0,
        "the board's limit": 0,
    }
    assert (found.reduced, found.throttled_by) == (0.25, ("temperature",))


def test_a_counter_of_amd_that_shows_the_time_itself_is_none(monkeypatch):
    before, after = (Smi(metrics=counters(end, ppt_residency_acc=end, hbm_thm_residency_acc=end)) for end in (5, 99))
    found = used(before, after, monkeypatch=monkeypatch)
    assert sorted(found.reduced_ns) == ["temperature", "temperature of voltage regulators", "the board's limit"]
    assert found.throttled_by == ()


def test_a_counter_of_amd_that_did_not_go_on_says_nothing(monkeypatch):
    same = Smi(metrics=counters(5, ppt_residency_acc=1))
    assert used(same, same, monkeypatch=monkeypatch).reduced == 0.0


def test_processes_on_other_gpus_of_amd_are_not_on_this_one(monkeypatch, tmp_path):
    run(tmp_path, (12, "worker", os.getpid()), (4711, "shell", 1), (4712, "other", 1))
    listed = [{"pid": pid, "memory_usage": {"vram_mem": size}} for pid, size in ((12, 5), (4711, 2**20), (4712, 0))]
    found = used(Smi(), Smi(processes=listed), monkeypatch=monkeypatch, root=tmp_path)
    assert (found.others, found.has_clients) == (("shell (4711)",), False)


@pytest.mark.parametrize(
    "told, sensed, errors",
    [
        ({}, "", 0),
        ({"celsius": 61}, "61 °C", 0),
        ({"power": {"current_socket_power": 310, "average_socket_power": "N/A"}}, "310 W", 0),
        ({"power": {"current_socket_power": "N/A", "average_socket_power": 90}}, "90 W", 0),
        ({"power": {"current_socket_power": "N/A", "average_socket_power": "N/A"}}, "", 0),
        ({"celsius": 71, "ecc": {"correctable_count": 5, "uncorrectable_count": 2}}, "71 °C", 6),
    ],
    ids=["nothing", "temperature", "power of MI300", "power of older models", "no power", "memory errors"],
)
def test_sensors_of_amd(monkeypatch, told, sensed, errors):
    found = used(Smi(ecc={"correctable_count": 1, "uncorrectable_count": 0}), Smi(**told), monkeypatch=monkeypatch)
    assert (found.sensed, found.memory_errors) == (sensed, errors)


def test_what_amd_smi_answers_in_another_form_is_not_said(monkeypatch):
    older = Smi(metrics={}, processes=[object()], celsius="N/A", power={}, ecc={})
    assert used(older, older, monkeypatch=monkeypatch) == DeviceUse(2 * SECOND)


@pytest.mark.parametrize(
    "environment, chosen",
    [
        ({}, "abc"),
        ({"HIP_VISIBLE_DEVICES": "0, 2"}, "bc"),
        ({"ROCR_VISIBLE_DEVICES": "1"}, "a"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "a"),
        ({"HIP_VISIBLE_DEVICES": "GPU-4f"}, "abc"),
        ({"HIP_VISIBLE_DEVICES": "0,7"}, "abc"),
        ({"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"}, "abc"),
    ],
    ids=["all", "HIP", "ROCr", "CUDA's name", "an id", "a number without a GPU", "a choice of a choice"],
)
def test_amd_gpus_are_those_that_the_run_may_use(environment, chosen):
    hip_ids = {"a": 1, "b": 2, "c": 0}
    smi = SimpleNamespace(
        AmdSmiException=amdsmi.AmdSmiException,
        amdsmi_get_processor_handles=lambda: list("ABC"),
        amdsmi_get_gpu_device_bdf=str.lower,
        amdsmi_get_gpu_enumeration_info=lambda gpu: {"hip_id": hip_ids[gpu.lower()]},
    )
    assert "".join(AmdSmi(smi).gpus(environment, None)) == chosen
    # Older versions do not tell the numbers of HIP.
    del smi.amdsmi_get_gpu_enumeration_info
    assert list(AmdSmi(smi).gpus({"HIP_VISIBLE_DEVICES": "0"}, None).items()) == [("a", "A")]
