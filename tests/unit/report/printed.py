"""What a report prints, read back: numbers with their units, rows of tables, and the text of its surfaces.

Nothing of the report's own code is used, so that what it prints can be held against what it is printed from.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

UNITS = {
    "ns": ("ns", 1.0),
    "µs": ("ns", 1e3),
    "us": ("ns", 1e3),
    "ms": ("ns", 1e6),
    "s": ("ns", 1e9),
    "B": ("B", 1.0),
    "KiB": ("B", 2.0**10),
    "MiB": ("B", 2.0**20),
    "GiB": ("B", 2.0**30),
    "flop": ("flop", 1.0),
    "kflop": ("flop", 1e3),
    "Mflop": ("flop", 1e6),
    "Gflop": ("flop", 1e9),
    "Tflop": ("flop", 1e12),
    "flop/s": ("flop/s", 1.0),
    "kflop/s": ("flop/s", 1e3),
    "Mflop/s": ("flop/s", 1e6),
    "Gflop/s": ("flop/s", 1e9),
    "Tflop/s": ("flop/s", 1e12),
    "B/s": ("B/s", 1.0),
    "MB/s": ("B/s", 1e6),
    "GB/s": ("B/s", 1e9),
    "TB/s": ("B/s", 1e12),
    "items/s": ("items/s", 1.0),
    "%": ("%", 1.0),
}
"""What numbers are printed in: base unit and factor."""
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
NUMBER = r"\d[\d,]*(?:\.\d+)?"
_PERCENT = rf"[+\-−]?{NUMBER}"
_TOKEN = re.compile(
    rf"\[\s*(?P<low>{_PERCENT})\s*%?\s*,\s*(?P<high>{_PERCENT})\s*%\s*\]"
    rf"|(?P<from_low>[+\-−]{NUMBER})\s?% to (?P<to_high>[+\-−]{NUMBER})\s?%"
    rf"|(?P<from>[+\-−]?{NUMBER})(?:\s?(?P<from_unit>{UNIT})(?!\w|/(?!step)))?\s*(?:->|→)\s*"
    rf"(?P<to>[+\-−]?{NUMBER})(?:\s?(?P<to_unit>{UNIT})(?!\w|/(?!step)))?(?P<rate>\s?(?:a step|/step))?"
    rf"|(?<![\w.%])(?P<one>[+\-−]?{NUMBER})(?:\s?(?P<unit>{UNIT})(?!\w|/(?!step)))?(?P<one_rate>\s?(?:a step|/step))?"
)


@dataclass(frozen=True)
class Number:
    """A printed number in its base unit."""

    value: float
    half: float
    """Half a unit of its last digit."""
    unit: str
    """Empty for a bare number."""
    signed: bool
    text: str

    def fits(self, expected: float) -> bool:
        """Whether it is the expected number to its last printed digit."""
        return abs(self.value - expected) <= self.half * 1.01 + 1e-9 * abs(expected)


def number(digits: str, unit: str | None) -> Number:
    """What digits and a unit's name are."""
    plain = digits.replace(",", "").replace("−", "-")
    base, scale = UNITS[unit] if unit else ("", 1.0)
    decimals = len(plain.partition(".")[2])
    shown = f"{digits} {unit}" if unit else digits
    return Number(float(plain) * scale, 0.5 * 10.0**-decimals * scale, base, plain[0] in "+-", shown)


@dataclass(frozen=True)
class Token:
    """Numbers that belong together: a pair of sides, an interval, or one number."""

    kind: str
    """"pair", "interval" or "one"."""
    numbers: tuple[Number, ...]
    per_step: bool
    place: int
    end: int

    @property
    def unit(self) -> str:
        return self.numbers[-1].unit


def tokens(text: str) -> Iterator[Token]:
    """The numbers of a text, in order."""
    for match in _TOKEN.finditer(text):
        if low := match["low"] or match["from_low"]:
            ends = (number(low, "%"), number(match["high"] or match["to_high"], "%"))
            yield Token("interval", ends, False, *match.span())
        elif match["from"]:
            unit = match["to_unit"]
            sides = (number(match["from"], match["from_unit"] or unit), number(match["to"], unit))
            yield Token("pair", sides, bool(match["rate"]), *match.span())
        else:
            yield Token("one", (number(match["one"], match["unit"]),), bool(match["one_rate"]), *match.span())


@dataclass(frozen=True)
class Row:
    """A row of a table: its cells by their columns' headings."""

    headings: tuple[str, ...]
    cells: tuple[str, ...]
    table: int
    """The same for all rows of a table."""

    def cell(self, pattern: str) -> str | None:
        """The cell of the first column whose heading matches; `None` without one."""
        for heading, cell in zip(self.headings[1:], self.cells[1:], strict=False):
            if re.search(pattern, heading, re.I):
                return cell
        return None


def spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def terminal(text: str, run: dict[str, Any]) -> tuple[str, list[tuple[int, Row]]]:
    """Text of one line, where titles of failures are the tests' ids."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    by_function: dict[str, list[str]] = defaultdict(list)
    for test in run["tests"]:
        by_function[test["id"].rpartition("::")[2]].append(test["id"])

    def title(match: re.Match[str]) -> str:
        ids = by_function.get(match[1], [])
        return f"\n{ids[0]}\n" if len(ids) == 1 else match[0]

    return spaced(re.sub(r"(?m)^_{3,} (\S.*\S) _{3,}$", title, text)), []


def markdown(text: str) -> tuple[str, list[tuple[int, Row]]]:
    """Prose and rows; a row's place is the length of the prose before it."""
    prose = ""
    rows: list[tuple[int, Row]] = []
    headings: tuple[str, ...] = ()
    table = 0
    for line in text.splitlines():
        plain = html.unescape(re.sub(r"<[^>]+>", " ", line)).replace("`", "").replace("**", "")
        if not line.startswith("|"):
            headings = ()
            prose += f" {plain}"
            continue
        cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", plain.strip())[1:-1])
        if not headings:
            headings, table = cells, table + 1
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            rows.append((len(spaced(prose)), Row(headings, cells, table)))
    return spaced(prose), rows


_VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "rect", "path", "line", "circle"})
_INLINE = frozenset({"code", "strong", "em", "a", "small", "b", "i", "abbr", "time", "mark"})


@dataclass
class _Table:
    """A table whose rows are being read; in a cell there may be another."""

    number: int
    headings: tuple[str, ...] = ()
    are_headings: bool = False
    cells: list[list[str]] | None = None


class Page(HTMLParser):
    """A page's visible text, the rows of its tables, and its scripts by their ids."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.scripts: dict[str, tuple[dict[str, str | None], str]] = {}
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self._prose: list[str] = []
        self._rows: list[tuple[int, Row]] = []
        self._tables: list[_Table] = []
        self._count = 0
        self._details: list[tuple[str, int]] = []
        self.feed(source)
        self.close()

    def json(self, script: str) -> Any:
        """The data of a script element, unpacked where it is packed."""
        attributes, text = self.scripts[script]
        if "data-packed" in attributes:
            text = gzip.decompress(base64.b64decode(text)).decode()
        return json.loads(text)

    def shown(self) -> tuple[str, list[tuple[int, Row]]]:
        """The text outside of tables, and their rows, each with its place in the text."""
        starts, length = [], 0
        for part in self._prose:
            starts.append(length)
            length += len(part)
        return "".join(self._prose), [
            (starts[place] if place < len(starts) else length, row) for place, row in self._rows
        ]

    def details(self, tests: Sequence[str]) -> list[tuple[str, str]]:
        """The scripts of tests' data, each with the test that is named first in the element that refers to it."""
        either = re.compile("|".join(sorted(map(re.escape, tests), key=len, reverse=True)))
        found = []
        for script, place in self._details:
            named = either.search("".join(self._prose[place:]))
            if named is not None and script in self.scripts:
                found.append((script, named[0]))
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag not in _VOID:
            self._open.append((tag, attributes))
        if script := attributes.get("data-details"):
            self._details.append((script, len(self._prose)))
        inner = self._tables[-1] if self._tables else None
        if tag == "table":
            self._count += 1
            self._tables.append(_Table(self._count))
        elif tag == "tr" and inner is not None:
            inner.cells, inner.are_headings = [], any(name == "thead" for name, _ in self._open)
        elif tag in ("th", "td") and inner is not None and inner.cells is not None:
            inner.cells.append([])
        elif tag not in _INLINE:
            self._write(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass
        inner = self._tables[-1] if self._tables else None
        if tag == "table" and self._tables:
            self._tables.pop()
        elif tag == "tr" and inner is not None and inner.cells is not None:
            cells = tuple(spaced("".join(parts)).strip() for parts in inner.cells)
            if inner.are_headings:
                inner.headings = cells
            elif cells:
                self._rows.append((len(self._prose), Row(inner.headings, cells, inner.number)))
            inner.cells = None
        elif tag not in _INLINE:
            self._write(" ")

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if "script" in tags:
            attributes = self._open[-1][1]
            if name := attributes.get("id"):
                known = self.scripts.get(name, (attributes, ""))[1]
                self.scripts[name] = attributes, known + data
        elif "style" not in tags and "svg" not in tags and "template" not in tags:
            self._write(data)

    def _write(self, text: str) -> None:
        text = re.sub(r"\s+", " ", text)
        inner = self._tables[-1] if self._tables else None
        if inner is not None and inner.cells:
            inner.cells[-1].append(text)
        elif inner is None and text and not (text == " " and self._prose and self._prose[-1].endswith(" ")):
            self._prose.append(text)
