"""The file of a campaign: one run a line, as JSON, written when the run ends, so that a campaign can go on later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.model import json_lines
from pytest_perfdl.model.errors import LogError, OutcomeError
from pytest_perfdl.qualify.outcomes import Outcome, from_json, to_json


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
        found = []
        for number, data in enumerate(json_lines.read(self.path), start=1):
            try:
                found.append(from_json(data))
            except OutcomeError as error:
                raise LogError(f"{self.path}: line {number}: {error}") from error
        return found

    def append(self, outcome: Outcome) -> None:
        """Add a run, safe on the disk when this returns.

        Raises
        ------
        LogError
        """
        json_lines.append(self.path, to_json(outcome))
