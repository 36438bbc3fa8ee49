"""Start and end of every task: by hand, against a slow simulator, and what must hold of any durations."""

import sys

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pytest_perfdl.model.errors import CycleError
from pytest_perfdl.trace import read
from pytest_perfdl.whatif import simulate, task_graph
from pytest_perfdl.whatif.model import Constants, EdgeKind, StepSpan, TaskKind
from pytest_perfdl.whatif.simulation.quality import quality
from pytest_perfdl.whatif.simulation.structure import structure
from unit.analysis.generated import usable_traces
from unit.analysis.waiting.test_critical_path import usable_events
from unit.trace.chrome import corpus_file, trace
from unit.whatif.hand import HOST, STREAMS, graph, slow, times


@pytest.fixture(params=["loop", "levels"])
def engine(request, monkeypatch):
    """Both ways to compute starts, whichever is faster."""
    costs = {"loop": "_LOOP_NS", "levels": "_LEVEL_NS"}
    monkeypatch.setattr(sys.modules["pytest_perfdl.whatif.simulation.simulate"], costs[request.param], 0)


def two_streams(**more):
    """A host that launches a, b, c on two streams and waits for both."""
    return graph(
        [
            (
                HOST,
                [("la", 0, 4), ("lb", 4, 4), ("lc", 8, 4), ("ret", 50, 0, {"kind": TaskKind.RETURN}), ("op", 50, 10)],
            ),
            (STREAMS[0], [("a", 10, 20, {"launcher": "la"}), ("c", 31, 15, {"launcher": "lc"})]),
            (STREAMS[1], [("b", 14, 20, {"launcher": "lb"})]),
        ],
        [
            (EdgeKind.LAUNCH, "la", "a", 10, {"at_start": True}),
            (EdgeKind.LAUNCH, "lb", "b", 10, {"at_start": True}),
            (EdgeKind.LAUNCH, "lc", "c", 10, {"at_start": True}),
            (EdgeKind.EVENT, "b", "c", 2, {}),
            (EdgeKind.SYNC, "b", "ret", 3, {}),
            (EdgeKind.SYNC, "c", "ret", 3, {}),
        ],
        **more,
    )


def test_starts_and_ends(engine):
    made = two_streams()
    assert times(made, simulate(made)) == {
        "la": (0, 4),
        "lb": (4, 8),
        "lc": (8, 12),
        "a": (10, 30),
        "b": (14, 34),
        "c": (36, 51),
        "ret": (54, 54),
        "op": (54, 64),
    }


def test_the_path_covers_the_span():
    made = two_streams()
    found = simulate(made)
    path = found.path
    told = [
        (
            start,
            end,
            made.name_of(task) if task >= 0 else EdgeKind(made.edges.kind[edge]).name,
        )
        for start, end, task, edge in zip(
            path.start.tolist(), path.end.tolist(), path.task.tolist(), path.edge.tolist(), strict=True
        )
    ]
    assert told == [
        (0, 4, "la"),
        (4, 14, "LAUNCH"),
        (14, 34, "b"),
        (34, 36, "EVENT"),
        (36, 51, "c"),
        (51, 54, "SYNC"),
        (54, 64, "op"),
    ]
    assert [EdgeKind(made.edges.kind[edge]).name for edge in path.passed.tolist()] == [
        *("THREAD", "LAUNCH", "EVENT", "SYNC", "THREAD")
    ]
    assert path.length_ns == found.span_ns == 64
    assert path.by_kind(made) == {
        "operator": 14,
        "kernel": 35,
        "launch lag": 10,
        "event lag": 2,
        "sync lag": 3,
    }


def test_another_duration_of_the_same_graph():
    made = two_streams()
    compiled = structure(made)
    longer = made.tasks.duration.copy()
    longer[made.names.index("a")] = 26
    assert simulate(made, longer).span_ns == 64
    longer[made.names.index("a")] = 27
    assert simulate(made, longer).span_ns == 65
    assert structure(made.with_durations(longer)) is compiled
    with pytest.raises(ValueError, match="durations of 8 tasks are needed"):
        simulate(made, longer[1:])


def test_constant_lags():
    made = graph(
        [(HOST, [("la", 0, 4)]), (STREAMS[0], [("a", 10, 20)])],
        [(EdgeKind.LAUNCH, "la", "a", 10, {"at_start": True, "constant_lag": 6})],
    )
    assert (simulate(made).span_ns, simulate(made, lags="constant").span_ns) == (30, 26)


def test_a_release_is_absolute(engine):
    made = graph(
        [(STREAMS[0], [("carried", 5, 20, {"release": 5}), ("next", 25, 10), ("late", 60, 5, {"release": 60})])]
    )
    assert times(made, simulate(made)) == {"carried": (5, 25), "next": (25, 35), "late": (60, 65)}
    found = simulate(made)
    assert found.binding.tolist() == [-1, 0, -1]
    assert found.path.by_kind(made) == {"kernel": 5, "release": 55}
    assert simulate(made, np.array([60, 10, 5])).path.by_kind(made) == {"kernel": 75}


def test_a_task_may_begin_before_the_one_ahead_has_ended(engine):
    made = graph(
        [(STREAMS[0], [("a", 0, 20)]), (STREAMS[1], [("b", 12, 10)])], [(EdgeKind.CONTENTION, "a", "b", -8, {})]
    )
    found = simulate(made)
    assert times(made, found) == {"a": (0, 20), "b": (12, 22)}
    assert found.path.by_kind(made) == {"kernel": 22}
    assert found.path.start.tolist() == [0, 12]


def test_an_edge_to_a_later_task_of_the_same_track(engine):
    made = graph([(STREAMS[0], [("a", 0, 50), ("b", 50, 5), ("c", 70, 5)])], [(EdgeKind.STREAM, "a", "c", 20, {})])
    assert times(made, simulate(made))["c"] == (70, 75)


def test_a_circle_is_refused_by_name():
    made = graph(
        [(HOST, [("x", 0, 5)]), (STREAMS[0], [("y", 0, 5)])],
        [(EdgeKind.LAUNCH, "x", "y", 0, {}), (EdgeKind.SYNC, "y", "x", 0, {})],
    )
    with pytest.raises(CycleError, match=r"task \d \([xy]\) depends on itself"):
        simulate(made)


@pytest.mark.parametrize(("count", "period"), [(2, None), (3, 100.0)], ids=["two steps", "three steps"])
def test_a_period_takes_three_steps(count, period):
    tasks = [(f"step {number}", 100 * number, 100, {"step": number}) for number in range(count)]
    spans = [StepSpan(number, 100 * number, 100 * number + 100) for number in range(count)]
    found = simulate(graph([(HOST, tasks)], steps=spans, on_device=False))
    assert found.steps_ns.tolist() == [100] * count
    assert found.period_ns == period


def test_a_step_ends_with_what_it_launched():
    made = graph(
        [
            (HOST, [(f"h{number}", 10 * number, 10, {"step": number}) for number in range(3)]),
            (STREAMS[0], [(f"k{number}", 10 + 50 * number, 50, {"step": number}) for number in range(3)]),
        ],
        [(EdgeKind.LAUNCH, f"h{number}", f"k{number}", 10, {"at_start": True}) for number in range(3)],
        steps=[StepSpan(0, 0, 60), StepSpan(1, 60, 110), StepSpan(2, 110, 160)],
    )
    assert simulate(made).steps_ns.tolist() == [60, 50, 50]
    assert simulate(made).period_ns == 160 / 3


@pytest.mark.parametrize(
    ("lost", "constant", "trust"),
    [
        (0, 1000, "ok"),
        (0, 995, "ok"),
        (0, 994, "low"),
        (0, 951, "low"),
        (0, 950, "refuse"),
        (99, 1000, "ok"),
        (100, 1000, "refuse"),
    ],
)
def test_trust(lost, constant, trust):
    """A launch that takes 1000 of 1000 + 0 ns, of which some is unexplained, against a constant."""
    made = graph(
        [(HOST, [("la", 0, 0)]), (STREAMS[0], [("a", 1000, 0)])],
        [(EdgeKind.LAUNCH, "la", "a", 1000, {"at_start": True, "constant_lag": constant})],
        constants=Constants(),
    )
    made.tasks.unexplained[1] = lost
    found = quality(made)
    assert found.trust == trust
    assert bool(found.reason) == (trust != "ok")
    assert found.unexplained_share == lost / 1000
    assert found.constant_error == pytest.approx(constant / 1000 - 1)
    assert (found.replay_error, found.inferred_share, found.held_share) == (0, 0, 0)


def test_time_before_a_release_lowers_trust():
    made = graph([(STREAMS[0], [("a", 0, 90), ("b", 100, 0, {"release": 100})])])
    assert quality(made).held_share == 1.0
    assert quality(made).trust == "low"


durations = st.lists(st.integers(0, 40_000), min_size=400, max_size=400).map(np.array)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(usable_events, durations, st.booleans())
def test_agrees_with_the_slow_simulator_on_any_durations(events, values, constant):
    made = task_graph(trace(*events))
    duration = np.resize(values, len(made)).astype(np.int64)
    found = simulate(made, duration, lags="constant" if constant else "measured")
    assert found.start.tolist() == slow(made, "constant_lag" if constant else "lag", duration)
    assert found.path.length_ns == found.span_ns
    decided = found.binding >= 0
    released = found.start == np.maximum(made.tasks.release, made.begin)
    assert (decided | released).all()


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(usable_traces(), durations)
def test_nothing_starts_earlier_when_something_takes_longer(made, extra):
    built = task_graph(made)
    longer = built.tasks.duration + np.resize(extra, len(built))
    assert (simulate(built, longer).start >= simulate(built).start).all()
    shorter = np.minimum(built.tasks.duration, np.resize(extra, len(built)))
    assert (simulate(built, shorter).start <= simulate(built).start).all()


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(usable_traces(), st.integers(0, 10_000), st.data())
def test_a_task_that_decides_nothing_has_slack(made, more, data):
    built = task_graph(made)
    found = simulate(built)
    task = data.draw(st.integers(0, len(built) - 1))
    edges = built.edges
    from_end = np.flatnonzero((edges.source == task) & ~edges.at_start)
    slack = [int(found.start[edges.target[at]] - found.end[task] - edges.lag[at]) for at in from_end]
    slack.append(int(found.end.max() - found.end[task]))
    longer = built.tasks.duration.copy()
    longer[task] += min(more, *slack) if len(slack) > 1 else min(more, slack[0])
    again = simulate(built, longer)
    assert again.start.tolist() == found.start.tolist()
    assert again.span_ns == found.span_ns


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet", "h100", "nccl_rank0"])
def test_both_ways_agree_on_public_traces(name, engine):
    made = task_graph(read(corpus_file(name)))
    halved = made.tasks.duration // 2
    assert simulate(made, halved).start.tolist() == slow(made, duration=halved)
    assert simulate(made).start.tolist() == made.tasks.start.tolist()
