"""The cases of a table: opened, timed and freed one after the other, as commands ask for them.

A case may be a whole test, whose call is made in the middle of it. So it is run from its beginning to its end, and
takes the commands about it where it makes its call (`CaseProgram.serve`).
"""

from __future__ import annotations

import bisect
import functools
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_perfdl.machine import state
from pytest_perfdl.machine.state import Helpers, seed_everything
from pytest_perfdl.measure import device, profiled_pass
from pytest_perfdl.measure.commands import (
    CaseOpened,
    CasesDescribed,
    CaseTimed,
    Compiled,
    DescribeCases,
    Finish,
    OpenCase,
    Reply,
    Rounds,
    TimeCase,
)
from pytest_perfdl.measure.environment import profiler_chatter
from pytest_perfdl.measure.global_state import GlobalState
from pytest_perfdl.measure.injected_delay import Delay
from pytest_perfdl.measure.loops import LEAST_STEP_NS, MOST_LOOPS
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import CaseWork, Finding
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.model.visible import error_line, visible
from pytest_perfdl.system.clocks import perf_counter_ns

if TYPE_CHECKING:
    from pytest_perfdl.measure.program import Conversation

LEAST_CALL_NS = 200
"""Calling a function that does nothing takes a quarter of this: what is shorter is mostly the loop around it."""
_TRIES = 3
"""Steps that are tried with each number of calls; the fastest counts."""
_RANGE = "perfdl case "
"""Of a case in a profile, followed by its place."""
_MEMORY = "[memory]"
"""The profiler's events of allocators."""
NOTHING = "it measured nothing"
"""The problem of a case whose test made no call."""
_SAID = 200
"""Characters of an error's text."""

Step = Callable[[], object]
"""One call of a case."""
Body = Callable[[int], int]
"""Makes so many calls of a case as one step, and returns what the calls took, in nanoseconds."""


class CaseProgram:
    """Cases that commands open, time and describe; a subclass says how one is run.

    Parameters
    ----------
    seed
        Of all random generators, before every case.
    inject
        Fraction of its own time by which each timed step is slowed down on purpose.
    """

    def __init__(self, conversation: Conversation, *, seed: int, inject: float = 0.0) -> None:
        self._conversation = conversation
        self._seed = seed
        self._delay = Delay(inject)
        self._binding = state.Binding()
        self._opening: OpenCase | None = None
        """The command that is to be answered once the call of the case is known."""
        self._next: object = None
        """The first command that is not about the case; `None` if none came yet."""
        self._described = ""
        """The range of the profile that the call of the case makes, while cases are described."""
        self._finds_loops = True
        """Whether a step has as many calls as it takes to be long enough; else it has one."""
        self.step_ns: list[int] = []
        """What the steps of the case took that were timed."""
        self.loops = 1
        """Calls in each of them."""
        self.had_children = False
        """Whether child processes existed while cases were timed."""
        self.had_threads = False
        """Whether other threads of this process ran meanwhile."""
        self.had_device = False
        self.tracer = ""
        """The tracer that was active in Python."""
        self.object_walks = 0
        """How often the cases walked over all objects of the process."""

    def run(self) -> None:
        """Run until told to finish."""
        before, self.tracer = GlobalState.now(), state.active_tracer()
        try:
            command = self._conversation.command()
            while not isinstance(command, Finish):
                if isinstance(command, OpenCase):
                    before.restore()
                    if command.core is not None:
                        self._binding.bind(command.core)
                    command = self._whole(command)
                elif isinstance(command, DescribeCases):
                    self._conversation.answer(self._describe(command, before))
                    command = self._conversation.command()
                else:
                    raise TypeError(f"unknown command {command!r}")
            before.restore()
            self._conversation.answer(self._finished())
        finally:
            self._binding.free()

    def run_case(self, case: str) -> str:
        """Run a case from its beginning to its end, with one call of `serve`; why that failed, in one line."""
        raise NotImplementedError

    def serve(
        self, body: Body, work: CaseWork | None = None, rounds: Rounds | None = None, definition: str = ""
    ) -> None:
        """Make the calls of the case that commands ask for, until one comes that is not about it.

        Parameters
        ----------
        rounds
            How often the calls are to be made, where the test says it.
        definition
            Identifies what the case is made of, if that is not the test of all cases.

        Raises
        ------
        Exception
            What a call raises. Commands about the case are answered.
        """
        if self._described:
            self.step_ns, self.loops = _call_in_range(body, self._described, rounds)
            return
        assert self._opening is not None, "no case is open"
        opened = self._open(self._opening, body, work, rounds)
        self._answer_opened(replace(opened, definition=definition))
        while not opened.problem and isinstance(command := self._conversation.command(), TimeCase):
            helpers, walks = Helpers.now(), state.object_walks()
            try:
                taken = _steps(self._slowed(body), self.loops, command.steps)
            except (Exception, PerfError) as error:
                self._conversation.answer(CaseTimed((), said(error)))
                raise
            children, threads = Helpers.now().since(helpers)
            self.object_walks += state.object_walks() - walks
            self.had_children |= children
            self.had_threads |= threads
            self.had_device |= device.current() is not None
            self.step_ns += taken
            self._conversation.answer(CaseTimed(taken))
        self._next = None if opened.problem else command

    @property
    def is_described(self) -> bool:
        """Whether the case runs to find out what its call runs."""
        return bool(self._described)

    @property
    def is_pilot(self) -> bool:
        """Whether the case is opened to find out what it is like."""
        return self._opening is not None and not self._opening.loops

    def _whole(self, command: OpenCase) -> object:
        """Run a case; the command after it."""
        self._begin()
        self._opening, self._next = command, None
        problem = self.run_case(command.case)
        if self._opening is not None:
            self._answer_opened(CaseOpened(problem=problem or NOTHING))
        return self._conversation.command() if self._next is None else self._next

    def _begin(self) -> None:
        seed_everything(self._seed)
        # Of what earlier cases left: not all objects, which takes longer than most cases.
        gc.collect(1)

    def _answer_opened(self, opened: CaseOpened) -> None:
        self._opening = None
        self._conversation.answer(opened)

    def _slowed(self, body: Body) -> Body:
        """Steps with the delay at their end, which is a share of each step's own time: no case is alike another."""
        delay = self._delay
        if not delay.share:
            return body

        def slowed(loops: int) -> int:
            taken = body(loops)
            delay.fix([taken])
            start = perf_counter_ns()
            delay.wait()
            return taken + perf_counter_ns() - start

        return slowed

    def _finished(self) -> Reply:
        notes = self._delay.notes
        if self.tracer:
            why = f"{self.tracer} is active in the measured process and slows down Python"
            notes = (*notes, Finding("invalid", "tracer", why))
        return Compiled(used=False, compile_ns=0, recompiles=0, graph_breaks=0, findings=notes)

    def _open(self, command: OpenCase, body: Body, work: CaseWork | None, rounds: Rounds | None) -> CaseOpened:
        """Warm up; in the first process of a side, find out how many calls a step needs."""
        self.step_ns = []
        if rounds is not None:
            self.loops = rounds.calls
            _steps(body, self.loops, rounds.warmup)
            return CaseOpened(loops=self.loops, rounds=rounds)
        self.loops = command.loops or (_calibrate(body) if self._finds_loops else 1)
        _steps(body, self.loops, command.warmup)
        if command.loops:
            return CaseOpened(loops=self.loops)
        tried = _steps(body, self.loops, _TRIES)
        call_ns = min(tried) / self.loops
        if call_ns < LEAST_CALL_NS:
            self.step_ns += tried
            spent, least = format_quantity(call_ns, "ns"), format_quantity(LEAST_CALL_NS, "ns")
            return CaseOpened(problem=f"a call takes {spent}, less than {least}, which is too short to be timed")
        return CaseOpened(loops=self.loops, work=work)

    def _describe(self, command: DescribeCases, before: GlobalState) -> CasesDescribed:
        """What the calls run, from one profile of them all: starting a profiler takes longer than most cases."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return CasesDescribed({}, {}, {})
        from torch.profiler import ProfilerActivity, profile

        profiled_pass.refuse_running()
        activities = [ProfilerActivity.CPU, *filter(None, [device.activity()])]
        with profiler_chatter(), profile(activities=activities, acc_events=True, profile_memory=True) as profiler:
            for place, case in enumerate(command.cases):
                before.restore()
                seed_everything(self._seed)
                self._described = f"{_RANGE}{place}"
                self.run_case(case)
        self._described = ""
        seen = (event for event in profiler.events() or () if event.name != _MEMORY)
        events = sorted(seen, key=lambda event: event.time_range.start)
        on_host = [event.device_type == torch.autograd.DeviceType.CPU for event in events]
        ranges = [each for each, host in zip(events, on_host, strict=True) if host and each.name.startswith(_RANGE)]
        starts = [event.time_range.start for event in events]
        allocated = _allocations(profiler)
        operators: dict[str, dict[str, int]] = {}
        kernels: dict[str, int] = {}
        allocations: dict[str, int] = {}
        for whole in ranges:
            case = command.cases[int(whole.name.removeprefix(_RANGE))]
            own = operators.setdefault(case, {})
            span = whole.time_range.start, whole.time_range.end
            first, end = (bisect.bisect_left(starts, moment) for moment in span)
            allocations[case] = bisect.bisect_left(allocated, span[1]) - bisect.bisect_left(allocated, span[0])
            for event, host in zip(events[first:end], on_host[first:end], strict=True):
                if not host:
                    # Ranges, the ones above among them, are on the device's timeline, too.
                    is_range = getattr(event, "is_user_annotation", event.name.startswith(_RANGE))
                    is_kernel = not is_range and not event.name.startswith(("Memcpy", "Memset"))
                    kernels[case] = kernels.get(case, 0) + is_kernel
                elif "::" in event.name:
                    own[event.name] = own.get(event.name, 0) + 1
        named = {case: dict(sorted(own.items())) for case, own in operators.items()}
        return CasesDescribed(named, kernels, allocations)


class TableProgram(CaseProgram):
    """The cases of one `perf.table(...)` call.

    Parameters
    ----------
    open_case
        Makes the arguments of a case, by its id, and returns its call, a `functools.partial` with them; what it raises
        is the case's problem.
    work_of
        Says what a call of a case has to do, if the test states it; what it raises likewise.
    check
        Rejects a result whose work is not done yet.
    flush
        Empties caches before every call; `None` if calls find what the one before them left.
    """

    def __init__(
        self,
        conversation: Conversation,
        open_case: Callable[[str], Step],
        *,
        work_of: Callable[[str], CaseWork | None],
        check: Callable[[object], None],
        seed: int,
        inject: float = 0.0,
        flush: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(conversation, seed=seed, inject=inject)
        self._flush = flush
        self._finds_loops = flush is None
        self._open_case = open_case
        self._work_of = work_of
        self._check = check

    def run_case(self, case: str) -> str:
        """Run a case from its beginning to its end, with one call of `serve`; why that failed, in one line."""
        try:
            step = self._open_case(case)
            self._check(step())
            work = self._work_of(case) if self.is_pilot else None
            # What a call runs does not include what empties the caches.
            flush = None if self.is_described else self._flush
            body = Calls(step) if flush is None else ColdCalls(step, flush)
            self.serve(body, _work_on(work, step, cold=flush is not None))
        except (Exception, PerfError) as error:
            return said(error)
        return ""


class Calls:
    """Calls a function as often as a step asks for.

    Parameters
    ----------
    keeps
        Whether the result of the last call stays alive, in `result`.
    """

    def __init__(self, fn: Step, *, keeps: bool = False) -> None:
        self._fn = fn
        self._keeps = keeps
        self.result: object = None

    def __call__(self, loops: int) -> int:
        """Nanoseconds of so many calls; the device is waited for at the end."""
        fn, calls, used = self._fn, range(loops), device.current()
        if self._keeps:
            start = perf_counter_ns()
            for _ in calls:
                self.result = fn()
        else:
            start = perf_counter_ns()
            for _ in calls:
                fn()
        if used is not None:
            used.synchronize()
        return perf_counter_ns() - start


class ColdCalls:
    """Calls a function with the caches emptied before every call, which is not measured."""

    def __init__(self, fn: Step, flush: Callable[[], None]) -> None:
        self._calls = Calls(fn)
        self._flush = flush

    def __call__(self, loops: int) -> int:
        """Nanoseconds of so many calls; the device is waited for after each."""
        taken = 0
        for _ in range(loops):
            self._flush()
            device.synchronize()
            taken += self._calls(1)
        return taken


def _steps(body: Body, loops: int, count: int) -> tuple[int, ...]:
    """Nanoseconds of so many steps, each of `loops` calls."""
    device.synchronize()
    return tuple(body(loops) for _ in range(count))


def _call_in_range(body: Body, name: str, rounds: Rounds | None) -> tuple[list[int], int]:
    """Make one call in a range of the profile; where the test says how often, these calls and no other.

    Returns
    -------
    tuple[list[int], int]
        Nanoseconds of every step, and calls in each.
    """
    from torch.profiler import record_function

    if rounds is not None:
        return [*_steps(body, rounds.calls, rounds.warmup + rounds.timed)][rounds.warmup :], rounds.calls
    device.synchronize()  # kernels of the call before would run in the range of this one
    with record_function(name):
        return [body(1)], 1


def _allocations(profiler: Any) -> list[float]:
    """When torch's allocators handed out a block, in microseconds of the profile's events, in order."""
    found = profiler.profiler.kineto_results
    began = found.trace_start_ns()
    taken = (each for each in found.events() if each.name() == _MEMORY and each.nbytes() > 0)
    return sorted((each.start_ns() - began) / 1000 for each in taken)


def _calibrate(body: Body) -> int:
    """Double the number of calls until a step takes long enough."""
    loops = 1
    while loops < MOST_LOOPS and min(_steps(body, loops, _TRIES)) < LEAST_STEP_NS:
        loops *= 2
    return loops


def _work_on(work: CaseWork | None, step: Step, *, cold: bool) -> CaseWork | None:
    """The work that is stated, with what is known of the call."""
    return None if work is None else replace(work, dtype=_element_type(step), cold=cold)


def _element_type(step: Step) -> str:
    """Element types of the floating-point tensors that a call gets, joined by `+`; without any, of the other tensors.

    Products of float32 matrices are rounded on a device whose settings allow it: their type is `tf32`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(step, functools.partial):
        return ""
    found = {each.dtype for each in _tensors((step.args, step.keywords), torch)}
    found = {each for each in found if each.is_floating_point} or found
    names = {str(each).removeprefix("torch.") for each in found}
    names = {"float8" if name.startswith("float8") else name for name in names}
    if device.current() is not None and torch.get_float32_matmul_precision() != "highest":
        names = {"tf32" if name == "float32" else name for name in names}
    return "+".join(sorted(names))


def _tensors(value: object, torch: Any) -> Iterator[Any]:
    """The tensors among arguments, in containers too, and the parameters of modules."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, (Mapping, tuple, list)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each, torch)


def said(error: BaseException) -> str:
    """What a case raised, in one line."""
    return visible(error_line(error))[:_SAID]
