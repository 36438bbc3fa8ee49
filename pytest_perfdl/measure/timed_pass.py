"""The timed pass: steps in blocks, without the profiler, synchronizing the device around blocks only.

Synchronizing around every step would hide causes of regressions: lost launch-ahead of the CPU, and waits in `.item()`.
On a device single steps are timed by events on the stream, which need no synchronization: a step is what the stream
does from the end of the step before. The last step of a block also has what other streams do after that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_perfdl.machine import reference_load, state
from pytest_perfdl.machine.processors import least_quota
from pytest_perfdl.measure import compiling, device
from pytest_perfdl.measure.commands import Block, Time, Timed
from pytest_perfdl.measure.optional import Optional
from pytest_perfdl.measure.process_group import ONE_PROCESS, Ranks
from pytest_perfdl.model.record import Finding
from pytest_perfdl.model.units import plural
from pytest_perfdl.stats.quantiles import quantile
from pytest_perfdl.system.clocks import perf_counter_ns

__tracebackhide__ = device.hides

if TYPE_CHECKING:
    from pytest_perfdl.measure.loops import Aside

_WORTH_ASKING_NS = 100_000
"""Shortest step about which the scheduler is asked."""
_IDLE_WAIT_NS = 100_000
"""Waiting for a device that is idle takes about 10 µs, and no longer than this."""
_NO_EVENTS = "no-events"
_REFERENCE_RUNS = 3
"""Runs of the reference load before the steps and again after them: with their warm-ups about 40 ms in all."""


class _Clock(Protocol):
    """Marks moments between steps without disturbing them."""

    def mark(self, step: int = 0) -> None:
        """Mark a moment, which is the end of a step if `step` is its number."""
        ...

    def wait(self) -> None:
        """Wait until all that was started before the last mark has ended."""
        ...

    def without(self, work: Callable[[], object]) -> state.Usage:
        """Do something before a step that belongs to none, and give what the host used up for it."""
        ...

    def durations_ns(self) -> list[int]:
        """Time of every step since the mark before it; called after `wait`."""
        ...

    def delays_ns(self) -> list[int]:
        """How much of each of these other processes used the CPU; empty where it is not known."""
        ...


class _HostClock:
    """The host's clock: right when every operator runs on the host.

    For each step it also asks the scheduler how long other processes used the CPU, and whether something was compiled.
    Asking takes 2 µs, between the steps; a step that is short is not asked about, since being interrupted, or a
    compilation, makes a step long.
    """

    def __init__(self, run_delay_ns: Callable[[], int], compiled: compiling.Watch) -> None:
        self._run_delay_ns = run_delay_ns
        self._compiled = compiled
        self._known_delay = run_delay_ns()
        self._start = 0
        self._durations: list[int] = []
        self._delays: list[int] = []

    def mark(self, step: int = 0) -> None:
        now = perf_counter_ns()
        if step:
            duration = now - self._start
            self._durations.append(duration)
            asks = duration >= _WORTH_ASKING_NS
            self._delays.append(self._delay() if asks else 0)
            if asks:
                self._compiled.look(f"step {step}")
        self._start = perf_counter_ns()

    def wait(self) -> None:
        pass

    def without(self, work: Callable[[], object]) -> state.Usage:
        used = _used_by(work)
        self._delay()
        self._start = perf_counter_ns()
        return used

    def durations_ns(self) -> list[int]:
        return self._durations

    def delays_ns(self) -> list[int]:
        return self._delays

    def _delay(self) -> int:
        before, self._known_delay = self._known_delay, self._run_delay_ns()
        return self._known_delay - before


class _WaitingClock(_HostClock):
    """The host's clock, which waits for the device before every mark.

    For devices without timing events, and where what is done between steps must not count.
    """

    def __init__(self, used: device.Device, run_delay_ns: Callable[[], int], compiled: compiling.Watch) -> None:
        super().__init__(run_delay_ns, compiled)
        self._used = used

    def mark(self, step: int = 0) -> None:
        self._used.synchronize()
        super().mark(step)

    def without(self, work: Callable[[], object]) -> state.Usage:
        def ended() -> None:
            work()
            self._used.synchronize()

        return super().without(ended)


class _DeviceClock:
    """Events on the current stream: what the device saw, resolution about 0.5 µs.

    A stream that the current one does not wait for may work on after the last mark: that belongs to the last step.
    """

    def __init__(self, used: device.Device, compiled: compiling.Watch) -> None:
        self._used = used
        self._compiled = compiled
        self._steps: list[tuple[Any, Any]] = []
        """Events at the begin and the end of each."""
        self._last: Any = None
        self._late = 0
        """Nanoseconds that other streams took longer than the current one."""

    def mark(self, step: int = 0) -> None:
        begin, self._last = self._last, self._used.record_event()
        if step:
            self._steps.append((begin, self._last))
            self._compiled.look(f"step {step}")

    def without(self, work: Callable[[], object]) -> state.Usage:
        used = _used_by(work)
        self.mark()
        return used

    def wait(self) -> None:
        self._last.synchronize()
        begun = perf_counter_ns()
        self._used.synchronize()
        late = perf_counter_ns() - begun
        self._late = late if late > _IDLE_WAIT_NS else 0

    def durations_ns(self) -> list[int]:
        durations = [self._used.elapsed_ns(begin, end) for begin, end in self._steps]
        durations[-1] += self._late
        return durations

    def delays_ns(self) -> list[int]:
        return []


def run(
    command: Time,
    *,
    iterates: bool,
    prepares: bool,
    loops: int = 1,
    flush: Callable[[], object] | None = None,
    ranks: Ranks = ONE_PROCESS,
) -> Generator[bool, Aside | None, Timed]:
    """Time `blocks` blocks of `block` steps, each of `loops` calls, between two looks at the machine.

    Ranks begin every block together, and wait for each other when it is over; each one's time of the block is its own.
    `flush` runs before every step and belongs to none: on a device it is launched ahead, as steps are.

    See `Program` for the flags.
    """
    notes: list[Finding] = []
    reference_before = _reference_ns(command.opens, notes)
    steps: list[int] = []
    waits: list[int] = []
    delays: list[int] = []
    blocks = []
    compiled, walks_before = compiling.Watch(), state.object_walks()
    busy_before, state_before = state.Busy.now(ranks.groups), state.State.now()
    with state.run_delay_reader() as run_delay_ns:
        for number in range(1, command.blocks + 1):
            asides: list[Aside | None] = []
            flushes: list[state.Usage] = []
            device.synchronize()
            ranks.barrier()
            clock = _clock(run_delay_ns, compiled, notes, synchronized=prepares)
            before = state.Usage.now()
            clock.mark()
            for step in range(1, command.block + 1):
                if flush is not None:
                    flushes.append(clock.without(flush))
                asides.append((yield command.last and number == command.blocks and step == command.block))
                clock.mark((number - 1) * command.block + step)
            clock.wait()
            after = state.Usage.now()
            ranks.barrier()
            setups = [aside.setup if aside else state.NO_USAGE for aside in asides]
            used = after.since(before).since(state.Usage.total([*setups, *flushes]))
            taken = [whole - setup.wall_ns for whole, setup in zip(clock.durations_ns(), setups, strict=True)]
            blocks.append(
                Block(
                    steps=command.block * loops,
                    # What a device does for a flush passes on its own clock.
                    wall_ns=used.wall_ns if flush is None else sum(taken),
                    cpu_ns=used.cpu_ns,
                    system_ns=used.system_ns,
                    run_delay_ns=used.run_delay_ns,
                    minor_faults=used.minor_faults,
                )
            )
            steps += taken
            waits += [aside.wait_ns if aside else 0 for aside in asides]
            # A device's clock knows of no delays.
            delays += [waited - setup.run_delay_ns for waited, setup in zip(clock.delays_ns(), setups, strict=False)]
    walks = state.object_walks() - walks_before
    notes += _oversubscribed(len(ranks.groups))
    surroundings = state.State.now().since(state_before)
    busy = state.Busy.now(ranks.groups)
    return Timed(
        step_ns=tuple(steps),
        wait_ns=tuple(waits) if iterates else (),
        delay_ns=tuple(delays),
        blocks=tuple(blocks),
        compiles=tuple(compiled.seen),
        load=None if busy is None else busy.since(busy_before),
        tracer=state.active_tracer(),
        reference_before=reference_before,
        reference_after=_reference_ns(command.closes, notes),
        surroundings=surroundings,
        findings=tuple(notes),
        loops=loops,
        object_walks=walks,
    )


def _used_by(work: Callable[[], object]) -> state.Usage:
    before = state.Usage.now()
    work()
    return state.Usage.now().since(before)


def _oversubscribed(ranks: int) -> list[Finding]:
    """A note if the step, or the ranks on this machine, have more threads than there are CPUs for them."""
    torch = sys.modules.get("torch")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = 1 if torch is None else torch.get_num_threads()
    quota = least_quota(Path("/"))
    if max(ranks, 1) * threads <= min(cores, quota or cores):
        return []
    each = f" with {plural(threads, 'thread')} each" if threads > 1 else ""
    who = f"{plural(ranks, 'rank')}{each}" if ranks else plural(threads, "thread")
    room = plural(cores, "CPU") if quota is None or quota >= cores else f"a CPU quota of {quota:g}"
    share = "shares" if threads == 1 and ranks <= 1 else "share"
    text = f"{who} {share} {room}, so their times include waiting for a CPU"
    return [Finding("note", "oversubscribed", text)]


def _reference_ns(wanted: bool, notes: list[Finding]) -> tuple[int, ...]:
    """Time the reference load while the device is idle too."""
    if not wanted:
        return ()
    device.synchronize()
    with Optional("no-reference", "machine speed", notes), state.run_delay_reader() as run_delay_ns:
        return reference_load.reference_ns(_REFERENCE_RUNS, run_delay_ns)
    return ()


def lower_quartile(values: tuple[int, ...]) -> int:
    """The 25 % quantile with linear interpolation (numpy's default, Hyndman-Fan type 7), rounded.

    >>> lower_quartile((40, 10, 30, 20, 50))
    20
    """
    return round(quantile(values, 0.25))


def _clock(
    run_delay_ns: Callable[[], int], compiled: compiling.Watch, notes: list[Finding], *, synchronized: bool
) -> _Clock:
    """What times the steps of a block; a note says where that hides something."""
    used = device.current()
    if used is None:
        return _HostClock(run_delay_ns, compiled)
    if not synchronized and used.times_events:
        return _DeviceClock(used, compiled)
    if not (synchronized or any(note.code == _NO_EVENTS for note in notes)):
        text = f"events of {used.name} have no times, so every step was waited for: what the CPU launches ahead is lost"
        notes.append(Finding("note", _NO_EVENTS, text))
    return _WaitingClock(used, run_delay_ns, compiled)
