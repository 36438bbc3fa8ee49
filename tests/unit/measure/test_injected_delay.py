"""A known delay in every step: how long it is, where it goes, and that it is told."""

import contextlib

import pytest

from pytest_perfdl.measure import injected_delay, program
from pytest_perfdl.measure.commands import Profile, Settle, Time
from pytest_perfdl.measure.injected_delay import Delay
from pytest_perfdl.measure.program import Program
from unit.measure.answers import Conversation, profiled


class Clock:
    """Time that passes only when a step takes it, or while somebody keeps asking."""

    def __init__(self, monkeypatch):
        self.now = 0
        monkeypatch.setattr(program, "perf_counter_ns", lambda: self.now)
        # What others take of the processor is real: on a busy machine it is more than the steps' few hundred ns.
        monkeypatch.setattr(program, "run_delay_reader", lambda: contextlib.nullcontext(lambda: 0))
        monkeypatch.setattr(injected_delay, "perf_counter_ns", self.ask)

    def ask(self):
        self.now += 1
        return self.now


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    "share, period, steps, wait",
    [
        (0.05, 1, [1000, 1000, 9000, 1000, 1001], 50),
        (3.0, 1, [10, 20], 45),
        (0.1, 2, [100, 300, 100, 300, 900, 900], 20),  # the median over cycles, then the mean over a cycle
        (0.0, 1, [1000], 0),
        (0.5, 1, [-20, -20], 0),  # other processes used the CPU for longer than the clock says
    ],
    ids=["median", "even", "cycle", "none", "negative"],
)
def test_how_long_it_is(share, period, steps, wait):
    delay = Delay(share, period)
    delay.fix(steps)

    assert delay.wait_ns == wait


def test_waiting_ends_when_the_time_is_over(clock):
    delay = Delay(0.5)
    delay.fix([200])
    delay.wait()

    assert 100 <= clock.now <= 102


def steps(log):
    try:
        got = yield False
        log.append(got)
        got = yield True
        log.append(got)
        return "result"
    finally:
        log.append("closed")


def driven(generator, delay, log):
    """Every step is logged when it begins; asides count from one."""
    wrapped = delay.after_each(generator)
    keep, aside = next(wrapped), 0
    while True:
        log.append(("step", keep))
        aside += 1
        try:
            keep = wrapped.send(aside)
        except StopIteration as stop:
            return stop.value


def test_it_follows_every_step_and_hands_everything_through(monkeypatch):
    log = []
    delay = Delay(1.0)
    delay.fix([10])
    monkeypatch.setattr(delay, "wait", lambda part: log.append("wait"), raising=False)

    assert driven(steps(log), delay, log) == "result"
    assert log == [("step", False), "wait", 1, ("step", True), "wait", 2, "closed"]


def test_without_a_share_nothing_waits(monkeypatch):
    log = []
    delay = Delay(0.0)
    delay.fix([10])
    monkeypatch.setattr(delay, "wait", lambda part: log.append("wait"), raising=False)

    assert driven(steps(log), delay, log) == "result"
    assert "wait" not in log


def test_a_step_that_fails_ends_the_pass():
    log = []
    delay = Delay(1.0)
    delay.fix([10])
    wrapped = delay.after_each(steps(log))
    next(wrapped)
    wrapped.close()

    assert log == ["closed"]


def test_a_program_warms_up_without_it_and_then_keeps_it(clock, monkeypatch):
    waits = []
    delay = Delay(0.3)
    monkeypatch.setattr(delay, "wait", lambda part: waits.append(delay.wait_ns), raising=False)
    conversation = Conversation(Settle(least=4, most=8, block=2), Time(1, 3), Time(2, 1))
    durations = iter([900, 900, *[500] * 20])
    before = None
    for _ in Program(conversation, delay=delay).steps():
        clock.now += next(durations)
        before = len(conversation.answers) if not waits else before

    assert conversation.answers[0].steps == 6
    assert waits == [150] * 5
    assert before == 1, "the warm-up had been answered before anything waited"


def test_a_profiled_call_waits_for_its_part_of_a_looped_step(clock, monkeypatch):
    def profile(command):
        yield False
        return profiled()

    monkeypatch.setattr(program.profiled_pass, "run", profile)
    parts = []
    delay = Delay(0.3)
    monkeypatch.setattr(delay, "wait", parts.append, raising=False)
    conversation = Conversation(Settle(2, 4, 2, loops=8), Time(1, 1), Profile(1, 0, "", exemplar=False))
    for _ in Program(conversation, delay=delay).steps():
        clock.now += 800

    assert parts == [1.0, 1 / 8]


def test_a_profile_tells_of_it(monkeypatch):
    def run(command):
        yield False
        return profiled()

    monkeypatch.setattr(program.profiled_pass, "run", run)
    conversation = Conversation(Profile(1, 0, "", exemplar=False))
    list(Program(conversation, delay=Delay(0.05)).steps())
    list(Program(told := Conversation(Profile(1, 0, "", exemplar=False))).steps())
    (finding,) = conversation.answers[0].findings

    assert (finding.level, finding.code) == ("note", "injected")
    assert finding.message == "every step was slowed down by 5 % on purpose (--perf-inject)"
    assert told.answers[0].findings == ()
