"""What one rank's trace contributes: calls, their sizes and steps, and where the time of steps goes."""

import pickle

import pytest

from pytest_perfdl.analysis.overview.device import communication_overlap
from pytest_perfdl.analysis.ranks import activity
from pytest_perfdl.analysis.ranks.calls import kind_of
from pytest_perfdl.trace import read
from unit.trace.chrome import DATA, kernel, launch, step, trace, x

BASE = 1_700_000_000_000_000_000
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("nccl:all_to_all", "all_to_all"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("gloo:scatter", "scatter"),
        ("c10d::recv_any_source_", "recv"),
        ("ncclDevKernel_SendRecv", "other"),
        ("gloo:barrier", "barrier"),
    ],
)
def test_the_kind_of_a_collective_is_in_its_name(name, kind):
    assert kind_of(name) == kind


def test_a_device_rank_by_hand():
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 400,
        "dtype": "BFloat16",
        "Group size": 4,
        "Process Group Name": "1",
        "Process Group Ranks": "[0, 2, 4, 6]",
        "Seq": 7,
    }
    own = activity(
        trace(
            step(3, 0, 100),
            launch(0, 5, 1),
            kernel("gemm", 10, 40, 1),
            launch(12, 5, 2),
            kernel("ncclDevKernel_AllGather_RING_LL", 30, 50, 2, stream=20, **args),
            baseTimeNanoseconds=BASE,
            distributedInfo={"rank": 2, "world_size": 8, "pg_config": [{"pg_name": "1", "ranks": [0, 2, 4, 6]}]},
            host_name="node7",
        )
    )
    assert (own.rank, own.world_size, own.host, own.groups) == (2, 8, "node7", {"1": (0, 2, 4, 6)})
    calls = own.calls
    assert (calls.kinds, calls.group, calls.members) == (("all_gather",), ("1",), ((0, 2, 4, 6),))
    assert (calls.sequence.tolist(), calls.bytes.tolist(), calls.group_size.tolist()) == ([7], [800], [4])
    assert (calls.start - BASE).tolist() == [30_000]
    assert (calls.issued - BASE).tolist() == [12_000]
    # The kernel computes until 50: of the 50 us 30 are exposed.
    assert calls.exposed_ns.tolist() == [30_000]
    assert own.overlap == pytest.approx(0.4)
    steps = own.steps
    assert (steps.number, steps.window_ns.tolist()) == ((3,), [100_000])
    assert (steps.compute_ns.tolist(), steps.exposed_communication_ns.tolist()) == ([40_000], [30_000])
    assert (steps.communication_ns.tolist(), steps.host_ns.tolist()) == ([50_000], [30_000])
    assert [(each.kind, each.calls, each.bytes) for each in own.traffic] == [("all_gather", (1,), (800,))]


def test_a_gloo_rank_by_hand():
    # The operator issues, a thread of the back end runs, and the step's thread waits from 40 on: until 80, where the
    # collective ends. What it does from 80 on is its own.
    reduce = {"Input Dims": [[[10], [20]], [], []], "Input type": ["TensorList", "", ""]}
    own = activity(
        trace(
            step(1, 0, 100),
            x("aten::mm", 0, 20),
            x("c10d::allreduce_", 20, 5, **reduce),
            x("gloo:all_reduce", 30, 50, "user_annotation", tid=9, **{"Input Dims": [[30]], "Input type": ["float"]}),
            x("aten::mm", 25, 15),
            x("aten::add", 90, 10),
            distributedInfo={"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
        )
    )
    calls = own.calls
    assert (calls.kinds, calls.group, calls.members) == (("all_reduce",), ("host",), ((0, 1),))
    assert (calls.bytes.tolist(), calls.group_size.tolist(), calls.step.tolist()) == ([120], [2], [0])
    assert (calls.issued.tolist(), calls.start.tolist(), calls.end.tolist()) == ([20_000], [30_000], [80_000])
    steps = own.steps
    assert steps.compute_ns.tolist() == [45_000]
    assert steps.exposed_communication_ns.tolist() == [40_000]
    assert steps.host_ns.tolist() == [15_000]
    assert own.overlap == pytest.approx(0.2)


def test_an_open_message_that_nobody_waits_for_is_the_hosts_time():
    own = activity(
        trace(
            step(1, 0, 100),
            x("aten::mm", 0, 20),
            x("gloo:recv", 20, 75, "user_annotation", tid=9),
            x("aten::mm", 50, 20),
            x("aten::mm", 97, 3),
        )
    )
    # Between 20 and 50 nothing ends: Python ran. Between 70 and 97 the thread may have waited for the end at 95.
    assert own.steps.exposed_communication_ns.tolist() == [25_000]
    assert own.steps.host_ns.tolist() == [32_000]
    assert own.exposed_communication_ns == 55_000


@pytest.mark.parametrize(
    ("end", "waited"),
    [
        (60, 40),  # it ends where the thread goes on
        (63, 40),  # or a little later, as the thread of the back end closes the annotation after it has woken this one
        (100, 40),  # the thread has been idle for as long as that
        (101, 0),  # it has not: Python ran, and the collective goes on
    ],
)
def test_a_collective_that_is_closed_after_the_thread_went_on(end, waited):
    own = activity(
        trace(
            step(1, 0, 200),
            x("aten::mm", 0, 20),
            x("gloo:all_reduce", 20, end - 20, "user_annotation", tid=9),
            x("aten::mm", 60, 120),
        )
    )
    assert own.steps.exposed_communication_ns.tolist() == [waited * 1000]
    assert own.steps.host_ns.tolist() == [(60 - waited) * 1000]


@pytest.mark.parametrize(
    ("until", "waited"),
    [
        (20, 42),
        (37, 25),  # idle for half of the time that the collective is open
        (38, 0),  # computing for more of it: the rest is a pause of the thread's own
    ],
)
def test_who_computes_while_a_collective_is_open_does_not_wait_for_it(until, waited):
    own = activity(
        trace(
            step(1, 0, 200),
            x("aten::mm", 0, until),
            x("gloo:all_reduce", 20, 50, "user_annotation", tid=9),
            x("aten::mm", 62, 128),
        )
    )
    assert own.steps.exposed_communication_ns.tolist() == [waited * 1000]


def test_a_wait_that_work_of_the_thread_interrupts():
    """DDP waits for the first bucket, takes its gradients, and waits for the second, whose annotation closes late."""
    own = activity(
        trace(
            step(1, 0, 200),
            x("aten::mm", 0, 20),
            x("gloo:all_reduce", 22, 18, "user_annotation", tid=8),
            x("gloo:all_reduce", 20, 50, "user_annotation", tid=9),
            x("aten::view", 40, 2),
            x("aten::mm", 62, 128),
        )
    )
    assert own.steps.exposed_communication_ns.tolist() == [40_000]


def test_reduce_scatter_of_gloo_is_an_all_reduce_that_an_operator_explains():
    scatter = {"Input Dims": [[5], [10]], "Input type": ["float", "float"]}
    own = activity(
        trace(
            step(1, 0, 100),
            x("c10d::_reduce_scatter_base_", 0, 5, **scatter),
            x("gloo:all_reduce", 10, 20, "user_annotation", tid=9),
            x("c10d::send", 40, 5, **{"Input Dims": [[[4]]], "Concrete Inputs": ["", "", "3", "0"]}),
            x("gloo:send", 45, 5, "user_annotation"),
        )
    )
    assert own.calls.kinds == ("reduce_scatter", "send")
    assert own.calls.bytes.tolist() == [40, -1], "the type of what is sent is not said"
    assert own.calls.peer.tolist() == [-1, 3]


def issue(ts, size):
    return x("c10d::allreduce_", ts, 1, **{"Input Dims": [[[size]]], "Input type": ["TensorList"]})


def run(ts, size, tid):
    args = {"Input Dims": [[size]], "Input type": ["double"]}
    return x("gloo:all_reduce", ts, 2, "user_annotation", tid=tid, **args)


def test_threads_may_begin_calls_in_another_order():
    own = activity(trace(step(1, 0, 100), issue(0, 3), issue(5, 4), run(20, 4, 8), run(21, 3, 9)))
    assert own.calls.bytes.tolist() == [24, 32]
    assert own.calls.start.tolist() == [21_000, 20_000]
    assert own.calls.issued.tolist() == [0, 5_000]


def test_many_calls_of_other_groups_may_run_before_one():
    # A bucket waits for another rank while twelve activations of another group are reduced, each as it is issued.
    small = [(issue(10 + 5 * index, 4), run(12 + 5 * index, 4, 8)) for index in range(12)]
    events = [issue(0, 1000), *(event for pair in small for event in pair), run(90, 1000, 9)]
    own = activity(trace(step(1, 0, 100), *events))
    assert own.calls.bytes.tolist() == [8000, *[32] * 12]
    assert own.calls.start.tolist() == [90_000, *(1000 * (12 + 5 * index) for index in range(12))]


def test_ranks_that_run_the_same_kernels_have_the_same_work():
    def works(*grids, name="gemm", steps=3, last=()):
        events = []
        for number in range(steps):
            sizes = last if last and number == steps - 1 else grids
            events.append(step(number, 100 * number, 100))
            for index, grid in enumerate(sizes):
                correlation = 10 * number + index
                events.append(launch(100 * number + 10 * index, 5, correlation))
                events.append(kernel(name, 100 * number + 10 * index + 7, 2 + index, correlation, grid=[grid, 1, 1]))
        return activity(trace(*events)).work

    same = works(4, 4, 8)
    assert works(8, 4, 4) == same, "in another order"
    assert works(4, 4, 8, steps=5) == same, "for longer"
    assert works(4, 4, 8, last=(4,)) == same, "the last step cut off"
    assert len({same, works(4, 8), works(4, 4, 16), works(4, 4, 8, name="conv")}) == 4
    assert activity(trace()).work == ""


def test_a_collective_is_ready_once_what_was_issued_before_it_is_computed():
    own = activity(
        trace(
            step(1, 0, 200),
            launch(0, 5, 1),
            kernel("gemm", 10, 50, 1),
            launch(10, 5, 2),
            launch(20, 5, 3),
            kernel("gemm", 60, 90, 3),
            launch(100, 5, 4),
            kernel(REDUCE, 70, 30, 2, stream=20),
            kernel(REDUCE, 160, 30, 4, stream=20),
        )
    )
    assert own.calls.start.tolist() == [70_000, 160_000]
    assert own.calls.ready.tolist() == [60_000, 150_000]


@pytest.mark.parametrize(("waits", "late"), [((), 50), (((70, 30),), 20)], ids=["alone", "for the device"])
def test_a_host_that_is_late_while_something_is_communicated(waits, late):
    # Nothing computes from 50 to 130, a collective runs until 100, and the host launches what comes next at 110. It may
    # have waited for the device from 70 to 100.
    own = activity(
        trace(
            step(1, 0, 200),
            launch(0, 5, 1),
            kernel("gemm", 10, 40, 1),
            launch(10, 5, 2),
            kernel(REDUCE, 40, 60, 2, stream=20),
            *(launch(ts, dur, -1, name="cudaStreamSynchronize") for ts, dur in waits),
            launch(110, 5, 3),
            kernel("gemm", 130, 20, 3),
        )
    )
    assert own.steps.exposed_communication_ns.tolist() == [50_000]
    assert (own.late.end - own.late.start).tolist() == [1000 * late]


def test_functional_collectives_name_their_group():
    called = {"Concrete Inputs": ["", "sum", "7"], "Input Dims": [[4]], "Input type": ["float"]}
    own = activity(
        trace(
            step(1, 0, 100),
            x("_c10d_functional::all_reduce", 0, 30, **called),
            x("c10d::allreduce_", 5, 5),
            x("gloo:all_reduce", 12, 10, "user_annotation", tid=9),
            distributedInfo={
                "rank": 0,
                "pg_config": [{"pg_name": "7", "ranks": [0, 2]}, {"pg_name": "0", "ranks": [0]}],
            },
        )
    )
    assert (own.calls.group, own.calls.members) == (("7",), ((0, 2),))


def test_the_classes_of_steps_add_up_in_every_recording():
    for path in sorted(DATA.glob("*.json.gz")):
        steps = activity(read(path)).steps
        parts = steps.compute_ns + steps.input_ns + steps.host_ns + steps.exposed_copies_ns
        assert (parts + steps.exposed_communication_ns == steps.window_ns).all(), path
        assert (sum(steps.account.values()) == steps.window_ns).all(), path


def test_an_activity_is_small_and_can_be_sent():
    whole = read(DATA / "device_rank0.json.gz")
    own = activity(whole)
    sent = pickle.dumps(own)
    assert len(sent) < 20_000
    again = pickle.loads(sent)
    assert again.calls.kinds == own.calls.kinds
    assert (again.steps.compute_ns == own.steps.compute_ns).all()
    assert own.overlap == communication_overlap(whole)


def test_recorded_gloo_ranks():
    for number in range(2):
        own = activity(read(DATA / f"gloo_rank{number}.json.gz"))
        assert (own.rank, own.world_size, own.on_device) == (number, 2, False)
        # Four layers of 128 x 128 weights and 128 biases, in buckets of two: 2 x 2 x 16512 floats a step.
        assert [(each.kind, each.calls) for each in own.traffic] == [("all_reduce", (2, 2, 2, 2))]
        assert own.traffic[0].bytes == (264_192,) * 4
