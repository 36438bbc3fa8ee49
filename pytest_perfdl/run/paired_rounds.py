"""Paired rounds: one fresh process of each side, which alternate in blocks of timed steps.

Both processes are alive at once and time their steps in alternating blocks, so that other load on the machine affects
both; which one runs first is random in every round. If two processes do not fit into memory, they run one after the
other, in the same random order.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import pytest

from pytest_perfdl.analysis.account.parts import StepParts
from pytest_perfdl.judge.ranks import profiled_ranks
from pytest_perfdl.judge.round_data import ProfiledRanks, Round, TimedCases, orders
from pytest_perfdl.judge.work import StepWork
from pytest_perfdl.machine.device_state import DeviceUse, DeviceUses, DeviceWatch
from pytest_perfdl.machine.proc import free_memory, kills_for_memory
from pytest_perfdl.measure.commands import (
    TIMING,
    CallInfo,
    CallResult,
    ExplainedResult,
    SideResult,
    explanation,
    one_side,
    table_pilot,
    table_side,
)
from pytest_perfdl.measure.sizes import Pace, seconds_of_steps
from pytest_perfdl.measure.timed_pass import lower_quartile
from pytest_perfdl.model.errors import ForkError, SideError, WorkerDied, WorkerTimeout
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import Call, Finding
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.run.assemble import (
    UserValue,
    case_times,
    side_mixes,
    side_parts,
    side_rows,
    side_values,
    table_call,
)
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.context import RunContext
from pytest_perfdl.workers.channel import Shown, text_of
from pytest_perfdl.workers.checkout import Checkout
from pytest_perfdl.workers.forks import ForkParent
from pytest_perfdl.workers.remote_test import RemoteTest, Script, report_of

FREE_MEMORY = 0.1
"""Fraction of the memory that must be free while two processes run at once."""
_HIDDEN = 2.0
_HIDDEN_NS = 1e6
"""A step of the first process that took this many times as long as in a round, and this much more (1 ms), had a cost
that the round lacks. Others on the machine can double a time too: the round is only measured another way then."""
BUSY = "busy or unavailable"
"""In the message of a device that accepts a single process, and has another one."""
_NO_ROOM = ("out of memory", BUSY)
"""In messages of torch's allocators, and of such devices."""
_SEVERAL_RANKS = "the ranks of a process group are launched together"
_NOT_SHOWN = "the first process of each side did not report how it ran the test"


class _KilledForMemoryError(Exception):
    """The system killed one of two workers for lack of memory."""


class _ForkedDiedError(Exception):
    """A forked worker died, although a newly started one did not."""


@dataclass(frozen=True, slots=True)
class RoundSide:
    """One side of a comparison."""

    name: str
    checkout: Checkout | None = None
    """The code; `None` for the working tree."""
    against: Checkout | None = None
    """Code of the opposite side, which must not be loaded."""
    variant: str = ""
    """Which alternative of a `perf.compare`."""
    alternative: str = ""
    """What the test calls that alternative."""

    @property
    def label(self) -> str:
        """The name of the side in messages."""
        return self.alternative or {"base": "baseline", "head": "current"}[self.name]

    def tell(self, problem: str) -> str:
        """A problem of this side, with the name of the alternative that has it."""
        return f"{self.alternative}: {problem}" if self.alternative else problem


class Rounds:
    """Measures paired rounds of a test.

    Parameters
    ----------
    context, test
        The run, and the test to measure.
    base, head
        The two sides, baseline and current.
    seed
        Of the random order and CPU.
    shown
        Reports of the first process of both sides (base, head); `None` if there was none. Without them, processes are
        neither forked nor pinned.
    loops
        Of a table: calls in a step of each case that both sides can measure, the same for both.
    """

    def __init__(
        self,
        context: RunContext,
        test: PerfTest,
        base: RoundSide,
        head: RoundSide,
        *,
        seed: int,
        shown: tuple[Shown, Shown] | None = None,
        loops: Mapping[str, int] | None = None,
    ) -> None:
        self._context = context
        self._test = test
        self._sides = (base, head)
        self._seed = seed
        self._loops = dict(loops or {})
        self._cases: tuple[str, ...] = ()
        """Cases of the round, in their order."""
        self._crashed: dict[str, str] = {}
        """Cases that ended a process, with how, in one line."""
        self._profiled = False
        self._fits = True
        self._both = True
        """Whether the processes of both sides ran at the same time in the last round."""
        self._core: int | None = None
        self._shown = shown
        self.start_reason = _why_started(context, test, base, shown)
        """Why processes are not forked, in one line; empty if they are."""
        self.pin_reason = _why_free(shown, test, context.settings.pin)
        """Why processes are not pinned, in one line; empty if they are."""
        calls = [call for side in shown or () for call in side.calls]
        self._unfrozen = any(call.object_walks or call.children for call in calls)
        """Whether nothing is frozen in forked processes, because the steps of a side walk over all objects, or a child
        process of theirs may."""
        self._whole = any(call.children or (call.threads and test.plan.threads == 1) for call in calls)
        """Whether each side is timed in one turn, because others work for its steps while the other side runs."""
        self._pace = _pace(context.settings.budget, shown)
        self._watch = DeviceWatch.of(os.environ) if any(call.device for call in calls) else None
        self.uses: list[DeviceUses] = []
        """What happened on the GPUs in each round while either side was timed; empty where that is not known."""
        self.results: list[SideResult] = []
        """Results of all processes of both sides so far."""

    @property
    def withheld(self) -> str:
        """Why the last round says nothing, in a few words; empty if it does."""
        return self.uses[-1].withheld if self.uses else ""

    @property
    def size_note(self) -> str:
        """How the number of steps was reduced for the time budget, in one line; empty if it was not."""
        return self._pace.note

    @property
    def how(self) -> str:
        """How the last round was run, in one line."""
        start = f"new processes ({self.start_reason})" if self.start_reason else "forked processes"
        garbage = "nothing frozen" if self._unfrozen else ""
        core = f"not pinned ({self.pin_reason})" if self.pin_reason else "pinned to one CPU"
        turns = "interleaved" if self._both else "processes ran one after the other (not enough memory for both)"
        if self._whole and self._both:
            turns = "each side in one turn (others work for the step)"
        sensed = DeviceUses.joined(self.uses).sensed
        return "; ".join(filter(None, (start, garbage, core, turns, sensed, self.size_note, unseen(self.results))))

    def measure(self, number: int, *, profiled: bool = False, cases: Set[str] = frozenset()) -> Round:
        """Measure one paired round; `number` counts from 1.

        Parameters
        ----------
        profiled
            Whether both sides also profile some steps, after the timed ones.
        cases
            Of a table: which of its cases both sides measure, in an order that is random in every round.

        Raises
        ------
        SideError
            The test fails on one side, or both sides ran the same code.
        WorkerError
            A worker dies or hangs.
        """
        self._profiled = profiled
        self._turns: dict[str, list[DeviceUse]] = {side.name: [] for side in self._sides}
        groups = {case: each.group for case, each in self._test.cases.items()}
        self._cases = case_order(self._seed, number, cases, groups)
        drawn = orders(self._seed, number)[-1]
        order = self._sides if drawn == "base first" else self._sides[::-1]
        self._core = None if self.pin_reason else _drawn_core(self._seed, number)
        remotes, forked = self._without_crashes(order)
        if number == 1 and (hidden := self._hidden(remotes)):
            self.pin_reason, self._core, self._unfrozen, self._whole = self.pin_reason or hidden, None, True, True
            remotes, forked = self._measured(order)
        base, head = self._sides
        for side in order:
            self._check(side, remotes[side.name], number)
            self.results += remotes[side.name].results
        self._learn(remotes.values())
        mixes = side_mixes(remotes[base.name].results)
        if self._watch is not None:
            self.uses.append(DeviceUses(*(DeviceUse.joined(self._turns[side.name]) for side in self._sides)))
        return Round(
            order=drawn,
            base=self._values(remotes[base.name], mixes),
            head=self._values(remotes[head.name], mixes),
            kernels_base=side_rows(remotes[base.name].results),
            kernels_head=side_rows(remotes[head.name].results),
            parts_base=side_parts(remotes[base.name].results),
            parts_head=side_parts(remotes[head.name].results),
            work_base=work_of(remotes[base.name].results),
            work_head=work_of(remotes[head.name].results),
            ranks_base=_ranks_of(remotes[base.name].results),
            ranks_head=_ranks_of(remotes[head.name].results),
            cases=_cases_of(self._sides, remotes, self._crashed) if cases else None,
            start="forked" if forked else "started",
            core=self._core,
            together=self._both,
        )

    def _without_crashes(self, order: Sequence[RoundSide]) -> tuple[dict[str, RemoteTest], bool]:
        """As `_measured`; where a case of a table ends its process, once more without it on both sides."""
        while True:
            try:
                return self._measured(order)
            except WorkerDied as error:
                if error.case not in self._cases:
                    raise
                self._crashed[error.case] = str(error).partition("\n")[0]
                self._cases = tuple(case for case in self._cases if case != error.case)

    def _measured(self, order: Sequence[RoundSide]) -> tuple[dict[str, RemoteTest], bool]:
        """A round's processes, by side, and whether they were forked."""
        forked = self._forked(order)
        return (self._run(order, None), False) if forked is None else (forked, True)

    def _hidden(self, remotes: Mapping[str, RemoteTest]) -> str:
        """A line if a step of the first process took much longer than in this round, on either side; else empty.

        Then a setting of rounds may take a cost from the step: turns, during which others work on for the side that
        waits, one core, or frozen objects. The first processes have none of these.
        """
        for side, first in zip(self._sides, self._shown or (), strict=False):
            before = {call.name: call.step_ns for call in first.calls}
            for result in filter(_times_steps, remotes[side.name].results):
                now, then = lower_quartile(result.timed.step_ns), before.get(result.info.name, 0)
                if then > _HIDDEN * now + _HIDDEN_NS:
                    took = [format_quantity(each, "ns") for each in (then, now)]
                    return f"a step took {took[0]} in the first process, {took[1]} in a round"
        return ""

    def _values(self, remote: RemoteTest, mixes: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        machine = self._context.machines.of(remote.results[0].info.key) if remote.results else None
        return side_values(remote.results, user_values(remote), machine, mixes)

    def _forked(self, order: Sequence[RoundSide]) -> dict[str, RemoteTest] | None:
        """Both sides forked from one parent; `None` if processes must be started instead, from now on."""
        if self.start_reason or self._shown is None:
            return None
        try:
            remotes = self._run(order, self._context.processes.parent(self._test, self._shown))
        except (ForkError, _ForkedDiedError) as error:
            self.start_reason = str(error)
            return None
        if any(failure(remote, self._context.config) for remote in remotes.values()):
            self.start_reason = "the test passes in a new process, but fails in a forked process"
            return None
        if not self._unfrozen and any(map(object_walks, remotes.values())):
            self._unfrozen = True
            return self._forked(order)
        return remotes

    def _run(self, order: Sequence[RoundSide], parent: ForkParent | None) -> dict[str, RemoteTest]:
        """Both at once, or one after the other if they do not fit into memory together."""
        self._pace.begin()
        remotes = self._together(order, parent) if self._fits else None
        self._both = remotes is not None
        if remotes is None:
            self._fits = False
            self._pace.begin()
            remotes = {}
            for side in order:
                remotes |= self._alternating([side], parent)
        return remotes

    def _together(self, order: Sequence[RoundSide], parent: ForkParent | None) -> dict[str, RemoteTest] | None:
        """Both at once; `None` if they do not fit into memory together."""
        try:
            remotes = self._alternating(order, parent)
        except _KilledForMemoryError:
            return None
        said = [failure(remote, self._context.config) for remote in remotes.values()]
        if any(refusal in text for refusal in _NO_ROOM for text in said):
            return None
        return remotes

    def _alternating(self, order: Sequence[RoundSide], parent: ForkParent | None) -> dict[str, RemoteTest]:
        """Start the workers of these sides, and run their steps interleaved until both are done."""
        remotes: dict[str, RemoteTest] = {}
        killed = kills_for_memory()
        try:
            for side in order:
                remotes[side.name] = self._start(side, parent)
            for remote in remotes.values():
                remote.advance()
            # Both have come to their first step now: from here on only one of them runs at a time.
            while any(remote.waits for remote in remotes.values()):
                if len(remotes) > 1 and free_memory() < FREE_MEMORY:
                    self._fits = False
                for name, remote in remotes.items():
                    if remote.waits:
                        self._take_turn(name, remote, len(remotes))
        except WorkerDied as error:
            if len(remotes) > 1 and kills_for_memory() > killed:
                raise _KilledForMemoryError from None
            if parent is not None:
                raise _ForkedDiedError(f"the forked process failed: {str(error).splitlines()[0]}") from None
            raise
        finally:
            # Where one has died, the other would hold its memory until the run ends.
            for remote in remotes.values():
                remote.end(gently=True)
        return remotes

    def _take_turn(self, name: str, remote: RemoteTest, alive: int) -> None:
        """Let a side go on; what happens on the GPUs meanwhile is noted if it is timed."""
        watch = self._watch
        before = None if watch is None else watch.read()
        remote.take_turn()
        if watch is not None and before is not None and isinstance(remote.command, TIMING):
            self._turns[name].append(watch.use(before, watch.read(), alive * max(1, self._test.plan.ranks)))

    def _start(self, side: RoundSide, parent: ForkParent | None) -> RemoteTest:
        return self._context.processes.start(
            self._test,
            self._script,
            checkout=side.checkout,
            against=side.against,
            side=side.variant,
            parent=parent,
            unfrozen=self._unfrozen,
        )

    def _script(self, info: CallInfo) -> Script:
        plan = replace(self._test.plan, period=info.period)
        if info.cases:
            return table_side(plan, info, self._cases, self._loops, core=self._core)
        return one_side(
            plan,
            info,
            str(self._context.processes.scratch),
            profiled=self._profiled,
            pace=self._pace,
            core=self._core,
            loops=self._test.loops,
            whole=self._whole,
        )

    def _learn(self, remotes: Iterable[RemoteTest]) -> None:
        """Record the step time of the slower side, for the number of steps in later rounds."""
        taken: dict[str, int] = {}
        for remote in remotes:
            for result in filter(_times_steps, remote.results):
                name = result.info.name
                taken[name] = max(taken.get(name, 0), lower_quartile(result.timed.step_ns))
        for name, step_ns in taken.items():
            self._pace.timed(name, step_ns)

    def _check(self, side: RoundSide, remote: RemoteTest, number: int) -> None:
        """Check that the test passed, and that the side ran its own code."""
        text = failure(remote, self._context.config)
        if text:
            said = f"the test failed on the {side.label} side in paired round {number}: {last_error(text)}"
            raise SideError(f"{said}\n{text}", invalid=False)
        # The two alternatives of a `perf.compare` share their code.
        if side.variant:
            return
        if mistake := self._context.revisions.mistaken(remote.origins, side.checkout, side.against):
            raise SideError(mistake, invalid=True)


def case_order(seed: int, number: int, cases: Set[str], groups: Mapping[str, object]) -> tuple[str, ...]:
    """The order of the cases in a round: random, and the same in both of its processes.

    What a case leaves behind in its process then meets other cases in every round. Those of a group follow each other.
    """
    order = sorted(cases)
    random.Random(f"cases of round {number} of {seed}").shuffle(order)
    places: dict[object, int] = {}
    for place, case in enumerate(order):
        places.setdefault(groups.get(case, case), place)
    return tuple(sorted(order, key=lambda case: places[groups.get(case, case)]))


def _cases_of(sides: Sequence[RoundSide], remotes: Mapping[str, RemoteTest], crashed: Mapping[str, str]) -> TimedCases:
    """Times of the cases that both sides measured, and what went wrong with others."""
    times, problems = [], dict[str, str]()
    for side in sides:
        remote = remotes[side.name]
        cases = [case for result in remote.results for case in result.cases]
        times.append(case_times(cases))
        failed = {case.id: case.problem for case in cases if case.problem} | remote.failed_cases
        problems |= {case: side.tell(problem) for case, problem in failed.items()}
    of_base, of_head = ({name: each[name] for name in sorted(times[0].keys() & times[1])} for each in times)
    return TimedCases(of_base, of_head, {**problems, **crashed})


def _why_started(context: RunContext, test: PerfTest, base: RoundSide, shown: tuple[Shown, Shown] | None) -> str:
    """Why processes are not forked, in one line; empty if they are."""
    if test.plan.ranks:
        return _SEVERAL_RANKS
    if context.settings.start == "fresh":
        return "--perf-start=fresh"
    if base.checkout is not None and base.checkout.interpreter is not None:
        return "the two sides have different interpreters"
    return "" if shown else _NOT_SHOWN


def _why_free(shown: tuple[Shown, Shown] | None, test: PerfTest, pin: str) -> str:
    """Why the two processes of a round are not pinned to one CPU, in one line; empty if they are."""
    if test.plan.ranks:
        return _SEVERAL_RANKS
    if pin == "off":
        return "--perf-pin=off"
    if shown is None:
        return _NOT_SHOWN
    calls = [call for side in shown for call in side.calls]
    if not calls:
        return _NOT_SHOWN
    if test.plan.threads != 1:
        return f"the test uses {test.plan.threads} threads"
    if any(call.device for call in calls):
        return "the step uses a GPU or another device"
    if any(call.children for call in calls):
        return "the step has child processes"
    if any(call.threads for call in calls):
        return "the step starts threads"
    if sys.platform != "linux":
        return "pinning is supported on Linux only"
    return "" if len(os.sched_getaffinity(0)) > 1 else "only one CPU is available"


def _drawn_core(seed: int, number: int) -> int:
    """The CPU of a round, chosen at random among the allowed ones, independently of the order of the sides."""
    return random.Random(f"core of round {number} of {seed}").choice(sorted(os.sched_getaffinity(0)))


def _pace(budget: float, shown: tuple[Shown, Shown] | None) -> Pace:
    """Numbers of steps that leave time in the budget for the rounds that a verdict needs."""
    if shown is None:
        return Pace(seconds_of_steps(budget, 0.0))
    step_ns: dict[str, int] = {}
    for call in (call for side in shown for call in side.calls):
        step_ns[call.name] = max(step_ns.get(call.name, 0), call.step_ns)
    start = max(side.start_seconds for side in shown)
    return Pace(seconds_of_steps(budget, start), step_ns, start)


def _ranks_of(results: Sequence[SideResult]) -> dict[str, ProfiledRanks]:
    """The ranks of every call of one process."""
    found = {result.info.name: profiled_ranks(result.profiled) for result in results if result.profiled is not None}
    return {call: ranks for call, ranks in found.items() if ranks is not None}


def parts_of(
    context: RunContext, test: PerfTest, side: RoundSide, ranks: Mapping[str, int] | None = None
) -> dict[str, StepParts]:
    """The breakdown of every call's step on one side, with source lines and functions, from one process.

    Parameters
    ----------
    ranks
        Whose breakdown it is, by call, of tests with ranks; by default the first one's.

    Raises
    ------
    SideError
        The test fails on that side, or its worker dies or hangs; verdicts do not depend on this pass.
    """

    def script(info: CallInfo) -> Script:
        plan = replace(test.plan, period=info.period)
        seconds = context.step_seconds
        return explanation(plan, info, str(context.processes.scratch), seconds=seconds, loops=test.loops)

    remote = run_pass(context, test, side, script, "recording Python stacks")
    found = {result.call: _parts_of_rank(result, (ranks or {}).get(result.call, 0)) for result in remote.results}
    return {call: parts for call, parts in found.items() if parts is not None}


def cases_of(context: RunContext, test: PerfTest, side: RoundSide) -> tuple[Call, list[Finding]]:
    """The cases of one alternative of a `perf.compare`, and what is wrong with others, from one process.

    Raises
    ------
    SideError
        The test fails on that side, or its worker dies or hangs.
    """

    def script(info: CallInfo) -> Script:
        plan = replace(test.plan, period=info.period)
        return table_pilot(plan, info, chosen_cases(context, info), seconds=context.settings.budget / 2)

    remote = run_pass(context, test, side, script, "measuring every case")
    return table_call(remote.results)


def chosen_cases(context: RunContext, info: CallInfo) -> list[str]:
    """The cases of a table that --perf-case asks for.

    Raises
    ------
    PerfError
        There are none.
    """
    chosen = list(filter(context.settings.cases.chooses, info.cases))
    if not chosen:
        raise PerfError(f"no case of the table meets --perf-case; the first one is {info.cases[0]}")
    return chosen


def run_pass(
    context: RunContext,
    test: PerfTest,
    side: RoundSide,
    script: Callable[[CallInfo], Script],
    doing: str,
    *,
    attribute: bool = False,
) -> RemoteTest:
    """Run a test on one side in a process that is not of a round: forked if the one before was, and if the test passes.

    Parameters
    ----------
    doing
        What the process is for.
    attribute
        See `Processes.start`.

    Raises
    ------
    SideError
        The test fails on that side, or the process dies or does not end in time.
    """
    start = partial(
        context.processes.start,
        test,
        script,
        checkout=side.checkout,
        against=side.against,
        side=side.variant,
        attribute=attribute,
    )
    where = f"on the {side.label} side while {doing}"
    try:
        if fork := context.processes.last_fork(test):
            with contextlib.suppress(WorkerDied, ForkError):
                remote = start(parent=fork.parent, unfrozen=fork.unfrozen)
                remote.finish()
                if not failure(remote, context.config):
                    return remote
        remote = start()
        remote.finish()
    except WorkerTimeout:
        raise SideError(f"the test did not finish in time {where}", invalid=False) from None
    except WorkerDied as error:
        raise SideError(str(error), invalid=False) from None
    if text := failure(remote, context.config):
        raise SideError(f"the test failed {where}\n{text}", invalid=False)
    return remote


def _parts_of_rank(result: ExplainedResult, rank: int) -> StepParts | None:
    return result.ranks[rank] if rank < len(result.ranks) else result.parts


def work_of(results: Sequence[CallResult | SideResult]) -> dict[str, StepWork]:
    """Work of the operators in one process, by call; empty if no steps were profiled."""
    return {
        result.info.name: StepWork(len(result.profiled.step_ns), result.profiled.work)
        for result in results
        if result.profiled is not None and result.profiled.work
    }


def _times_steps(result: CallResult | SideResult) -> bool:
    """Whether a call timed a step: a table times its cases."""
    return not result.info.cases


def unseen(results: Sequence[CallResult | SideResult]) -> str:
    """Which costs the timed steps of these processes may lack, in one line; empty if there are none."""
    of_steps = [result.timed for result in filter(_times_steps, results)]
    steps = min((len(timed.step_ns) * timed.loops for timed in of_steps), default=0)
    return f"{steps} steps timed in a row: costs that come less often are not seen" if steps else ""


def object_walks(remote: RemoteTest) -> int:
    """How often the timed steps of a process walked over its objects: next to nothing where they are frozen."""
    return sum(result.timed.object_walks for result in remote.results)


def user_values(remote: RemoteTest) -> tuple[UserValue, ...]:
    """Values that the test passed to `perf.metric`."""
    return tuple(UserValue(m.call, m.name, m.value, m.unit, m.better) for m in remote.metrics)


def failure(remote: RemoteTest, config: pytest.Config) -> str:
    """The failure text of the first phase that did not pass; empty if all passed."""
    for phase in remote.phases.values():
        if phase.raw != "passed":
            return text_of(report_of(phase, config)) or f"the test {phase.raw} in its {phase.phase} phase"
    return ""


def last_error(text: str) -> str:
    """The last line marked as error in a failure's text; empty if there is none."""
    return next((line[1:].strip() for line in reversed(text.splitlines()) if line.startswith("E ")), "")
