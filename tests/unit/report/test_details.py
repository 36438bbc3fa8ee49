"""Memory over a step on the page: on the step's clock, with what was held before, and what its table leaves out."""

import pytest

from pytest_perfdl.report import details
from unit.trace.chrome import memory, step, trace, x


def curve(*events):
    [found] = details._memory(trace(step(0, 1000, 500), *events))
    return found


def allocated(ts, size, address, total):
    return memory(ts, size, **{"Addr": address, "Total Allocated": total, "Total Reserved": 0})


def test_a_curve_on_the_steps_clock():
    found = curve(
        x("aten::mm", 1100, 100),
        allocated(1150, 64, 1, 1064),
        allocated(1160, 36, 2, 1100),
        allocated(1400, -64, 1, 1036),
    )
    assert found["step_ns"] == 500_000
    assert found["time_ns"] == [150_000, 160_000, 400_000]
    assert found["bytes"] == [1064, 1100, 1036]
    assert (found["peak_bytes"], found["peak_at_ns"]) == (1100, 160_000)
    assert found["alive"] == [[details.HELD, "", 1000, None], ["aten::mm", "", 100, 2]]
    assert found["alive_more"] == [0, 0]


def test_a_long_curve_keeps_the_highest_of_each_stretch():
    events, total = [], 0
    for number in range(3000):
        size = 10 if number % 2 == 0 else -10
        total += size
        events.append(allocated(1000 + number * 0.1, size, 1, total))
    found = curve(*events)
    assert len(found["bytes"]) <= details.POINTS
    assert set(found["bytes"]) == {10}


def test_what_the_table_leaves_out_is_counted():
    count = details.ALIVE + 3
    events = [x(f"aten::op{number}", 1000 + 10 * number, 5) for number in range(count)]
    events += [allocated(1001 + 10 * number, 8, number + 1, 8 * (number + 1)) for number in range(count)]
    found = curve(*events)
    assert len(found["alive"]) == details.ALIVE
    assert found["alive_more"] == [3, 24]


def test_without_a_step_on_the_clock_of_the_first_allocation():
    [found] = details._memory(trace(x("aten::mm", 100, 100), allocated(150, 64, 1, 64), allocated(170, -64, 1, 0)))
    assert (found["time_ns"], found["step_ns"]) == ([0, 20_000], 20_000)
    assert found["peak_bytes"] == pytest.approx(64)
