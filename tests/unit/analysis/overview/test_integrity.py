"""What is missing or odd in a trace, counted by hand."""

from dataclasses import replace

import pytest

from pytest_perfdl.analysis.overview.findings import trace_integrity
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, each_trace_file, kernel, launch, step, trace, x


def test_nothing_is_wrong_with_nothing():
    found = trace_integrity(trace())
    assert (found.device_events, found.unlinked, found.dropped, found.messages) == (0, 0, 0, ())


def test_carry_over_and_lost_links():
    found = trace_integrity(
        trace(
            kernel("carried over", 0, 6, 50),
            step(1, 5, 100),
            launch(6, 1, 1),
            kernel("linked", 10, 10, 1),
            kernel("lost its launch", 30, 4, 99),
            kernel("on a stream without launches", 30, 4, 98, stream=9),
        )
    )
    assert (found.device_events, found.device_ns) == (4, 24_000)
    assert (found.carry_over, found.carry_over_ns) == (1, 6_000)
    assert (found.unlinked, found.unlinked_ns) == (3, 14_000)


def test_overlaps_within_a_stream():
    found = trace_integrity(
        trace(
            kernel("long", 0, 20, 1),
            kernel("inside", 5, 5, 2),
            kernel("over the end", 18, 4, 3),
            kernel("touching", 22, 4, 4),
            kernel("empty", 24, 0, 5),
            kernel("another stream", 0, 50, 6, stream=8),
            {**kernel("another device", 0, 50, 7), "pid": 1},
        )
    )
    assert (found.same_stream_overlaps, found.same_stream_overlap_ns) == (2, 7_000)
    assert (found.zero_duration, found.device_events) == (1, 7)


def test_kernels_before_their_launch():
    found = trace_integrity(
        trace(
            launch(10, 5, 1),
            kernel("a", 7, 4, 1),
            launch(20, 5, 2),
            kernel("b", 20, 1, 2),
            kernel("unlinked", 30, 1, 9),
        )
    )
    assert (found.early_starts, found.largest_early_start_ns) == (1, 3_000)


def test_overhead_by_name():
    names = [("Buffer Flush", 5), ("Activity Buffer Request", 1500), ("Buffer Flush", 7)]
    found = trace_integrity(trace(*(x(name, 10 * at, dur, "overhead", pid=-1) for at, (name, dur) in enumerate(names))))
    assert (found.overhead_events, found.overhead_ns) == (3, 1_512_000)
    assert list(found.overhead_by_name.items()) == [("Activity Buffer Request", 1_500_000), ("Buffer Flush", 12_000)]
    assert found.device_events == 0


def test_operators_that_bleed_over():
    events = [x("outer", 0, 10), x("over the end", 5, 10), x("another thread", 8, 30, tid=9), x("inside", 6, 2)]
    assert trace_integrity(trace(*events)).bled_over == 1
    assert trace_integrity(trace(*events), bled_over=7).bled_over == 7


COUNTS = (
    "Record counts: Out-of-range = {}, Blocklisted runtime = 52, Invalid ext correlations = 1, "
    "CPU GPU out-of-order = 0, Unexpected CUDA events = {}, CUPTI stopped early? = {}"
)


@pytest.mark.parametrize(
    ("top", "dropped", "out_of_range", "messages"),
    [
        ({"INFO": [COUNTS.format(0, 0, 0), "Processed 131 GPU records (5256 bytes)"]}, 0, 0, 0),
        ({"INFO": [COUNTS.format(12, 0, 0)]}, 0, 12, 0),
        ({"INFO": [COUNTS.format(12, 3, 1)]}, 4, 12, 1),
        ({"WARNING": ["CuptiActivityApi.cpp:300] Dropped 17 activity records"]}, 17, 0, 1),
        ({"WARNING": ["GPU trace buffers are full, events are being dropped"]}, 1, 0, 1),
        ({"ERROR": ["something else"], "WARNING": "a text, no list"}, 0, 0, 2),
        ({"INFO": None, "WARNING": [3]}, 0, 0, 1),
    ],
    ids=["clean", "out of range", "tally", "number", "no number", "warnings", "odd types"],
)
def test_what_the_profiler_says(top, dropped, out_of_range, messages):
    found = trace_integrity(trace(**top))
    assert (found.dropped, found.out_of_range, len(found.messages)) == (dropped, out_of_range, messages)


def test_what_the_reader_left_out():
    read_back = trace({**x("op", 0, 1), "ts": None}, {**x("op", 0, 1), "ts": "never"}, x("op", 0, 1))
    found = trace_integrity(read_back)
    assert found.dropped == 2
    assert found.messages == read_back.findings


@each_trace_file
def test_real_traces(path):
    found = trace_integrity(read(path))
    assert found.carry_over == found.unlinked == found.early_starts == found.same_stream_overlaps == 0
    assert found.dropped == found.out_of_range == found.bled_over == 0
    assert found.messages == ()
    assert bool(found.zero_duration) == path.name.startswith("resnet50")


@pytest.mark.corpus
def test_published_share_of_kernels_without_a_duration():
    kernels_without = trace_integrity(read(corpus_file("resnet50_workers4"))).zero_duration
    assert kernels_without == 639


def test_a_number_of_events_may_have_commas_and_a_repair_without_one_costs_none():
    def dropped(*findings):
        return trace_integrity(replace(trace(x("op", 0, 1)), findings=findings)).dropped

    assert dropped("1,200 events without a valid timestamp were skipped") == 1200
    assert dropped("the trace is truncated at byte 3: no event is incomplete") == 0
    assert dropped("the trace is truncated at byte 3: no event is incomplete", "7 events were skipped") == 7
