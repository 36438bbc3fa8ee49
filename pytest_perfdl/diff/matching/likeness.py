"""How much speaks against two parts being the same work, and the cheapest way to pair two sequences in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_perfdl.diff.matching.names import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_perfdl.diff.matching.normalized import About

Costs: TypeAlias = npt.NDArray[np.int32]
_Matrix: TypeAlias = npt.NDArray[np.float64]

NAME, OPERATOR, SHAPES, MODULE, COUNT, TIME = 0.4, 0.2, 0.1, 0.1, 0.1, 0.1
"""What each kind of evidence weighs; together 1."""
UNIT = 1000
"""A cost of one: costs are whole numbers, so that equal ones are equal on every machine."""
FORBIDDEN = 1000 * UNIT
TIME_SPAN = 4.0
"""Times that differ by so many doublings, and counts by a quarter of that, have nothing in common."""


def costs(base: Sequence[About], new: Sequence[About]) -> Costs:
    """The share of the evidence that speaks against each pair, shape (base, new), in units of 1 / `UNIT`.

    The weighted mean over what is known of both: words of the normalized name, operators around it, components of the
    module's path (each one minus Dice's coefficient 2 |A & B| / (|A| + |B|); half of the operators' is whether the
    innermost is the same), shapes and occurrences (alike or not), and time (doublings between them, over `TIME_SPAN`).
    Forward and backward are never the same, nor is what a compiler made and what it did not: `FORBIDDEN`.
    """
    against = np.zeros((len(base), len(new)), dtype=np.float64)
    weight = np.zeros_like(against)

    def evidence(share: float, known_base: list[bool], known_new: list[bool], distance: _Matrix) -> None:
        known = share * np.outer(known_base, known_new).astype(np.float64)
        np.add(against, known * distance, out=against)
        np.add(weight, known, out=weight)

    always = [True] * len(base), [True] * len(new)
    evidence(NAME, *always, _unlike([words(each.name) for each in base], [words(each.name) for each in new]))
    around = _unlike([frozenset(each.path) for each in base], [frozenset(each.path) for each in new])
    innermost = _differ([each.operator for each in base], [each.operator for each in new])
    evidence(OPERATOR, *_known(base, new, "path"), (around + innermost) / 2)
    shapes = _differ([each.part.shapes for each in base], [each.part.shapes for each in new])
    evidence(SHAPES, *_known(base, new, "shapes"), shapes)
    module = _unlike(
        [frozenset(each.part.module.split(".")) for each in base],
        [frozenset(each.part.module.split(".")) for each in new],
    )
    evidence(MODULE, *_known(base, new, "module"), module)
    doublings = _doublings([each.count for each in base], [each.count for each in new])
    evidence(COUNT, *always, np.minimum(1, doublings * 4 / TIME_SPAN))
    doublings = _doublings([each.ns for each in base], [each.ns for each in new])
    evidence(TIME, *always, np.minimum(1, doublings / TIME_SPAN))

    found: Costs = np.rint(UNIT * against / weight).astype(np.int32)
    phases = _differ([each.part.phase for each in base], [each.part.phase for each in new])
    known_base, known_new = _known(base, new, "phase")
    found[(phases * np.outer(known_base, known_new)).astype(bool)] = FORBIDDEN
    made_base = np.array([each.replaced is not None for each in base], dtype=bool)
    made_new = np.array([each.replaced is not None for each in new], dtype=bool)
    found[made_base[:, None] != made_new] = FORBIDDEN
    return found


def cheapest_in_order(cost: Costs, limit: float) -> list[tuple[int, int]]:
    """The ordered pairs of rows and columns whose cost is least in all, where leaving one out costs limit / 2.

    So no pair costs as much as `limit` (in units of one): it would cost no more to leave both out. Of equally cheap
    ways the one that pairs the earliest. Needleman and Wunsch's recursion (1970), a row at a time: the steps along a
    row are a running minimum.
    """
    rows, columns = cost.shape
    skip = round(limit * UNIT / 2)
    along = np.arange(columns + 1, dtype=np.int64) * skip
    least = np.empty((rows + 1, columns + 1), dtype=np.int64)
    least[0] = along
    for row in range(rows):
        best = least[row] + skip
        np.minimum(best[1:], least[row, :-1] + cost[row], out=best[1:])
        least[row + 1] = np.minimum.accumulate(best - along) + along
    pairs = []
    row, column = rows, columns
    while row and column:
        here = least[row, column]
        if here == least[row - 1, column] + skip:
            row -= 1
        elif here == least[row, column - 1] + skip:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]


def _known(base: Sequence[About], new: Sequence[About], what: str) -> tuple[list[bool], list[bool]]:
    return [bool(getattr(each.part, what)) for each in base], [bool(getattr(each.part, what)) for each in new]


def _unlike(base: list[frozenset[str]], new: list[frozenset[str]]) -> _Matrix:
    """One minus Dice's coefficient; 0 for two empty sets."""
    places = {word: place for place, word in enumerate(sorted(frozenset().union(*base, *new)))}
    first, second = _held(base, places), _held(new, places)
    sizes = first.sum(axis=1)[:, None] + second.sum(axis=1)
    return 1 - 2 * (first @ second.T) / np.maximum(sizes, 1) if places else np.zeros_like(sizes)


def _held(sets: list[frozenset[str]], places: dict[str, int]) -> _Matrix:
    found = np.zeros((len(sets), len(places)), dtype=np.float64)
    for row, each in enumerate(sets):
        found[row, [places[word] for word in each]] = 1
    return found


def _differ(base: list[str], new: list[str]) -> _Matrix:
    codes: dict[str, int] = {}
    first = np.array([codes.setdefault(text, len(codes)) for text in base])
    second = np.array([codes.setdefault(text, len(codes)) for text in new])
    found: _Matrix = (first[:, None] != second).astype(np.float64)
    return found


def _doublings(base: list[float], new: list[float]) -> _Matrix:
    """How many doublings are between two figures; what is below one counts as one."""
    first = np.log2(np.maximum(np.array(base, dtype=np.float64), 1))
    second = np.log2(np.maximum(np.array(new, dtype=np.float64), 1))
    found: _Matrix = np.abs(first[:, None] - second)
    return found
