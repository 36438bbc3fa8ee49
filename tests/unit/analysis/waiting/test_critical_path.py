"""The chain of binding constraints, worked out by hand, against a slow walk, and on every public trace."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.waiting.critical_path import CLASSES, critical_path
from pytest_perfdl.trace import read
from unit.analysis.generated import usable
from unit.trace.chrome import MAIN, corpus_file, each_trace_file, kernel, launch, step, trace, x

ENGINE = "autograd::engine::evaluate_function: AddmmBackward0"


def stretches(made, path=None):
    """Class, name (of stretches with an event), start and end in us after the beginning."""
    path = path or critical_path(made)
    check(made, path)
    zero = int(path.start_ns[0])
    return [
        (CLASSES[kind], made.name_of(row) if row >= 0 else "", (start - zero) / 1000, (end - zero) / 1000)
        for kind, row, start, end in zip(
            path.kind.tolist(), path.row.tolist(), path.start_ns.tolist(), path.end_ns.tolist(), strict=True
        )
    ]


def check(made, path):
    """What must hold of every path."""
    assert sum(path.by_class.values()) == path.span_ns == int((path.end_ns - path.start_ns).sum())
    assert sum(row.total_ns for row in path.by_name) == path.span_ns
    assert list(path.by_class) == list(CLASSES)
    assert (path.end_ns > path.start_ns).all()
    # One begins where the other ends, except between steps.
    apart = path.start_ns[1:] > path.end_ns[:-1]
    assert (path.start_ns[1:] >= path.end_ns[:-1]).all()
    skipped = steps_of(made).skipped
    between = list(zip(path.end_ns[:-1][apart].tolist(), path.start_ns[1:][apart].tolist(), strict=True))
    assert set(between) <= set(zip(skipped.start.tolist(), skipped.end.tolist(), strict=True))
    own = path.row >= 0
    assert (made.start[path.row[own]] <= path.start_ns[own]).all()
    assert (path.end_ns[own] <= made.end[path.row[own]]).all()
    assert sum(row.count for row in path.by_name) == len(path)
    assert [row.total_ns for row in path.by_name] == sorted((row.total_ns for row in path.by_name), reverse=True)
    assert 0 <= path.inferred_share <= 1
    assert path.unexplained_share == (path.by_class["unexplained wait"] / path.span_ns if path.span_ns else 0)


def classes(*events):
    """Microseconds of each class that has some."""
    made = trace(*events)
    path = critical_path(made)
    check(made, path)
    return {name: ns / 1000 for name, ns in path.by_class.items() if ns}


def sync(ts, dur, correlation=9000, name="cudaDeviceSynchronize", **more):
    return launch(ts, dur, correlation, name=name, **more)


def sync_event(kind, ts, correlation, stream=-1, **args):
    return x(kind, ts, 1, "cuda_sync", pid=0, tid=stream, correlation=correlation, stream=stream, device=0, **args)


def test_a_launch_its_kernel_and_the_wait_for_it():
    made = trace(x("aten::mm", 0, 20), launch(10, 5, 1), kernel("gemm", 18, 30, 1), x("aten::add", 22, 3), sync(30, 21))
    assert stretches(made) == [
        ("operator", "aten::mm", 0, 10),
        ("launch latency", "", 10, 18),
        ("compute", "gemm", 18, 48),
        ("synchronization", "cudaDeviceSynchronize", 48, 51),
    ]


def test_a_stream_that_is_behind_waits_for_itself_only():
    made = trace(
        launch(0, 4, 1),
        launch(4, 4, 2),
        launch(8, 4, 3),
        kernel("a", 10, 20, 1),
        kernel("Memset (Device)", 31, 9, 2, cat="gpu_memset"),
        kernel("ncclDevKernel_AllReduce", 42, 8, 3),
    )
    assert stretches(made) == [
        ("launch latency", "", 0, 10),
        ("compute", "a", 10, 30),
        ("kernel gap", "", 30, 31),
        ("copy", "Memset (Device)", 31, 40),
        ("kernel gap", "", 40, 42),
        ("communication", "ncclDevKernel_AllReduce", 42, 50),
    ]


def test_host_time_is_that_of_the_innermost_event():
    made = trace(
        step(1, 0, 100),
        x("aten::linear", 10, 40),
        x("aten::addmm", 20, 20),
        launch(25, 5, 0, name="cudaFuncGetAttributes"),
        x("enumerate(DataLoader)#X.__next__", 60, 30, "user_annotation"),
        x("aten::stack", 70, 10),
    )
    assert stretches(made) == [
        ("Python and host", "", 0, 10),
        ("operator", "aten::linear", 10, 20),
        ("operator", "aten::addmm", 20, 25),
        ("runtime call", "cudaFuncGetAttributes", 25, 30),
        ("operator", "aten::addmm", 30, 40),
        ("operator", "aten::linear", 40, 50),
        ("Python and host", "", 50, 60),
        ("input", "enumerate(DataLoader)#X.__next__", 60, 90),
        ("Python and host", "", 90, 100),
    ]


def test_collectives_of_other_threads_on_a_cpu_only_trace():
    assert classes(
        x("aten::mm", 0, 10), x("aten::add", 40, 10), x("gloo:all_reduce", 5, 25, "user_annotation", tid=7)
    ) == {"operator": 20, "communication": 20, "Python and host": 10}
    # A hook of the backward pass waits, inside a frame of the autograd engine; then it does not.
    frame = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    reduce = x("gloo:all_reduce", 5, 25, "user_annotation", tid=7)
    assert classes(x(frame, 0, 50), x("aten::mm", 0, 10), reduce) == {"operator": 30, "communication": 20}
    assert classes(x(frame, 0, 50), x("aten::mm", 0, 20), x("aten::mm", 22, 8), reduce) == {"operator": 50}


@pytest.mark.parametrize("gap", [15, 16], ids=["just before", "too long before"])
def test_an_event_of_another_stream_that_ended_just_before_is_inferred(gap):
    made = trace(
        launch(0, 1, 1),
        launch(1, 1, 2),
        launch(2, 1, 3),
        kernel("first", 10, 10, 1),
        kernel("other", 11, 39, 2, stream=8),
        kernel("late", 50 + gap, 30, 3),
    )
    path = critical_path(made)
    if gap == 15:
        assert stretches(made, path) == [
            ("runtime call", "cudaLaunchKernel", 0, 1),
            ("launch latency", "", 1, 11),
            ("compute", "other", 11, 50),
            ("kernel gap", "", 50, 65),
            ("compute", "late", 65, 95),
        ]
        # All that is known is that "first" ended at 20; that "late" had to wait until 65 is inferred.
        assert path.inferred_share == 45 / 95
    else:
        assert stretches(made, path) == [
            ("launch latency", "", 0, 10),
            ("compute", "first", 10, 20),
            ("kernel gap", "", 20, 40),
            ("unexplained wait", "", 40, 66),
            ("compute", "late", 66, 96),
        ]
        assert path.inferred_share == 0


@pytest.mark.parametrize(("overhang", "waits"), [(60, True), (61, False)], ids=["last blocks", "too long"])
def test_a_kernel_that_holds_the_sms_until_shortly_after(overhang, waits):
    made = trace(
        launch(0, 1, 1),
        launch(2, 1, 2),
        kernel("hog", 10, 190 + overhang, 1),
        kernel("starved", 200, 100, 2, stream=8),
    )
    path = critical_path(made)
    check(made, path)
    assert path.by_class["compute"] == (290_000 if waits else 100_000)
    assert (path.inferred_share > 0) == waits
    # 2 us after its launch began it could have started: the trace's usual delay is that of "hog" and its own
    assert (path.unexplained_share > 0) == (not waits)


def test_kernels_of_other_devices_hold_no_sms():
    made = trace(
        launch(0, 1, 1),
        launch(2, 1, 2),
        kernel("elsewhere", 10, 210, 1),
        x("starved", 200, 100, "kernel", pid=1, tid=7, correlation=2),
    )
    path = critical_path(made)
    assert path.by_class["compute"] == 100_000
    assert path.inferred_share == 0


def test_a_stream_that_overlaps_itself_waits_for_what_ends_last():
    made = trace(
        launch(0, 1, 1),
        launch(1, 1, 2),
        launch(2, 1, 3),
        kernel("long", 10, 30, 1),
        kernel("overlaps", 20, 10, 2),
        kernel("last", 42, 10, 3),
    )
    assert stretches(made) == [
        ("launch latency", "", 0, 10),
        ("compute", "long", 10, 40),
        ("kernel gap", "", 40, 42),
        ("compute", "last", 42, 52),
    ]


def test_a_recorded_event_is_waited_for():
    events = [
        launch(0, 1, 1),
        launch(2, 1, 2, name="cudaEventRecord"),
        launch(4, 1, 3, name="cudaStreamWaitEvent"),
        launch(6, 1, 4),
        kernel("first", 10, 40, 1),
        kernel("second", 52, 20, 4, stream=8),
    ]
    told = sync_event("Stream Wait Event", 4, 3, 8, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2)
    made = trace(*events, told)
    assert stretches(made) == [
        ("launch latency", "", 0, 10),
        ("compute", "first", 10, 50),
        ("kernel gap", "", 50, 52),
        ("compute", "second", 52, 72),
    ]
    assert critical_path(made).inferred_share == 0
    assert critical_path(trace(*events)).inferred_share > 0


def test_of_two_recorded_events_the_later_end_is_waited_for():
    # Stream 9 waits for both others; the second wait is for what ends first, and adds nothing.
    events = [
        launch(0, 1, 1),
        launch(1, 1, 11, name="cudaEventRecord"),
        launch(2, 1, 2),
        launch(3, 1, 12, name="cudaEventRecord"),
        launch(4, 1, 21, name="cudaStreamWaitEvent"),
        launch(5, 1, 22, name="cudaStreamWaitEvent"),
        launch(6, 1, 3),
        sync_event("Stream Wait Event", 4, 21, 9, wait_on_stream=7, wait_on_cuda_event_record_corr_id=11),
        sync_event("Stream Wait Event", 5, 22, 9, wait_on_stream=8, wait_on_cuda_event_record_corr_id=12),
        kernel("long", 10, 40, 1),
        kernel("short", 10, 20, 2, stream=8),
        kernel("last", 52, 20, 3, stream=9),
    ]
    made = trace(*events)
    assert stretches(made) == [
        ("launch latency", "", 0, 10),
        ("compute", "long", 10, 50),
        ("kernel gap", "", 50, 52),
        ("compute", "last", 52, 72),
    ]
    assert critical_path(made).inferred_share == 0


def test_an_event_synchronization_waits_for_nothing_that_is_launched_during_it():
    # "other" ends last before the call returns, but another thread launched it in the meantime.
    made = trace(
        launch(0, 1, 1),
        launch(2, 20, 9, name="cudaEventSynchronize"),
        launch(5, 1, 2, tid=MAIN + 1),
        kernel("first", 4, 17, 1),
        kernel("other", 18, 4, 2, stream=8),
        x("aten::mm", 24, 10),
    )
    names = [name for _, name, _, _ in stretches(made)]
    assert "first" in names
    assert "other" not in names


def test_what_is_launched_after_the_record_is_not_waited_for():
    told = sync_event("Stream Wait Event", 4, 3, 8, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2)
    made = trace(
        launch(0, 1, 2, name="cudaEventRecord"),
        launch(1, 1, 1),
        launch(4, 1, 3, name="cudaStreamWaitEvent"),
        launch(6, 1, 4),
        told,
        kernel("unrelated", 5, 6, 1),
        kernel("second", 12, 20, 4, stream=8),
    )
    assert ("compute", "unrelated", 5, 11) not in stretches(made)


def test_a_copy_that_returns_with_its_call():
    def events(name, call="cudaMemcpyAsync"):
        return (
            launch(0, 1, 1),
            kernel("k", 4, 26, 1),
            launch(5, 35, 2, name=call),
            kernel(name, 31, 5, 2, cat="gpu_memcpy"),
            x("aten::add", 41, 9),
        )

    assert stretches(trace(*events("Memcpy DtoH (Device -> Pageable)"))) == [
        ("launch latency", "", 0, 4),
        ("compute", "k", 4, 30),
        ("kernel gap", "", 30, 31),
        ("copy", "Memcpy DtoH (Device -> Pageable)", 31, 36),
        ("synchronization", "cudaMemcpyAsync", 36, 40),
        ("Python and host", "", 40, 41),
        ("operator", "aten::add", 41, 50),
    ]
    asynchronous = classes(*events("Memcpy DtoH (Device -> Pinned)"))
    assert "compute" not in asynchronous
    assert classes(*events("Memcpy DtoH (Device -> Pinned)", "cudaMemcpy"))["compute"] == 26


@pytest.mark.parametrize(
    ("call", "told", "waits_for"),
    [
        ("cudaDeviceSynchronize", None, "long"),
        ("cudaStreamSynchronize", None, "long"),
        ("cudaStreamSynchronize", {"stream": 7}, "short"),
        ("cudaStreamSynchronize", {"stream": 8}, "long"),
        ("cudaEventSynchronize", {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5}, "short"),
        ("hipEventSynchronize", None, "long"),
        ("cudaEventQuery", None, None),
    ],
    ids=["device", "some stream", "stream 7", "stream 8", "event", "some event", "query"],
)
def test_what_a_blocking_call_waits_for(call, told, waits_for):
    made = trace(
        launch(0, 1, 1),
        launch(1, 1, 5, name="cudaEventRecord"),
        launch(2, 1, 2),
        kernel("short", 4, 20, 1),
        kernel("long", 6, 40, 2, stream=8),
        sync(10, 40, 6, name=call),
        *([sync_event("Sync", 10, 6, **{"stream": -1, **told})] if told else []),
    )
    names = {name for kind, name, _, _ in stretches(made) if kind == "compute"}
    assert names == ({waits_for} if waits_for else set())


def test_a_blocking_call_that_returns_much_later_waited_for_something_unseen():
    made = trace(launch(0, 1, 1), kernel("k", 4, 16, 1), sync(10, 210))
    assert stretches(made)[-2:] == [
        ("unexplained wait", "cudaDeviceSynchronize", 20, 160),
        ("synchronization", "cudaDeviceSynchronize", 160, 220),
    ]


def test_a_call_that_does_not_wait_stays_on_the_host():
    made = trace(launch(0, 1, 1), kernel("k", 4, 6, 1), sync(12, 5))
    assert [kind for kind, *_ in stretches(made)] == ["runtime call", "Python and host", "synchronization"]


def test_the_backward_pass_on_a_thread_of_its_own():
    made = trace(
        step(1, 0, 100),
        x("aten::mm", 5, 15),
        x(ENGINE, 25, 40, tid=9),
        x("aten::mm", 30, 20, tid=9),
        x("Optimizer.step#SGD.step", 70, 28, "user_annotation"),
        x("aten::add_", 75, 20),
    )
    assert stretches(made) == [
        ("Python and host", "", 0, 5),
        ("operator", "aten::mm", 5, 20),
        ("Python and host", "", 20, 25),
        ("operator", ENGINE, 25, 30),
        ("operator", "aten::mm", 30, 50),
        ("operator", ENGINE, 50, 65),
        ("Python and host", "", 65, 75),
        ("operator", "aten::add_", 75, 95),
        ("Python and host", "", 95, 100),
    ]
    assert critical_path(made).inferred_share == 0


@pytest.mark.parametrize(("late", "joined"), [(200, True), (201, False)], ids=["soon", "too late"])
def test_another_thread_that_went_idle_is_waited_for_by_inference(late, joined):
    made = trace(x("start", 0, 10), x("work", 20, 480, tid=9), x("more", 500 + late, 100), x("and more", 700 + late, 5))
    path = critical_path(made)
    check(made, path)
    assert path.by_class["operator"] == (115_000 + (480_000 if joined else 0))
    # Inferred are the main thread's wait from 10 to 500, and that of the other thread, until 10, to be started.
    assert path.inferred_share == (500 / 905 if joined else 0)


@pytest.mark.parametrize(("resumes", "joined"), [(110, False), (111, True)], ids=["100 us", "more"])
def test_only_long_gaps_are_looked_into(resumes, joined):
    made = trace(x("start", 0, 10), x("work", 20, 80, tid=9), x("more", resumes, 50))
    assert (critical_path(made).by_class["operator"] == 140_000) == joined


def test_a_thread_that_works_on_is_not_joined():
    made = trace(
        x("start", 0, 10), x("work", 20, 430, tid=9), x("on", 470, 100, tid=9), x("more", 500, 100), x("end", 600, 10)
    )
    assert {name for _, name, *_ in stretches(made)} == {"start", "", "more", "end"}


def test_a_thread_that_was_started_from_inside_an_operator():
    made = trace(x("outer", 0, 100), x("work", 20, 480, tid=9), x("more", 90, 20), x("end", 300, 5))
    path = critical_path(made)
    assert stretches(made, path) == [("operator", "outer", 0, 20), ("operator", "work", 20, 500)]
    assert path.inferred_share == 20 / 500


def test_an_engine_that_is_called_from_inside_an_operator_and_joined_at_the_end_of_the_step():
    made = trace(
        step(1, 0, 100), x("call", 0, 60), x(ENGINE, 10, 30, tid=9), x("again", 61, 9), x(ENGINE, 65, 34, tid=9)
    )
    assert stretches(made) == [
        ("operator", "call", 0, 60),
        ("Python and host", "", 60, 61),
        ("operator", "again", 61, 65),
        ("operator", ENGINE, 65, 99),
        ("Python and host", "", 99, 100),
    ]


def test_a_poll_that_ends_with_the_step():
    made = trace(step(1, 0, 500), launch(0, 5, 1), kernel("k", 10, 480, 1))
    assert critical_path(made).by_class["compute"] == 480_000


def test_the_host_comes_first_where_it_ends_with_the_device():
    made = trace(step(1, 0, 50), launch(0, 5, 1), kernel("k", 10, 40, 1))
    assert set(stretches(made)) == {("runtime call", "cudaLaunchKernel", 0, 5), ("Python and host", "", 5, 50)}


def test_a_short_kernel_that_ends_by_chance_in_a_gap_is_not_polled_for():
    made = trace(launch(0, 5, 1), kernel("k", 10, 30, 1), x("aten::mm", 110, 50))
    assert critical_path(made).by_class["compute"] == 0
    made = trace(launch(0, 5, 1), kernel("k", 10, 60, 1), x("aten::mm", 110, 50))
    assert critical_path(made).by_class["compute"] == 60_000


@pytest.mark.parametrize(
    ("end", "polled"),
    [(1100, True), (1101, False), (920, True), (919, False)],
    ids=["signals early", "ends too late", "just ended", "ended too early"],
)
def test_a_host_that_polls_for_its_last_kernel(end, polled):
    made = trace(launch(0, 5, 1), kernel("k", 10, end - 10, 1), x("aten::mm", 1000, 200), x("aten::mm", 1199, 1))
    path = critical_path(made)
    check(made, path)
    assert path.by_class["compute"] == ((min(end, 1000) - 10) * 1000 if polled else 0)
    assert (path.inferred_share > 0) == polled


@pytest.mark.parametrize("launches", [1200, 4000], ids=["some wait", "most wait"])
def test_a_full_launch_queue_blocks_the_host(launches):
    # Each kernel runs 10 us, each launch takes 1 us, until 1024 are queued: from then on a launch waits for the
    # kernel 1023 before it to end.
    events, now = [x("aten::mm", 0, 1)], 1
    ends = []
    for number in range(launches):
        begins = max(ends[-1] if ends else 0, now + 1)
        until = max(now + 1, ends[number - 1023] + 1 if number >= 1023 else 0)
        events += [launch(now, until - now, number + 1), kernel("k", begins, 10, number + 1)]
        ends.append(begins + 10)
        now = until
    made = trace(*events, x("aten::add", now, 20_000))
    path = critical_path(made)
    check(made, path)
    assert path.by_class["compute"] == (ends[launches - 1 - 1023] - 2) * 1000
    assert path.inferred_share == 0


def test_what_was_launched_before_the_trace_began_is_unexplained():
    made = trace(x("aten::mm", 0, 10), kernel("carried over", 20, 30, 77))
    assert stretches(made) == [("unexplained wait", "", 0, 20), ("compute", "carried over", 20, 50)]


def test_a_kernel_that_starts_late_for_no_known_reason():
    # Usual is the first kernel's 2 us; one us more than 15 beyond is looked into.
    events = [launch(0, 1, 1), kernel("k", 2, 3, 1), launch(20, 1, 2), kernel("k", 22, 1, 2), launch(40, 1, 3)]
    assert "unexplained wait" not in classes(*events, kernel("late", 40 + 2 + 15, 9, 3))
    made = trace(*events, kernel("late", 40 + 2 + 16, 9, 3))
    assert stretches(made)[-3:] == [
        ("launch latency", "", 40, 42),
        ("unexplained wait", "", 42, 58),
        ("compute", "late", 58, 67),
    ]


def test_a_first_launch_that_loads_its_module_is_launch_latency():
    assert classes(launch(0, 500, 1), kernel("k", 495, 10, 1)) == {"launch latency": 495, "compute": 10}


def test_a_thread_that_only_asks_the_driver_does_not_matter():
    made = trace(x("aten::mm", 0, 10), launch(2, 1, 1), kernel("k", 3, 4, 1), launch(50, 10, 8, "cudaEventQuery", 77))
    assert critical_path(made).span_ns == 10_000


def test_nothing_to_walk():
    path = critical_path(trace())
    assert (path.span_ns, len(path), path.by_name, path.inferred_share) == (0, 0, (), 0)
    assert sum(critical_path(trace(x("aten::mm", 5, 0))).by_class.values()) == 0


def test_by_name_is_independent_of_the_order_in_the_file():
    events = [x("b", 0, 10), x("a", 10, 10), x("c", 20, 5)]
    names = [[row.name for row in critical_path(trace(*order)).by_name] for order in (events, events[::-1])]
    assert names == [["a", "b", "c"]] * 2


def test_events_without_duration_cannot_wait_for_each_other_in_a_circle():
    # Each stream waits at 0 for what the other launches later, as no program could.
    made = trace(
        launch(0, 1, 3, name="cudaStreamWaitEvent"),
        launch(1, 1, 1),
        launch(2, 1, 4),
        launch(3, 1, 2, name="cudaEventRecord"),
        sync_event("Stream Wait Event", 0, 3, 8, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
        sync_event("Stream Wait Event", 0, 3, 7, wait_on_stream=8, wait_on_cuda_event_record_corr_id=2),
        kernel("a", 6, 0, 1),
        kernel("b", 6, 0, 4, stream=8),
    )
    assert [kind for kind, *_ in stretches(made)][-1] == "Python and host"


def test_a_wait_is_not_passed_twice():
    # The kernel that is waited for waits for one that is launched when the wait is over, as no program could.
    # Without the others a kernel without duration at the start of its call would be one of two, and as good as missing.
    others = [
        (launch(each / 50, 0.01, 100 + each, tid=9), kernel("k", 0.02 + each / 50, 0.01, 100 + each, 9))
        for each in range(40)
    ]
    made = trace(
        *(event for pair in others for event in pair),
        launch(0, 1, 3, name="cudaStreamWaitEvent"),
        launch(1, 1, 1),
        sync(2, 10),
        launch(12, 0, 4),
        launch(13, 1, 2, name="cudaEventRecord"),
        sync_event("Stream Wait Event", 0, 3, 7, wait_on_stream=8, wait_on_cuda_event_record_corr_id=2),
        kernel("a", 12, 0, 1),
        kernel("b", 12, 0, 4, stream=8),
    )
    assert [kind for kind, *_ in stretches(made)][-1] == "runtime call"


@pytest.mark.corpus
def test_the_path_through_hta_s_event_synchronization():
    made = read(corpus_file("cuda_event_sync.json"))
    path = critical_path(made)
    # 0 is the start of ProfilerStep#100. The kernels up to 2901 are short and nothing waits for them. The pageable
    # copy's call (2917-2946) waits for its copy; the spin kernel, launched at 3027, is waited for by
    # cudaEventSynchronize (3047-3081) on the event recorded at 3041; the last synchronization finds an idle device.
    found = [each for each in stretches(made, path) if each[3] > 2910]
    assert found == [
        ("operator", "aten::is_nonzero", 2910, 2912),
        ("operator", "aten::item", 2912, 2914),
        ("operator", "aten::_local_scalar_dense", 2914, 2917),
        ("launch latency", "", 2917, 2935),
        ("copy", "Memcpy DtoH (Device -> Pageable)", 2935, 2937),
        ("synchronization", "cudaMemcpyAsync", 2937, 2946),
        ("operator", "aten::_local_scalar_dense", 2946, 2947),
        ("synchronization", "cudaStreamSynchronize", 2947, 2953),
        ("operator", "aten::_local_scalar_dense", 2953, 2956),
        ("operator", "aten::item", 2956, 2957),
        ("Python and host", "", 2957, 3017),
        ("runtime call", "cudaEventRecord", 3017, 3020),
        ("Python and host", "", 3020, 3027),
        ("launch latency", "", 3027, 3037),
        ("compute", "at::cuda::(anonymous namespace)::spin_kernel(long)", 3037, 3073),
        ("synchronization", "cudaEventSynchronize", 3073, 3081),
        ("Python and host", "", 3081, 3084),
        ("runtime call", "cudaEventQuery", 3084, 3087),
        ("Python and host", "", 3087, 3089),
        ("runtime call", "cudaEventElapsedTime", 3089, 3093),
        ("Python and host", "", 3093, 3139),
        ("synchronization", "cudaDeviceSynchronize", 3139, 3147),
        ("Python and host", "", 3147, 3154),
    ]
    assert path.span_ns == 3_154_000
    assert path.inferred_share == path.unexplained_share == 0


@pytest.mark.corpus
def test_the_path_through_hta_s_event_synchronization_with_streams():
    made = read(corpus_file("cuda_event_sync_multi_stream"))
    path = critical_path(made)
    found = stretches(made, path)
    # 0 is the first aten::matmul, at 42535 in the trace. The last kernel ran alone (the stream that its own waited
    # for had long been done), launched at 62314, when the memset before it ended; the device is waited for at 62445.
    assert found[-3:] == [
        ("launch latency", "", 62314 - 42535, 62329 - 42535),
        ("compute", "ampere_sgemm_128x64_nn", 62329 - 42535, 62452 - 42535),
        ("synchronization", "cudaDeviceSynchronize", 62452 - 42535, 62465 - 42535),
    ]
    assert {kind for kind, *_ in found[:-3]} == {"operator", "runtime call", "Python and host"}
    assert path.inferred_share == path.unexplained_share == 0


@each_trace_file
def test_every_public_trace_is_covered(path):
    made = read(path)
    path = critical_path(made)
    check(made, path)
    assert path.unexplained_share < 0.1


@pytest.mark.corpus
def test_waiting_for_data_is_on_the_path_of_resnet50():
    without, with_workers = (critical_path(read(corpus_file(f"resnet50_workers{count}"))) for count in (0, 4))
    assert without.by_class["input"] / 6 == pytest.approx(69.3e6, rel=0.01)
    assert with_workers.by_class["input"] / 6 == pytest.approx(1.4e6, rel=0.05)


class Slow:
    """The walk for one host thread without gaps' inferences, one microsecond of thought at a time."""

    def __init__(self, calls, kernels, syncs, end):
        self.calls, self.kernels, self.syncs, self.end = calls, kernels, syncs, end

    def walk(self):
        totals, now, event = {"compute": 0, "kernel gap": 0, "launch latency": 0, "host": 0}, self.end, None
        last = sorted((each for each in self.kernels if each[1] == self.end), key=lambda each: each[0])
        if last and not self.ends_on_host():
            event = last[-1]
        while now > 0:
            if event:
                start, _, stream, call = event
                totals["compute"] += now - start
                before = [each for each in self.kernels if each[2] == stream and each[0] < start]
                ended = before[-1][1] if before else -1
                launched = self.calls[call][0]
                if ended > launched:
                    totals["kernel gap"] += start - ended
                    event, now = before[-1], ended
                else:
                    totals["launch latency"] += start - launched
                    event, now = None, launched
                continue
            waits = [(self.released(each), each) for each in self.syncs if each[1] <= now or each[0] < now]
            waits = [each for each in waits if each[0] is not None and each[0][1] <= now]
            if not waits:
                totals["host"] += now
                break
            event = max(each[0] for each in waits)
            event, until = event[2], event[1]
            totals["host"] += now - until
            now = until
        return totals

    def ends_on_host(self):
        return any(end == self.end for _, end in [*self.calls, *self.syncs])

    def released(self, call):
        """What a device synchronization waited for."""
        ahead = [each for each in self.kernels if self.calls[each[3]][0] < call[0]]
        last = max(ahead, key=lambda each: (each[1], -each[2]), default=None)
        if last is None or last[1] <= call[0]:
            return None
        return (last[1], last[1], last)


@st.composite
def programs(draw):
    """A host that launches on two streams and synchronizes, as the device would really run it (gaps below 15 us)."""
    now, free, calls, kernels, syncs = 0, {7: 0, 8: 0}, [], [], []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.integers(0, 5)) if calls or syncs else 0
        if draw(st.integers(0, 4)) == 0 and kernels:
            done = max(each[1] for each in kernels)
            syncs.append((now, max(now, done) + draw(st.integers(1, 5))))
            now = syncs[-1][1]
            continue
        length, stream = draw(st.integers(1, 4)), draw(st.sampled_from([7, 8]))
        start = max(now + draw(st.integers(1, 6)), free[stream] + draw(st.integers(0, 3)))
        free[stream] = start + draw(st.integers(1, 40))
        calls.append((now, now + length))
        kernels.append((start, free[stream], stream, len(calls) - 1))
        now += length
    return calls, kernels, syncs


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(programs())
def test_agrees_with_a_slow_walk(program):
    calls, kernels, syncs = program
    events = [
        *(launch(start, end - start, number) for number, (start, end) in enumerate(calls, 1)),
        *(kernel("k", start, end - start, call + 1, stream=stream) for start, end, stream, call in kernels),
        *(sync(start, end - start) for start, end in syncs),
    ]
    made = trace(*events)
    path = critical_path(made)
    check(made, path)
    end = max(each[1] for each in [*calls, *kernels, *syncs])
    ours = {name: path.by_class[name] / 1000 for name in ("compute", "kernel gap", "launch latency")}
    ours["host"] = sum(path.by_class[name] for name in ("runtime call", "synchronization", "Python and host")) / 1000
    assert ours == Slow(calls, kernels, syncs, end).walk()


events_of_any_kind = st.lists(
    st.one_of(
        st.builds(x, st.sampled_from(["aten::mm", ENGINE, "aten::item"]), st.integers(0, 900), st.integers(0, 300)),
        st.builds(x, st.just(ENGINE), st.integers(0, 900), st.integers(0, 300), tid=st.sampled_from([9, 10])),
        st.builds(
            launch,
            st.integers(0, 900),
            st.integers(0, 200),
            st.integers(0, 12),
            st.sampled_from(
                ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaFree"]
            ),
            st.sampled_from([MAIN, 9]),
        ),
        st.builds(
            kernel,
            st.sampled_from(["gemm", "ncclKernel"]),
            st.integers(0, 900),
            st.integers(0, 200),
            st.integers(0, 14),
            st.sampled_from([7, 8, 9]),
            st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"]),
        ),
        st.builds(step, st.integers(1, 3), st.integers(0, 900), st.integers(1, 200)),
        st.builds(
            sync_event,
            st.sampled_from(["Stream Wait Event", "Event Sync"]),
            st.integers(0, 900),
            st.integers(0, 12),
            st.sampled_from([7, 8]),
            wait_on_stream=st.sampled_from([7, 8, 9]),
            wait_on_cuda_event_record_corr_id=st.integers(-1, 12),
        ),
    ),
    max_size=30,
)
usable_events = events_of_any_kind.filter(lambda events: usable(trace(*events)))
"""Those of which damage leaves something to make a graph of."""


@settings(max_examples=60, deadline=None)
@given(events_of_any_kind)
def test_any_trace_is_covered_whole(events):
    made = trace(*events)
    check(made, critical_path(made))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60), st.sampled_from([1, 2])), min_size=1, max_size=15))
def test_a_trace_of_operators_alone_has_the_length_of_its_span(operators):
    made = trace(*(x(f"op{number}", start, length) for number, (start, length, _) in enumerate(operators)))
    path = critical_path(made)
    check(made, path)
    assert path.span_ns == (int(made.end.max() - made.start.min()))


def test_the_time_between_steps_is_not_on_the_path():
    """A step that is left out, a pause, or a step of another kind: its events are not in what is divided by steps."""
    events = []
    for number, begin in ((1, 0), (2, 100), (7, 5000)):
        events += [step(number, begin, 100), launch(begin + 10, 5, number), kernel("gemm", begin + 20, 70, number)]
        events.append(sync(begin + 30, 62, 100 + number))
    made = trace(*events)
    assert classes(*events) == {
        "compute": 210,
        "launch latency": 30,
        "synchronization": 6,
        "Python and host": 54,
    }
    assert critical_path(made).span_ns == 300_000
