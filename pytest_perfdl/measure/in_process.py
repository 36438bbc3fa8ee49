"""Measures in pytest's process, for debugging: the same commands, without a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_perfdl.measure.assemble import Repeat, UserValue
from pytest_perfdl.measure.commands import CallInfo, CallResult, one_repeat
from pytest_perfdl.measure.loops import Loops
from pytest_perfdl.model.record import Better, MeasurementPlan


class LocalHost:
    """Plays the orchestrating process's part (`fixture.Host`) for one repeat of one test."""

    def __init__(
        self, plan: MeasurementPlan, key_extra: tuple[str, ...], scratch: str, loops: Loops | None = None
    ) -> None:
        self.plan = plan
        self._loops = loops or Loops()
        self.key_extra = key_extra
        self._scratch = scratch
        self._script: Any = None
        self._command: object = None
        self._calls: list[CallResult] = []
        self._values: list[UserValue] = []

    side = ""
    inject = 0.0
    cold = False
    rank_timeout = None

    def show(self, name: str, **seen: object) -> None:
        """Of no use: nothing is forked or pinned."""

    def expect(self, expectation: object) -> None:
        """Alternatives are compared in separate processes only."""

    def start_call(self, call: CallInfo) -> None:
        """Begin the script of a call."""
        plan = replace(self.plan, period=call.period)
        self._script = one_repeat(plan, call, self._scratch, flops=True, loops=self._loops)
        self._command = next(self._script)

    def command(self) -> object:
        """The script's next command."""
        return self._command

    def answer(self, reply: object) -> None:
        """Hand a reply to the script."""
        try:
            self._command = self._script.send(reply)
        except StopIteration as stop:
            self._calls.append(stop.value)

    def step_done(self) -> None:
        """Of no use: there are no ranks that could hang."""

    def send_metric(self, call: str, name: str, value: float, unit: str, better: Better) -> None:
        """Keep a metric of the author's own."""
        self._values.append(UserValue(call, name, value, unit, better))

    def repeat(self) -> Repeat:
        """Everything that was measured."""
        return Repeat(tuple(self._calls), tuple(self._values))
