"""Who waits for whom among the ranks of a job: the matrix as a table, of many ranks the telling ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIKE = 16
"""Ranks that tables and charts of this many ranks at most show one by one."""
TELLING = 12
"""Ranks that a table of more of them shows."""
FEW = 4
"""Ranks from which on a table of waits has no columns for ranks that hardly anyone waits for."""
WAITED_FOR = 8
"""Most columns of a table of waits of more than `ALIKE` ranks: those that are waited for most."""
SHADED = 0.02
"""Share of the longest wait from which a wait has a shade."""
LEVELS = 5
"""Shades of a table of waits."""


def telling(own: Sequence[float], waits: Sequence[Sequence[float]], marked: int | None, most: int) -> list[int]:
    """Places of the ranks to show where there are too many, in order.

    The marked one, then by turns those with most and with least own work, and those that wait longest.

    Parameters
    ----------
    own
        Own work of each rank.
    waits
        How long each rank waits for each.
    """
    count = len(own)
    if count <= most:
        return list(range(count))
    by_own = sorted(range(count), key=lambda place: -own[place])
    by_waits = sorted(range(count), key=lambda place: -sum(waits[place]))
    found = [] if marked is None else [marked]
    for places in zip(by_own, by_waits, reversed(by_own), strict=True):
        found += [place for place in dict.fromkeys(places) if place not in found]
        if len(found) >= most:
            break
    return sorted(found[:most])


@dataclass(frozen=True, slots=True)
class WaitCell:
    """How long one rank waits for another."""

    text: str
    """Without its unit; empty on the diagonal."""
    level: int
    """Shade, 0 to `LEVELS`."""


@dataclass(frozen=True, slots=True)
class WaitRow:
    """How long one rank, or the mean of the other ones, waits."""

    name: str
    marked: bool
    cells: tuple[WaitCell, ...]
    total: str


@dataclass(frozen=True, slots=True)
class WaitTable:
    """Who waits for whom: a row for each rank that waits, a column for each that is waited for."""

    unit: str
    columns: tuple[tuple[str, bool], ...]
    """Names, and whether the rank is marked."""
    rows: tuple[WaitRow, ...]
    left_out: int
    """Ranks without a row of their own."""


_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))


def wait_table(numbers: Sequence[int], waits: Sequence[Sequence[float]], marked: int | None) -> WaitTable | None:
    """The matrix of waits as a table; of many ranks those that wait and are waited for most. `None` without waits.

    Parameters
    ----------
    numbers
        Of the ranks.
    waits
        Nanoseconds per step, shape (ranks, ranks).
    marked
        Place of the rank that explains the waiting.
    """
    count = len(numbers)
    highest = max((max(row, default=0.0) for row in waits), default=0.0)
    if not highest:
        return None
    totals = [sum(row) for row in waits]
    by_wait = sorted(range(count), key=lambda place: -totals[place])
    caused = [sum(row[place] for row in waits) for place in range(count)]
    by_cause = sorted(range(count), key=lambda place: -caused[place])
    rows, columns = list(range(count)), list(range(count))
    if count > ALIKE:
        rows = sorted(list(dict.fromkeys([*([] if marked is None else [marked]), *by_wait]))[:TELLING])
    if count > FEW:
        tells = [column for column in columns if max(row[column] for row in waits) >= SHADED * highest]
        columns = tells if len(tells) <= WAITED_FOR or count <= ALIKE else sorted(by_cause[:WAITED_FOR])
    scale, unit = next((scale, unit) for scale, unit in _UNITS if highest >= scale or scale == 1.0)

    def cell(ns: float, *, diagonal: bool = False) -> WaitCell:
        level = 0 if ns < SHADED * highest else max(1, min(LEVELS, int(-(-ns * LEVELS // highest))))
        return WaitCell("" if diagonal else _short(ns / scale), level)

    def line(name: str, values: Sequence[float], place: int | None) -> WaitRow:
        cells = [cell(values[column], diagonal=column == place) for column in columns]
        if len(columns) < count:
            cells.append(cell(sum(values) - sum(values[column] for column in columns)))
        return WaitRow(name, place is not None and place == marked, tuple(cells), _short(sum(values) / scale))

    found = [line(f"rank {numbers[place]}", waits[place], place) for place in rows]
    left = [place for place in range(count) if place not in set(rows)]
    if left:
        means = [sum(waits[place][column] for place in left) / len(left) for column in range(count)]
        found.append(line(f"mean of the {len(left)} others", means, None))
    names = [(f"rank {numbers[place]}", place == marked) for place in columns]
    if len(columns) < count:
        names.append((f"{count - len(columns)} others", False))
    return WaitTable(unit, tuple(names), tuple(found), len(left))


def _short(value: float) -> str:
    """A number of three digits, without a unit.

    >>> _short(0.0), _short(0.004), _short(0.5), _short(12.34), _short(450.6)
    ('0', '<0.01', '0.50', '12.3', '451')
    """
    if not value:
        return "0"
    if value < 0.005:
        return "<0.01"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
