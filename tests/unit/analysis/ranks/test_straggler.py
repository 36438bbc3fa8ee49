"""The straggler: which rank, since when, because of what, at which cost; and when there is none."""

import numpy as np
import pytest

from pytest_perfdl.analysis.ranks import Straggler, activity, bus_bandwidth, ranks
from pytest_perfdl.analysis.ranks.compare import Evidence
from pytest_perfdl.analysis.ranks.compare import find as find_straggler
from pytest_perfdl.analysis.ranks.figures import Collective
from pytest_perfdl.analysis.ranks.meetings import find_roles
from unit.trace.chrome import kernel, launch, step, trace, x

STEP = 1_000_000
NUMBERS = range(10, 20)


def find(evidence, numbers, ranks, *, least_ns=10_000):
    return find_straggler(evidence, numbers, ranks, least_ns=least_ns)


def evidence(*, extra=(), link=(), late_host=(), roles=None, held=True, seed=0, noise=2000, ranks=4, steps=10):
    """Balanced ranks with noise; `extra` adds (rank, class, since, ns) of own work, `link` (rank, since, ns).

    `late_host` adds (rank, since, ns) of a host that is late while something is communicated.
    """
    random = np.random.default_rng(seed)
    classes = {name: np.rint(random.normal(200_000, noise, (steps, ranks))) for name in ("compute", "input", "host")}
    late = np.abs(np.rint(random.normal(0, noise, (steps, ranks))))
    holds, excess = np.zeros((steps, ranks)), np.zeros((steps, ranks))
    for rank, name, since, ns in extra:
        classes[name][since:, rank] += ns
        holds[since:, rank] += ns * held
    hidden = np.zeros((steps, ranks), dtype=np.int64)
    for rank, since, ns in late_host:
        hidden[since:, rank] += ns
        holds[since:, rank] += ns * held
    for rank, since, ns in link:
        late[since:, rank] += ns
        excess[since:, rank] += 2 * ns
    return Evidence(
        window_ns=np.full((steps, ranks), STEP, dtype=np.int64),
        classes={name: each.astype(np.int64) for name, each in classes.items()},
        late_host_ns=hidden,
        held_ns=holds.astype(np.int64),
        link_late_ns=late.astype(np.int64),
        link_excess_ns=excess.astype(np.int64),
        roles=roles if isinstance(roles, dict) else dict.fromkeys(classes, tuple(roles or (0,) * ranks)),
    )


@pytest.mark.parametrize("cause", ["compute", "input", "host"])
@pytest.mark.parametrize("since", [0, 4, 7])
def test_rank_step_cause_and_cost(cause, since):
    found = find(evidence(extra=[(2, cause, since, 60_000)]), NUMBERS, [0, 1, 2, 3])
    assert (found.rank, found.since_step, found.cause) == (2, 10 + since, cause)
    assert found.cost_ns == pytest.approx(60_000, abs=10_000)


def test_a_host_is_slow_while_something_is_communicated():
    found = find(evidence(extra=[(2, "host", 4, 15_000)], late_host=[(2, 4, 45_000)]), NUMBERS, range(4))
    assert (found.rank, found.since_step, found.cause) == (2, 14, "host")
    assert found.cost_ns == pytest.approx(60_000, abs=10_000)
    assert find(evidence(extra=[(2, "host", 4, 15_000)]), NUMBERS, range(4)) is None
    # A stage of a pipeline may have more of it by its nature.
    stages = evidence(late_host=[(0, 0, 200_000)], roles=(0, 1, 1, 1))
    assert find(stages, NUMBERS, range(4)) is None


@pytest.mark.parametrize(("unsure_ns", "rank"), [(50_000, 2), (70_000, None)])
def test_what_clocks_do_not_tell_is_no_straggler(unsure_ns, rank):
    found = find(evidence(extra=[(2, "host", 0, 60_000)]), NUMBERS, range(4), least_ns=unsure_ns)
    assert (found and found.rank) == rank


def test_a_slow_link_ends_late():
    found = find(evidence(link=[(1, 3, 50_000)]), NUMBERS, [4, 5, 6, 7])
    assert (found.rank, found.since_step, found.cause, found.cost_ns) == (5, 13, "communication", 100_000)


def test_the_costlier_of_two_is_named():
    both = evidence(extra=[(2, "compute", 0, 60_000)], link=[(1, 0, 100_000)])
    assert find(both, NUMBERS, range(4)).cause == "communication"


def test_balanced_ranks_have_no_straggler():
    assert [find(evidence(seed=seed), NUMBERS, range(4)) for seed in range(50)] == [None] * 50


@pytest.mark.parametrize(
    "harmless",
    [
        {"extra": [(2, "compute", 8, 300_000)]},  # in the last two steps only
        {"extra": [(2, "compute", 0, 12_000)]},  # 1 % of the step
        {"extra": [(1, "input", 0, 90_000), (2, "input", 0, 90_000)]},  # two alike: without one of them nothing changes
        {"extra": [(2, "compute", 0, 90_000)], "held": False},  # nobody waits for it
        {"extra": [(2, "compute", 0, 30_000)], "noise": 60_000},
    ],
    ids=["hiccup", "too little", "two", "hidden", "noise"],
)
def test_what_is_no_straggler(harmless):
    assert find(evidence(**harmless), NUMBERS, range(4)) is None


def test_a_hiccup_of_another_rank_does_not_hide_the_straggler():
    found = evidence(extra=[(2, "compute", 4, 60_000)])
    found.classes["host"][7, 1] += 500_000
    assert find(found, NUMBERS, range(4)).rank == 2


def test_two_steps_are_too_few():
    few = evidence(extra=[(2, "compute", 0, 300_000)], steps=2)
    assert find(few, NUMBERS[:2], range(4)) is None


def test_stages_of_a_pipeline_are_compared_with_those_that_do_the_same():
    # The first stage of each of two pipelines loads the data: that is no straggling.
    loads = [(0, "input", 0, 90_000), (2, "input", 0, 90_000)]
    assert find(evidence(extra=loads, roles=(0, 1, 0, 1)), NUMBERS, range(4)) is None
    slow = find(evidence(extra=[*loads, (2, "input", 5, 50_000)], roles=(0, 1, 0, 1)), NUMBERS, range(4))
    assert (slow.rank, slow.since_step, slow.cause) == (2, 15, "input")


def test_a_stage_of_its_own_is_compared_with_itself_before():
    alone = (0, 1, 1, 1)
    assert find(evidence(extra=[(0, "input", 0, 60_000)], roles=alone), NUMBERS, range(4)) is None
    grown = evidence(extra=[(0, "input", 0, 60_000), (0, "host", 5, 50_000)], roles=alone)
    slow = find(grown, NUMBERS, range(4))
    assert (slow.rank, slow.since_step, slow.cause) == (0, 15, "host")
    assert slow.cost_ns == pytest.approx(50_000, abs=10_000)
    much = find(evidence(extra=[(0, "input", 0, 200_000)], roles=alone), NUMBERS, range(4))
    assert (much.rank, much.cause) == (0, "input"), "over a tenth of the step"


def test_what_a_stage_has_by_its_nature_does_not_hide_the_straggler():
    # The only loading stage waits 8 % of the step for input: less than makes it a straggler, more than the slow rank.
    both = evidence(extra=[(0, "input", 0, 80_000), (2, "host", 4, 50_000)], roles=(0, 1, 1, 1))
    slow = find(both, NUMBERS, range(4))
    assert (slow.rank, slow.since_step, slow.cause) == (2, 14, "host")


def test_classes_that_are_much_together_only_are_the_nature_of_a_stage():
    some = [(0, "input", 0, 70_000), (0, "host", 0, 70_000)]
    assert find(evidence(extra=some, roles=(0, 1, 1, 1)), NUMBERS, range(4)) is None
    alike = find(evidence(extra=some), NUMBERS, range(4))
    assert alike.cost_ns == pytest.approx(140_000, abs=10_000)


def test_a_stage_that_computes_the_same_is_compared_in_that():
    roles = {"compute": (0, 0, 0, 0), "input": (0, 1, 1, 1), "host": (0, 1, 1, 1)}
    slow = find(evidence(extra=[(0, "compute", 0, 60_000), (0, "input", 0, 70_000)], roles=roles), NUMBERS, range(4))
    assert (slow.rank, slow.since_step, slow.cause) == (0, 10, "compute")
    assert slow.cost_ns == pytest.approx(60_000, abs=10_000)


def test_a_stage_that_was_slow_before_has_to_rise_by_a_factor():
    roles = (0, 1, 1, 1)
    more = find(evidence(extra=[(0, "host", 0, 200_000), (0, "host", 5, 30_000)], roles=roles), NUMBERS, range(4))
    assert (more.rank, more.since_step) == (0, 10), "by a seventh only"
    assert more.cost_ns == pytest.approx(215_000, abs=20_000)


def test_stages_are_alike_in_what_they_have_equally_much_of():
    def stage(*operators, loads=False):
        loader = [x("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 9, "user_annotation")] * loads
        events = [x(name, 10 + 10 * at, 5, **{"Input Dims": [[4, 4]]}) for at, name in enumerate(operators)]
        sends = x("gloo:send", 80, 5, "user_annotation")
        return activity(trace(step(1, 0, 100), *loader, *events, sends))

    stages = [stage("aten::mm", loads=True), stage("aten::mm"), stage("aten::mm"), stage("aten::mm", "aten::nll_loss")]
    roles = find_roles(stages)
    assert roles["compute"] == (0, 0, 0, 1)
    assert roles["input"] == (0, 1, 1, 1)
    assert roles["host"] == (0, 1, 1, 2)


def test_less_in_the_first_step_is_no_nature():
    # The device of the last stage still runs what was launched before the trace began.
    found = evidence(roles=(1, 1, 1, 0))
    found.classes["host"][0, 3] -= 150_000
    found.held_ns[:, 3] += 150_000
    assert find(found, NUMBERS, range(4)) is None


@pytest.mark.parametrize(("since", "hiccup"), [(7, 9), (2, 2)])
def test_a_hiccup_of_the_straggler_itself(since, hiccup):
    # In the last three steps, one of which is nine times as long; then one in the first slow step.
    found = evidence(extra=[(2, "input", since, 60_000)])
    found.classes["host"][hiccup, 2] += 500_000
    slow = find(found, NUMBERS, range(4))
    assert (slow.rank, slow.since_step, slow.cause) == (2, 10 + since, "input")


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def ring(number, ends, *, count=6, clock=0, host="", seqs=True, drift=0.0, small_us=20, told=True):
    """A rank whose nth large all-reduce runs from 100 to 400 us of each ms plus `ends[n]`, and a small one after."""
    events = []
    for index in range(count):
        at = index * 1000
        shift = clock + drift * at
        large = {"Process Group Name": "0", "In msg nelems": 1 << 20, "dtype": "Float", "Group size": 3}
        small = {**large, "In msg nelems": 1}
        large, small = (large, small) if told else ({}, {})
        numbers = ({"Seq": 2 * index}, {"Seq": 2 * index + 1}) if seqs else ({}, {})
        late = ends[index % len(ends)]
        events += [
            step(index, at + shift, 1000),
            launch(at + shift, 5, 3 * index),
            kernel("gemm", at + 10 + shift, 90, 3 * index),
            launch(at + 5 + shift, 5, 3 * index + 1),
            kernel(REDUCE, at + 100 + shift, 300 + late, 3 * index + 1, stream=20, **large, **numbers[0]),
            launch(at + 500 + shift, 5, 3 * index + 2),
            kernel(REDUCE, at + 600 + shift, small_us, 3 * index + 2, stream=20, **small, **numbers[1]),
        ]
    info = {"distributedInfo": {"rank": number, "world_size": 3}}
    return trace(*events, **info, **({"host_name": host} if host else {}))


@pytest.mark.parametrize("clocks", [(0, 0, 0), (0, 7000, -123_456)], ids=str)
def test_the_ends_of_a_ring_tell_whose_link_is_slow(clocks):
    # Behind the slow link rank 1 ends last, rank 2 one round's delay of 30 us earlier, rank 0 two.
    found = ranks(
        [ring(number, [late], clock=clock) for number, late, clock in zip(range(3), (0, 60, 30), clocks, strict=True)]
    )
    assert [each.clock_offset_ns for each in found.ranks] == [-1000 * clock for clock in clocks]
    # 2 (n - 1) = 4 rounds, each 30 us longer.
    assert found.straggler == Straggler(rank=1, since_step=0, cause="communication", cost_ns=120_000)


@pytest.mark.parametrize("more", [{"count": 3}, {"told": False, "seqs": False, "small_us": 40}], ids=str)
def test_three_short_calls_tell_the_clock(more):
    # Three steps; or calls whose sizes the trace does not say, of which the small ones take a seventh as long.
    late, clocks = (0, 60, 30), (0, 7000, -123_456)
    found = ranks([ring(number, [late[number]], clock=clocks[number], **more) for number in range(3)])
    assert [each.clock_offset_ns for each in found.ranks] == [-1000 * clock for clock in clocks]
    assert found.straggler == Straggler(rank=1, since_step=0, cause="communication", cost_ns=120_000)


def collective(at, dur, name, members, sequence):
    """An all-reduce of some ranks, in microseconds."""
    told = {"Process Group Name": name, "Process Group Ranks": list(members), "In msg nelems": 1 << 20}
    return kernel(REDUCE, at, dur, -1, stream=20 + int(name), **told, dtype="Float", Seq=sequence)


def test_hosts_are_aligned_by_the_shortest_calls_first():
    # Of (0, 2), the link into rank 2 is slow, so that it ends 40 us later; (1, 3) and the pairs are as fast as ever.
    def member(number, clock):
        events = []
        for index in range(5):
            at = 1000 * index + clock
            pair, across = (number // 2 * 2, number // 2 * 2 + 1), (number % 2, number % 2 + 2)
            slow = {0: 120, 2: 160}.get(number, 100)
            events += [
                step(index, at, 1000),
                collective(at + 100, 50, str(1 + number // 2), pair, index),
                collective(at + 300, slow, str(3 + number % 2), across, index),
            ]
        return trace(*events, distributedInfo={"rank": number, "world_size": 4})

    clocks = (0, 500, -700, 90_000)
    found = ranks([member(number, clock) for number, clock in enumerate(clocks)])
    assert [each.clock_offset_ns for each in found.ranks] == [-1000 * clock for clock in clocks]
    assert (found.straggler.rank, found.straggler.cause) == (2, "communication")


def test_messages_correct_a_clock_that_a_slow_link_shifts():
    # Rank 1 ends the only all-reduce 40 us later than rank 0; messages in both directions end on both at once.
    def member(number, clock):
        other, events = 1 - number, []
        for index in range(5):
            at = 1000 * index + clock
            events += [
                step(index, at, 1000),
                collective(at + 100, 60 + 40 * number, "0", (0, 1), index),
                message("send" if number else "recv", at + 400, 30, **{"Dst Rank" if number else "Src Rank": other}),
                message("recv" if number else "send", at + 600, 30, **{"Src Rank" if number else "Dst Rank": other}),
            ]
        return trace(*events, distributedInfo={"rank": number, "world_size": 2})

    found = ranks([member(0, 0), member(1, 777)])
    assert [each.clock_offset_ns for each in found.ranks] == [0, -777_000]
    assert found.straggler == Straggler(rank=1, since_step=0, cause="communication", cost_ns=80_000)


def test_a_slow_call_moves_those_that_queue_behind_it():
    # Rank 1 ends each call 40 us later than rank 0, so that it takes 80 us longer. The first one is hidden but for
    # 20 us; the other 60 us move the second, which exposes them with its own 80.
    def member(number):
        events = []
        for index in range(4):
            at, late = 1000 * index, 40 * number
            events += [
                step(index, at, 1000),
                launch(at, 5, 10 * index),
                kernel("gemm", at + 10, 90, 10 * index),
                launch(at + 10, 5, 10 * index + 1),
                launch(at + 20, 5, 10 * index + 2),
                launch(at + 30, 5, 10 * index + 3),
                kernel("gemm", at + 100, 220, 10 * index + 3),
                kernel(REDUCE, at + 100, 200 + late, 10 * index + 1, stream=20, Seq=2 * index),
                kernel(REDUCE, at + 300 + late, 120, 10 * index + 2, stream=20, Seq=2 * index + 1),
            ]
        return trace(*events, distributedInfo={"rank": number, "world_size": 2}, host_name="a")

    assert ranks([member(0), member(1)]).straggler == Straggler(1, 0, "communication", 140_000)


def test_a_link_that_gets_slow():
    late = [0, 0, 0, 60, 60, 60]
    found = ranks([ring(0, [0]), ring(1, late), ring(2, [each // 2 for each in late])])
    assert found.straggler == Straggler(rank=1, since_step=3, cause="communication", cost_ns=120_000)


def test_clocks_that_drift():
    found = ranks([ring(0, [0], count=40), ring(1, [0], count=40, clock=50, drift=1e-4)])
    assert found.ranks[1].clock_drift == pytest.approx(-1e-4, rel=0.01)
    assert found.residual_ns < 1000
    assert found.straggler is None


def test_ranks_of_one_host_share_a_clock():
    # On another host the constant difference of the ends would be one of the clocks.
    late = [40]
    here = ranks([ring(0, [0], host="a", seqs=False), ring(1, late, host="a", seqs=False)])
    assert here.ranks[1].clock_offset_ns == 0
    assert here.straggler.rank == 1


def test_buckets_of_a_step():
    found = ranks([ring(number, [0]) for number in range(3)])
    large, small = found.buckets
    assert (large.kind, large.index, large.steps, large.bytes) == ("all_reduce", 0, 6, 1 << 22)
    assert (small.index, small.bytes, small.transfer_ns) == (1, 4, 20_000)
    assert large.transfer_ns == 300_000
    assert large.bus_bandwidth == pytest.approx((1 << 22) / 300e-6 * 4 / 3)
    assert large.hidden_share == 0


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1), ("send", 1)],
)
def test_bus_bandwidth(kind, factor):
    assert bus_bandwidth(kind, 8000, 8, 1000) == pytest.approx(8e9 * factor)
    assert bus_bandwidth(kind, None, 8, 1000) is None
    assert bus_bandwidth(kind, 8000, 8, 0) is None


def message(kind, ts, dur, tid=9, **peer):
    return kernel(
        "ncclDevKernel_SendRecv",
        ts,
        dur,
        -1,
        stream=tid,
        **{"Collective name": kind, "Process Group Name": "p"},
        **peer,
    )


def test_messages_are_paired_by_sender_and_receiver():
    # Rank 0 sends twice to rank 1, which waits for the second one 40 us and computes nothing; Seq are each rank's own.
    first = trace(
        step(1, 0, 200),
        kernel("gemm", 0, 50, -1),
        message("send", 50, 20, **{"Dst Rank": 1, "Seq": 5}),
        message("send", 140, 20, **{"Dst Rank": 1, "Seq": 6}),
        distributedInfo={"rank": 0, "world_size": 2},
        host_name="a",
    )
    second = trace(
        step(1, 0, 200),
        message("recv", 60, 10, **{"Src Rank": 0, "Seq": 1}),
        message("recv", 100, 60, **{"Src Rank": 0, "Seq": 9}),
        distributedInfo={"rank": 1, "world_size": 2},
        host_name="a",
    )
    found = ranks([second, first])
    assert [(each.kind, each.ranks, each.wait_ns, each.transfer_ns) for each in found.collectives] == [
        ("send", (0, 1), (10_000, 0), 10_000),
        ("send", (0, 1), (0, 40_000), 20_000),
    ]
    assert found.waits_ns == ((0, 10_000), (40_000, 0))
    assert [each.bubble_share for each in found.ranks] == [pytest.approx(10 / 200), pytest.approx(40 / 200)]


def test_collectives_of_groups_that_only_some_ranks_are_in():
    def member(number, group, start):
        args = {"Process Group Name": group, "Process Group Ranks": [number // 2 * 2, number // 2 * 2 + 1], "Seq": 1}
        return trace(
            step(1, 0, 200),
            kernel(REDUCE, start, 150 - start, -1, stream=20, **args),
            distributedInfo={"rank": number, "world_size": 4},
            host_name="a",
        )

    found = ranks([member(0, "tp0", 50), member(1, "tp0", 80), member(2, "tp1", 90), member(3, "tp1", 60)])
    assert [(each.ranks, each.group, max(each.wait_ns)) for each in found.collectives] == [
        ((0, 1), "tp0", 30_000),
        ((2, 3), "tp1", 30_000),
    ]
    assert found.waits_ns == ((0, 30_000, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 30_000, 0))
    assert found.unmatched == 0


def test_gloo_calls_of_smaller_groups_are_told_by_their_ends():
    def member(number):
        groups = [[0, 1, 2, 3], [number // 2 * 2, number // 2 * 2 + 1]]
        pairs = [{"pg_name": str(index), "ranks": members} for index, members in enumerate(groups)]
        events = [
            x(
                "gloo:all_reduce",
                100 * index + 20,
                30 + (number // 2) * (7, 40, 11, 31, 20)[index],
                "user_annotation",
                tid=9,
            )
            for index in range(5)
        ]
        info = {"rank": number, "world_size": 4, "pg_config": pairs}
        return trace(step(1, 0, 600), *events, distributedInfo=info, host_name="a")

    found = ranks([member(number) for number in range(4)])
    assert {each.ranks for each in found.collectives} == {(0, 1), (2, 3)}
    assert len(found.collectives) == 10
    assert found.unmatched == 0


@pytest.mark.parametrize(
    ("starts", "durations", "transfer"),
    [((0, 100), (300, 150), 150), ((0, 100), (300, 240), 200), ((0, 0), (70, 70), 70), ((0, 100), (50, 150), 0)],
    ids=["last ends first", "last ends last", "together", "over before the last starts"],
)
def test_a_transfer_lasts_from_the_last_start_to_the_first_end(starts, durations, transfer):
    assert Collective("nccl", "0", starts, durations).transfer_ns == transfer
