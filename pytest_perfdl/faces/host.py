"""Who a measuring face works for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pytest_perfdl.fixture import CurveExpectation, Expectation, WhatIfExpectation
from pytest_perfdl.record import Better, Plan

if TYPE_CHECKING:
    from pytest_perfdl.measure.commands import CallInfo


class Host(Protocol):
    """Who asks for measurements: the orchestrating process, or a script in this one."""

    plan: Plan
    key_extra: tuple[str, ...]
    side: str
    """Which alternative of which comparison is measured, `base:NAME` or `head:NAME`; empty for all other calls."""
    inject: float
    """Share of their own time by which steps are slowed down on purpose."""

    def start_call(self, call: CallInfo) -> None:
        """Announce a call; commands about it follow."""
        ...

    def command(self) -> object:
        """Wait for the next command."""
        ...

    def answer(self, reply: object) -> None:
        """Answer the last command."""
        ...

    def show(
        self,
        name: str,
        *,
        step_ns: int,
        children: bool,
        threads: bool,
        device: bool,
        tracer: str,
        loaded: Sequence[str],
    ) -> None:
        """Tell how a call's steps ran, once it is over; see `isolate.messages.CallShown`.

        `loaded` are the modules that were loaded while steps were profiled or counted.
        """
        ...

    def expect(self, expectation: Expectation | CurveExpectation | WhatIfExpectation) -> None:
        """Pass on what a test expects of two alternatives, of a curve, or of an optimisation."""
        ...

    def send_metric(self, call: str, name: str, value: float, unit: str, better: Better) -> None:
        """Pass on a metric of the author's own."""
        ...
