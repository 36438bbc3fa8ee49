"""Stages of a matching: by name, by what launched a kernel, by order and likeness; and the words that they use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_perfdl.diff.matching.names import unnumbered, words

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from pytest_perfdl.diff.matching.match import PartialMatching, PartsOfSide
    from pytest_perfdl.diff.matching.names import About
    from pytest_perfdl.model.step_part import Part


# How much speaks against two parts being the same work, and the cheapest way to pair two sequences in order.


T = TypeVar("T")
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

    def both(of: Callable[[About], T]) -> tuple[list[T], list[T]]:
        return [of(each) for each in base], [of(each) for each in new]

    def evidence(share: float, known: tuple[list[bool], list[bool]], distance: _Matrix) -> None:
        weights = share * np.outer(*known).astype(np.float64)
        np.add(against, weights * distance, out=against)
        np.add(weight, weights, out=weight)

    always = both(lambda _: True)
    evidence(NAME, always, _unlike(*both(lambda each: words(each.name))))
    around, innermost = _unlike(*both(lambda each: frozenset(each.path))), _differ(*both(lambda each: each.operator))
    evidence(OPERATOR, both(lambda each: bool(each.part.path)), (around + innermost) / 2)
    evidence(SHAPES, both(lambda each: bool(each.part.shapes)), _differ(*both(lambda each: each.part.shapes)))
    module = _unlike(*both(lambda each: frozenset(each.part.module.split("."))))
    evidence(MODULE, both(lambda each: bool(each.part.module)), module)
    evidence(COUNT, always, np.minimum(1, _doublings(*both(lambda each: each.count)) * 4 / TIME_SPAN))
    evidence(TIME, always, np.minimum(1, _doublings(*both(lambda each: each.ns)) / TIME_SPAN))

    found: Costs = np.rint(UNIT * against / weight).astype(np.int32)
    phases = _differ(*both(lambda each: each.part.phase)) * np.outer(*both(lambda each: bool(each.part.phase)))
    found[phases.astype(bool)] = FORBIDDEN
    found[np.not_equal.outer(*both(lambda each: each.replaced is not None))] = FORBIDDEN
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


def _differ(base: Sequence[str], new: Sequence[str]) -> _Matrix:
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


# The stages that go by order and likeness: pairs within a class, and the alignment of what no class joins.


MOST_ALIGNED = 700
"""Parts a side that are aligned, those that take most time: a table of both sides' is half a million
cells."""
EVENLY = 0.5
"""Least cost that is too much. More of what is known must speak for a pair than against it: two names that share no
word (`stages.NAME`) are a pair only where next to everything else agrees."""
WHATEVER = 10.0
"""A limit above any cost: as many pairs as there can be."""
ALIGNED = 0.6
"""Confidence of an aligned pair that nothing speaks against."""


def pairs(ledger: PartialMatching, base: Sequence[int], new: Sequence[int], limit: float) -> list[tuple[int, int]]:
    """Pair the places of one class: one and one as they are, else in order by cost, below the limit.

    As many on both sides are paired the k-th with the k-th where there is no limit, as are more than `MOST_ALIGNED`.
    """
    if len(base) == len(new) == 1:
        return [(base[0], new[0])]
    if limit == WHATEVER and (len(base) == len(new) or max(len(base), len(new)) > MOST_ALIGNED):
        return list(zip(base, new, strict=False))
    return [(mine, theirs) for mine, theirs, _ in _by_cost(ledger, base, new, limit)]


def align(ledger: PartialMatching) -> None:
    """Pair what is left in the order of the step, kind by kind, where more speaks for a pair than against it.

    A pair's confidence is `ALIGNED` times one minus its cost. Idle time is not aligned: what a program now does is not
    what it did before because it takes as long.
    """
    mine, theirs = ledger.base.classes(_kind), ledger.new.classes(_kind)
    for kind, places in mine.items():
        if kind in theirs:
            for base, new, cost in _by_cost(ledger, places, theirs[kind], EVENLY):
                ledger.enter((base,), (new,), "aligned", ALIGNED * (1 - cost))


def _by_cost(
    ledger: PartialMatching, base: Sequence[int], new: Sequence[int], limit: float
) -> list[tuple[int, int, float]]:
    mine, theirs = ledger.base.largest(base, MOST_ALIGNED), ledger.new.largest(new, MOST_ALIGNED)
    cost = costs([ledger.base.known[place] for place in mine], [ledger.new.known[place] for place in theirs])
    return [
        (mine[row], theirs[column], int(cost[row, column]) / UNIT) for row, column in cheapest_in_order(cost, limit)
    ]


def _kind(each: About) -> Hashable:
    return each.part.kind if each.part.kind != "idle" else None


# The stages that go by the name: equal parts, then equal names in the same place, then equal names elsewhere.


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


def pair_in_place(ledger: PartialMatching) -> None:
    """Pair what has the same name in the same place, or in the same operator with the same shapes."""
    _run(ledger, _IN_PLACE)


def pair_elsewhere(ledger: PartialMatching) -> None:
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


_IN_PLACE = (
    # Equal but for the number of the user's line, then but for the line.
    _Pass(lambda each: (each.exact, each.part.path, each.place, unnumbered(each.part.line)), "exact", 0.99),
    _Pass(lambda each: (each.exact, each.part.path, each.place), "exact", 0.98),
    # The same name in the same place; the same normalized name there, with the same shapes or others.
    _Pass(lambda each: (each.exact, each.part.kind, each.path, each.part.module, each.part.phase), "name", 0.97),
    _Pass(lambda each: (each.name, each.place), "name", 0.95),
    _Pass(lambda each: (each.name, each.part.kind, each.path, each.part.module, each.part.phase), "name", 0.92),
    # In the same operator with the same shapes.
    _Pass(lambda each: (key := _operator_with_shapes(each)) and (each.exact, key), "name", 0.88),
    _Pass(lambda each: (key := _operator_with_shapes(each)) and (each.name, key), "name", 0.85),
)
_ELSEWHERE = (
    _Pass(
        lambda each: (each.name, each.part.kind, each.part.shapes, each.part.phase) if each.part.shapes else None,
        "name",
        0.75,
        EVENLY,
    ),
    _Pass(lambda each: (each.exact, each.part.kind, each.part.phase), "name", 0.7, EVENLY),
    _Pass(lambda each: (each.name, each.part.kind, each.part.phase), "name", 0.65, EVENLY),
)


# The stages that go by what launched a kernel: all kernels below one operator on both sides are the same work.


MOST_IN_GROUP = 16
"""Parts of both sides in a group: what one operator does. More say that it was no operator but a region."""
CROWDED = 0.05
"""What each part beyond two takes from a group's confidence, down to half of it."""
_ONE_THING = re.compile(r"(?!autograd::|torch::)\w+(?:::\w+)+|\w+Backward")
"""What does one thing, so that all below it is one work: not a region, an
optimizer's step, or the engine's evaluation of a node, which also sums gradients."""


def group_in_place(ledger: PartialMatching) -> None:
    """Group what one operator does in one place, with the same shapes: one with one, or n with m.

    Then a kernel that has no other side joins the pair that its operator has, if that is the only one and its kernel
    was exchanged for another: the second kernel is a part of that exchange (a product whose k is now split, and the
    sum over the pieces).
    """
    theirs = ledger.new.classes(_place)
    for place, mine in ledger.base.classes(_place).items():
        if place in theirs:
            _group(ledger, mine, theirs[place], 0.85)
    _join_pairs(ledger)


def group_elsewhere(ledger: PartialMatching) -> None:
    """Group what one operator does elsewhere: with the same shapes, or with the same operators around.

    Last comes what is below the nearest operator that both sides have around, whatever it hands the work to.
    """
    _by_instance(ledger, _operator_with_shapes, 0.7)
    _by_instance(ledger, _path, 0.65)
    _below_common_operators(ledger)


def _group(ledger: PartialMatching, base: Sequence[int], new: Sequence[int], confidence: float) -> None:
    """Enter the parts as a group, unless they are no one operator's."""
    each = ledger.base.known[base[0]]
    count = len(base) + len(new)
    if (_is_operator(each.operator) and count <= MOST_IN_GROUP) or (count == 2 and each.part.shapes):
        ledger.enter(base, new, "operator", _crowded(confidence, count))


def _crowded(confidence: float, count: int) -> float:
    """The confidence of a group of so many parts."""
    return confidence * max(0.5, 1 - CROWDED * (count - 2))


def _join_pairs(ledger: PartialMatching) -> None:
    pairs_of: dict[Hashable, list[int]] = {}
    for number, group in enumerate(ledger.groups):
        if group.by == "name" and len(group.base) == len(group.new) == 1:
            base, new = ledger.base.known[group.base[0]], ledger.new.known[group.new[0]]
            if base.part.kind == "kernel" and base.place == new.place and base.exact != new.exact:
                pairs_of.setdefault(base.place, []).append(number)
    mine, theirs = ledger.base.classes(_place), ledger.new.classes(_place)
    for place, numbers in pairs_of.items():
        alone = (mine.get(place, []), theirs.get(place, []))
        more = len(alone[0]) + len(alone[1])
        if len(numbers) == 1 and more and not all(alone) and more + 2 <= MOST_IN_GROUP:
            ledger.join(numbers[0], *alone, "operator", _crowded(0.85, more + 2))


def _by_instance(ledger: PartialMatching, key: Callable[[About], Hashable], confidence: float) -> None:
    """Pair the places of one key in order, and group what each pair of places holds."""
    mine, theirs = ledger.base.classes(key), ledger.new.classes(key)
    for value, places in mine.items():
        if value not in theirs:
            continue
        base, new = _instances(ledger.base, places), _instances(ledger.new, theirs[value])
        sure = 1.0 if len(base) == len(new) == 1 else 0.9
        for first, second in pairs(ledger, [*base], [*new], WHATEVER):
            _group(ledger, base[first], new[second], confidence * sure)


def _below_common_operators(ledger: PartialMatching) -> None:
    """The deepest operator on both sides' paths first; as many places below it on both sides are paired in order."""
    sides = ledger.base, ledger.new
    deepest = min(max((len(side.known[place].path) for place in side.left), default=0) for side in sides)
    for depth in range(deepest, 0, -1):

        def ancestor(each: About, depth: int = depth) -> Hashable:
            if len(each.path) < depth or not _is_operator(each.path[depth - 1]):
                return None
            return (each.part.kind, each.path[:depth], each.part.module, each.part.phase)

        mine, theirs = ledger.base.classes(ancestor), ledger.new.classes(ancestor)
        for value, places in mine.items():
            if value not in theirs:
                continue
            base, new = _instances(ledger.base, places), _instances(ledger.new, theirs[value])
            if len(base) == len(new):
                couples = [*zip(base.values(), new.values(), strict=True)]
            else:
                couples = [(places, theirs[value])]
            for first, second in couples:
                count = len(first) + len(second)
                if count <= MOST_IN_GROUP:
                    ledger.enter(first, second, "operator", _crowded(0.6, count))


@lru_cache(maxsize=1 << 14)
def _is_operator(name: str) -> bool:
    return bool(_ONE_THING.fullmatch(name))


def _instances(side: PartsOfSide, places: Sequence[int]) -> dict[int, list[int]]:
    """The parts by their place in the model, each under the first of them."""
    first: dict[Hashable, int] = {}
    found: dict[int, list[int]] = {}
    for place in places:
        head = first.setdefault(side.known[place].place, place)
        found.setdefault(head, []).append(place)
    return found


def _place(each: About) -> Hashable:
    return each.place if each.path else None


def _operator_with_shapes(each: About) -> Hashable:
    part = each.part
    return (part.kind, each.operator, part.shapes, part.phase) if each.path and part.shapes else None


def _path(each: About) -> Hashable:
    return (each.path, each.part.phase) if each.path and each.part.kind == "kernel" else None


# The words of a matching: parts with their weight in, groups of them out.


By = Literal["exact", "name", "operator", "aligned", "fused", "split", "added", "gone"]
ONE_SIDED: frozenset[By] = frozenset({"added", "gone"})
_EXCHANGED: dict[By, By] = {"fused": "split", "split": "fused", "added": "gone", "gone": "added"}


@dataclass(frozen=True, slots=True)
class Weighted:
    """One part of a step with what it weighs."""

    part: Part
    count: float
    """Occurrences in a step, the mean over steps."""
    ns: float
    """Nanoseconds in a step, the mean over steps."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parts of both sides that are the same work, or a part that only one side has."""

    base: tuple[int, ...]
    """Places in the baseline's sequence, ascending; empty for a part that was added."""
    new: tuple[int, ...]
    """Places in the new side's sequence, ascending; empty for a part that is gone."""
    by: By
    """What tells: the part itself, its normalized name, the operator above it, its place among its like, that a
    compiler fused the baseline's parts into the new side's ("fused") or the other way round ("split")."""
    confidence: float
    """How sure it is that both sides are the same work, from 0 to 1 (`match`); 1 where there is one side."""

    def exchanged(self) -> Group:
        """The same with the sides exchanged."""
        return Group(self.new, self.base, _EXCHANGED.get(self.by, self.by), self.confidence)
