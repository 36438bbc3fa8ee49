"""Messages between processes: the channel that carries them and detects a dead peer, and pytest's objects in them."""

from __future__ import annotations

import io
import os
import pickle
import select
import socket
import struct
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pytest

from pytest_perfdl.model.errors import ChannelClosed, ChannelTimeout
from pytest_perfdl.model.record import Better, MeasurementPlan
from pytest_perfdl.system import clocks

# A two-way channel of pickled messages over one socket, which detects a dead peer.
#
# A plain pipe does not: a process forked by the worker inherits the worker's end, so end-of-file comes only when that
# process exits, too. So `receive` checks whether the peer is alive while it waits.


_HEADER = struct.Struct("!Q")
_POLL_SECONDS = 0.1


class Channel:
    """One end of the channel."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._owner = os.getpid()
        self._buffer = bytearray()

    def fileno(self) -> int:
        """Descriptor of the socket, to hand to a child process."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: object) -> None:
        """Send one message, waiting for room.

        Raises
        ------
        ChannelClosed
            When the peer has closed its end, and in a process that was forked off the channel's own.
        """
        self._refuse_forked()
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._socket.sendall(_HEADER.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, *, alive: Callable[[], bool] = lambda: True, deadline: float | None = None) -> Any:
        """Wait for one message.

        Parameters
        ----------
        alive
            Asked while nothing comes; once it is false, what was already sent is still delivered, then the
            channel counts as closed.
        deadline
            A `time.monotonic()` moment.

        Raises
        ------
        ChannelClosed, ChannelTimeout
        """
        self._refuse_forked()
        while True:
            message = self._complete()
            if message is not None:
                return pickle.loads(message)
            was_alive = alive()
            ready, _, _ = select.select([self._socket], [], [], _POLL_SECONDS if was_alive else 0)
            if ready:
                self._take()
            elif not was_alive:
                raise ChannelClosed
            elif deadline is not None and clocks.monotonic() > deadline:
                raise ChannelTimeout

    def received(self) -> Any | None:
        """A message that has come; `None` if none is complete.

        Raises
        ------
        ChannelClosed
            When the peer has closed its end, and everything that it sent was returned.
        """
        while (message := self._complete()) is None:
            if not select.select([self._socket], [], [], 0)[0]:
                return None
            self._take()
        return pickle.loads(message)

    def _take(self) -> None:
        """Read what has come, at least one byte."""
        try:
            chunk = self._socket.recv(1 << 20)
        except OSError as error:
            raise ChannelClosed from error
        if not chunk:
            raise ChannelClosed
        self._buffer += chunk

    def _refuse_forked(self) -> None:
        # Two that talk on one socket would take each other's messages.
        if os.getpid() != self._owner:
            raise ChannelClosed

    def _complete(self) -> bytes | None:
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        message = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return message


def pair() -> tuple[Channel, socket.socket]:
    """A channel for this process and the raw socket for a child to inherit."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs


# Messages about a test between a worker and the orchestrating process.
#
# Commands and replies of a measurement are sent as parts of `Call`, and are opaque here.


Phase = Literal["setup", "call", "teardown"]
PHASES: tuple[Phase, ...] = get_args(Phase)
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
    first: bool = False
    """Whether pytest's own reports are made of this worker, which then finds out which files of the code were opened
    without being noted, too."""
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
    shows: bool = False
    """Whether a forked worker reports how its test loads and runs, as every started one does (`Shown`)."""
    unfrozen: bool = False
    """Whether garbage collections of a forked worker walk over what it was forked with, as in a started one.

    It is frozen otherwise: the first such collection copies every page of it.
    """
    tests: Mapping[str, str] = field(default_factory=dict)
    """Node ids of the tests that are the cases of this one, by id of the case; empty for all other tests."""
    identity: str = ""
    """Identifies what such a test is made of; its cases have identities of their own."""


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


def text_of(report: pytest.CollectReport | pytest.TestReport) -> str:
    """What went wrong, or why something was skipped, without the place that pytest gives a skip."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return report.longreprtext


@dataclass(frozen=True, slots=True)
class CaseReport:
    """One of the phases of a test that is a case is over in the worker."""

    case: str
    phase: PhaseReport


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
    """The same of what only counting and profiling loaded, such as torch's counter of FLOPs, and of what a forked
    process was forked with, but did not need."""
    late: bool = False
    """Whether the test loaded more than a few of the modules only when its first call had begun."""
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
class Unlike:
    """A new process would not be like this one, which was forked: the test is skipped before its first call."""

    reason: str


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
class Plugins:
    """Plugins of pytest that every process of a run loads because they are installed."""

    modules: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    """Packages whose assertions pytest rewrites."""


NO_PLUGINS = Plugins()


@dataclass(frozen=True, slots=True)
class LoadModules:
    """To the process that workers are forked from: load these modules."""

    modules: tuple[tuple[str, str], ...]
    """Third-party modules that the test loads, with their files, in the order of loading."""
    allowed: tuple[tuple[str, str], ...] | None
    """Others that may be loaded by the way; `None` where that is not known yet."""
    preload: tuple[str, ...]
    """As in `WorkerJob`."""
    plugins: Plugins = NO_PLUGINS


@dataclass(frozen=True, slots=True)
class ModulesLoaded:
    """Answer to `LoadModules`."""

    problem: str
    """Why no worker may be forked from there, in one line; empty if one may."""
    loaded: tuple[tuple[str, str], ...] = ()
    """Modules that are loaded now, with their files: those wanted, and what came by the way."""
    roots: tuple[tuple[str, str], ...] = ()
    """Those of them that were imported, the others came with these."""


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


# pytest's objects as messages: warnings and marks are pickled, values in reports are plain data.
#
# Reading a message must not import what the test imports: a warning class of torch would import torch into the
# orchestrating process. Names in modules that are not imported there are read as placeholder classes of the same name.


def dump_warning(message: warnings.WarningMessage, nodeid: str, location: Any) -> RecordedWarning:
    """A recorded warning as a message."""
    category = message.category or type(message.message)
    return RecordedWarning(
        warning=_dumped({"message": message.message, "category": category}),
        text=str(message.message),
        category=category.__name__,
        filename=message.filename,
        lineno=message.lineno,
        line=message.line,
        nodeid=nodeid,
        location=location,
    )


def load_warning(recorded: RecordedWarning) -> warnings.WarningMessage:
    """The warning again; of a class that cannot be had here, one of the same name with the same text."""
    try:
        fields = _load(recorded.warning)
    except Exception:
        category = type(recorded.category, (UserWarning,), {})
        fields = {"message": category(recorded.text), "category": category}
    return warnings.WarningMessage(**fields, filename=recorded.filename, lineno=recorded.lineno, line=recorded.line)


def dump_marks(marks: list[pytest.Mark]) -> tuple[bytes, ...]:
    """Marks as bytes; what a mark carries that cannot be pickled (a local exception class) becomes text."""
    return tuple(
        _dumped(
            (
                mark.name,
                tuple(value if _dumped(value) else str(value) for value in mark.args),
                {name: value if _dumped(value) else str(value) for name, value in mark.kwargs.items()},
            )
        )
        for mark in marks
    )


def load_marks(dumped: tuple[bytes, ...]) -> list[pytest.MarkDecorator]:
    """The marks, ready for `item.add_marker`."""
    loaded = [_load(data, standing_in=True) for data in dumped]
    return [getattr(pytest.mark, name).with_args(*args, **kwargs) for name, args, kwargs in loaded]


def plain(value: object) -> object:
    """The value as numbers, text, lists and dicts of Python's own; everything else as text."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else [plain(part) for part in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def _dumped(value: object) -> bytes:
    """Pickled, or nothing where that does not work both ways."""
    try:
        data = pickle.dumps(value)
        pickle.loads(data)
    except Exception:
        return b""
    return data


def _load(data: bytes, *, standing_in: bool = False) -> Any:
    return _Unpickler(io.BytesIO(data), standing_in).load()


class _Unpickler(pickle.Unpickler):
    """Finds classes in loaded modules only."""

    def __init__(self, data: io.BytesIO, standing_in: bool) -> None:
        super().__init__(data)
        self._standing_in = standing_in

    def find_class(self, module: str, name: str) -> Any:
        """The class, or an empty exception class of its name if that will do."""
        if module in sys.modules:
            return super().find_class(module, name)
        if self._standing_in:
            return type(name, (Exception,), {"__module__": module})
        raise pickle.UnpicklingError(f"{module} is not loaded")
