"""What the package relies on of `torch.cuda`: the same tests on the stand-in and, where there is one, on a device."""

import inspect
import json

import pytest
import torch
from stand_in import stand_in_gpu
from torch.profiler import ProfilerActivity

MIB = 2**20


def events(cuda, count):
    return [cuda.torch.Event(enable_timing=True) for _ in range(count)]


def parameters(function):
    return [(each.name, each.kind) for each in inspect.signature(function).parameters.values() if each.name != "self"]


@pytest.mark.parametrize("name", [name for name in stand_in_gpu.CALLS if name != "Event"])
def test_the_stand_in_has_the_signature_that_torch_has(name):
    gpu = stand_in_gpu.Gpu(stand_in_gpu.Setup(), stand_in_gpu.ManualClock())
    assert parameters(stand_in_gpu.cuda_names(gpu)[name]) == parameters(getattr(torch.cuda, name))


def test_its_events_have_the_signatures_that_torch_has():
    gpu = stand_in_gpu.Gpu(stand_in_gpu.Setup(), stand_in_gpu.ManualClock())
    event = stand_in_gpu.cuda_names(gpu)["Event"]
    assert parameters(event.__init__) == [each for each in parameters(torch.cuda.Event.__new__) if each[0] != "cls"]
    for name in ("record", "wait", "query", "synchronize", "elapsed_time"):
        assert parameters(getattr(event, name)) == parameters(getattr(torch.cuda.Event, name)), name


def test_a_launch_returns_before_its_work_ends(cuda):
    (event,) = events(cuda, 1)
    cuda.work(20)
    event.record()
    assert not event.query()
    cuda.torch.synchronize()
    assert event.query()


def test_events_tell_milliseconds_of_the_stream(cuda):
    first, last = events(cuda, 2)
    first.record()
    cuda.work(20)
    last.record()
    cuda.torch.synchronize()
    assert 15 < first.elapsed_time(last) < 30


def test_events_that_have_not_come_or_have_no_time_are_refused(cuda):
    first, last = events(cuda, 2)
    with pytest.raises(RuntimeError, match="recorded"):
        first.elapsed_time(last)
    first.record()
    cuda.work(50)
    last.record()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(last)
    cuda.torch.synchronize()
    plain = cuda.torch.Event()
    plain.record()
    cuda.torch.synchronize()
    with pytest.raises(RuntimeError):
        first.elapsed_time(plain)


def test_an_event_belongs_to_the_current_stream(cuda):
    side, on_side, on_current = cuda.torch.Stream(), *events(cuda, 2)
    with cuda.torch.stream(side):
        cuda.work(50)
        on_side.record()
    on_current.record()
    on_current.synchronize()
    assert not on_side.query()
    cuda.torch.current_stream().wait_stream(side)
    joined = cuda.torch.Event(enable_timing=True)
    joined.record()
    assert not joined.query()
    cuda.torch.synchronize()
    assert on_side.query()
    assert joined.query()
    assert on_current.elapsed_time(joined) > 30


def test_the_host_waits_for_a_value_and_not_for_a_launch(cuda):
    number = torch.ones(1, device="cuda")
    cuda.torch.synchronize()
    begun = cuda.now()
    cuda.work(40)
    assert cuda.now() - begun < 20e6
    assert number.item() == 1
    assert cuda.now() - begun > 30e6


def test_the_allocator_counts(cuda):
    cuda.torch.synchronize()
    before = cuda.torch.memory_stats()
    cuda.torch.reset_peak_memory_stats()
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    for _ in range(2):
        torch.empty(3 * MIB + 1, dtype=torch.uint8, device="cuda")
    after = cuda.torch.memory_stats()

    def grown(name):
        return after[name] - before[name]

    rounded = 3 * MIB + 512
    assert grown("allocation.all.allocated") == 3
    assert grown("allocated_bytes.all.current") == MIB
    assert grown("allocated_bytes.all.allocated") == MIB + 2 * rounded
    assert after["allocated_bytes.all.peak"] == before["allocated_bytes.all.current"] + MIB + rounded
    assert cuda.torch.memory_reserved() >= after["allocated_bytes.all.current"]
    del kept
    cuda.torch.reset_peak_memory_stats()
    assert cuda.torch.memory_stats()["allocated_bytes.all.peak"] == before["allocated_bytes.all.current"]


def test_too_much_memory_is_refused_and_the_device_stays_usable(cuda):
    size = 2 * cuda.torch.get_device_properties().total_memory
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(size, dtype=torch.uint8, device="cuda")
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_a_device_says_what_it_is(cuda):
    found = cuda.torch.get_device_properties(cuda.torch.current_device())
    assert isinstance(found.name, str)
    assert min(found.multi_processor_count, found.total_memory, found.L2_cache_size) > 0
    assert cuda.torch.is_available()
    assert cuda.torch.is_initialized()
    with pytest.raises(RuntimeError):
        cuda.torch.set_device(cuda.torch.device_count())


def trace(step, path):
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    found = json.loads(path.read_text())
    by_category = {}
    for event in found["traceEvents"]:
        by_category.setdefault(event.get("cat"), []).append(event)
    return found, by_category


def test_every_launch_in_a_trace_has_its_kernel(cuda, tmp_path):
    left, right = (torch.ones(64, 64, device="cuda") for _ in range(2))
    torch.mm(left, right)
    found, by_category = trace(lambda: torch.mm(left, right).sum(), tmp_path / "trace.json")
    calls = {event["args"]["correlation"]: event for event in by_category["cuda_runtime"] if "Launch" in event["name"]}
    kernels = by_category["kernel"]
    assert len(kernels) >= 2
    for kernel in kernels:
        call = calls[kernel["args"]["correlation"]]
        assert kernel["ts"] >= call["ts"]
        assert {"device", "stream"} <= kernel["args"].keys()
    assert found["deviceProperties"][0]["totalGlobalMem"] > 0
    operators = [event for event in by_category["cpu_op"] if event["name"] == "aten::mm"]
    assert len(operators) == 1


def test_a_replayed_graph_is_one_launch_of_all_its_kernels(cuda, tmp_path):
    batch = torch.ones(64, 64, device="cuda")
    side = cuda.torch.Stream()
    with cuda.torch.stream(side):
        torch.mm(batch, batch).relu()
    cuda.torch.current_stream().wait_stream(side)
    graph = cuda.torch.CUDAGraph()
    with cuda.torch.graph(graph):
        torch.mm(batch, batch).relu()
    graph.replay()
    _, by_category = trace(graph.replay, tmp_path / "trace.json")
    (call,) = [event for event in by_category["cuda_runtime"] if "GraphLaunch" in event["name"]]
    kernels = [each for each in by_category["kernel"] if each["args"]["correlation"] == call["args"]["correlation"]]
    assert len(kernels) == len(by_category["kernel"]) >= 2
