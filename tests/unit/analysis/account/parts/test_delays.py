"""What others had of the processor is taken off the parts that it fell into."""

import numpy as np
import pytest

from pytest_perfdl.analysis.account.parts import StepParts, without_delays
from pytest_perfdl.model.step_part import Part

MS = 1_000_000


def made(*rows, on_device=False, count=1):
    """Parts by their times in each step, in tenths of a millisecond."""
    ns = np.array(rows, dtype=np.int64) * MS // 10
    parts = tuple(Part("operator", f"aten::{index}") for index in range(len(rows)))
    return StepParts(on_device, ns.sum(axis=0), parts, ("forward",) * len(rows), ns, ns.copy(), np.full_like(ns, count))


def tenths(found):
    return (found.ns * 10 // MS).tolist()


def test_a_wait_is_taken_off_the_part_that_it_fell_into():
    found = without_delays(made([10, 10, 52, 10], [5, 6, 5, 5]), [0, 0, 4 * MS, 0])
    assert tenths(found) == [[10, 10, 12, 10], [5, 6, 5, 5]]
    assert (found.step_ns * 10 // MS).tolist() == [15, 16, 17, 15]
    assert (found.busy_ns == found.ns).all()


def test_no_more_is_taken_than_is_beyond_and_than_was_waited():
    found = without_delays(made([10, 30, 10, 10], [10, 60, 10, 10]), [0, 6 * MS, 0, 0])
    assert tenths(found) == [[10, 20, 10, 10], [10, 10, 10, 10]]
    found = without_delays(made([10, 60, 10, 10]), [0, 3 * MS, 0, 0])
    assert tenths(found) == [[10, 30, 10, 10]]


def test_what_only_some_steps_do_is_left_alone():
    """Every fourth step logs, and waited at the same time: nobody knows where."""
    before = made([10, 10, 10, 10], [0, 0, 0, 50])
    assert tenths(without_delays(before, [0, 0, 0, 4 * MS])) == tenths(before)


@pytest.mark.parametrize("delay", [0, 400_000], ids=["none", "short"])
def test_short_waits_stay(delay):
    before = made([10, 10, 52, 10])
    assert tenths(without_delays(before, [0, 0, delay, 0])) == tenths(before)


def test_too_few_steps_devices_and_unknown_delays_stay():
    few, device = made([10, 52]), made([10, 10, 52, 10], on_device=True)
    assert without_delays(few, [0, 4 * MS]) is few
    assert without_delays(device, [0, 0, 4 * MS, 0]) is device
    host = made([10, 10, 52, 10])
    assert without_delays(host, []) is host


def test_the_step_stays_the_sum_of_its_parts():
    rng = np.random.default_rng(5)
    before = made(*rng.integers(0, 80, (6, 4)).tolist())
    found = without_delays(before, [2 * MS, 0, 9 * MS, MS])
    assert (found.ns.sum(axis=0) == found.step_ns).all()
    assert (found.ns >= 0).all()
    assert (before.step_ns - found.step_ns <= np.array([2, 0, 9, 1]) * MS).all()
