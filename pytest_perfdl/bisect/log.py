"""The file of a search: one measurement a line, written when it ends, so that a search can go on later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_perfdl.bisect.measurements import Measurement, from_json, to_json
from pytest_perfdl.model import json_lines
from pytest_perfdl.model.errors import LogError, OutcomeError


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
        found = []
        for number, data in enumerate(json_lines.read(self.path), start=1):
            try:
                if number == 1:
                    self._check(data)
                else:
                    found.append(from_json(data))
            except OutcomeError as error:
                raise LogError(f"{self.path}: line {number} {error}") from error
        return found

    def append(self, measurement: Measurement) -> None:
        """Add a measurement, safe on the disk when this returns.

        Raises
        ------
        LogError
        """
        if not json_lines.read(self.path):
            json_lines.append(self.path, {"search": dict(self.search)})
        json_lines.append(self.path, to_json(measurement))

    def _check(self, data: Any) -> None:
        there = data.get("search") if isinstance(data, dict) else None
        if not isinstance(there, dict):
            raise OutcomeError("does not begin a log of perfdl bisect")
        other = [name for name, value in self.search.items() if there.get(name) != value]
        if other:
            raise OutcomeError(f"begins the log of another search ({', '.join(other)} differ): use another --log")
