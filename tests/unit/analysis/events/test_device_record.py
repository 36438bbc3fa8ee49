"""Work of a device that is missing in a trace, and clocks that disagree: each worked out by hand."""

import pytest

from pytest_perfdl.analysis.account.accounts import profile_tables
from pytest_perfdl.analysis.events.device_record import clock_difference, devices_of, missing_work
from pytest_perfdl.analysis.overview.findings import bottleneck
from unit.analysis.jobs import lengths, pipelined, said, steady, steps_in, without
from unit.trace.chrome import MAIN, kernel, launch, memory, step, trace, x

ALL = dict.fromkeys(range(1, 6), 1000)


def missing(*events):
    """Start of each launch in us that lacks device events, and how many it lacks."""
    found = trace(*events)
    work = missing_work(found)
    pairs = zip((found.start[work.call] / 1000).tolist(), work.missing.tolist(), strict=True)
    return {call: lost for call, lost in pairs if lost}


def test_few_missing_kernels_are_said():
    # 1 of 100 kernels: 1 % of all, and 5 % of the 20 in its step at most.
    events = steady(5, count=10) + [
        event
        for number in range(5)
        for each in range(10)
        for event in (
            launch(1000 * number + 100 * each + 71, 2, 10_000 + 10 * number + each),
            kernel("add", 1000 * number + 100 * each + 75, 5, 10_000 + 10 * number + each),
        )
    ]
    found = steps_in(*without(events, 304))
    assert lengths(found) == ALL
    assert said(found) == {
        "missing-work": "1 of 100 kernel launches (1.0%) lack device events, whose time is missing: of no step "
        "more than 5% of the work"
    }
    # A second one in the same step makes it 10 %.
    assert list(lengths(steps_in(*without(events, 304, 305)))) == [1, 2, 4, 5]


def test_a_step_that_lacks_a_fifth_of_its_kernels():
    # Kernels 3 and 4 of step 3; its last one is there, so that step 4 begins where step 3 ends.
    found = steps_in(*without(steady(), 303, 304))
    assert lengths(found) == {1: 1000, 2: 1000, 4: 1000, 5: 1000}
    assert said(found) == {
        "missing-work": "2 of 50 kernel launches (4.0%) lack device events, whose time is missing: over 5% of the "
        "work of step 3: left out of all figures"
    }
    assert not found.damaged


def test_a_step_behind_one_whose_last_kernel_is_missing_has_no_known_begin():
    found = steps_in(*without(pipelined(5), 1109, 1110))
    # Step 11 lacks its last two kernels, so that step 12 begins at an unknown time; step 13 begins where 12 ends.
    assert lengths(found) == {10: 1000, 13: 1000, 14: 1000}
    assert [number for number, _ in found.left_out] == [11, 12]
    assert said(found)["unknown-begin"] == (
        "step 12 after a step whose last device event, and so its end, is missing: left out of all figures"
    )


def test_kernels_that_are_missing_at_the_beginning():
    # A device that was recorded from the third step on: the two before are left out.
    found = steps_in(*without(steady(), *range(101, 111), *range(201, 211)))
    assert list(lengths(found)) == [4, 5], "the end of step 2, and with it the begin of step 3, is not known"
    assert [number for number, _ in found.left_out] == [1, 2, 3]
    assert "over 5% of the work of steps 1 and 2:" in said(found)["missing-work"]


def test_no_kernel_at_all_is_no_trace_of_a_cpu():
    events = [one for one in steady() if one["cat"] != "kernel"]
    found = steps_in(*events)
    assert found.windows == ()
    assert found.damaged
    assert said(found) == {
        "no-device-work": "50 of 50 kernel launches (100%) and no device event: what the device did is not recorded, "
        "in all 5 steps: left out of all figures: no step remains"
    }
    assert bottleneck(trace(*events)).text == "Unknown: no step of the trace can be used."


def test_a_trace_without_steps_lacks_kernels_as_well():
    events = [one for one in without(steady(), *range(101, 111)) if one["cat"] != "user_annotation"]
    found = steps_in(*events)
    assert found.windows == ()
    assert "over 5% of the work of" in said(found)["missing-work"]


def test_a_device_that_is_only_named():
    # No launch, no device event, but properties of a device: it was idle, or its work was not recorded.
    events = [step(1, 0, 1000), x("aten::mm", 0, 300)]
    found = trace(*events, deviceProperties=[{"id": 0, "name": "NVIDIA H100"}])
    told = bottleneck(found)
    assert told.kind == "none"
    assert told.text == (
        "Unknown: the trace names a device (NVIDIA H100), and no device event: the device was idle, or its work was "
        "not recorded."
    )
    assert bottleneck(trace(*events)).kind == "python"


@pytest.mark.parametrize("device_type, kind", [(0, "python"), (1, "none"), (6, "none")])
def test_memory_of_a_device_tells_of_one(device_type, kind):
    # As the first half of a trace has it, of which the kernels were in the second.
    told = bottleneck(trace(step(1, 0, 1000), x("aten::mm", 0, 300), memory(10, 512, device_type, 0)))
    assert told.kind == kind
    assert ("the trace has memory events of a device" in told.text) == (kind == "none")


def test_rows_of_a_device_without_a_category():
    # As an Ascend profiler writes them: a process named after the device, and rows without "cat".
    named = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Ascend Hardware"}}
    rows = [
        {key: value for key, value in x("MatMul", at, 50, pid=7, tid=2).items() if key != "cat"} for at in (100, 300)
    ]
    found = steps_in(step(1, 0, 1000), x("aten::mm", 0, 300), named, *rows)
    assert found.windows == ()
    assert said(found) == {
        "unread-device": "2 events without a category in the process 'Ascend Hardware': not read, so the device's work "
        "is not known in step 1: left out of all figures: no step remains"
    }


class TestNotMissing:
    def test_what_is_launched_inside_a_capture(self):
        # Two launches while a stream is captured run later, in a graph.
        events = [
            *steady(),
            launch(2971, 2, 9001, name="cudaStreamBeginCapture"),
            launch(2975, 2, 9002),
            launch(2980, 2, 9003),
            launch(2990, 2, 9004, name="cudaStreamEndCapture"),
        ]
        assert missing(*events) == {}
        assert steps_in(*events).findings == ()
        assert missing(*steady(), launch(2975, 2, 9002)) == {2975: 1}

    def test_a_capture_that_is_not_ended(self):
        assert missing(*steady(), launch(4975, 2, 9001, name="cudaStreamBeginCapture"), launch(4980, 2, 9002)) == {}

    def test_copies_of_no_bytes_are_counted_apart(self):
        copies = [launch(1000 * number + 975, 5, 9000 + number, name="cudaMemcpyAsync") for number in range(5)]
        found = steps_in(*steady(), *copies)
        assert lengths(found) == ALL
        assert [(each.level, each.code) for each in found.findings] == [("note", "moves")]
        assert said(found)["moves"].startswith("5 calls that copy or set memory have no device event")

    def test_a_graph_that_is_recorded_as_one_event(self):
        events = [step(1, 0, 100)]
        for each in range(4):
            events += [
                launch(20 * each, 5, each + 1, name="cudaGraphLaunch"),
                kernel("graph", 20 * each + 8, 5, each + 1),
            ]
        assert missing(*events) == {}

    def test_a_kernel_whose_correlation_was_never_set(self):
        # As collectives of ROCm: the launch at 975 has correlation 9, its kernel 0.
        events = [*steady(), launch(975, 2, 9), kernel("ncclDevKernel", 980, 10, 0, stream=20)]
        assert missing(*events) == {}
        # Each kernel is of one launch at most.
        assert missing(*events, launch(976, 2, 10)) == {976: 1}
        # None begins before its launch.
        assert missing(*events, launch(985, 2, 10)) == {985: 1}
        assert missing(*steady(), kernel("ncclDevKernel", 970, 3, 0, stream=20), launch(975, 2, 9)) == {975: 1}


def test_replays_of_a_graph_that_lost_nodes():
    # Three replays of a graph of 4 nodes; the second has lost 2 of them: 2 of the 12 nodes, a sixth.
    events = []
    for number in range(3):
        start = 100 * number
        events += [step(number + 1, start, 100), launch(start, 5, number + 1, name="cudaGraphLaunch")]
        for node in range(2 if number == 1 else 4):
            events.append(
                kernel(
                    f"node {node}", start + 10 + 10 * node, 9, number + 1, **{"graph id": 3, "graph node id": 11 + node}
                )
            )
    assert missing(*events) == {100: 2}
    found = steps_in(*events)
    # The event that is missing may be the last, so that step 3 begins at an unknown time.
    assert list(lengths(found)) == [1]
    assert [number for number, _ in found.left_out] == [2, 3]
    assert found.damaged


def test_nodes_of_a_graph_that_runs_twice_in_a_replay_say_nothing():
    events = []
    for number in range(2):
        events.append(launch(100 * number, 5, number + 1, name="cudaGraphLaunch"))
        for place, node in enumerate((11, 11, 12) if number else (11, 12)):
            at = 100 * number + 10 + 10 * place
            events.append(kernel("n", at, 9, number + 1, **{"graph id": 3, "graph node id": node}))
    assert missing(*events) == {}


@pytest.mark.parametrize(("behind", "which"), [(20_000, "late"), (-20_000, "early")])
def test_a_device_whose_clock_is_far_from_the_hosts(behind, which):
    # The device's events are 20 ms late, or early, in steps of 1 ms.
    events = [{**one, "ts": one["ts"] + 50_000 + (behind if one["cat"] == "kernel" else 0)} for one in steady()]
    found = trace(*events)
    # Late kernels begin 50 us apart, on a device that is never idle for long: only a call that waits for it, and
    # returns before they end, tells.
    if behind > 0:
        waits = [launch(51_000 + 1000 * number - 5, 2, 7000 + number, "cudaDeviceSynchronize") for number in range(5)]
        events += waits
        found = trace(*events)
    difference = clock_difference(found)
    assert difference == pytest.approx(1000 * behind, rel=0.01)
    steps = steps_in(*events)
    assert steps.windows == ()
    assert f"times of the device are {abs(difference) / 1e6:.2f} ms {which} against the CPU's" in said(steps)["clocks"]


def test_a_device_that_was_idle_before_all_it_runs_late_has_another_clock():
    calls = range(50_000, 110_000, 5000)
    events = [launch(at, 5, number) for number, at in enumerate(calls, 1)]
    events += [kernel("k", at + 20_000, 5, number) for number, at in enumerate(calls, 1)]
    assert clock_difference(trace(*events)) == 20_000_000


def test_a_device_without_known_launches_says_nothing_of_clocks():
    other = [{**kernel("k", at, 5, 0), "pid": 1} for at in (5, 90_000)]
    assert clock_difference(trace(*steady(), *other)) == 0


def test_clocks_that_agree_to_some_microseconds():
    # Kernels begin up to 40 us before their calls: under 50, and 4 % of a step.
    events = [{**one, "ts": one["ts"] + 1000 - (50 if one["cat"] == "kernel" else 0)} for one in steady()]
    found = trace(*events)
    assert clock_difference(found) == 0
    assert list(lengths(steps_in(*events))) == [1, 2, 3, 4, 5]


def test_clocks_that_differ_by_little_of_a_step_leave_it_known():
    # In steps of 10 ms, kernels begin 200 us before their calls: 2 % of a step.
    events = [{**one, "ts": 10 * one["ts"] + 1000, "dur": 10 * one["dur"]} for one in steady()]
    found = steps_in(*({**one, "ts": one["ts"] - (300 if one["cat"] == "kernel" else 0)} for one in events))
    assert list(lengths(found)) == [1, 2, 3, 4, 5]
    assert said(found)["clocks"] == (
        "clocks differ: times of the device are 200.0 µs early against the CPU's: causes of idle time may be wrong"
    )


def test_a_job_that_runs_far_ahead_is_no_clock():
    found = trace(*pipelined(20))
    assert clock_difference(found) == 0


def test_a_device_that_waits_for_another_one_is_no_clock():
    # Stages of a pipeline in one process: each device waits 2 ms of each 4 for the other, 10 ms after the launches.
    events = []
    for number in range(6):
        launched, runs = 5 * number, 10_000 + 4000 * number
        events += [launch(launched, 2, 2 * number + 1), kernel("first", runs, 2000, 2 * number + 1)]
        second = {**kernel("second", runs + 2010, 1900, 2 * number + 2), "pid": 1}
        events += [launch(launched + 3, 2, 2 * number + 2), second]
    found = trace(*events)
    assert clock_difference(found) == 0


def test_devices_by_name():
    two = [{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "NVIDIA A100"}]
    on_second = {**kernel("k", 10, 5, 1), "pid": 1}
    assert devices_of(trace(launch(0, 5, 1), on_second, deviceProperties=two)) == ("NVIDIA A100",)
    assert devices_of(trace(launch(0, 5, 1), kernel("k", 10, 5, 1))) == ("unnamed CUDA device",)
    assert devices_of(trace(launch(0, 5, 1, "hipLaunchKernel"), kernel("k", 10, 5, 1))) == ("unnamed HIP device",)
    assert devices_of(trace(x("aten::mm", 0, 5), deviceProperties=two)) == ()


def test_two_threads_that_launch_are_counted_each():
    # A launch on another thread during one on the main thread is no call inside it.
    events = [*steady(), launch(12, 2, 9001, tid=MAIN + 1)]
    assert missing(*events) == {12: 1}
    assert profile_tables(trace(*steady(1), launch(12, 2, 9001, tid=MAIN + 1), kernel("k", 80, 5, 9001))).counts[
        "launches"
    ] == (11,)


def test_a_step_without_launches_among_steps_that_have_some_has_lost_them():
    # Its kernels look like work that was carried over, and would take all of its window.
    events = [one for one in steady(2) if not (one["cat"] == "cuda_runtime" and one["ts"] < 1000)]
    found = steps_in(*events)
    assert lengths(found) == {2: 1000}
    assert "step 1 without launch calls, which all other steps have" in said(found)["no-launches"]
