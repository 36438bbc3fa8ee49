"""The memory of a step, recorded by another run of it, told on the exemplar's clock."""

import gzip
import json

import pytest

from pytest_perfdl.analysis.overview.memory_timeline import memory_timeline
from pytest_perfdl.trace import exemplar, loads, with_memory
from unit.trace.chrome import MAIN, memory, step, trace, x
from unit.trace.test_exemplar import EVENTS, _cut

BACKWARD = 333
"""The thread of autograd's engine."""


def ran(at, scale=1, extra=()):
    """A step of 100 us, or `scale` times as much: one operator with another inside, then one on another thread."""
    return [
        step(3, at, 100 * scale),
        x("aten::linear", at + 10 * scale, 40 * scale),
        x("aten::addmm", at + 20 * scale, 20 * scale),
        x("MmBackward0", at + 60 * scale, 20 * scale, tid=BACKWARD),
        *extra,
    ]


def picture(*extra):
    data = exemplar(trace(*ran(1000, extra=extra)), 0)
    assert data is not None
    return data


def allocated(ts, size, address, total, tid=MAIN, device=(0, -1)):
    return {**memory(ts, size, *device, **{"Addr": address, "Total Allocated": total, "Total Reserved": 0}), "tid": tid}


def recorded(*events, scale=3):
    """The same step, three times as long, with memory."""
    return trace(*ran(50_000, scale), *events)


def told(data):
    """Microseconds, bytes, address and total of the memory events."""
    found = loads(data).memory
    columns = (found.time / 1e3, found.bytes, found.address, found.allocated)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_an_event_lies_between_the_same_moments_of_the_same_operators():
    at = 50_000
    events = [
        allocated(at + 15, 64, 77_000, 1064),  # half way from the step's begin to the first operator
        allocated(at + 90, 512, 88_000, 1576),  # half way through addmm
        allocated(at + 135, -512, 88_000, 1064),  # half way from addmm's end to linear's
        allocated(at + 225, 8, 77_512, 1072, tid=BACKWARD),  # three quarters through the other thread's operator
    ]
    data = with_memory(picture(), recorded(*events), 0, held=5000)
    assert told(data) == [(5.0, 64, 1, 5064), (30.0, 512, 2, 5576), (45.0, -512, 2, 5064), (75.0, 8, 3, 5072)]
    assert loads(data).memory.tid.tolist() == [0, 0, 0, 1]


def test_the_exemplar_is_otherwise_as_it_was():
    before = picture()
    after = with_memory(before, recorded(allocated(50_090, 512, 1, 512)), 0, held=0)
    kept = json.loads(gzip.decompress(after))
    added = [event for event in kept["traceEvents"] if event["ph"] == "i"]
    kept["traceEvents"] = [event for event in kept["traceEvents"] if event["ph"] != "i"]
    assert kept == json.loads(gzip.decompress(before))
    assert [(event["name"], event["pid"], event["tid"], event["s"]) for event in added] == [("[memory]", 0, 0, "t")]


def test_the_timeline_begins_at_what_was_held():
    events = [allocated(50_090, 512, 1, 700), allocated(50_100, 100, 2, 800), allocated(50_120, -100, 2, 700)]
    (device,) = memory_timeline(loads(with_memory(picture(), recorded(*events), 0, held=4000)))
    assert (device.base_bytes, device.peak_allocated_bytes) == (4000, 4612)
    assert [(each.operator, each.bytes) for each in device.alive_at_peak] == [
        ("allocated before the trace started", 4000),
        ("aten::addmm", 612),
    ]


def test_a_device_knows_what_it_holds():
    event = allocated(50_090, 512, 1, 9512, device=(1, 0))
    assert told(with_memory(picture(), recorded(event), 0, held=4000)) == [(30.0, 512, 1, 9512)]


def test_threads_do_not_overtake_each_other():
    """Totals count on in the order of events: what comes later is told no earlier."""
    own, at = [*ran(50_000, 3)[:3], x("MmBackward0", 50_240, 30, tid=BACKWARD)], 50_000
    events = [allocated(at + 235, 8, 1, 8), allocated(at + 239, 8, 2, 16, tid=BACKWARD)]
    found = told(with_memory(picture(), trace(*own, *events), 0, held=0))
    # The first, on a thread without that operator, at 50 + 50 * 85 / 150; the second would be at 60 * 239 / 240.
    assert [time for time, *_ in found] == [pytest.approx(78.333), pytest.approx(78.333)]
    assert [total for *_, total in found] == [8, 16]


def test_only_the_chosen_step_counts():
    second = [step(4, 60_000, 300), *ran(60_000, 3)[1:]]
    made = trace(*ran(50_000, 3), *second, allocated(50_090, 1, 1, 1), allocated(60_090, 2, 2, 3))
    assert [size for _, size, _, _ in told(with_memory(picture(), made, 1, held=0))] == [2]


def test_other_operators_other_steps():
    other = trace(*ran(50_000, 3, [x("aten::add", 50_250, 10)]), allocated(50_090, 1, 1, 1))
    assert with_memory(picture(), other, 0, held=0) is None
    fewer = recorded(allocated(50_090, 1, 1, 1))
    assert with_memory(picture(x("aten::add", 1085, 5)), fewer, 0, held=0) is None
    assert with_memory(picture(x("aten::add", 1085, 5, tid=99)), fewer, 0, held=0) is None


def test_nothing_to_tell():
    assert with_memory(picture(), recorded(), 0, held=0) is None
    of_2021 = recorded(memory(50_090, 512))
    assert with_memory(picture(), of_2021, 0, held=0) is None


def test_what_would_be_too_large_is_left_out():
    made = recorded(allocated(50_090, 512, 1, 512))
    size = len(with_memory(picture(), made, 0, held=0))
    assert with_memory(picture(), made, 0, held=0, limit=size) is not None
    assert with_memory(picture(), made, 0, held=0, limit=size - 1) is None


def test_an_exemplar_that_lost_events_has_no_memory():
    own = trace(*EVENTS, allocated(110, 5, 1, 5))
    assert with_memory(_cut(limit=300), own, 1, held=0) is None
    assert with_memory(_cut(), own, 1, held=0) is not None
