"""Optional parts of a measurement: a failure becomes a note and does not affect other metrics."""

from __future__ import annotations

from types import TracebackType

from pytest_perfdl.model.record import Finding
from pytest_perfdl.model.visible import error_line


class Optional:
    """Context of an optional part: an exception ends the block and becomes a note.

    Parameters
    ----------
    code
        Of the note.
    what
        Name of the part, as the beginning of a sentence: "FLOPs".
    notes
        List to which the note is added.
    """

    def __init__(self, code: str, what: str, notes: list[Finding]) -> None:
        self._code = code
        self._what = what
        self._notes = notes

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._notes.append(unmeasured(self._code, self._what, error_line(error)))
        return True


def unmeasured(code: str, what: str, why: str) -> Finding:
    """The note that a part of the measurement is missing, and why."""
    return Finding("note", code, f"{what} could not be measured ({why}); other metrics are not affected")
