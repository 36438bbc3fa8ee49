"""Intervals of coefficients on synthetic data: what the benchmark shows of 100 trials, a few seeded trials guard."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "scaling"))

import interval_coverage as benchmark


@pytest.mark.parametrize("name", ["affine", "physical"])
def test_intervals_hold_the_constants_and_are_as_wide_as_the_error(name):
    rows = benchmark.rows_of(benchmark.CASES[name], trials=40)
    assert len(rows) == {"affine": 2, "physical": 5}[name]
    for row in rows:
        assert row.covered >= 0.875, row
        assert 0.5 <= row.width <= 2, row


def test_a_row_holds_by_both():
    row = benchmark.Row("affine", "constant", 1.0, 0.95, 1.0)
    assert row.holds
    for covered, width in ((0.89, 1.0), (0.95, 2.1), (0.95, 0.4)):
        assert not benchmark.Row("affine", "constant", 1.0, covered, width).holds
