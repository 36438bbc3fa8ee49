"""The commands of a table's processes: both sides of a round run the same, one block after the other."""

import pytest

from pytest_perfdl.measure import commands
from pytest_perfdl.measure.commands import (
    TURNS,
    CaseOpened,
    CasesDescribed,
    CaseTimed,
    Compiled,
    DescribeCases,
    Finish,
    OpenCase,
    TimeCase,
    table_pilot,
    table_side,
)
from pytest_perfdl.model.record import CaseWork, MeasurementPlan
from unit.measure.answers import info

PLAN = MeasurementPlan(warmup=15, steps=40)
IDS = ("a", "b", "c")
WORK = CaseWork(flops=7.0, dtype="float32")
COMPILED = Compiled(used=False, compile_ns=0, recompiles=0, graph_breaks=0)


class Side:
    """Answers the commands of a process."""

    def __init__(self, script, failing=(), late=()):
        self.script, self.failing, self.late = script, failing, late
        self.commands, self.case, self.result = [], "", None
        self.waits = False
        self._send(None)

    def turn(self):
        """Go on until it waits again, or is done."""
        self.waits = False
        self._send(None)

    def _send(self, reply):
        while True:
            try:
                command = self.script.send(reply)
            except StopIteration as stop:
                self.result = stop.value
                return
            if command is None:
                self.waits = True
                return
            self.commands.append(command)
            reply = self._answer(command)

    def _answer(self, command):
        match command:
            case OpenCase():
                self.case = command.case
                return CaseOpened("no memory" if command.case in self.failing else "", command.loops or 4, WORK)
            case TimeCase():
                return CaseTimed((), "too late") if self.case in self.late else CaseTimed((100,) * command.steps)
            case DescribeCases():
                return CasesDescribed({case: {"aten::add": 2} for case in command.cases}, {"a": 1}, {"c": 3})
            case Finish():
                return COMPILED


def in_turns(first, second):
    """Both sides to their ends, and who ran what."""
    log = []
    while first.waits or second.waits:
        for name, side in (("first", first), ("second", second)):
            if side.waits:
                before = len(side.commands)
                side.turn()
                log += [(name, command) for command in side.commands[before:]]
    return log


def side(**how):
    loops = {"a": 8, "b": 2, "c": 1}
    return Side(table_side(PLAN, info(kind="table", cases=IDS), ("c", "a", "b"), loops, core=1), **how)


def test_both_sides_run_the_same_commands_in_the_same_order():
    first, second = side(), side()
    in_turns(first, second)
    assert first.commands == second.commands
    opened = [command for command in first.commands if isinstance(command, OpenCase)]
    assert opened == [OpenCase("c", 15, 1, 1), OpenCase("a", 15, 8, 1), OpenCase("b", 15, 2, 1)]
    assert sum(command.steps for command in first.commands if isinstance(command, TimeCase)) == 3 * 40


def test_the_sides_alternate_after_every_block_of_a_case():
    log = in_turns(side(), side())
    # By hand: whatever the first runs, the second runs next, and nobody runs twice in a row.
    assert [name for name, command in log if not isinstance(command, Finish)] == ["first", "second"] * 3 * (1 + TURNS)
    assert [command for name, command in log if name == "first"] == [c for name, c in log if name == "second"]


@pytest.mark.parametrize("how", [{"failing": ("a",)}, {"late": ("a",)}])
def test_a_case_that_fails_on_one_side_does_not_shift_the_cases_after_it(how):
    first, second = side(), side(**how)
    log = in_turns(first, second)
    places = {"first": "", "second": ""}
    for name, command in log:
        if isinstance(command, OpenCase):
            places[name] = command.case
        if isinstance(command, TimeCase):
            assert places["first"] == places["second"]
    problems = {case.id: case.problem for case in second.result.cases}
    assert problems == {"c": "", "a": "no memory" if "failing" in how else "too late", "b": ""}
    assert [len(case.step_ns) for case in second.result.cases] == [40, 0, 40]
    assert [len(case.step_ns) for case in first.result.cases] == [40, 40, 40]


def test_mutant_calls_in_a_step_of_the_sides_own_pilot_are_seen():
    """A side that ran other loops would not run the same commands."""
    other = Side(table_side(PLAN, info(kind="table", cases=IDS), IDS, {"a": 4, "b": 2, "c": 1}))
    first = side()
    in_turns(first, other)
    assert first.commands != other.commands


def test_the_first_process_begins_no_case_after_its_time_and_none_that_ended_another_one(monkeypatch):
    moments = iter([0.0, 1.0, 2.0, 11.0])
    monkeypatch.setattr(commands.clocks, "monotonic", lambda: next(moments))
    pilot = Side(table_pilot(PLAN, info(kind="table", cases=IDS), IDS, seconds=10.0, failed={"b": "it crashed"}))
    assert [(case.id, case.problem) for case in pilot.result.cases] == [
        ("a", ""),
        ("b", "it crashed"),
        ("c", commands.NOT_REACHED),
    ]
    assert [command.case for command in pilot.commands if isinstance(command, OpenCase)] == ["a"]


def test_the_first_process_measures_every_case_and_then_says_what_they_run():
    pilot = Side(table_pilot(PLAN, info(kind="table", cases=IDS), IDS), failing=("b",))
    assert not pilot.waits
    found = pilot.result.cases
    assert [(case.id, case.loops, len(case.step_ns), case.problem) for case in found] == [
        ("a", 4, 40, ""),
        ("b", 4, 0, "no memory"),
        ("c", 4, 40, ""),
    ]
    assert [case.operators for case in found] == [{"aten::add": 2}, {}, {"aten::add": 2}]
    assert [case.kernels for case in found] == [1, 0, 0]
    assert [case.allocations for case in found] == [0, 0, 3]
    assert {case.work for case in found} == {WORK}
    assert pilot.commands[-2:] == [DescribeCases(("a", "c")), Finish()]
