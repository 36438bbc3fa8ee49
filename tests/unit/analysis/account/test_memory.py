"""Allocations of a step, added up by hand."""

from pytest_perfdl.analysis import memory_figures
from pytest_perfdl.trace import read
from unit.trace.chrome import DATA, memory, step, trace, x


def test_counts_bytes_and_peak_by_hand():
    found = trace(
        memory(-1, 999),
        step(1, 0, 10),
        memory(0, 100),
        memory(2, 50),
        memory(3, -100),
        memory(4, 60),
        memory(10, 7),
        step(2, 12, 10),
        memory(13, -110),
        memory(14, 100),
        memory(22, 1),
    )
    figures = memory_figures(found)
    assert figures is not None
    assert figures.allocations == (3, 1)
    assert figures.alloc_bytes == (210, 100)
    assert figures.peak_bytes == (150, 0), "what the second step frees first makes room"
    assert figures.kept_bytes == (110, -10)
    assert figures.highest_bytes == figures.peak_bytes


def test_devices_are_kept_apart():
    found = trace(
        step(1, 0, 10),
        memory(1, 10),
        memory(2, 20, 1, 0),
        memory(3, 40, 1, 1),
        memory(4, 80, 6, 0),
        memory(5, -20, 1, 0),
    )
    figures = memory_figures(found)
    assert figures is not None
    assert figures.peak_bytes == (10,)
    assert figures.highest_bytes == (80,)


def test_events_in_any_order_of_the_file():
    ordered = memory_figures(trace(step(1, 0, 10), memory(1, 10), memory(2, -10), memory(3, 10)))
    shuffled = memory_figures(trace(memory(3, 10), memory(1, 10), step(1, 0, 10), memory(2, -10)))
    assert ordered == shuffled
    assert ordered is not None
    assert ordered.peak_bytes == (10,)


def test_a_step_without_events_of_a_device():
    figures = memory_figures(trace(step(1, 0, 10), memory(1, 5), x("op", 1, 1), step(2, 10, 10), x("op", 11, 1)))
    assert figures is not None
    assert (figures.allocations, figures.alloc_bytes, figures.peak_bytes) == ((1, 0), (5, 0), (5, 0))


def test_setup_is_not_counted_but_what_it_leaves_is_part_of_the_peak():
    figures = memory_figures(
        trace(step(1, 0, 10), x("perfdl.setup", 1, 3, "user_annotation"), memory(2, 64), memory(5, 16), memory(6, -64))
    )
    assert figures is not None
    assert (figures.allocations, figures.alloc_bytes, figures.peak_bytes) == ((1,), (16,), (80,))


def test_nothing_to_tell():
    assert memory_figures(trace(step(1, 0, 10), x("op", 1, 1))) is None
    assert memory_figures(trace(memory(1, 5))) is None, "no step"
    figures = memory_figures(trace(step(1, 0, 10), memory(1, 5, 1, 0)))
    assert figures is not None
    assert figures.allocations == figures.alloc_bytes == figures.peak_bytes == figures.kept_bytes == ()
    assert figures.highest_bytes == (5,)


def test_a_recording_against_its_own_running_totals():
    figures = memory_figures(read(DATA / "memory.json.gz"))
    assert figures is not None
    assert figures.allocations[0] == figures.allocations[1] > 0
    assert figures.alloc_bytes[0] == figures.alloc_bytes[1]
    trace_memory = read(DATA / "memory.json.gz").memory
    assert (trace_memory.device_type == 0).all()
