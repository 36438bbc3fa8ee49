"""Changes of whole jobs: what each predicts for ranks whose times are worked out by hand, and what it refuses."""

import doctest

import numpy as np
import pytest

from pytest_perfdl.whatif import collectives, predict, rank_work, simulate, task_graph
from pytest_perfdl.whatif.collectives import completing_gradients, fit_cost
from pytest_perfdl.whatif.from_trace.job import job_graph
from pytest_perfdl.whatif.predict import WhatIf, together
from pytest_perfdl.whatif.rank_work import blocking_lines, expected_maximum, variation
from pytest_perfdl.whatif.transform import Context
from unit.trace.chrome import kernel, launch, step, trace, x
from unit.whatif.hand import slow
from unit.whatif.training import context

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def rank_of(gemms, number, reduces, sized=True):
    """A rank of `gemms[rank][step]` us, each followed by collectives (elements, us, kind) that the last rank begins.

    A gap of 1 us is between two kernels. The host launches far ahead.
    """
    events, at, call = [], [20] * len(gemms), 1
    for index in range(len(gemms[0])):
        events.append(step(index, 20 * index, 20))
        arrived = [since + own[index] + 1 for since, own in zip(at, gemms, strict=True)]
        events.append(launch(20 * index + 1, 2, call))
        events.append(kernel("gemm", at[number], gemms[number][index], call))
        begins, last = arrived[number], max(arrived)
        for place, (elements, took, *kind) in enumerate(reduces):
            args = {
                "Collective name": kind[0] if kind else "allreduce",
                "Process Group Name": "0",
                "Group size": len(gemms),
            }
            args |= {"Seq": call, "dtype": "Float"}
            args |= {"In msg nelems": elements, "Out msg nelems": elements} if sized else {}
            events.append(launch(20 * index + 5 + 4 * place, 2, call + place + 1))
            name = REDUCE.replace("AllReduce", "AllGather") if kind else REDUCE
            events.append(kernel(name, begins, last + took - begins, call + place + 1, stream=20, **args))
            begins = last = last + took + 1
        events.append(launch(20 * index + 17, 2, call + 9))
        events.append(kernel("update", last, 2, call + 9))
        at, call = [last + 3] * len(gemms), call + 10
    return trace(*events, distributedInfo={"rank": number, "world_size": len(gemms), "backend": "nccl"})


def job(gemms, reduces, **more):
    """The graph of all ranks."""
    made = job_graph([rank_of(gemms, number, reduces, **more) for number in range(len(gemms))])
    assert made.tasks.start.tolist() == simulate(made).start.tolist()
    return made


def change_us(made, question, machine=None, /, **given):
    """By how much all steps together take longer, in microseconds."""
    found = predict(Context(made, machine) if machine else Context(made), question, **given)
    assert found.predicted_ns is not None, found.reason
    assert found.interval_ns[0] <= found.predicted_ns <= found.interval_ns[1]
    assert found.simulation.start.tolist() == slow(found.simulation.graph)
    return (found.predicted_ns - found.step_ns) * len(made.steps) / 1000


def refusal(made, question, **given):
    found = predict(Context(made), question, **given)
    assert found.predicted_ns is None
    return found.reason


EVEN = [[50, 50, 50, 50], [50, 50, 50, 50]]
TWO_SIZES = ((250, 20), (1250, 60))
"""1,000 bytes take 20 us and 5,000 bytes 60: a latency of 10 us, and 10 ns a byte."""


def test_a_straggler_works_as_long_as_the_others():
    # Rank 1 takes 110 us a step on average, rank 0 takes 50: its steps of 100, 120, 100, 120 become 5 / 11 of that:
    # 45.45, 54.55, 45.45, 54.55. Rank 0 is last in the first and third step. So steps get shorter by 50, 65.45, 50 and
    # 65.45 us.
    made = job([[50] * 4, [100, 120, 100, 120]], TWO_SIZES)
    assert change_us(made, "straggler_removed", rank=1) == pytest.approx(-2 * (50 + 120 - 120 * 5 / 11), abs=0.01)
    # The rank that the analysis finds is slow from the second step on, and 120 us become 50 there.
    found = job([[50] * 4, [50, 120, 120, 120]], TWO_SIZES)
    assert (found.job.figures.straggler.rank, found.job.figures.straggler.since_step) == (1, 1)
    assert change_us(found, "straggler_removed") == pytest.approx(-3 * 70, abs=0.01)
    assert refusal(made, "straggler_removed", rank=0) == "rank 0 works no longer than the other ranks"
    with pytest.raises(ValueError, match="rank=7: the traces are of ranks 0, 1"):
        predict(Context(made), "straggler_removed", rank=7)


def test_the_median_of_the_others_is_what_a_straggler_gets():
    # Of 50, 60 and 70 us that is 60.
    made = job([[50] * 4, [60] * 4, [150] * 4, [70] * 4], TWO_SIZES)
    # Rank 3 is the last one then.
    assert change_us(made, "straggler_removed", rank=2) == pytest.approx(4 * (70 - 150), abs=0.01)


def test_no_straggler_and_no_job():
    assert "no rank is slower than the others: name a rank" in refusal(job(EVEN, TWO_SIZES), "straggler_removed")
    alone = rank_of(EVEN, 0, TWO_SIZES)
    for name, given in (("straggler_removed", {}), ("bucket_size", {"cap_mb": 1.0}), ("ranks", {"n": 8})):
        found = predict(context(alone), name, **given)
        assert found.reason == "the ranks of a job can only be changed together: pass the traces of several ranks"
    apart = [trace(launch(0, 5, 1), kernel("a", 10, 10, 1)) for _ in range(2)]
    assert refusal(job_graph(apart), "ranks", n=8) == "no collective runs on all ranks of these traces"


def test_a_faster_network_leaves_latency_and_waiting():
    # 20 us of 1,000 bytes become 10 + 5, 60 us of 5,000 bytes become 10 + 25: 5 and 25 us less a step.
    assert change_us(job(EVEN, TWO_SIZES), "bandwidth", factor=2.0) == pytest.approx(-4 * 30, abs=0.01)
    # The same with a rank that others wait 100 us for.
    waiting = job([[50] * 4, [150] * 4], TWO_SIZES)
    assert change_us(waiting, "bandwidth", factor=2.0) == pytest.approx(-4 * 30, abs=0.01)
    assert change_us(waiting, "bandwidth", factor=0.5) == pytest.approx(4 * 60, abs=0.01)
    # A bus bandwidth of 50 MB/s over two ranks, of which each sends and receives S bytes: 20 ns a byte, twice as much.
    assert change_us(waiting, "bandwidth", bytes_per_s=50e6) == pytest.approx(4 * 60, abs=0.01)
    for given in ({}, {"factor": 2.0, "bytes_per_s": 1e9}):
        with pytest.raises(ValueError, match="expected either a factor or bytes_per_s"):
            predict(Context(waiting), "bandwidth", **given)


def test_one_size_does_not_tell_the_latency():
    made = job(EVEN, ((250, 20), (250, 20)))
    found = predict(Context(made), "bandwidth", factor=2.0)
    # Without latency 20 us less; with nothing but latency no change.
    assert found.predicted_ns == found.step_ns - 20_000
    assert found.interval_ns[1] >= found.step_ns
    assert found.trust == "low"
    assert "have about one size" in found.notes[0]
    unsized = job(EVEN, TWO_SIZES, sized=False)
    found = predict(Context(unsized), "bandwidth", factor=2.0)
    assert found.predicted_ns == found.step_ns - 40_000
    assert found.interval_ns[1] >= found.step_ns
    assert "no sizes of collectives" in refusal(unsized, "bandwidth", bytes_per_s=1e9)


def test_another_kind_tells_the_latency():
    # An all-reduce of 4 bytes is two messages, 10 us. An all-gather of 5,000 bytes from each of two ranks is one,
    # 5 us, and 5,000 bytes in the other 25 us, which become 12.5. Of the all-reduce's 4 bytes, 20 ns become 10.
    made = job(EVEN, ((1, 10), (1250, 30, "allgather")))
    found = predict(Context(made), "bandwidth", factor=2.0)
    assert found.predicted_ns == pytest.approx(found.step_ns - 12_500, abs=30)
    assert found.trust == "ok"
    # On four ranks three messages and 3/4 of the bytes, 15 and 37.5 us; 6 messages of 5 us for the other.
    found = predict(Context(made), "ranks", n=4, algorithm="ring")
    assert found.predicted_ns == pytest.approx(found.step_ns + 15_000 + 37_500 - 30_000 + 20_000, abs=50)


def test_more_ranks_cost_messages_and_bytes():
    made = job(EVEN, TWO_SIZES)
    # Of an all-reduce two ranks send 1 S in 2 messages, four 1.5 S in 6 over a ring, or in 4 over a tree. The latency
    # of 10 us becomes 30 over a ring, 20 over a tree; 10 ns a byte become 15.
    ring = (30 + 15 - 20) + (30 + 75 - 60)
    tree = (20 + 15 - 20) + (20 + 75 - 60)
    assert change_us(made, "ranks", n=4, algorithm="ring") == pytest.approx(4 * ring, abs=0.02)
    assert change_us(made, "ranks", n=4, algorithm="tree") == pytest.approx(4 * tree, abs=0.02)
    # NCCL takes what is faster.
    assert change_us(made, "ranks", n=4) == pytest.approx(4 * tree, abs=0.02)
    assert change_us(made, "ranks", n=2) == 0
    found = predict(Context(made), "ranks", n=4)
    assert (found.trust, found.notes) == ("ok", ())
    # At the fast end the latency does not grow: 5 and 25 us more.
    assert found.interval_ns[0] <= found.step_ns + 30_000 < found.predicted_ns
    found = predict(Context(made), "ranks", n=1024)
    assert found.trust == "low"
    assert found.notes == ("1024 ranks are extrapolated from 2",)
    with pytest.raises(ValueError, match="n=1: expected at least 2"):
        predict(Context(made), "ranks", n=1)
    with pytest.raises(ValueError, match="algorithm=star: expected ring or tree"):
        predict(Context(made), "ranks", n=4, algorithm="star")


def test_the_slowest_of_more_ranks_is_slower():
    # In each step one rank takes 10 us more than the other: 5 us around the mean of both; the sum of squares is
    # 4 x 2 x 25, over (2 - 1) x 4 degrees of freedom: 50. The slowest of 100 of N(0, 50) is 2.5076 sigma late, of two
    # 0.5642 sigma.
    made = job([[50, 60, 50, 60], [60, 50, 60, 50]], TWO_SIZES)
    late = np.sqrt(50) * (expected_maximum(100) - expected_maximum(2))
    assert expected_maximum(100) == pytest.approx(2.50759, abs=1e-5)
    messages = 2 * 7 / 2
    tree = 10 * (messages - 1) * 2 + (2 * 99 / 100 - 1) * (10 + 50)
    # The host's 1 us before the first launch grows, too.
    first = late / 60
    assert change_us(made, "ranks", n=100) == pytest.approx(4 * (late + tree) + first, abs=0.01)


def test_a_variation_and_its_interval():
    sigma, least, most = variation(np.array([[50.0, 60, 50, 60], [60, 50, 60, 50]]))
    assert sigma == pytest.approx(np.sqrt(50))
    # chi-squared with 4 degrees of freedom: 9.488 and 0.711.
    assert least == pytest.approx(np.sqrt(50 * 4 / 9.4877), rel=1e-3)
    assert most == pytest.approx(np.sqrt(50 * 4 / 0.7107), rel=1e-3)
    sigma, _, most = variation(np.array([[50.0, 51, 50, 51], [90, 91, 92, 90]]))
    # One degree of freedom: 3.841 and 0.00393.
    assert most / sigma == pytest.approx(np.sqrt(1 / 0.00393), rel=1e-2)
    assert variation(np.ones((2, 4))) == (0, 0, 0)


@pytest.mark.parametrize("module", [collectives, rank_work], ids=["costs", "work"])
def test_examples(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_a_fit_of_latency_and_time_per_byte():
    size = np.array([1000, 1000, 1000, 5000, 5000])
    cost = fit_cost(size, np.array([20, 20, 900, 60, 60]))
    # The one that was disturbed does not move the median.
    assert (cost.latency_ns, cost.ns_per_byte) == (pytest.approx(10), pytest.approx(0.01))
    assert cost.known
    assert fit_cost(np.array([1000, 1400]), np.array([10, 20])).known is False
    # Neither is below 0: what falls with size has no time per byte.
    cost = fit_cost(np.array([1000, 4000]), np.array([20, 10]))
    assert cost.ns_per_byte == 0
    assert 10 < cost.latency_ns < 20


STEP = 1000
GRADIENTS = (30, 10, 20, 40)
"""KiB of gradients in the order in which they are completed: at 200, 300, 400 and 500 us of a step."""


def gloo_rank(number, buckets, *, steps=3, waits=(0, 0), latency=20, per_kib=2):
    """A rank whose hook sends buckets, of places in `GRADIENTS`, one after the other from 10 us after the last one.

    The host waits for all of them, and copies them back; a step takes 1,000 us or up to 100 us longer than this.
    """
    events, at = [], 0
    for index in range(steps):
        events.append(x("aten::mm", at + 10, 90))
        moments = [at + 200 + 100 * place + waits[number] for place in range(4)]
        for moment, size in zip(moments, GRADIENTS, strict=True):
            shape = {"Input Dims": [[size * 256]], "Input type": ["float"]}
            events.append(x("aten::mm", moment - 60, 50))
            events.append(x("torch::autograd::AccumulateGrad", moment - 5, 5, **shape))
        free = 0
        for last, size in buckets:
            begins = max(moments[last] + 10, free)
            free = max(at + 210 + 100 * last + max(waits), free) + latency + per_kib * size
            shape = {"Input Dims": [[size * 256]], "Input type": ["float"]}
            events.append(x("gloo:all_reduce", begins, free - begins, "user_annotation", tid=9, **shape))
        events.append(x("torch.distributed.ddp.reducer::copy_bucket_to_grad", free + 5, 10))
        events.append(x("aten::add_", free + 20, 30))
        events.append(step(index, at, free + 60 - at))
        at = free + 60
    return trace(*events, distributedInfo={"rank": number, "world_size": 2, "backend": "gloo"})


def gloo_job(buckets, **more):
    made = job_graph([gloo_rank(number, buckets, **more) for number in (0, 1)])
    assert made.tasks.start.tolist() == simulate(made).start.tolist()
    return made


SMALL = ((0, 30), (1, 10), (2, 20), (3, 40))


def test_collectives_belong_to_the_gradients_that_fill_them():
    made = gloo_rank(0, ((1, 40), (3, 60)))
    rows = made.matching("gloo:all_reduce".__eq__, np.arange(len(made)))
    rows = rows[np.argsort(made.start[rows])]
    assert completing_gradients(made, rows).tolist() == [1, 3, 5, 7, 9, 11]
    # Half of the bytes: a hook that casts them to 16 bits. What does not add up belongs to none.
    half = gloo_rank(0, ((1, 20), (3, 30)))
    assert completing_gradients(half, rows).tolist() == [1, 3, 5, 7, 9, 11]
    assert completing_gradients(gloo_rank(0, ((1, 35), (3, 60))), rows).tolist() == [-1] * 6


def test_the_host_waits_for_gloo_where_ddp_copies_back():
    """However late it wakes up: here 300 us after the collective's end, more than a join of threads may take."""
    events = [
        x("aten::mm", 0, 100),
        x("gloo:all_reduce", 110, 190, "user_annotation", tid=9),
        x("aten::as_strided", 600, 2),
        x("torch.distributed.ddp.reducer::copy_bucket_to_grad", 605, 10),
    ]
    made = task_graph(trace(*events))
    # Without the collective's 190 us the copy begins as much earlier.
    duration = np.where(made.is_device, 0, made.tasks.duration)
    assert simulate(made).span_ns - simulate(made, duration).span_ns == 190_000
    # Behind something else, it was Python that took so long.
    events[2:2] = [x("aten::mul", 580, 10)]
    made = task_graph(trace(*events))
    assert simulate(made).span_ns == simulate(made, np.where(made.is_device, 0, made.tasks.duration)).span_ns


def test_larger_buckets_begin_later_and_cost_fewer_latencies():
    # Gradients of 30, 10, 20 and 40 KiB are sent alone: from 210 on, 80 us; from 310, 40; from 410, 60; from 510, 100:
    # until 610. In buckets of at least 32 KiB, which are 30 + 10 and 20 + 40: from 310 on, 100 us; from 510 on, 140:
    # until 650.
    made = gloo_job(SMALL)
    assert change_us(made, "bucket_size", cap_mb=32 / 1024) == pytest.approx(3 * 40, abs=0.1)
    # In one: from 510 on, 20 + 200 us: until 730.
    assert change_us(made, "bucket_size", cap_mb=25.0) == pytest.approx(3 * 120, abs=0.1)
    assert change_us(made, "bucket_size") == pytest.approx(3 * 120, abs=0.1)
    # A cap of one byte is what the trace has.
    assert change_us(made, "bucket_size", cap_mb=1 / 2**20) == 0


def test_smaller_buckets_wait_for_the_channel_and_for_ranks():
    # In buckets of 30 and 70 KiB: from 210 on, 80 us; from 510 on, 160: until 670. Alone until 610, as above; the same
    # where rank 1 completes everything 50 us later, and so each bucket.
    for waits in ((0, 0), (0, 50)):
        made = gloo_job(((0, 30), (3, 70)), waits=waits)
        assert change_us(made, "bucket_size", cap_mb=1 / 2**20) == pytest.approx(-3 * 60, abs=0.1)
    # With 5 us a KiB the channel is not free in time: 170, 70, 120 and 220 us from 210 on, until 790; in two buckets
    # 370 us from 510 on, until 880.
    made = gloo_job(((0, 30), (3, 70)), per_kib=5)
    assert change_us(made, "bucket_size", cap_mb=1 / 2**20) == pytest.approx(-3 * 90, abs=0.1)


def test_buckets_of_a_job_that_has_none():
    assert "do not add up to the gradients" in refusal(job(EVEN, TWO_SIZES), "bucket_size", cap_mb=1.0)
    with pytest.raises(ValueError, match="cap_mb=-1: expected a size in MiB"):
        predict(Context(gloo_job(SMALL)), "bucket_size", cap_mb=-1.0)


def test_changes_of_jobs_add_up():
    made = gloo_job(SMALL)
    # In one bucket of 100 KiB, whose 200 us of bytes then take 100: until 510 + 20 + 100.
    questions = [
        WhatIf("one bucket", transform="bucket_size", parameters={"cap_mb": 25.0}),
        WhatIf("network", transform="bandwidth", parameters={"factor": 2.0}),
    ]
    found = together(Context(made), questions)
    # Of one size nothing tells the latency, so that half of all is taken.
    assert found.predicted_ns == pytest.approx(found.step_ns + 1000 * (510 + 110 - 610), abs=50)


def test_buckets_of_gradients_do_not_block_ranks():
    made = gloo_job(SMALL)
    # Of four buckets a step the last one: the first step of the next comes behind it.
    assert blocking_lines(made.job).tolist() == [3, 7, 11]
    # Of two collectives on a stream that compute waits behind, the second.
    assert blocking_lines(job(EVEN, TWO_SIZES).job).tolist() == [1, 3, 5, 7]


def test_ranks_on_processors_that_share_cores_are_flagged():
    from pytest_perfdl.machine.rates import Machine

    made = gloo_job(SMALL)
    found = predict(Context(made, Machine(cores=2)), "ranks", n=4)
    assert found.trust == "low"
    assert found.notes == ("oversubscribed: 4 ranks share 2 cores, which the prediction does not include",)
    assert predict(Context(made, Machine(cores=8)), "ranks", n=4).notes == ()
