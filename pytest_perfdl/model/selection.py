"""Which part of a trace is meant: the one grammar of `--select`, `--scale` and `--remove`.

A selection is conditions, joined by commas, that all have to hold: `stream=7,name~gemm`. Of numbers and words several
may be given, of which one has to hold (`step=3,step=7`); of texts all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_perfdl.model.errors import SelectionError

Row = TypeVar("Row")

NUMBERS = ("stream", "rank")
WORDS: Mapping[str, tuple[str, ...]] = {
    "kind": ("operator", "call", "input", "gap", "kernel", "copy", "memset", "communication"),
    "phase": ("forward", "backward", "optimizer"),
}
"""Conditions that name one of some words: what something is, and which part of the step it is of."""
TEXTS = ("name", "operator", "module", "shapes", "line")
"""Conditions on a text: its own name, the operators around it, the module, the shapes and the line that it is of."""
HELP = (
    "step=3, step=3-5, stream=7, rank=1, kind=copy, phase=backward, name~gemm, name=aten::mm, operator=aten::drop*, "
    "module=Net.blocks.2, module~mlp, shapes~64, line~train.py: = is the whole text, with * and ?, ~ a regular "
    "expression; several joined by commas"
)

_KEYS = ("step", *NUMBERS, *WORDS, *TEXTS)
_CONDITION = re.compile(rf",(?=(?:{'|'.join(_KEYS)})[=~])")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class Selection:
    """What is meant; empty means everything."""

    steps: tuple[tuple[int, int], ...] = ()
    """First and last N of `ProfilerStep#N`, both included; a step must be in one of them."""
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By condition of `NUMBERS`: it must be one of these."""
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By condition of `WORDS`, likewise."""
    patterns: Mapping[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)
    """By condition of `TEXTS`: every pattern must be found in it."""

    def has_step(self, number: int) -> bool:
        """Whether a step of this number is meant."""
        return not self.steps or any(first <= number <= last for first, last in self.steps)

    def matches(self, condition: str, text: str) -> bool:
        """Whether a text is meant, under a condition of `TEXTS`."""
        return all(pattern.search(text) for pattern in self.patterns.get(condition, ()))

    def rows(self, table: Iterable[Row]) -> tuple[Row, ...]:
        """Those rows of a table that match by its columns; one that is empty in all of them does not narrow it."""
        rows = tuple(table)
        columns = [each for each in self.patterns if any(getattr(row, each, None) for row in rows)]
        return tuple(row for row in rows if all(self.matches(each, str(getattr(row, each))) for each in columns))


def parse(texts: Iterable[str]) -> Selection:
    """Read selections, each of which narrows further.

    Raises
    ------
    SelectionError
        One line that names the part that is not understood.
    """
    steps: list[tuple[int, int]] = []
    numbers: dict[str, tuple[int, ...]] = {}
    words: dict[str, tuple[str, ...]] = {}
    patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
    for text in (part for whole in texts for part in _CONDITION.split(whole)):
        match = re.fullmatch(r"(\w+)([=~])(.+)", text, re.DOTALL)
        key, sign, value = match.groups() if match else ("", "", "")
        if key == "step" and sign == "=":
            steps.append(_range(text, value))
        elif key in NUMBERS and sign == "=":
            if not _NUMBER.fullmatch(value):
                raise SelectionError(f"{text!r}: a {key} is a number such as 7")
            numbers[key] = (*numbers.get(key, ()), int(value))
        elif key in WORDS and sign == "=":
            if value not in WORDS[key]:
                raise SelectionError(f"{text!r}: there is no {key} {value!r}, but {', '.join(WORDS[key])}")
            words[key] = (*words.get(key, ()), value)
        elif key in TEXTS:
            patterns[key] = (*patterns.get(key, ()), _pattern(text, key, sign, value))
        else:
            known = ", ".join((*(f"{each}=" for each in _KEYS[: -len(TEXTS)]), *(f"{each}~" for each in TEXTS)))
            raise SelectionError(f"{text!r} is not understood: a selection is one of {known} and a value")
    return Selection(tuple(steps), numbers, words, patterns)


def _range(text: str, value: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(value)
    if match is None:
        raise SelectionError(f"{text!r}: a step is a number or a range such as 3-5")
    return int(match[1]), int(match[2] or match[1])


def _pattern(text: str, key: str, sign: str, value: str) -> re.Pattern[str]:
    """What is searched for in a text. A module stands for those inside it, too."""
    if sign == "=":
        whole = re.escape(value).replace(r"\*", ".*").replace(r"\?", ".")
        inside = r"(\..*)?" if key == "module" else ""
        return re.compile(f"^{whole}{inside}$", re.DOTALL)
    try:
        return re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise SelectionError(f"{text!r}: {value!r} is not a regular expression: {error}") from error
