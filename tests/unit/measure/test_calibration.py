import pytest

from pytest_perfdl.machine import state
from pytest_perfdl.measure import calibration
from pytest_perfdl.model.errors import ConstantsError


@pytest.fixture
def small(monkeypatch):
    """Sizes that take milliseconds, whatever else the machine does meanwhile."""
    quiet = state.Load(wall_s=2.0, others_s=0.0, helpers_s=0.0)
    monkeypatch.setattr(state.Busy, "since", lambda *_: quiet)
    for name, value in {"SIDES": (16, 32), "LARGEST_SET": 2**21, "REPEAT_NS": 20_000, "_EVENTS": 50}.items():
        monkeypatch.setattr(calibration, name, value)


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_every_limit_is_measured():
    told = []
    found = calibration.calibrate("here torch 2", seconds=0.05, say=lambda *each: told.append(each))
    assert {"float64", "float32"} <= found.flops_per_s.keys() <= set(calibration.TYPES)
    assert all(rate > 1e5 for rate in found.flops_per_s.values())
    assert [size for size, _ in found.bandwidths] == [2**18, 2**20, 2**21]
    assert all(rate > 1e6 for _, rate in found.bandwidths)
    assert found.memory_bytes_per_s == found.bandwidths[-1][1]
    assert found.spread.keys() == {*found.flops_per_s, "262144", "1048576", "2097152"}
    assert 0 <= found.event_ns < 1e6
    assert (found.key, found.peaks.source) == ("here torch 2", f"measured {found.date}")
    assert told[-1][0] == told[-1][1] - 1


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("others, disturbed", [(0.11, True), (0.09, False)])
def test_nothing_is_known_of_a_machine_that_others_use(monkeypatch, others, disturbed):
    load = state.Load(wall_s=2.0, others_s=2.0 * others, helpers_s=0.0)
    monkeypatch.setattr(state.Busy, "since", lambda *_: load)
    if not disturbed:
        assert calibration.calibrate("here", seconds=0.01).peaks is not None
        return
    with pytest.raises(ConstantsError, match=r"^other processes used 0\.11 CPUs during the measurement: stop other"):
        calibration.calibrate("here", seconds=0.01)


def test_the_upper_decile_is_the_rate():
    figure = calibration._Figure("float32", 1e6, lambda: None, rates=[float(rate) for rate in range(1, 12)])
    assert figure.rate == 10
    assert figure.spread == pytest.approx(2.5 / 6)
