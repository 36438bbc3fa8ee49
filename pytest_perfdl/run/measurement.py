"""The measurement of one perf test: its first process phase by phase, then further processes as needed.

The first process times, profiles and counts the step; pytest's reports of the test come from it. Errors in a process
are raised as `WorkerError`, and translated at the top of the flow (`as_failures`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_perfdl.fixture.requests import CurveExpectation, Expectation, WhatIfExpectation
from pytest_perfdl.judge.ranks import mean_side, rank_side
from pytest_perfdl.judge.work import join_work, operator_sides
from pytest_perfdl.measure.commands import CallInfo, CallResult, Count, one_repeat, table_pilot
from pytest_perfdl.measure.optional import unmeasured
from pytest_perfdl.model.errors import (
    BaselineError,
    CheckoutError,
    ConstantsError,
    ForkError,
    SideError,
    SideSkipped,
    TestAbsent,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
)
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import Finding, Record
from pytest_perfdl.results.curve import RankComparison
from pytest_perfdl.results.verdict import OperatorSides
from pytest_perfdl.run.assemble import (
    Repeat,
    absent_figures,
    assemble,
    contended,
    exemplars,
    rank_exemplars,
    sharing_first,
)
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.context import RunContext
from pytest_perfdl.run.paired_rounds import (
    BUSY,
    chosen_cases,
    failure,
    last_error,
    object_walks,
    user_values,
    work_of,
)
from pytest_perfdl.system import clocks
from pytest_perfdl.workers.channel import Origins, PhaseReport, Shown, text_of
from pytest_perfdl.workers.checkout import Checkout
from pytest_perfdl.workers.forks import ROUNDS_IN_A_ROW
from pytest_perfdl.workers.process import user_stack
from pytest_perfdl.workers.remote_test import RemoteTest, Script, report_of

DEVICE_SECONDS = 30.0
"""Longest wait for a device that accepts one process and has another."""
_LOOK_EVERY_SECONDS = 1.0
MOST_CRASHES = 5
"""Cases of a table that may end their process before nothing more is measured."""
MOST_REDRAWS = 3
"""Repeats that are to be stored and are measured again because other processes used the CPU."""


@dataclass(frozen=True, slots=True)
class BaseSide:
    """Measurement of the first process of the baseline commit."""

    record: Record
    origins: Origins
    """Whose code it loaded."""
    shown: Shown | None
    traces: Mapping[str, str]
    """Path of the trace of a step, by call."""
    rank_traces: Mapping[str, tuple[str, ...]]
    """Paths of all ranks' traces of that step, by call; empty without ranks."""


class Measurement:
    """The processes of one perf test, and what they measured; the first one is started at once."""

    def __init__(self, context: RunContext, test: PerfTest) -> None:
        self.context = context
        self.test = test
        self.repeats: list[Repeat] = []
        """Repeats of the working tree. The first process is the first repeat, unless other processes used its CPU."""
        self.redrawn = 0
        """Number of repeats that were measured again."""
        self.broken = False
        """Whether a worker died, hung or could not be judged; pytest's own reports are then kept."""
        self._started = clocks.monotonic()
        self._first: Repeat | None = None
        """The repeat of the first process, the only process that counted FLOPs."""
        self._forks = context.settings.start != "fresh"
        """Whether repeats that are stored may be measured in forked processes, as far as is known."""
        self._unfrozen = False
        """Whether the steps of a forked process walked over its objects, although those of the first one did not."""
        self._no_flops = ""
        """Why FLOPs cannot be counted; empty if FLOPs can be counted."""
        self._forks_first = True
        """Whether the first process may be forked, as far as is known."""
        self._is_forked = False
        """Whether it was."""
        self.crashed: dict[str, str] = {}
        """Cases of a table during which a process died, with how, in one line."""
        with self.as_failures():
            self.remote = self._start_first()
            """The first process."""
        self._announce(1)

    @property
    def seconds(self) -> float:
        """Since the first process was started."""
        return clocks.monotonic() - self._started

    @contextlib.contextmanager
    def as_failures(self) -> Iterator[None]:
        """Context for all work of the processes: an error ends the remaining ones, and fails the test."""
        __tracebackhide__ = True
        processes = self.context.processes
        try:
            try:
                yield
            except WorkerTimeout as error:
                self.broken = True
                limit = processes.timeout(self.test)
                where, stack = user_stack(str(error), str(self.context.config.rootpath))
                at = f" at {where}" if where else ""
                message = (
                    f"the test did not finish within {limit.seconds:g} s ({limit.setting}){at}\nStack at "
                    f"timeout:\n{stack}"
                )
                raise PerfError(message) from None
            except (WorkerError, BaselineError, ConstantsError) as error:
                self.broken = True
                raise PerfError(str(error)) from None
            except (CheckoutError, SideError) as error:
                raise PerfError(str(error)) from None
        except BaseException:
            processes.end(gently=True)
            self.context.progress.clear()
            raise

    # The first process

    def set_up_first(self) -> PhaseReport:
        """Serve the first process until the test is set up; the report of its setup phase."""
        self._serve_first(lambda: self.remote.wait("setup"))
        return self.remote.phases["setup"]

    def first_call(self) -> CallInfo | None:
        """Serve the first process until a `perf(...)` call waits to be measured; `None` if the test ended without.

        A call in a fixture's setup does not wait: it has been measured.
        """
        self._serve_first(lambda: self.remote.advance())
        return self.remote.calls[0] if self.remote.calls else None

    def finish_first(self) -> PhaseReport:
        """Measure all calls of the first process and serve it to its end; the report of the test's call phase."""
        self._serve_first(lambda: self.remote.finish())
        if spoiled := self._spoiled(self.remote):
            self._no_flops = spoiled
            self.remote = self._start_first()
            self._serve_first(lambda: self.remote.finish())
        self.remote.pass_on()
        self.context.progress.end_repeat(self.seconds)
        phase = self.remote.wait("call")
        if phase.raw == "passed" and self.remote.results:
            self._first = _repeat(self.remote, self.seconds)
            self.repeats.append(self._first)
        return phase

    @property
    def alternatives(self) -> list[Expectation]:
        """What the test expects of pairs of alternatives."""
        return [each for each in self.remote.expectations if isinstance(each, Expectation)]

    @property
    def possible_gains(self) -> list[WhatIfExpectation]:
        """What the test expects of optimizations."""
        return [each for each in self.remote.expectations if isinstance(each, WhatIfExpectation)]

    @property
    def curves(self) -> list[CurveExpectation]:
        """What the test expects of its time over sizes."""
        return [each for each in self.remote.expectations if isinstance(each, CurveExpectation)]

    def _start_first(self) -> RemoteTest:
        """Fork the first process, or start it: always from then on where a forked one is not like a new one."""

        def script(info: CallInfo) -> Script:
            # The baseline is read before anything is measured, and its name depends on what the call found here.
            yield None
            return (yield from self._script(info))

        processes = self.context.processes
        parent = processes.first_parent(self.test) if self._forks_first else None
        self._is_forked = parent is not None
        return processes.start(self.test, script, first=True, cold=True, parent=parent)

    def _serve_first(self, serve: Callable[[], object]) -> None:
        """Serve the first process, and start it again while another process holds a device that accepts only one.

        Raises
        ------
        PerfError
            The other process holds it for too long.
        """
        self._serve_sound(serve)
        deadline = clocks.monotonic() + DEVICE_SECONDS
        while BUSY in failure(self.remote, self.context.config):
            if clocks.monotonic() > deadline:
                raise PerfError(
                    "the GPU accepts one process at a time (exclusive-process mode), and another process holds it, "
                    f"waited for {DEVICE_SECONDS:g} s: stop that process, or set the compute mode to default "
                    "(sudo nvidia-smi -c DEFAULT)"
                )
            clocks.sleep(_LOOK_EVERY_SECONDS)
            self.remote = self._start_first()
            self._serve_sound(serve)

    def _serve_sound(self, serve: Callable[[], object]) -> None:
        """Serve the first process; from its start again if a forked one fails, or is not like a new one."""
        try:
            serve()
            if not self._is_forked or _is_sound(self.remote) or self._spoiled(self.remote):
                return
        except (WorkerTimeout, TestAbsent):
            raise
        except WorkerError as error:
            if not self._is_forked and not self._skips(error):
                raise
        self.remote.end(gently=True)
        self._forks_first = False
        self.remote = self._start_first()
        self._serve_first(serve)

    def _skips(self, error: WorkerError) -> bool:
        """Whether a new process may come further than this one, because it skips the case of a table that ended it."""
        case = error.case if isinstance(error, WorkerDied) else ""
        if not case or case in self.crashed or len(self.crashed) == MOST_CRASHES:
            return False
        self.crashed[case] = str(error).partition("\n")[0]
        return True

    def _script(self, info: CallInfo) -> Script:
        return self._commands(info, flops=self._first is None and not self._no_flops)

    def _commands(self, info: CallInfo, *, flops: bool) -> Script:
        context = self.context
        plan = replace(self.test.plan, period=info.period)
        if info.cases:
            seconds = context.settings.budget / 2
            return table_pilot(plan, info, chosen_cases(context, info), seconds=seconds, failed=self.crashed)
        return one_repeat(
            plan,
            info,
            str(context.processes.scratch),
            flops=flops,
            seconds=context.step_seconds,
            loops=self.test.loops,
            limit=context.processes.timeout(self.test),
        )

    def _spoiled(self, remote: RemoteTest) -> str:
        """Why the test must be measured again without counting FLOPs: it failed meanwhile; empty if it did not.

        torch's counter cannot stay out of everything that it watches: torch.compile(fullgraph=True), for one, refuses
        to run beside it.
        """
        phase = remote.phases.get("call")
        counting = isinstance(remote.command, Count) and remote.command.flops
        if phase is None or phase.raw != "failed" or not counting:
            return ""
        report = report_of(phase, self.context.config)
        said = (
            getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
            or "the test failed while its counts were measured"
        )
        return str(said).partition("\n")[0]

    # Further repeats

    def draw(self, wanted: int, *, of: int | None = None) -> None:
        """Measure in further fresh processes until there are as many repeats as wanted.

        Parameters
        ----------
        of
            How many there may be at most, to be shown; by default those wanted.
        """
        self._discard_contended()
        while len(self.repeats) < wanted:
            number = len(self.repeats) + 1
            self._announce(number, of or wanted)
            started = clocks.monotonic()
            remote = self._fork_repeat(of or wanted) or self._start_repeat(number)
            seconds = clocks.monotonic() - started
            self.context.progress.end_repeat(seconds)
            assert self._first is not None
            self.repeats.append(sharing_first(self._first, _repeat(remote, seconds)))
            self._discard_contended()
        self.context.progress.clear()

    def fresh(self, repeats: int) -> Record:
        """Measure in further fresh processes: a record of these repeats alone.

        Raises
        ------
        PerfError
            When that fails: it is asked for while another test is judged.
        """
        seen = len(self.repeats)
        with self.as_failures():
            self.draw(seen + repeats)
        return self._assemble(self.repeats[seen:], self._no_flops)

    def record(self) -> Record:
        """All repeats of the working tree."""
        return self._assemble(self.repeats, self._no_flops)

    def operators(self) -> tuple[OperatorSides, ...]:
        """What the operators of the working tree had to do in all repeats, without another side."""
        machine = self.context.machines.of(self.repeats[0].calls[0].info.key)
        works = join_work([work_of(repeat.calls) for repeat in self.repeats])
        peaks = None if machine is None else machine.peaks
        return tuple(each for call, work in works.items() for each in operator_sides(call, (), work, peaks))

    def ranks(self) -> tuple[RankComparison, ...]:
        """How the ranks of every call of the working tree compare, in all repeats; empty without ranks."""
        found = []
        for index, call in enumerate(self.repeats[0].calls):
            sides = [side for repeat in self.repeats if (side := rank_side(repeat.calls[index].profiled)) is not None]
            if sides:
                found.append(RankComparison(call.info.name, None, mean_side(sides)))
        return tuple(found)

    def absent_figures(self) -> list[Finding]:
        """Which utilization metrics are absent in the working tree's steps, and why."""
        first = self.repeats[0]
        return absent_figures(first, self.context.machines.of(first.calls[0].info.key))

    def _discard_contended(self) -> None:
        """Discard the last repeat if it is to be recorded and other processes used the CPU."""
        if self.context.recording and contended(self.repeats[-1]) and self.redrawn < MOST_REDRAWS:
            self.redrawn += 1
            self.repeats.pop()

    def _start_repeat(self, number: int) -> RemoteTest:
        remote = self.context.processes.start(self.test, self._script)
        remote.finish()
        # A test that passed once must pass every time.
        for name, phase in remote.phases.items():
            if phase.raw != "passed":
                text = text_of(report_of(phase, self.context.config))
                raise PerfError(
                    f"the test passed in process 1, but {phase.raw} in its {name} phase in process {number}:\n{text}"
                )
        return remote

    def _fork_repeat(self, of: int) -> RemoteTest | None:
        """A recorded repeat in a forked process, as in rounds; `None` if a new process must be started.

        Repeats that are judged against stored ones are few, and started. Many are forked from several parents: the
        repeats of one are alike, as their memory is.
        """
        shown, processes = self.remote.shown, self.context.processes
        if not (self.context.recording and self._forks) or self.test.plan.ranks or shown is None:
            return None
        try:
            parent = processes.parent(self.test, (shown, shown), wait=of > ROUNDS_IN_A_ROW + 1)
            unfrozen = self._unfrozen or any(call.object_walks for call in shown.calls)
            remote = processes.start(self.test, self._script, parent=parent, unfrozen=unfrozen)
            remote.finish()
            if failure(remote, self.context.config) or not remote.results:
                raise ForkError("the test passes in a new process, but fails in a forked process")
            if not unfrozen and object_walks(remote):
                self._unfrozen = True
                return self._fork_repeat(of)
        except WorkerError:
            # Newly started processes then show whether the test itself fails.
            self._forks = False
            return None
        return remote

    def _announce(self, repeat: int, repeats: int | None = None) -> None:
        context, test = self.context, self.test
        known = repeats or test.options.repeats_for(context.settings, recording=context.recording)
        context.progress.start_repeat(repeat, known, test.item.nodeid)

    # The baseline commit

    def measure_base(self, checkout: Checkout, commit: str) -> BaseSide | None:
        """Measure the first process of the baseline commit: its counts, and how it loads.

        `None` if it has no such test.

        Raises
        ------
        SideError
            The test fails there.
        """
        context, test = self.context, self.test
        if not Path(checkout.path(test.item.path)).exists():
            return None
        if checkout.interpreter is None and not self._is_forked:
            context.processes.prepare_parent(test, self.remote.shown)
        where = checkout.in_words(commit)
        no_flops = self._no_flops
        while True:
            forks = self._is_forked and checkout.interpreter is None
            parent = context.processes.first_parent(test, self.remote.shown) if forks else None
            try:
                script = partial(self._commands, flops=not no_flops)
                remote = context.processes.start(test, script, checkout=checkout, cold=True, parent=parent)
                remote.finish()
                if parent is not None and not _is_sound(remote) and not self._spoiled(remote):
                    raise ForkError("the test fails in a forked process")
            except TestAbsent:
                return None
            except WorkerError as error:
                if parent is not None and not isinstance(error, WorkerTimeout):
                    self._is_forked = False
                    continue
                if self._skips(error):
                    continue
                raise SideError(f"the test did not run {where}: {error}", invalid=False) from None
            if not (spoiled := self._spoiled(remote)):
                break
            no_flops = spoiled
        if any(phase.report["outcome"] == "skipped" for phase in remote.phases.values()):
            raise SideSkipped(f"the test is skipped or expected to fail {where}", invalid=False)
        if text := failure(remote, context.config):
            raise SideError(f"the test fails {where}: {last_error(text)}\n{text}", invalid=False)
        if not remote.results or remote.origins is None:
            raise SideError(f"the test makes no perf(...) call {where}", invalid=False)
        for origins, code in ((remote.origins, checkout), (self.remote.origins, None)):
            if mistake := context.revisions.mistaken(origins, code, checkout):
                raise SideError(mistake, invalid=True)
        if differ := context.revisions.one_sided(self.remote.origins, remote.origins, checkout):
            # With a baseline, stored repeats are compared.
            raise SideError(differ, invalid=context.settings.compares_sides)
        repeats = [_repeat(remote, 0.0)]
        record = self._assemble(repeats, no_flops, commit=commit, test_hash=remote.origins.test_hash)
        return BaseSide(record, remote.origins, remote.shown, exemplars(repeats), rank_exemplars(repeats))

    def _assemble(
        self, repeats: Sequence[Repeat], no_flops: str, *, commit: str | None = None, test_hash: str | None = None
    ) -> Record:
        """Join repeats; of the working tree, or of another commit and that one's version of the test."""
        test = self.test
        record = assemble(
            test.item.nodeid,
            test_hash or test.hash,
            replace(
                test.plan,
                period=max(call.info.period for call in repeats[0].calls),
                loops=test.loops.planned({call.info.name: call.info.not_looped for call in repeats[0].calls}),
            ),
            repeats,
            date=self.context.date,
            commit=commit or self.context.revisions.commit,
            machine=self.context.machines.of(repeats[0].calls[0].info.key),
        )
        if not no_flops:
            return record
        return replace(record, integrity=(*record.integrity, unmeasured("no-flops", "FLOPs", no_flops)))


def _is_sound(remote: RemoteTest) -> bool:
    """Whether no phase of a forked process has failed so far, and it is like a new one."""
    return not remote.unlike and all(phase.raw != "failed" for phase in remote.phases.values())


def _repeat(remote: RemoteTest, seconds: float) -> Repeat:
    return Repeat(tuple(_without_failed(result, remote) for result in remote.results), user_values(remote), seconds)


def _without_failed(result: CallResult, remote: RemoteTest) -> CallResult:
    """The result without the times of cases that are tests and failed, most of them after their calls."""
    failed = remote.failed_cases
    cases = (
        replace(case, step_ns=(), problem=case.problem or failed[case.id]) if case.id in failed else case
        for case in result.cases
    )
    return replace(result, cases=tuple(cases))
