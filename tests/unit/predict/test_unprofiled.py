"""The profiler's own time taken off a graph: as much of every event as makes the step as long as it is without."""

import pytest
from unit.predict.training import STEP, host_training
from unit.trace.chrome import step, trace, x

from pytest_perfdl.predict.whatif import simulate, task_graph
from pytest_perfdl.predict.whatif.unprofiled import unprofiled


def few(*durations):
    """One step of 1000 us with operators of these durations."""
    return task_graph(trace(step(0, 0, 1000), *(x(f"aten::{n}", 100 * n, us) for n, us in enumerate(durations))))


def test_every_event_loses_the_same():
    made = few(50, 80, 90)
    found = unprofiled(made, 970_000)
    lost = made.tasks.duration - found.tasks.duration
    assert sorted(lost.tolist())[-3:] == pytest.approx([10_000] * 3, abs=2)
    assert lost.sum() == pytest.approx(30_000, abs=3)


def test_an_event_cannot_lose_more_than_it_has():
    made = few(5, 80, 90)
    found = unprofiled(made, 965_000)
    # 5 us of the first, and 15 us of each other.
    assert simulate(found).steps_ns[0] == pytest.approx(965_000, abs=3)
    assert sorted((made.tasks.duration - found.tasks.duration).tolist())[-3:] == pytest.approx(
        [5_000, 15_000, 15_000], abs=2
    )


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0, 1.5], ids=["tiny", "less", "equal", "longer"])
def test_the_step_takes_what_it_is_said_to_take(share):
    made = task_graph(host_training())
    assert simulate(unprofiled(made, share * STEP * 1e3)).steps_ns.mean() == pytest.approx(
        share * STEP * 1e3, rel=0.002
    )


def test_no_time_is_no_answer():
    with pytest.raises(ValueError, match="positive time"):
        unprofiled(few(5), 0)
