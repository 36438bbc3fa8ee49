"""The code of a worker process: pytest itself, on one test, reporting every phase.

The orchestrating process runs the same phases under its pytest and waits for this one (`run.session`). Everything that
pytest does around a test happens here as usual: fixtures, capture, warnings, xfail.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_perfdl.model.errors import ChannelClosed
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import Better
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import error_line, visible
from pytest_perfdl.system.import_path import own_imports
from pytest_perfdl.system.pytest_internals import config_of, keep_around, run_phases, tear_down_for
from pytest_perfdl.workers import channel
from pytest_perfdl.workers.channel import (
    Broken,
    CallShown,
    CallStarted,
    CaseReport,
    Channel,
    ExpectationSent,
    ExtraReport,
    Phase,
    PhaseReport,
    RawOutcome,
    Reply,
    Stopped,
    Unlike,
    UserMetric,
    WorkerJob,
)
from pytest_perfdl.workers.checkout import Checkout, move_editable_installs
from pytest_perfdl.workers.definition import read_file, test_hash
from pytest_perfdl.workers.files_read import Reads, Watch
from pytest_perfdl.workers.job import exempt_from_timeout
from pytest_perfdl.workers.origins import origins
from pytest_perfdl.workers.rank_process import RankPlace

PLUGIN_NAME = "perfdl-worker"
"""The name under which the worker's plugin is registered: how other code tells that it runs in a worker."""

_PR_SET_PDEATHSIG = 1
"""Of Linux' `prctl`."""
_EXIT_SECONDS = 2.0
"""Longest for functions that are registered with `atexit`."""
_SILENCED = ("lfplugin", "nfplugin", "stepwiseplugin")
"""Cache plugins that would overwrite the orchestrating process's notes about its last run."""


def main(channel_fd: int, parent: int, stacks_fd: int, *, groups: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """Run the job that comes over the channel, then exit.

    Parameters
    ----------
    channel_fd, stacks_fd
        Descriptors of the channel's socket, and of a file that takes every thread's stack on SIGUSR1.
    parent
        Id of the process that started or forked this one.
    groups
        Of a forked process: the modules that were loaded before, as groups (see `Watch`).
    """
    channel = Channel(socket.socket(fileno=channel_fd))
    die_with(parent)
    answer_signals(stacks_fd)
    serve(channel, groups=groups)


def answer_signals(stacks_fd: int) -> None:
    """Write every thread's stack to a file on SIGUSR1, and tear fixtures down on SIGINT."""
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True)
    # Also where the orchestrating process was told to ignore it (nohup).
    signal.signal(signal.SIGINT, signal.default_int_handler)


def serve(
    channel: Channel, *, groups: Mapping[str, tuple[str, ...]] | None = None, rank: RankPlace | None = None
) -> NoReturn:
    """Run the job that comes over the channel, then exit; `rank` says which of several processes this is."""
    forked = groups is not None
    try:
        job: WorkerJob = channel.receive()
        if rank is not None:
            job = rank.own(job)
        if job.unfrozen:
            gc.unfreeze()
        with own_imports():
            for name in job.preload:
                importlib.import_module(name)
        shows = job.shows or not forked
        watch = Watch(job.names, groups) if shows else None
        # In later processes, its audit hook would cost the timed steps some 0.1 µs for each `id()` in them.
        reads = Reads(*filter(None, (job.own, job.foreign)), watch=job.first) if shows and job.own else None
        if job.own and job.foreign:
            move_editable_installs(Checkout(working_tree=Path(job.foreign), root=Path(job.own)))
        config = config_of(job.options, [job.path])
        plugin = WorkerPlugin(channel, job, watch, reads, rank)
        config.pluginmanager.register(plugin, PLUGIN_NAME)
        config.hook.pytest_cmdline_main(config=config)
    except ChannelClosed:
        os._exit(1)
    except BaseException as error:
        # Where there is room for one line, the first one is shown.
        told = traceback.format_exception_only(error)[-1].partition("\n")[0]
        with contextlib.suppress(ChannelClosed):
            channel.send(Broken(f"{told}\n{traceback.format_exc()}"))
    _run_exit_functions()
    # Interpreter shutdown is the test's business no more: non-daemon threads must not hold it up.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run_exit_functions() -> None:
    """Run what the test registered with `atexit`, such as the removal of its folders; for `_EXIT_SECONDS` at most."""
    limit = threading.Timer(_EXIT_SECONDS, os._exit, (0,))
    limit.daemon = True
    limit.start()
    atexit._run_exitfuncs()


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent is gone, even if nobody kills its group."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _serialized(report: pytest.TestReport, config: pytest.Config) -> dict[str, Any]:
    data = channel.plain(config.hook.pytest_report_to_serializable(config=config, report=report))
    assert isinstance(data, dict)
    return data


class WorkerPlugin:
    """Runs the one item and tells the orchestrating process what happens; the fixture's host (`fixture.Host`)."""

    def __init__(
        self,
        channel: Channel,
        job: WorkerJob,
        watch: Watch | None,
        reads: Reads | None,
        rank: RankPlace | None = None,
    ) -> None:
        self.channel = channel
        self._rank = rank
        self.rank_timeout = None if rank is None else job.rank_timeout
        self._watch = watch
        self._reads = reads
        self.job = job
        self.plan = job.plan
        self.key_extra = job.key_extra
        self.side = job.side
        self.inject = job.inject
        self.cold = job.cold
        self.cases: Any = None
        self._case = ""
        """The case whose test runs."""
        self._told = "all"
        self._failure = ""
        """Why the test of a case failed, in one line."""
        self._raw: dict[str, RawOutcome] = {}
        self._marks: list[pytest.Mark] = []
        self._item: pytest.Function | None = None
        self._collect_errors: list[str] = []
        self._pid = os.getpid()

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        for name in _SILENCED:
            if config.pluginmanager.has_plugin(name):
                config.pluginmanager.unregister(name=name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._collect_errors.append(channel.text_of(report))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if self.job.tests:
            # `fixture.shared` runs them.
            return None
        matching = [
            item for item in session.items if item.nodeid == self.job.nodeid and isinstance(item, pytest.Function)
        ]
        if self._collect_errors:
            self.channel.send(Broken("\n".join(self._collect_errors)))
        elif len(matching) != 1:
            self.channel.send(
                Broken(
                    f"the worker process found {plural(len(matching), 'test')} with the id {self.job.nodeid} in "
                    f"{self.job.path}: test ids must be unique and the same in every process",
                    absent=not matching,
                )
            )
        else:
            (self._item,) = matching
            exempt_from_timeout(self._item)
            try:
                self._item.config.hook.pytest_runtest_protocol(item=self._item, nextitem=None)
            except pytest.exit.Exception as stop:
                self.channel.send(Stopped(str(stop.msg), stop.returncode, interrupted=False))
            except KeyboardInterrupt:
                self.channel.send(Stopped("KeyboardInterrupt in the worker process", None, interrupted=True))
        return True

    def run_tests(self, session: pytest.Session, measure: Callable[[Mapping[str, pytest.Function]], None]) -> None:
        """Measure the tests of the job that there are, and report the phases of the test that they are cases of."""
        by_id = {item.nodeid: item for item in session.items if isinstance(item, pytest.Function)}
        items = {case: by_id[nodeid] for case, nodeid in self.job.tests.items() if nodeid in by_id}
        if self._collect_errors:
            self.channel.send(Broken("\n".join(self._collect_errors)))
            return
        if not items:
            where = f"the worker process found none of the tests in {self.job.path}"
            self.channel.send(Broken(where, absent=True))
            return
        for item in items.values():
            exempt_from_timeout(item)
        self._item = next(iter(items.values()))
        phases: tuple[tuple[Phase, Callable[[], object]], ...] = (
            ("setup", lambda: None),
            ("call", lambda: measure(items)),
            ("teardown", lambda: tear_down_for(session, None)),
        )
        try:
            for phase, act in phases:
                self._report_whole(phase, act)
        except pytest.exit.Exception as stop:
            self.channel.send(Stopped(str(stop.msg), stop.returncode, interrupted=False))
        except KeyboardInterrupt:
            self.channel.send(Stopped("KeyboardInterrupt in the worker process", None, interrupted=True))

    def _report_whole(self, phase: Phase, act: Callable[[], object]) -> None:
        """Do what a phase is of, and report how it ended."""
        assert self._item is not None
        raw: RawOutcome = "passed"
        text = None
        try:
            act()
        except pytest.skip.Exception as skip:
            raw, text = "skipped", str(skip.msg)
        except (Exception, PerfError):
            raw, text = "failed", traceback.format_exc()
        report = pytest.TestReport(self.job.nodeid, self._item.location, {}, raw, text, phase)
        data = _serialized(report, self._item.config)
        self.channel.send(PhaseReport(phase=phase, raw=raw, report=data, properties=[], marks=()))

    def run_test(self, case: str, item: pytest.Function, told: str) -> str:
        """Run the test of a case in pytest's protocol; why it failed or was skipped, in one line."""
        self._case, self._item, self._told, self._failure = case, item, told, ""
        try:
            tear_down_for(item.session, item)
        except (Exception, PerfError) as error:
            return f"what an earlier test has set up cannot be torn down: {error_line(error)}"
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=keep_around(item))
        return self._failure

    def identity_of(self, item: pytest.Function) -> str:
        """Identifies what a test is made of: its definition and parameters."""
        return test_hash(item, read_file)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if self.job.own and self._item is not None:
            job, config = self.job, self._item.config
            # A conftest file's module may have made room for the next one's among the modules.
            plugins = (getattr(plugin, "__file__", None) for plugin in config.pluginmanager.get_plugins())
            besides = [str(place) for place in (self._item.path, config.inipath, *plugins) if place]
            self.channel.send(
                origins(
                    job.own,
                    job.foreign,
                    (*job.names, *job.deeper),
                    job.identity or test_hash(self._item, read_file),
                    self._reads,
                    besides=besides,
                )
            )
        if self._item is not None and self._watch is not None:
            at_import = () if self._reads is None else self._reads.at_import()
            self.channel.send(self._watch.shown(self._item.config.pluginmanager.get_plugins(), at_import))
        # pytest collects garbage five times when it unconfigures; nothing more is to be found here.
        gc.freeze()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """In place of every plugin that would run the test again or cut it short; wrappers still wrap."""
        self._marks = list(item.own_markers)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run_phases(item, nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """End a child that the step forked and that came out of it: the test goes on in its parent alone.

        The innermost wrapper, where what it prints is still captured as the test's.
        """
        try:
            return (yield)
        except BaseException:
            if os.getpid() != self._pid:
                traceback.print_exc()
            raise
        finally:
            if os.getpid() != self._pid:
                sys.stderr.flush()
                os._exit(1)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # A subtest makes a report too; the phase's own comes after it and wins. What a method of a TestCase raised is
        # in the call only now.
        self._raw[call.when] = (
            "passed"
            if call.excinfo is None
            else "skipped"
            if call.excinfo.errisinstance(pytest.skip.Exception)
            else "failed"
        )
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        item = self._item
        assert item is not None
        data = _serialized(report, item.config)
        if type(report) is not pytest.TestReport or report.nodeid != item.nodeid:
            if self._told == "all":
                self.channel.send(ExtraReport(data))
            return
        added = [mark for mark in item.own_markers if not any(mark is known for known in self._marks)]
        self._marks += added
        phase: Phase = report.when
        found = PhaseReport(
            phase=phase,
            raw=self._raw[phase],
            report=data,
            properties=[(str(name), channel.plain(value)) for name, value in item.user_properties],
            marks=channel.dump_marks(added),
            opaque=isinstance(data.get("longrepr"), str) and not isinstance(report.longrepr, str),
        )
        if not self.job.tests:
            self.channel.send(found)
            return
        if found.raw != "passed":
            said = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or channel.text_of(report)
            line = said.strip().removeprefix("Skipped: ").partition("\n")[0]
            self._failure = self._failure or f"the test {found.raw}: {visible(line)}"
        if self._told == "all" or (self._told == "failures" and found.raw != "passed"):
            self.channel.send(CaseReport(self._case, found))

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        # What collection and configuration warn of, the orchestrating process has seen itself.
        if when == "runtest" and self._told == "all":
            self.channel.send(channel.dump_warning(warning_message, nodeid, location))

    def start_call(self, call: object) -> None:
        """Announce a `perf(...)` call: `command` and `answer` now converse about it."""
        if self._reads is not None:
            # What the test loaded may be gone when it is over.
            self._reads.look()
        if self._watch is not None and (unlike := self._watch.start_call()):
            self.channel.send(Unlike(unlike))
            pytest.skip(unlike)
        self.channel.send(CallStarted(call))

    def command(self) -> object:
        """Wait for the orchestrating process's next command."""
        return self.channel.receive()

    def step_done(self) -> None:
        """Note that a rank finished a step."""
        if self._rank is not None:
            self._rank.progress.advance()

    def answer(self, reply: object) -> None:
        """Answer the last command."""
        self.channel.send(Reply(reply))

    def show(
        self,
        name: str,
        *,
        step_ns: int,
        children: bool,
        threads: bool,
        device: bool,
        tracer: str,
        object_walks: int,
        loaded: Sequence[str],
    ) -> None:
        """Keep what a call's steps showed, and which modules only measuring loaded."""
        if self._watch is not None:
            object_walks += 0 if self._reads is None else self._reads.object_walks
            self._watch.end_call(CallShown(name, step_ns, children, threads, device, tracer, object_walks), loaded)

    def expect(self, expectation: object) -> None:
        """Pass on what the test expects of two alternatives."""
        self.channel.send(ExpectationSent(expectation))

    def send_metric(self, call: str, name: str, value: float, unit: str, better: Better) -> None:
        """Pass on a `perf.metric(...)`."""
        self.channel.send(UserMetric(call, name, value, unit, better))
