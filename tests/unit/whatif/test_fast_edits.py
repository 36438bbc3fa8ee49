"""Edits and simulation of edited graphs take short cuts: every result is that of building the graph anew."""

from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.model.errors import CycleError
from pytest_perfdl.trace import read
from pytest_perfdl.whatif import Plan, Select, simulate, task_graph
from pytest_perfdl.whatif import model as columns_module
from pytest_perfdl.whatif.editing import edit, surgery
from pytest_perfdl.whatif.editing.surgery import NewTask
from pytest_perfdl.whatif.model import WHOLE_DEVICE, EdgeKind, Edges, TaskKind, Track, TrackKind, taker
from pytest_perfdl.whatif.simulation import structure
from pytest_perfdl.whatif.simulation.structure import split_chains
from unit.analysis.generated import usable_traces
from unit.analysis.waiting.test_critical_path import usable_events
from unit.trace.chrome import corpus_file, each_recording, trace
from unit.whatif import slow_edits
from unit.whatif.editing.test_edit import STREAM_8, plans
from unit.whatif.from_trace.test_graph import back_pressure
from unit.whatif.hand import HOST, STREAMS, graph, slow


def compared(real, slowly):
    """A function that makes sure that what it returns is what the slow one says."""

    def both(*arguments):
        found = real(*arguments)
        assert slow_edits.told(found) == slowly(*arguments)
        return found

    return both


def every_edit_compared(stack):
    """Within a block every edit is compared."""
    same = compared(surgery.rebuild, slow_edits.rebuilt)
    for module in (surgery, surgery, edit):
        stack.enter_context(patch.object(module, "rebuild", same))
    stack.enter_context(patch.object(edit, "remove_tasks", compared(surgery.remove_tasks, slow_edits.without)))


def afresh(made):
    """The same graph without anything that is remembered of it."""
    return replace(made, edges=made.edges.take(np.arange(len(made.edges))))


def check(made, plan, run, rounds):
    """One plan on one graph, which was simulated before, as a what-if is."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(columns_module, "_RUN", run))
        stack.enter_context(patch.object(structure, "_ROUNDS", rounds))
        every_edit_compared(stack)
        simulate(made)
        edited = plan.apply(made)
        found = simulate(edited)
    assert found.start.tolist() == slow(edited)
    chains, others = split_chains(edited.edges, len(edited))
    again, other_again = split_chains(afresh(edited).edges, len(edited))
    for column in ("there", "ended", "lag", "constant_lag"):
        assert getattr(chains, column).tolist() == getattr(again, column).tolist()
    assert slow_edits.rows(others, ("source", "target", "lag")) == slow_edits.rows(
        other_again, ("source", "target", "lag")
    )
    fresh = simulate(afresh(edited))
    assert found.start.tolist() == fresh.start.tolist()
    assert found.binding.tolist() == fresh.binding.tolist()
    assert found.steps_ns.tolist() == slow_edits.steps(edited, found.start, found.end)


runs = st.sampled_from([1, 512])
rounds = st.sampled_from([0, 1, 24])


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(usable_traces(), plans(), runs, rounds)
def test_edits_of_any_program(made, plan, run, limit):
    check(task_graph(made), plan, run, limit)


@settings(max_examples=60, deadline=None)
@given(usable_events, plans(), runs, rounds)
def test_edits_of_any_events(events, plan, run, limit):
    check(task_graph(trace(*events)), plan, run, limit)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(usable_traces(), st.integers(1, 4), runs)
def test_moves_and_schedules(made, divisor, run):
    device = Select(device=True, where=lambda built: np.arange(len(built)) % divisor == 0)
    built = task_graph(made)
    for plan in (
        Plan().move(device, STREAM_8),
        Plan().schedule(TrackKind.STREAM, lambda built: built.tasks.duration),
        Plan().remove(device).move(device, STREAM_8),
    ):
        try:
            check(built, plan, run, 24)
        except CycleError:
            continue


def test_back_pressure_after_a_removal():
    made = task_graph(trace(*back_pressure(10, count=1100)[0]))
    kernels = np.flatnonzero(made.is_device)
    few = np.zeros(len(made), dtype=bool)
    few[kernels[[5, 500, 1090]]] = True
    assert (made.edges.kind == EdgeKind.QUEUE).any()
    edited = Plan().remove(few).apply(made)
    again = slow_edits.without(made, surgery.with_launches(made, few))
    assert slow_edits.told(edited) == again
    assert simulate(edited).start.tolist() == slow(edited)


def test_lags_of_synchronizations_are_kept():
    """Two calls wait for both streams, each with another lag; an operator between them goes."""
    waits = {"kind": TaskKind.RETURN, "scope": WHOLE_DEVICE}
    made = graph(
        [
            (HOST, [("l", 0, 1), ("first", 30, 0, waits), ("op", 30, 5), ("m", 35, 1), ("second", 70, 0, waits)]),
            (STREAMS[0], [("a", 5, 20, {"submitted": 0}), ("c", 40, 20, {"submitted": 35})]),
            (STREAMS[1], [("b", 5, 22, {"submitted": 0}), ("d", 40, 22, {"submitted": 35})]),
        ],
        [
            (EdgeKind.LAUNCH, "l", "a", 5),
            (EdgeKind.LAUNCH, "l", "b", 5),
            (EdgeKind.LAUNCH, "m", "c", 4),
            (EdgeKind.LAUNCH, "m", "d", 4),
            (EdgeKind.SYNC, "a", "first", 5),
            (EdgeKind.SYNC, "b", "first", 3),
            (EdgeKind.SYNC, "c", "second", 10),
            (EdgeKind.SYNC, "d", "second", 8),
        ],
    )
    check(made, Plan().remove(Select(name="^op$")), 1, 24)
    edited = Plan().remove(Select(name="^op$")).apply(made)
    assert edited.edges.lag[edited.edges.kind == EdgeKind.SYNC].tolist() == [5, 3, 10, 8]


def test_everything_removed():
    made = graph([(HOST, [("a", 0, 5)]), (STREAMS[0], [("b", 5, 5)])], [(EdgeKind.LAUNCH, "a", "b", 5)])
    edited = Plan().remove(np.ones(2, dtype=bool)).apply(made)
    assert (len(edited), len(edited.edges), simulate(edited).span_ns) == (0, 0, 0)
    none = np.zeros(0, dtype=bool)
    assert len(Plan().remove(none).insert(NewTask("x", 1), none).apply(edited)) == 0


def test_an_edge_that_becomes_one_between_neighbors():
    # c waits for a, which is further back on its stream; without b they are neighbors, and c has no other edge.
    made = graph(
        [(STREAMS[0], [("a", 0, 10), ("b", 10, 5), ("c", 40, 5), ("d", 45, 5)])], [(EdgeKind.STREAM, "a", "c", 30)]
    )
    free = Plan().drop_edges(EdgeKind.STREAM, np.array([False, False, True, False])).apply(made)
    held = Edges.joined(free.edges, Edges.of(EdgeKind.STREAM, np.array([0]), np.array([2]), 30))
    made = replace(made, edges=held)
    plan = Plan().remove(Select(name="^b$"))
    check(made, plan, 1, 24)
    # As a chain it is linked again when a goes, too.
    check(plan.apply(made), Plan().remove(Select(name="^a$")), 1, 24)


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet", "h100", "nccl_rank0", "cuda_event_sync_multi"])
def test_local_edits_of_public_traces_take_over_what_is_known(name):
    made = task_graph(read(corpus_file(name)))
    simulate(made)
    kernels = np.flatnonzero(made.is_device)
    chosen = np.zeros(len(made), dtype=bool)
    chosen[kernels[len(kernels) // 2]] = True
    host = np.zeros(len(made), dtype=bool)
    host[len(made) // 3] = True
    new = NewTask("new", 5_000, launch_ns=3_000)
    edits = (
        Plan().remove(chosen),
        Plan().remove(host),
        Plan().insert(new, chosen),
        Plan().insert(new, chosen, track=Track(TrackKind.STREAM, 0, 99)),
        Plan().remove(chosen).insert(new, Select(row=int(made.tasks.row[kernels[0]]))),
        Plan().drop_edges(EdgeKind.SYNC, host),
    )
    for plan in edits:
        edited = plan.apply(made)
        with patch.object(structure, "_levels", side_effect=AssertionError("levels were worked out anew")):
            found = simulate(edited)
        fresh = simulate(afresh(edited))
        assert found.start.tolist() == fresh.start.tolist() == slow(edited)
        assert found.binding.tolist() == fresh.binding.tolist()
        assert found.steps_ns.tolist() == slow_edits.steps(edited, found.start, found.end)


def test_circles_of_edited_graphs_are_refused():
    made = graph(
        [(HOST, [("x", 0, 5), ("y", 5, 5)]), (STREAMS[0], [("k", 10, 5), ("l", 20, 5)])],
        [(EdgeKind.LAUNCH, "x", "k", 10, {"at_start": True}), (EdgeKind.LAUNCH, "y", "l", 10, {"at_start": True})],
    )
    simulate(made)
    edited = Plan().remove(Select(name="^y$"), launches=False).apply(made)
    back = Edges.of(EdgeKind.SYNC, np.array([1]), np.array([0]), 0)
    edges = Edges.joined(edited.edges, back)
    structure.inherit(edited, edges, np.arange(len(edited)))
    circle = replace(edited, edges=edges)
    with pytest.raises(CycleError):
        simulate(circle)


@each_recording
def test_steps_of_recordings(path):
    made = task_graph(read(path))
    found = simulate(made, made.tasks.duration // 2)
    assert found.steps_ns.tolist() == slow_edits.steps(made, found.start, found.end)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 60)), st.sampled_from([1, 2, 512]))
def test_rows_are_taken(rows, run):
    column = np.arange(61) * 3
    with patch.object(columns_module, "_RUN", run):
        assert taker(np.array(rows, dtype=np.intp), 20)(column[:20], column[20:]).tolist() == [3 * row for row in rows]
        assert taker(np.array(rows, dtype=np.intp))(column).tolist() == [3 * row for row in rows]
        mask = np.isin(np.arange(61), rows)
        assert taker(mask)(column).tolist() == column[mask].tolist()
