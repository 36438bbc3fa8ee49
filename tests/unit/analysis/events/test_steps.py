"""Which time belongs to which step."""

from pytest_perfdl.analysis.events.steps import steps_of
from unit.trace.chrome import MAIN, kernel, launch, step, trace, x


def _bounds(found):
    return [(w.number, w.host_start, w.host_end, w.start, w.end) for w in steps_of(found).windows]


def test_on_a_cpu_windows_are_the_annotations():
    found = trace(step(3, 0, 10), x("op", 1, 2), step(4, 12, 10), x("op", 13, 2))
    assert _bounds(found) == [(3, 0, 10_000, 0, 10_000), (4, 12_000, 22_000, 12_000, 22_000)]
    assert [(window.host_ns, window.window_ns) for window in steps_of(found).windows] == [(10_000, 10_000)] * 2
    assert {(window.pid, window.tid) for window in steps_of(found).windows} == {(MAIN, MAIN)}


def test_with_a_device_windows_tile_from_completion_to_completion():
    found = trace(
        step(1, 0, 10),
        launch(1, 1, 5),
        launch(9, 1, 6),
        kernel("a", 2, 3, 5),
        kernel("b", 11, 9, 6),
        step(2, 12, 10),
        launch(13, 1, 7),
        kernel("c", 20, 1, 7),
        step(3, 22, 10),
        launch(23, 1, 8, tid=555),
        kernel("d", 30, 8, 8, stream=20),
    )
    assert _bounds(found) == [
        (1, 0, 10_000, 0, 20_000),
        (2, 12_000, 22_000, 20_000, 22_000),
        (3, 22_000, 32_000, 22_000, 38_000),
    ]
    assert [window.window_ns for window in steps_of(found).windows] == [20_000, 2_000, 16_000]


def test_completion_never_runs_backwards():
    found = trace(
        step(1, 0, 10),
        launch(1, 1, 5),
        kernel("long", 2, 98, 5),
        step(2, 10, 10),
        launch(11, 1, 6),
        kernel("k", 12, 1, 6, 9),
    )
    assert [(window.start, window.end) for window in steps_of(found).windows] == [(0, 100_000), (100_000, 100_000)]
    assert steps_of(found).windows[1].window_ns == 0


def test_projections_on_the_device_are_not_steps():
    found = trace(
        step(1, 0, 10), launch(1, 1, 5), kernel("k", 5, 10, 5), x("ProfilerStep#1", 5, 10, "gpu_user_annotation", 0, 7)
    )
    assert _bounds(found) == [(1, 0, 10_000, 0, 15_000)]


def test_the_thread_with_most_annotations_owns_the_steps():
    found = trace(step(9, 0, 100, tid=7), step(1, 0, 10), x("op", 1, 1), step(2, 10, 10), x("op", 11, 1))
    assert [window.number for window in steps_of(found).windows] == [1, 2]


def test_an_empty_last_step_is_what_a_profiler_leaves_when_it_stops():
    found = trace(step(1, 0, 10), x("op", 1, 1), step(2, 10, 1))
    assert [window.number for window in steps_of(found).windows] == [1]
    launched = trace(step(1, 0, 10), x("op", 1, 1), step(2, 10, 1), launch(10.5, 0.1, 3), kernel("k", 10.7, 0.1, 3))
    assert [window.number for window in steps_of(launched).windows] == [1, 2]
    running = trace(step(1, 0, 10), x("op", 1, 9.5), step(2, 10, 1))
    assert [window.number for window in steps_of(running).windows] == [1, 2]
    long = trace(step(1, 0, 10), x("op", 1, 1), step(2, 10, 1.001))
    assert [window.number for window in steps_of(long).windows] == [1, 2]
    idle = trace(step(1, 0, 10), step(2, 10, 1))
    assert [window.number for window in steps_of(idle).windows] == [1, 2], "steps that never have operators are steps"
    assert [window.number for window in steps_of(trace(step(1, 0, 10))).windows] == [1]


def test_without_steps_there_is_one_window_over_everything():
    found = trace(
        x("op", 5, 10, tid=8),
        x("op", 20, 10),
        x("op", 40, 10),
        launch(41, 1, 5),
        kernel("carried over", 0, 2, 99),
        kernel("k", 45, 100, 5),
        x("frame", 0, 1000, "python_function"),
    )
    assert _bounds(found) == [(-1, 5_000, 50_000, 0, 145_000)]
    assert steps_of(found).windows[0].tid == MAIN


def test_without_host_events_the_window_is_the_devices():
    assert _bounds(trace(kernel("k", 5, 10, 1))) == [(-1, 5_000, 15_000, 5_000, 15_000)]


def test_no_events_no_windows():
    assert steps_of(trace()).windows == ()
    assert steps_of(trace(x("frame", 0, 10, "python_function"))).windows == ()


def test_setup_is_no_part_of_a_step():
    found = trace(
        step(1, 0, 100),
        x("perfdl.setup", 10, 20, "user_annotation"),
        x("op", 40, 1),
        x("perfdl.setup", 50, 10, "user_annotation", tid=999),
    )
    (window,) = steps_of(found).windows
    assert (window.host_start, window.host_end) == (0, 100_000)
    assert window.host_ns == window.window_ns == 80_000
