"""The profiled pass: a few steps under torch.profiler with shapes, for causes and never for verdicts on times."""

from __future__ import annotations

import functools
import json
import resource
import shutil
import uuid
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_perfdl.machine import state
from pytest_perfdl.measure import process_group, second_profiler
from pytest_perfdl.measure.commands import Profile, Profiled
from pytest_perfdl.measure.module_ranges import module_ranges
from pytest_perfdl.measure.optional import Optional
from pytest_perfdl.measure.quiet import profiled_steps, profiler_chatter
from pytest_perfdl.measure.timed_pass import synchronize, uses_device
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import Finding
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.system.folders import delete_file

if TYPE_CHECKING:
    from pytest_perfdl.analysis import ProfileTables
    from pytest_perfdl.analysis.account.parts import StepParts
    from pytest_perfdl.analysis.events.step_times import Steps
    from pytest_perfdl.analysis.ranks import RankActivity
    from pytest_perfdl.machine.utilization import OperatorWork
    from pytest_perfdl.measure.steps import Aside
    from pytest_perfdl.trace import Trace

HEADROOM = 2**26
"""Bytes of heap made ready for the profiler's own records, of which an event takes less than a kilobyte: touching four
times as many takes up to a second of a process where the system has to clear pages first."""
BEFORE_STEPS = "perfdl: before the steps"
"""Range in a trace in which the profiler makes itself ready."""
_ROOM = 2**28
"""Bytes that the trace of some steps needs at most."""


def run(command: Profile) -> Generator[bool, Aside | None, Profiled]:
    """Profile `steps` steps after `warmup` unrecorded ones and tabulate them."""
    from pytest_perfdl.analysis import profile_tables
    from pytest_perfdl.analysis.account.parts import step_parts, without_delays
    from pytest_perfdl.analysis.efficiency.roofline import step_work
    from pytest_perfdl.analysis.events.steps import whole_steps
    from pytest_perfdl.analysis.overview.device_utilization import device_utilization
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
        if command.exemplar:
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
    device = uses_device()
    return Profiled(
        step_ns=tables.step_ns,
        rows=tables.rows,
        op_counts=tables.op_counts,
        kernel_counts=tables.kernel_counts if device else None,
        launch_counts=tables.launch_counts if device else None,
        device_busy_ns=tables.device_busy_ns if device else None,
        h2d_bytes=tables.h2d_bytes if device else None,
        signatures=tables.step_signatures,
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
    second_profiler.refuse_running()
    profiler: _Profiler = (
        _DeviceProfiler(path, warmup, steps, memory, stacks)
        if uses_device()
        else _HostProfiler(path, warmup, memory, stacks)
    )
    delays, refusal = [], second_profiler.Refusal()
    synchronize()
    with profiler_chatter():
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
                synchronize()
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

    def __init__(self, path: Path, warmup: int, steps: int, memory: bool, stacks: bool) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        class Profile(profile):
            def stop_trace(self) -> None:
                # After the range of the last step, and also where a step raised.
                process_group.let_collectives_end()
                super().stop_trace()

        def export(finished: Any) -> None:
            finished.export_chrome_trace(str(path))

        self._profiler = Profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
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
    from pytest_perfdl.analysis.events.doubled import doubled_operators
    from pytest_perfdl.analysis.overview.software import software_problems
    from pytest_perfdl.machine.fitness import installed_version
    from pytest_perfdl.machine.known_problems import installed_versions

    if doubled := doubled_operators(trace).line:
        yield Finding("note", "doubled-operators", doubled)
    # One finding: a record keeps one of a kind for each call.
    if lines := software_problems(trace, installed_versions(installed_version)):
        yield Finding("note", "known-software", "; ".join(lines))


def _findings(tables: ProfileTables, found: Steps, steps: int) -> Generator[Finding, None, None]:
    yield from (each for each in found.findings if each.level == "invalid")
    if tables.steps != steps:
        yield Finding("invalid", "profile-steps", f"the profiler recorded {tables.steps} of {steps} steps")
    if tables.integrity.carry_over:
        yield Finding(
            "invalid",
            "carry-over",
            f"the profile contains {plural(tables.integrity.carry_over, 'device event')} launched before the profiled "
            "steps: run the test again",
        )
