"""More work, or the same work done worse: each kind by hand, at its boundary."""

import pytest

from pytest_perfdl.judge.work import StepWork, work_change
from pytest_perfdl.machine.peaks import Peaks
from pytest_perfdl.machine.utilization import OperatorWork
from pytest_perfdl.report.words import work_sentence

PEAKS = Peaks({"float32": 1e11, "bfloat16": 4e11}, 1e10)


def product(time_ns=20_000, flops=10**6, moved=1000, calls=1, dtype="float32", operator="aten::mm"):
    """By itself 10 µs at the peak."""
    return OperatorWork(operator, "[]", dtype, calls, time_ns, flops, moved)


def add(time_ns=1000, flops=100, moved=1000, calls=1):
    return product(time_ns, flops, moved, calls, operator="aten::add")


def changed(base, new, *, steps=1, grown_ns=10_000.0, peaks=PEAKS, call=""):
    return work_change(call, [StepWork(steps, tuple(base))], [StepWork(steps, tuple(new))], peaks, grown_ns)


def test_more_arithmetic_is_more_work():
    found = changed([product(), add()], [product(30_000, 1_500_000), add()])
    assert (found.kind, found.operator) == ("more work", "aten::mm")
    assert work_sentence(found) == ("more work: 1.000 Mflop -> 1.500 Mflop a step (+50.0%), most of it in aten::mm")


@pytest.mark.parametrize("flops, kind", [(1_009_000, "done worse"), (1_012_000, "more work")])
def test_a_hundredth_more_is_the_same_arithmetic(flops, kind):
    assert changed([product(), add()], [product(30_000, flops), add()]).kind == kind


def test_the_same_work_that_takes_longer_is_done_worse():
    found = changed([product(), add()], [product(40_000), add()])
    assert (found.kind, found.operator) == ("done worse", "aten::mm")
    assert work_sentence(found) == "same arithmetic, done worse: aten::mm 50.0% -> 25.0% of its roofline"
    without = changed([product(), add()], [product(40_000), add()], peaks=None)
    assert work_sentence(without) == "same arithmetic, done worse: aten::mm 20.00 µs -> 40.00 µs a step"


def test_what_grew_outside_of_operators_names_none():
    found = changed([product(), add()], [product(20_500), add()], grown_ns=50_000)
    assert (found.kind, found.operator) == ("done worse", "")
    assert work_sentence(found) == "same arithmetic, done worse: what grew is outside of operators"


@pytest.mark.parametrize("peaks", [PEAKS, None])
def test_another_element_type_is_dearer(peaks):
    found = changed([product(dtype="bfloat16")], [product(40_000, moved=2000)], peaks=peaks, call="fwd")
    assert found.kind == "dearer type"
    assert work_sentence(found) == (
        "fwd: same arithmetic, dearer type: float32 instead of bfloat16, most of it in aten::mm"
    )
    assert changed([product()], [product(40_000, dtype="bfloat16")], peaks=peaks).kind == "done worse"


@pytest.mark.parametrize(
    "new, kind",
    [
        (product(40_000, moved=1051), "more traffic or calls"),
        (product(40_000, calls=4), "more traffic or calls"),
        (product(40_000, moved=1049), "done worse"),
    ],
)
def test_more_bytes_or_calls_for_the_same_arithmetic(new, kind):
    assert changed([product()], [new]).kind == kind


def test_the_sentence_of_more_calls():
    found = changed([product(calls=2, moved=4096)], [product(40_000, calls=8, moved=8192)], steps=2)
    assert work_sentence(found) == (
        "same arithmetic, more traffic or calls: 2.000 KiB -> 4.000 KiB and 1 -> 4 calls of operators a step, "
        "most of it in aten::mm"
    )


def test_rounds_are_taken_together_and_nothing_is_said_without_operators():
    many = work_change("", [StepWork(2, (product(),))] * 3, [StepWork(4, (product(),))] * 2, PEAKS)
    assert (many.base.flops, many.new.flops) == (500_000, 250_000)
    assert work_change("", [], [StepWork(1, (product(),))]) is None
    assert work_change("", [StepWork(1, ())], [StepWork(1, ())]) is None


def test_an_operator_that_is_new_has_nothing_before():
    found = changed([add()], [add(), product()])
    assert (found.operator, found.base.flops, found.new.flops) == ("aten::mm", 0, 10**6)
