"""Tables of a report, declared once: a terminal (`layout.table`) and a page (`_tables.html.j2`) lay them out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pytest_perfdl.model.units import format_percent, format_quantity

TEXTS = ("text", "short", "name", "place")
"""Kinds of columns with text: prose, a few words, the name of a kernel or operator, a module or source line."""


@dataclass(frozen=True, slots=True)
class Column:
    """One figure, or one text, of each row."""

    title: str
    value: Callable[[Any], Any]
    """What a row has in this column: a text or a number; `None` or an empty text for nothing."""
    kind: str = "text"
    """One of `TEXTS`, `count`, `share` (1 is 100 %), `percent` (100 is 100 %), `signed` nanoseconds, `GB/s`, or the
    unit of a quantity."""
    meaning: str = ""
    """What the title stands for, for the legend."""
    short: str = ""
    """The title on a terminal, where that is not `title`."""
    wide: bool = False
    """Whether only a page has room for it."""

    @property
    def is_text(self) -> bool:
        """Whether the column is sorted by letters and aligned to the left."""
        return self.kind in TEXTS

    @property
    def short_title(self) -> str:
        """The title on a terminal: "CPU self", "per call"."""
        return self.short or (self.title if self.title[1:2].isupper() else self.title[:1].lower() + self.title[1:])

    def text(self, value: Any) -> str:
        """A value as people read it; empty for nothing."""
        if self.is_text or value is None:
            return value or ""
        if not math.isfinite(value):
            return ""
        match self.kind:
            case "count":
                return count_words(value)
            case "share":
                return format_percent(value, signed=False)
            case "percent":
                return f"{value:.0f}%"
            case "signed":
                return format_quantity(value, "ns", signed=True)
            case "GB/s":
                return f"{value / 1e9:.3g} GB/s"
            case unit:
                return format_quantity(value, unit)


def count_words(count: float) -> str:
    """A count per step: whole where it is, else with one decimal.

    >>> count_words(1462.0), count_words(2.5)
    ('1,462', '2.5')
    """
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"


def keyed(title: str, key: str, kind: str = "text", meaning: str = "") -> Column:
    """A column whose values rows have under a key."""
    return Column(title, itemgetter(key), kind, meaning)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with their columns, of which the first names the row; a column without a value in any row is left out."""

    title: str
    all_columns: Sequence[Column]
    rows: Sequence[Any]
    ordered: str = ""
    """The title on a terminal, which says by what the rows are ordered."""
    note: str = ""
    """What a page says below the table beside the legend."""
    told: Callable[[Any], Sequence[str]] | None = None
    """What a page says of a row below its name."""

    @property
    def columns(self) -> list[Column]:
        """Those with a value in any row, and the names."""
        name, *others = self.all_columns
        return [name, *(each for each in others if any(each.value(row) not in (None, "") for row in self.rows))]

    @property
    def legend(self) -> str:
        """What the titles stand for, in sentences, and the note."""
        meanings = [f"{column.title}: {column.meaning}." for column in self.columns if column.meaning]
        return " ".join(filter(None, [*meanings, self.note]))

    @property
    def short_legend(self) -> str:
        """The same on a terminal, of the columns there, in one line."""
        return "; ".join(
            f"{column.short_title}: {column.meaning}" for column in self.columns if column.meaning and not column.wide
        )
