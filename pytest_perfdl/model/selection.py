"""Selection of a part of a trace: the grammar of `--select`, `--scale` and `--remove`.

A selection is a comma-separated list of conditions, all of which must match: `stream=7,name~gemm`. Conditions on
numbers and words may be repeated, and one of them must match (`step=3,step=7`); of conditions on text, all must match.
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
"""Conditions with a fixed set of values: kind of event, and phase of the step."""
TEXTS = ("name", "operator", "module", "shapes", "line")
"""Conditions on text: the name, enclosing operators, module, shapes and source line."""
HELP = (
    "step=3, step=3-5, stream=7, rank=1, kind=copy, phase=backward, name~gemm, name=aten::mm, operator=aten::drop*, "
    "module=Net.blocks.2, module~mlp, shapes~64, line~train.py; = matches the whole text (wildcards * and ?), ~ a "
    "regular expression; join several with commas"
)

_KEYS = ("step", *NUMBERS, *WORDS, *TEXTS)
_CONDITION = re.compile(rf",(?=(?:{'|'.join(_KEYS)})[=~])")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of steps and events; an empty one selects everything."""

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
    """Parse selections; an event must match all of them.

    Raises
    ------
    SelectionError
        A part is invalid; the message names it in one line.
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
                raise SelectionError(f"{text!r}: {key} must be a number such as 7")
            numbers[key] = (*numbers.get(key, ()), int(value))
        elif key in WORDS and sign == "=":
            if value not in WORDS[key]:
                raise SelectionError(f"{text!r}: unknown {key} {value!r}; valid: {', '.join(WORDS[key])}")
            words[key] = (*words.get(key, ()), value)
        elif key in TEXTS:
            patterns[key] = (*patterns.get(key, ()), _pattern(text, key, sign, value))
        else:
            known = ", ".join((*(f"{each}=" for each in _KEYS[: -len(TEXTS)]), *(f"{each}~" for each in TEXTS)))
            raise SelectionError(f"{text!r} is not a valid selection: expected one of {known} and a value")
    return Selection(tuple(steps), numbers, words, patterns)


def _range(text: str, value: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(value)
    if match is None:
        raise SelectionError(f"{text!r}: step must be a number or a range such as 3-5")
    return int(match[1]), int(match[2] or match[1])


def _pattern(text: str, key: str, sign: str, value: str) -> re.Pattern[str]:
    """The pattern for a text. A module also matches the modules inside it."""
    if sign == "=":
        whole = re.escape(value).replace(r"\*", ".*").replace(r"\?", ".")
        inside = r"(\..*)?" if key == "module" else ""
        return re.compile(f"^{whole}{inside}$", re.DOTALL)
    try:
        return re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise SelectionError(f"{text!r}: {value!r} is not a regular expression: {error}") from error
