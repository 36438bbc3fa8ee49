"""All exceptions of the package, in one tree.

    PerfdlError                     the first line says what is wrong, where, and what to do
    +-- InputError                  invalid files, options and arguments; also a ValueError
    |   +-- TraceError (NotATrace), ScalingError, SelectionError
    |   +-- BaselineError, RecordError (OtherSchemaError, ConflictedRecordError), RunFileError
    |   +-- ConstantsError, MissingConstant (MissingMachineConstant)
    |   +-- NotApplicable, CycleError
    +-- CommandError (ApiError), ReportError, ChromeTraceError, RunFailed
    +-- CheckoutError (GitError), SideError (SideSkipped)
    |                               the baseline commit cannot be checked out or measured
    +-- WorkerError                 problems with worker processes
        +-- WorkerDied (TestAbsent), WorkerTimeout, StepsTooLong, ForkError, ChannelClosed, ChannelTimeout

Failures of *tests* are pytest failures: see `failures`. This module imports nothing.
"""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code after Ctrl-C, as of shells."""


class PerfdlError(Exception):
    """Base class; the first line of the message is complete, further lines are details."""


class InputError(PerfdlError, ValueError):
    """A file, an option or an argument is invalid."""


class WorkerError(PerfdlError):
    """A worker process failed."""


class TraceError(InputError):
    """A trace cannot be read; the message is one line."""


class NotATrace(TraceError):
    """A file is something else than a trace; the message is one line.

    Parameters
    ----------
    what
        What it is, such as "a Git LFS pointer".
    """

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what


class ScalingError(InputError):
    """Points cannot be read, fitted or predicted from; the message is one line."""


class SelectionError(InputError):
    """A selection is invalid or empty; the message is one line."""


class BaselineError(InputError):
    """A baseline cannot be read or written; the message is one line that names the file and what to do."""


class RecordError(InputError):
    """A stored record is invalid; the message is one line."""


class OtherSchemaError(RecordError):
    """A stored file has the schema of another version; the message says what to do."""


class ConflictedRecordError(RecordError):
    """A file has an unresolved merge conflict; the message says what to do."""


class RunFileError(InputError):
    """A run file cannot be used; the message is one line that begins with its name."""


class ConstantsError(InputError):
    """Machine rates cannot be read or measured; the message is one line."""


class MissingConstant(InputError):
    """A constant that a prediction needs is missing; the message says which, and how to give it."""

    @property
    def in_python(self) -> str:
        """The message for tests, which pass constants as arguments."""
        return str(self)


class MissingMachineConstant(MissingConstant):
    """A constant of the machine is missing.

    Parameters
    ----------
    what
        The missing value.
    given
        What to give instead.
    name
        Name of the constant, if it is a single one.
    """

    def __init__(self, what: str, given: str = "it", name: str = "") -> None:
        super().__init__(f"{what}: set {given} with --machine{f' {name}=...' if name else ''}")
        self._in_python = f"{what}: set {given} with machine=Machine({f'{name}=...' if name else ''})"

    @property
    def in_python(self) -> str:
        """As `Machine`'s parameter."""
        return self._in_python


class NotApplicable(InputError):
    """The graph has nothing that a transform could change; the message is the reason."""


class CycleError(InputError):
    """The graph has a cycle; the message names one of its tasks."""


class CommandError(PerfdlError):
    """A command failed; the message is one line."""


class ApiError(CommandError):
    """A server refused a request, or does not answer; the message is one line without the token.

    Parameters
    ----------
    status
        Status code of the answer; 0 without an answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ReportError(PerfdlError):
    """The report cannot be written; the message is one line."""


class ChromeTraceError(PerfdlError):
    """The trace of a step cannot be drawn; the message is one line."""


class RunFailed(PerfdlError):
    """The test suite cannot be measured; the message is one line."""


class CheckoutError(PerfdlError):
    """A revision cannot be checked out or set up; the message is one line."""


class GitError(CheckoutError):
    """A git command failed; the message is one line with what git says."""


class SideError(PerfdlError):
    """A side cannot be measured or did not run its own code; the first line is the reason."""

    def __init__(self, message: str, *, invalid: bool) -> None:
        super().__init__(message)
        # Whether the measurement is invalid, rather than absent.
        self.invalid = invalid


class SideSkipped(SideError):
    """The side has the test, but it is skipped or expected to fail there."""


class WorkerDied(WorkerError):
    """The worker exited without finishing its test; the message has the exit code and the end of its output."""

    case = ""
    """The case of a table that it measured; empty if it did not."""


class TestAbsent(WorkerDied):
    """The worker's side has no such test."""

    __test__ = False


class WorkerTimeout(WorkerError):
    """The worker did not finish in time; the message has its stacks."""


class StepsTooLong(WorkerError):
    """The worker cannot finish in time; the message says why, and which settings help, in one line."""


class ForkError(WorkerError):
    """Workers cannot be forked; the message is the reason, in one line."""


class ChannelClosed(WorkerError):
    """The other process closed the connection."""


class ChannelTimeout(WorkerError):
    """No message before the deadline."""
