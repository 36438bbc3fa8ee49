"""The profiled pass: a few steps under torch.profiler with shapes, for causes and never for verdicts on times."""

from __future__ import annotations

import contextlib
import functools
import json
import resource
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pytest_perfdl.machine import state
from pytest_perfdl.measure import compiling, device, process_group
from pytest_perfdl.measure.commands import Profile, Profiled
from pytest_perfdl.measure.environment import profiled_steps, profiler_chatter
from pytest_perfdl.measure.optional import Optional
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.metrics import is_of_device
from pytest_perfdl.model.record import KERNELS_LOST, Finding
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.system.distributions import installed
from pytest_perfdl.system.folders import delete_file
from pytest_perfdl.trace.annotations import MODULE

__tracebackhide__ = device.hides

if TYPE_CHECKING:
    from pytest_perfdl.analysis import ProfileTables
    from pytest_perfdl.analysis.account.parts import StepParts
    from pytest_perfdl.analysis.events.intervals import Steps
    from pytest_perfdl.analysis.ranks import RankActivity
    from pytest_perfdl.machine.utilization import OperatorWork
    from pytest_perfdl.measure.loops import Aside
    from pytest_perfdl.trace import Trace


# Records a profiler range around every module's forward pass, named by the module's path in the model.
#
# The profiler names modules by class and instance number, and only when it records Python stacks, which doubles the
# time of small steps. Ranges from hooks cost some microseconds per module, and have the names in the model:
# "GPT.blocks.0.attn". They are torch's fast ranges: `record_function` goes through the dispatcher and takes 5 us
# whether it is recorded or not, 20 us with cold caches. The profiler reports them as operators; the trace reader
# corrects this.


_WHAT = "the modules of operators"
"""What is not known without them."""


@contextlib.contextmanager
def module_ranges(notes: list[Finding]) -> Iterator[None]:
    """Name the modules that run meanwhile; where that fails, a note says so and the steps go on without.

    Not where torch.compile has compiled something: its guards know that there were no hooks, so the step would be
    compiled anew.
    """
    if compiling.has_compiled():
        yield
        return
    hooks: list[Any] = []
    with Optional("no-modules", _WHAT, notes):
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        ranges = _Ranges(notes)
        hooks.append(register_module_forward_pre_hook(ranges.enter))
        # A forward pass that raises must close its range too.
        hooks.append(register_module_forward_hook(ranges.leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Ranges:
    """The ranges that are open, and the paths of the modules seen so far."""

    def __init__(self, notes: list[Finding]) -> None:
        from torch._C._profiler import _RecordFunctionFast

        self._range = _RecordFunctionFast
        self._notes = notes
        self._failed = False
        self._open: list[tuple[Any, str]] = []
        self._paths: dict[Any, str] = {}
        self._roots: Counter[str] = Counter()

    def enter(self, module: Any, _inputs: object) -> None:
        if self._failed:
            return
        self._failed = True
        with Optional("no-modules", _WHAT, self._notes):
            path = self._path(module)
            opened = self._range(MODULE + path)
            opened.__enter__()
            self._open.append((opened, path))
            self._failed = False

    def leave(self, _module: object, _inputs: object, _output: object) -> None:
        # Once one could not be opened, which of them ends here is not known: all end, from the innermost on.
        while self._open:
            self._open.pop()[0].__exit__(None, None, None)
            if not self._failed:
                return

    def _path(self, module: Any) -> str:
        """The path below the outermost module in which this one was first seen."""
        if module not in self._paths:
            kind = type(module).__name__
            if self._open:
                # Made while its parent ran, or held by it in a way that torch does not know of.
                root = f"{self._open[-1][1]}.{kind}"
            else:
                number = self._roots[kind]
                self._roots[kind] += 1
                root = f"{kind}_{number}" if number else kind
            for name, inner in module.named_modules():
                self._paths.setdefault(inner, f"{root}.{name}" if name else root)
        return self._paths[module]


# Refuses a second torch profiler. Only one can run in a process: where two do, the end of one crashes the other's.


_STARTS = ("_prepare_profiler", "_enable_profiler")
"""What all of torch's profilers call to start, as names in `torch.autograd.profiler`."""
RUNNING = (
    "a torch profiler is already running (started by a fixture, another thread or the test), and only one can run at a "
    "time: stop it before the measured steps"
)
STARTED = (
    "the test starts a torch profiler while its step is profiled, and only one can run at a time: take the "
    "profiler out of the step"
)


def refuse_running() -> None:
    """Check that no profiler is on.

    Raises
    ------
    PerfError
        One is, in any thread.
    """
    import torch
    from torch.autograd import profiler

    here = getattr(torch.autograd, "_profiler_enabled", bool)
    if here() or getattr(profiler, "_is_profiler_enabled", False):
        raise PerfError(RUNNING)


class Refusal:
    """Has no other profiler start, from `begin` until `end`: around code of the test while ours is on."""

    def __init__(self) -> None:
        self._real: dict[str, Any] = {}
        self._tried = False

    def begin(self) -> None:
        """From now on whatever starts a profiler raises `PerfError`, in any thread."""
        from torch.autograd import profiler

        names = vars(profiler)
        self._real = {name: names[name] for name in _STARTS if name in names}
        names.update(dict.fromkeys(self._real, self._refuse))

    def end(self) -> None:
        """Let profilers start again."""
        from torch.autograd import profiler

        vars(profiler).update(self._real)

    def check(self) -> None:
        """Fail if something tried, also where the test caught the exception.

        Raises
        ------
        PerfError
        """
        if self._tried:
            raise PerfError(STARTED)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        self._tried = True
        raise PerfError(STARTED)


HEADROOM = 2**26
"""Bytes of heap made ready for the profiler's own records, of which an event takes less than a kilobyte: touching four
times as many takes up to a second of a process where the system has to clear pages first."""
BEFORE_STEPS = "perfdl: before the steps"
"""Range in a trace in which the profiler makes itself ready."""
_ROOM = 2**28
"""Bytes that the trace of some steps needs at most."""


def run(command: Profile) -> Generator[bool, Aside | None, Profiled]:
    """Profile `steps` steps after `warmup` unrecorded ones and tabulate them.

    A profile that lacks work of the device is recorded once more: CUPTI may lose what begins a session. If that one is
    incomplete, too, it has no figures and a note says why. Of several ranks the last one's findings stay as they are.
    """
    profiled = yield from _profiled(command)
    # All ranks take the same steps.
    complete, _ = process_group.current().agree(every=not _lost(profiled), some=False)
    if complete:
        return profiled
    profiled = yield from _profiled(command)
    if command.ranks or not (lost := _lost(profiled)):
        return profiled
    text = f"two profiles are incomplete ({lost}): kernels, operators and their counts are not judged, times are"
    kept = (each for each in profiled.findings if each.level != "invalid")
    return Profiled((), (), {}, None, (), (*kept, Finding("note", KERNELS_LOST, text)), None)


def _lost(profiled: Profiled) -> str:
    """What a profile of a device lacks, in a few words; empty if nothing, and for steps that use none."""
    if profiled.device_busy_ns is None:
        return ""
    return next((each.message for each in profiled.findings if each.level == "invalid"), "")


def _profiled(command: Profile) -> Generator[bool, Aside | None, Profiled]:
    from pytest_perfdl.analysis import profile_tables
    from pytest_perfdl.analysis.account.parts import step_parts, without_delays
    from pytest_perfdl.analysis.account.signatures import step_signatures
    from pytest_perfdl.analysis.efficiency.roofline import step_work
    from pytest_perfdl.analysis.events.steps import whole_steps
    from pytest_perfdl.analysis.overview.device import device_utilization
    from pytest_perfdl.analysis.ranks import activity
    from pytest_perfdl.trace import exemplar

    path = Path(command.scratch) / f"profile-{uuid.uuid4().hex}.json"
    notes: list[Finding] = []
    with module_ranges(notes):
        delays = yield from record(
            path, command.warmup, command.steps, memory=False, stacks=command.stacks, keep_last_result=command.last
        )
    try:
        trace = read_written(path)
        steps_found = whole_steps(trace)
        tables = profile_tables(trace)
        stored: Path | None = None
        if command.exemplar and tables.steps:
            with Optional("no-exemplar", "the trace of one step", notes):
                steps = range(tables.steps)
                # Ranks are shown together in one step, of which they agree by its number: each knows its own times
                # only, and to ask the others for theirs would be communication that the test does not have.
                order = steps if command.ranks else sorted(steps, key=lambda index: tables.step_ns[index])
                picture = exemplar(trace, order[(len(order) - 1) // 2], of_rank=command.ranks)
                if picture is not None:
                    written = path.with_suffix(".trace.json.gz")
                    written.write_bytes(picture)
                    stored = written
        parts: StepParts | None = None
        if command.parts:
            with Optional("no-parts", "the breakdown of the step", notes):
                parts = without_delays(step_parts(trace), delays)
        work: tuple[OperatorWork, ...] = ()
        used: Mapping[str, float] = {}
        with Optional("no-work", "the FLOPs and bytes of operators", notes):
            work = step_work(trace)
            used = device_utilization(trace)
        own: RankActivity | None = None
        if command.ranks:
            with Optional("no-ranks", "the comparison of the ranks", notes):
                own = activity(trace)
    finally:
        delete_file(path, Path(command.scratch))
    traced = device.activity() is not None
    return Profiled(
        step_ns=tables.step_ns,
        rows=tables.rows,
        counts={name: counts for name, counts in tables.counts.items() if traced or not is_of_device(name)},
        device_busy_ns=tables.device_busy_ns if traced else None,
        signatures=step_signatures(trace),
        findings=(*_findings(tables, steps_found, command.steps), *_recorded(trace), *notes),
        exemplar=str(stored) if stored else None,
        parts=parts,
        work=work,
        device=used,
        activity=own,
        traffic=None if own is None else own.traffic,
        classes={} if own is None else _classes(own),
        delay_ns=tuple(delays),
    )


def _classes(own: RankActivity) -> dict[str, float]:
    """What a step of a rank spends on, mean nanoseconds."""
    steps = own.steps
    times = {
        "compute": steps.compute_ns,
        "input": steps.input_ns,
        "host": steps.host_ns,
        "communication": steps.exposed_communication_ns,
    }
    return {name: float(ns.mean()) for name, ns in times.items() if len(ns)}


def read_written(path: Path) -> Trace:
    """The trace that the profiler wrote, which says nothing where it could not.

    Raises
    ------
    PerfError
        When it is missing or incomplete, and there was no room for it.
    """
    from pytest_perfdl.model.errors import TraceError
    from pytest_perfdl.trace import read

    try:
        return read(path)
    except TraceError:
        problem = no_room(path.parent)
        if not problem:
            raise
        raise PerfError(f"the profiler could not write its trace: {problem}") from None


def no_room(folder: Path) -> str:
    """Why there may be too little space for a trace in a directory; empty if there is enough."""
    free = shutil.disk_usage(folder).free
    if free < _ROOM:
        return (
            f"only {format_quantity(free, 'B')} are free in {folder}: free disk space, or set TMPDIR to another "
            "directory"
        )
    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if largest != resource.RLIM_INFINITY and largest < _ROOM:
        return f"the size of files is limited to {format_quantity(largest, 'B')}: raise the limit (ulimit -f)"
    return ""


def record(
    path: Path,
    warmup: int,
    steps: int,
    *,
    memory: bool,
    keep_last_result: bool,
    stacks: bool = False,
    after_step: Callable[[], object] | None = None,
) -> Generator[bool, Aside | None, list[int]]:
    """Run `warmup + steps` steps and write a Chrome trace of the last `steps`, as ProfilerStep ranges, to `path`.

    What `after_step` does belongs to the step's range.

    Returns how long each of the last `steps` waited for a CPU that other processes used, in nanoseconds.
    """
    refuse_running()
    delays, refusal = [], Refusal()
    device.synchronize()
    with profiler_chatter():
        traced = device.activity()
        profiler: _Profiler = (
            _HostProfiler(path, warmup, memory, stacks)
            if traced is None
            else _DeviceProfiler(path, warmup, steps, memory, stacks, traced)
        )
        profiler.start()
    try:
        with profiled_steps(), state.run_delay_reader() as run_delay_ns:
            for index in range(warmup + steps):
                last = index == warmup + steps - 1
                before = run_delay_ns()
                refusal.begin()
                try:
                    yield keep_last_result and last
                finally:
                    refusal.end()
                refusal.check()
                # Device work that outlives its window would be cut off here and carried over there.
                device.synchronize()
                if after_step is not None:
                    after_step()
                delays.append(run_delay_ns() - before)
                profiler.step(last=last)
    finally:
        with profiler_chatter():
            profiler.stop()
    return delays[warmup:]


class _Profiler(Protocol):
    """A profiler over unrecorded warm-up steps and then recorded ones."""

    def start(self) -> None: ...
    def step(self, *, last: bool) -> None: ...
    def stop(self) -> None: ...


class _DeviceProfiler:
    """torch.profiler with a schedule: its warm-up starts the device's tracing, which is slow at first.

    `repeat=1`, since the schedule would otherwise start the next, empty cycle and the export would hold that.
    """

    def __init__(self, path: Path, warmup: int, steps: int, memory: bool, stacks: bool, activity: Any) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        class Profile(profile):
            def stop_trace(self) -> None:
                # After the range of the last step, and also where a step raised.
                process_group.let_collectives_end()
                super().stop_trace()

        def export(finished: Any) -> None:
            finished.export_chrome_trace(str(path))

        self._profiler = Profile(
            activities=[ProfilerActivity.CPU, activity],
            schedule=schedule(wait=0, warmup=warmup, active=steps, repeat=1),
            record_shapes=True,
            profile_memory=memory,
            with_stack=stacks,
            on_trace_ready=export,
        )

    def start(self) -> None:
        self._profiler.start()

    def step(self, *, last: bool) -> None:
        del last  # the schedule knows
        with profiler_chatter():
            self._profiler.step()

    def stop(self) -> None:
        self._profiler.stop()


@functools.cache
def _make_room() -> None:
    """Touch memory and free it again, once in a process, so that the heap has pages to spare.

    The profiler keeps its records in the heap that tensors live in. Without room they cut into the space that
    steps would use again, which then fault in thousands of new pages a step: time that no operator really takes.
    """
    import torch

    torch.ones(HEADROOM, dtype=torch.uint8)


class _HostProfiler:
    """torch.autograd.profiler with step ranges of our own, for steps that use no device.

    torch.profiler would import all of torch._inductor when it starts, a second in every repeat.
    """

    def __init__(self, path: Path, warmup: int, memory: bool, stacks: bool) -> None:
        self._path = path
        self._warmup = warmup
        self._memory = memory
        self._stacks = stacks
        self._index = 0
        self._profiler: Any = None
        self._range: Any = None

    def start(self) -> None:
        _make_room()
        if self._warmup == 0:
            self._begin()

    def step(self, *, last: bool) -> None:
        self._index += 1
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        if last:
            process_group.let_collectives_end()
            with profiler_chatter():
                self._profiler.__exit__(None, None, None)
                self._profiler.export_chrome_trace(str(self._path))
            self._profiler = None
        elif self._index >= self._warmup:
            self._begin()

    def stop(self) -> None:
        if self._profiler is not None:
            # The step raised: there is no trace to export.
            process_group.let_collectives_end()
            if self._range is not None:
                self._range.__exit__(None, None, None)
            self._profiler.__exit__(None, None, None)

    def _begin(self) -> None:
        import torch
        from torch.autograd.profiler import profile, record_function

        if self._profiler is None:
            with profiler_chatter():
                # Allocations are matched to operators by names and order: their shapes would double what is written.
                self._profiler = profile(
                    use_cpu=True, record_shapes=not self._memory, profile_memory=self._memory, with_stack=self._stacks
                )
                self._profiler.__enter__()
            self._describe_ranks()
            # The first record takes milliseconds, which would be the first step's.
            with record_function(BEFORE_STEPS):
                torch.empty(0)
        self._range = record_function(f"ProfilerStep#{self._index}")
        self._range.__enter__()

    @staticmethod
    def _describe_ranks() -> None:
        """Write into the trace which rank this is, as torch.profiler does."""
        import torch

        described = process_group.described()
        if described is not None:
            torch.autograd._add_metadata_json("distributedInfo", json.dumps(described))  # type: ignore[attr-defined]


def _recorded(trace: Trace) -> Generator[Finding, None, None]:
    """What is known of how the installed software records such steps."""
    from pytest_perfdl.analysis.events.operators import doubled_operators
    from pytest_perfdl.analysis.overview.findings import software_problems
    from pytest_perfdl.machine.known_problems import installed_versions

    if doubled := doubled_operators(trace):
        yield Finding("note", "doubled-operators", doubled)
    # One finding: a record keeps one of a kind for each call.
    if lines := software_problems(trace, installed_versions(installed)):
        yield Finding("note", "known-software", "; ".join(lines))


def _findings(tables: ProfileTables, found: Steps, steps: int) -> Generator[Finding, None, None]:
    yield from (each for each in found.findings if each.level == "invalid")
    if tables.steps != steps:
        yield Finding("invalid", "profile-steps", f"the profiler recorded {tables.steps} of {steps} steps")
    if tables.carry_over:
        yield Finding(
            "invalid",
            "carry-over",
            f"the profile contains {plural(tables.carry_over, 'device event')} launched before the profiled "
            "steps: run the test again",
        )
