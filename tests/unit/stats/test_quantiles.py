"""Quantiles of samples and of Student's distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_perfdl.stats.quantiles import quantile, student


@pytest.mark.parametrize(
    "values, q, expected",
    [([3.0], 0.99, 3.0), ([4.0, 1.0, 2.0, 3.0], 0.5, 2.5), ([1.0, 2.0], 1.0, 2.0), ([1.0, 2.0], 0.0, 1.0)],
    ids=["one", "between", "last", "first"],
)
def test_of_few(values, q, expected):
    assert quantile(values, q) == expected


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.floats(0, 1))
def test_they_are_numpys(values, q):
    assert quantile(values, q) == pytest.approx(np.quantile(values, q), abs=1e-3)


@pytest.mark.parametrize("freedom", [1, 3, 28.5, 1000, math.inf])
@pytest.mark.parametrize("probability", [0.025, 0.5, 0.99])
def test_of_student_s_distribution(probability, freedom):
    assert student(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), abs=1e-9)
