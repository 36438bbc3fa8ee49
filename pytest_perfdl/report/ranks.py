"""What a report says about the ranks of a test: whose work changed, and who waits for whom.

Times are means per step, in the profiled steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.report.waits import WaitTable, wait_table

if TYPE_CHECKING:
    from pytest_perfdl.results.ranks import RankComparison, RankSide, RankTimes
    from pytest_perfdl.results.verdict import Judgement

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


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank in a table, each time on both sides."""

    name: str
    marked: bool
    own: str
    own_delta_ns: int | None
    parts: tuple[str, ...]
    """Of the classes in `CLASSES`."""
    overlap: str


def rank_rows(ranks: RankComparison) -> list[RankRow]:
    """A row for each rank; without a baseline, or with another number of ranks, only the current side."""
    base = ranks.base
    before = base.ranks if base is not None and len(base.ranks) == len(ranks.new.ranks) else None
    rows = []
    for number, now in enumerate(ranks.new.ranks):
        then = None if before is None else before[number]
        marked = number == ranks.rank
        rows.append(
            RankRow(
                name=f"rank {number}" + (" ▸ changed" if marked else ""),
                marked=marked,
                own=_sides(None if then is None else then.own_ns, now.own_ns),
                own_delta_ns=None if then is None else now.own_ns - then.own_ns,
                parts=tuple(_sides(None if then is None else _of(then, name), _of(now, name)) for name in CLASSES),
                overlap=_overlaps(None if then is None else then.overlap, now.overlap),
            )
        )
    return rows


def _of(times: RankTimes, name: str) -> int:
    found: int = getattr(times, f"{name}_ns")
    return found


def _sides(base: int | None, new: int) -> str:
    now = format_quantity(new, "ns")
    if base is None:
        return now
    then = format_quantity(base, "ns")
    number, _, unit = then.partition(" ")
    return f"{number if now.endswith(f' {unit}') else then} -> {now}"


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
