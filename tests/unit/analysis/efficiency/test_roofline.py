"""Floors against measured times by hand, and on public traces."""

import pytest

from pytest_perfdl.analysis.efficiency.roofline import RooflineRow, WorkRate, roofline, work_rates
from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.trace import Category, read
from unit.trace.chrome import corpus_file, each_recording, each_trace_file, kernel, launch, trace, x

PEAKS = Peaks({"float32": 1e12, "tf32": 8e12}, 1e11)
MM = {"Input Dims": [[100, 200], [200, 300]], "Input type": ["float", "float"]}
# 12 Mflop: 12 us at 1 Tflop/s; 440 kB: 4.4 us at 100 GB/s.
FLOPS, MOVED = 2 * 100 * 200 * 300, 4 * (20_000 + 60_000 + 30_000)
SHAPES = "[[100, 200], [200, 300]]"


def add(size, ts=0, **more):
    return x(
        "aten::add", ts, 5, **{"Input Dims": [[size], [size], []], "Input type": ["float", "float", "Scalar"]}, **more
    )


def test_a_product_bound_by_computing():
    (row,) = roofline(trace(x("aten::mm", 0, 50, **MM), launch(5, 1, 1), kernel("sgemm", 10, 30, 1)), PEAKS)
    assert row == RooflineRow("aten::mm", SHAPES, "float32", 1, 30_000, 1.0, FLOPS, MOVED, 12_000.0, "compute")
    assert row.efficiency == pytest.approx(0.4)
    assert row.flops_per_s == pytest.approx(FLOPS / 30e-6)
    assert row.bytes_per_s == pytest.approx(MOVED / 30e-6)


def test_an_addition_bound_by_memory():
    (row,) = roofline(trace(add(1_000_000), launch(2, 1, 1), kernel("add", 10, 240, 1)), PEAKS)
    assert (row.roofline_flops, row.bytes, row.bound) == (0, 12_000_000, "memory")
    assert row.floor_ns == pytest.approx(120_000)
    assert row.efficiency == pytest.approx(0.5)
    assert row.flops_per_s is None


def test_calls_add_up_and_concurrent_kernels_count_once():
    (row,) = roofline(
        trace(
            x("aten::mm", 0, 20, **MM),
            x("aten::mm", 30, 20, **MM),
            launch(5, 1, 1),
            launch(35, 1, 2),
            kernel("sgemm", 40, 30, 1, stream=7),
            kernel("sgemm", 50, 30, 2, stream=8),
        ),
        PEAKS,
    )
    assert (row.count, row.time_ns, row.roofline_flops, row.share) == (2, 40_000, 2 * FLOPS, 1.0)
    assert row.efficiency == pytest.approx(0.6)


def test_an_operator_with_a_model_stands_for_what_is_inside_it():
    linear = {"Input Dims": [[100, 200], [300, 200], [300]], "Input type": ["float"] * 3}
    (row,) = roofline(
        trace(
            x("aten::linear", 0, 50, **linear),
            x("aten::addmm", 5, 40, **{"Input Dims": [[300], [100, 200], [200, 300]], "Input type": ["float"] * 3}),
            add(9, 6),
            launch(7, 1, 1),
            launch(20, 1, 2),
            kernel("add", 10, 5, 1),
            kernel("sgemm", 30, 15, 2),
        ),
        PEAKS,
    )
    assert (row.operator, row.count, row.time_ns, row.roofline_flops) == ("aten::linear", 1, 20_000, FLOPS)


def test_what_is_not_covered_is_listed_with_its_share():
    found = roofline(
        trace(
            x("aten::mm", 0, 10, **MM),
            launch(1, 1, 1),
            kernel("sgemm", 5, 40, 1),
            x("aten::sort", 20, 10, **{"Input Dims": [[5]], "Input type": ["float"]}),
            launch(21, 1, 2),
            kernel("sort", 60, 30, 2),
            x("aten::mm", 40, 5),
            launch(41, 1, 3),
            kernel("sgemm", 100, 10, 3),
            x("aten::copy_", 50, 9, **{"Input Dims": [[5], [5]], "Input type": ["float", "float"]}),
            launch(51, 1, 4, name="cudaMemcpyAsync"),
            kernel("Memcpy HtoD (Pinned -> Device)", 120, 12, 4, cat="gpu_memcpy"),
            kernel("before", 1, 8, 77),
        ),
        PEAKS,
    )
    assert [(row.operator, row.not_covered, row.time_ns, row.share) for row in found] == [
        ("aten::mm", "", 40_000, 0.4),
        ("aten::sort", "no model", 30_000, 0.3),
        ("aten::copy_", "copy between host and device", 12_000, 0.12),
        ("aten::mm", "arguments not recorded", 10_000, 0.1),
        ("", "no operator known", 8_000, 0.08),
    ]
    assert {row.roofline_flops for row in found[1:]} == {row.efficiency for row in found[1:]} == {None}


def test_copies_on_the_device_are_covered():
    (row,) = roofline(
        trace(
            x("aten::copy_", 0, 9, **{"Input Dims": [[1000], [1000]], "Input type": ["float", "float"]}),
            launch(1, 1, 4, name="cudaMemcpyAsync"),
            kernel("Memcpy DtoD (Device -> Device)", 20, 10, 4, cat="gpu_memcpy"),
        ),
        PEAKS,
    )
    assert (row.bytes, row.not_covered) == (8000, "")


def test_tf32_is_seen_in_kernels():
    events = (x("aten::mm", 0, 50, **MM), launch(5, 1, 1), x("aten::mm", 60, 50, **MM), launch(65, 1, 2))
    kernels = (kernel("sm80_xmma_gemm_f32f32_tf32f32", 10, 20, 1), kernel("ampere_sgemm_128x64", 70, 30, 2))
    found = {row.dtype: row for row in roofline(trace(*events, *kernels), PEAKS)}
    assert found.keys() == {"tf32", "float32"}
    assert found["float32"].floor_ns == pytest.approx(12_000)
    assert found["tf32"].floor_ns == pytest.approx(4_400), "bound by memory at eight times the rate"
    assert found["tf32"].bound == "memory"


def test_without_device_events_time_is_host_time():
    found = roofline(
        trace(x("aten::mm", 0, 50, **MM), x("aten::resize_", 10, 20), x("other", 100, 30), x("aten::empty", 105, 10)),
        PEAKS,
    )
    assert [(row.operator, row.time_ns, row.share) for row in found] == [
        ("aten::mm", 50_000, 0.625),
        ("other", 20_000, 0.25),
        ("aten::empty", 10_000, 0.125),
    ]
    assert found[0].efficiency == pytest.approx(12 / 50)


def test_without_peaks_rates_are_shown_and_efficiency_is_not():
    events = (x("aten::mm", 0, 50, **MM), launch(5, 1, 1), kernel("sgemm", 10, 30, 1))
    (row,) = roofline(trace(*events))
    assert (row.floor_ns, row.efficiency, row.bound) == (None, None, None)
    assert row.flops_per_s == pytest.approx(FLOPS / 30e-6)
    (row,) = roofline(trace(*events), Peaks({"bfloat16": 1e15}, 1e12))
    assert row.efficiency is None, "the peak of its element type is not known"
    (row,) = roofline(trace(*events, deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]))
    assert row.floor_ns == pytest.approx(FLOPS / 19.5e12 * 1e9)
    for odd in ({}, [None], [{"name": 3}], [{"name": "Unheard of"}]):
        assert roofline(trace(*events, deviceProperties=odd))[0].floor_ns is None


def test_zero_durations_and_nothing_at_all():
    (row,) = roofline(trace(x("aten::mm", 0, 50, **MM), launch(5, 1, 1), kernel("sgemm", 10, 0, 1)), PEAKS)
    assert (row.time_ns, row.share, row.efficiency, row.flops_per_s, row.bytes_per_s) == (0, 0.0, None, None, None)
    assert roofline(trace()) == ()


def test_arguments_of_odd_form_are_not_covered():
    (row,) = roofline(trace(x("aten::mm", 0, 50, **{"Input Dims": "odd", "Input type": ["float", "float"]})), PEAKS)
    assert row.not_covered == "arguments not recorded"


def check_shares(trace_of):
    found = roofline(trace_of)
    if found:
        assert sum(row.share for row in found) == pytest.approx(1)
    for row in found:
        assert bool(row.not_covered) == (row.roofline_flops is None) == (row.bytes is None)
    return found


@each_trace_file
def test_all_time_of_public_traces_is_listed(path):
    trace_of = read(path)
    found = check_shares(trace_of)
    device = trace_of.device_rows()
    total = int(trace_of.duration[device].sum())
    if total:
        for row in found:
            assert row.time_ns <= round(row.share * total) + 1
        calls = sum(row.count for row in found)
        assert 0 < calls <= len(device)


@each_recording
def test_recordings_do_the_arithmetic_of_their_products(path):
    trace_of = read(path)
    found = check_shares(trace_of)
    shaped = any("Input Dims" in trace_of.args(row) for row in trace_of.rows(Category.CPU_OP).tolist())
    assert any(row.roofline_flops for row in found) == shaped


@pytest.mark.corpus
def test_h100_by_hand():
    found = {(row.operator, row.shapes): row for row in roofline(read(corpus_file("h100_bert_small")))}
    row = found["aten::linear", "[[1, 141, 512], [30522, 512], [30522]]"]
    assert row.roofline_flops == 2 * 141 * 512 * 30522
    assert row.bytes == 2 * (141 * 512 + 30522 * 512 + 30522 + 141 * 30522)
    assert row.floor_ns == pytest.approx(row.bytes / 3350)
    assert row.time_ns == 41_280
    attention = [row for (name, _), row in found.items() if name == "aten::scaled_dot_product_attention"]
    assert sum(row.roofline_flops for row in attention) == 4 * 4 * 8 * 141 * 141 * 64
    covered = sum(row.share for row in found.values() if not row.not_covered)
    assert covered == pytest.approx(0.961, abs=0.001)


def test_the_type_is_that_of_the_product_inside():
    # Autocast: `linear` gets float32, casts, and calls itself with bfloat16.
    half = {"Input Dims": [[256, 512], [512, 512]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    whole = {"Input Dims": [[256, 512], [512, 512]], "Input type": ["float", "float"]}
    recorded = trace(
        x("aten::linear", 0, 100, **whole),
        x("aten::to", 5, 20, **{"Input Dims": [[256, 512]], "Input type": ["float"]}),
        x("aten::linear", 30, 60, **half),
        x("aten::mm", 40, 40, **half),
        x("aten::linear", 200, 100, **whole),
        x("aten::mm", 240, 40, **whole),
    )
    peaks = Peaks({"float32": 1e12, "bfloat16": 4e12}, 1e11)
    rows = {row.dtype: row for row in roofline(recorded, peaks)}
    assert {row.operator for row in rows.values()} == {"aten::linear"}
    assert {dtype: (row.count, row.time_ns) for dtype, row in rows.items()} == {
        "bfloat16": (1, 100_000),
        "float32": (1, 100_000),
    }
    flops = 2 * 256 * 512 * 512
    assert rows["bfloat16"].roofline_flops == rows["float32"].roofline_flops == flops
    # Its own arguments are what must be moved.
    assert rows["bfloat16"].bytes == rows["float32"].bytes
    assert rows["bfloat16"].floor_ns == pytest.approx(max(flops / 4e12, rows["bfloat16"].bytes / 1e11) * 1e9)


def test_rates_are_those_of_a_call_over_its_device_events():
    found = work_rates(
        trace(
            x("aten::mm", 0, 50, **MM),
            launch(5, 1, 1),
            launch(7, 1, 2),
            kernel("sgemm", 10, 30, 1),
            kernel("reduce", 60, 10, 2),
            x("aten::sort", 100, 20),
            launch(105, 1, 3),
            kernel("sort", 110, 10, 3),
        )
    )
    rates = FLOPS / 40e-6, MOVED / 40e-6
    assert found == [
        WorkRate(10_000, 40_000, *map(pytest.approx, rates)),
        WorkRate(60_000, 70_000, *map(pytest.approx, rates)),
    ]


@each_trace_file
def test_rates_over_their_time_are_all_work_of_the_rows(path):
    recorded = read(path)
    rows = [row for row in roofline(recorded) if not row.not_covered and row.time_ns]
    done = sum(each.flops_per_s * (each.end_ns - each.start_ns) / 1e9 for each in work_rates(recorded))
    assert done == pytest.approx(sum(row.roofline_flops for row in rows), rel=1e-9)
