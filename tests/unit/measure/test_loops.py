"""How many calls make a step: as asked, as calibrated, as a baseline has it; and what is reported of it."""

from types import SimpleNamespace

import pytest

from pytest_perfdl.machine import state
from pytest_perfdl.measure import program
from pytest_perfdl.measure.commands import (
    Calibrate,
    Calibrated,
    Settle,
    Settled,
    SideResult,
    Time,
    one_repeat,
    one_side,
)
from pytest_perfdl.measure.loops import LEAST_STEP_NS, MOST_LOOPS, Loops
from pytest_perfdl.measure.program import Program
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import MeasurementPlan
from pytest_perfdl.run.assemble import Repeat, assemble, side_values
from pytest_perfdl.run.perf_test import _short_steps
from unit.measure.answers import Conversation, info, result, timed

PLAN = MeasurementPlan(warmup=15, steps=40)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0

    monkeypatch.setattr(program, "perf_counter_ns", lambda: Clock.now)
    return Clock


def calibrated(clock, call_ns, *, first_ns=0, most=MOST_LOOPS):
    """The number that is found for a function that takes so long, and how many steps that took."""
    conversation = Conversation(Calibrate(LEAST_STEP_NS, most))
    asked = Program(conversation)
    steps = 0
    for _ in asked.steps():
        clock.now += call_ns * asked.loops + (0 if steps else first_ns)
        steps += 1
    return conversation.answers[0].loops, steps


@pytest.mark.parametrize(
    "call_ns, loops", [(100_000, 1), (99_999, 2), (50_000, 2), (33_000, 4), (1_000, 128), (400, 256), (50, 2048)]
)
def test_a_step_lasts_100_microseconds_at_least(clock, call_ns, loops):
    assert calibrated(clock, call_ns)[0] == loops
    assert calibrated(clock, call_ns, first_ns=10**9)[0] == loops, "what the first call loads does not count"


def test_a_long_step_is_tried_twice_only(clock):
    assert calibrated(clock, 3 * 10**9) == (1, 2)


def test_a_function_that_does_nothing_ends_calibration(clock):
    assert calibrated(clock, 0, most=1024)[0] == 1024


def first_commands(loops, call):
    script = one_repeat(PLAN, call, "/scratch", flops=True, loops=loops)
    command = next(script)
    found = [type(command)]
    if isinstance(command, Calibrate):
        command = script.send(Calibrated(64))
        found.append(type(command))
    return found, command.loops


def test_what_is_calibrated_once_holds_for_every_later_process():
    loops = Loops("auto")
    assert first_commands(loops, info()) == ([Calibrate, Settle], 64)
    assert first_commands(loops, info()) == ([Settle], 64)
    assert first_commands(loops, info(name="other"))[0] == [Calibrate, Settle]
    assert loops.planned({"": ""}) == {"": 64}


def test_a_number_needs_no_calibration_and_a_baseline_s_is_used_again():
    assert first_commands(Loops(8), info()) == ([Settle], 8)
    assert first_commands(Loops(), info()) == ([Settle], 1)
    loops = Loops("auto")
    loops.reuse({"": 32})
    assert first_commands(loops, info()) == ([Settle], 32)
    fixed = Loops(8)
    fixed.reuse({"": 32})
    assert first_commands(fixed, info()) == ([Settle], 8)


def test_the_plan_notes_what_is_not_one_and_what_was_calibrated():
    assert Loops(8).planned({"": "", "b": "setup="}) == {"": 8}
    assert Loops().planned({"": ""}) == {}
    slow = Loops("auto")
    slow.calibrated("", 1)
    assert slow.planned({"": ""}) == {"": 1}, "so that the next run does not decide otherwise at the border"
    slow.reuse({"": 2})
    assert slow.planned({"": ""}) == {"": 1}, "what this run has measured with stays"


def test_both_sides_of_a_round_have_one_number():
    loops = Loops("auto")
    scripts = [one_side(PLAN, info(), "/scratch", profiled=False, loops=loops) for _ in range(2)]
    for script in scripts:
        assert next(script) is None
    assert isinstance(next(scripts[0]), Calibrate)
    assert scripts[0].send(Calibrated(16)).loops == 16
    assert next(scripts[1]).loops == 16


@pytest.mark.parametrize("by_marker", [True, False])
@pytest.mark.parametrize("wanted", [4, "auto"])
def test_what_cannot_be_looped_is_refused_where_the_marker_asks_and_else_left_alone(wanted, by_marker):
    loops = Loops(wanted, by_marker=by_marker)
    call = info(kind="iterable", not_looped="perf.steps(...)")
    if not by_marker:
        assert first_commands(loops, call) == ([Settle], 1)
        return
    with pytest.raises(PerfError) as error:
        first_commands(loops, call)
    assert str(error.value) == (
        f"@pytest.mark.perf(loops={wanted!r}) calls the step several times in a row, which is not possible with "
        "perf.steps(...): remove loops"
    )


@pytest.mark.long
def test_only_the_steps_that_are_timed_are_looped(clock, monkeypatch):
    monkeypatch.setattr(program.timed_pass.state, "run_delay_reader", state.run_delay_reader)
    asked = Program(Conversation(Settle(2, 2, 2, loops=8), Time(2, 3)))
    seen = []
    for _ in asked.steps():
        seen.append(asked.loops)
        clock.now += 800
    settled, measured, _ = asked._conversation.answers

    assert seen == [8] * 8
    assert (settled.step_ns, measured.loops) == (800, 8)
    assert [block.steps for block in measured.blocks] == [24, 24]


def looped(*steps, loops=4, **rest):
    """Timed steps of several calls each."""
    made = timed(*steps, loops=loops, **rest)
    blocks = tuple(_times(block, loops) for block in made.blocks)
    return _replaced(made, blocks=blocks)


def _times(block, loops):
    return _replaced(block, steps=block.steps * loops)


def _replaced(value, **changes):
    from dataclasses import replace

    return replace(value, **changes)


def test_times_are_those_of_a_call():
    repeats = [Repeat((result(timed=looped(100, 102, 104, 106, 108, cpu_ns=400)),))]
    record = assemble("t.py::t", "hash", PLAN, repeats, date="2026-01-01", commit=None)
    found = {name: series.values[0] for name, series in record.metrics().items()}

    assert found["step_time"] == 25.5, "a quarter of 102 ns, not rounded"
    assert (found["step_p50"], found["block_time"], found["cpu_time"]) == (26, 26, 20)
    assert found["ops"] == 5, "of the profiled call"


def test_so_are_those_of_rounds():
    side = SideResult(info(), Settled(15, settled=True, spread=0.0), looped(100, 102, 104, 106, 108), result().compiled)

    assert side_values([side])["step_time"] == 25.5


@pytest.mark.parametrize("typical_ns, told", [(6_800, "one step takes 6.800 "), (100_000, "")])
def test_the_note_on_short_steps_has_the_time_that_the_report_shows(typical_ns, told):
    """One of 40 steps takes 2 ms: the mean of the block is above 50 us."""
    made = result(timed=timed(*[typical_ns] * 39, 2_000_000))
    repeats = [Repeat((made,))]
    record = assemble("t.py::t", "hash", PLAN, repeats, date="2026-01-01", commit=None)
    measurement = SimpleNamespace(repeats=repeats, test=SimpleNamespace(loops=Loops()), record=lambda: record)

    assert "".join(finding.message for finding in _short_steps(measurement)).startswith(told)
    assert bool(_short_steps(measurement)) is bool(told)
