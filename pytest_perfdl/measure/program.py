"""Executes commands around the step of a test, and completes results that are not computed yet."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import statistics
import sys
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from pytest_perfdl.machine import state
from pytest_perfdl.machine.state import Helpers, run_delay_reader
from pytest_perfdl.measure import compiling, counted_pass, device, memory_pass, profiled_pass, timed_pass
from pytest_perfdl.measure.commands import (
    Attribute,
    Calibrate,
    Calibrated,
    Compiled,
    Count,
    Counted,
    Finish,
    Profile,
    Reply,
    Settle,
    Settled,
    Time,
)
from pytest_perfdl.measure.compiling import Totals
from pytest_perfdl.measure.flushing import Flush
from pytest_perfdl.measure.injected_delay import Delay
from pytest_perfdl.measure.loops import NOTHING, Aside, Steps, annotated
from pytest_perfdl.measure.process_group import ONE_PROCESS, Ranks
from pytest_perfdl.model.record import RECOMPILED, Finding
from pytest_perfdl.system import clocks
from pytest_perfdl.system.clocks import perf_counter_ns
from pytest_perfdl.trace.annotations import SETUP

__tracebackhide__ = device.hides

Answer = TypeVar("Answer", bound=Reply)

# Results of steps that are not computed yet, so that the time of the step is not that of its work.


_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_ITERATORS = (map, filter, zip)
_LATER = ("realize", "materialize")
"""Methods that compute what an object stands for."""
_MOST = 100
"""Elements of a container that are looked at."""
_DEPTH = 3


def pending(result: object, depth: int = _DEPTH) -> str:
    """Why a result is not computed yet, in a few words; empty if it is, as far as can be seen."""
    kind = type(result)
    if isinstance(result, concurrent.futures.Future) or f"{kind.__module__}.{kind.__qualname__}" in _FUTURES:
        return "a future"
    if isinstance(result, _ITERATORS):
        return f"a {kind.__name__} object, which does no work until it is iterated"
    if isinstance(result, _FUNCTIONS):
        return "a function that is still to be called"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(result, torch.Tensor) and (found := _tensor(torch, result)):
        return found
    if any(callable(getattr(kind, name, None)) for name in _LATER):
        return f"a {kind.__name__} that is not computed yet"
    if depth and (inner := _inner(result, torch)) is not None:
        return next(filter(None, (pending(each, depth - 1) for each in inner)), "")
    return ""


_FUTURES = frozenset(
    (
        *("asyncio.futures.Future", "_asyncio.Future", "asyncio.tasks.Task", "_asyncio.Task"),
        *("torch.jit.Future", "multiprocessing.pool.AsyncResult", "multiprocessing.pool.MapResult"),
    )
)


def _tensor(torch: Any, tensor: Any) -> str:
    """Why a tensor has no values yet; empty if it has."""
    name = type(tensor).__name__
    if tensor.device.type in ("meta", "lazy", "xla"):
        return f"a tensor of the device {tensor.device.type!r}, whose values are not computed"
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor of torch.func that is still wrapped"
    if name in ("FakeTensor", "FunctionalTensor", "UninitializedParameter", "UninitializedBuffer"):
        return f"a {name}, which has no values"
    return ""


def _inner(result: object, torch: Any) -> list[object] | None:
    """What a result holds, at most `_MOST` values; `None` for what is not looked into, such as modules."""
    if isinstance(result, Mapping):
        held: Iterable[object] = result.values()
    elif isinstance(result, (tuple, list, set, frozenset)):
        held = result
    elif torch is not None and isinstance(result, torch.nn.Module):
        return None
    elif isinstance(getattr(result, "__dict__", None), dict) or hasattr(type(result), "__slots__"):
        if isinstance(result, (type, types.ModuleType)):
            return None
        slots = getattr(type(result), "__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        held = [*vars(result).values()] if hasattr(result, "__dict__") else []
        held = [*held, *(getattr(result, name, None) for name in names if not name.startswith("__"))]
    else:
        return None
    return [each for _, each in zip(range(_MOST), held, strict=False)]


# Executes commands around the step of a test.
#
# A loop over function calls, a loop in the test (`perf.steps`) and a training loop that only calls back (`perf.step`)
# all drive the same program, which runs one pass after another (`loops.Steps`).


CALIBRATING = 5
"""Steps that are tried with each number of calls; the fastest counts."""
SURELY = 10
"""Times the wanted length of a step after which two tries are enough."""
SETTLED_WITHIN = 0.05
"""Warm-up ends when the medians of two successive blocks differ by less."""


class Conversation(Protocol):
    """Where commands come from and answers go: another process, or a script in this one."""

    def command(self) -> object:
        """Wait for the next command."""
        ...

    def answer(self, reply: Reply) -> None:
        """Answer the last command."""
        ...

    def step_done(self) -> None:
        """Note that a step of several ranks is over."""
        ...


class Program:
    """The steps of one `perf(...)` call, as commands ask for them.

    Parameters
    ----------
    reset
        Called before every pass, not timed.
    iterates
        Whether steps wait for data.
    prepares
        Whether something that must not count happens before each step. The device is then synchronized
        around every step, since only so can the two be told apart.
    delay
        What slows every step down on purpose once the warm-up is over; by default nothing does.
    threads
        Intra-op threads that times are kept under; by default nobody asks.
    ranks
        The other processes that run the step, which take as many steps as this one.
    flush
        Empties caches before each step of the warm-up, and each timed and profiled one; by default nothing does.
    cold
        Whether this process found the compiler's caches empty.
    finished
        Told when everything that was asked for has been measured.
    """

    def __init__(
        self,
        conversation: Conversation,
        *,
        reset: Callable[[], object] | None = None,
        iterates: bool = False,
        prepares: bool = False,
        delay: Delay | None = None,
        threads: int | None = None,
        ranks: Ranks = ONE_PROCESS,
        flush: Flush | None = None,
        cold: bool = False,
        finished: Callable[[Program], None] = lambda _: None,
    ) -> None:
        self._conversation = conversation
        self._reset = reset
        self._iterates = iterates
        self.prepares = prepares
        """Whether something happens before steps that must not count, as far as is known."""
        self._delay = delay or Delay(0.0)
        self._threads = threads
        self._ranks = ranks
        self._flush = flush
        self._flushes = False
        """Whether steps of the present pass have caches emptied."""
        self._cold = cold
        self._warm_up: Totals | None = None
        """What was compiled when timing began."""
        self._recompiles = 0
        self._tell_finished = finished
        self._pending = ""
        self.notes: list[Finding] = []
        """On how the step was called."""
        self.annotating = False
        """Whether the profiler is on; waiting and preparing are then annotated in the trace."""
        self.passes = 0
        """Number of passes that were begun: before each, this process waited for a command."""
        self.loops = 1
        """Number of function calls in the current step."""
        self._loops = 1
        """Number of function calls in timed steps and their warm-up; a profiled step has one call."""
        self.taken_ns: list[int] = []
        """What every timed step took, including all its calls."""
        self.step_ns = 0
        """Lower quartile of the times of the timed steps, including all calls of a step; set after timing."""
        self.finished = False
        """Whether every requested measurement is complete."""
        self.had_children = False
        """Whether child processes existed during the timed steps."""
        self.had_threads = False
        """Whether other threads of this process ran during the timed steps."""
        self.had_device = False
        self.tracer = ""
        """The tracer that was active in Python during the timed steps."""
        self.object_walks = 0
        """How often the timed steps walked over all objects of the process."""
        self.loaded: tuple[str, ...] = ()
        """Modules that were imported during profiled or counted steps."""

    def returned(self, result: object) -> None:
        """Take note of a result that is kept: of profiled steps, since looking at it takes a while."""
        if self.annotating:
            self._pending = pending(result)

    def left_undone(self, what: str) -> None:
        """Take note of work that a profiled step has not done when it ends, unless its result tells of some."""
        self._pending = self._pending or what

    def flush(self) -> None:
        """Empty caches after what was prepared for a step, if its pass wants that."""
        if self._flush is not None and self._flushes:
            self._flush()

    @property
    def timed_loops(self) -> int:
        """Number of function calls in a timed step."""
        return self._loops

    @property
    def call_ns(self) -> float:
        """What one call took in the timed steps."""
        return self.step_ns / self._loops

    def steps(self) -> Steps:
        """Run until told to finish."""
        binding, began = state.Binding(), clocks.Moment.now()
        notes: list[Finding] = []
        before = Totals.now(notes)
        try:
            while True:
                command = self._conversation.command()
                if not isinstance(command, Calibrate | Settle) and self._warm_up is None:
                    self._warm_up = Totals.now(notes).since(before)
                self.loops = self._loops if isinstance(command, Time) else 1
                if not isinstance(command, Calibrate | Settle | Time):
                    binding.free()
                elif isinstance(command, Settle) and command.core is not None:
                    binding.bind(command.core)
                self._flushes = isinstance(command, Settle | Time | Profile)
                if self._flush is not None and not isinstance(command, Time):
                    self._flush.free()
                if isinstance(command, Finish):
                    self.finished = True
                    self._tell_finished(self)
                    compiled = self._compiled(Totals.now(notes).since(before))
                    found = (*notes[:1], *self._other_threads(), *_other_clock(began), *self.notes)
                    self._conversation.answer(replace(compiled, findings=found, pending=self._pending))
                    return
                if self._reset is not None:
                    self._reset()
                self._ranks.barrier()
                self.passes += 1
                self._conversation.answer((yield from self._counted(self._execute(command))))
        finally:
            binding.free()

    def _compiled(self, total: Totals) -> Compiled:
        """What torch.compile did in the steps of this call."""
        spent = 0 if self._warm_up is None else self._warm_up.ns
        return Compiled(
            used=bool(total.ns),
            compile_ns=spent,
            recompiles=self._recompiles,
            graph_breaks=total.graph_breaks,
            cold_ns=spent if self._cold else None,
        )

    def _counted(self, steps: Generator[bool, Aside | None, Reply]) -> Generator[bool, Aside | None, Reply]:
        """The same steps; where several ranks take them, each is counted, so that a rank that hangs is noticed."""
        if self._ranks.world_size == 1:
            return (yield from steps)
        aside = None
        while True:
            try:
                last = steps.send(aside)
            except StopIteration as stop:
                reply: Reply = stop.value
                return reply
            aside = yield last
            self._conversation.step_done()

    def _flushed(self, steps: Generator[bool, Aside | None, Answer]) -> Generator[bool, Aside | None, Answer]:
        """The same steps; where caches are emptied, that is part of what prepares a step, and is waited for."""
        if self._flush is None or self.prepares:
            return (yield from steps)
        with contextlib.closing(steps):
            aside: Aside | None = None
            while True:
                try:
                    keep = steps.send(aside)
                except StopIteration as stop:
                    result: Answer = stop.value
                    return result
                device.synchronize()  # with what the step before has launched
                with annotated(SETUP, self.annotating):
                    before = state.Usage.now()
                    self._flush()
                    device.synchronize()
                    spent = state.Usage.now().since(before)
                given = (yield keep) or NOTHING
                aside = replace(given, setup=state.Usage.total([given.setup, spent]))

    def _other_threads(self) -> Iterator[Finding]:
        """A finding if the test changed the number of threads, which is part of the machine ID."""
        torch = sys.modules.get("torch")
        now = self._threads if torch is None else torch.get_num_threads()
        if self._threads is not None and now != self._threads:
            yield Finding(
                "invalid",
                "threads",
                f"the test changed the number of intra-op threads to {now}, but the measurement expects "
                f"{self._threads}: use @pytest.mark.perf(threads={now}) instead",
            )

    def _execute(self, command: object) -> Generator[bool, Aside | None, Reply]:
        if isinstance(command, Calibrate | Settle):
            profiled_pass.refuse_running()
        if isinstance(command, Calibrate):
            return (yield from self._calibrate(command))
        if isinstance(command, Settle):
            self.loops = self._loops = command.loops
            settled = yield from self._flushed(self._settle(command))
            # Not before each block: collections that the steps make due would never come. Nor is anything frozen, which
            # would take from the steps what their collections cost; a forked process copies its memory here.
            gc.collect()
            return settled
        if isinstance(command, Time):
            timing = timed_pass.run(
                command,
                iterates=self._iterates,
                prepares=self.prepares,
                loops=self._loops,
                flush=None if self.prepares else self._flush,
                ranks=self._ranks,
            )
            helpers = Helpers.now()
            result = yield from self._delay.after_each(timing)
            children, threads = Helpers.now().since(helpers)
            self.had_children |= children
            self.had_threads |= threads
            self.had_device |= device.current() is not None
            self._recompiles += len(result.compiles)
            self.tracer = self.tracer or result.tracer
            self.object_walks += result.object_walks
            self.taken_ns += result.step_ns
            self.step_ns = timed_pass.lower_quartile(result.step_ns)
            return result
        self.annotating = True
        loaded = set(sys.modules)
        try:
            if isinstance(command, Profile):
                compiled = compiling.Watch()
                profiling = self._flushed(profiled_pass.run(command))
                profiled = self._delay.mark_injected((yield from self._delay.after_each(profiling, 1 / self._loops)))
                compiled.look("some step")
                if not compiled.seen:
                    return profiled
                note = Finding("note", RECOMPILED, compiling.told(compiled.seen, "profiled"))
                return replace(profiled, findings=(*profiled.findings, note))
            if isinstance(command, Count):
                taken: list[int] = []
                counting = _clocked(counted_pass.run(command), taken)
                counted = yield from self._delay.after_each(counting, 1 / self._loops)
                return replace(counted, step_ns=tuple(taken))
            if isinstance(command, Attribute):
                return (yield from memory_pass.run(command))
        finally:
            self.annotating = False
            self.loaded += tuple(name for name in sys.modules if name not in loaded)
        raise TypeError(f"unknown command {command!r}")

    def _calibrate(self, command: Calibrate) -> Generator[bool, Aside | None, Calibrated]:
        """Double the number of calls until a step takes long enough: powers of two are the same in most runs."""
        self.loops = 1
        while True:
            fastest = sys.maxsize
            for step in range(1, CALIBRATING + 1):
                device.synchronize()
                start = perf_counter_ns()
                aside = (yield False) or NOTHING
                device.synchronize()
                fastest = min(fastest, perf_counter_ns() - start - aside.setup.wall_ns)
                # The first one may load or compile something; of two that are surely long enough a third says nothing.
                if step > 1 and fastest > SURELY * command.least_ns:
                    break
            if fastest >= command.least_ns or self.loops >= command.most:
                return Calibrated(self.loops)
            self.loops *= 2

    def _settle(self, command: Settle) -> Generator[bool, Aside | None, Settled]:
        if not command.most:
            return Settled(0, settled=True, spread=0.0)
        medians: list[float] = []
        recent: tuple[int, ...] = ()
        steps = 0
        spent_ns = 0
        shortest = sys.maxsize
        spread = float("inf")
        alone = self._ranks.world_size == 1
        with run_delay_reader() as run_delay_ns:
            while True:
                compiled_before = compiled = compiling.events()
                durations: list[int] = []
                setups, block_start = 0, perf_counter_ns()
                late = False
                while len(durations) < command.block and not late:
                    delayed, start = run_delay_ns(), perf_counter_ns()
                    aside = (yield False) or NOTHING
                    taken = perf_counter_ns() - start - aside.setup.wall_ns
                    # Other processes may use the CPU while the step has long settled.
                    durations.append(taken - (run_delay_ns() - delayed - aside.setup.run_delay_ns))
                    setups += aside.setup.wall_ns
                    before, compiled = compiled, compiling.events()
                    # The first step says little about the others, and so do those that wait for a compiler.
                    shortest = min(shortest, taken)
                    if steps + len(durations) > 1 and compiled == before:
                        spent_ns += taken
                        if shortest > command.longest_ns and alone:
                            return Settled(steps + len(durations), settled=False, spread=float("inf"), step_ns=shortest)
                    # Ranks agree at the ends of blocks only: between steps, it would change what overlaps.
                    late = alone and spent_ns > command.seconds * 1e9 and len(durations) % command.period == 0
                device.synchronize()
                used = device.current()
                whole = perf_counter_ns() - block_start - setups
                count = len(durations)
                # A host that runs ahead of its device says little about single steps.
                typical = [whole // count] * count if used is not None else durations
                recent = (*recent, *typical)[-2 * command.block :]
                later = typical[1:] if steps == 0 and count > 1 else typical
                steps += count
                medians.append(statistics.median(typical))
                if len(medians) > 1:
                    spread = medians[-1] / max(medians[-2], 1) - 1
                quiet = compiling.events() == compiled_before
                settled = steps >= command.least and quiet and abs(spread) < SETTLED_WITHIN
                if used is not None:
                    spent_ns += max(0, whole - sum(durations))
                late = late or steps >= command.most or spent_ns > command.seconds * 1e9
                settled, late = self._ranks.agree(every=settled, some=late or shortest > command.longest_ns)
                if settled or late:
                    self._delay.fix(recent)
                    return Settled(steps, settled=settled, spread=spread, step_ns=int(statistics.median(later)))


def _other_clock(began: clocks.Moment) -> Iterator[Finding]:
    """A finding if the clock that steps were timed with is not the system's."""
    if wrong := clocks.Moment.now().disagreement(began):
        yield Finding("invalid", "clock", wrong)


def _clocked(steps: Generator[bool, Aside | None, Counted], taken: list[int]) -> Generator[bool, Aside | None, Counted]:
    """The same steps; adds what the host took for each to `taken`, in nanoseconds."""
    aside: Aside | None = None
    with run_delay_reader() as run_delay_ns:
        while True:
            try:
                last = steps.send(aside)
            except StopIteration as stop:
                counted: Counted = stop.value
                return counted
            delayed, start = run_delay_ns(), perf_counter_ns()
            aside = yield last
            setup = (aside or NOTHING).setup
            waited = run_delay_ns() - delayed - setup.run_delay_ns + setup.wall_ns
            taken.append(perf_counter_ns() - start - waited)
