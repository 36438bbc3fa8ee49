"""The reference workload, and what two sets of its times say."""

import math
import statistics

import pytest

from pytest_perfdl.machine import reference_load
from pytest_perfdl.machine.reference_load import Noise, SpeedDrift, drift, machine_noise, noise, reference_ns


def test_the_workload_is_the_same_every_time():
    assert reference_load._work() == reference_load._work() == 1950161345


def test_each_repeat_is_timed_and_the_warm_up_is_not(monkeypatch):
    runs = []
    clock = iter([100, 103, 200, 207])
    monkeypatch.setattr(reference_load, "_work", lambda: runs.append(1))
    monkeypatch.setattr(reference_load, "perf_counter_ns", lambda: next(clock))
    assert reference_ns(2) == (3, 7)
    assert len(runs) == 3


def test_waiting_for_a_processor_is_not_the_machines_speed(monkeypatch):
    clock = iter([100, 130, 200, 207, 300, 302])
    delays = iter([5, 25, 25, 25, 30, 40])
    monkeypatch.setattr(reference_load, "_work", lambda: None)
    monkeypatch.setattr(reference_load, "perf_counter_ns", lambda: next(clock))

    assert reference_ns(3, lambda: next(delays)) == (10, 7, 1)


def test_the_copies_stay_off_the_heap():
    source, target = reference_load._buffers()

    assert {type(buffer.obj).__name__ for buffer in (source, target)} == {"mmap"}
    assert bytes(source[:3]) == bytes(source[4096:4099]) == b"\x00\x01\x02"
    assert len(source) == len(target) == 4 * 2**20


def test_drift_is_the_ratio_of_medians():
    assert drift((100, 110, 102), (153, 150, 400)) == SpeedDrift(153 / 102, (400 - 150) / 153)
    assert drift((100,), (90,)) == SpeedDrift(0.9, 0.0)


@pytest.mark.parametrize("sides", [((), (1,)), ((1,), ()), ((0,), (1,)), ((1,), (-1,))], ids=str)
def test_drift_needs_times_on_both_sides(sides):
    with pytest.raises(ValueError, match="at least one positive time"):
        drift(*sides)


@pytest.mark.parametrize(
    "ratio, spread, beyond",
    [
        (1.06, 0.01, True),
        (1.05, 0.01, False),
        (1.06, 0.07, False),
        (1 / 1.06, 0.01, True),
        (1 / 1.04, 0.01, False),
    ],
    ids=["slower", "not-enough", "within-spread", "faster", "not-enough-faster"],
)
def test_drift_counts_beyond_a_limit_and_beyond_what_runs_differ_by(ratio, spread, beyond):
    assert SpeedDrift(ratio, spread).beyond(0.05 + 1e-9) is beyond


def test_noise_is_that_of_the_blocks_medians():
    blocks = [(100, 100, 900), (110, 109, 111), (105, 1, 106)]
    found = noise(blocks)
    assert found.spread == pytest.approx(statistics.stdev([math.log(100), math.log(110), math.log(105)]))
    assert found.span == pytest.approx(10 / 105)


def test_the_limit_that_noise_supports():
    assert Noise(0.0, 0.0).limit == 0.02
    assert Noise(0.02, 0.1).limit == pytest.approx(4.221 * 0.02 * math.sqrt(0.2))


def test_this_machines_noise_is_measured():
    found = machine_noise(seconds=0.01, blocks=2)
    assert found.span >= 0
    assert math.isfinite(found.spread)
