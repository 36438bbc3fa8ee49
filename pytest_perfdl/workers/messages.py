"""Messages about a test between a worker and the orchestrating process.

Commands and replies of a measurement are sent as parts of `Call`, and are opaque here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_perfdl.model.record import Better, MeasurementPlan

Phase = Literal["setup", "call", "teardown"]
RawOutcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What a worker is started for."""

    options: Mapping[str, Any]
    path: str
    nodeid: str
    plan: MeasurementPlan
    """The run shape."""
    scratch: str
    """A folder for files that are too large for the channel."""
    key_extra: tuple[str, ...]
    """Context names that belong to the key."""
    preload: tuple[str, ...] = ()
    """Modules to import before pytest starts.

    pytest rewrites the assertions of what its plugins import later, module by module, and where Python writes no
    bytecode (`-B`, usual in containers) it does so again in every process, for seconds.
    """
    own: str = ""
    """Folder of the code that is to be measured; empty where nothing else could be loaded."""
    foreign: str = ""
    """Folder of the other side's code, of which nothing may be loaded; empty where there is no other side."""
    names: tuple[str, ...] = ()
    """Top-level names of the repository's code."""
    deeper: tuple[str, ...] = ()
    """Top-level names of what else the repository has, which may be another's: stubs, vendored packages."""
    watch: bool = False
    """Whether to find out which files of the code were opened without being noted."""
    side: str = ""
    """Which alternative of a `perf.compare` this worker runs; empty for all other measuring."""
    inject: float = 0.0
    """Fraction by which every step is slowed down on purpose; 0 for none."""
    attribute: bool = False
    """Whether every allocation is recorded from before the test's module is imported on."""
    cold: bool = False
    """Whether the compiler's caches are empty."""
    rank_timeout: float = 120.0
    """Seconds that the collectives of a test with ranks may take."""
    unfrozen: bool = False
    """Whether garbage collections of a forked worker walk over what it was forked with, as in a started one.

    It is frozen otherwise: the first such collection copies every page of it.
    """


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """One of pytest's three phases is over in the worker."""

    phase: Phase
    raw: RawOutcome
    """The outcome before xfail marks were applied: the orchestrator applies them to its own verdict."""
    report: Mapping[str, Any]
    """pytest's report, in its serializable form."""
    properties: Sequence[tuple[str, object]]
    marks: tuple[bytes, ...]
    """Marks that the test was given since the last phase, pickled."""
    opaque: bool = False
    """Whether what went wrong was a value that can only travel as text, such as a fixture that was not found."""


@dataclass(frozen=True, slots=True)
class ExtraReport:
    """A report of another kind, such as a subtest's."""

    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedWarning:
    """A warning that the worker caught."""

    warning: bytes
    """Its instance and class, pickled; empty where they cannot be."""
    text: str
    category: str
    """Name of the class."""
    filename: str
    lineno: int
    line: str | None
    nodeid: str
    location: tuple[str, int, str] | None


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The test called `perf(...)`; the worker now takes commands until told to finish."""

    call: object


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to the last command."""

    value: object


@dataclass(frozen=True, slots=True)
class UserMetric:
    """`perf.metric(...)`; `call` is the name of the call it followed."""

    call: str
    name: str
    value: float
    unit: str
    better: Better


@dataclass(frozen=True, slots=True)
class ExpectationSent:
    """What a test expects (`perf.compare(...).assert_...`, `assert_scaling`, `assert_whatif`): judged after it."""

    expectation: object


@dataclass(frozen=True, slots=True)
class Origins:
    """Whose code was loaded when the test was over: proof that a side ran its own."""

    own: tuple[str, ...]
    """Modules from the job's own folder."""
    foreign: tuple[str, ...]
    """Modules from the other side's folder."""
    test_hash: str
    """Of the test as this side has it."""
    outside: tuple[tuple[str, str], ...] = ()
    """Modules of the repository's names that are in neither folder, with their files."""
    files: tuple[str, ...] = ()
    """Files in the job's own folder that were loaded or read, by their paths from there."""
    borrowed: tuple[str, ...] = ()
    """Files in the other side's folder that were loaded or read, by their paths from there."""
    unnoted: tuple[str, ...] | None = None
    """Files in the job's own folder that were opened, by this process or another one, and are not among `files`, and
    modules that are neither there nor installed, by their full paths; `None` if that is unknown."""
    elsewhere: tuple[str, ...] = ()
    """Files of code (modules, scripts, libraries) that are of neither folder, of nothing installed, of no plugin and
    not of the system, by their full paths."""
    packages: tuple[str, ...] = ()
    """Top-level names of the modules that were loaded from outside it, without the standard library's."""
    prefix: str = ""
    """`sys.prefix` of the process: its environment."""


@dataclass(frozen=True, slots=True)
class CallShown:
    """What one `perf(...)` call of a started process showed in its timed steps."""

    name: str
    step_ns: int
    """Lower quartile of the timed steps."""
    children: bool
    """Whether there were child processes: alive after the steps, or ended during them."""
    threads: bool
    """Whether other threads of the process ran during the steps."""
    device: bool
    """Whether a device was in use."""
    tracer: str
    """The tracer that was active during the steps; empty for none."""
    object_walks: int = 0
    """How often the steps walked over all objects of the process (`state.object_walks`), or the process itself did with
    `gc.get_objects`."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a started process showed of how its test loads and runs.

    The two of them, one of each side, decide whether rounds may be forked and pinned to a core.
    """

    modules: tuple[tuple[str, str], ...] = ()
    """Third-party modules that the test loaded, with their files, in the order of loading."""
    besides: tuple[tuple[str, str], ...] = ()
    """The same of what only counting and profiling loaded, such as torch's counter of FLOPs."""
    environment: tuple[str, ...] = ()
    """Names of environment variables that had changed when a third-party module was imported."""
    hooks: tuple[str, ...] = ()
    """What was put into Python's importing by others than Python, pytest and us."""
    reads: tuple[tuple[str, str], ...] = ()
    """Third-party modules, each with a file of the side that was opened while the module was loaded."""
    calls: tuple[CallShown, ...] = ()
    start_seconds: float = 0.0
    """From the beginning of the process to its first call."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The worker cannot run the test at all; `text` says why."""

    text: str
    absent: bool = False
    """Whether the reason is that there is no such test."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The test called `pytest.exit(...)`, or raised KeyboardInterrupt: the whole run must stop."""

    reason: str
    returncode: int | None
    interrupted: bool


@dataclass(frozen=True, slots=True)
class LoadModules:
    """To the process that workers are forked from: load these modules."""

    modules: tuple[tuple[str, str], ...]
    """Third-party modules that the test loads, with their files, in the order of loading."""
    allowed: tuple[tuple[str, str], ...]
    """Others that may be loaded by the way."""
    preload: tuple[str, ...]
    """As in `WorkerJob`."""


@dataclass(frozen=True, slots=True)
class ModulesLoaded:
    """Answer to `LoadModules`."""

    problem: str
    """Why no worker may be forked from there, in one line; empty if one may."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a worker; with it come the descriptors of its channel, of its output, and of the file for its stacks."""

    import_path: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Forked:
    """Answer to `Fork`."""

    pid: int


@dataclass(frozen=True, slots=True)
class Reap:
    """Wait for a forked worker that has ended."""

    pid: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """Answer to `Reap`."""

    code: int
    """Exit code, or the negative number of the signal that killed it."""
