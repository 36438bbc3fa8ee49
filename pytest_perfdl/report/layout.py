"""Tables and paragraphs as values, and laid out for a terminal."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_perfdl.model.kernel_names import short_names
from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.model.visible import visible

# Tables of a report, declared once: a terminal (`layout.table`) and a page (`_tables.html.j2`) lay them out.


TEXTS = ("text", "short", "name", "place")
"""Kinds of columns with text: prose, a few words, the name of a kernel or operator, a module or source line."""


@dataclass(frozen=True, slots=True)
class Column:
    """One figure, or one text, of each row."""

    title: str
    value: Callable[[Any], Any]
    """What a row has in this column: a text or a number; `None` or an empty text for nothing."""
    kind: str = "text"
    """One of `TEXTS`, `figure` for numbers that are text already, `count`, `share` (1 is 100 %), `change` (the
    same with its sign), `percent` (100 is 100 %), `signed` nanoseconds, `GB/s`, or the unit of a quantity."""
    meaning: str = ""
    """What the title stands for, for the legend."""
    short: str = ""
    """The title on a terminal, where that is not `title`; that of the names is empty without one."""
    wide: bool = False
    """Whether only a page has room for it."""
    optional: bool = False
    """Whether a terminal leaves it out where the figures of a row do not fit into a line with it."""

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
        if value is None or isinstance(value, str):
            return value or ""
        if not math.isfinite(value):
            return ""
        match self.kind:
            case "count":
                return count_words(value)
            case "share":
                return format_percent(value, signed=False)
            case "change":
                return format_percent(value)
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


# Rows of cells on a terminal of any width: aligned where they fit, wrapped where they do not.


GAP = "  "
BAR = 24
"""Width of the longest bar of the breakdown."""
LEAST_NAME = 24
"""A name is shortened for the sake of alignment down to this width, not further."""


def cells_wide(text: str) -> int:
    """Columns that a terminal gives the text: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def shorten(text: str, width: int) -> str:
    """Cut the middle out, so that both ends of a long kernel name stay readable.

    >>> shorten("void flash_bwd_dkdv<128, 64>", 16)
    'void fl...8, 64>'
    """
    if cells_wide(text) <= width:
        return text
    keep = max(2, width - 3)
    head, tail = _fit_text(text, (keep + 1) // 2), _fit_text(text[::-1], keep // 2)[::-1]
    return f"{head}...{tail}"


Fit = Callable[[Sequence[str], int], Mapping[str, str]]
"""What makes the names of one table fit into a width: `kernel_names.short_names`, `last_parts`."""


def rows(
    table: Sequence[Sequence[str]],
    right: str,
    indent: int,
    width: int,
    fit: Fit | None = None,
    *,
    least: int = LEAST_NAME,
    shorten: Callable[[str, int], str] = shorten,
) -> list[str]:
    """Lay out rows whose first cell is a name.

    Aligned in columns if that fits into `width`, with names shortened by `fit`, or each by `shorten`, if need be; else,
    and where less than `least` columns are left for a name, it has a line above its cells, which are aligned if they
    fit. `right` has one character per column, "r" for right-aligned, anything else for left.
    """
    columns = [max(cells_wide(row[index]) for row in table) for index in range(len(right))]
    room = width - indent - sum(len(GAP) + size for size in columns[1:] if size)
    names = [row[0] for row in table]
    if room < min(columns[0], least):
        below = [0, *columns[1:]]
        alone = indent + sum(len(GAP) + size for size in below if size) <= width
        shown = _fit(names, max(8, width - indent), fit, shorten)
        if not alone:
            return [line for row in table for line in _wrap((shown[row[0]], *row[1:]), indent, width)]
        lines = []
        for row in table:
            lines += [" " * indent + shown[row[0]]] * bool(row[0])
            lines.append(_align(("", *row[1:]), below, right, indent))
        return lines
    columns[0] = min(columns[0], room)
    shown = _fit(names, columns[0], fit, shorten)
    return [_align((shown[row[0]], *row[1:]), columns, right, indent) for row in table]


def table(
    declared: Table,
    width: int,
    *,
    top: int | None = None,
    indent: int = 2,
    least: int = LEAST_NAME,
    shorten: Callable[[str, int], str] = shorten,
) -> list[str]:
    """Lay out the first rows of a table below its titles, as `rows` does; nothing of a table without rows.

    Of what is optional the last columns are left out, as many as do not fit.
    """
    if not declared.rows:
        return []
    shown = replace(declared, rows=declared.rows[:top])
    columns = [column for column in shown.columns if not column.wide]
    texts = [
        [column.short_title, *(visible(column.text(column.value(row))) for row in shown.rows)] for column in columns
    ]
    texts[0][0] = columns[0].short
    room = width - indent - sum(len(GAP) + max(map(cells_wide, text)) for text in texts[1:])
    for at in range(len(columns) - 1, 0, -1):
        if room < 0 and columns[at].optional:
            room += len(GAP) + max(map(cells_wide, texts[at]))
            del columns[at], texts[at]
    cells = list(zip(*texts, strict=True))
    sides = "".join("l" if column.is_text else "r" for column in columns)
    fit = {"name": short_names, "place": last_parts}.get(columns[0].kind)
    return rows(cells, sides, indent, width, fit, least=least, shorten=shorten)


def title(declared: Table, top: int) -> str:
    """The title of a table of which the first rows are shown."""
    count = len(declared.rows)
    return declared.ordered + (f" ({top} of {count}; --top shows more)" if count > top else "")


def bars(parts: Mapping[str, float], whole: float) -> list[str]:
    """One line a part with its share of the whole, drawn to scale."""
    if not parts or not whole:
        return []
    lines = [
        (name, format_quantity(ns, "ns"), format_percent(ns / whole, signed=False), "=" * round(ns / whole * BAR))
        for name, ns in parts.items()
    ]
    return rows(lines, "lrrl", 2, 100)


def last_parts(names: Sequence[str], width: int) -> Mapping[str, str]:
    """Names cut at the beginning: of module paths and source lines the last part tells most.

    >>> last_parts(["encoder.layers.11.attention.query"], 20)
    {'encoder.layers.11.attention.query': '...1.attention.query'}
    """
    shown = {name: cut_front(name, width) for name in names}
    alike = [name for name, text in shown.items() if list(shown.values()).count(text) > 1]
    return shown | dict(short_names(alike, width))


def _fit(names: Sequence[str], width: int, fit: Fit | None, shorten: Callable[[str, int], str]) -> Mapping[str, str]:
    return {name: shorten(name, width) for name in names} if fit is None else fit(names, width)


def _align(row: Sequence[str], columns: Sequence[int], right: str, indent: int) -> str:
    cells = [_pad(cell, size, side) for cell, size, side in zip(row, columns, right, strict=True) if size]
    return (" " * indent + GAP.join(cells)).rstrip()


def cut(text: str, width: int) -> str:
    """Cut the end off where there is no room.

    >>> cut("bmm + softmax(float64)", 12)
    'bmm + sof...'
    """
    return text if cells_wide(text) <= width else f"{_fit_text(text, max(0, width - 3))}..."


def cut_front(text: str, width: int) -> str:
    """Cut the beginning off where there is no room: of a node id the end says which test it is.

    >>> cut_front("tests/perf/test_gpt.py::test_step", 24)
    '...est_gpt.py::test_step'
    """
    return text if cells_wide(text) <= width else f"...{_fit_text(text[::-1], max(0, width - 3))[::-1]}"


def paragraph(text: str, indent: int, width: int, *, more: int = 0) -> list[str]:
    """Wrap prose; words longer than the line are left whole, so that paths can still be copied.

    `more` columns are added to the indent of all lines but the first.
    """
    space = " " * indent
    return textwrap.wrap(
        text,
        max(width, indent + 20),
        initial_indent=space,
        subsequent_indent=space + " " * more,
        break_long_words=False,
        break_on_hyphens=False,
    )


def item(text: str, indent: int, width: int) -> list[str]:
    """An item of a list, whose further lines are aligned to its first."""
    return paragraph(f"- {text}", indent, width, more=2)


def _wrap(row: Sequence[str], indent: int, width: int) -> list[str]:
    lines = [" " * indent + shorten(row[0], max(8, width - indent))]
    for cell in row[1:]:
        if not cell:
            continue
        if cells_wide(lines[-1]) + len(GAP) + cells_wide(cell) <= width:
            lines[-1] += GAP + cell
        else:
            lines.append(" " * (indent + 2) + cell)
    return lines


def _pad(cell: str, size: int, side: str) -> str:
    space = " " * (size - cells_wide(cell))
    return space + cell if side == "r" else cell + space


def _fit_text(text: str, width: int) -> str:
    taken, size = 0, 0
    for char in text:
        size += cells_wide(char)
        if size > width:
            break
        taken += 1
    return text[:taken]
