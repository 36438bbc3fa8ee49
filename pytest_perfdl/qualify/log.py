"""The file of a campaign: one run a line, as JSON, written when the run ends, so that a campaign can go on later."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.model.errors import LogError, OutcomeError
from pytest_perfdl.qualify.outcomes import Outcome, from_json, to_json
from pytest_perfdl.system import line_file


@dataclass(frozen=True, slots=True)
class Log:
    """The runs in a file."""

    path: Path

    def read(self) -> list[Outcome]:
        """Every run, in the order in which they ended; none of a file that is not there yet.

        A last line that was cut off while it was written does not count.

        Raises
        ------
        LogError
        """
        try:
            lines = line_file.read(self.path)
        except OSError as error:
            raise LogError(f"{self.path} cannot be read: {error.strerror}") from error
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                found.append(from_json(json.loads(line)))
            except OutcomeError as error:
                raise LogError(f"{self.path}: line {number}: {error}") from error
            except ValueError as error:
                raise LogError(f"{self.path}: line {number} is not JSON ({error})") from error
        return found

    def append(self, outcome: Outcome) -> None:
        """Add a run, safe on the disk when this returns.

        Raises
        ------
        LogError
        """
        try:
            line_file.append(self.path, json.dumps(to_json(outcome), allow_nan=False).encode("ascii"))
        except OSError as error:
            raise LogError(f"{self.path} cannot be written: {error.strerror}") from error
