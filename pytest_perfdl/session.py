"""The story of a `pytest --perf` run: tests are collected, measured in workers, judged, recorded, reported.

pytest runs its normal protocol over every perf test; only the three phases are replaced, and each waits for the
same phase in a worker process (`isolate.remote`). The first worker's call phase holds the measuring; when that
worker has ended, more are started as the judgement needs them. The verdict is raised in the call phase.
"""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_perfdl.baseline.append import append
from pytest_perfdl.baseline.files import BaselineError, Store
from pytest_perfdl.baseline.source import describe_source
from pytest_perfdl.collect import PerfTest, adopt
from pytest_perfdl.errors import PerfError, PerfRegression
from pytest_perfdl.isolate.messages import Job, Phase
from pytest_perfdl.isolate.options import worker_options
from pytest_perfdl.isolate.process import Worker, WorkerDied, WorkerTimeout
from pytest_perfdl.isolate.remote import RemoteTest, Script, dress, replay, suspended_capture
from pytest_perfdl.judge.confirm import confirm, settled
from pytest_perfdl.judge.screen import screen
from pytest_perfdl.judge.verdict import Judgement, Verdict, parse_fail_on
from pytest_perfdl.measure.assemble import Repeat, UserValue, assemble, contended, exemplars, sharing_flops
from pytest_perfdl.measure.commands import CallInfo, one_repeat
from pytest_perfdl.options import NOTHING_SELECTED, Settings
from pytest_perfdl.record import Finding, Key, Record
from pytest_perfdl.report import ReportError, Written, github, markdown, write_all
from pytest_perfdl.report.json import write_json
from pytest_perfdl.report.junit import properties
from pytest_perfdl.report.progress import Progress
from pytest_perfdl.report.run import Exemplars, Result, Run
from pytest_perfdl.report.terminal import failure_text, summary_lines

CONFIRMING_REPEATS = 5
"""Fresh repeats that a suspect draws at most."""
MOST_REDRAWS = 3
"""Repeats of a test that are measured again because others had the processor."""


STATE = pytest.StashKey["_Measurement"]()
OUTCOME = pytest.StashKey["PerfRegression | None"]()
"""The verdict of a test that was measured: running it again (--reruns) must not measure until green."""


@dataclass(slots=True)
class _Measurement:
    """What is known of a perf test while it is measured."""

    test: PerfTest
    remote: RemoteTest
    first: Repeat | None = None
    repeats: list[Repeat] = field(default_factory=list)
    redrawn: int = 0
    base: Record | None = None
    others: tuple[Record, ...] = ()
    started: float = 0.0
    error: Exception | None = None


class PerfSession:
    """One run: hooks call it, in pytest's order."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.results: dict[str, Result] = {}
        self.tests: dict[str, PerfTest] = {}
        self._nothing = False
        """Whether collecting succeeded and found no perf test."""
        self.written: Written | None = None
        self.problem = ""
        """Why the report could not be written; fails the run."""
        self._store = Store(config.rootpath, settings.folder)
        try:
            self._fail_on = parse_fail_on(settings.fail_on)
            if settings.update is not None:
                self._store.check_writable()
        except (ValueError, BaselineError) as error:
            raise pytest.UsageError(str(error)) from None
        self._source = describe_source(config.rootpath, (settings.folder, str(settings.report)))
        self._date = _now()
        self._started = time.monotonic()
        self._running: list[RemoteTest] = []
        self._progress = Progress(None, lambda: suspended_capture(config), tests=0, repeats=0)
        self._scratch = Path(tempfile.mkdtemp(prefix="pytest-perfdl-"))

    # Collecting

    def collect(self, items: list[pytest.Item]) -> None:
        """Validate the perf tests among the items, put them first and take over their phases."""
        self.tests = adopt(items, self.settings)
        self._nothing = not self.tests
        recording = self.settings.update is not None
        repeats = [test.options.repeats_for(self.settings, recording=recording) for test in self.tests.values()]
        self._progress = Progress(
            self.config.pluginmanager.get_plugin("terminalreporter"),
            lambda: suspended_capture(self.config),
            tests=len(repeats),
            repeats=round(sum(repeats) / len(repeats)) if repeats else 0,
        )
        for test in self.tests.values():
            item: Any = test.item
            item.setup = _bound(self._setup, test)
            item.runtest = _bound(self._runtest, test)
            item.teardown = _bound(self._teardown, test)
            # Its fixtures live in the worker; hooks that look into `item.funcargs` must not miss them here.
            item.fixturenames = []

    # The three phases

    def _setup(self, test: PerfTest) -> None:
        __tracebackhide__ = True
        if OUTCOME in test.item.stash:
            return
        self._progress.start_test()
        state = _Measurement(test, self._start(test, first=True), started=time.monotonic())
        test.item.stash[STATE] = state
        self._announce(state, 1)
        replay(self._serve(state, lambda: state.remote.wait("setup")))

    def _runtest(self, test: PerfTest) -> None:
        if OUTCOME not in test.item.stash:
            self._measure(test.item.stash[STATE])
        outcome = test.item.stash[OUTCOME]
        if outcome is not None:
            raise outcome

    def _teardown(self, test: PerfTest) -> None:
        __tracebackhide__ = True
        self._progress.clear()
        state = test.item.stash.get(STATE, None)
        if state is None or state.error is not None:
            return
        if not state.remote.over:
            self._serve(state, state.remote.finish)
        phase = state.remote.phases.get("teardown")
        if phase is not None:
            replay(phase)

    def dress(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Complete a report made here with what the worker knows of the same phase."""
        state = item.stash.get(STATE, None)
        phase: Phase = report.when
        if state is not None and state.error is None and phase in state.remote.phases:
            dress(report, state.remote.phases[phase], self.config)

    # Measuring

    def _measure(self, state: _Measurement) -> None:
        """Serve the first worker through its call phase and to its end, then judge."""
        __tracebackhide__ = True
        remote = state.remote
        phase = self._serve(state, lambda: remote.wait("call"))
        self._serve(state, remote.finish)
        self._progress.end_repeat(time.monotonic() - state.started)
        if phase.raw != "passed":
            if phase.raw == "skipped":
                self._note(state, "unmeasured", "the test was skipped")
            elif phase.report["outcome"] == "skipped":
                self._note(state, "unmeasured", "the test itself failed, as its xfail mark expects")
            else:
                self._note(state, "invalid", "the test itself failed")
            replay(phase)
        if not remote.results:
            self._fail(
                state,
                f"a perf test must measure something: {state.test.item.name} never called perf(...), perf.steps(...) "
                "or perf.step()",
            )
        state.first = _repeat(remote)
        state.repeats.append(state.first)
        result = self._judge(state)
        self.results[result.id] = result
        state.test.item.user_properties += properties(result, self._run((result,)))
        if result.fails:
            state.test.item.stash[OUTCOME] = PerfRegression(failure_text(result, self._run((result,))))
        else:
            state.test.item.stash[OUTCOME] = None

    def _judge(self, state: _Measurement) -> Result:
        """Judge, with more repeats where the judgement or the recording needs them."""
        settings, limits = self.settings, state.test.limits
        update = settings.update
        recording = state.test.options.repeats_for(settings, recording=True)
        checking = state.test.options.repeats_for(settings, recording=False)
        if update in ("all", "append") or (update is not None and state.base is None):
            checking = recording
        self._draw(state, checking)
        new = self._record(state, state.repeats)
        judgement = screen(new, state.base, state.others, limits)
        unknown = state.test.unknown_metrics(new)
        if unknown:
            self._fail(
                state,
                f"limits or budgets name {', '.join(unknown)}, which this test does not measure; it "
                f"measures {', '.join(sorted(new.metrics()))}",
            )
        if judgement.suspects:
            judgement = self._confirm(state, judgement, len(state.repeats))
            new = self._record(state, state.repeats)
        updated = False
        if update is not None and judgement.verdict != "invalid":
            if update == "changed" and state.base is not None and judgement.verdict in _REWRITTEN:
                self._draw(state, recording)
                new = self._record(state, state.repeats)
                if judgement.verdict == "improved":
                    # One lucky repeat is no reason to rewrite a baseline: all of them together decide.
                    judgement = screen(new, state.base, state.others, limits)
            updated = self._update(state, new, judgement)
        if state.redrawn:
            count = f"{state.redrawn} repeat{'s' * (state.redrawn != 1)}"
            note = Finding("note", "redrawn", f"{count} measured again, because others had the processor meanwhile")
            judgement = replace(judgement, integrity=(*judgement.integrity, note))
        return self._result(state, new, judgement, updated=updated)

    def _confirm(self, state: _Measurement, judgement: Judgement, screened: int) -> Judgement:
        """Draw fresh repeats for a suspect; the screening ones are not used again as evidence."""
        limits, base = state.test.limits, state.base
        for drawn in range(1, CONFIRMING_REPEATS + 1):
            self._draw(state, screened + drawn, of=screened + CONFIRMING_REPEATS)
            fresh = self._record(state, state.repeats[screened:])
            left = CONFIRMING_REPEATS - drawn
            if left and settled(judgement, base, fresh, left, limits):
                break
        return confirm(judgement, base, fresh, limits, remaining=left)

    def _draw(self, state: _Measurement, wanted: int, *, of: int | None = None) -> None:
        """Measure in further fresh workers until there are as many repeats as wanted."""
        while self._usable(state) < wanted:
            number = len(state.repeats) + 1
            self._announce(state, number, of or wanted)
            started = time.monotonic()
            remote = self._start(state.test, first=False)
            self._serve(state, remote.finish, remote)
            self._progress.end_repeat(time.monotonic() - started)
            for name, phase in remote.phases.items():
                if phase.raw != "passed":
                    text = self.config.hook.pytest_report_from_serializable(
                        config=self.config, data=dict(phase.report)
                    ).longreprtext
                    self._fail(
                        state,
                        f"repeat {number} of the test {phase.raw} in its {name} phase, the first did not:\n{text}",
                    )
            assert state.first is not None
            state.repeats.append(sharing_flops(state.first, _repeat(remote)))
        self._progress.clear()

    def _usable(self, state: _Measurement) -> int:
        """How many repeats there are, the last one set aside if others had the processor meanwhile.

        What is neither compared with anything nor stored may be as it is.
        """
        matters = state.base is not None or self.settings.update is not None
        if matters and state.repeats and contended(state.repeats[-1]) and state.redrawn < MOST_REDRAWS:
            state.redrawn += 1
            state.repeats.pop()
        return len(state.repeats)

    def _start(self, test: PerfTest, *, first: bool) -> RemoteTest:
        """Start a worker on the test."""
        capture = self.config.getoption("capture", "fd")
        basetemp = self._scratch / f"basetemp-{len(list(self._scratch.iterdir()))}"
        worker = Worker(
            Job(
                options=worker_options(
                    vars(self.config.option), str(basetemp), self.config.rootpath, self.config.inipath
                ),
                path=str(test.item.path),
                nodeid=test.item.nodeid,
                plan=test.plan,
                scratch=str(self._scratch),
                key_extra=self.settings.key_extra,
            ),
            threads=test.plan.threads,
            timeout=test.options.timeout or self.settings.timeout,
            # What pytest does not capture is the user's to see; later repeats would only repeat it.
            inherit_output=first and capture != "fd",
        )
        remote = RemoteTest(test.item, worker, lambda info: self._script(test, info), forward=first)
        self._running.append(remote)
        return remote

    def _script(self, test: PerfTest, info: CallInfo) -> Script:
        """The commands for a call; its environment is known now, so its baseline can be read before measuring."""
        state = test.item.stash[STATE]
        if state.first is None and not state.remote.results:
            state.base, state.others = self._load(test, info.key)
        plan = replace(test.plan, period=info.period)
        return one_repeat(plan, info, str(self._scratch), first=state.first is None)

    def _load(self, test: PerfTest, key: Key) -> tuple[Record | None, tuple[Record, ...]]:
        nodeid = test.item.nodeid
        try:
            return self._store.load(nodeid, key.slug), self._store.others(nodeid, key.slug)
        except BaselineError:
            if self.settings.update == "all":
                return None, ()
            raise

    def _serve(self, state: _Measurement, wait: Callable[[], Any], remote: RemoteTest | None = None) -> Any:
        """Wait for a worker; whatever goes wrong ends it and becomes the test's error."""
        __tracebackhide__ = True
        remote = remote or state.remote
        try:
            result = wait()
        except WorkerTimeout as error:
            state.error = error
            limit = state.test.options.timeout or self.settings.timeout
            self._fail(state, f"not finished after {limit:g} s (--perf-timeout); it stood here:\n{error}")
        except WorkerDied as error:
            state.error = error
            self._fail(state, str(error))
        except BaselineError as error:
            state.error = error
            remote.end(gently=False)
            self._fail(state, str(error))
        except BaseException:
            remote.end(gently=True)
            self._progress.clear()
            raise
        if remote.over and remote in self._running:
            self._running.remove(remote)
        return result

    def _announce(self, state: _Measurement, repeat: int, repeats: int | None = None) -> None:
        recording = self.settings.update is not None
        known = repeats or state.test.options.repeats_for(self.settings, recording=recording)
        self._progress.start_repeat(repeat, known, state.test.item.nodeid)

    # Records and results

    def _record(self, state: _Measurement, repeats: Sequence[Repeat]) -> Record:
        test = state.test
        period = max(call.info.period for call in repeats[0].calls)
        return assemble(
            test.item.nodeid,
            test.hash,
            replace(test.plan, period=period),
            repeats,
            date=self._date,
            commit=self._source.commit,
            tree=self._source.tree,
        )

    def _update(self, state: _Measurement, new: Record, judgement: Judgement) -> bool:
        """Write the baseline if the mode and the verdict call for it; true if a file changed."""
        mode, base = self.settings.update, state.base
        wanted = base is None or mode in ("all", "append") or (mode == "changed" and judgement.verdict in _REWRITTEN)
        if not wanted:
            return False
        try:
            if mode == "append" and base is not None:
                new = append(base, new)
            pictures = (
                {call: Path(path).read_bytes() for call, path in exemplars(state.repeats).items()}
                if self.settings.baseline_trace
                else {}
            )
            return bool(self._store.save(new, pictures))
        except BaselineError as error:
            self._fail(state, str(error))

    def _result(self, state: _Measurement, new: Record, judgement: Judgement, *, updated: bool) -> Result:
        item = state.test.item
        slug = new.key.slug
        stored = self._store.exemplars(item.nodeid, slug) if state.base is not None and not updated else {}
        fresh = {call: Path(path) for call, path in exemplars(state.repeats).items()}
        return Result(
            id=item.nodeid,
            file=item.location[0],
            line=(item.location[1] or 0) + 1,
            judgement=judgement,
            fails=judgement.verdict in self._fail_on and not (updated and judgement.verdict != "invalid"),
            new=new,
            base=state.base,
            base_path=self._store.shown(self._store.path(item.nodeid, slug)),
            exemplars=tuple(Exemplars(call.name, stored.get(call.name), fresh.get(call.name)) for call in new.calls),
            updated=updated,
            seconds=time.monotonic() - state.started,
        )

    def _note(self, state: _Measurement, verdict: Verdict, reason: str) -> None:
        """Remember a test that ended without a judgement."""
        item = state.test.item
        findings = (Finding("invalid", "failed", reason),) if verdict == "invalid" else ()
        self.results[item.nodeid] = Result(
            id=item.nodeid,
            file=item.location[0],
            line=(item.location[1] or 0) + 1,
            judgement=Judgement(item.nodeid, verdict, reason, integrity=findings),
            fails=verdict in self._fail_on,
            seconds=time.monotonic() - state.started,
        )

    def _fail(self, state: _Measurement, message: str) -> NoReturn:
        """End the test with an error that says why there is no verdict."""
        self._progress.clear()
        self._note(state, "invalid", message.splitlines()[0])
        raise PerfError(message) from None

    def host(self, item: pytest.Item) -> None:
        """Nobody asks for measurements in this process."""

    # The end

    def status(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Letter and word for a verdict; pytest's own for everything else."""
        result = self.results.get(report.nodeid)
        if result is None or report.when != "call" or hasattr(report, "wasxfail"):
            return None
        if report.failed and result.fails and result.new is not None:
            return "failed", "R", f"PERF {result.judgement.verdict.upper()}"
        if report.passed and result.updated:
            return "passed", "U", "PERF UPDATED"
        return None

    def finish(self, exitstatus: int) -> int:
        """Write the reports; the exit status that the run deserves."""
        for nodeid, test in self.tests.items():
            if nodeid not in self.results:
                item = test.item
                self.results[nodeid] = Result(
                    id=nodeid,
                    file=item.location[0],
                    line=(item.location[1] or 0) + 1,
                    judgement=Judgement(nodeid, "unmeasured", "the test was skipped or not reached"),
                    fails=False,
                )
        if not self.tests:
            # A gate that never ran must not be green.
            return pytest.ExitCode.NO_TESTS_COLLECTED if exitstatus == pytest.ExitCode.OK else exitstatus
        run = self.run()
        self.config.hook.pytest_perfdl_report(run=run)
        try:
            self.written = write_all(run)
            if self.settings.json is not None:
                write_json(run, self.settings.json)
        except ReportError as error:
            self.problem = str(error)
            return pytest.ExitCode.TESTS_FAILED if exitstatus == pytest.ExitCode.OK else exitstatus
        return exitstatus

    def summarize(self, terminal: Any) -> None:
        """Write the summary section, and for GitHub its annotations and step summary."""
        if self._nothing:
            terminal.write_line(NOTHING_SELECTED, red=True)
        if not self.tests:
            return
        run = self.run()
        terminal.section("perf summary")
        encoding = getattr(terminal._tw._file, "encoding", None) or "utf-8"
        width = terminal._tw.fullwidth
        written = self.written is not None
        for line in summary_lines(run, self.settings.verbosity, width, encoding=encoding, report=written):
            terminal.write_line(line.text, **line.markup)
        for problem in (self.problem, *(self.written.problems if self.written else ())):
            if problem:
                terminal.write_line(f"perf: {problem}", red=True)
        if self.settings.github and os.environ.get("GITHUB_ACTIONS") == "true":
            for annotation in github.workflow_commands(run):
                terminal.write_line(annotation)
            github.append_summary(lambda limit: markdown.summary(run, limit))

    def close(self) -> None:
        """End every worker that is still alive and remove the scratch folder."""
        for remote in self._running:
            remote.end(gently=False)
        self._running.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self) -> Run:
        """The whole run, tests in the order they ran."""
        return self._run(tuple(self.results.values()))

    def _run(self, results: tuple[Result, ...]) -> Run:
        records = [result.new for result in results if result.new is not None]
        return Run(
            root=self.config.rootpath,
            key=records[0].key if records else Key("", {}),
            context=records[0].context if records else {},
            results=results,
            perf_dir=self.settings.folder,
            report_dir=self.settings.report,
            date=self._date,
            commit=self._source.commit,
            seconds=time.monotonic() - self._started,
        )


_REWRITTEN: frozenset[Verdict] = frozenset({"regressed", "missing", "outdated", "changed", "improved", "incomparable"})
"""Verdicts for which `--perf-update=changed` writes a new baseline."""


def _bound(method: Callable[[PerfTest], None], test: PerfTest) -> Callable[[], None]:
    def phase() -> None:
        __tracebackhide__ = True
        method(test)

    return phase


def _repeat(remote: RemoteTest) -> Repeat:
    values = tuple(UserValue(m.call, m.name, m.value, m.unit, m.better) for m in remote.metrics)
    return Repeat(tuple(remote.results), values)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
