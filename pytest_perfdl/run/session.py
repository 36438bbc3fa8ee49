"""A `pytest --perf` run: tests are collected, measured in workers, compared, recorded and reported.

pytest runs its normal protocol for every perf test; only the three phases are replaced: they wait for the same phase in
a worker process (`workers.remote_test`). The first worker measures in its call phase; further workers are started as
the comparison needs them (`perf_test`). The verdict is raised in the call phase.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.config.invocation import invocation
from pytest_perfdl.config.marker import NOTHING_SELECTED
from pytest_perfdl.config.settings import ENVIRONMENT, Settings
from pytest_perfdl.diff.matching.names import NO_RULES
from pytest_perfdl.judge.stopping_rule import ALPHA
from pytest_perfdl.machine.rates import FILE as MACHINE_FILE
from pytest_perfdl.machine.visible_devices import wanted_locks
from pytest_perfdl.model.errors import BaselineError, CheckoutError, ReportError
from pytest_perfdl.model.failures import PerfError, PerfRegression
from pytest_perfdl.model.record import TEST_ERROR, Key
from pytest_perfdl.model.visible import clean, harmless, visible
from pytest_perfdl.report import Written, github, markdown, remove_earlier, write_all
from pytest_perfdl.report.cases import case_text
from pytest_perfdl.report.compared import not_compared, not_measured, shortfall
from pytest_perfdl.report.exports import properties
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.terminal import failure_text, summary_lines
from pytest_perfdl.results import run_file
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import Verdict, parse_fail_on
from pytest_perfdl.run import selection
from pytest_perfdl.run.collection import PerfTest, adopt, hide_fixtures, share, unmeasured_limits
from pytest_perfdl.run.context import RunContext, name_rules
from pytest_perfdl.run.machine_rates import MachineRates
from pytest_perfdl.run.measurement import Measurement
from pytest_perfdl.run.perf_test import NotPassed, run_test, set_up, tear_down, unjudged
from pytest_perfdl.run.processes import Processes
from pytest_perfdl.run.progress import ExpectedDuration, Progress, estimate, share_line
from pytest_perfdl.run.revisions import Revisions
from pytest_perfdl.run.scaling_curves import Curves
from pytest_perfdl.run.selection import shard_of_each
from pytest_perfdl.stats.evidence import least_rounds
from pytest_perfdl.system import clocks
from pytest_perfdl.system.device_lock import DeviceLock, waiting_for
from pytest_perfdl.system.git import web_address
from pytest_perfdl.system.import_path import own_imports
from pytest_perfdl.system.pytest_internals import terminal_encoding, terminal_width
from pytest_perfdl.workers.channel import Phase, PhaseReport, load_marks
from pytest_perfdl.workers.checkout import sweep
from pytest_perfdl.workers.forks import Forks
from pytest_perfdl.workers.job import left_behind
from pytest_perfdl.workers.remote_test import dress, replay, suspended_capture

MEASUREMENT = pytest.StashKey[Measurement]()
CASE = pytest.StashKey[tuple[PerfTest, str]]()
"""Of a test that is a case: the test of all cases, and the id of the case."""
OUTCOME = pytest.StashKey["PerfRegression | None"]()
"""The verdict of a test that was measured: running it again (--reruns) must not measure until green."""

_OWN_FAILURES = tuple(f"{error.__name__}: " for error in (PerfError, PerfRegression))


class PerfSession:
    """One run: hooks call it, in pytest's order."""

    def __init__(self, config: pytest.Config, settings: Settings, forks: Forks | None = None) -> None:
        self._forks = forks
        self.config = config
        self.settings = settings
        self.results: dict[str, Result] = {}
        self.tests: dict[str, PerfTest] = {}
        self.written: Written | None = None
        self.problems: list[str] = []
        """Errors from writing files, one line each; each error fails the session."""
        self._invocation = invocation(config, settings)
        self._refused: dict[str, tuple[pytest.Item, str]] = {}
        """Perf tests that cannot be measured, by id, with the reason."""
        self._nothing = False
        """Whether the collection succeeded and found no perf test."""
        self._collected = 0
        """Number of perf tests in all shards."""
        self._narrowed = False
        """Whether files may have more tests than those that are selected."""
        self._shard = settings.shard
        """With the number of all perf tests, once they are collected."""
        self._clock = ""
        """A line if the clock of this process is not the system's."""
        self._lock: DeviceLock | None = None
        """Held while a test is measured."""
        try:
            fail_on = parse_fail_on(settings.fail_on)
        except ValueError as error:
            raise pytest.UsageError(f"--perf-fail-on (ini perf_fail_on): {error}") from None
        try:
            store = Store(config.rootpath, settings.folder)
            store.sweep()
            self._waivers = selection.resolve(config.rootpath, settings)
            if settings.update is not None:
                store.check_writable()
        except (ValueError, BaselineError) as error:
            raise pytest.UsageError(str(error)) from None
        self._began, self._date = clocks.Moment.now(), clocks.utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
        sweep(config.rootpath)
        self._store = store
        self._fail_on = fail_on
        self._context: RunContext | None = None

    # Collecting

    def collect(self, items: list[pytest.Item]) -> None:
        """Select the perf tests of the run, and take over their phases."""
        tests = self.select(items)
        self._context = self._made_context(tuple(tests.values()))
        self._curves = Curves(self._context)
        self._check_out(self._context)
        # Where something is refused above, there is no summary to print, and no report to replace an earlier one.
        self.tests = tests
        for refused in self._refused.values():
            self._note_refused(*refused)
        if self.results or tests or self._is_empty_shard:
            remove_earlier(self.settings.report, (self.settings.json, self.settings.benchmark_json))
        for test in self.tests.values():
            item: Any = test.item
            item.setup = _bound(self._setup, test)
            item.runtest = _bound(self._runtest, test)
            item.teardown = _bound(self._teardown, test)
            for case, each in test.cases.items():
                shared: Any = each.item
                shared.setup, shared.runtest, shared.teardown = (
                    _bound(partial(self._run_case, phase, case), test) for phase in ("setup", "call", "teardown")
                )
                each.item.stash[CASE] = test, case

    def finish_collecting(self) -> None:
        """After the last hook that changes the items: the fixtures of perf tests live in the workers."""
        for option in left_behind(self.config) if self.tests else ():
            said = f"perf tests are measured with the default of {option}: the value that was given cannot be pickled"
            self.config.issue_config_time_warning(pytest.PytestWarning(said), stacklevel=2)
        cases = (case.item for test in self.tests.values() for case in test.cases.values())
        refused = (item for item, _ in self._refused.values())
        hide_fixtures((*(test.item for test in self.tests.values()), *cases, *refused))

    def select(self, items: list[pytest.Item]) -> dict[str, PerfTest]:
        """Validate the perf tests among the items and put them first; those of other shards are taken out."""
        # Before tests of other shards are taken out: a shard has all tests of a file.
        self._narrowed = selection.is_narrowed(self.config)
        tests, self._refused = adopt(items, self.settings, self._waivers.waivers)
        tests = share(tests, items, self.settings, self._waivers.waivers)
        if tests:
            without = selection.unmatched(self._waivers.waivers, tests, self.config)
            self._waivers = replace(self._waivers, unmatched=without)
        self._nothing = not tests and not self._refused
        self._collected = len(tests)
        if self._shard is None:
            return tests
        self._shard = shard = replace(self._shard, tests=len(tests) + len(self._refused), require=self._required)
        budget = self.settings.budget
        expected = {nodeid: duration.typical(budget) for nodeid, duration in self._expected(tests).items()}
        shards = shard_of_each(tuple(tests.values()), expected, shard.count)
        # A test that is refused fails in one shard only.
        shards |= dict.fromkeys(self._refused, 1)
        shards |= {case.item.nodeid: shards[nodeid] for nodeid, test in tests.items() for case in test.cases.values()}
        others = [item for item in items if shards.get(item.nodeid, shard.index) != shard.index]
        items[:] = [item for item in items if shards.get(item.nodeid, shard.index) == shard.index]
        self.config.hook.pytest_deselected(items=others)
        if shard.index != 1:
            self._refused = {}
        return {nodeid: test for nodeid, test in tests.items() if shards[nodeid] == shard.index}

    def _made_context(self, tests: tuple[PerfTest, ...]) -> RunContext:
        config, settings = self.config, self.settings
        rules = name_rules(config) if tests else NO_RULES
        recording = settings.update is not None
        repeats = [test.options.repeats_for(settings, recording=recording) for test in tests]
        revisions = Revisions(config, settings, self._store, tests)
        return RunContext(
            config=config,
            settings=settings,
            tests=tests,
            collected=self._collected,
            narrowed=self._narrowed,
            store=self._store,
            revisions=revisions,
            processes=Processes(
                config, settings, revisions, forks=self._forks, began=config.stash.get(ENVIRONMENT, None)
            ),
            machines=MachineRates(self._store),
            progress=Progress(
                config.pluginmanager.get_plugin("terminalreporter"),
                lambda: suspended_capture(config),
                tests=len(repeats),
                repeats=round(sum(repeats) / len(repeats)) if repeats else 0,
            ),
            date=self._date,
            fail_on=self._fail_on,
            rules=rules,
        )

    def estimate(self) -> str | None:
        """The estimated time of the measurement, from baselines; `None` if nothing is measured."""
        if not self.tests:
            return None
        assert self._context is not None
        least = least_rounds(self._context.collected / ALPHA)
        line = estimate([*self._expected(self.tests).values()], self.settings.budget, least, self._shard)
        calibrates = self.settings.update is not None and self.settings.calibrate == "auto"
        if calibrates and not any(self._store.base.glob(f"*/{MACHINE_FILE}")):
            line += ", and once the peak rates of this machine, about 20 s"
        return line

    def _expected(self, tests: Mapping[str, PerfTest]) -> dict[str, ExpectedDuration]:
        """Expected durations of tests, from baselines."""
        settings = self.settings
        known = self._store.repeat_seconds(tests)
        found = {}
        for nodeid, test in tests.items():
            seconds = known[nodeid]
            records = settings.records(has_baseline=seconds is not None)
            repeats = test.options.repeats_for(settings, recording=records)
            found[nodeid] = ExpectedDuration(seconds, repeats, records)
        return found

    def _check_out(self, context: RunContext) -> None:
        """Have the other revision ready before anything is measured."""
        if not context.tests or not self.settings.compares_sides:
            return
        try:
            context.revisions.prepare_other_sides()
        except CheckoutError as error:
            raise pytest.UsageError(str(error)) from None

    # The three phases

    def _setup(self, test: PerfTest) -> None:
        __tracebackhide__ = True
        if OUTCOME in test.item.stash:
            return
        assert self._context is not None
        self._context.progress.start_test()
        self._wait_for_device(test)
        try:
            measurement = Measurement(self._context, test)
        except PerfError as error:
            self._note_refused(test.item, str(error.msg).partition("\n")[0])
            raise
        test.item.stash[MEASUREMENT] = measurement
        with self._noting_end(measurement):
            set_up(measurement)

    def _wait_for_device(self, test: PerfTest) -> None:
        """Wait until no other run measures on the device; the wait counts towards no budget and no time limit."""
        assert self._context is not None
        folder, progress = self.settings.device_lock, self._context.progress
        if folder is None:
            return
        if self._lock is None:
            self._lock = DeviceLock(folder, wanted_locks(os.environ))
        self._lock.acquire(lambda holder: progress.start(waiting_for(holder), test.item.nodeid))
        progress.clear()

    def _runtest(self, test: PerfTest) -> None:
        __tracebackhide__ = True
        if OUTCOME not in test.item.stash:
            assert self._context is not None
            measurement = test.item.stash[MEASUREMENT]
            with self._noting_end(measurement):
                result = clean(run_test(self._curves, measurement))
                self.results[test.item.nodeid] = result
            test.item.user_properties += properties(result, self._run((result,)))
            text = failure_text(result, self._run((result,))) if result.fails else ""
            test.item.stash[OUTCOME] = PerfRegression(text) if result.fails else None
        outcome = test.item.stash[OUTCOME]
        if outcome is not None:
            raise outcome

    def _note_refused(self, item: pytest.Item, reason: str) -> None:
        """The result of a test that did not start."""
        self.results[item.nodeid] = unjudged(item, "invalid", reason, fails="invalid" in self._fail_on)

    @contextlib.contextmanager
    def _noting_end(self, measurement: Measurement) -> Iterator[None]:
        """Around a phase: what ends it without a judgement is the test's result, and pytest's to see."""
        __tracebackhide__ = True
        try:
            yield
        except NotPassed as ended:
            self._note_unjudged(measurement, ended.verdict, ended.reason, code=TEST_ERROR)
            phase = ended.phase
        except PerfError as error:
            self._note_unjudged(measurement, "invalid", str(error.msg).partition("\n")[0])
            raise
        else:
            return
        replay(phase)

    def _note_unjudged(self, measurement: Measurement, verdict: Verdict, reason: str, *, code: str = "failed") -> None:
        """The result of a test that ended without a judgement."""
        item, fails = measurement.test.item, verdict in self._fail_on
        seconds = measurement.seconds
        self.results[item.nodeid] = unjudged(item, verdict, reason, fails=fails, code=code, seconds=seconds)

    def _teardown(self, test: PerfTest) -> None:
        __tracebackhide__ = True
        measurement = test.item.stash.get(MEASUREMENT, None)
        try:
            if measurement is not None:
                with self._noting_end(measurement):
                    tear_down(measurement)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _run_case(self, phase: Phase, case: str, test: PerfTest) -> None:
        """A phase of a test that is a case: what it was in the process that measured all of them."""
        __tracebackhide__ = True
        item, phases = test.cases[case].item, self._phases_of_case(test, case)
        if found := phases.get(phase):
            item.user_properties[:] = found.properties
            for mark in load_marks(found.marks):
                item.add_marker(mark)
            replay(found)
        if phase != "call":
            return
        result = self.results.get(test.item.nodeid)
        judged = () if result is None else result.judgement.cases
        verdict = next((each for each in judged if each.id == case), None)
        if verdict is not None and verdict.verdict in self._fail_on and result is not None and result.fails:
            raise PerfRegression(case_text(verdict, test.item.nodeid))
        if not phases:
            measurement = test.item.stash.get(MEASUREMENT, None)
            why = "" if measurement is None else measurement.crashed.get(case, "")
            raise PerfError(why or f"the test did not run, see {test.item.nodeid}")

    def _phases_of_case(self, test: PerfTest, case: str) -> Mapping[Phase, PhaseReport]:
        measurement = test.item.stash.get(MEASUREMENT, None)
        return {} if measurement is None else measurement.remote.cases.get(case, {})

    def dress(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Complete a report made here with what the worker knows of the same phase."""
        if report.when == "teardown" and item.nodeid in self.tests:
            self._curves.note_end(self.tests[item.nodeid])
        measurement = item.stash.get(MEASUREMENT, None)
        phase: Phase = report.when
        if measurement is not None and not measurement.broken and phase in measurement.remote.phases:
            dress(report, measurement.remote.phases[phase], self.config)
        elif CASE in item.stash and (found := self._phases_of_case(*item.stash[CASE]).get(phase)):
            dress(report, found, self.config)
        if report.when == "call" and report.skipped and hasattr(report, "wasxfail") and item.nodeid in self.results:
            # The test does not fail, so reports and `perfdl merge` must not count it as a failure.
            self.results[item.nodeid] = replace(self.results[item.nodeid], fails=False)
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None and crash.message.startswith(_OWN_FAILURES):
            # On CI, pytest's short summary shows the whole message, which FAILURES has just shown.
            crash.message = crash.message.partition("\n")[0]

    def host(self, item: pytest.Item) -> None:
        """Return None: workers measure."""

    # The end

    def status(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Letter and word for a verdict; `None` for pytest's default."""
        result = self.results.get(report.nodeid)
        if result is None or report.when != "call" or hasattr(report, "wasxfail"):
            return None
        if report.failed and result.fails and result.judgement.metrics:
            return "failed", "F", f"PERF {result.judgement.verdict.upper()}"
        if report.passed and result.updated:
            return "passed", ".", "PERF RECORDED"
        if report.passed and result.judgement.verdict == "waived":
            return "passed", ".", "PERF WAIVED"
        return None

    def finish(self, exitstatus: int) -> int:
        """Write the reports, and return the exit status."""
        for nodeid, test in self.tests.items():
            if nodeid not in self.results:
                why = "the test was skipped or did not start"
                self.results[nodeid] = unjudged(test.item, "unmeasured", why, fails=False)
        if self._is_empty_shard:
            # Its run file says that the shard is not missing.
            exitstatus = pytest.ExitCode.OK if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED else exitstatus
        elif not self.results:
            # A run without perf tests must not pass.
            return pytest.ExitCode.NO_TESTS_COLLECTED if exitstatus == pytest.ExitCode.OK else exitstatus
        wrong = clocks.Moment.now().disagreement(self._began)
        self._clock = wrong and f"time limits and budgets were not kept: {wrong}"
        run = self.run()
        # An error in one of these must not prevent the others, the summary of pytest or the exit status.
        if self.settings.json is not None:
            with self._noting("writing the JSON file"):
                write_files({self.settings.json: run_file.dump(run_file.to_json(run))})
        if self.settings.benchmark_json is not None:
            with self._noting("writing the JSON file of pytest-benchmark"):
                write_files({self.settings.benchmark_json: self._benchmark_json(run)})
        # Drawing imports more of the library.
        with self._noting("writing the report"), own_imports():
            self.written = write_all(run)
        # Last, so that it may send the report elsewhere.
        with self._noting("the hook pytest_perfdl_report"):
            self.config.hook.pytest_perfdl_report(run=run)
        failed = self.problems or self._shortfall
        return pytest.ExitCode.TESTS_FAILED if failed and exitstatus == pytest.ExitCode.OK else exitstatus

    def _benchmark_json(self, run: Run) -> bytes:
        from pytest_perfdl.report.benchmark_json import to_benchmark_json

        tests = self.tests.values()
        items = (*(test.item for test in tests), *(case.item for test in tests for case in test.cases.values()))
        callspecs = {item.nodeid: getattr(item, "callspec", None) for item in items}
        parameters = {nodeid: callspec.params for nodeid, callspec in callspecs.items() if callspec is not None}
        return json.dumps(to_benchmark_json(run, parameters), indent=1, allow_nan=False).encode("ascii")

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Context for one part of the report: an error skips that part and becomes a line of the summary."""
        try:
            yield
        except ReportError as error:
            self.problems.append(str(error))
        except Exception as error:
            self.problems.append(f"{what} failed: {type(error).__name__}: {error}")

    def summarize(self, terminal: Any) -> None:
        """Write the summary section, and for GitHub its annotations and step summary."""
        if self._nothing:
            terminal.write_line(NOTHING_SELECTED, red=True)
        if self._is_empty_shard and self._shard is not None:
            terminal.write_line(f"perf: {share_line(self._shard, 0)}, so nothing was measured")
        if not self.results:
            return
        with self._noting("writing the summary"):
            self._summarize(terminal)
        if self.settings.github and github.runs_here():
            with self._noting("writing the GitHub summary"):
                run = self.run()
                for annotation in github.workflow_commands(run):
                    terminal.write_line(annotation)
                github.append_summary(lambda limit: markdown.summary(run, limit))
        for problem in (*self.problems, *(self.written.problems if self.written else ()), self._shortfall):
            if problem:
                terminal.write_line(f"perf: {harmless(visible(problem))}", red=True)

    def _summarize(self, terminal: Any) -> None:
        run = self.run()
        terminal.section("perf summary")
        shown = replace(run, notes=tuple(note for note in run.notes if note != self._shortfall))
        encoding = terminal_encoding(terminal)
        width = terminal_width(terminal)
        written = self.written is not None
        for line in summary_lines(shown, self.settings.verbosity, width, encoding=encoding, report=written):
            terminal.write_line(line.text, **line.markup)

    def close(self) -> None:
        """End every process of the run, and remove its folders."""
        if self._lock is not None:
            self._lock.release()
        if self._context is not None:
            self._context.processes.close()
            self._context.revisions.close()

    def run(self) -> Run:
        """The whole run, tests in the order they ran."""
        run = self._run(tuple(self.results.values()))
        settings = self.settings
        unsaid = not_compared(run.results, required=settings.require, tests_of_head=settings.against_tests == "head")
        wrote = any(result.updated for result in run.results)
        revisions = self._context.revisions if self._context is not None else None
        warning = revisions.warning if wrote and revisions else ""
        checked_out = revisions.checked_out if revisions else ""
        records = [result.new for result in run.results if result.new is not None]
        # A test of another shard may measure the metric.
        unheld = unmeasured_limits(settings, records) if records and self._shard is None else ""
        said = (
            share_line(self._shard, len(self.tests)) if self._shard is not None else "",
            self._unlocked,
            self._clock,
            checked_out,
            not_measured(run.results),
            unsaid,
            warning,
            unheld,
            *self._curves.left_out,
            self._shortfall,
        )
        return replace(run, notes=clean(tuple(filter(None, (*run.notes, *said)))))

    @property
    def _shortfall(self) -> str:
        """A line if too few tests were compared; runs that record baselines are exempt."""
        results, shard = tuple(self.results.values()), self._shard
        if shard is None:
            return shortfall(results, self._required)
        # Where too few tests exist, the shards that have tests fail.
        return shortfall(results, shard.required_here(len(self.tests)), of=f" in {shard}") if self.tests else ""

    @property
    def _required(self) -> int:
        return 0 if self.settings.update is not None else self.settings.require

    @property
    def _is_empty_shard(self) -> bool:
        """Whether there are perf tests, but all of them are in other shards."""
        # There is no context if the run is refused.
        return self._context is not None and self._shard is not None and self._shard.tests > 0 and not self.results

    @property
    def _unlocked(self) -> str:
        """A line if other runs may have measured at the same time, because the device could not be locked."""
        problem = self._lock.problem if self._lock is not None else ""
        if not problem:
            return ""
        return (
            f"the device could not be locked, so other runs may disturb the measurements: {problem} "
            "(--perf-device-lock sets the folder of the lock files)"
        )

    def _run(self, results: tuple[Result, ...]) -> Run:
        records = [result.new for result in results if result.new is not None]
        run = Run(
            root=self.config.rootpath,
            key=records[0].key if records else Key("", {}),
            context=records[0].context if records else {},
            results=(),
            perf_dir=self.settings.folder,
            report_dir=self.settings.report,
            date=self._date,
            commit=self._context.revisions.commit if self._context is not None else None,
            seconds=clocks.perf_counter_ns() / 1e9 - self._began.after_s,
            notes=self.settings.notes,
            invocation=self._invocation,
            settings=self.settings.deciding,
            peaks=self._context.machines.peaks([record.key for record in records]) if self._context else {},
            repository=web_address(self.config.rootpath),
            traces=self.settings.traces,
            shard=self._shard,
            waivers=self._waivers,
        )
        # Results are clean already.
        return replace(clean(run), results=results)


def _bound(method: Callable[[PerfTest], None], test: PerfTest) -> Callable[[], None]:
    def phase() -> None:
        __tracebackhide__ = True
        method(test)

    return phase
