"""Process and thread ids as integers: numbers unchanged, other text numbered."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.trace.events import Number
from pytest_perfdl.trace.model import FIRST_LABEL, I64

_STREAM = re.compile(r"stream (\d+)$")


@dataclass(frozen=True, slots=True)
class Renumbering:
    """From the numbers given in the order of appearance to those in the order of the texts.

    So the numbers of a trace do not depend on the slices in which it was read.
    """

    final: Mapping[int, int]

    def __call__(self, column: I64) -> I64:
        """The column with its final numbers; changed in place."""
        interned = np.flatnonzero(column <= FIRST_LABEL)
        if len(interned):
            column[interned] = [self.final[number] for number in column[interned].tolist()]
        return column

    def processes(self, names: dict[int, str]) -> dict[int, str]:
        """Names by final process id."""
        return {self._one(pid): name for pid, name in names.items()} if self.final else names

    def threads(self, names: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
        """Names by final process and thread id."""
        return {(self._one(pid), self._one(tid)): name for (pid, tid), name in names.items()} if self.final else names

    def _one(self, number: int) -> int:
        return self.final.get(number, number)


class Ids:
    """Ids as they come, column by column."""

    def __init__(self) -> None:
        self._known: dict[Number, int] = {}
        self._labels: dict[str, int] = {}

    def column(self, values: list[Number]) -> I64:
        """Ids of a column of the file."""
        if set(map(type, values)) == {int}:
            with contextlib.suppress(OverflowError):
                numbers = np.array(values, dtype=np.int64)
                if numbers.min() > FIRST_LABEL:
                    return numbers
        for value in dict.fromkeys(values):
            if value not in self._known:
                self._known[value] = self._number(value)
        return np.array(list(map(self._known.__getitem__, values)), dtype=np.int64)

    def close(self) -> tuple[dict[int, str], Renumbering]:
        """Text of the interned ids by final number, and what gives the columns their final numbers."""
        texts = sorted(self._labels)
        final = {self._labels[text]: FIRST_LABEL - place for place, text in enumerate(texts)}
        return {FIRST_LABEL - place: text for place, text in enumerate(texts)}, Renumbering(final)

    def _number(self, value: Number) -> int:
        if isinstance(value, str) and (stream := _STREAM.match(value)):
            value = stream[1]
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = int(value)  # type: ignore[arg-type]
            if FIRST_LABEL < number < 2**63:
                return number
        text = "" if value is None else str(value)
        return self._labels.setdefault(text, FIRST_LABEL - len(self._labels))
