"""The device of a process, on the stand-in and on modules of torch that lack some of its names."""

import sys
from types import SimpleNamespace

import pytest
import torch
from stand_in import stand_in_gpu
from stand_in.stand_in_gpu import Card, Setup
from torch.profiler import ProfilerActivity

from pytest_perfdl.measure import device, process_group
from pytest_perfdl.measure.device import Memory, Properties
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import MeasurementPlan

MIB = 2**20


@pytest.fixture
def simulated():
    """Puts a stand-in of some setup into torch; its clock moves only while somebody waits."""
    installed = []

    def put(**setup):
        gpu = stand_in_gpu.Gpu(Setup(jitter=0, **setup), stand_in_gpu.ManualClock())
        installed.append(stand_in_gpu.install(gpu))
        return gpu

    yield put
    for each in installed:
        each.remove()


def backend(monkeypatch, kind, **names):
    """A module of torch for a type of devices that has these names alone."""
    module = SimpleNamespace(**names)
    monkeypatch.setattr(torch, kind, module, raising=False)
    monkeypatch.setitem(sys.modules, f"torch.{kind}", module)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    torch.get_device_module.cache_clear()
    return module


@pytest.fixture(autouse=True)
def forget_modules():
    yield
    torch.get_device_module.cache_clear()
    device._kept.clear()


def test_a_process_without_a_device_uses_none():
    assert device.current() is None
    assert device.available() == ""
    assert device.activity() is None
    device.synchronize()


def test_a_process_that_has_not_imported_torch_uses_none(monkeypatch):
    for name in ("torch", "torch.accelerator"):
        monkeypatch.delitem(sys.modules, name)
    assert device.current() is None


def test_asking_for_the_device_initializes_none(simulated):
    gpu = simulated()
    assert device.current() is None
    assert device.available() == "cuda"
    assert not gpu.initialized


def test_before_torch_2_6_every_type_that_torch_may_be_built_for_is_asked(simulated, monkeypatch):
    simulated()
    monkeypatch.delitem(sys.modules, "torch.accelerator")
    assert device.current() is None
    assert device.available() == "cuda"
    device.initialize("cuda")
    assert device.current().name == "cuda:0"


def test_no_visible_device_is_none(simulated, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    simulated()
    assert device.available() == ""
    with pytest.raises(RuntimeError, match="No CUDA GPUs"):
        device.initialize("cuda")


def test_synchronizing_waits_for_all_streams_of_all_used_devices(simulated):
    gpu = simulated(cards=[Card(), Card(), Card()])
    device.initialize("cuda")
    with torch.cuda.stream(torch.cuda.Stream(1)):
        held = torch.ones(4, device="cuda")
        gpu.launch("elsewhere", 50_000_000)
    with torch.cuda.stream(torch.cuda.Stream()):
        gpu.launch("on another stream", 20_000_000)
    used = device.current()
    assert (used.name, used.used) == ("cuda:0", (0, 1))
    begun = gpu.clock.now()
    used.synchronize()
    assert gpu.clock.now() - begun >= 50_000_000
    assert gpu.clock.now() >= max(gpu.free.values())
    del held


def test_one_used_device_is_waited_for_alone(simulated):
    gpu = simulated(cards=[Card(), Card()])
    device.initialize("cuda")
    device.select("cuda", 3)
    assert (device.current().name, device.current().used) == ("cuda:1", (1,))
    gpu.launch("work", 20_000_000)
    begun = gpu.clock.now()
    device.synchronize()
    assert 20_000_000 <= gpu.clock.now() - begun < 21_000_000


def test_the_time_between_events_is_in_nanoseconds_of_the_stream(simulated):
    gpu = simulated()
    device.initialize("cuda")
    used = device.current()
    assert used.times_events
    gpu.launch("before", 1_000_000)
    first = used.record_event()
    gpu.launch("between", 3_000_000)
    last = used.record_event()
    used.synchronize()
    assert used.elapsed_ns(first, last) == pytest.approx(3_000_000, rel=1e-6)


def test_events_are_of_the_stream_that_is_current(simulated):
    gpu = simulated()
    device.initialize("cuda")
    used = device.current()
    first = used.record_event()
    with torch.cuda.stream(torch.cuda.Stream()):
        gpu.launch("work", 3_000_000)
        last = used.record_event()
    used.synchronize()
    assert used.elapsed_ns(first, last) == pytest.approx(3_000_000, rel=0.01)


def test_events_without_time_are_noticed(simulated):
    simulated(lacks=["timing"])
    device.initialize("cuda")
    assert not device.current().times_events


def test_a_lost_context_is_not_taken_for_events_without_time(simulated):
    gpu = simulated()
    device.initialize("cuda")
    gpu.fault()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        assert device.current().times_events


def test_memory_is_that_of_the_allocator_and_the_peak_begins_anew(simulated):
    simulated()
    device.initialize("cuda")
    used = device.current()
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert used.memory() == Memory(MIB, 4 * MIB, 2, 4 * MIB)
    used.forget_peak()
    assert used.memory() == Memory(MIB, MIB, 2, 4 * MIB)
    del kept


def test_memory_of_several_devices_is_added_up(simulated):
    simulated(cards=[Card(), Card(), Card()])
    device.initialize("cuda")
    kept = [torch.empty((index + 1) * MIB, dtype=torch.uint8, device=f"cuda:{index}") for index in (0, 1)]
    torch.empty(4 * MIB, dtype=torch.uint8, device="cuda:1")
    used = device.current()
    assert used.used == (0, 1)
    assert used.memory() == Memory(3 * MIB, (1 + 6) * MIB, 3, 7 * MIB)
    used.forget_peak()
    assert used.memory() == Memory(3 * MIB, 3 * MIB, 3, 7 * MIB)
    del kept


def test_an_allocator_that_counts_nothing_says_so(monkeypatch):
    # backend:cudaMallocAsync
    stats = {"allocated_bytes.all.current": 7, "allocated_bytes.all.peak": 9, "allocation.all.allocated": 0}
    backend(
        monkeypatch,
        "cuda",
        is_initialized=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 1,
        memory_stats=lambda device: stats,
    )
    assert device.current().memory() == Memory(7, 9)


def test_a_device_is_described(simulated):
    simulated(cards=[Card(), Card("Other GPU", 7, 2**32, 2**20)])
    device.initialize("cuda")
    device.select("cuda", 1)
    assert device.current().properties() == Properties("Other GPU", 2, 7, 2**32, 2**20)


@pytest.mark.parametrize("hip, name", [(None, "cuda"), ("6.2", "hip")])
def test_the_software_below_torch(simulated, monkeypatch, hip, name):
    simulated()
    device.initialize("cuda")
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", None if hip else "12.8")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    found = device.current().versions()
    assert found["device"] == name
    assert found["cuda"] == (hip or "12.8")
    assert found["allocator"] == "expandable_segments:True"
    assert {"cudnn", "driver"} <= found.keys()
    assert device.current().flags().keys() == {"cudnn", "benchmark"}


def test_the_version_of_the_driver(monkeypatch, tmp_path):
    path = tmp_path / "version"
    monkeypatch.setattr(device, "Path", lambda _: path)
    assert device._driver() == ""
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22")
    assert device._driver() == "550.54.14"
    path.write_text("unknown")
    assert device._driver() == ""


def test_what_the_profiler_traces(simulated):
    simulated()
    assert device.activity() is None
    device.initialize("cuda")
    assert device.activity() is ProfilerActivity.CUDA


def test_a_device_that_the_profiler_cannot_trace(simulated):
    simulated(lacks=["tracing"])
    device.initialize("cuda")
    assert device.activity() is None


def test_a_backend_outside_torch_is_traced_as_such(monkeypatch):
    backend(monkeypatch, "privateuseone", is_initialized=lambda: True, current_device=lambda: 0, device_count=lambda: 1)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {ProfilerActivity.PrivateUse1})
    assert device.activity() is ProfilerActivity.PrivateUse1
    assert device.current().flags() == {}
    assert device.current().versions()["device"] == "privateuseone"


class Unsupported:
    """An event as a build of torch has it that is not for this device."""

    def __init__(self, enable_timing=False):
        raise AttributeError("_mps_acquireEvent")


class TestMetal:
    """`torch.mps`, which has few of the names."""

    @pytest.fixture
    def held(self, monkeypatch):
        """Bytes that are allocated."""
        held = [0]
        real = torch.mps
        module = backend(
            monkeypatch,
            "mps",
            is_available=lambda: True,
            device_count=lambda: 1,
            synchronize=lambda: None,
            current_allocated_memory=lambda: held[0],
            Event=Unsupported,
        )
        assert all(hasattr(real, name) for name in vars(module))
        assert not any(hasattr(real, name) for name in ("is_initialized", "init", "memory_stats", "current_device"))
        return held

    def test_it_is_used_once_something_is_there(self, held):
        assert device.available() == "mps"
        assert device.current() is None
        held[0] = 512
        assert device.current().name == "mps:0"
        device.synchronize()

    def test_it_knows_no_peak(self, held):
        held[0] = 512
        device.current().forget_peak()
        assert device.current().memory() == Memory(512)

    def test_it_is_described_by_its_backend(self, held, monkeypatch):
        held[0] = 512
        monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M4", raising=False)
        monkeypatch.setattr(torch.backends.mps, "get_core_count", lambda: 10, raising=False)
        assert device.current().properties() == Properties("Apple M4", 1, 10, None, None)
        monkeypatch.delattr(torch.backends.mps, "get_name")
        monkeypatch.delattr(torch.backends.mps, "get_core_count")
        assert device.current().properties() == Properties("mps", 1, None, None, None)

    def test_it_is_initialized_by_a_tensor_that_stays(self, held, monkeypatch):
        monkeypatch.setattr(torch, "zeros", lambda *size, device: (size, device))
        device.initialize("mps")
        assert device._kept == [((1,), "mps")]

    def test_its_events_are_told_apart_from_none(self, held):
        held[0] = 512
        assert not device.current().times_events


@pytest.mark.parametrize(
    "cards, asked, backend, selected",
    [(0, "", "gloo", None), (2, "", "cpu:gloo,cuda:nccl", 1), (2, "gloo", "gloo", None), (2, "nccl", "nccl", 1)],
)
def test_ranks_take_devices_by_their_numbers(simulated, monkeypatch, cards, asked, backend, selected):
    gpu = simulated(cards=[Card()] * cards)
    if not cards:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    begun = []
    monkeypatch.setattr(
        process_group, "_begin", lambda backend, **_: begun.append(backend or process_group._usual_backend())
    )
    monkeypatch.setattr(process_group, "_Group", lambda seconds: process_group.ONE_PROCESS)
    monkeypatch.setattr(process_group, "_joined", [])
    monkeypatch.setenv("LOCAL_RANK", "3")
    process_group.join(MeasurementPlan(warmup=1, steps=1, ranks=2, backend=asked), 1)
    assert begun == [backend]
    assert (gpu.device if gpu.initialized else None) == selected


def test_ranks_of_nccl_need_its_device():
    with pytest.raises(PerfError, match="needs CUDA, which is not available: use backend='gloo'"):
        process_group.join(MeasurementPlan(warmup=1, steps=1, ranks=2, backend="nccl"), 1)


def test_which_attention_kernels_are_allowed(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "mem_efficient_sdp_enabled", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "math_sdp_enabled", lambda: True)
    assert device.sdpa_kernels() == "mn"


@pytest.mark.parametrize(
    "error, hidden",
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("HIP error: unspecified launch failure"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_frames_of_the_package_are_left_out_of_errors_that_a_device_reports(error, hidden):
    assert device.hides(SimpleNamespace(value=error)) == hidden


def test_switches_are_read_and_written_and_those_of_a_used_device_are_among_them(simulated):
    def states():
        return [read() for read, _ in device.switches()]

    without = states()
    simulated()
    device.initialize("cuda")
    before = states()
    assert before == [*without, torch.is_autocast_enabled("cuda")]
    try:
        for (_, write), state in zip(device.switches(), before, strict=True):
            write(not state)
        assert states() == [not state for state in before]
        assert torch.is_autocast_enabled("cuda") != before[-1]
    finally:
        for (_, write), state in zip(device.switches(), before, strict=True):
            write(state)
    assert states() == before
