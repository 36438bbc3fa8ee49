import math
from dataclasses import replace

import pytest

from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.machine.utilization import (
    NAMES,
    NO_RATES,
    OperatorWork,
    Utilization,
    case_rates,
    host_overhead,
    mfu,
    mix_of,
    utilization,
)
from pytest_perfdl.model.record import CaseWork

PEAKS = Peaks({"float32": 1e11, "bfloat16": 4e11}, 1e10, bandwidths=((2**20, 4e10), (2**26, 1e10)), cache_bytes=2**24)
"""100 Gflop/s and 400 of bfloat16; 40 GB/s in cache, 10 GB/s from memory."""
# Two steps, each one product of 1024 x 1024 x 1024 matrices: 2.147 Gflop, 12 MiB.
PRODUCT = OperatorWork(
    "aten::mm", "[[1024, 1024], [1024, 1024]]", "float32", 2, 60_000_000, 2 * 2 * 1024**3, 2 * 3 * 2**22
)
# And a copy of 64 MiB to 64 MiB: no arithmetic.
COPY = OperatorWork("aten::copy_", "[[16777216], [16777216]]", "float32", 2, 40_000_000, 0, 2 * 2**27)
UNKNOWN = OperatorWork("mine::op", "", "", 2, 25_000_000)


def test_a_matrix_product_has_its_share_of_the_peak():
    found = utilization([PRODUCT], 2, 40_000_000, PEAKS)
    assert found.values["achieved_flops"] == pytest.approx(2 * 1024**3 / 0.04)
    assert found.values["flops_utilization"] == pytest.approx(2 * 1024**3 / 1e11 / 0.04)
    # 21.47 ms of arithmetic in 30 ms of the operator.
    assert found.values["roofline"] == pytest.approx(2 * 1024**3 / 1e11 / 0.03)
    assert (
        found.absent["bandwidth_utilization"] == "100 % of the bytes belong to operators whose data fits into the cache"
    )
    assert found.coverage == 1


def test_a_copy_uses_the_memory():
    found = utilization([COPY], 2, 20_000_000, PEAKS)
    assert found.values["bandwidth_utilization"] == pytest.approx(2**27 / 1e10 / 0.02)
    assert found.values["roofline"] == pytest.approx(2**27 / 1e10 / 0.02)
    assert found.absent == dict.fromkeys(NAMES[:2], "no FLOPs were counted in the step")


def test_bandwidth_is_that_of_each_working_set():
    # 8 MiB: half of the way from 1 to 64 MiB on a logarithmic axis.
    halfway = OperatorWork("aten::add", "[]", "float32", 1, 1_000_000, 2**20, 2**23)
    assert halfway.least_ns(PEAKS) == pytest.approx(2**23 / 2.5e10 * 1e9)
    assert halfway.bound(PEAKS) == "cache"
    assert COPY.bound(PEAKS) == "memory"
    assert PRODUCT.bound(PEAKS) == "compute"


def test_what_is_written_in_place_uses_its_memory_once():
    # Two calls that read 8 MiB each and write it back: twice the bytes, at the bandwidth of 8 MiB, which fit.
    twice = OperatorWork("aten::mul_", "[]", "float32", 2, 10_000_000, 0, 2 * 2**24, 2 * 2**23)
    assert twice.working_set == 2**23
    assert twice.least_ns(PEAKS) == pytest.approx(2 * 2**24 / 2.5e10 * 1e9)
    small = Peaks(PEAKS.flops_per_s, 1e10, bandwidths=PEAKS.bandwidths, cache_bytes=2**23)
    assert "bandwidth_utilization" in utilization([twice], 1, 10_000_000, small).absent
    found = utilization([twice], 1, 10_000_000, Peaks({}, 1e10, bandwidths=PEAKS.bandwidths, cache_bytes=2**23 - 1))
    assert found.values["bandwidth_utilization"] == pytest.approx(2 * 2**24 / 2.5e10 / 0.01)


def test_a_step_is_the_sum_of_its_operators():
    found = utilization([PRODUCT, COPY, UNKNOWN], 2, 70_000_000, PEAKS)
    compute, memory = 2 * 1024**3 / 1e11, 2**27 / 1e10
    assert found.values["roofline"] == pytest.approx((compute + memory) / 0.05)
    assert found.coverage == pytest.approx(100 / 125)
    bytes_of_product = 3 * 2**22 / PEAKS.bandwidth(3 * 2**22)
    assert found.values["bandwidth_utilization"] == pytest.approx((memory + bytes_of_product) / 0.07)
    assert all(0 < found.values[name] < 1 for name in NAMES[1:])


def test_both_sides_are_held_against_the_element_types_of_the_base():
    # The base did it in bfloat16, four times as fast: the head's float32 is held against the same peak.
    base = OperatorWork("aten::mm", "[]", "bfloat16", 1, 1, 10**9, 10**6)
    head = OperatorWork("aten::mm", "[]", "float32", 1, 1, 10**9, 2 * 10**6)
    own = utilization([head], 1, 20_000_000, PEAKS)
    held = utilization([head], 1, 20_000_000, PEAKS, mix_of([base]))
    assert own.values["flops_utilization"] == pytest.approx(0.5)
    assert held.values["flops_utilization"] == pytest.approx(0.125)
    assert mix_of([base, base, head]) == pytest.approx({"bfloat16": 2 / 3, "float32": 1 / 3})


def test_what_is_not_known_is_absent_with_its_reason():
    assert utilization([], 2, 1e6, PEAKS).absent == dict.fromkeys(NAMES, "no operators were profiled")
    found = utilization([UNKNOWN], 2, 1e6, PEAKS)
    assert (found.values, found.coverage) == ({}, 0.0)
    assert found.absent == dict.fromkeys(NAMES, "no operator has a cost model and recorded shapes")
    assert utilization([PRODUCT], 2, 0, PEAKS).absent["roofline"] == "the step time is 0"
    without = utilization([PRODUCT], 2, 1e6, None)
    assert set(without.values) == {"achieved_flops"}
    assert without.absent["roofline"] == NO_RATES
    integers = OperatorWork("aten::mm", "[]", "int8", 1, 1000, 10**6, 10**3)
    found = utilization([integers], 1, 1e6, PEAKS)
    assert found.absent["flops_utilization"] == "the peak rate of int8 is unknown"
    assert found.absent["roofline"] == "the measured time of the covered operators is 0"
    assert not math.isnan(found.values["achieved_flops"])


def test_host_overhead_is_what_is_left_of_the_gaps():
    # A profiled step of 10.5 ms has 2 ms outside of operators, of which 1,000 events took 1 µs each.
    assert host_overhead(2e6, 1000, 1000, 10.5e6, 10e6) == pytest.approx(0.1)
    assert host_overhead(0.5e6, 1000, 1000, 10.5e6, 10e6) == 0
    assert host_overhead(2e6, 1000, 1000, 11.6e6, 10e6) is None
    assert host_overhead(2e6, 1000, 1000, 10.5e6, 0) is None


def test_mfu_is_of_what_the_model_needs_at_the_peak_of_its_type():
    mix = {"bfloat16": 0.9, "float32": 0.1}
    # 2 Gflop in 10 ms are 200 Gflop/s of 400.
    assert mfu(2e9, 10_000_000, PEAKS, mix) == pytest.approx(0.5)
    assert mfu(2e9, 10_000_000, None, mix) is None
    assert mfu(2e9, 10_000_000, PEAKS, {"float64": 1.0}) is None
    assert mfu(2e9, 10_000_000, PEAKS, {}) is None
    assert mfu(2e9, 0, PEAKS, mix) is None


def test_the_rates_of_a_case_are_its_work_over_its_time():
    # By hand: in 50 us, 8 items, 2 Mflop and 1 MiB. Least 20 us of arithmetic, 26.2 us of bytes at 40 GB/s.
    work = CaseWork(items=8, flops=2e6, bytes=2**20, dtype="float32")
    found = case_rates(work, 50_000, PEAKS)
    assert found.values == {
        "items_per_s": pytest.approx(160_000),
        "flops_per_s": pytest.approx(4e10),
        "bytes_per_s": pytest.approx(2**20 / 50e-6),
        "roofline": pytest.approx(2**20 / 4e10 / 50e-6),
    }
    assert found.absent == {}
    # In a quarter of the bytes, the arithmetic is what takes longest.
    assert case_rates(CaseWork(flops=2e6, bytes=2**18, dtype="float32"), 50_000, PEAKS).values[
        "roofline"
    ] == pytest.approx(0.4)


def test_a_case_whose_caches_are_emptied_has_the_bandwidth_of_memory():
    work = CaseWork(flops=0.0, bytes=2**20)
    warm, cold = (case_rates(each, 50_000, PEAKS).values["roofline"] for each in (work, replace(work, cold=True)))
    assert cold / warm == pytest.approx(4e10 / PEAKS.bytes_per_s)


@pytest.mark.parametrize(
    "stated, peaks, why",
    [
        ({"flops": 1.0}, PEAKS, "the test does not state bytes="),
        ({"bytes": 1.0}, PEAKS, "the test does not state flops="),
        ({"flops": 1.0, "bytes": 1.0, "dtype": "float32"}, None, NO_RATES),
        ({"flops": 1.0, "bytes": 1.0, "dtype": "float16"}, PEAKS, "the peak rate of float16 is unknown"),
        ({"flops": 1.0, "bytes": 1.0}, PEAKS, "its arguments have no tensor, whose element type the peak rate"),
    ],
)
def test_a_case_without_a_roofline_says_why(stated, peaks, why):
    found = case_rates(CaseWork(**stated), 1000, peaks)
    assert "roofline" not in found.values
    assert found.absent["roofline"].startswith(why)
    assert len(found.values) == len(stated.keys() - {"dtype"})


def test_the_element_type_does_not_matter_without_arithmetic():
    found = case_rates(CaseWork(flops=0.0, bytes=2**20), 50_000, PEAKS)
    assert found.values["roofline"] == pytest.approx(2**20 / 4e10 / 50e-6)
    assert found.values["flops_per_s"] == 0


def test_nothing_is_said_of_a_case_whose_test_states_nothing():
    assert case_rates(None, 1000, PEAKS) == case_rates(CaseWork(items=1), None, PEAKS) == Utilization({})
    assert case_rates(CaseWork(items=1), 1000, None) == Utilization({"items_per_s": 1e6})
