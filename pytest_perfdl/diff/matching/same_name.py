"""The stages that go by the name: equal parts, then equal names in the same place, then equal names elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_perfdl.diff.matching.normalized import unnumbered
from pytest_perfdl.diff.matching.order import EVENLY, WHATEVER, pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pytest_perfdl.diff.matching.groups import By
    from pytest_perfdl.diff.matching.matched import PartialMatching
    from pytest_perfdl.diff.matching.normalized import About
    from pytest_perfdl.model.step_part import Part

AMBIGUOUS = 0.9
"""What remains of the confidence where several parts could be paired otherwise."""


class _Pass(NamedTuple):
    """Parts are paired within the classes that have this key."""

    key: Callable[[About], Hashable]
    by: By
    confidence: float
    limit: float = WHATEVER


def equal(ledger: PartialMatching) -> None:
    """Pair equal parts; the k-th with the k-th, should a side have several."""
    places: dict[Part, list[int]] = {}
    for place in ledger.new.left:
        places.setdefault(ledger.new.parts[place].part, []).append(place)
    for found in places.values():
        found.reverse()
    for place in list(ledger.base.left):
        same = places.get(ledger.base.parts[place].part)
        if same:
            ledger.enter((place,), (same.pop(),), "exact", 1.0)


def in_place(ledger: PartialMatching) -> None:
    """Pair what has the same name in the same place, or in the same operator with the same shapes."""
    _run(ledger, _IN_PLACE)


def elsewhere(ledger: PartialMatching) -> None:
    """Pair what has the same name wherever it is: the only ones of that name, else in order and by likeness."""
    _run(ledger, _ELSEWHERE)


def _run(ledger: PartialMatching, passes: Iterable[_Pass]) -> None:
    for key, by, confidence, limit in passes:
        theirs = ledger.new.classes(key)
        for value, mine in ledger.base.classes(key).items():
            if value not in theirs:
                continue
            sure = 1.0 if len(mine) == len(theirs[value]) == 1 else AMBIGUOUS
            for base, new in pairs(ledger, mine, theirs[value], limit):
                ledger.enter((base,), (new,), by, confidence * sure)


def _on_a_moved_line(each: About) -> Hashable:
    return (each.exact, each.part.path, each.place, unnumbered(each.part.line))


def _on_another_line(each: About) -> Hashable:
    return (each.exact, each.part.path, each.place)


def _same_name_here(each: About) -> Hashable:
    return (each.exact, each.part.kind, each.path, each.part.module, each.part.phase)


def _alike_here_with_shapes(each: About) -> Hashable:
    return (each.name, each.place)


def _alike_here(each: About) -> Hashable:
    return (each.name, each.part.kind, each.path, each.part.module, each.part.phase)


def _same_name_in_operator(each: About) -> Hashable:
    part = each.part
    return (each.exact, part.kind, each.operator, part.shapes, part.phase) if each.path and part.shapes else None


def _alike_in_operator(each: About) -> Hashable:
    part = each.part
    return (each.name, part.kind, each.operator, part.shapes, part.phase) if each.path and part.shapes else None


def _alike_with_shapes(each: About) -> Hashable:
    part = each.part
    return (each.name, part.kind, part.shapes, part.phase) if part.shapes else None


def _same_name(each: About) -> Hashable:
    return (each.exact, each.part.kind, each.part.phase)


def _alike(each: About) -> Hashable:
    return (each.name, each.part.kind, each.part.phase)


_IN_PLACE = (
    _Pass(_on_a_moved_line, "exact", 0.99),
    _Pass(_on_another_line, "exact", 0.98),
    _Pass(_same_name_here, "name", 0.97),
    _Pass(_alike_here_with_shapes, "name", 0.95),
    _Pass(_alike_here, "name", 0.92),
    _Pass(_same_name_in_operator, "name", 0.88),
    _Pass(_alike_in_operator, "name", 0.85),
)
_ELSEWHERE = (
    _Pass(_alike_with_shapes, "name", 0.75, EVENLY),
    _Pass(_same_name, "name", 0.7, EVENLY),
    _Pass(_alike, "name", 0.65, EVENLY),
)
