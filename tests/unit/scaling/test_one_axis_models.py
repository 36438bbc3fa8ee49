"""One axis: lines, and where a line breaks."""

import numpy as np
import pytest

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.choose import evaluate
from pytest_perfdl.scaling.laws import AFFINE, PIECEWISE, find_cliff
from pytest_perfdl.scaling.points import Points
from unit.scaling.sizes import grid, line, values

SIZES = (2, 4, 6, 8, 16, 24, 32, 64)


def cliff(batch):
    return 12e6 + 1e6 * batch if batch <= 8 else 40e6 + 2e6 * batch


def test_a_line_comes_back():
    fit = evaluate(AFFINE, line(lambda batch: 12e6 + 1e6 * batch, (2, 4, 8)))
    assert values(fit) == pytest.approx({"constant": 12e6, "per batch": 1e6})
    assert fit.loo_mape == pytest.approx(0, abs=1e-12)
    assert fit.freedom == 1


def test_residuals_are_relative():
    # By hand: x = 1, 2, 4 and t = 1, 1, 4, rows divided by t: (1, 1), (1, 2), (1/4, 1) for 1, 1, 1.
    matrix = np.array([[1, 1], [1, 2], [0.25, 1]])
    fixed, slope = np.linalg.inv(matrix.T @ matrix) @ matrix.T @ np.ones(3)
    found = AFFINE.fit(Points.of([({"x": x}, ns) for x, ns in [(1, 1), (2, 1), (4, 4)]]))
    assert (found.fixed, found.slope) == pytest.approx((fixed, slope))


def test_errors_of_what_is_left_out_by_hand():
    # Lines through two of (1, 1), (2, 2), (3, 4) say 0 for 1, 2.5 for 2 and 3 for 4 at the third.
    fit = evaluate(AFFINE, Points.of([({"x": x}, ns) for x, ns in [(1, 1), (2, 2), (3, 4)]]))
    assert fit.errors.tolist() == pytest.approx([-1, 0.25, -0.25])
    assert fit.loo_mape == pytest.approx(0.5)


def test_jackknife_interval_by_hand():
    # Slopes without each point: 2, 1.5 and 1; mean 1.5; se^2 = 2/3 * 0.5; t(0.975, 1) = 12.706.
    fit = evaluate(AFFINE, Points.of([({"x": x}, ns) for x, ns in [(1, 1), (2, 2), (3, 4)]]))
    slope = fit.coefficients[1]
    assert slope.high - slope.value == pytest.approx(12.7062 * (1 / 3) ** 0.5, rel=1e-5)
    assert slope.value - slope.low == pytest.approx(12.7062 * (1 / 3) ** 0.5, rel=1e-5)


def test_replicates_are_left_out_together():
    points = Points.of([({"x": x}, ns) for x, ns in [(1, 1), (2, 1.5), (2, 2.5), (3, 4)]])
    fit = evaluate(AFFINE, points)
    assert len(fit.errors) == 3
    assert fit.errors[1] == pytest.approx(0.25)  # 2.5 against the mean of 1.5 and 2.5


@pytest.mark.parametrize("form", [AFFINE, PIECEWISE], ids=["affine", "piecewise"])
@pytest.mark.parametrize("count", [0, 2])
def test_other_than_one_axis_is_refused(form, count):
    axes = {"batch": (1, 2), "layers": (1, 2)} if count else {"batch": (2,), "layers": (2,)}
    points = grid(lambda batch, layers: batch + layers, intrinsic=list(axes), **axes)
    with pytest.raises(ScalingError, match=f"exactly one factor must vary, not {count}"):
        form.fit(points)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_cliff_is_found_where_it_is(noise):
    found = find_cliff(line(cliff, SIZES, noise=noise))
    assert (found.axis, found.below, found.above) == ("batch", 8, 16)
    assert found.p < 0.01


def test_a_change_of_slope_is_a_cliff_too():
    points = line(lambda batch: 10e6 + 1e6 * batch + 2e6 * max(batch - 20, 0), (4, 8, 12, 16, 20, 24, 28, 32, 36))
    assert find_cliff(points).below in (16, 20)


@pytest.mark.parametrize("noise", [0.0, 1e-12], ids=["exact", "rounding"])
def test_a_line_has_no_cliff(noise):
    points = line(lambda batch: 12e6 + 1e6 * batch, SIZES, noise=noise)
    assert find_cliff(points) is None
    with pytest.raises(ScalingError, match="no cliff was found"):
        PIECEWISE.fit(points)


def test_a_jump_of_a_billionth_is_rounding():
    assert find_cliff(line(lambda batch: 12e6 + 1e6 * batch + (1e-3 if batch > 8 else 0), SIZES)) is None


def test_noise_is_seldom_a_cliff():
    drawn = (line(lambda batch: 12e6 + 1e6 * batch, SIZES, noise=0.03, seed=seed) for seed in range(100))
    assert sum(find_cliff(points) is not None for points in drawn) <= 4


@pytest.mark.parametrize("sizes, seen", [(SIZES[1:6], False), (SIZES[1:7], True)], ids=["five sizes", "six sizes"])
def test_three_sizes_on_each_side_are_needed(sizes, seen):
    assert (find_cliff(line(cliff, sizes)) is not None) is seen


def test_both_lines_come_back():
    fit = evaluate(PIECEWISE, line(cliff, SIZES))
    assert values(fit) == pytest.approx(
        {
            "constant up to 8": 12e6,
            "per batch up to 8": 1e6,
            "constant from 16": 40e6,
            "per batch from 16": 2e6,
        }
    )
    times = fit.curve.times({"batch": np.array([8.0, 12.0, 12.1, 16.0])})
    assert times.tolist() == pytest.approx([20e6, 24e6, 64.2e6, 72e6])
