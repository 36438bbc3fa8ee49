"""The commands of a repeat, and the programs that carry them out around a step."""

import gc
import os
import sys

import pytest

from pytest_perfdl.machine import proc, reference_load, state
from pytest_perfdl.machine.state import Usage
from pytest_perfdl.measure import program
from pytest_perfdl.measure.commands import (
    Compiled,
    Count,
    Finish,
    Profile,
    Settle,
    Settled,
    Time,
    Timed,
    one_repeat,
    one_side,
)
from pytest_perfdl.measure.loops import NOTHING, Aside
from pytest_perfdl.measure.program import Program
from pytest_perfdl.measure.sizes import TimeLimit
from pytest_perfdl.model.errors import StepsTooLong
from pytest_perfdl.model.record import MeasurementPlan
from unit.measure.answers import COUNTED, Conversation, info, profiled, timed

ANSWERS = (
    Settled(15, settled=True, spread=0.0),
    timed(1, 1),
    profiled(),
    COUNTED,
    Compiled(used=False, compile_ns=0, recompiles=0, graph_breaks=0),
)


def commands(plan, info, *, flops=True):
    script = one_repeat(plan, info, "/scratch", flops=flops)
    given = [next(script)]
    for answer in ANSWERS[:-1]:
        given.append(script.send(answer))
    with pytest.raises(StopIteration) as stop:
        script.send(ANSWERS[-1])
    return given, stop.value.value


def test_the_commands_of_a_repeat():
    given, result = commands(MeasurementPlan(warmup=15, steps=40), info())

    assert given == [
        Settle(least=15, most=90, block=5),
        Time(blocks=4, block=10, opens=True, closes=True),
        Profile(steps=4, warmup=1, scratch="/scratch", exemplar=True),
        Count(steps=1, scratch="/scratch", flops=True),
        Finish(),
    ]
    assert (result.info, result.settled, result.timed, result.profiled, result.counted, result.compiled) == (
        info(),
        *ANSWERS,
    )


def test_every_window_holds_whole_periods():
    given, _ = commands(MeasurementPlan(warmup=2, steps=10, profiled=4), info(period=3), flops=False)

    assert given == [
        Settle(least=3, most=60, block=6, period=3),
        Time(blocks=4, block=6, opens=True, closes=True),  # at least eight cycles in all
        Profile(steps=6, warmup=3, scratch="/scratch", exemplar=True),
        Count(steps=3, scratch="/scratch", flops=False),
        Finish(),
    ]


def test_a_side_looks_at_the_machine_before_its_first_turn_and_after_its_last():
    script = one_side(MeasurementPlan(warmup=15, steps=40), info(), "/scratch", profiled=False)
    turns, command = [], next(script)
    while True:
        if isinstance(command, Time):
            turns.append(command)
            rest = {"reference_before": (50,) * command.opens, "reference_after": (60,) * command.closes}
            disturbed = state.Surroundings(clocks_mhz=(2600.0,), swapped_pages=1, major_faults=2)
            answer = timed(100, 100, surroundings=disturbed, **rest)
        else:
            answer = None if command is None else ANSWERS[0] if isinstance(command, Settle) else ANSWERS[-1]
        try:
            command = script.send(answer)
        except StopIteration as stop:
            joined = stop.value.timed
            break

    assert [(turn.opens, turn.closes) for turn in turns] == [(True, False), *[(False, False)] * 6, (False, True)]
    assert (joined.reference_before, joined.reference_after) == ((50,), (60,))
    assert joined.surroundings == state.Surroundings(clocks_mhz=(2600.0,) * 8, swapped_pages=8, major_faults=16)


class Clock:
    """Time that passes only when a step takes it."""

    def __init__(self, monkeypatch):
        self.now = self.delayed = 0
        monkeypatch.setattr(program, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(program, "run_delay_reader", lambda: _Reading(lambda: self.delayed))


class _Reading:
    def __init__(self, read):
        self.read = read

    def __enter__(self):
        return self.read

    def __exit__(self, *error):
        return None


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def settle(clock, durations, *, least=4, most=40, block=2, aside=lambda step: NOTHING, delay=lambda step: 0, **rest):
    """Drive steps of these durations, the last one again and again, through one `Settle`."""
    conversation = Conversation(Settle(least, most, block, **rest))
    steps = Program(conversation).steps()
    number = 0
    next(steps)
    while True:
        clock.now += durations[min(number, len(durations) - 1)]
        clock.delayed += delay(number)
        try:
            steps.send(aside(number))
        except StopIteration:
            return conversation.answers[0]
        number += 1


def test_warming_up_ends_when_blocks_agree(clock):
    assert settle(clock, [900, 900, 500, 500, 100]) == Settled(8, settled=True, spread=0.0)


def test_warming_up_takes_its_least_number_of_steps(clock):
    assert settle(clock, [100], least=10).steps == 10


SECOND = 1_000_000_000


def test_warming_up_ends_when_its_seconds_do_and_says_what_a_step_took(clock):
    found = settle(clock, [20 * SECOND], least=15, most=90, block=5, seconds=9.0)
    assert (found.steps, found.settled, found.step_ns) == (2, False, 20 * SECOND)


def test_a_slow_first_step_alone_ends_no_warm_up(clock):
    found = settle(clock, [60 * SECOND, 1000], least=15, most=90, block=5, seconds=9.0)
    assert (found.steps, found.settled, found.step_ns) == (15, True, 1000)


def test_steps_in_which_something_compiles_end_no_warm_up(clock, monkeypatch):
    monkeypatch.setattr(program.compiling, "events", lambda: min(clock.now // SECOND // 60, 2))
    found = settle(clock, [60 * SECOND, 60 * SECOND, 1000], least=15, most=90, block=5, seconds=9.0)
    assert (found.steps, found.settled, found.step_ns) == (15, True, 1000)


def test_a_warm_up_that_ends_early_ends_with_a_period(clock):
    assert settle(clock, [20 * SECOND], least=16, most=96, block=8, seconds=9.0, period=4).steps == 4


@pytest.mark.parametrize("step_ns, steps", [(20 * SECOND, 2), (2 * SECOND, 8), (SECOND // 10, 40)])
def test_a_repeat_of_expensive_steps_is_sized_to_its_seconds_once_a_step_is_known(step_ns, steps):
    script = one_repeat(MeasurementPlan(warmup=15, steps=40), info(name="fit"), "/scratch", flops=True, seconds=37.5)
    given = [next(script)]
    assert given[0].seconds == pytest.approx(37.5 / 4)
    answers = (Settled(2 if steps < 40 else 20, settled=True, spread=0.0, step_ns=step_ns), *ANSWERS[1:])
    for answer in answers[:-1]:
        given.append(script.send(answer))
    with pytest.raises(StopIteration) as stop:
        script.send(answers[-1])
    notes = [finding for finding in stop.value.value.timed.findings if finding.code == "reduced"]
    timed_steps, profiled_steps = given[1].blocks * given[1].block, given[2].steps
    assert timed_steps == steps
    if steps < 40:
        (note,) = notes
        assert note.level == "note"
        assert note.message.startswith(
            f"fit: the time budget (--perf-budget) allows only 2 of 15 warm-up steps, {steps} of 40 timed steps"
        )
    else:
        assert (profiled_steps, notes) == (4, [])


def test_a_step_that_is_too_long_ends_the_warm_up_with_its_second_step(clock):
    found = settle(clock, [9 * SECOND, 3 * SECOND], longest_ns=2.0 * SECOND)
    assert (found.steps, found.settled, found.step_ns) == (2, False, 3 * SECOND)


@pytest.mark.long
def test_one_long_step_is_no_reason_to_end(clock):
    assert settle(clock, [SECOND, 3 * SECOND, SECOND], longest_ns=2.0 * SECOND).steps >= 4
    assert settle(clock, [9 * SECOND, SECOND], longest_ns=2.0 * SECOND).settled, "the first may compile"


def test_a_repeat_that_cannot_end_in_time_ends_after_its_warm_up():
    script = one_repeat(
        MeasurementPlan(warmup=15, steps=40), info(name="fit"), "", flops=True, limit=TimeLimit(60.0, elapsed=5.0)
    )
    assert 0.8 * SECOND < next(script).longest_ns < 0.9 * SECOND
    with pytest.raises(StepsTooLong, match=r"^fit: one step takes 3.000 s; 63 steps need 189 s, .*--perf-timeout=260$"):
        script.send(Settled(2, settled=False, spread=0.0, step_ns=3 * SECOND))


def test_adapted_sizes_are_enough_where_the_budget_holds_them():
    plan, limit = MeasurementPlan(warmup=15, steps=40), TimeLimit(60.0)
    script = one_repeat(plan, info(), "", flops=True, seconds=37.5, limit=limit)
    next(script)
    assert isinstance(script.send(Settled(2, settled=False, spread=0.0, step_ns=3 * SECOND)), Time)


@pytest.fixture
def affinity(monkeypatch):
    """The processors that this process may run on, as the test sets them; four to begin with."""
    allowed = {task: {0, 1, 2, 3} for task in proc.tasks()}
    monkeypatch.setattr(state.os, "sched_getaffinity", lambda task: allowed[task or os.getpid()], raising=False)
    monkeypatch.setattr(
        state.os, "sched_setaffinity", lambda task, cores: allowed.__setitem__(task, set(cores)), raising=False
    )
    return lambda: set(map(frozenset, allowed.values()))


@pytest.mark.skipif(sys.platform != "linux", reason="only there threads are bound")
def test_a_program_is_bound_to_its_core_from_the_warm_up_to_the_last_timed_step(affinity, monkeypatch):
    def profile(command):
        yield False
        return profiled()

    monkeypatch.setattr(program.profiled_pass, "run", profile)
    conversation = Conversation(Settle(2, 2, 1, core=2), Time(1, 2), Time(1, 1), Profile(1, 0, "", exemplar=False))
    seen = []
    for _ in Program(conversation).steps():
        seen.append(affinity())
    free = {frozenset({0, 1, 2, 3})}
    assert seen == [{frozenset({2})}] * 5 + [free]
    assert affinity() == free


@pytest.mark.skipif(sys.platform != "linux", reason="only there threads are bound")
@pytest.mark.parametrize("ending", ["finished", "closed"])
def test_a_program_that_ends_is_bound_no_more(ending, affinity):
    steps = Program(Conversation(Settle(2, 2, 1, core=1))).steps()
    next(steps)
    assert affinity() == {frozenset({1})}
    if ending == "closed":
        steps.close()
    else:
        list(steps)
    assert affinity() == {frozenset({0, 1, 2, 3})}


def test_a_program_that_is_given_no_core_is_left_where_it_is(affinity, monkeypatch):
    monkeypatch.setattr(state.os, "sched_setaffinity", None, raising=False)
    list(Program(Conversation(Settle(2, 2, 1), Time(1, 2))).steps())


@pytest.mark.long
def test_what_collections_cost_the_steps_is_left_to_them():
    """Frozen objects would make a step's `gc.collect()` free, and collections before blocks its own rarer."""
    conversation = Conversation(Settle(2, 2, 1), Time(1, 2), Time(2, 3))
    frozen, seen = gc.get_freeze_count(), []
    driven = Program(conversation)
    for step, _ in enumerate(driven.steps()):
        seen.append(state.object_walks())
        if step < 4:
            gc.collect()
        assert gc.get_freeze_count() == frozen
    before, *after = (each.object_walks for each in conversation.answers if isinstance(each, Timed))
    assert (before, after) == (2, [0])
    assert driven.object_walks == 2
    # One each in the first two steps, one of ours before the timed ones, one each in two of those, and no more.
    assert [each - seen[0] for each in seen] == [0, 1, 3, 4, 5, 5, 5, 5, 5, 5]


def prepared(wall_ns, *, wait_ns=0, delay_ns=None):
    """What is known apart of a step that was prepared for; it used up as much of all else by default."""
    other = wall_ns if delay_ns is None else delay_ns
    return Aside(wait_ns, Usage(wall_ns, other, other, other, other))


def test_warming_up_gives_up(clock):
    found = settle(clock, [1000 >> step // 2 for step in range(20)], most=8)

    assert (found.steps, found.settled) == (8, False)
    assert found.spread == pytest.approx(-0.5)


@pytest.mark.long
def test_preparing_and_being_interrupted_do_not_unsettle(clock):
    settled = settle(clock, [100, 900], aside=lambda step: prepared(800 if step else 0, delay_ns=0))
    assert (settled.steps, settled.settled) == (4, True)

    clock.now = clock.delayed = 0
    settled = settle(clock, [100, 900], delay=lambda step: 800 if step else 0)
    assert (settled.steps, settled.settled) == (4, True)

    # While it was prepared for, the second step waited for a CPU: that is counted once.
    clock.now = clock.delayed = 0
    settled = settle(
        clock, [100, 900], aside=lambda step: prepared(800 if step else 0), delay=lambda step: 800 if step else 0
    )
    assert (settled.steps, settled.settled) == (4, True)


def test_every_pass_begins_with_a_reset():
    log = []
    conversation = Conversation(Time(1, 2), Time(2, 1))
    driven = Program(conversation, reset=lambda: log.append("reset"))
    for keep in driven.steps():
        assert not keep
        assert not driven.finished
        log.append("step")

    assert log == ["reset", "step", "step", "reset", "step", "step"]
    assert driven.finished
    assert [len(answer.step_ns) for answer in conversation.answers[:-1]] == [2, 2]
    assert [[block.steps for block in answer.blocks] for answer in conversation.answers[:-1]] == [[2], [1, 1]]


def test_what_is_no_command():
    steps = Program(Conversation("dance")).steps()

    with pytest.raises(TypeError, match="unknown command 'dance'"):
        next(steps)


def test_the_reference_load_is_timed_outside_the_steps(monkeypatch):
    log = []

    def reference_ns(runs, run_delay_ns):
        assert run_delay_ns() >= 0
        log.append(f"{runs} runs")
        return (50,) * runs

    monkeypatch.setattr(reference_load, "reference_ns", reference_ns)
    conversation = Conversation(Time(1, 2, opens=True), Time(1, 1, closes=True))
    for _ in Program(conversation).steps():
        log.append("step")

    assert log == ["3 runs", "step", "step", "step", "3 runs"]
    first, second = conversation.answers[:-1]
    assert (first.reference_before, first.reference_after) == ((50, 50, 50), ())
    assert (second.reference_before, second.reference_after) == ((), (50, 50, 50))
    assert first.surroundings.major_faults >= 0


def test_a_timed_pass_tells_waiting_and_preparing_apart():
    conversation = Conversation(Time(1, 3))
    steps = Program(conversation, iterates=True, prepares=True).steps()
    next(steps)
    steps.send(Aside(wait_ns=5))
    steps.send(prepared(10**12, wait_ns=6))
    with pytest.raises(StopIteration):
        steps.send(None)
    found = conversation.answers[0]

    assert found.wait_ns == (5, 6, 0)
    assert found.step_ns[1] < -(10**11)
    (block,) = found.blocks
    assert block.wall_ns < -(10**11)
    assert max(block.cpu_ns, block.system_ns, block.run_delay_ns) < -(10**11)
    assert block.minor_faults < -(10**11)
    assert found.delay_ns[1] in (0, -(10**12)), "known of steps that are not short"
    assert found.tracer == state.active_tracer()
