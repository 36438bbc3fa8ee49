"""More work, or the same work done worse: each kind by hand, at its boundary."""

from dataclasses import replace

import pytest

from pytest_perfdl.judge.work import StepWork, describe_implausible, operator_sides, work_change
from pytest_perfdl.machine.rates import Peaks
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
    assert work_sentence(found) == (
        "more work: 1.000 Mflop -> 1.500 Mflop/step (+50.0%), with all of the additional FLOPs in aten::mm"
    )


@pytest.mark.parametrize("flops, kind", [(1_009_000, "done worse"), (1_012_000, "more work")])
def test_a_hundredth_more_is_the_same_arithmetic(flops, kind):
    assert changed([product(), add()], [product(30_000, flops), add()]).kind == kind


def test_the_same_work_that_takes_longer_is_done_worse():
    found = changed([product(), add()], [product(40_000), add()])
    assert (found.kind, found.operator) == ("done worse", "aten::mm")
    assert work_sentence(found) == "same FLOPs in operators, but slower: aten::mm 50.0% -> 25.0% of its roofline"
    without = changed([product(), add()], [product(40_000), add()], peaks=None)
    assert work_sentence(without) == "same FLOPs in operators, but slower: aten::mm 20.00 µs -> 40.00 µs per step"


def test_what_grew_outside_of_operators_names_none():
    found = changed([product(), add()], [product(20_500), add()], grown_ns=50_000)
    assert (found.kind, found.operator) == ("done worse", "")
    assert (
        work_sentence(found)
        == "same FLOPs in operators, but slower: the additional time is outside of operators (Python, waiting)"
    )


@pytest.mark.parametrize("peaks", [PEAKS, None])
def test_another_element_type_is_dearer(peaks):
    found = changed([product(dtype="bfloat16")], [product(40_000, moved=2000)], peaks=peaks, call="fwd")
    assert found.kind == "dearer type"
    assert work_sentence(found) == (
        "fwd: same FLOPs in operators, slower data type: float32 instead of bfloat16, "
        "with all of the additional operator time in aten::mm"
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
        "same FLOPs in operators, but more memory traffic or operator calls per step: 2.000 KiB -> 4.000 KiB read and "
        "written, 1 -> 4 operator calls, with all of the additional operator time in aten::mm"
    )


def test_rounds_are_taken_together_and_nothing_is_said_without_operators():
    many = work_change("", [StepWork(2, (product(),))] * 3, [StepWork(4, (product(),))] * 2, PEAKS)
    assert (many.base.flops, many.new.flops) == (500_000, 250_000)
    assert work_change("", [], [StepWork(1, (product(),))]) is None
    assert work_change("", [StepWork(1, ())], [StepWork(1, ())]) is None


def test_an_operator_that_is_new_has_nothing_before():
    found = changed([add()], [add(), product()])
    assert (found.operator, found.base.flops, found.new.flops) == ("aten::mm", 0, 10**6)


def test_what_an_operator_is_bound_by_now_is_said():
    # 10 µs of arithmetic beside 9.8 and 10.2 µs of bytes.
    found = changed([product(moved=98_000)], [product(40_000, moved=102_000)])
    assert (found.base.bound, found.new.bound) == ("compute", "memory")
    said = "same FLOPs in operators, but slower: aten::mm 50.0% -> 25.5% of its roofline: memory-bound now"
    assert work_sentence(found) == said


class TestOperatorSides:
    def test_calls_of_equal_shapes_and_type_are_one_row(self):
        def shaped(time_ns, shapes, dtype="float32", flops=10**6, moved=200_000):
            return OperatorWork("aten::mm", shapes, dtype, 2, time_ns, flops, moved)

        base = [StepWork(2, (shaped(80_000, "[8]"), shaped(40_000, "[4]")))] * 3
        new = [StepWork(4, (shaped(80_000, "[8]"), shaped(90_000, "[4]", "bfloat16")))]
        first, second, third = operator_sides("fwd", base, new, PEAKS)
        assert [(each.shapes, each.dtype) for each in (first, second, third)] == [
            ("[8]", "float32"),
            ("[4]", "bfloat16"),
            ("[4]", "float32"),
        ]
        assert (first.call, first.operator) == ("fwd", "aten::mm")
        # 80 µs in 2 steps, 80 in 4; two calls of 100 kB at 10 GB/s are 20 µs, one MFLOP at 100 GFLOP/s 10.
        assert (first.base.time_ns, first.new.time_ns) == (40_000, 20_000)
        assert (first.base.roofline, first.base.bound) == (pytest.approx(20 / 80), "memory")
        assert first.base.flops_per_s == pytest.approx(10**6 / 80e-6)
        assert first.base.bytes_per_s == pytest.approx(200_000 / 80e-6)
        assert (second.base, third.new) == (None, None)

    def test_bound_by_arithmetic_where_that_takes_longer(self):
        (row,) = operator_sides("", [], [StepWork(1, (product(),))], PEAKS)
        assert (row.base, row.new.bound, row.new.roofline) == (None, "compute", pytest.approx(0.5))

    def test_what_has_no_cost_model_has_its_time_alone(self):
        (row,) = operator_sides("", [], [StepWork(1, (OperatorWork("aten::sort", "", "", 3, 900),))], PEAKS)
        assert (row.new.time_ns, row.new.calls, row.new.roofline, row.new.bound) == (900, 3, None, "")
        assert (row.new.flops_per_s, row.new.bytes_per_s) == (None, None)

    @pytest.mark.parametrize("time_ns, listed", [(10, 1), (11, 2)])
    def test_a_thousandth_of_the_time_is_left_out(self, time_ns, listed):
        work = (product(9990 if time_ns == 10 else 9989), product(time_ns, operator="aten::add"))
        assert len(operator_sides("", [], [StepWork(1, work)])) == listed


@pytest.mark.parametrize(
    "others, part", [(10, "all"), (300, "most"), (1000, "half"), (2500, "the largest part")], ids=str
)
def test_how_much_of_it_the_operator_holds_is_said(others, part):
    base = [product(operator=name) for name in ("aten::mm", "aten::bmm", "aten::baddbmm", "aten::addmm")]
    grown = [product(flops=10**6 + more) for more in (10**6, *[others * 1000 // 3] * 3)]
    new = [replace(each, operator=before.operator) for each, before in zip(grown, base, strict=True)]
    found = changed(base, new)
    assert work_sentence(found).endswith(f", with {part} of the additional FLOPs in aten::mm")


def test_what_counts_no_arithmetic_does_not_claim_that_it_is_the_same():
    said = work_sentence(changed([add(flops=0)], [add(50_000, flops=0)]))
    assert said.startswith("same bytes (arithmetic not counted), but slower: aten::add 10")
    said = work_sentence(changed([add(flops=0)], [add(50_000, flops=0, calls=3)]))
    assert said.startswith("more memory traffic or operator calls per step: 1000 B")


def test_what_fits_into_the_cache_is_bound_by_that():
    peaks = Peaks(PEAKS.flops_per_s, 1e10, bandwidths=((1024, 4e10), (2**20, 1e10)), cache_bytes=1000)
    cached, larger = (
        operator_sides("", [], [StepWork(1, (add(moved=moved),))], peaks)[0].new.bound for moved in (1000, 1001)
    )
    assert (cached, larger) == ("cache", "memory")


RATES = Peaks({"float32": 1e12, "bfloat16": 4e12}, 1e10, cache_bytes=1000)
"""A Mflop takes 1 us, or 250 ns in bfloat16; 10 kB take 1 us."""


def implausible(*operators, step_ns=10**9, peaks=RATES):
    return describe_implausible([StepWork(1, operators)] * 3, peaks, step_ns)


@pytest.mark.parametrize("step_ns, words", [(2101, ""), (2099, "a step takes 2.099 µs, but its FLOPs and bytes need")])
def test_a_step_is_not_faster_than_its_flops_and_bytes_at_the_peak_rates(step_ns, words):
    # Each at the rate of its type: 1 us and 2 us; bytes of the product, which fit into the cache, do not count.
    operators = product(2_000, 10**6), product(9_000, 8 * 10**6, dtype="bfloat16", operator="aten::bmm")
    said = implausible(*operators, step_ns=step_ns)
    assert said.startswith(words)
    assert bool(said) == bool(words)
    if words:
        assert "need at least 3.000 µs at the peak rates of this machine: check whether the result is computed" in said


@pytest.mark.parametrize("time_ns, faster", [(701, False), (699, True)])
def test_an_operator_is_not_faster_than_its_arithmetic(time_ns, faster):
    said = implausible(product(time_ns), product(10**6, operator="aten::bmm"))
    assert said.startswith("aten::mm [] takes 699 ns, but") == bool(said) == faster


@pytest.mark.parametrize("moved, faster", [(4000, False), (4001, True)])
def test_bytes_count_where_they_come_from_memory(moved, faster):
    # 4 kB take 400 ns, of a cache of 1 kB.
    assert bool(implausible(product(100, flops=1, moved=moved))) == faster
    assert not implausible(product(100, flops=1, moved=moved), peaks=replace(RATES, cache_bytes=None))


def test_what_has_no_rate_or_no_profile_is_plausible():
    assert not implausible(product(1, dtype="float8"), OperatorWork("aten::sort", "", "", 3, 0))
    assert not describe_implausible([], RATES, 1.0)
