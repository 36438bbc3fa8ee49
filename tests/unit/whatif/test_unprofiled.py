"""The profiler's own time taken off a graph: as much of every event as makes the step as long as it is without."""

import pytest

from pytest_perfdl.whatif import simulate, task_graph
from pytest_perfdl.whatif.simulation.quality import quality
from pytest_perfdl.whatif.unprofiled import unprofiled
from unit.trace.chrome import step, trace, x
from unit.whatif.training import STEP, host_training


def few(*durations):
    """One step of 1000 us with operators of these durations."""
    return task_graph(trace(step(0, 0, 1000), *(x(f"aten::{n}", 100 * n, us) for n, us in enumerate(durations))))


def lost(made, step_ns):
    """Nanoseconds that each task lost, by its name, in the order in which they ran."""
    found = unprofiled(made, step_ns)
    gone = made.tasks.duration - found.tasks.duration
    return [(made.name_of(task), int(gone[task])) for task in range(len(made)) if made.tasks.duration[task]]


def test_every_operator_costs_the_same_and_most_of_it_what_runs_beside_it():
    """Of 10 us each a quarter its own time, the rest in halves that before and behind it; the first has none before."""
    assert lost(few(50, 80, 90), 970_000) == [
        ("aten::0", pytest.approx(6_250, abs=2)),
        ("Python and host", pytest.approx(7_500, abs=2)),
        ("aten::1", pytest.approx(2_500, abs=2)),
        ("Python and host", pytest.approx(7_500, abs=2)),
        ("aten::2", pytest.approx(2_500, abs=2)),
        ("Python and host", pytest.approx(3_750, abs=2)),
    ]


def test_a_child_costs_the_operator_around_it():
    made = task_graph(
        trace(step(0, 0, 1000), x("aten::to", 100, 300), x("aten::copy_", 150, 100), x("aten::add", 500, 50))
    )
    assert lost(made, 970_000) == [
        ("Python and host", pytest.approx(3_750, abs=2)),
        ("aten::to", pytest.approx(2_500 + 3_750, abs=2)),
        ("aten::copy_", pytest.approx(2_500, abs=2)),
        ("aten::to", pytest.approx(3_750, abs=2)),
        ("Python and host", pytest.approx(7_500, abs=2)),
        ("aten::add", pytest.approx(2_500, abs=2)),
        ("Python and host", pytest.approx(3_750, abs=2)),
    ]


def test_a_range_around_a_module_costs_what_it_begins_and_ends_in():
    """Fourteen times an operator's 2 us, half at each end."""
    own = x("perfdl.module: Net", 60, 130, "user_annotation")
    made = task_graph(trace(step(0, 0, 1000), own, x("aten::0", 0, 50), x("aten::1", 100, 80)))
    assert lost(made, 968_000) == [
        ("aten::0", pytest.approx(1_250, abs=2)),
        ("Python and host", pytest.approx(1_500 + 14_000, abs=2)),
        ("aten::1", pytest.approx(500, abs=2)),
        ("Python and host", pytest.approx(750 + 14_000, abs=2)),
    ]


def test_no_piece_loses_more_than_it_has():
    """Of the gaps one has 5 us only: the other pieces lose more, 10.2 us an operator."""
    made = task_graph(trace(step(0, 0, 1000), x("aten::0", 0, 50), x("aten::1", 55, 80), x("aten::2", 235, 90)))
    assert [round(each / 1e3) for _, each in lost(made, 972_000)] == [6, 5, 3, 8, 3, 4]


def test_what_pieces_are_too_short_for_is_not_the_profilers():
    """At 11.1 us an operator a tenth of the profiler's work finds no place: the rest slowed everything, by 0.5 %."""
    made = task_graph(trace(step(0, 0, 1000), x("aten::0", 0, 50), x("aten::1", 55, 80), x("aten::2", 235, 90)))
    assert [round(each / 1e3, 1) for _, each in lost(made, 965_000)] == [7.2, 5.0, 3.2, 8.8, 3.2, 7.6]


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0, 1.5], ids=["tiny", "less", "equal", "longer"])
def test_the_step_takes_what_it_is_said_to_take(share):
    made = task_graph(host_training())
    assert simulate(unprofiled(made, share * STEP * 1e3)).steps_ns.mean() == pytest.approx(
        share * STEP * 1e3, rel=0.002
    )


def test_no_time_is_no_answer():
    with pytest.raises(ValueError, match="positive step time"):
        unprofiled(few(5), 0)


def test_the_trust_is_that_of_the_trace():
    """Half of the step was the profiler's: that does not make the graph explain the trace less well."""
    made = task_graph(host_training())
    without = unprofiled(made, STEP * 500)
    assert quality(without) == quality(made)
    assert quality(without).trust == "ok"
