"""A test that runs in a worker, seen from the orchestrating process: phases, and calls that are measured.

What pytest would have observed here (reports, warnings, subtests, properties, added marks) is received as messages and
passed to pytest in this process.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator
from typing import Any

import pytest

from pytest_perfdl.model.errors import TestAbsent, WorkerDied, WorkerTimeout
from pytest_perfdl.system.pytest_internals import TerminalRepr, complete_subtest
from pytest_perfdl.workers import channel
from pytest_perfdl.workers.channel import (
    PHASES,
    Broken,
    CallStarted,
    CaseReport,
    ExpectationSent,
    ExtraReport,
    Origins,
    Phase,
    PhaseReport,
    RecordedWarning,
    Reply,
    Shown,
    Stopped,
    Unlike,
    UserMetric,
)
from pytest_perfdl.workers.process import AnyWorker

Script = Generator[Any, Any, Any]
"""Yields commands, takes replies, returns the result of a call; yields `None` to wait for its turn."""


class TestFailedInWorker(Exception):
    """A phase failed in the worker; its report there tells how and replaces the one made here."""

    __test__ = False


_EXITED = "the worker process exited during the test's {} phase"


class RemoteTest:
    """One run of a test in one worker.

    Parameters
    ----------
    script
        Makes the script of a call from its announcement.
    forward
        Whether to hand warnings, subtests, properties and marks to this process's pytest: wanted of the first
        of several repeats only.
    judge
        Is told in every call whether the process is like a new one, as far as it can tell.
    """

    def __init__(
        self,
        item: pytest.Item,
        worker: AnyWorker,
        script: Callable[[Any], Script],
        *,
        forward: bool,
        judge: Callable[[bool], object] = bool,
    ) -> None:
        self._item = item
        self._worker = worker
        self._make_script = script
        self._script: Script | None = None
        self._forward = forward
        self._judge = judge
        self._held: list[ExtraReport | RecordedWarning] = []
        """What pytest in this process is to be told, in order."""
        self.waits = False
        """Whether a script waits for the other process of the round."""
        self.command: object = None
        """The last command that a script sent."""
        self.phases: dict[Phase, PhaseReport] = {}
        self.cases: dict[str, dict[Phase, PhaseReport]] = {}
        """The phases of tests that are cases, by id of the case."""
        self.calls: list[Any] = []
        """The announcement of each perf(...) call so far."""
        self.results: list[Any] = []
        self.metrics: list[UserMetric] = []
        self.expectations: list[Any] = []
        self.origins: Origins | None = None
        self.shown: Shown | None = None
        """How the test's process loads and runs the test; set when a new process has ended."""
        self.unlike = ""
        """Why a new process would not be like this one, which was forked, in one line; empty if it would."""
        self.over = False

    @property
    def failed_cases(self) -> dict[str, str]:
        """Why tests that are cases did not pass, in a few words, by id of the case."""
        return {
            case: f"the test {phase.raw}"
            for case, phases in self.cases.items()
            for phase in phases.values()
            if phase.raw != "passed"
        }

    def wait(self, phase: Phase) -> PhaseReport:
        """Serve the worker until a phase is over there; scripts that wait for a turn meanwhile get it.

        Raises
        ------
        WorkerDied, WorkerTimeout
            When the worker is gone; it has been ended with everything it started.
        """
        while phase not in self.phases:
            if self.waits:
                self.take_turn()
            elif self.over or not self._serve():
                raise WorkerDied(_EXITED.format(phase))
        return self.phases[phase]

    def finish(self) -> None:
        """Serve the worker until it has ended, every script to its end: warnings come after the last phase's report."""
        while self.advance():
            self.take_turn()

    def advance(self) -> bool:
        """Serve the worker until a script waits for its turn, or the worker has ended; true if one waits."""
        while not self.waits and not self.over:
            self._serve()
        return self.waits

    def take_turn(self) -> bool:
        """Let the waiting script go on until it waits again or the worker has ended; true if one waits."""
        self.waits = False
        self._proceed(None)
        return self.advance()

    def end(self, *, gently: bool) -> None:
        """End the worker before its time."""
        self.waits = False
        if not self.over:
            self.over = True
            if gently:
                self._worker.interrupt()
            else:
                self._worker.kill()

    def pass_on(self) -> None:
        """Tell pytest in this process what the worker's observed: warnings and further reports."""
        held, self._held = self._held, []
        for message in held:
            if isinstance(message, ExtraReport):
                self._log_extra(message)
            else:
                self._record_warning(message)

    def _serve(self) -> bool:
        """Handle one message; false when there will be no more."""
        try:
            message = self._worker.receive()
        except (WorkerDied, WorkerTimeout) as error:
            self.over = True
            if isinstance(error, WorkerDied):
                error.case = getattr(self.command, "case", "")
            raise
        if message is None:
            self.over = True
            if "teardown" not in self.phases and not self.unlike:
                # As of `os._exit(0)`: an exit code of 0 says nothing of a test that has not ended.
                raise WorkerDied(_EXITED.format(next(each for each in PHASES if each not in self.phases)))
            return False
        self._take(message)
        return True

    def _take(self, message: object) -> None:
        match message:
            case PhaseReport():
                self._take_phase(message)
            case CaseReport():
                self.cases.setdefault(message.case, {})[message.phase.phase] = message.phase
            case ExtraReport() | RecordedWarning():
                if self._forward:
                    self._held.append(message)
            case CallStarted():
                self.calls.append(message.call)
                self._judge(True)
                self._script = self._make_script(message.call)
                self._proceed(None)
            case Reply():
                self._proceed(message.value)
            case UserMetric():
                self.metrics.append(message)
            case ExpectationSent():
                self.expectations.append(message.expectation)
            case Origins():
                self.origins = message
            case Shown():
                self.shown = message
            case Unlike():
                self.unlike = message.reason
                self._judge(False)
            case Broken():
                self.end(gently=False)
                raise (TestAbsent if message.absent else WorkerDied)(message.text)
            case Stopped():
                self.end(gently=False)
                if message.interrupted:
                    raise KeyboardInterrupt
                pytest.exit(message.reason, message.returncode)
            case _:
                raise TypeError(f"unexpected message from a worker: {message!r}")

    def _take_phase(self, message: PhaseReport) -> None:
        self.phases[message.phase] = message
        if self._forward:
            self._item.user_properties[:] = message.properties
            for mark in channel.load_marks(message.marks):
                self._item.add_marker(mark)

    def _log_extra(self, message: ExtraReport) -> None:
        config = self._item.config
        report = config.hook.pytest_report_from_serializable(config=config, data=dict(message.report))
        if report is None:
            return
        complete_subtest(config, report, message.report)
        with suspended_capture(config):
            self._item.ihook.pytest_runtest_logreport(report=report)

    def _record_warning(self, message: RecordedWarning) -> None:
        self._item.ihook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": channel.load_warning(message),
                "when": "runtest",
                "nodeid": message.nodeid,
                "location": message.location,
            }
        )

    def _proceed(self, value: object) -> None:
        """Hand the script a reply and the worker the script's next command."""
        assert self._script is not None
        try:
            command = self._script.send(value)
        except StopIteration as stop:
            self._script = None
            self.results.append(stop.value)
            return
        if command is None:
            self.waits = True
        else:
            self.command = command
            self._worker.send(command)


class _Opaque(TerminalRepr):
    """What went wrong, where it came as text and was none: pytest puts text into its short summary under CI."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def toterminal(self, tw: Any) -> None:
        """Write it as it was written in the worker."""
        tw.line(self.text)


def replay(phase: PhaseReport) -> None:
    """Raise what makes pytest see this phase's failure or skip here too."""
    __tracebackhide__ = True
    if phase.raw == "skipped":
        raise pytest.skip.Exception("the test was skipped in the worker process")
    if phase.raw == "failed":
        raise TestFailedInWorker(f"the test's {phase.phase} phase failed in the worker process")


def report_of(phase: PhaseReport, config: pytest.Config) -> Any:
    """Pytest's report on a phase in the worker, which was serializable there."""
    # Reading a report uses its data up, and a rerun may ask for it again.
    return config.hook.pytest_report_from_serializable(config=config, data=copy.deepcopy(dict(phase.report)))


def dress(report: pytest.TestReport, phase: PhaseReport, config: pytest.Config) -> None:
    """Give the report made here what the worker's report of the same phase says.

    A phase that passed in the worker keeps the outcome from here, where the verdict is: xfail applies to that.
    """
    original = report_of(phase, config)
    report.sections[:] = original.sections
    if phase.raw == "passed":
        return
    report.outcome = original.outcome
    report.longrepr = _Opaque(original.longrepr) if phase.opaque else original.longrepr
    if hasattr(original, "wasxfail"):
        report.wasxfail = original.wasxfail
    elif hasattr(report, "wasxfail"):
        del report.wasxfail


def suspended_capture(config: pytest.Config) -> Any:
    """A context in which writing to the terminal is seen by the user, not captured."""
    manager = config.pluginmanager.get_plugin("capturemanager")
    return manager.global_and_fixture_disabled() if manager is not None else contextlib.nullcontext()
