"""Times that cannot be are changed where the file is read, and counted in its findings: each worked out by hand."""

from unit.trace.chrome import kernel, launch, step, trace, x

B = 50_000_000
"""Microseconds at which these traces begin."""


def _moved(*events):
    return [{**one, "ts": one["ts"] + B} for one in events]


def _rows(found, moved=0):
    """Start, less what the events were moved by, and duration of each event, by name and correlation; nanoseconds."""
    return {
        (found.name_of(row), int(found.correlation[row])): (
            int(found.start[row]) - moved * 1000,
            int(found.duration[row]),
        )
        for row in range(len(found))
    }


def _job(kernels=20):
    """A launch and a kernel of 10 us every 20 us."""
    return [
        event
        for each in range(1, kernels + 1)
        for event in (launch(20 * each, 5, each), kernel("gemm", 20 * each + 8, 10, each))
    ]


def test_rows_without_a_time_are_counted_and_take_none():
    events = [one for one in _moved(*_job()) if one["args"].get("correlation") != 3 or one["cat"] != "kernel"]
    found = trace(*events, {**kernel("gemm", 0, 0, 3)})
    # At its call, which is at 60 us; and no neighbor is cut for it.
    assert _rows(found, B)["gemm", 3] == (60_000, 0)
    assert {ns for (name, link), (_, ns) in _rows(found, B).items() if name == "gemm" and link != 3} == {10_000}
    assert found.findings == ("1 event with a time of 0, or far from all others: counted, but without time",)


def test_what_is_far_from_all_others_takes_no_time():
    found = trace(*_moved(*_job(), x("aten::mm", 40_000_000, 7)))
    assert _rows(found, B)["aten::mm", -1] == (19_999, 0)
    assert "far from all others" in found.findings[0]
    # A second recording is not a few events.
    assert trace(*_moved(*_job()), *({**one, "ts": one["ts"] + 2 * B} for one in _job())).findings == ()


def test_events_that_are_twice_in_the_file_are_one():
    found = trace(*_job(), *_job())
    assert len(found) == 40
    assert found.findings == ("40 events twice in the file, identical: counted once",)
    other = [{**one, "args": {**one["args"], "grid": [2, 1, 1]}} for one in _job() if one["cat"] == "kernel"]
    assert len(trace(*_job(), *other)) == 60, "kernels that differ in an argument are two"


def test_open_events_last_to_the_end_of_what_is_around_them():
    found = trace(
        step(1, 0, -1),
        x("aten::linear", 10, 50),
        x("aten::mm", 20, -1),
        step(2, 100, 100),
        x("aten::add", 110, 20),
    )
    # The step to the next one, the operator to the end of the one around it.
    assert _durations(found) == {"ProfilerStep#1": 100_000, "aten::linear": 50_000, "aten::mm": 40_000} | {
        "ProfilerStep#2": 100_000,
        "aten::add": 20_000,
    }
    assert "2 events without an end" in found.findings[0]


def _durations(found):
    return {found.name_of(row): int(found.duration[row]) for row in range(len(found))}


def test_a_kernel_that_outlasts_later_ones_of_its_stream_is_cut():
    events = [{**one, "dur": 1_600_000} if one["name"] == "gemm" and one["ts"] == 68 else one for one in _job()]
    found = trace(*events)
    # Up to the next kernel, which begins at 88 us.
    assert _rows(found)["gemm", 3] == (68_000, 20_000)
    assert found.findings[0].startswith(
        "1 device event lasts beyond the end of a later one of the stream (gemm: 1.600 s)"
    )
    # Programmatic dependent launches overlap by some microseconds.
    assert trace(*({**one, "dur": 24} if one["name"] == "gemm" else one for one in _job())).findings == ()


def test_nodes_of_one_graph_may_run_side_by_side_but_not_beyond_the_next_launch():
    def replay(at, correlation, longest):
        nodes = ((1, longest), (2, 10), (3, 10))
        return [
            launch(at, 5, correlation, "cudaGraphLaunch"),
            *(
                {**one, "args": {**one["args"], "graph id": 1, "graph node id": node}}
                for node, dur in nodes
                for one in [kernel(f"node {node}", at + 10 + node, dur, correlation)]
            ),
        ]

    side_by_side = [event for each in range(1, 6) for event in replay(100 * each, each, 80)]
    assert trace(*side_by_side).findings == ()
    beyond = trace(*(event for each in range(1, 6) for event in replay(100 * each, each, 300 if each == 2 else 80)))
    assert [text[:19] for text in beyond.findings] == ["1 device event last"]


def test_a_kernel_that_goes_on_after_a_wait_for_the_device_is_cut():
    waits = launch(450, 100, 99, "cudaDeviceSynchronize")
    events = [{**one, "dur": 8000} if one["name"] == "gemm" and one["ts"] == 408 else one for one in _job()]
    found = trace(*events, waits)
    # The call returns at 550 us.
    assert _rows(found)["gemm", 20] == (408_000, 142_000)
    assert "beyond the end of a call that waited for the device (gemm: 8.000 ms)" in found.findings[0]


def _steps(*durations):
    return [step(number, 1000 * number, duration) for number, duration in enumerate(durations, 1)]


def test_a_step_that_lasts_far_longer_than_the_others_ends_where_the_next_one_begins():
    found = trace(*_steps(900, 900, 900_000, 900, 900))
    assert [ns for _, ns in _rows(found).values()] == [900_000, 900_000, 1_000_000, 900_000, 900_000]
    assert found.findings == ("1 step lasts beyond the next one (ProfilerStep#3: 900.0 ms): cut where that begins",)
    # The last one has none behind it, and steps of two profilers overlap by less.
    assert trace(*_steps(900, 900, 900_000)).findings == ()
    assert trace(*_steps(1800, 1800, 1800, 900)).findings == ()


def test_a_call_that_goes_on_far_beyond_its_step_ends_with_what_it_began_in():
    calls = [x("aten::linear", 1100, 300), x("aten::t", 1150, 200), x("aten::add", 1500, 10)]
    inner, outer = x("aten::view", 1160, 1_000_000), x("aten::mul", 1600, 5000)
    elsewhere = x("aten::mm", 1700, 1_000_000, tid=99)
    found = trace(*_steps(900, 900), *calls, inner, outer, elsewhere)
    rows = {name: ns for (name, _), (_, ns) in _rows(found).items()}
    assert (rows["aten::view"], rows["aten::mul"], rows["aten::mm"]) == (190_000, 300_000, 1_000_000_000)
    assert (rows["aten::linear"], rows["aten::t"], rows["aten::add"]) == (300_000, 200_000, 10_000)
    assert found.findings == (
        "2 calls of the CPU last far beyond the end of the step (aten::view: 1.000 s): cut where what it began in ends",
    )
    # What goes on for a part of a step may be a trace's own way of ending steps.
    assert trace(*_steps(900, 900), x("aten::mm", 1500, 1200)).findings == ()
