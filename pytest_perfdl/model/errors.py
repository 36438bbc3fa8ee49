"""Every exception that the package raises for what may go wrong, in one tree.

    PerfdlError                     one line for people says what is wrong, where, and what to do
    +-- InputError                  what was given cannot be used; also a ValueError
    |   +-- TraceError, ScalingError, SelectionError, SourceError
    |   +-- BaselineError, RecordError (NewerRecordError), RunFileError, LogError, OutcomeError
    |   +-- ConstantsError, MissingConstant (MissingMachineConstant), NotApplicable, CycleError
    +-- CommandError, ReportError, ChromeTraceError, RunFailed
    +-- CheckoutError, SideError (SideSkipped)
    |                               the other side of a comparison cannot be had, or measured
    +-- WorkerError                 a process that measures
        +-- WorkerDied (TestAbsent), WorkerTimeout, StepsTooLong, ForkError, ChannelClosed, ChannelTimeout

How a *test* fails is pytest's own kind of failure: see `failures`. Importing this imports nothing.
"""

from __future__ import annotations


class PerfdlError(Exception):
    """What went wrong; the message is one line for people, and what follows it are details."""


class InputError(PerfdlError, ValueError):
    """A file, an option or an argument cannot be used."""


class WorkerError(PerfdlError):
    """A process that measures cannot go on."""


class TraceError(InputError):
    """A trace cannot be read; the message is one line for people."""


class ScalingError(InputError):
    """Points cannot be read, fitted or predicted from; the message is one line for people."""


class SelectionError(InputError):
    """A selection cannot be understood or holds nothing; the message is one line for people."""


class SourceError(InputError):
    """There is nothing to compare in a source; the message is one line for people."""


class BaselineError(InputError):
    """A baseline cannot be read or written; the message is one line that names the file and what to do."""


class RecordError(InputError):
    """A stored record cannot be used; the message is one line for people."""


class NewerRecordError(RecordError):
    """A stored record is of a schema that only a newer version reads."""


class RunFileError(InputError):
    """A run file cannot be used; the message is one line that begins with its name."""


class LogError(InputError):
    """The file cannot be used; the message is one line that names it."""


class OutcomeError(InputError):
    """Data is not what a run of a suite left; the message is one line for people."""


class ConstantsError(InputError):
    """Nothing can be measured here for this trace; the message is one line for people."""


class MissingConstant(InputError):
    """A constant that a prediction rests on is not known; the message says which, and how to give it."""

    @property
    def in_python(self) -> str:
        """The message for those who give constants in a test."""
        return str(self)


class MissingMachineConstant(MissingConstant):
    """The same of a constant of the machine.

    Parameters
    ----------
    what
        What is not known.
    given
        What would tell it.
    name
        The constant, where it is a single one.
    """

    def __init__(self, what: str, given: str = "it", name: str = "") -> None:
        super().__init__(f"{what}: give {given} with --machine{f' {name}=...' if name else ''}")
        self._in_python = f"{what}: give {given} with machine=Machine({f'{name}=...' if name else ''})"

    @property
    def in_python(self) -> str:
        """As `Machine`'s parameter."""
        return self._in_python


class NotApplicable(InputError):
    """The graph has nothing that a transform could change; the message says what is missing."""


class CycleError(InputError):
    """The tasks of a graph wait for each other in a circle; the message names one of them."""


class CommandError(PerfdlError):
    """The command cannot go on; the message is one line for people."""


class ReportError(PerfdlError):
    """The report cannot be written; the message is one line for people."""


class ChromeTraceError(PerfdlError):
    """An exemplar cannot be drawn; the message is one line for people."""


class RunFailed(PerfdlError):
    """The suite cannot be measured; the message is one line for people."""


class CheckoutError(PerfdlError):
    """A revision cannot be checked out or set up; the message is one line for people."""


class SideError(PerfdlError):
    """A side cannot be measured or did not run its own code; the first line says why."""

    def __init__(self, message: str, *, invalid: bool) -> None:
        super().__init__(message)
        self.invalid = invalid
        """Whether what was measured means nothing, rather than that nothing was measured."""


class SideSkipped(SideError):
    """The side has the test and does not run it: by a skip, or as its xfail mark expects."""


class WorkerDied(WorkerError):
    """The worker ended without finishing its test; the message says how, with the end of its output."""


class TestAbsent(WorkerDied):
    """The worker's side has no such test."""

    __test__ = False


class WorkerTimeout(WorkerError):
    """The worker did not finish in time; the message holds where it stood."""


class StepsTooLong(WorkerError):
    """The worker cannot finish in time; the message says why, and which settings help, in one line."""


class ForkError(WorkerError):
    """Workers cannot be forked; the message says why, in one line."""


class ChannelClosed(WorkerError):
    """The other side is gone; nothing more will come."""


class ChannelTimeout(WorkerError):
    """Nothing came before the deadline."""
