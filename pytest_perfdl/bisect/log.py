"""The file of a search: one measurement a line, written when it ends, so that a search can go on later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_perfdl.bisect.measurements import Measurement, from_json, to_json
from pytest_perfdl.model.errors import LogError, OutcomeError
from pytest_perfdl.system import line_file


@dataclass(frozen=True, slots=True)
class Log:
    """The measurements of one search.

    Parameters
    ----------
    path
        The file; it need not exist.
    search
        What makes measurements interchangeable: the ends, the test, the options. It is the first line.
    """

    path: Path
    search: Mapping[str, Any]

    def read(self) -> list[Measurement]:
        """Every measurement, in the order in which they ended.

        Raises
        ------
        LogError
            The file cannot be read, or is that of another search.
        """
        try:
            lines = line_file.read(self.path)
        except OSError as error:
            raise LogError(f"{self.path} cannot be read: {error.strerror}") from error
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                data = json.loads(line)
                if number == 1:
                    self._check(data)
                else:
                    found.append(from_json(data))
            except OutcomeError as error:
                raise LogError(f"{self.path}: line {number} {error}") from error
            except ValueError as error:
                raise LogError(f"{self.path}: line {number} is not JSON ({error})") from error
        return found

    def append(self, measurement: Measurement) -> None:
        """Add a measurement, safe on the disk when this returns.

        Raises
        ------
        LogError
        """
        try:
            if not line_file.read(self.path):
                line_file.append(self.path, _line({"search": dict(self.search)}))
            line_file.append(self.path, _line(to_json(measurement)))
        except OSError as error:
            raise LogError(f"{self.path} cannot be written: {error.strerror}") from error

    def _check(self, data: Any) -> None:
        there = data.get("search") if isinstance(data, dict) else None
        if not isinstance(there, dict):
            raise OutcomeError("does not begin a log of perfdl bisect")
        other = [name for name, value in self.search.items() if there.get(name) != value]
        if other:
            raise OutcomeError(f"begins the log of another search ({', '.join(other)} differ): use another --log")


def _line(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False).encode("ascii")
