"""The cases of a table: opened, timed and freed one after the other, as commands ask for them."""

from __future__ import annotations

import bisect
import contextlib
import functools
import gc
import itertools
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
    TimeCase,
)
from pytest_perfdl.measure.global_state import GlobalState
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
_SAID = 200
"""Characters of an error's text."""

Step = Callable[[], object]
"""One call of a case."""


class CaseProgram:
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
    seed
        Of all random generators, before every case.
    """

    def __init__(
        self,
        conversation: Conversation,
        open_case: Callable[[str], Step],
        *,
        work_of: Callable[[str], CaseWork | None],
        check: Callable[[object], None],
        seed: int,
    ) -> None:
        self._conversation = conversation
        self._open_case = open_case
        self._work_of = work_of
        self._check = check
        self._seed = seed
        self._binding = state.Binding()
        self._step: Step | None = None
        self._loops = 1
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
            while True:
                command = self._conversation.command()
                if isinstance(command, Finish):
                    before.restore()
                    self._conversation.answer(self._finished())
                    return
                if isinstance(command, OpenCase):
                    self._step = None
                    before.restore()
                    if command.core is not None:
                        self._binding.bind(command.core)
                    self._conversation.answer(self._open(command))
                elif isinstance(command, TimeCase):
                    self._conversation.answer(self._time(command))
                elif isinstance(command, DescribeCases):
                    self._step = None
                    self._conversation.answer(self._describe(command, before))
                else:
                    raise TypeError(f"unknown command {command!r}")
        finally:
            self._step = None
            self._binding.free()

    def _finished(self) -> Reply:
        notes: tuple[Finding, ...] = ()
        if self.tracer:
            said = f"{self.tracer} is active in the measured process and slows down Python"
            notes = (Finding("invalid", "tracer", said),)
        return Compiled(used=False, compile_ns=0, recompiles=0, graph_breaks=0, findings=notes)

    def _open(self, command: OpenCase) -> CaseOpened:
        seed_everything(self._seed)
        # Of what earlier cases left: not all objects, which takes longer than most cases.
        gc.collect(1)
        try:
            step = self._open_case(command.case)
            self._check(step())
            pilot = not command.loops
            work = self._work_of(command.case) if pilot else None
            if work is not None:
                work = replace(work, dtype=_element_type(step))
            self._loops = _calibrate(step) if pilot else command.loops
            _steps(step, self._loops, command.warmup)
            if not pilot:
                self._step = step
                return CaseOpened(loops=self._loops)
            call_ns = min(_steps(step, self._loops, _TRIES)) / self._loops
            if call_ns < LEAST_CALL_NS:
                spent, least = format_quantity(call_ns, "ns"), format_quantity(LEAST_CALL_NS, "ns")
                return CaseOpened(problem=f"a call takes {spent}, less than {least}, which is too short to be timed")
        except (Exception, PerfError) as error:
            return CaseOpened(problem=_said(error))
        self._step = step
        return CaseOpened(loops=self._loops, work=work)

    def _time(self, command: TimeCase) -> CaseTimed:
        assert self._step is not None, "no case is open"
        helpers, walks = Helpers.now(), state.object_walks()
        try:
            taken = _steps(self._step, self._loops, command.steps)
        except (Exception, PerfError) as error:
            return CaseTimed((), _said(error))
        children, threads = Helpers.now().since(helpers)
        self.object_walks += state.object_walks() - walks
        self.had_children |= children
        self.had_threads |= threads
        self.had_device |= device.current() is not None
        return CaseTimed(taken)

    def _describe(self, command: DescribeCases, before: GlobalState) -> CasesDescribed:
        """What the calls run, from one profile of them all: starting a profiler takes longer than most cases."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return CasesDescribed({}, {})
        from torch.profiler import ProfilerActivity, profile, record_function

        profiled_pass.refuse_running()
        activities = [ProfilerActivity.CPU, *filter(None, [device.activity()])]
        with profile(activities=activities, acc_events=True) as profiler:
            for place, case in enumerate(command.cases):
                before.restore()
                seed_everything(self._seed)
                with contextlib.suppress(Exception, PerfError):
                    step = self._open_case(case)
                    with record_function(f"{_RANGE}{place}"):
                        step()
                        device.synchronize()
                    del step
        events = sorted(profiler.events() or (), key=lambda event: event.time_range.start)
        on_host = [event.device_type == torch.autograd.DeviceType.CPU for event in events]
        ranges = [each for each, host in zip(events, on_host, strict=True) if host and each.name.startswith(_RANGE)]
        starts = [event.time_range.start for event in events]
        operators: dict[str, dict[str, int]] = {}
        kernels: dict[str, int] = {}
        for whole in ranges:
            case = command.cases[int(whole.name.removeprefix(_RANGE))]
            own = operators.setdefault(case, {})
            first, end = (
                bisect.bisect_left(starts, moment) for moment in (whole.time_range.start, whole.time_range.end)
            )
            for event, host in zip(events[first:end], on_host[first:end], strict=True):
                if not host:
                    # Ranges, the ones above among them, are on the device's timeline, too.
                    is_range = getattr(event, "is_user_annotation", event.name.startswith(_RANGE))
                    is_kernel = not is_range and not event.name.startswith(("Memcpy", "Memset"))
                    kernels[case] = kernels.get(case, 0) + is_kernel
                elif "::" in event.name:
                    own[event.name] = own.get(event.name, 0) + 1
        return CasesDescribed({case: dict(sorted(own.items())) for case, own in operators.items()}, kernels)


def _steps(step: Step, loops: int, count: int) -> tuple[int, ...]:
    """Nanoseconds of so many steps, each of `loops` calls; the device is waited for at the end of each."""
    taken = []
    calls, used = range(loops), device.current()
    device.synchronize()
    for _ in itertools.repeat(None, count):
        start = perf_counter_ns()
        for _ in calls:
            step()
        if used is not None:
            used.synchronize()
        taken.append(perf_counter_ns() - start)
    return tuple(taken)


def _calibrate(step: Step) -> int:
    """Double the number of calls until a step takes long enough."""
    loops = 1
    while loops < MOST_LOOPS and min(_steps(step, loops, _TRIES)) < LEAST_STEP_NS:
        loops *= 2
    return loops


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


def _said(error: BaseException) -> str:
    """What a case raised, in one line."""
    return visible(error_line(error))[:_SAID]
