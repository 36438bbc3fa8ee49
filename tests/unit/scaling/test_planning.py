"""What follows from a model: curves of speed, the knee, an epoch's cost, the next measurement. By hand."""

from dataclasses import replace

import numpy as np
import pytest

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.choose import TimePrediction, choose, evaluate
from pytest_perfdl.scaling.laws import AFFINE, StraightLine
from pytest_perfdl.scaling.physical import PHYSICAL
from pytest_perfdl.scaling.planning import epoch, next_measurement, speed_up
from unit.scaling.sizes import grid, line


def amdahl(workers):
    return 80e6 / workers + 20e6 * (1 - 1 / workers)


def loaders(most=8):
    return grid(amdahl, extrinsic=["workers"], workers=[1, 2, 4, most])


def test_speed_up_by_amdahl():
    points = loaders()
    found = speed_up(evaluate(PHYSICAL, points), points, {}, "workers")
    assert found.kind == "processors"
    assert found.sizes.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found.measured.tolist() == [True, True, False, True, False, False, False, True]
    np.testing.assert_allclose(found.ns, amdahl(found.sizes))
    np.testing.assert_allclose(found.speedup, 80e6 / amdahl(found.sizes))
    np.testing.assert_allclose(found.efficiency, found.speedup / found.sizes)


def test_efficiency_is_relative_to_the_fewest_that_were_measured():
    points = grid(amdahl, extrinsic=["workers"], workers=[2, 4, 8, 16])
    found = speed_up(evaluate(PHYSICAL, points), points, {}, "workers")
    assert (found.speedup[0], found.efficiency[0]) == (1, 1)
    np.testing.assert_allclose(found.efficiency, amdahl(2) / amdahl(found.sizes) * 2 / found.sizes)


def test_the_knee_is_where_five_percent_are_left():
    # 27.5 ms at 8, so that 28.95 ms are enough: 28.57 at 7, 30 at 6.
    points = loaders()
    assert speed_up(evaluate(PHYSICAL, points), points, {}, "workers").knee == 7


def test_no_knee_where_speed_grows_to_the_end():
    points = grid(lambda workers: 80e6 / workers, extrinsic=["workers"], workers=[1, 2, 4])
    assert speed_up(evaluate(PHYSICAL, points), points, {}, "workers").knee is None


def test_a_larger_batch_is_more_work_in_a_second():
    points = line(lambda batch: 10e6 + 1e6 * batch, (2, 4, 8))
    found = speed_up(evaluate(AFFINE, points), points, {}, "batch")
    assert found.kind == "work"
    speed = found.sizes / (10 + found.sizes)
    np.testing.assert_allclose(found.speedup, speed / speed[0])
    np.testing.assert_allclose(found.efficiency, speed / speed[-1])


def test_long_and_broken_axes_have_what_was_measured():
    for sizes in ((1, 10, 100, 1000), (0.5, 1, 2)):
        points = line(lambda batch: 1e6 * batch, sizes)
        assert speed_up(evaluate(AFFINE, points), points, {}, "batch").sizes.tolist() == list(map(float, sizes))


@pytest.mark.parametrize(
    "points, axis, problem",
    [
        pytest.param(line(lambda batch: 1e6 * batch, (2, 4, 8)), "workers", "workers does not vary", id="unknown"),
        pytest.param(line(lambda batch: 1e6 + batch, (0, 4, 8)), "batch", "batch is 0 in a measured point", id="zero"),
    ],
)
def test_curves_that_cannot_be(points, axis, problem):
    with pytest.raises(ScalingError, match=problem):
        speed_up(evaluate(AFFINE, points), points, {}, axis)


def test_times_below_zero_have_no_speed():
    points = line(lambda batch: 1e6 * batch, (2, 4, 8))
    falling = replace(evaluate(AFFINE, points), curve=StraightLine("batch", 6e6, -1e6))
    with pytest.raises(ScalingError, match="affine does not predict positive times everywhere along batch"):
        speed_up(falling, points, {}, "batch")


def test_an_epoch_by_hand():
    found = epoch(TimePrediction(36e6, 18e6, 72e6, 1.0, ()), 1e5, 2.0)
    assert found.hours == pytest.approx((1, 0.5, 2))
    assert found.price == pytest.approx((2, 1, 4))
    assert epoch(TimePrediction(36e6, 18e6, 72e6, 1.0, ()), 1e5).price is None


@pytest.mark.parametrize("steps, price", [(0, 1), (-1, 1), (float("nan"), 1), (1, 0), (1, float("inf"))])
def test_an_epoch_needs_numbers(steps, price):
    with pytest.raises(ScalingError, match="must be a number above 0"):
        epoch(TimePrediction(36e6, 18e6, 72e6, 1.0, ()), steps, price)


def test_the_next_measurement_is_where_the_line_is_loose():
    # What lies beyond the end of a line hangs on that end; of few replicas, some say otherwise.
    chosen = []
    for seed in range(40):
        points = line(lambda batch: 10e6 + 1e6 * batch, (2, 4, 8, 16), noise=0.03, seed=seed)
        found = next_measurement(evaluate(AFFINE, points), points, {"batch": 32})
        assert found.measured
        assert 0 < found.after_ns < found.before_ns
        chosen.append(found.at["batch"])
    assert chosen.count(16) > 30


def test_a_place_within_the_range_may_be_measured_itself():
    # Between the ends, where the line is nearly free to turn, no other place says as much.
    points = grid(lambda batch: 1e6 * batch**2, noise=0.01, extrinsic=["batch"], batch=(1, 4, 16, 64, 256))
    found = next_measurement(evaluate(PHYSICAL, points), points, {"batch": 30})
    assert found.measured is (found.at["batch"] != 30)


def test_combinations_that_were_left_out_are_candidates():
    points = grid(
        lambda layers, batch: 5e6 + 1e6 * layers * batch,
        noise=0.02,
        intrinsic=["layers"],
        extrinsic=["batch"],
        layers=(1, 2, 4, 8),
        batch=(2, 4, 8, 16),
    )
    corner = (points.columns["layers"] == 8) & (points.columns["batch"] == 16)
    points = points.take(np.flatnonzero(~corner))
    found = next_measurement(choose(points, (PHYSICAL,)).chosen, points, {"layers": 8, "batch": 16})
    assert found.at == {"layers": 8, "batch": 16}
    assert not found.measured


def test_where_nothing_is_uncertain_nothing_is_gained():
    points = line(lambda batch: 10e6 + 1e6 * batch, (2, 4, 8))
    found = next_measurement(evaluate(AFFINE, points), points, {"batch": 4})
    assert found.after_ns <= found.before_ns < 1
