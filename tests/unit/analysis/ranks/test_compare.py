"""Ranks of one job: clocks, skew, who waits for whom."""

import pytest

from pytest_perfdl.analysis.ranks import Straggler, ranks
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, kernel, launch, step, trace, x

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
PERIOD = 1000


def rank(
    late, *, number=None, clock=0, base=0, count=10, first=0, world=None, stream=20, compute=100, group=None, jitter=()
):
    """A rank that starts the nth all-reduce `late[n % len(late)]` us after 400 us of each period; all end at 700."""
    events = []
    for index in range(first, first + count):
        begin = index * PERIOD + clock
        off = jitter[index % len(jitter)] if jitter else 0
        starts = begin + 400 + late[index % len(late)]
        args = {"Process Group Name": group, "Seq": index} if group else {}
        events += [
            step(index, begin, 900),
            launch(begin, 5, 2 * index),
            kernel("gemm", begin + 10, compute, 2 * index),
            launch(begin + 20, 5, 2 * index + 1),
            kernel(REDUCE, starts, begin + 700 + off - starts, 2 * index + 1, stream=stream, **args),
        ]
    info = {} if number is None else {"distributedInfo": {"rank": number, "world_size": world}}
    return trace(*events, baseTimeNanoseconds=base, **info)


def test_the_rank_that_comes_last_and_what_the_others_wait():
    found = ranks([rank([0], number=0), rank([50], number=1)])
    assert [each.rank for each in found.ranks] == [0, 1]
    assert [each.waiting_ns for each in found.ranks] == [500_000, 0]
    assert found.waits_ns == found.exposed_waits_ns == ((0, 500_000), (0, 0))
    assert [each.last for each in found.ranks] == [0, 10]
    assert found.most_often_last == 1
    # Nothing runs on its device in the 50 us by which it is late.
    assert found.straggler == Straggler(rank=1, since_step=0, cause="host", cost_ns=50_000)
    assert len(found.collectives) == 10
    assert (found.unmatched, found.residual_ns) == (0, 0)
    assert found.skew_median_ns == found.skew_max_ns == 50_000
    assert found.findings == ()
    one = found.collectives[0]
    assert (one.group, one.name) == ("stream 0", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert one.duration_ns == (300_000, 250_000)
    assert one.wait_ns == (50_000, 0)


def test_a_ranks_own_figures():
    (own,) = ranks([rank([0], compute=450, count=2)]).ranks
    # computing 10-460, communication 400-700 of each period of 1000
    assert own.span_ns == 1_690_000
    assert own.busy_ns == 2 * 690_000
    assert own.compute_ns == 2 * 450_000
    assert own.communication_ns == 2 * 300_000
    assert own.exposed_communication_ns == 2 * 240_000
    assert own.steps == 2
    # windows [0, 900) and [900, 1900)
    assert own.step_mean_ns == 950_000
    assert (own.waiting_ns, own.last, own.clock_offset_ns) == (0, 0, 0)


@pytest.mark.parametrize("clock", [-5_000_000, -777, 0, 3, 123_456_789], ids=str)
def test_clocks_are_aligned_on_the_ends(clock):
    found = ranks([rank([0, 50]), rank([20], clock=clock + 10_000_000)])
    assert found.ranks[1].clock_offset_ns == -(clock + 10_000_000) * 1000
    assert found.residual_ns == 0
    assert [each.last for each in found.ranks] == [5, 5]
    assert [max(each.wait_ns) for each in found.collectives] == [20_000, 30_000] * 5
    assert (found.skew_median_ns, found.skew_max_ns) == (25_000, 30_000)
    assert found.most_often_last is None, "two are equally often last"
    assert found.straggler is None


def test_times_are_relative_to_the_base():
    base = 1_700_000_000_000_000_000
    found = ranks([rank([0], base=base), rank([30], base=base + 5_000_000, clock=-5000)])
    assert found.ranks[1].clock_offset_ns == 0
    assert found.skew_max_ns == 30_000


def test_what_the_ends_disagree_by_is_said_and_is_no_skew():
    found = ranks([rank([0]), rank([25], jitter=[30, -30])])
    assert found.ranks[1].clock_offset_ns == 0
    assert found.residual_ns == 30_000
    assert found.straggler is None
    assert [each.last for each in found.ranks] == [0, 0]


def test_three_ranks_in_the_order_of_their_numbers():
    found = ranks([rank([0], number=5), rank([100], number=2), rank([40], number=3)])
    assert [each.rank for each in found.ranks] == [2, 3, 5]
    assert [each.waiting_ns for each in found.ranks] == [0, 600_000, 1_000_000]
    assert found.waits_ns == ((0, 0, 0), (600_000, 0, 0), (1_000_000, 0, 0))
    # Without rank 2 the job would wait for rank 3, which is 40 us late.
    assert found.straggler == Straggler(rank=2, since_step=0, cause="host", cost_ns=60_000)
    assert found.findings == ()


def test_traces_of_different_jobs():
    found = ranks([rank([0], number=0, world=2), rank([0], number=1, world=16)])
    assert found.findings == ("the traces are from jobs of different sizes: 2, 16 ranks",)


def test_numbers_that_are_missing_or_double_are_places():
    found = ranks([rank([0], number=1), rank([0], number=1)])
    assert [each.rank for each in found.ranks] == [0, 1]
    found = ranks([rank([0], number=1), rank([0])])
    assert [each.rank for each in found.ranks] == [0, 1]
    assert found.findings == ("not all traces have a rank number, so ranks are numbered in the order of the traces",)


def test_collectives_that_only_one_rank_recorded_at_the_beginning():
    # Without numbers the nth is not the nth: ends agree only if the first two of rank 0 are left out.
    lateness = [0, 10, 40, 20, 70, 30, 60]
    jitter = [0, 90, 10, 60, 30, 80, 20]
    whole = rank(lateness, count=7, jitter=jitter)
    found = ranks([whole, rank([late + 20 for late in lateness], count=5, first=2, jitter=jitter)])
    assert len(found.collectives) == 5
    assert found.unmatched == 2
    assert {max(each.wait_ns) for each in found.collectives} == {20_000}
    assert found.findings == (
        "not all traces have a rank number, so ranks are numbered in the order of the traces",
        "2 of 12 collectives were not found on all ranks",
    )


def test_sequence_numbers_match_whatever_the_order():
    found = ranks([rank([0], group="dp", count=4), rank([20], group="dp", count=4, first=2, stream=99)])
    assert len(found.collectives) == 2
    assert found.collectives[0].group == "dp"
    assert found.unmatched == 4


def test_streams_are_matched_by_their_place_not_their_number():
    assert len(ranks([rank([0], stream=20), rank([0], stream=33)]).collectives) == 10


def test_collectives_that_do_not_run_at_the_same_time_are_not_the_same():
    early = [kernel(REDUCE, 1000 * index, 100, index) for index in range(6)]
    late = [kernel(REDUCE, 1000 * index + (0 if index % 2 else 400), 100, index) for index in range(6)]
    found = ranks([trace(*early), trace(*late)])
    assert len(found.collectives) == 3
    assert found.ranks[1].clock_offset_ns in (0, -400_000)
    assert found.unmatched == 6


def test_ranks_without_a_device():
    def on_host(begin, end, tid):
        return trace(
            step(1, 0, 1000),
            x("aten::mm", 0, 100),
            x("gloo:all_reduce", begin, end - begin, "user_annotation", tid=tid),
        )

    found = ranks([on_host(200, 800, 7), on_host(500, 800, 8)])
    assert [each.waiting_ns for each in found.ranks] == [300_000, 0]
    assert found.most_often_last == 1
    assert found.straggler is None, "late in one step is a hiccup"
    assert found.ranks[0].span_ns == 1_000_000
    assert found.ranks[0].exposed_communication_ns == 600_000
    assert (found.ranks[0].busy_ns, found.ranks[0].steps) == (0, 1)


def test_nothing_in_common():
    found = ranks([trace(), rank([0])])
    assert found.collectives == ()
    assert found.straggler is None
    assert found.unmatched == 10
    assert found.findings[-1] == "the skew between ranks is unknown, because no collective runs on all ranks"
    assert found.ranks[0].span_ns == 0
    assert ranks([trace()]).findings == (
        "not all traces have a rank number, so ranks are numbered in the order of the traces",
    )
    with pytest.raises(ValueError, match="no traces"):
        ranks([])


@pytest.mark.corpus
def test_two_public_ranks_of_128():
    found = ranks([read(corpus_file(f"nccl_rank{number}")) for number in (1, 0)])
    first, second = found.ranks
    assert (first.rank, second.rank) == (0, 1)
    assert first.span_ns == 1_222_847_000
    assert round(first.busy_ns / first.span_ns * 100, 4) == 44.7853
    # Both groups of two ranks on stream 203 and the third and ninth exchange on stream 84 end within 0.4 ms of each
    # other; the other six run at different times, with other ranks.
    assert len(found.collectives) == 4
    assert found.unmatched == 12
    assert second.clock_offset_ns == 23_500
    assert found.residual_ns == 98_500
    assert [each.duration_ns for each in found.collectives] == [
        (11_727_000, 8_370_000),
        (42_496_000, 42_744_000),
        (36_158_000, 13_838_000),
        (63_644_000, 62_163_000),
    ]
    # What the ends differ by is no waiting.
    assert (first.waiting_ns, second.waiting_ns) == (27_100_000, 0)
    assert first.overlap == pytest.approx(0.14946, abs=5e-6)
    assert found.most_often_last == 1
    assert found.straggler is None, "two steps are too few"
    assert found.findings[0] == "only 2 of 128 ranks are given: a missing rank may be the slowest"
