"""`--perf-isolate=none`: measures every test once in pytest's process, for debugging, without a comparison."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from pytest_perfdl.config.marker import NOTHING_SELECTED
from pytest_perfdl.config.settings import Settings
from pytest_perfdl.measure.commands import CallInfo, CallResult, one_repeat, table_pilot
from pytest_perfdl.measure.loops import Loops
from pytest_perfdl.model.record import Better, MeasurementPlan
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.model.visible import harmless, visible
from pytest_perfdl.run.assemble import Repeat, UserValue, assemble
from pytest_perfdl.run.collection import PerfTest, adopt, hide_fixtures
from pytest_perfdl.system import folders


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
    cases = None

    def show(self, name: str, **seen: object) -> None:
        """Of no use: nothing is forked or pinned."""

    def expect(self, expectation: object) -> None:
        """Alternatives are compared in separate processes only."""

    def start_call(self, call: CallInfo) -> None:
        """Begin the script of a call."""
        plan = replace(self.plan, period=call.period)
        whole = one_repeat(plan, call, self._scratch, flops=True, loops=self._loops)
        self._script = table_pilot(plan, call, call.cases) if call.cases else whole
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

    def run_test(self, case: str, item: pytest.Item, told: str) -> str:
        """Never asked for: every test is measured by itself."""
        raise NotImplementedError

    def identity_of(self, item: pytest.Item) -> str:
        """Never asked for, likewise."""
        raise NotImplementedError

    def step_done(self) -> None:
        """Of no use: there are no ranks that could hang."""

    def send_metric(self, call: str, name: str, value: float, unit: str, better: Better) -> None:
        """Keep a metric of the author's own."""
        self._values.append(UserValue(call, name, value, unit, better))

    def repeat(self) -> Repeat:
        """Everything that was measured."""
        return Repeat(tuple(self._calls), tuple(self._values))


class LocalSession:
    """Takes `run.session.PerfSession`'s place: hooks call it, in pytest's order."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tests: dict[str, PerfTest] | None = None
        self._refused: dict[str, tuple[pytest.Item, str]] = {}
        self._hosts: dict[str, LocalHost] = {}
        self._folder = folders.temporary("scratch")

    def collect(self, items: list[pytest.Item]) -> None:
        """Validate the perf tests among the items and put them first."""
        self._tests, self._refused = adopt(items, self._settings)

    def finish_collecting(self) -> None:
        """After the last hook that changes the items: refused tests have no fixtures."""
        hide_fixtures(item for item, _ in self._refused.values())

    def estimate(self) -> None:
        """Nothing is known of how long measuring takes here."""

    def host(self, item: pytest.Item) -> LocalHost | None:
        """Who asks for this item's measurements."""
        test = (self._tests or {}).get(item.nodeid)
        if test is not None and item.nodeid not in self._hosts:
            folder = str(self._folder.path)
            self._hosts[item.nodeid] = LocalHost(test.plan, self._settings.key_extra, folder, test.loops)
        return self._hosts.get(item.nodeid)

    def dress(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Reports stay as they are."""

    def status(self, report: pytest.TestReport) -> None:
        """Keep pytest's status."""

    def finish(self, exitstatus: int) -> int:
        """Write nothing; return the exit status."""
        if not self._tests and not self._refused and exitstatus == pytest.ExitCode.OK:
            return pytest.ExitCode.NO_TESTS_COLLECTED
        return exitstatus

    def summarize(self, terminal: Any) -> None:
        """Show the metrics of every measured test."""
        if self._tests is not None and not self._tests and not self._refused:
            terminal.write_line(NOTHING_SELECTED, red=True)
        terminal.section("perf metrics, measured in pytest's process and not compared")
        for nodeid, host in self._hosts.items():
            repeat, test = host.repeat(), (self._tests or {})[nodeid]
            if not repeat.calls:
                continue
            record = assemble(nodeid, test.hash, test.plan, [repeat], date="", commit=None)
            terminal.write_line(harmless(visible(nodeid)))
            for name, series in record.metrics().items():
                value = format_quantity(statistics.fmean(series.values), series.unit)
                terminal.write_line(f"    {visible(name):16} {value}")

    def close(self) -> None:
        """Remove the scratch directory."""
        self._folder.remove()
