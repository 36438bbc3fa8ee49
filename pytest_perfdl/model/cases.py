"""Ids of the cases of a table, and the axes that they lie on: "op=add,dtype=float16,tokens=4096"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_perfdl.model.errors import InputError

LONGEST_ID = 200
"""Characters that the id of a case may have."""
_PART = re.compile(r"([^,=<>!]+)=([^,=]+)")
_TEST = re.compile(r"([^=\[]+)\[.*\]", re.DOTALL)
_CONDITION = re.compile(r"([^,=<>!]+)(=|!=|<=|>=|<|>)([^,=<>]+)")


def axes_of(case: str) -> dict[str, str]:
    """The axes of a case with its values; none for an id that is not made of `NAME=VALUE` parts.

    Those of a parametrized test have its name in common.

    >>> axes_of("op=add,tokens=4096"), axes_of("my case"), axes_of("TestSort::test_words[100]")
    ({'op': 'add', 'tokens': '4096'}, {}, {'test': 'TestSort::test_words'})
    """
    if test := _TEST.fullmatch(case):
        return {"test": test[1]}
    parts = [_PART.fullmatch(part) for part in case.split(",")]
    known = [part for part in parts if part is not None]
    return {part[1]: part[2] for part in known} if len(known) == len(parts) else {}


def group_name(axes: Mapping[str, str]) -> str:
    """What the cases of a group have in common.

    >>> group_name({"dtype": "float16"}), group_name({})
    ('dtype=float16', 'all cases')
    """
    return ",".join(f"{axis}={value}" for axis, value in axes.items()) or "all cases"


def id_of(values: Mapping[str, object]) -> str:
    """The id of a case that is given as a dict: its values by axis, in its order.

    Raises
    ------
    InputError
        A value has no short text that is the same in every process.
    """
    return ",".join(f"{axis}={word_of(axis, value)}" for axis, value in values.items())


def word_of(axis: str, value: object) -> str:
    """A value as it stands in the id of a case: `float16` for torch.float16, `64x128` for (64, 128).

    Raises
    ------
    InputError
        It has no short text that is the same in every process.
    """
    if isinstance(value, (list, tuple)):
        word = "x".join(word_of(axis, each) for each in value)
    elif value is None or isinstance(value, (bool, int, float)):
        word = repr(value)
    elif isinstance(value, str):
        word = value
    elif type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "layout"):
        word = str(value).removeprefix("torch.")
    else:
        word = getattr(value, "__name__", "")
    if not word or not word.isprintable() or re.search("[,=<>]", word) or "<lambda>" in word:
        kind = type(value).__name__
        raise InputError(
            f"{axis}={str(value)[:40]!r} ({kind}) cannot stand in the id of a case: use numbers, names, functions or "
            "types of torch, and make everything else in setup="
        )
    return word


@dataclass(frozen=True, slots=True)
class CaseFilter:
    """Which cases of a table are measured: all conditions on axes must hold (`--perf-case`)."""

    conditions: tuple[tuple[str, str, str], ...] = ()
    """Axis, sign and value."""

    def chooses(self, case: str) -> bool:
        """Whether a case is measured; one that lacks an axis is not."""
        axes = axes_of(case)
        return all(axis in axes and _holds(axes[axis], sign, value) for axis, sign, value in self.conditions)


def parse_filter(text: str) -> CaseFilter:
    """Read `--perf-case`: "dtype=float16,tokens>=4096".

    >>> parse_filter("dtype=float16,tokens>=4096").chooses("dtype=float16,tokens=8192")
    True

    Raises
    ------
    InputError
        A part is no condition; the message names it in one line.
    """
    found = []
    for part in filter(None, text.split(",")):
        match = _CONDITION.fullmatch(part.strip())
        if match is None:
            raise InputError(f"{part!r} is no condition on an axis: expected such as dtype=float16 or tokens>=4096")
        axis, sign, value = (each.strip() for each in match.groups())
        if sign not in ("=", "!=") and _number(value) is None:
            raise InputError(f"{part!r}: {value!r} is not a number, which {sign} compares")
        found.append((axis, sign, value))
    return CaseFilter(tuple(found))


def _holds(own: str, sign: str, value: str) -> bool:
    mine, other = _number(own), _number(value)
    if sign in ("=", "!="):
        same = own == value or (mine is not None and mine == other)
        return same == (sign == "=")
    if mine is None or other is None:
        return False
    return {"<": mine < other, ">": mine > other, "<=": mine <= other, ">=": mine >= other}[sign]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
