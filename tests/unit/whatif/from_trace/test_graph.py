"""Traces as task graphs: tasks and edges by hand, and measured times as the answer of the unchanged graph."""

import numpy as np
import pytest
from hypothesis import given, settings

from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.waiting.critical_path import critical_path
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import read
from pytest_perfdl.whatif import Plan, Select, simulate, task_graph
from pytest_perfdl.whatif.model import CHAIN_KINDS, EdgeKind, TaskKind
from pytest_perfdl.whatif.simulation.quality import quality
from unit.analysis.generated import usable_traces
from unit.analysis.jobs import pipelined, steady, without
from unit.analysis.waiting.test_critical_path import ENGINE, programs, sync, sync_event, usable_events
from unit.trace.chrome import corpus_file, each_recording, kernel, launch, step, trace, x
from unit.whatif.hand import slow

SMALL = ("cpu_only", "cuda_event_sync.json", "cuda_event_sync_multi", "mi250", "triton", "alexnet", "h100", "mi300")


def check(made, whole=True):
    """What must hold of the unchanged graph of every trace."""
    graph = made if not whole else task_graph(made)
    replay = simulate(graph)
    assert replay.start.tolist() == graph.tasks.start.tolist()
    assert replay.start.tolist() == slow(graph)
    assert simulate(graph, lags="constant").start.tolist() == slow(graph, "constant_lag")
    path = replay.path
    assert path.length_ns == replay.span_ns
    assert (path.start[1:] == path.end[:-1]).all()
    assert sum(path.by_kind(graph).values()) == replay.span_ns
    assert (np.diff(graph.tasks.track) >= 0).all()
    assert (graph.tasks.duration >= 0).all()
    chain = np.isin(graph.edges.kind, CHAIN_KINDS) & (graph.edges.source == graph.edges.target - 1)
    assert np.bincount(graph.edges.target[chain], minlength=len(graph)).max(initial=0) <= 1
    assert (graph.tasks.track[graph.edges.source[chain]] == graph.tasks.track[graph.edges.target[chain]]).all()
    return graph


def edges_of(graph):
    """Edges but those along tracks: kind, source, target, lag in us, and whether they count from the start."""
    edges = graph.edges.take(~np.isin(graph.edges.kind, CHAIN_KINDS))
    columns = (edges.kind, edges.source, edges.target, edges.lag, edges.at_start)
    return {
        (EdgeKind(kind).name, graph.name_of(source), graph.name_of(target), lag / 1000, at_start)
        for kind, source, target, lag, at_start in zip(*(column.tolist() for column in columns), strict=True)
    }


def spans(graph, *plans):
    """Microseconds of the unchanged graph and of each plan."""
    return [simulate(plan.apply(graph)).span_ns / 1000 for plan in (Plan(), *plans)]


TWO_STREAMS = (
    launch(0, 4, 1),
    launch(4, 4, 2),
    kernel("a", 10, 30, 1),
    kernel("b", 12, 10, 2, stream=8),
    sync(10, 33),
    x("aten::add", 43, 7),
)


def test_two_streams_and_a_synchronization():
    graph = check(trace(*TWO_STREAMS))
    assert edges_of(graph) == {
        ("LAUNCH", "cudaLaunchKernel", "a", 10, True),
        ("LAUNCH", "cudaLaunchKernel", "b", 8, True),
        ("SYNC", "a", "cudaDeviceSynchronize", 3, False),
        ("SYNC", "b", "cudaDeviceSynchronize", 3, False),
    }
    assert [TaskKind(kind).name for kind in graph.tasks.kind.tolist()] == [
        *("CALL", "CALL", "GAP", "WAIT", "RETURN", "OPERATOR", "KERNEL", "KERNEL")
    ]
    assert (graph.constants.launch_lag, graph.constants.sync_return) == (9000, 3000)


def test_what_is_off_the_path_changes_nothing_until_its_slack_is_used_up():
    graph = task_graph(trace(*TWO_STREAMS))
    b = Select(name="^b$")
    # b ends at 22, a at 40: 18 us of slack, from where on the call returns 3 us after b.
    assert spans(graph, Plan().scale(b, 2.8), Plan().scale(b, 2.9), Plan().scale(b, 3)) == [50, 50, 51, 52]
    a = Select(name="^a$")
    # Half of a is 15 us, so that the call returns at 28; without a it is b's end, 22, that is waited for.
    assert spans(graph, Plan().scale(a, 0.5), Plan().scale(a, 0)) == [50, 35, 32]
    path = simulate(graph).path
    assert path.by_kind(graph) == {"operator": 7000, "kernel": 30000, "launch lag": 10000, "sync lag": 3000}


def test_the_order_of_a_stream_with_gaps():
    graph = check(
        trace(
            *(launch(4 * number, 4, number) for number in range(4)),
            *(kernel(f"k{number}", 10 + 11 * number, 10, number) for number in range(4)),
        )
    )
    assert graph.constants.kernel_gap == 1000
    # Twice as fast, k1 would follow at 16, k2 at 22, and k3 at 28 to 33.
    assert spans(graph, Plan().scale(Select(device=True), 0.5)) == [53, 33]


def test_a_kernel_that_its_launch_holds_up():
    graph = check(
        trace(x("aten::mm", 0, 60), launch(0, 5, 1), launch(50, 5, 2), kernel("a", 8, 10, 1), kernel("b", 58, 10, 2))
    )
    # Both launches took 8 us; 45 us of operator lie between them and are halved, the calls and the last 5 us, too.
    host = Select(device=False)
    assert spans(graph, Plan().scale(Select(name="^a$"), 3), Plan().scale(host, 0.5)) == [68, 68, 43]


def test_a_recorded_event():
    graph = check(
        trace(
            launch(0, 1, 1),
            launch(2, 1, 2, name="cudaEventRecord"),
            launch(4, 1, 3, name="cudaStreamWaitEvent"),
            launch(6, 1, 4),
            kernel("first", 10, 40, 1),
            kernel("second", 52, 20, 4, stream=8),
            sync_event("Stream Wait Event", 4, 3, 8, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
        )
    )
    assert ("EVENT", "first", "second", 2, False) in edges_of(graph)
    # The launch at 6 usually takes effect after 10 us: that of the first kernel did.
    assert spans(graph, Plan().scale(Select(name="first"), 0.5), Plan().scale(Select(name="first"), 0)) == [72, 52, 36]
    assert (graph.edges.confidence == 1).all()


def test_an_inferred_wait_for_another_stream_keeps_its_lag():
    graph = check(
        trace(
            launch(0, 1, 1),
            launch(1, 1, 2),
            launch(2, 1, 3),
            kernel("first", 10, 10, 1),
            kernel("other", 11, 39, 2, stream=8),
            kernel("late", 60, 30, 3),
        )
    )
    assert ("OTHER_STREAM", "other", "late", 10, False) in edges_of(graph)
    assert graph.edges.inferred.sum() == 1
    assert simulate(graph, lags="constant").span_ns == 90_000
    assert spans(graph, Plan().scale(Select(name="other"), 0.5), Plan().drop_edges(EdgeKind.OTHER_STREAM)) == [
        *(90, 90 - 19.5, 50)
    ]
    found = quality(graph)
    # All that is known is that "first" ended at 20; that "late" waited from there to 60 is inferred.
    assert found.inferred_share == pytest.approx(critical_path(graph.trace).inferred_share)


def test_contention():
    graph = check(
        trace(
            launch(0, 1, 1),
            launch(1, 1, 2),
            launch(2, 1, 3),
            kernel("first", 10, 10, 1),
            kernel("holds the SMs", 11, 100, 2, stream=8),
            kernel("late", 80, 30, 3),
        )
    )
    assert ("CONTENTION", "holds the SMs", "late", -31, False) in edges_of(graph)
    assert spans(graph, Plan().scale(Select(name="holds"), 0.5)) == [111, 61]


def test_communication_between_streams():
    graph = check(
        trace(
            *(launch(number, 1, number) for number in range(3)),
            kernel("gemm", 10, 40, 0),
            kernel("ncclDevKernel_AllReduce", 60, 25, 1, stream=8),
            kernel("adam", 90, 10, 2),
        )
    )
    found = {edge[:3] for edge in edges_of(graph) if edge[0] == "COMMUNICATION"}
    assert found == {
        ("COMMUNICATION", "gemm", "ncclDevKernel_AllReduce"),
        ("COMMUNICATION", "ncclDevKernel_AllReduce", "adam"),
    }
    assert spans(graph, Plan().scale(Select(kind=TaskKind.COMMUNICATION), 0)) == [100, 75]


def test_one_launch_of_many_kernels():
    graph = check(
        trace(
            launch(0, 5, 1, name="cudaGraphLaunch"),
            *(kernel(f"k{number}", 10 + 11 * number, 10, 1) for number in range(3)),
            launch(6, 2, 2),
            launch(8, 2, 3),
            kernel("eager", 45, 10, 2),
            kernel("eager too", 60, 10, 3),
        )
    )
    lag = {
        graph.name_of(task): int(graph.edges.constant_lag[at]) / 1000
        for at, task in enumerate(graph.edges.target.tolist())
        if graph.edges.kind[at] == EdgeKind.STREAM
    }
    # Gaps within a graph are of their own: 1 us, not the 3 and 5 us between eager kernels.
    assert lag == {"k1": 1, "k2": 1, "eager": 4, "eager too": 4}
    assert len(set(graph.tasks.launcher[graph.tasks.kind == TaskKind.KERNEL].tolist())) == 3
    without = Plan().remove(Select(name="k0")).apply(graph)
    # What is left of the graph starts as soon after its launch as its first kernel did.
    start = dict(
        zip([without.name_of(task) for task in range(len(without))], simulate(without).start.tolist(), strict=True)
    )
    assert start["k1"] - graph.span[0] == 10_000


def back_pressure(kernel_us, launch_us=1, count=1200):
    """Launches into a queue of 1023: events and the moment at which the host has launched all."""
    events, now, ends = [x("aten::mm", 0, 1)], 1, []
    for number in range(count):
        begins = max(ends[-1] if ends else 0, now + 1)
        until = max(now + launch_us, ends[number - 1023] + launch_us if number >= 1023 else 0)
        events += [launch(now, until - now, number), kernel("k", begins, kernel_us, number)]
        ends.append(begins + kernel_us)
        now = until
    return [*events, x("aten::add", now, 20_000)], now, ends[-1]


def test_a_full_launch_queue():
    events, now, _ = back_pressure(10)
    graph = check(trace(*events))
    assert graph.constants.queue_depth == 1023
    # Kernel n - 1023 ends at 12 + 10 (n - 1023); launch n is reached at n + 1, sooner than that from 1136 on.
    assert (graph.tasks.kind == TaskKind.RETURN).sum() == 1200 - 1136
    expected = [now + 20_000]
    for faster in (5, 2, 1):
        expected.append(back_pressure(faster)[1] + 20_000)
    assert spans(graph, *(Plan().scale(Select(name="k$", device=True), each / 10) for each in (5, 2, 1))) == expected
    assert spans(graph, Plan().drop_edges(EdgeKind.QUEUE))[1] == 1 + 1200 + 20_000


def test_a_launch_queue_that_becomes_full():
    events, now, _ = back_pressure(1)
    graph = check(trace(*events))
    assert not (graph.tasks.kind == TaskKind.RETURN).any()
    slower = Plan().scale(Select(name="k$", device=True), 10)
    assert spans(graph, slower) == [now + 20_000, back_pressure(10)[1] + 20_000]


def test_a_launch_queue_of_another_vendor():
    events, now, _ = back_pressure(10)
    for event in events:
        event["name"] = event["name"].replace("cudaLaunchKernel", "hipLaunchKernel")
    graph = check(trace(*events))
    # Waits that were seen are there; where there would be others is not known.
    assert graph.constants.queue_depth == 0
    assert (graph.edges.kind == EdgeKind.QUEUE).sum() == 1200 - 1136
    assert spans(graph, Plan().scale(Select(name="k$", device=True), 0.9))[1] < now + 20_000


def test_memory_is_freed_when_the_device_is_idle():
    graph = check(
        trace(launch(0, 1, 1), kernel("k", 4, 36, 1), launch(12, 33, 9, name="cudaFree"), x("aten::mm", 45, 5))
    )
    assert ("SYNC", "k", "cudaFree", 0, False) in edges_of(graph)
    # 5 us of freeing follow the wait; without it they begin at 12.
    assert spans(graph, Plan().scale(Select(name="^k$"), 0.5), Plan().scale(Select(name="^k$"), 0)) == [50, 32, 22]


def test_a_blocking_copy():
    graph = check(
        trace(
            launch(0, 1, 1),
            kernel("k", 4, 26, 1),
            launch(5, 35, 2, name="cudaMemcpyAsync"),
            kernel("Memcpy DtoH (Device -> Pageable)", 31, 5, 2, cat="gpu_memcpy"),
            x("aten::add", 41, 9),
        )
    )
    assert ("COPY", "Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", 4, False) in edges_of(graph)
    # Half of k is 13 us; without the wait the host goes on as soon as calls return, after 4 us.
    assert spans(graph, Plan().scale(Select(name="^k$"), 0.5), Plan().drop_edges(EdgeKind.COPY)) == [50, 37, 36]


@pytest.mark.parametrize(
    ("told", "sources"),
    [
        ({"stream": 7}, {"short"}),
        ({"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5}, {"short"}),
        (None, {"long"}),
    ],
    ids=["stream", "event", "unknown"],
)
def test_what_a_call_synchronizes_with(told, sources):
    name = "cudaEventSynchronize" if told and "wait_on_stream" in told else "cudaStreamSynchronize"
    graph = check(
        trace(
            launch(0, 1, 1),
            launch(1, 1, 5, name="cudaEventRecord"),
            launch(2, 1, 2),
            kernel("short", 4, 20, 1),
            kernel("long", 6, 40, 2, stream=8),
            sync(10, 40, 6, name=name),
            *([sync_event("Sync", 10, 6, **{"stream": -1, **told})] if told else []),
        )
    )
    assert {edge[1] for edge in edges_of(graph) if edge[0] == "SYNC"} == sources


def test_a_synchronization_that_had_nothing_to_wait_for_waits_when_the_device_is_slower():
    graph = check(
        trace(launch(0, 1, 1), kernel("k", 4, 6, 1), x("aten::mm", 1, 19), sync(20, 5), x("aten::add", 25, 5))
    )
    # k would end at 34 instead of 10; there is no measured return to take a latency from.
    assert spans(graph, Plan().scale(Select(name="^k$"), 2), Plan().scale(Select(name="^k$"), 5)) == [30, 30, 39]


def test_the_backward_pass_on_a_thread_of_its_own():
    graph = check(
        trace(
            step(1, 0, 100),
            x("aten::mm", 5, 15),
            x(ENGINE, 25, 40, tid=9),
            x("aten::mm", 30, 20, tid=9),
            x("aten::add_", 75, 20),
        )
    )
    joins = {edge[:4] for edge in edges_of(graph) if edge[0] == "JOIN"}
    assert joins == {("JOIN", "aten::mm", "wait", 0), ("JOIN", ENGINE, "wait", 0)}
    assert simulate(Plan().scale(Select(name="evaluate_function"), 2).apply(graph)).span_ns == 120_000


def test_a_thread_that_polls_for_its_last_kernel():
    graph = check(trace(launch(0, 5, 1), kernel("k", 10, 980, 1), x("aten::mm", 1000, 200)))
    assert ("SPIN", "k", "wait", 0, False) in edges_of(graph)
    assert graph.edges.confidence.min() < 1
    assert spans(graph, Plan().scale(Select(name="^k$"), 0.5)) == [1200, 710]


def test_what_was_launched_before_the_trace_keeps_its_start():
    graph = check(
        trace(
            x("aten::mm", 0, 10),
            kernel("carried over", 20, 30, 77),
            launch(10, 1, 1),
            kernel("next", 52, 10, 1),
        )
    )
    assert spans(graph, Plan().scale(Select(device=False), 0), Plan().scale(Select(name="carried"), 0.5)) == [
        62,
        62,
        47,
    ]
    assert quality(graph).held_share == pytest.approx(20 / 62)


def test_an_unknown_launch_in_the_midst_keeps_its_start_unless_its_stream_is_late():
    graph = check(trace(x("aten::mm", 0, 10), kernel("first", 20, 10, 77), kernel("second", 80, 10, 78)))
    first = Select(name="first")
    assert spans(graph, Plan().scale(first, 0.5), Plan().scale(first, 6), Plan().scale(first, 7)) == [90, 90, 90, 100]
    # That it began only 50 us after the first ended has no reason in the trace: 20 us at most are a kernel gap.
    assert quality(graph).unexplained_share == pytest.approx(30 / 90)
    assert quality(graph).held_share == pytest.approx(80 / 90)


def test_threads_of_the_cpu_and_a_collective_beside_them():
    graph = check(
        trace(
            step(1, 0, 300),
            x("aten::mm", 0, 10),
            x("c10d::allreduce_", 10, 5),
            x("gloo:all_reduce", 20, 200, "user_annotation", tid=7),
            x("aten::add", 225, 50),
        )
    )
    assert not graph.on_device
    assert edges_of(graph) == {
        ("COMMUNICATION", "c10d::allreduce_", "gloo:all_reduce", 10, True),
        ("COMMUNICATION", "gloo:all_reduce", "wait", 0, False),
    }
    # Without the collective the thread goes on at 15 + 5 us of Python.
    collective = Select(kind=TaskKind.COMMUNICATION)
    assert spans(graph, Plan().scale(collective, 2), Plan().scale(Select(name="mm"), 2)) == [300, 500, 310]


def test_steps_and_their_period():
    events = []
    for number in range(4):
        begin = 100 * number
        events += [
            step(number, begin, 90),
            x("aten::mm", begin, 50),
            launch(begin + 10, 5, number + 1),
            kernel("k", begin + 20, 90, number + 1),
        ]
    made = trace(*events)
    graph = check(made)
    replay = simulate(graph)
    windows = [window.window_ns for window in steps_of(made).windows]
    assert replay.steps_ns.tolist() == windows == [110_000, 100_000, 100_000, 100_000]
    assert replay.period_ns == np.mean(windows)
    # The host needs 100 us a step, so that faster kernels gain only what the first step's overhang was.
    faster = simulate(Plan().scale(Select(device=True), 0.5).apply(graph))
    assert faster.steps_ns.tolist() == [90_000, 100_000, 100_000, 100_000]
    assert simulate(task_graph(trace(*events[:8]))).period_ns is None


@pytest.mark.parametrize(
    "events",
    [
        pipelined(),
        pipelined(called=True),
        [*steady(3), *steady(3, first=21, at=10_000_000)],
        [event for number in (5, 10, 15) for event in steady(1, first=number, at=1000 * number)],
        without(steady(), 303, 304),
        without(pipelined(5), 1109, 1110),
    ],
    ids=["carried over", "launched before", "two recordings", "every fifth", "a step less", "an unknown begin"],
)
def test_steps_begin_as_their_windows_do(events):
    made = trace(*events)
    graph = check(made)
    assert simulate(graph).steps_ns.tolist() == [window.window_ns for window in steps_of(made).windows]
    assert set(simulate(graph).steps_ns.tolist()) == {1_000_000}


def test_faster_kernels_make_carried_over_work_faster_as_well():
    # All kernels take 50 us: the 30 from before until 1500, each step 500.
    made = trace(*pipelined())
    faster = simulate(Plan().scale(Select(device=True), 0.5).apply(task_graph(made)))
    assert faster.steps_ns.tolist() == [500_000] * 3


def test_a_trace_without_a_step_to_simulate():
    with pytest.raises(TraceError, match="has no step to simulate: 50 of 50 kernel launches"):
        task_graph(trace(*(one for one in steady() if one["cat"] != "kernel")))


def test_setup_belongs_to_no_step():
    events = [
        *(step(number, 100 * number, 100) for number in range(3)),
        *(x("aten::mm", 100 * number + 40, 60) for number in range(3)),
        *(x("perfdl.setup", 100 * number + 10, 20, "user_annotation") for number in range(3)),
        *(x("aten::empty", 100 * number + 12, 10) for number in range(3)),
    ]
    graph = check(trace(*events))
    assert simulate(graph).steps_ns.tolist() == [80_000] * 3
    slower = Plan().scale(Select(name="empty"), 5).scale(Select(name="mm"), 0.5).apply(graph)
    assert simulate(slower).steps_ns.tolist() == [50_000] * 3


def test_what_the_setup_launches_completes_the_step_too():
    made = trace(
        step(0, 0, 100),
        x("perfdl.setup", 0, 20, "user_annotation"),
        launch(5, 5, 1),
        kernel("k", 12, 200, 1),
        x("aten::mm", 30, 60),
    )
    graph = check(made)
    # k ends at 212; of that the setup's 20 us are not the step's.
    assert simulate(graph).steps_ns.tolist() == [window.window_ns for window in steps_of(made).windows] == [192_000]


def test_nothing():
    graph = check(trace())
    assert (len(graph), simulate(graph).span_ns, graph.span) == (0, 0, (0, 0))
    assert quality(graph).trust == "refuse"


@pytest.mark.corpus
@pytest.mark.parametrize("name", SMALL)
def test_public_traces_are_replayed(name):
    made = read(corpus_file(name))
    graph = check(made)
    replay, found, path = simulate(graph), quality(graph), critical_path(made)
    assert (
        replay.steps_ns.tolist() == [window.window_ns for window in steps_of(made).windows] or len(replay.steps_ns) == 1
    )
    assert found.replay_error == 0
    assert abs(found.constant_error) <= 0.005
    assert found.trust == "ok"
    assert found.inferred_share == pytest.approx(path.inferred_share, abs=1e-3)
    assert replay.span_ns == path.span_ns


@each_recording
def test_our_recordings_are_replayed(path):
    check(read(path))


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(usable_traces())
def test_any_generated_trace_is_replayed(made):
    check(made)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(usable_events)
def test_any_trace_is_replayed(events):
    made = trace(*events)
    graph = check(made)
    assert graph.contradicted >= 0


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(programs())
def test_a_program_s_path_agrees_with_the_walk(program):
    calls, kernels, syncs = program
    made = trace(
        *(launch(start, end - start, number) for number, (start, end) in enumerate(calls, 1)),
        *(kernel("k", start, end - start, call + 1, stream=stream) for start, end, stream, call in kernels),
        *(sync(start, end - start) for start, end in syncs),
    )
    graph = check(made)
    assert simulate(graph).span_ns == critical_path(made).span_ns


def reducing_behind_kernels(first_until=300, second_from=302):
    """Two kernels of 100 us, each with an all-reduce behind it on another stream, then an update; launched ahead."""
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
    return trace(
        *(launch(3 * number, 2, number) for number in range(4)),
        x("Optimizer.step#SGD.step", 11, 10, "user_annotation"),
        launch(12, 2, 4),
        kernel("gemm", 20, 100, 0),
        kernel(reduce, 122, first_until - 122, 1, stream=20),
        kernel("gemm", 121, 100, 2),
        kernel(reduce, second_from, 50, 3, stream=20),
        kernel("update", 400, 10, 4),
    )


def starts(made, plan):
    """Starts of the second all-reduce and of the update in microseconds."""
    edited = plan.apply(made)
    found = simulate(edited).start
    assert found.tolist() == slow(edited)
    rows = [edited.names.index(name) for name in ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "update")]
    return [float(found[np.flatnonzero(edited.tasks.name == row)[-1]]) / 1000 for row in rows]


def test_a_collective_waits_for_the_kernels_launched_before_it_even_if_its_stream_was_busy():
    made = task_graph(reducing_behind_kernels())
    assert starts(made, Plan()) == [302, 400]
    # The second one followed the first. Without that one's time it waits for the second gemm, which ends at 221, and
    # for the usual gap of 1 us.
    first = Select(kind=TaskKind.COMMUNICATION)(made)
    first[np.flatnonzero(first)[1:]] = False
    assert starts(made, Plan().scale(first, 0.0))[0] == 222
    # One that had begun before that gemm ended was not asked for behind it: it follows the first one.
    early = task_graph(reducing_behind_kernels(first_until=200, second_from=202))
    assert starts(early, Plan().scale(first, 0.0))[0] == 124


def test_an_update_waits_for_collectives_even_if_they_were_hidden():
    # The update began 48 us after the second all-reduce had ended, for another reason.
    made = task_graph(reducing_behind_kernels())
    longer = starts(made, Plan().scale(Select(kind=TaskKind.COMMUNICATION), 2.0))
    # They end at 122 + 356 and, 2 us later, 100 behind that.
    assert longer[0] == 480
    assert longer[1] >= 580
