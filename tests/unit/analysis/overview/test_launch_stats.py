"""Launch delay, short kernels and queue length, worked out by hand."""

import random

import pytest

from pytest_perfdl.analysis.overview.tables import launch_stats
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, kernel, launch, trace


def _stats(*events):
    stats = launch_stats(trace(*events))
    assert stats is not None
    return stats


def test_delays_and_calls_by_hand():
    stats = _stats(
        launch(0, 6, 1),
        launch(10, 2, 2),
        launch(20, 4, 3, name="cudaMemcpyAsync"),
        kernel("a", 5, 4, 1),
        kernel("b", 40, 9, 2),
        kernel("Memcpy HtoD", 50, 1, 3, cat="gpu_memcpy"),
        kernel("unlinked", 60, 1, 99),
    )
    assert (stats.launches, stats.kernel_launches) == (3, 2)
    assert (stats.delay.min_ns, stats.delay.p50_ns, stats.delay.max_ns) == (5_000, 30_000, 30_000)
    assert stats.delay.mean_ns == pytest.approx(65_000 / 3)
    assert (stats.call.min_ns, stats.call.p50_ns, stats.call.p90_ns, stats.call.max_ns) == (2_000, 4_000, 6_000, 6_000)
    assert stats.short_kernels == 1, "a; the copy is no kernel"


def test_a_kernel_as_long_as_its_call_is_not_short():
    assert _stats(launch(0, 5, 1), kernel("k", 9, 5, 1)).short_kernels == 0
    assert _stats(launch(0, 6, 1), kernel("k", 9, 5, 1)).short_kernels == 1


def test_quantiles_are_values():
    events = [event for at in range(100) for event in (launch(100 * at, 1, at + 1), kernel("k", 101 * at, 1, at + 1))]
    delay = _stats(*events).delay
    assert (delay.min_ns, delay.p50_ns, delay.p90_ns, delay.p99_ns, delay.max_ns) == (0, 49_000, 89_000, 98_000, 99_000)


def test_a_graph_launch_counts_once():
    stats = _stats(
        launch(0, 10, 1, name="cudaGraphLaunch"),
        kernel("a", 20, 4, 1),
        kernel("b", 24, 4, 1),
        kernel("c", 30, 4, 1, stream=8),
        launch(22, 2, 2),
        kernel("d", 34, 1, 2),
    )
    assert (stats.launches, stats.kernel_launches) == (2, 2)
    assert (stats.delay.max_ns, stats.delay.min_ns) == (20_000, 12_000)
    assert stats.short_kernels == 1, "the graph's kernels take 12 us together, longer than its call"
    assert [(queue.stream, queue.launches) for queue in stats.queues] == [(7, 2), (8, 1)]


def test_queue_length_by_hand():
    (queue,) = _stats(
        launch(0, 1, 1),
        launch(2, 1, 2),
        launch(4, 1, 3),
        launch(30, 1, 4),
        kernel("a", 5, 5, 1),
        kernel("b", 10, 5, 2),
        kernel("c", 15, 5, 3),
        kernel("d", 34, 5, 4),
    ).queues
    # 1 from 0, 2 from 2, 3 from 4, 2 from 5, 1 from 10, 0 from 15, 1 from 30 to 34
    assert (queue.device, queue.stream, queue.launches, queue.max_length) == (0, 7, 4, 3)
    assert queue.span_ns == 34_000
    assert queue.empty_ns == 15_000
    assert queue.mean_length == (1 * 2 + 2 * 2 + 3 * 1 + 2 * 5 + 1 * 5 + 1 * 4) / 34


def test_a_start_at_the_moment_of_a_launch_makes_room_for_it():
    (queue,) = _stats(launch(0, 1, 1), kernel("a", 5, 1, 1), launch(5, 1, 2), kernel("b", 9, 1, 2)).queues
    assert (queue.max_length, queue.empty_ns) == (1, 0)


def test_a_kernel_that_starts_before_its_call_is_never_queued():
    stats = _stats(launch(10, 5, 1), kernel("k", 8, 5, 1))
    assert stats.delay.min_ns == -2_000
    (queue,) = stats.queues
    assert (queue.max_length, queue.mean_length, queue.span_ns) == (0, 0.0, 0)


def test_nothing_to_join():
    assert launch_stats(trace()) is None
    assert launch_stats(trace(launch(0, 1, 1), kernel("k", 5, 1, 2))) is None


@pytest.mark.parametrize("seed", range(10))
def test_queues_against_counting_at_every_microsecond(seed):
    draw = random.Random(seed)
    pairs = [(at := draw.randrange(40), at + draw.randrange(-2, 9), draw.randrange(7, 9)) for _ in range(9)]
    # A stream runs in the order of launches.
    calls, starts = (sorted((stream, times[column]) for *times, stream in pairs) for column in (0, 1))
    pairs = [(at, begins, stream) for (stream, at), (_, begins) in zip(calls, starts, strict=True)]
    events = [launch(at, 1, number) for number, (at, _, _) in enumerate(pairs, 1)]
    events += [
        kernel("k", max(begins, 0), 1, number, stream=stream) for number, (_, begins, stream) in enumerate(pairs, 1)
    ]
    for queue in _stats(*events).queues:
        own = [(at, max(begins, at)) for at, begins, stream in pairs if stream == queue.stream]
        first, last = min(at for at, _ in own), max(begins for _, begins in own)
        lengths = [sum(at <= moment < begins for at, begins in own) for moment in range(first, last)]
        assert queue.max_length == max(lengths, default=0)
        assert queue.span_ns == 1000 * len(lengths)
        assert queue.empty_ns == 1000 * lengths.count(0)
        assert queue.mean_length == pytest.approx(sum(lengths) / len(lengths) if lengths else 0.0)


@pytest.mark.corpus
def test_every_launch_of_a_real_trace():
    found = read(corpus_file("nccl_rank0"))
    stats = launch_stats(found)
    assert stats is not None
    assert (stats.launches, stats.kernel_launches) == (1204, 1154)
    starts = {
        row["correlation"]: int(found.start[index]) for index in found.launch_rows() for row in [found.args(index)]
    }
    device = found.device_rows()
    delays = [int(found.start[row]) - starts[found.args(row)["correlation"]] for row in device]
    assert (stats.delay.min_ns, stats.delay.max_ns) == (min(delays), max(delays))
    assert stats.delay.mean_ns == pytest.approx(sum(delays) / len(delays))
    assert sum(queue.launches for queue in stats.queues) == 1204
