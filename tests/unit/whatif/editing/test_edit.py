"""Edits of task graphs: what each does, by hand, and that every edited graph is a graph."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pytest_perfdl.model.errors import CycleError, SelectionError
from pytest_perfdl.model.selection import parse
from pytest_perfdl.trace import read
from pytest_perfdl.whatif import Plan, Select, simulate, task_graph
from pytest_perfdl.whatif.editing.edit import PRIMITIVES, primitive
from pytest_perfdl.whatif.editing.select import Selected
from pytest_perfdl.whatif.editing.surgery import NewTask
from pytest_perfdl.whatif.model import Constants, EdgeKind, TaskKind, Track, TrackKind
from unit.analysis.generated import usable_traces
from unit.analysis.waiting.test_critical_path import sync, usable_events
from unit.trace.chrome import corpus_file, kernel, launch, trace, x
from unit.whatif.from_trace.test_graph import back_pressure
from unit.whatif.hand import CHANNEL, HOST, STREAMS, graph, slow, times

STREAM_8 = Track(TrackKind.STREAM, 0, 8)


def program():
    """Two kernels one behind the other, and a synchronization; microseconds."""
    return task_graph(
        trace(
            launch(0, 4, 1),
            launch(4, 4, 2),
            kernel("a", 10, 20, 1),
            kernel("b", 31, 20, 2),
            sync(12, 43),
            x("aten::add", 55, 5),
        )
    )


def after(plan, made=None):
    """Start and end of each device task, and the span, in microseconds from the measured start."""
    edited = plan.apply(made or program())
    found = simulate(edited)
    assert found.start.tolist() == slow(edited)
    assert found.path.length_ns == found.span_ns
    zero = found.start.min()
    device = {
        edited.name_of(task): ((found.start[task] - zero) / 1000, (found.end[task] - zero) / 1000)
        for task in np.flatnonzero(edited.is_device).tolist()
    }
    return device, found.span_ns / 1000


def test_the_program():
    assert after(Plan()) == ({"a": (10, 30), "b": (31, 51)}, 60)


def test_what_a_synchronization_waits_for_when_its_kernel_is_removed():
    # The call waits for a now, which ends at 30; it returns 4 us later, and 5 us of operator follow.
    assert after(Plan().remove(Select(name="^b$"))) == ({"a": (10, 30)}, 39)
    removed = Plan().remove(Select(name="^b$")).apply(program())
    kinds = [TaskKind(kind).name for kind in removed.tasks.kind.tolist()]
    # b's launching call went with it.
    assert kinds == ["CALL", "GAP", "WAIT", "RETURN", "OPERATOR", "KERNEL"]
    kept = Plan().remove(Select(name="^b$"), launches=False).apply(program())
    assert len(kept) == len(removed) + 1
    # Nothing is left to wait for: 4 us of launch, 4 us until the call, 4 us of return, 5 us of operator.
    assert after(Plan().remove(Select(device=True), launches=False)) == ({}, 8 + 4 + 4 + 5)


def test_removing_the_first_kernel_of_a_stream():
    # b's launch usually takes 10 us, which is at 14 with both launches, and at 10 if a's launch vanishes, too.
    assert after(Plan().remove(Select(name="^a$"), launches=False)) == ({"b": (14, 34)}, 43)
    assert after(Plan().remove(Select(name="^a$"))) == ({"b": (10, 30)}, 39)


def test_removing_a_synchronization():
    assert after(Plan().remove(Select(name="Synchronize"))) == ({"a": (10, 30), "b": (31, 51)}, 51)


def test_a_new_kernel_is_launched_and_waited_for():
    new = NewTask("new", 10_000, launch_ns=2_000)
    # Its launch takes 2 us from 8 on; it follows b by the usual gap of 1 us, and the call waits for it.
    assert after(Plan().insert(new, Select(name="^b$"))) == (
        {"a": (10, 30), "b": (31, 51), "new": (52, 62)},
        62 + 4 + 5,
    )
    edited = Plan().insert(new, Select(name="^b$")).apply(program())
    call = int(edited.tasks.launcher[edited.names.index("new") == edited.tasks.name][0])
    assert edited.name_of(call) == "launch of new"
    assert (TaskKind(edited.tasks.kind[call]), edited.tasks.duration[call]) == (TaskKind.CALL, 2_000)
    # Without a launch of its own it belongs to that of a.
    free = NewTask("free", 10_000)
    assert after(Plan().insert(free, Select(name="^a$"))) == (
        {"a": (10, 30), "free": (31, 41), "b": (42, 62)},
        62 + 4 + 5,
    )


def test_a_new_kernel_on_a_new_stream():
    new = NewTask("new", 10_000, launch_ns=0)
    # It waits for a and for nothing else; the synchronization waits for its stream, too.
    assert after(Plan().insert(new, Select(name="^a$"), track=STREAM_8)) == (
        {"a": (10, 30), "b": (31, 51), "new": (31, 41)},
        60,
    )
    longer = NewTask("new", 30_000, launch_ns=0)
    assert after(Plan().insert(longer, Select(name="^a$"), track=STREAM_8))[1] == 61 + 4 + 5
    held = Plan().insert(new, Select(name="^a$"), track=STREAM_8, before=Select(name="^b$"))
    assert after(held)[0]["b"] == (42, 62)


def test_a_new_operator():
    new = NewTask("new", 7_000, TaskKind.OPERATOR)
    assert after(Plan().insert(new, Select(name="aten::add")))[1] == 67
    with pytest.raises(ValueError, match="a operator cannot run on"):
        after(Plan().insert(new, Select(name="^a$")))
    with pytest.raises(ValueError, match="a kernel cannot run on"):
        after(Plan().insert(NewTask("new", 5), Select(name="aten::add")))
    with pytest.raises(ValueError, match="only be inserted after a task of the same thread"):
        after(Plan().insert(new, Select(name="^a$"), track=program().tracks[0]))


def test_a_kernel_launched_from_the_host_onto_a_stream():
    new = NewTask("new", 10_000, launch_ns=1_000)
    found, span = after(Plan().insert(new, Select(name="aten::add"), track=program().tracks[1]))
    # The operator ends at 60; launches usually take 10 us.
    assert (found["new"], span) == ((70, 80), 80)


def test_fusing_neighbors():
    fused = Plan().replace(Select(device=True), "fused", 25_000)
    assert after(fused) == ({"fused": (10, 35)}, 35 + 4 + 5)
    summed = Plan().replace(Select(device=True), "fused", lambda durations: int(durations.sum()) // 2)
    assert after(summed)[0] == {"fused": (10, 30)}
    assert after(Plan().replace(Select(name="^a$"), "b", 1_000))[1] == 34 + 4 + 5


def test_moving_a_kernel_to_another_stream():
    # b starts the usual 10 us after its launch at 4; the call waits for both streams.
    assert after(Plan().move(Select(name="^b$"), STREAM_8)) == ({"a": (10, 30), "b": (14, 34)}, 34 + 4 + 5)
    there_and_back = Plan().move(Select(name="^b$"), STREAM_8).move(Select(name="^b$"), program().tracks[1])
    assert after(there_and_back) == after(Plan())
    with pytest.raises(ValueError, match="only device tasks"):
        after(Plan().move(Select(name="aten::add"), STREAM_8))
    with pytest.raises(ValueError, match="cannot run on a host thread"):
        after(Plan().move(Select(name="^b$"), HOST))


def test_moved_kernels_run_in_the_order_of_their_submission():
    made = task_graph(
        trace(
            *(launch(4 * number, 4, number) for number in range(4)),
            kernel("k0", 10, 20, 0),
            kernel("k1", 14, 20, 1, stream=8),
            kernel("k2", 31, 20, 2),
            kernel("k3", 35, 20, 3, stream=8),
        )
    )
    found, _ = after(Plan().move(Select(device=True), made.tracks[1]), made)
    assert sorted(found, key=found.get) == ["k0", "k1", "k2", "k3"]
    assert found["k3"] == (10 + 3 * 21, 10 + 3 * 21 + 20)


def test_dropped_synchronizations_stay_dropped():
    plan = Plan().drop_edges(EdgeKind.SYNC)
    # The call returns 4 us after it begins at 12.
    edited = plan.apply(program())
    assert (
        simulate(edited).end[edited.tasks.name == edited.names.index("aten::add")].tolist()[0] - edited.span[0]
        == 21_000
    )
    again = plan.insert(NewTask("new", 10_000, launch_ns=0), Select(name="^b$")).apply(program())
    assert not (again.edges.kind == EdgeKind.SYNC).any()
    nothing = Plan().drop_edges(EdgeKind.SYNC, Select(name="aten::add")).apply(program())
    assert len(nothing.edges) == len(program().edges)


def test_the_order_of_a_stream_can_be_dropped():
    found, _ = after(Plan().drop_edges(EdgeKind.STREAM, Select(name="^b$")))
    assert found["b"] == (14, 34)
    # It stays dropped when another task is removed.
    found, _ = after(Plan().drop_edges(EdgeKind.STREAM, Select(name="^b$")).remove(Select(name="aten::add")))
    assert found["b"] == (14, 34)


def test_back_pressure_is_worked_out_again():
    made = task_graph(trace(*back_pressure(10, count=1300)[0]))
    kernels = np.flatnonzero(made.is_device)
    odd = np.zeros(len(made), dtype=bool)
    odd[kernels[1::2]] = True
    # 650 launches fill no queue: 1 us each, behind 1 us and before 20 ms of operators.
    assert simulate(Plan().remove(odd).apply(made)).span_ns / 1000 == 1 + 650 + 20_000
    few = np.zeros(len(made), dtype=bool)
    few[kernels[::100]] = True
    expected = back_pressure(10, count=1300 - 13)[1] + 20_000
    assert simulate(Plan().remove(few).apply(made)).span_ns / 1000 == expected
    more = Plan().insert(NewTask("new", 10_000, launch_ns=1_000), few)
    assert simulate(more.apply(made)).span_ns / 1000 == back_pressure(10, count=1300 + 13)[1] + 20_000


def test_data_parallel_training_on_a_channel():
    """Daydream's insertion of one all-reduce per bucket, serial on its channel, before the optimizer."""
    made = graph([(HOST, [("backward 2", 0, 10), ("backward 1", 10, 10), ("optimizer", 20, 10)])])
    reduce = NewTask("all-reduce", 15, TaskKind.COMMUNICATION)
    plan = Plan().insert(reduce, Select(name="backward"), track=CHANNEL, before=Select(name="optimizer"))
    edited = plan.apply(made)
    found = simulate(edited)
    assert [(start, end) for start, end in zip(found.start.tolist(), found.end.tolist(), strict=True)] == [
        *((0, 10), (10, 10), (10, 20), (20, 20), (40, 50)),
        *((10, 25), (25, 40)),
    ]
    assert found.path.by_kind(edited) == {"operator": 20, "communication": 30}
    # Another graph, another plan: with one bucket the transfer is exposed whole.
    one = Plan().insert(reduce, Select(name="backward 1"), track=CHANNEL, before=Select(name="optimizer"))
    assert simulate(one.apply(made)).span_ns == 20 + 15 + 10


def test_a_scheduled_channel():
    """P3's question: a small collective that is needed first waits behind large ones unless it may go first."""
    made = graph(
        [
            (HOST, [("backward 2", 0, 10), ("backward 1", 10, 10), ("backward 0", 20, 10), ("forward 0", 90, 10)]),
            (CHANNEL, [("large", 10, 30), ("other", 40, 30), ("needed", 70, 20)]),
        ],
        [
            (EdgeKind.COMMUNICATION, "backward 2", "large", 0),
            (EdgeKind.COMMUNICATION, "backward 1", "other", 0),
            (EdgeKind.COMMUNICATION, "backward 0", "needed", 0),
            (EdgeKind.COMMUNICATION, "needed", "forward 0", 0),
        ],
    )
    assert times(made, simulate(made))["forward 0"] == (90, 100)

    def needed_first(built):
        return np.array([name != "needed" for name in built.names])

    edited = Plan().schedule(CHANNEL, needed_first).apply(made)
    # At 30 the channel has "large" running until 40, then the collective that is needed goes ahead of "other".
    assert times(edited, simulate(edited)) == {
        "backward 2": (0, 10),
        "backward 1": (10, 20),
        "backward 0": (20, 30),
        "forward 0": (60, 70),
        "large": (10, 40),
        "needed": (40, 60),
        "other": (60, 90),
    }
    unchanged = Plan().schedule(TrackKind.CHANNEL, lambda built: np.zeros(len(built))).apply(made)
    assert times(unchanged, simulate(unchanged)) == times(made, simulate(made))


def test_a_schedule_leaves_the_usual_gap():
    made = graph([(STREAMS[0], [("a", 0, 10), ("b", 10, 10), ("c", 20, 10)])], constants=Constants(kernel_gap=2))
    edited = Plan().schedule([STREAMS[0]], lambda built: -np.arange(3)).apply(made)
    assert times(edited, simulate(edited)) == {"c": (0, 10), "b": (12, 22), "a": (24, 34)}
    with pytest.raises(ValueError, match="because the program determines this order"):
        Plan().schedule(HOST, lambda built: np.zeros(1)).apply(graph([(HOST, [("x", 0, 1)])]))
    with pytest.raises(ValueError, match="priorities of 3 tasks"):
        Plan().schedule(STREAMS[0], lambda built: np.zeros(1)).apply(made)


def test_plans_are_values():
    made = program()
    half = Plan().scale(Select(device=True), 0.5)
    both = half + Plan().remove(Select(name="^a$"))
    assert (len(Plan().edits), len(half.edits), len(both.edits)) == (0, 1, 2)
    before = made.tasks.duration.copy()
    both.apply(made)
    assert made.tasks.duration.tolist() == before.tolist()
    assert simulate(made).start.tolist() == made.tasks.start.tolist()
    assert repr(Plan().retime(Select(name="gemm"), 5)).startswith("Plan(retime(tasks=Select(name='gemm'")


def test_durations():
    made = program()
    a = Select(name="^a$")
    assert after(Plan().retime(a, 5_000), made)[0]["a"] == (10, 15)
    assert after(Plan().retime(a, lambda built, own: built.tasks.duration[own] + 1_000), made)[0]["a"] == (10, 31)
    for plan in (Plan().scale(a, -1), Plan().scale(a, float("nan")), Plan().retime(a, -5)):
        with pytest.raises(ValueError, match="a duration cannot be"):
            plan.apply(made)
    with pytest.raises(ValueError, match="a selection of"):
        Plan().scale(np.array([True]), 2).apply(made)


def test_edits_of_one_s_own():
    @primitive("test: overhead")
    def overhead(built, *, ns):
        return built.with_durations(built.tasks.duration + ns)

    assert simulate(Plan().then("test: overhead", ns=10).apply(graph([(HOST, [("x", 0, 1)])]))).span_ns == 11
    with pytest.raises(ValueError, match="named 'scale' already"):
        primitive("scale")(overhead)
    with pytest.raises(ValueError, match="no edit named 'fly'"):
        Plan().then("fly")
    del PRIMITIVES["test: overhead"]


def labeled():
    return task_graph(
        trace(
            x("perfdl.module: net.fc", 0, 50, "user_annotation"),
            x("aten::linear", 0, 40),
            x("aten::dropout", 5, 20),
            launch(10, 5, 1),
            launch(30, 5, 2),
            x("autograd::engine::evaluate_function: AddmmBackward0", 60, 10),
            kernel("dropout_kernel", 18, 5, 1),
            kernel("gemm", 40, 5, 2),
        )
    )


@pytest.mark.parametrize(
    ("select", "names"),
    [
        (Select(name="GEMM"), {"gemm"}),
        (Select(operator="aten::drop*"), {"aten::dropout", "cudaLaunchKernel", "dropout_kernel"}),
        (Select(operator="aten::linear", device=True), {"dropout_kernel", "gemm"}),
        (Select(layer="net", device=True), {"dropout_kernel", "gemm"}),
        (Select(layer="net.f?", kind=TaskKind.OPERATOR), {"aten::linear", "aten::dropout"}),
        (Select(layer="fc"), set()),
        (Select(phase="backward"), {"autograd::engine::evaluate_function: AddmmBackward0"}),
        (Select(track=TrackKind.STREAM), {"dropout_kernel", "gemm"}),
        (Select(track=1, row=7), {"gemm"}),
        (Select(track=Track(TrackKind.STREAM, 0, 8)), set()),
        (Select(step=1), set()),
        (Select(where=lambda built: built.tasks.duration == 20_000, device=False), {"Python and host"}),
        (Select(name="gemm") | Select(name="dropout_k"), {"gemm", "dropout_kernel"}),
        (Select(name="gemm") | Select(step=3) | Select(row=6), {"gemm", "dropout_kernel"}),
        ((Select(step=3) | Select(step=4)) | Select(row=6), {"dropout_kernel"}),
    ],
    ids=lambda value: None,
)
def test_selections(select, names):
    made = labeled()
    assert {made.name_of(task) for task in np.flatnonzero(select(made)).tolist()} == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("name~GEMM", {"gemm"}),
        ("operator=aten::drop*", {"aten::dropout", "cudaLaunchKernel", "dropout_kernel"}),
        ("operator~linear,stream=7", {"dropout_kernel", "gemm"}),
        ("module=net,kind=kernel", {"dropout_kernel", "gemm"}),
        ("module~f.$,kind=operator", {"aten::linear", "aten::dropout"}),
        ("phase=backward", {"autograd::engine::evaluate_function: AddmmBackward0"}),
        ("kind=kernel,kind=call", {"dropout_kernel", "gemm", "cudaLaunchKernel"}),
    ],
)
def test_selections_in_words(text, names):
    made = labeled()
    found = Selected(parse([text]), text)(made)
    assert {made.name_of(task) for task in np.flatnonzero(found).tolist()} == names


@pytest.mark.parametrize("text", ["module=fc", "stream=8", "step=1", "rank=1", "shapes~64", "line~train", "name=GEMM"])
def test_a_selection_in_words_of_nothing_is_refused(text):
    with pytest.raises(SelectionError, match="matches nothing in the trace"):
        Selected(parse([text]), text)(labeled())


def test_selections_that_cannot_be():
    with pytest.raises(ValueError, match="made from a trace"):
        Select(layer="net")(graph([(HOST, [("x", 0, 1)])]))
    with pytest.raises(ValueError, match="no phase 'sideways'"):
        Select(phase="sideways")(labeled())


def test_removing_an_operator_removes_its_kernels():
    made = labeled()
    edited = Plan().remove(Select(operator="aten::dropout")).apply(made)
    assert [edited.name_of(task) for task in np.flatnonzero(edited.is_device).tolist()] == ["gemm"]
    # 20 us of operator, call included, are gone from the thread.
    assert simulate(edited).span_ns == simulate(made).span_ns - 20_000


def test_a_call_without_duration_does_not_take_its_operator_with_it():
    made = task_graph(trace(x("aten::mm", 0, 20), launch(10, 0, 1), kernel("k", 12, 4, 1), x("aten::add", 20, 5)))
    edited = Plan().remove(Select(device=True)).apply(made)
    assert simulate(edited).span_ns == 25_000


def test_scaling_does_not_compile_again():
    made = program()
    edited = Plan().scale(Select(device=True), 0.5).apply(made)
    assert edited.edges is made.edges


@st.composite
def plans(draw):
    """Plans of any edits; selections by remainders, so that they mean something in every graph."""
    plan = Plan()
    for _ in range(draw(st.integers(1, 4))):
        divisor, remainder = draw(st.integers(1, 5)), draw(st.integers(0, 4))

        def some(built, divisor=divisor, remainder=remainder):
            return np.arange(len(built)) % divisor == remainder

        device = Select(device=True, where=some)
        match draw(st.integers(0, 7)):
            case 0:
                plan = plan.scale(some, draw(st.sampled_from([0, 0.5, 3])))
            case 1:
                plan = plan.remove(some, launches=draw(st.booleans()))
            case 2:
                plan = plan.insert(NewTask("new", 5_000, launch_ns=draw(st.sampled_from([None, 0, 700]))), device)
            case 3:
                plan = plan.insert(NewTask("new", 5_000, TaskKind.OPERATOR), Select(device=False, where=some))
            case 4:
                plan = plan.replace(some, "fused", 3_000)
            case 5:
                plan = plan.drop_edges(draw(st.sampled_from(list(EdgeKind))), some)
            case 6:
                plan = plan.insert(NewTask("new", 5_000, launch_ns=700), device, track=STREAM_8)
            case 7:
                plan = plan.drop_edges(EdgeKind.QUEUE)
    return plan


def checked(edited):
    found = simulate(edited)
    assert found.start.tolist() == slow(edited)
    assert found.path.length_ns == found.span_ns
    tasks = edited.tasks
    assert (np.diff(tasks.track) >= 0).all()
    launched = tasks.launcher >= 0
    assert (~edited.is_device[tasks.launcher[launched]]).all()
    assert edited.is_device[launched].all()


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(usable_traces(), plans())
def test_every_edited_graph_is_a_graph(made, plan):
    checked(plan.apply(task_graph(made)))


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(usable_events, plans())
def test_every_edited_graph_of_any_trace_is_a_graph(events, plan):
    checked(plan.apply(task_graph(trace(*events))))


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(usable_traces(), st.integers(1, 4))
def test_moves_and_schedules_lead_to_graphs_or_say_why_not(made, divisor):
    built = task_graph(made)
    device = Select(device=True, where=lambda made: np.arange(len(made)) % divisor == 0)
    for plan in (
        Plan().move(device, STREAM_8),
        Plan().schedule(TrackKind.STREAM, lambda made: made.tasks.duration),
    ):
        try:
            checked(plan.apply(built))
        except CycleError:
            continue


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet", "h100", "mi300"])
def test_edits_of_public_traces(name):
    made = task_graph(read(corpus_file(name)))
    checked(Plan().remove(Select(operator="aten::*norm*")).apply(made))
    checked(Plan().insert(NewTask("new", 5_000, launch_ns=3_000), Select(kind=TaskKind.KERNEL)).apply(made))
    checked(Plan().schedule(TrackKind.STREAM, lambda built: built.tasks.submitted).apply(made))
    nothing = Plan().remove(Select(name="no such kernel")).apply(made)
    assert simulate(nothing).start.tolist() == made.tasks.start.tolist()
