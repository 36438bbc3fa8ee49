"""What a measurement can do without: where it fails, a note says so, and all else is judged as ever."""

from __future__ import annotations

from types import TracebackType

from pytest_perfdl.model.record import Finding


class Optional:
    """Around a part of a measurement: an exception ends the block and becomes one of the notes.

    Parameters
    ----------
    code
        Of the note.
    what
        What is then missing, as the beginning of a sentence: "FLOPs".
    notes
        Where the note goes.
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
        said = str(error).strip().partition("\n")[0]
        self._notes.append(unmeasured(self._code, self._what, f"{type(error).__name__}: {said}".removesuffix(": ")))
        return True


def unmeasured(code: str, what: str, why: str) -> Finding:
    """The note that something is missing, and why."""
    return Finding("note", code, f"{what} could not be measured ({why}); all else is judged as ever")
