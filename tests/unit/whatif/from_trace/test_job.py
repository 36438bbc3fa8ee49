"""Several ranks as one graph: replays, stragglers, what sends and receives, by hand and against a plain program."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pytest_perfdl.trace import read
from pytest_perfdl.whatif import Plan, Select, predict, simulate, task_graph
from pytest_perfdl.whatif.editing.surgery import NewTask
from pytest_perfdl.whatif.from_trace.job import job_graph
from pytest_perfdl.whatif.model import EdgeKind, TaskKind
from pytest_perfdl.whatif.predict import Base, WhatIf, together
from pytest_perfdl.whatif.simulation.quality import quality
from pytest_perfdl.whatif.transform import TRANSFORMS, Change, Context, transform
from unit.trace.chrome import corpus_file, kernel, launch, step, trace, x
from unit.whatif.hand import slow

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
SEND = "ncclDevKernel_SendRecv(ncclDevComm*)"
MEETING = "all ranks have arrived"


def one(gemm, begins, *, clock=0, until=200, info=None, name=REDUCE, **args):
    """A rank whose gemm runs from 10 us on, then a collective until 200, then another kernel of 10; microseconds."""
    return trace(
        *(launch(clock + 3 * number, 3, number + 1) for number in range(3)),
        kernel("gemm", clock + 10, gemm, 1),
        kernel(name, clock + begins, until - begins, 2, **args),
        kernel("tail", clock + until + 1, 10, 3),
        **({} if info is None else {"distributedInfo": info}),
    )


def straggling(**more):
    """Rank 1 arrives at 161, rank 0 at 61; what they transfer takes 39."""
    return job_graph([one(50, 61), one(150, 161, **more)])


def device(made, plan=None):
    """Start and end of each rank's device tasks in microseconds; where one waits its collective begins twice."""
    edited = made if plan is None else plan.apply(made)
    found = simulate(edited)
    assert found.start.tolist() == slow(edited)
    assert found.path.length_ns == found.span_ns
    told = {}
    for task in np.flatnonzero(edited.is_device).tolist():
        name = edited.name_of(task).partition("(")[0].partition("_")[0]
        times = (found.start[task] / 1000, found.end[task] / 1000)
        told.setdefault((edited.tracks[edited.tasks.track[task]].rank, name), []).append(times)
    return told


def test_ranks_replay_as_measured():
    made = straggling()
    assert made.tasks.start.tolist() == simulate(made).start.tolist()
    assert device(made) == {
        (0, "gemm"): [(10, 60)],
        (0, "ncclDevKernel"): [(61, 61), (161, 200)],
        (0, "tail"): [(201, 211)],
        (1, "gemm"): [(10, 160)],
        (1, "ncclDevKernel"): [(161, 161), (161, 200)],
        (1, "tail"): [(201, 211)],
        (-1, MEETING): [(161, 161)],
    }
    assert simulate(made).span_ns == 211_000
    # Rank 1's launch and gemm, what all transfer, and the tail.
    assert simulate(made).path.by_kind(made)["communication"] == 39_000
    assert made.job.numbers == (0, 1)
    assert made.trace is None


def test_without_the_straggler_no_rank_waits():
    made = straggling()
    # The gemm of rank 1 ends at 70, so that it arrives at 71, 10 us behind rank 0; 39 us are transferred.
    found = device(made, Plan().scale(Select(rank=1, name="gemm"), 0.4))
    assert found[0, "ncclDevKernel"] == [(61, 61), (71, 110)]
    assert found[1, "ncclDevKernel"] == [(71, 71), (71, 110)]
    assert found[0, "tail"] == found[1, "tail"] == [(111, 121)]
    # Rank 0's own trace has no other reason for the length of its collective, 139 us, than the collective itself.
    alone = task_graph(one(50, 61))
    assert simulate(Plan().scale(Select(name="gemm"), 0).apply(alone)).span_ns == 163_000
    # Faster than the other it is waiting itself.
    found = device(made, Plan().scale(Select(rank=1, name="gemm"), 0.1))
    assert found[1, "ncclDevKernel"] == [(26, 26), (61, 100)]


def test_a_straggler_has_its_effect_on_every_rank():
    found = device(straggling(), Plan().scale(Select(rank=0, name="gemm"), 4))
    assert found[0, "ncclDevKernel"] == [(211, 211), (211, 250)]
    assert found[1, "ncclDevKernel"] == [(161, 161), (211, 250)]
    assert found[1, "tail"] == [(251, 261)]


def test_a_faster_network():
    found = device(straggling(), Plan().scale(Select(kind=TaskKind.COMMUNICATION), 0.5))
    assert found[0, "ncclDevKernel"] == [(61, 61), (161, 180.5)]
    assert found[1, "tail"] == [(181.5, 191.5)]


def test_a_collective_that_one_rank_leaves_out():
    found = device(straggling(), Plan().remove(Select(rank=0, name="nccl")))
    # The tail follows the gemm 1 us behind it; rank 1's stays as long as it was.
    assert found[0, "tail"] == [(61, 71)]
    assert found[1, "ncclDevKernel"] == [(161, 200)]
    assert MEETING not in {name for _, name in found}


def test_clocks_that_differ():
    made = straggling(clock=5_000)
    assert made.tasks.start.tolist() == simulate(made).start.tolist()
    assert device(made) == device(straggling())


def test_ends_that_differ():
    """Of two collectives rank 1's ends 4 us later, then 4 us sooner than rank 0's: no clock is wrong."""

    def rank(first, second):
        return trace(
            *(launch(3 * number, 3, number + 1) for number in range(4)),
            kernel("gemm", 10, 50, 1),
            kernel(REDUCE, 61, first - 61, 2),
            kernel("gemm", first + 1, 159 - first, 3),
            kernel(REDUCE, 161, second - 161, 4),
        )

    made = job_graph([rank(100, 200), rank(104, 196)])
    assert made.job.shifts == (0, 0)
    assert made.job.meetings.transfer.tolist() == [[39_000, 39_000], [35_000, 35_000]]
    assert made.job.meetings.late.tolist() == [[0, 4_000], [4_000, 0]]
    assert simulate(made).start.tolist() == made.tasks.start.tolist()
    # Rank 0's second gemm of 59 us follows the first transfer at 101, and the second one of 35 us at 161.
    assert simulate(made, lags="constant").span_ns == 196_000


def sending(begins, until, what, number):
    """A rank that sends to, or receives from, the other."""
    args = {"Collective name": what, "Src Rank": 0, "Dst Rank": 1, "Process Group Name": "pp"}
    return one(begins - 11, begins, until=until, name=SEND, info={"rank": number, "world_size": 2}, **args)


def test_who_receives_waits_for_who_sends():
    made = job_graph([sending(100, 140, "send", 0), sending(60, 140, "recv", 1)])
    name = "ncclDevKernel"
    assert (device(made)[0, name], device(made)[1, name]) == ([(100, 140)], [(60, 60), (100, 140)])
    late = device(made, Plan().scale(Select(rank=0, name="gemm"), 2))
    # The gemm of 89 us takes 178: the send begins at 189, and rank 1 has what it waits for 40 us later.
    assert (late[0, name], late[1, name]) == ([(189, 229)], [(60, 60), (189, 229)])
    # The sender does not wait for the receiver.
    late = device(made, Plan().scale(Select(rank=1, name="gemm"), 5))
    assert (late[0, name], late[1, name]) == ([(100, 140)], [(256, 256), (256, 296)])


def test_a_receiver_that_comes_later_than_the_sender():
    made = job_graph([sending(60, 140, "send", 0), sending(100, 140, "recv", 1)])
    assert made.tasks.start.tolist() == simulate(made).start.tolist()
    # The gemm of 79 us takes 8: it arrives at 19, and receives from 60 on, when rank 0 begins to send.
    found = device(made, Plan().retime(Select(rank=1, name="gemm"), 8_000))
    assert found[1, "ncclDevKernel"] == [(19, 19), (60, 100)]


def test_a_send_without_its_counterpart_couples_nothing():
    made = job_graph([sending(100, 140, "send", 0), sending(60, 140, "send", 1)])
    assert len(made.job.meetings) == 0
    assert device(made)[1, "ncclDevKernel"] == [(60, 140)]


REDUCE_NS, GAP = 30, 1


def program(gemms):
    """What ranks do that run so long a gemm in each step and then reduce for 30 us: starts and ends, microseconds."""
    at = [20] * len(gemms)
    told = [[] for _ in gemms]
    for own in zip(*gemms, strict=True):
        arrived = [since + length + GAP for since, length in zip(at, own, strict=True)]
        done = max(arrived) + REDUCE_NS
        for rank, (since, length) in enumerate(zip(at, own, strict=True)):
            told[rank] += [(since, since + length), (arrived[rank], done)]
        at = [done + GAP] * len(gemms)
    return told


def traces_of(gemms, clocks):
    """The same as traces, steps included, whose launches are far ahead."""
    found = []
    for rank, (kernels, clock) in enumerate(zip(program(gemms), clocks, strict=True)):
        events = []
        for number, (begin, end) in enumerate(kernels):
            if not number % 2:
                events.append(step(number // 2, clock + 4 * number, 8))
            events.append(launch(clock + 4 * number, 4, number + 1))
            events.append(kernel(REDUCE if number % 2 else "gemm", clock + begin, end - begin, number + 1))
        found.append(trace(*events, distributedInfo={"rank": rank, "world_size": len(gemms)}))
    return found


lengths = st.integers(30, 90)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(2, 3), st.integers(3, 4))
def test_any_ranks_take_what_the_program_takes(data, count, steps):
    gemms = [data.draw(st.lists(lengths, min_size=steps, max_size=steps)) for _ in range(count)]
    other = [data.draw(st.lists(lengths, min_size=steps, max_size=steps)) for _ in range(count)]
    clocks = [0, *data.draw(st.lists(st.integers(-3_000, 3_000), min_size=count - 1, max_size=count - 1))]
    made = job_graph(traces_of(gemms, [5_000 + clock for clock in clocks]))
    assert simulate(made).start.tolist() == made.tasks.start.tolist()
    plan = Plan()
    for rank, own in enumerate(other):
        wanted = np.array(own) * 1000
        select = Select(rank=rank, name="gemm")
        plan = plan.retime(select, lambda built, tasks, wanted=wanted: wanted[: len(tasks)])
    edited = plan.apply(made)
    found = simulate(edited)
    assert found.start.tolist() == slow(edited)
    expected = max(kernels[-1][1] for kernels in program(other)) - max(kernels[-1][1] for kernels in program(gemms))
    assert found.end.max() - simulate(made).end.max() == expected * 1000
    # The steps of all ranks: from the end of one collective to that of the next.
    ends = [0, *(end for _, end in program(other)[0][1::2])]
    assert found.steps_ns.tolist() == [1000 * each for each in np.diff(ends).tolist()]
    assert found.period_ns == pytest.approx(1000 * ends[-1] / steps)


def test_what_overlaps_a_collective_on_its_stream():
    """A kernel that begins while rank 0 still waits, 100 us before the transfer does, as nodes of a graph may."""
    graph = launch(3, 3, 2, name="cudaGraphLaunch")
    early = [launch(0, 3, 1), graph, kernel("gemm", 10, 50, 1), kernel(REDUCE, 61, 139, 2)]
    made = job_graph([trace(*early, kernel("side", 90, 20, 2)), one(150, 161)])
    assert made.tasks.start.tolist() == simulate(made).start.tolist()
    found = device(made, Plan().scale(Select(rank=1, name="gemm"), 2))
    assert found[0, "ncclDevKernel"] == [(61, 61), (311, 350)]
    assert found[0, "side"] == [(90, 110)]


def test_a_collective_from_before_the_window():
    """Its launch is not in the trace: it begins when it did."""
    made = job_graph([trace(launch(50, 3, 1), kernel(REDUCE, 61, 139, 9), kernel("tail", 201, 10, 1)), one(150, 161)])
    assert made.tasks.start.tolist() == simulate(made).start.tolist()
    found = device(made, Plan().scale(Select(rank=1, name="gemm"), 0.1))
    # Rank 1 arrives at 26, rank 0 at 61 as measured.
    assert found[0, "ncclDevKernel"] == [(61, 61), (61, 100)]


def test_plans_for_each_rank():
    made = straggling()
    plans = [Plan(), Plan().scale(Select(name="gemm"), 0.4)]
    assert device(made, Plan().each_rank(plans)) == device(made, Plan().scale(Select(rank=1, name="gemm"), 0.4))
    twice = Plan().scale(Select(rank=1, name="gemm"), 0.8).scale(Select(rank=1, name="gemm"), 0.5)
    assert device(made, twice) == device(made, Plan().each_rank(plans))
    with pytest.raises(ValueError, match="expected one plan for each of the 2 ranks, got 1"):
        Plan().each_rank(plans[:1]).apply(made)
    with pytest.raises(ValueError, match="expected one plan for each of the 1 ranks, got 2"):
        Plan().each_rank(plans).apply(task_graph(one(50, 61)))
    assert Select(rank=1, name="gemm")(made).sum() == 1
    assert not Select(rank=1)(task_graph(one(50, 61))).any()


def test_a_new_kernel_before_the_collective():
    found = device(straggling(), Plan().insert(NewTask("new", 200_000, launch_ns=0), Select(rank=0, name="gemm")))
    assert found[0, "new"] == [(61, 261)]
    assert found[1, "ncclDevKernel"] == [(161, 161), (262, 301)]


def test_predictions_over_all_ranks():
    made = straggling()
    context, base = Context(made), Base.of(made)
    assert base.mean == 211_000
    plan = WhatIf("no straggler", Plan().scale(Select(rank=1, name="gemm"), 0.4))
    found = predict(context, plan, base)
    assert (found.predicted_ns, found.trust) == (121_000, "ok")
    assert found.gain == pytest.approx(1 - 121 / 211)
    faster = WhatIf("network", Plan().scale(Select(kind=TaskKind.COMMUNICATION), 0.0))
    assert together(context, [plan, faster], base).predicted_ns == 121_000 - 39_000


def test_a_change_for_each_rank_has_both_ends():
    made = straggling()
    asked = []

    def half(context):
        asked.append(context.graph.rank)
        plans = [Plan().scale(Select(name="gemm"), factor) for factor in (0.5, 0.4, 0.6)]
        return Change.of(plans, notes=("halved",), trust="low")

    transform("test: half")(half)
    found = predict(Context(made), "test: half")
    del TRANSFORMS["test: half"]
    assert asked == [0, 1]
    # Rank 1's gemm takes 75 us, at best 60, at worst 90.
    assert found.predicted_ns == 211_000 - 75_000
    assert found.notes == ("halved",)
    assert found.interval_ns[0] < 211_000 - 90_000 < 211_000 - 60_000 < found.interval_ns[1]


def test_trust_says_what_is_missing():
    apart = job_graph([trace(launch(0, 5, 1), kernel("a", 10, 10, 1)), trace(launch(0, 5, 1), kernel("a", 10, 10, 1))])
    assert quality(apart).trust == "low"
    assert quality(apart).reason == "the ranks cannot be simulated together, because no collective runs on all ranks"
    few = job_graph([one(50, 61, info={"rank": 1, "world_size": 8}), one(150, 161, info={"rank": 0, "world_size": 8})])
    assert few.job.numbers == (0, 1)
    assert few.job.parts[0].rank == 0
    assert quality(few).reason == (
        "only 2 of 8 ranks are given, so waiting for the missing ranks counts as communication"
    )
    assert quality(straggling()).trust == "ok"
    with pytest.raises(ValueError, match="at least two ranks"):
        job_graph([one(50, 61)])


def test_collectives_beside_the_host():
    """gloo on a CPU: collectives on a thread of their own, which the steps' thread waits for."""

    def rank(until, begins):
        return trace(
            x("aten::mm", 0, until),
            x("gloo:all_reduce", begins, 400 - begins, "user_annotation", tid=9),
            x("aten::add", 405, 50),
        )

    made = job_graph([rank(90, 100), rank(190, 200)])
    assert simulate(made).start.tolist() == made.tasks.start.tolist()
    assert len(made.job.meetings) == 1
    assert (made.edges.kind == EdgeKind.COMMUNICATION).sum() >= 4


@pytest.mark.corpus
def test_public_traces():
    traces = [read(corpus_file(f"nccl_rank{number}")) for number in (1, 0)]
    made = job_graph(traces)
    found = simulate(made)
    assert made.job.numbers == (0, 1)
    assert found.start.tolist() == made.tasks.start.tolist() == slow(made)
    assert len(made.job.meetings) == 4
    judged = quality(made)
    assert abs(judged.constant_error) <= 0.005
    assert judged.reason.startswith("only 2 of 128 ranks are given")
    # Each rank's last event is where its own graph has it.
    for part, shift in zip(made.job.parts, made.job.shifts, strict=True):
        assert part.span[1] + shift <= made.span[1]
    assert found.steps_ns.sum() >= max(simulate(part).steps_ns.sum() for part in made.job.parts)
