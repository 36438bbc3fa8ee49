"""The commands of a repeat, and the programs that carry them out around a step."""

import pytest
from answers import COUNTED, Conversation, info, profiled, timed

from pytest_perfdl.measure import machine, program, reference_load
from pytest_perfdl.measure.commands import Compiled, Count, Finish, Profile, Settle, Settled, Time, one_repeat, one_side
from pytest_perfdl.measure.program import NOTHING, Aside, Program
from pytest_perfdl.record import Plan

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
    given, result = commands(Plan(warmup=15, steps=40), info())

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
    given, _ = commands(Plan(warmup=2, steps=10, profiled=4), info(period=3), flops=False)

    assert given == [
        Settle(least=3, most=60, block=6, period=3),
        Time(blocks=4, block=6, opens=True, closes=True),  # at least eight cycles in all
        Profile(steps=6, warmup=3, scratch="/scratch", exemplar=True),
        Count(steps=3, scratch="/scratch", flops=False),
        Finish(),
    ]


def test_a_side_looks_at_the_machine_before_its_first_turn_and_after_its_last():
    script = one_side(Plan(warmup=15, steps=40), info(), "/scratch", profiled=False)
    turns, command = [], next(script)
    while True:
        if isinstance(command, Time):
            turns.append(command)
            rest = {"reference_before": (50,) * command.opens, "reference_after": (60,) * command.closes}
            disturbed = machine.Surroundings(clocks_mhz=(2600.0,), swapped_pages=1, major_faults=2)
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
    assert joined.surroundings == machine.Surroundings(clocks_mhz=(2600.0,) * 8, swapped_pages=8, major_faults=16)


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


def settle(clock, durations, *, least=4, most=40, block=2, aside=lambda step: NOTHING, delay=lambda step: 0):
    """Drive steps of these durations, the last one again and again, through one `Settle`."""
    conversation = Conversation(Settle(least, most, block))
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


def test_warming_up_gives_up(clock):
    found = settle(clock, [1000 >> step // 2 for step in range(20)], most=8)

    assert (found.steps, found.settled) == (8, False)
    assert found.spread == pytest.approx(-0.5)


def test_preparing_and_being_interrupted_do_not_unsettle(clock):
    settled = settle(clock, [100, 900], aside=lambda step: Aside(setup_ns=800 if step else 0))
    assert (settled.steps, settled.settled) == (4, True)

    clock.now = clock.delayed = 0
    settled = settle(clock, [100, 900], delay=lambda step: 800 if step else 0)
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
    steps.send(Aside(wait_ns=6, setup_ns=10**12))
    with pytest.raises(StopIteration):
        steps.send(None)
    found = conversation.answers[0]

    assert found.wait_ns == (5, 6, 0)
    assert found.step_ns[1] < -(10**11)
    assert found.blocks[0].wall_ns < -(10**11)
    assert found.tracer == machine.active_tracer()
