"""The ranks of a step, and their waits, in words and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.report.figures import pair
from pytest_perfdl.report.layout import Column, Table

if TYPE_CHECKING:
    from pytest_perfdl.results.curve import RankComparison, RankSide
    from pytest_perfdl.results.verdict import Judgement


# Who waits for whom among the ranks of a job: the matrix as a table, of many ranks the telling ones.


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


def choose_telling(
    own: Sequence[float], waits: Sequence[Sequence[float]], marked: int | None, most: int | None = None
) -> list[int]:
    """Places of the ranks to show where there are too many, in order.

    The marked one, then by turns those with most and with least own work, and those that wait longest.

    Parameters
    ----------
    own
        Own work of each rank.
    waits
        How long each rank waits for each.
    most
        By default `ALIKE`, and of more ranks `TELLING`.
    """
    count = len(own)
    if most is None:
        most = ALIKE if count <= ALIKE else TELLING
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
class WaitRow:
    """How long one rank, or the mean of the other ones, waits."""

    name: str
    marked: bool
    cells: tuple[tuple[str, int], ...]
    """Each with its shade, 0 to `LEVELS`; without the unit, and empty on the diagonal."""
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


_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


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

    def cell(ns: float, *, diagonal: bool = False) -> tuple[str, int]:
        level = 0 if ns < SHADED * highest else max(1, min(LEVELS, int(-(-ns * LEVELS // highest))))
        return "" if diagonal else _short(ns / scale), level

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


# What a report says about the ranks of a test: whose work changed, and who waits for whom.
#
# Times are means per step, in the profiled steps.


LEAST = 0.01
"""Part of the step that ranks must wait longer or shorter for one of them, for a sentence to say so."""
CLASSES = {"compute": "computing", "input": "input", "host": "host", "communication": "communication"}
"""What the classes of a rank's time are called in a sentence."""


def sentences(judgement: Judgement) -> list[str]:
    """Whose own work changed, and how long the others wait for it: one for each call whose step changed.

    Example: "rank 0 waits 12.60 ms per step for rank 1, 510.0 µs in the baseline; rank 1 has 12.10 ms more work of its
    own per step (computing)".
    """
    found = []
    for each in judgement.ranks:
        if each.base is None or each.cause is None or len(each.base.ranks) != len(each.new.ranks):
            continue
        said = [text for text in (_waiting(each, each.base), _own_work(each, each.base)) if text]
        if said:
            found.append((f"{each.call}: " if each.call else "") + "; ".join(said))
    return found


def _own_work(ranks: RankComparison, base: RankSide) -> str:
    if ranks.rank is None or ranks.cause is None:
        return ""
    delta = ranks.new.ranks[ranks.rank].own_ns - base.ranks[ranks.rank].own_ns
    more = "more" if delta > 0 else "less"
    return (
        f"rank {ranks.rank} has {format_quantity(abs(delta), 'ns')} {more} work of its own "
        f"per step ({CLASSES[ranks.cause]})"
    )


def _waiting(ranks: RankComparison, base: RankSide) -> str:
    """How long the others wait for the rank whose wait changed most; empty where no wait changed much."""
    count = len(ranks.new.ranks)
    if count < 2 or not ranks.new.waits_ns or not base.waits_ns:
        return ""
    before, now = (
        [sum(row[place] for row in side.waits_ns) / (count - 1) for place in range(count)] for side in (base, ranks.new)
    )
    place = max(range(count), key=lambda at: abs(now[at] - before[at]))
    if abs(now[place] - before[place]) < LEAST * ranks.new.step_ns:
        return ""
    then, since = (format_quantity(ns, "ns") for ns in (before[place], now[place]))
    if count == 2:
        return f"rank {1 - place} waits {since} per step for rank {place}, {then} in the baseline"
    return f"the other {count - 1} ranks wait {since} per step for rank {place} on average, {then} in the baseline"


def rank_table(ranks: RankComparison) -> Table:
    """A row for each rank, of many for the telling ones; without a baseline of as many ranks only the current side."""
    base, new = ranks.base, ranks.new.ranks
    before = base.ranks if base is not None and len(base.ranks) == len(new) else None

    def both(title: str, field: str, text: Callable[[Any, Any], str]) -> Column:
        def value(place: int) -> str:
            then = None if before is None else getattr(before[place], field)
            return text(then, getattr(new[place], field))

        return Column(title, value, "figure")

    def gained(place: int) -> int | None:
        return None if before is None else new[place].own_ns - before[place].own_ns

    columns = (
        Column("Rank", lambda place: f"rank {place}" + " ▸ changed" * (place == ranks.rank)),
        both("Own work", "own_ns", _sides),
        Column("Change", gained, "signed"),
        *(both(name.capitalize(), f"{name}_ns", _sides) for name in CLASSES),
        both("Overlap", "overlap", _overlaps),
    )
    return Table("Ranks", columns, choose_telling([rank.own_ns for rank in new], ranks.new.waits_ns, ranks.rank))


def _sides(base: int | None, new: int) -> str:
    return format_quantity(new, "ns") if base is None else pair(base, new, "ns")


def _overlaps(base: float | None, new: float | None) -> str:
    shown = [format_percent(share, signed=False) for share in (base, new) if share is not None]
    return " -> ".join(shown) if base is not None and new is not None else shown[0] if shown else ""


def waits_table(ranks: RankComparison) -> WaitTable | None:
    """The current side's matrix of waits; `None` where nobody waits."""
    return wait_table(range(len(ranks.new.ranks)), ranks.new.waits_ns, ranks.rank)


def gist(ranks: Sequence[RankComparison]) -> str:
    """What the section about the ranks holds, in a few words."""
    found = ranks[0]
    count = len(found.new.ranks)
    if found.rank is not None:
        return f"rank {found.rank} of {count} changed"
    return f"{count} ranks: own work, communication and waits"
