"""What torch.compile did in the steps of a call, from the counters that Dynamo keeps of a process."""

import collections
import sys
import types

import pytest

from pytest_perfdl.measure import compiling, timed_pass
from pytest_perfdl.measure.commands import Profile, Settle, Time
from pytest_perfdl.measure.program import Program
from unit.measure.answers import Conversation


@pytest.fixture
def dynamo(monkeypatch):
    """Dynamo's counters, as torch keeps them."""
    utils = types.ModuleType("torch._dynamo.utils")
    utils.metrics = []
    utils.get_compilation_metrics = lambda: utils.metrics
    utils.counters = {"frames": {"ok": 2}, "graph_break": {"print": 1, "item": 2}}
    utils.cumulative_time_spent_ns = {"entire_frame_compile": 900_000, "backend_compile": 800_000}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    return utils


def compilation(name, reason=None, fails=None):
    return types.SimpleNamespace(co_name=name, recompile_reason=reason, fail_reason=fails)


def test_what_was_compiled_between_two_moments(dynamo):
    assert compiling.Totals.now([]) == compiling.Totals()
    assert not compiling.has_compiled()
    dynamo.metrics.append(compilation("step"))
    before, events = compiling.Totals.now([]), compiling.events()
    dynamo.metrics.append(compilation(None))
    dynamo.cumulative_time_spent_ns |= {"entire_frame_compile": 1_400_000, "entire_backward_compile": 7_000}
    dynamo.counters["graph_break"]["print"] += 2

    assert compiling.has_compiled()
    assert (before.ns, before.graph_breaks) == (900_000, 3)
    assert compiling.Totals.now([]).since(before) == compiling.Totals(507_000, 2)
    assert before.since(compiling.Totals.now([])) == compiling.Totals()
    assert (events, compiling.events()) == (3, 4)


def test_each_compilation_is_named_with_its_step_and_guard(dynamo):
    dynamo.metrics.append(compilation("warm_up"))
    watch = compiling.Watch()
    watch.look("step 1")
    assert watch.seen == []
    size = "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5"
    guard = "1/3: k == 3                    # def g(x, k): return x + k\nUser stack trace:\n  File g.py"
    dynamo.metrics += [compilation("f", size), compilation(None)]
    watch.look("step 2")
    watch.look("step 3")
    dynamo.metrics += [compilation("g", guard), compilation(None, "1/7: k == 9", "Dynamo recompile limit exceeded\n")]
    watch.look("step 4")

    assert watch.seen == [
        "step 2: f (tensor 'x' size mismatch at index 0. expected 4, actual 5)",
        "step 2: backward",
        "step 4: g (k == 3)",
        "step 4: gave up at the recompile limit, so the function runs uncompiled (k == 9)",
    ]


def test_compilations_are_seen_when_dynamo_has_forgotten_the_earlier_ones(dynamo):
    kept = dynamo.metrics = collections.deque((compilation(f"early{number}") for number in range(64)), maxlen=64)
    watch = compiling.Watch()
    kept.append(compilation("f"))
    watch.look("step 1")
    kept.extend(compilation("g") for _ in range(70))
    watch.look("step 2")

    assert watch.seen == ["step 1: f", *["step 2: g"] * 64]


@pytest.mark.parametrize(
    "seen, way",
    [
        ("step 2: f (tensor 'x' size mismatch at index 0. expected 4, actual 5)", "mark_dynamic"),
        ("step 2: f (k == 3)", "pass it as a tensor"),
        ("step 2: f", "Do: warm up with all shapes"),
    ],
)
def test_what_to_do_about_compilations_in_steps(seen, way):
    text = compiling.told([seen] * 5)
    assert text.startswith("torch.compile compiled inside timed steps")
    assert f"{seen}; and 2 more. Do: " in text
    assert way in text


def test_nothing_was_compiled(dynamo, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert compiling.Totals.now([]) == compiling.Totals()
    watch = compiling.Watch()
    watch.look("step 1")
    assert (compiling.events(), compiling.has_compiled(), watch.seen) == (0, False, [])


def test_counters_of_another_torch_are_left_out_with_a_note(dynamo, monkeypatch):
    dynamo.metrics.append(compilation("step"))
    monkeypatch.setattr(dynamo, "counters", {})
    notes = []
    assert compiling.Totals.now(notes) == compiling.Totals()
    assert [(note.level, note.code) for note in notes] == [("note", "no-compile-counts")]
    assert compiling.events() > 0
    monkeypatch.setattr(dynamo, "get_compilation_metrics", None)
    assert (compiling.events(), compiling.has_compiled()) == (0, False)
    assert compiling.Totals.now(notes) == compiling.Totals()
    assert len(notes) == 1


def measured(dynamo, compiling_steps, *commands, cold=False):
    """The answers of a program whose steps with these numbers compile something, for 1 ms and with a graph break."""
    conversation = Conversation(*commands)
    steps = Program(conversation, cold=cold).steps()
    next(steps)
    number = 1
    while True:
        if number in compiling_steps:
            dynamo.metrics.append(compilation("f", "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5"))
            dynamo.cumulative_time_spent_ns["entire_frame_compile"] += 1_000_000
            dynamo.counters["graph_break"]["print"] += 1
        try:
            steps.send(None)
        except StopIteration:
            return conversation.answers
        number += 1


@pytest.mark.long
def test_compilations_belong_to_their_call_and_pass(dynamo, monkeypatch):
    monkeypatch.setattr(timed_pass, "_WORTH_ASKING_NS", 0)
    dynamo.metrics.append(compilation("in_a_fixture"))
    size = "f (tensor 'x' size mismatch at index 0. expected 4, actual 5)"
    warm_up, steps = Settle(least=4, most=4, block=2), Time(2, 5)

    _, timed, first = measured(dynamo, {1, 2, 4 + 3, 4 + 8}, warm_up, steps, cold=True)
    assert timed.compiles == (f"step 3: {size}", f"step 8: {size}")
    assert (first.used, first.compile_ns, first.cold_ns) == (True, 2_000_000, 2_000_000)
    assert (first.recompiles, first.graph_breaks) == (2, 4)

    _, timed, second = measured(dynamo, {1}, warm_up, steps)
    assert timed.compiles == ()
    assert (second.used, second.compile_ns, second.cold_ns) == (True, 1_000_000, None)
    assert (second.recompiles, second.graph_breaks) == (0, 1)

    *_, third = measured(dynamo, (), warm_up, steps, cold=True)
    assert (third.used, third.compile_ns, third.recompiles, third.graph_breaks) == (False, 0, 0, 0)


def test_compilations_in_profiled_steps_are_told(dynamo, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    commands = Settle(least=2, most=2, block=1), Profile(steps=2, warmup=1, scratch=str(tmp_path), exemplar=False)
    _, profiled, compiled = measured(dynamo, {4}, *commands)
    (note,) = (finding for finding in profiled.findings if finding.code == "recompiled")
    assert "inside profiled steps" in note.message
    assert "some step: f (tensor 'x' size mismatch" in note.message
    assert compiled.recompiles == 0
