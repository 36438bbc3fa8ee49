"""The curve of a picture against numpy's own polynomial fit, and when it bends."""

import numpy as np
import pytest
from scipy.stats import t

from pytest_perfdl.scaling.growth import smooth

SIZES = np.array([2.0, 4.0, 8.0, 16.0])
ERRORS = np.full(4, 0.01)


def reference(degree, ns, at, freedom):
    """`numpy.polyfit` with weights, and the band from its covariance matrix, one size at a time."""
    coefficients, covariance = np.polyfit(SIZES, ns, degree, w=1 / (ns * ERRORS), cov="unscaled")
    misfit = (((ns - np.polyval(coefficients, SIZES)) / (ns * ERRORS)) ** 2).sum()
    widening = max(1.0, misfit / (len(SIZES) - degree - 1))
    half = []
    for size in at:
        powers = np.array([size**power for power in range(degree, -1, -1)])
        half.append(t.ppf(0.975, freedom) * (powers @ covariance @ powers * widening) ** 0.5)
    return np.polyval(coefficients, at), np.array(half)


@pytest.mark.parametrize(
    "ns, degree",
    [
        pytest.param(16e6 + 1e6 * SIZES, 1, id="line"),
        pytest.param((16e6 + 1e6 * SIZES) * [1.01, 0.99, 1.01, 0.99], 1, id="line with noise"),
        pytest.param(16e6 + 1e5 * SIZES**2, 2, id="parabola"),
        pytest.param(16e6 + 3e4 * SIZES**3, 2, id="steeper than a parabola"),
    ],
)
def test_it_is_the_weighted_polynomial_fit(ns, degree):
    at = np.array([2.0, 3.0, 9.5, 16.0])
    value, low, high = smooth(SIZES, ns, ERRORS, 16, at)
    expected, half = reference(degree, ns, at, 16)
    assert value == pytest.approx(expected, rel=1e-6)
    assert high - value == pytest.approx(half, rel=1e-4)
    assert low == pytest.approx(np.maximum(expected - half, 0), rel=1e-4)


def test_three_sizes_may_bend_and_then_the_curve_goes_through_them():
    sizes, ns = SIZES[:3], np.array([10e6, 10e6, 30e6])
    value, *_ = smooth(sizes, ns, ERRORS[:3], 10, sizes)
    assert value == pytest.approx(ns)


def test_the_band_never_goes_below_zero():
    _, low, high = smooth(SIZES, np.array([1e6, 50e6, 2e6, 70e6]), ERRORS, 3, SIZES)
    assert low.min() == 0
    assert (high > 0).all()


def test_sizes_that_are_near_to_each_other_have_a_curve_too():
    sizes = np.array([1e6, 1e6 + 1, 1e6 + 2, 1e6 + 3])
    value, low, high = smooth(sizes, np.array([1e6, 2e6, 3e6, 4e6]), ERRORS, 10, sizes)
    assert value == pytest.approx([1e6, 2e6, 3e6, 4e6])
    assert (low < value).all()
    assert (value < high).all()
