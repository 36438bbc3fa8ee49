"""The file that a long command goes on from: JSON lines, one added when a measurement or a run has ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from pytest_perfdl.model.errors import InputError, OtherSchemaError, RecordError
from pytest_perfdl.model.record_json import Versioned, check_schema, converted

SCHEMA = 1
"""Version of the entries, the only one that is read. Raised when readers would misread the new form."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Log(Generic[_T]):
    """Entries of one type.

    Parameters
    ----------
    path
        The file; it need not exist.
    entry
        Type of the entries, a dataclass.
    command
        The command that writes them.
    search
        What makes entries interchangeable, such as the ends of a search. If there is any, it is the first line.
    """

    path: Path
    entry: type[_T]
    command: str
    search: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> list[_T]:
        """Every entry, in the order in which they were added; none of a file that is not there yet.

        A last line that was cut off while it was written is left out.

        Raises
        ------
        InputError
            The file cannot be read, or is that of another search.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from error
        found = []
        for number, line in enumerate(data[: _complete(data)].splitlines(), start=1):
            try:
                plain = msgspec.json.decode(line)
                if number == 1 and self.search:
                    self._check(plain)
                else:
                    found.append(self._entry(plain))
            except (msgspec.DecodeError, UnicodeError) as error:
                raise InputError(f"{self.path}: line {number} is not JSON ({error})") from error
            except RecordError as error:
                raise InputError(f"{self.path}: line {number} {error}") from error
        return found

    def append(self, entry: _T) -> None:
        """Add an entry, safe on the disk when this returns; a line that was cut off before it goes.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        lines = [{"schema": SCHEMA, **msgspec.to_builtins(entry)}]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                file.seek(0)
                size = _complete(file.read())
                file.truncate(size)
                if not size and self.search:
                    lines.insert(0, {"search": dict(self.search)})
                file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error

    def _check(self, plain: Any) -> None:
        there = plain.get("search") if isinstance(plain, dict) else None
        if not isinstance(there, dict):
            raise RecordError(f"does not begin a log of {self.command}")
        other = [name for name, value in self.search.items() if there.get(name) != value]
        if other:
            raise RecordError(f"begins the log of another search ({', '.join(other)} differ): use another --log")

    def _entry(self, plain: Any) -> _T:
        try:
            check_schema(converted(plain, Versioned).schema, SCHEMA)
            return converted(plain, self.entry)
        except OtherSchemaError:
            raise
        except RecordError as error:
            raise RecordError(f"was not written by {self.command}: it {error}") from None


def _complete(data: bytes) -> int:
    """Bytes of the lines that are complete."""
    return data.rfind(b"\n") + 1
