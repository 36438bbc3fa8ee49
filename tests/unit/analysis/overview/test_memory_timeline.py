"""Memory over time and what was alive at its peak, added up by hand."""

import numpy as np
import pytest

from pytest_perfdl.analysis.overview.memory_timeline import BEFORE, NO_OPERATOR, UNRECORDED, Alive, memory_timeline
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, memory, step, trace, x


class _Allocator:
    """Memory events of one device with the allocator's own totals."""

    def __init__(self, base=0, device_type=1, device_id=0):
        self.total, self.device = base, (device_type, device_id)

    def __call__(self, ts, size, address, reserved=9999, tid=None):
        self.total += size
        totals = {"Total Allocated": self.total, "Total Reserved": reserved}
        event = memory(ts, size, *self.device, Addr=address, **totals)
        return event if tid is None else {**event, "tid": tid}


def _one(*events):
    (timeline,) = memory_timeline(trace(*events))
    return timeline


def test_columns_peaks_and_what_was_alive_by_hand():
    gpu = _Allocator(base=1000)
    timeline = _one(
        x("aten::linear", 0, 20),
        x("aten::addmm", 2, 10),
        gpu(1, 50, 1, reserved=2000),
        gpu(3, 200, 2, reserved=2500),
        gpu(4, 100, 3, reserved=2400),
        gpu(5, -200, 2),
        gpu(13, 300, 4, reserved=2450),
        gpu(25, 7, 5),
        gpu(30, -300, 4),
    )
    assert (timeline.device, timeline.device_type, timeline.device_id) == ("cuda:0", 1, 0)
    assert timeline.time_ns.tolist() == [1000, 3000, 4000, 5000, 13000, 25000, 30000]
    assert timeline.allocated.tolist() == [1050, 1250, 1350, 1150, 1450, 1457, 1157]
    assert timeline.base_bytes == 1000
    assert (timeline.peak_allocated_bytes, timeline.peak_allocated_at_ns) == (1457, 25_000)
    assert timeline.peak_reserved_bytes == 9999
    assert timeline.reserved is not None
    assert timeline.reserved.tolist() == [2000, 2500, 2400, 9999, 2450, 9999, 9999]
    assert timeline.alive_at_peak == (
        Alive(BEFORE, "", 1000, 0),
        Alive("aten::linear", "", 350, 2),
        Alive("aten::addmm", "", 100, 1),
        Alive(NO_OPERATOR, "", 7, 1),
    )


def test_freeing_what_was_there_before_makes_room():
    gpu = _Allocator(base=1000)
    timeline = _one(gpu(1, -400, 77), gpu(2, 500, 2), gpu(3, -500, 2))
    assert timeline.base_bytes == 1000
    assert timeline.peak_allocated_bytes == 1100
    assert timeline.alive_at_peak == (Alive(BEFORE, "", 600, 0), Alive(NO_OPERATOR, "", 500, 1))


def test_the_base_may_be_the_peak():
    gpu = _Allocator(base=1000)
    timeline = _one(gpu(5, -400, 77), gpu(6, 300, 2))
    assert (timeline.peak_allocated_bytes, timeline.peak_allocated_at_ns) == (1000, 5_000)
    assert timeline.alive_at_peak == (Alive(BEFORE, "", 1000, 0),)


def test_an_address_is_used_again_and_again():
    gpu = _Allocator()
    timeline = _one(
        x("first", 0, 5), x("second", 5, 5), gpu(1, 10, 1), gpu(2, -10, 1), gpu(6, 20, 1), gpu(7, 5, 2), gpu(9, -20, 1)
    )
    assert timeline.alive_at_peak == (Alive("second", "", 25, 2),)


def test_a_free_ends_the_latest_allocation_of_its_address():
    gpu = _Allocator()
    events = [x("first", 0, 5), x("second", 5, 5), gpu(1, 10, 1), gpu(6, 10, 1), gpu(7, -10, 1), gpu(20, 30, 3)]
    assert _one(*events).alive_at_peak == (Alive(NO_OPERATOR, "", 30, 1), Alive("first", "", 10, 1))


def test_an_operator_holds_its_start_and_not_its_end():
    gpu = _Allocator()
    timeline = _one(x("op", 5, 5), gpu(4, 1, 1), gpu(5, 20, 2), gpu(10, 3, 3))
    assert timeline.alive_at_peak == (Alive("op", "", 20, 1), Alive(NO_OPERATOR, "", 4, 2))


def test_threads_and_devices_are_kept_apart():
    gpu, other, cpu = _Allocator(), _Allocator(device_id=1), _Allocator(device_type=0, device_id=-1)
    found = trace(
        x("main", 0, 10),
        x("engine", 0, 10, tid=9),
        gpu(1, 10, 1),
        gpu(2, 20, 2, tid=9),
        other(3, -5, 1),
        cpu(4, 8, 1),
    )
    timelines = {timeline.device: timeline for timeline in memory_timeline(found)}
    assert list(timelines) == ["cpu", "cuda:0", "cuda:1"]
    assert timelines["cuda:0"].alive_at_peak == (Alive("engine", "", 20, 1), Alive("main", "", 10, 1))
    assert timelines["cpu"].alive_at_peak == (Alive("main", "", 8, 1),)
    assert timelines["cuda:1"].alive_at_peak == ()


def test_modules():
    gpu = _Allocator()
    found = trace(
        *(x(f"perfdl.module: Net.{name}", ts, 5, "user_annotation") for name, ts in (("b", 0), ("a", 5))),
        *(x("aten::mm", ts, 5) for ts in (0, 5, 10)),
        *(gpu(at, 10, at) for at in (1, 6, 11)),
    )
    (timeline,) = memory_timeline(found)
    assert timeline.alive_at_peak == (
        Alive("aten::mm", "", 10, 1),
        Alive("aten::mm", "Net.a", 10, 1),
        Alive("aten::mm", "Net.b", 10, 1),
    )


def test_what_the_events_do_not_explain_is_said():
    lost = memory(2, 10, 1, 0, Addr=2, **{"Total Allocated": 500, "Total Reserved": 600})
    timeline = _one(_Allocator(base=100)(1, 10, 1), lost)
    assert timeline.alive_at_peak == (
        Alive(UNRECORDED, "", 380, 0),
        Alive(BEFORE, "", 100, 0),
        Alive(NO_OPERATOR, "", 20, 2),
    )
    assert sum(alive.bytes for alive in timeline.alive_at_peak) == timeline.peak_allocated_bytes == 500


def test_sizes_only_as_in_2021():
    timeline = _one(memory(1, 100, 1, 0), memory(2, 50, 1, 0), memory(3, -100, 1, 0))
    assert timeline.allocated.tolist() == [100, 150, 50]
    assert (timeline.peak_allocated_bytes, timeline.peak_allocated_at_ns) == (150, 2_000)
    assert timeline.base_bytes is timeline.reserved is timeline.peak_reserved_bytes is None
    assert timeline.alive_at_peak == ()
    assert _one(memory(1, -100, 1, 0)).peak_allocated_bytes == 0


def test_names_of_devices():
    found = trace(*(memory(1, 1, kind, at) for kind, at in ((0, -1), (6, 2), (12, 0), (19, 1), (99, 3))))
    assert [timeline.device for timeline in memory_timeline(found)] == ["cpu", "hip:2", "xpu:0", "mtia:1", "type99:3"]


def test_no_memory_events():
    assert memory_timeline(trace(step(1, 0, 10))) == ()


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "device"), [("h100_bert_small", "cuda:0"), ("mi300_bert_small", "hip:0")])
def test_real_traces_against_a_replay(name, device):
    found = read(corpus_file(name))
    timelines = {timeline.device: timeline for timeline in memory_timeline(found)}
    assert set(timelines) == {"cpu", device}
    timeline = timelines[device]
    memory_events = found.memory
    own = np.flatnonzero(memory_events.device_type != 0).tolist()
    alive, total, best = {}, timeline.base_bytes, (-1, {}, 0)
    for event in own:
        size, address = int(memory_events.bytes[event]), int(memory_events.address[event])
        total += size
        if size > 0:
            alive[address] = size
        else:
            alive.pop(address, None)
        if total > best[0]:
            best = total, dict(alive), int(memory_events.time[event])
    assert (timeline.peak_allocated_bytes, timeline.peak_allocated_at_ns) == (best[0], best[2])
    assert sum(entry.bytes for entry in timeline.alive_at_peak) == best[0]
    known = [entry for entry in timeline.alive_at_peak if entry.operator != BEFORE]
    assert sum(entry.bytes for entry in known) == sum(best[1].values())
    assert sum(entry.count for entry in known) == len(best[1])
    assert UNRECORDED not in {entry.operator for entry in known}
    assert timeline.peak_reserved_bytes == int(memory_events.reserved[own].max())


@pytest.mark.corpus
def test_peaks_of_a_trace_of_2021():
    timelines = memory_timeline(read(corpus_file("resnet50_workers0")))
    assert {timeline.device: timeline.peak_allocated_bytes for timeline in timelines} == {
        "cpu": 57_803_264,
        "cuda:0": 2_791_636_480,
    }
