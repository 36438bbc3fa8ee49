"""The ranks of a job on one clock: which of their calls belong together, and what to add to the times of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.ranks.activity import RankActivity
from pytest_perfdl.analysis.ranks.calls import ROOTED
from pytest_perfdl.trace.model import F64, I64, Rows

# Which calls of several ranks are the same collective, or the two ends of one message.


SHIFTS = 4
"""Collectives that one rank may have recorded and another not, at the beginning, when numbers differ."""

OVERLAP = 2
"""A collective of a device runs on all ranks for at least one part in so many of the shortest rank's time; what does
not, and has no sequence number, is not the same one."""

TOLERANCE_NS = 10_000
"""How much before the last rank's start a collective on the CPU may end on another rank, as the clocks disagree."""

STEADY = 3
"""Ends of calls that are one collective differ as steadily as those of the steadiest groups, up to this factor."""

STEADY_NS = 2_000
"""And up to this, which ends of one collective vary by anyway."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What turns one rank's times into those of the first rank."""

    offset: int = 0
    """Nanoseconds to add at the moment `at`."""
    drift: float = 0.0
    """What the offset changes by per nanosecond."""
    at: int = 0

    def moved(self, time: I64) -> I64:
        """Moments of the rank on the first rank's clock."""
        return np.asarray(time + self.offset + np.rint((time - self.at) * self.drift).astype(np.int64))

    def moved_all(self, times: Intervals) -> Intervals:
        """The same of intervals."""
        return Intervals(self.moved(times.start), self.moved(times.end))


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Calls of one group and kind that belong together: one line per collective, one column per member."""

    group: str
    kind: str
    places: tuple[int, ...]
    """Places of the members among the ranks given; of a message sender and receiver."""
    call: Rows
    """Index into each member's `Calls`, shape (collectives, members)."""
    certain: bool
    """Whether the trace says that they belong together: by sequence number."""

    @property
    def message(self) -> bool:
        """Whether these are messages from one rank to another."""
        return self.kind == "send"

    def times(self, ranks: Sequence[RankActivity], clocks: Sequence[Clock]) -> tuple[I64, I64]:
        """Starts and ends on the first rank's clock, of the shape of `call`."""
        columns = list(zip(self.places, self.call.T, strict=True))
        start = [clocks[place].moved(ranks[place].calls.start[own]) for place, own in columns]
        end = [clocks[place].moved(ranks[place].calls.end[own]) for place, own in columns]
        return np.stack(start, axis=1), np.stack(end, axis=1)

    def only(self, keep: npt.NDArray[np.bool_]) -> Matched:
        """Some of the collectives."""
        return replace(self, call=self.call[keep])

    def columns(self, kept: Sequence[int], lines: npt.NDArray[np.bool_]) -> Matched:
        """Some collectives of some members."""
        places = tuple(self.places[column] for column in kept)
        return replace(self, places=places, call=self.call[lines][:, list(kept)])


def candidates(ranks: Sequence[RankActivity], numbers: Sequence[int]) -> list[Matched]:
    """Calls that may be the same: by group, kind and `Seq`, or by order.

    A group's members are the given ranks that the group lists, or that have calls in it where it lists none. Messages
    are paired by group, sender and receiver.
    """
    calls: defaultdict[tuple[str, tuple[int, ...], str], dict[int, list[int]]] = defaultdict(dict)
    sent: defaultdict[tuple[str, int, int], dict[str, list[int]]] = defaultdict(dict)
    for place, (rank, number) in enumerate(zip(ranks, numbers, strict=True)):
        own = rank.calls
        columns = (own.kinds, own.group, own.members, own.peer.tolist())
        for index, (kind, group, members, peer) in enumerate(zip(*columns, strict=True)):
            if kind in ("send", "recv") and peer >= 0:
                ends = (number, peer) if kind == "send" else (peer, number)
                message = (group, *ends)
                sent[message].setdefault(kind, []).append(index)
            else:
                key = kind if kind != "other" else own.name[index]
                calls[group, members, key].setdefault(place, []).append(index)
    found: list[Matched] = []
    for (group, members, kind), by_place in calls.items():
        expected = {place for place, number in enumerate(numbers) if number in members} or set(by_place)
        if len(expected) > 1 and expected == set(by_place):
            found += _split_groups(
                _pair_calls(ranks, group, kind if kind.islower() else "other", by_place), ranks, numbers
            )
    place_of = {number: place for place, number in enumerate(numbers)}
    for (group, source, target), by_kind in sent.items():
        if len(by_kind) == 2 and source in place_of and target in place_of and source != target:
            ends_of = {place_of[source]: by_kind["send"], place_of[target]: by_kind["recv"]}
            found.append(_pair_calls(ranks, group, "send", ends_of))
    return [each for each in found if len(each.call)]


def _pair_calls(ranks: Sequence[RankActivity], group: str, kind: str, by_place: Mapping[int, Sequence[int]]) -> Matched:
    """Pairs by `Seq`; messages by order, as each rank counts its own."""
    own = {place: np.array(indices, dtype=np.intp) for place, indices in by_place.items()}
    keyed = {place: _keys(ranks[place].calls.sequence[indices]) for place, indices in own.items()}
    certain = all(keyed.values()) and kind != "send"
    if certain:
        common = sorted(set.intersection(*(set(keys) for keys in keyed.values())))
        place_in = {place: {key: at for at, key in enumerate(keys)} for place, keys in keyed.items()}
        chosen = {place: [place_in[place][key] for key in common] for place in own}
    else:
        chosen = _by_order({place: ranks[place].calls.end[indices] for place, indices in own.items()})
    columns = [own[place][np.array(chosen[place], dtype=np.intp)] for place in own]
    return Matched(group, kind, tuple(own), np.stack(columns, axis=1), certain)


def _keys(sequence: I64) -> list[tuple[int, int]]:
    """`Seq` of each call and how many before it have the same; empty if one has none."""
    if len(sequence) and int(sequence.min()) < 0:
        return []
    seen: defaultdict[int, int] = defaultdict(int)
    keys = []
    for number in sequence.tolist():
        keys.append((number, seen[number]))
        seen[number] += 1
    return keys


def _by_order(ends: Mapping[int, I64]) -> dict[int, list[int]]:
    """Places that belong together: the nth with the nth, where numbers differ shifted so that ends agree best."""
    count = min(len(each) for each in ends.values())
    shortest = next(each for each in ends.values() if len(each) == count)
    places = {}
    for rank, each in ends.items():
        shifts = range(min(SHIFTS, len(each) - count) + 1)
        spread = [_spread(each[shift : shift + count] - shortest) for shift in shifts]
        best = spread.index(min(spread))
        places[rank] = list(range(best, best + count))
    return places


def _spread(values: I64) -> float:
    return float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def together(start: I64, end: I64, *, kind: str = "", on_device: bool = True) -> npt.NDArray[np.bool_]:
    """Which collectives run on all ranks at once long enough to be one: see `OVERLAP` and `TOLERANCE_NS`.

    On the CPU threads wait for a core, so that there only the order counts: none ends before all have started; and
    with one rank as root not even that.
    """
    shared = end.min(axis=1) - start.max(axis=1)
    if on_device:
        return np.asarray((shared * OVERLAP >= (end - start).min(axis=1)) & (shared >= 0))
    return np.asarray((shared >= -TOLERANCE_NS) | (kind in ROOTED))


def confirm(matched: Sequence[Matched], ranks: Sequence[RankActivity], clocks: Sequence[Clock]) -> Iterator[Matched]:
    """What is the same collective indeed, once the clocks are aligned.

    Calls that a sequence number pairs are taken as they are, and so are messages. Of others those that do not run
    together are left out.
    """
    for each in matched:
        if each.certain or each.message:
            yield each
        else:
            on_device = any(ranks[place].on_device for place in each.places)
            yield each.only(together(*each.times(ranks, clocks), kind=each.kind, on_device=on_device))


def _split_groups(each: Matched, ranks: Sequence[RankActivity], numbers: Sequence[int]) -> Iterator[Matched]:
    """Calls of groups that the trace does not name (gloo), told apart by size and by how steadily their ends differ.

    The nth call of a kind may be one of all ranks, or one of several smaller groups each. On whichever clocks, the ends
    of one collective differ by about the same each time; those of calls of different groups do not. So calls of a size
    are those of the largest groups that `distributedInfo` lists whose ends differ about as steadily as any.
    """
    partitions = _partitions(each, ranks, numbers) if each.group == "host" and not each.certain else []
    if not partitions:
        yield each
        return
    ways = sorted([[list(range(len(each.places)))], *partitions], key=len)
    size = ranks[each.places[0]].calls.bytes[each.call[:, 0]]
    _, end = each.times(ranks, [Clock()] * len(ranks))
    for own in np.unique(size):
        lines = size == own
        varies = [max(_measure_variation(end[lines][:, columns]) for columns in way) for way in ways]
        limit = STEADY * min(varies) + STEADY_NS
        for columns in next(way for way, each_ in zip(ways, varies, strict=True) if each_ <= limit):
            yield each.columns(columns, lines)


def _measure_variation(end: I64) -> float:
    """Median deviation of the ends' differences to the first member from their median, the worst member's."""
    apart = end - end[:, :1]
    return float(np.median(np.abs(apart - np.median(apart, axis=0)), axis=0).max())


def _partitions(each: Matched, ranks: Sequence[RankActivity], numbers: Sequence[int]) -> list[list[list[int]]]:
    """Ways to split the members into groups of one size that `distributedInfo` lists, as columns."""
    sets = {frozenset(members) for place in each.places for members in ranks[place].groups.values()}
    given = [numbers[place] for place in each.places]
    groups = sorted({tuple(at for at, number in enumerate(given) if number in members) for members in sets})
    groups = [group for group in groups if 1 < len(group) < len(given)]
    found = []
    for first in groups:
        if first[0] != 0:
            continue
        parts, left = [list(first)], set(range(len(given))) - set(first)
        for group in groups:
            if len(group) == len(first) and left.issuperset(group):
                parts.append(list(group))
                left -= set(group)
        if not left:
            found.append(parts)
    return found


# What to add to the times of each rank so that all are on one clock.


Mask = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max
"""Longer than any call."""

STRETCHES = 20
"""Parts of the trace between whose medians a drift's slopes are taken."""

OFFSETS = 101
"""Differences of collectives' ends that are tried as the offset between two clocks, spread over all of them."""

COMPARED = 1000
"""Calls that these are compared by, spread over all."""

MOST = 0.5
"""Ranks of one host share a clock if so large a part of the collectives among them run together then."""

LONGER = 1.05
"""Groups whose calls of a size take longer than another group's by this factor do not tell the clocks."""

SMALL = 8
"""Calls whose bytes are less than the median's by this factor tell the clocks alone: over a slow link the ranks of a
large one do not end at once."""

SHORT = 4
"""The same of durations, where bytes are unknown: small calls take the latency of a ring, too."""

LEAST_SMALL = 3
"""Fewer of them are too few to align clocks on."""

LEAST_DRIFTING = 12
"""Calls from which on a drift is looked for."""

FASTEST_DRIFT = 5e-4
"""Clocks of hosts drift by up to a few hundred microseconds per second; more is no drift."""

BETTER = 0.8
"""A drift is one if the ends disagree by at most so large a part of what they do without."""


def align_clocks(ranks: Sequence[RankActivity], matched: Sequence[Matched]) -> list[Clock]:
    """What turns each rank's times into those of the first rank.

    `baseTimeNanoseconds` ties a trace to a host's clock, and hosts agree only to milliseconds. A collective ends
    on all ranks nearly at once, so clocks are aligned on ends: by the difference that lets most calls overlap, then by
    the median over the calls that do: of small ones where there are some, else of groups that take no longer for them
    than others. Ranks of one host (`host_name`) have one clock. Hosts are aligned one after the other, the one with the
    shortest calls in common with those that are already aligned first, as the ends of a call differ by less than it
    takes. Messages tell where there is no such call, and correct what contradicts them. A drift is fitted where it
    makes the ends agree better (median of the slopes between medians of stretches, after Theil and Sen).

    A rank without anything in common with the others keeps its own clock.
    """
    clocks: list[Clock | None] = [None] * len(ranks)
    left = _units(ranks, matched)
    for place in left.pop(0) if left else ():
        clocks[place] = Clock()
    quick = {id(each): _third_shortest(each, ranks) for each in matched}
    while left:
        near = [[each for each in matched if _joins(each, unit, clocks)] for unit in left]
        order = [min((quick[id(each)] for each in own), default=NEVER) for own in near]
        at = order.index(min(order))
        unit, own = left.pop(at), near[at]
        for told in (_by_collectives, _within_bounds):
            clock = told(ranks, own, clocks, unit)
            for place in unit:
                clocks[place] = clock
    return _known(clocks)


def _known(clocks: Sequence[Clock | None]) -> list[Clock]:
    """The clocks, of ranks that are not aligned yet their own."""
    return [clock or Clock() for clock in clocks]


def _joins(each: Matched, unit: Sequence[int], clocks: Sequence[Clock | None]) -> bool:
    """Whether calls are of a rank that is to be aligned and of one that is."""
    return not set(each.places).isdisjoint(unit) and any(clocks[place] for place in each.places)


def _third_shortest(each: Matched, ranks: Sequence[RankActivity]) -> int:
    """Duration, on the member that it is shortest on, which is about the last to come: no clock is needed."""
    columns = zip(each.places, each.call.T, strict=True)
    taken = np.min([ranks[place].calls.end[own] - ranks[place].calls.start[own] for place, own in columns], axis=0)
    return int(np.sort(taken)[:LEAST_SMALL][-1])


def _units(ranks: Sequence[RankActivity], matched: Sequence[Matched]) -> list[list[int]]:
    """Ranks that share a clock: those of one host, unless most of their own collectives do not run together then."""
    hosts: dict[str, list[int]] = {}
    for place, rank in enumerate(ranks):
        hosts.setdefault(rank.host or f" {place}", []).append(place)
    found: list[list[int]] = []
    unmoved = [Clock()] * len(ranks)
    for unit in hosts.values():
        within = [each for each in matched if set(each.places) <= set(unit) and not each.message]
        run = [together(*each.times(ranks, unmoved), kind=each.kind, on_device=False) for each in within]
        fits = not run or float(np.mean(np.concatenate(run))) >= MOST
        found += [unit] if fits else [[place] for place in unit]
    return sorted(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """What aligned ranks (first column) and one that is not (second column) have in common."""

    start: I64
    end: I64
    bytes: I64
    certain: Mask
    own_end: I64
    """On the rank's own clock."""
    shortest: I64
    """Duration on the member that it is shortest on."""
    group: I64
    """Which of several groups it is of."""

    def overlapping(self, moved: I64) -> Mask:
        """Which run at the same time on both if this is added to the second's times."""
        move = np.stack((np.zeros_like(moved), moved), axis=1)
        return together(self.start + move, self.end + move) | self.certain

    def only(self, keep: Mask | Rows) -> _Pairs:
        """Some of them."""
        return _Pairs(*(getattr(self, name)[keep] for name in _Pairs.__slots__))


def _by_collectives(
    ranks: Sequence[RankActivity], matched: Sequence[Matched], clocks: Sequence[Clock | None], unit: Sequence[int]
) -> Clock:
    """The clock that collectives tell; the ranks' own where there are none."""
    chosen = [(each, place) for each in matched if not each.message for place in each.places if place in unit]
    if not chosen:
        return Clock()
    number = {id(each): at for at, (each, _) in enumerate(chosen)}
    found = [_pair_with_aligned(ranks, each, clocks, place, number[id(each)]) for each, place in chosen]
    pairs = _Pairs(*(np.concatenate([getattr(each, name) for each in found]) for name in _Pairs.__slots__))
    # Differences to one of the collectives are small enough for exact floats.
    difference = pairs.end[:, 0] - pairs.end[:, 1]
    best = _typical(difference - difference[0]) + int(difference[0])
    if not pairs.certain.all():
        some = np.unique(np.linspace(0, len(difference) - 1, COMPARED).astype(np.intp))
        best = _best(pairs.only(some), difference[some])
    keep = pairs.overlapping(np.full_like(difference, best))
    return _fit(pairs.only(keep), difference[keep], best)


def _within_bounds(
    ranks: Sequence[RankActivity], matched: Sequence[Matched], clocks: Sequence[Clock | None], unit: Sequence[int]
) -> Clock:
    """The clock that the ranks have, where messages allow it, else one in the middle of what they allow.

    No message is received before it is sent.
    As in NTP (RFC 5905), messages in both directions bound the offset from both sides, and the quickest ones are taken
    to be equally fast. A device has sent when its kernel ends; without one, when the call began, as its annotation
    ends when somebody waits for it.
    """
    least: list[int] = []
    most: list[int] = []
    for each in matched:
        if each.message:
            start, end = each.times(ranks, _known(clocks))
            sent = end if all(ranks[place].on_device for place in each.places) else start
            quickest = int((end[:, 1] - sent[:, 0]).min())
            if each.places[1] in unit:
                least.append(-quickest)
            else:
                most.append(quickest)
    if least and most:
        first, last = sorted((max(least), min(most)))
        agrees = first <= 0 <= last and not all(each.message for each in matched)
        more = 0 if agrees else (first + last) // 2
    else:
        # A bound on one side says nothing of a clock that keeps to it.
        more = max(0, *least) if least else min(0, *most) if most else 0
    clock = clocks[unit[0]] or Clock()
    return replace(clock, offset=clock.offset + more)


def _best(pairs: _Pairs, difference: I64) -> int:
    """The offset that lets most calls overlap, and of several such the one that their ends agree best by."""
    tried = np.unique(difference)
    tried = tried[np.unique(np.linspace(0, len(tried) - 1, OFFSETS).astype(np.intp))]
    every = np.ones_like(difference)

    def quality(offset: int) -> tuple[int, int]:
        keep = pairs.overlapping(every * offset)
        return int(np.count_nonzero(keep)), -_typical(np.abs(difference - offset)[keep])

    best: int = max(tried.tolist(), key=quality)
    return best


def _fit(pairs: _Pairs, difference: I64, about: int) -> Clock:
    size, factor = (pairs.bytes, SMALL) if (pairs.bytes >= 0).all() else (pairs.shortest, SHORT)
    small = size * factor <= np.median(size) if len(size) else np.zeros(0, dtype=bool)
    keep = small if np.count_nonzero(small) >= LEAST_SMALL else _find_healthy(pairs)
    pairs, difference = pairs.only(keep), difference[keep]
    if not len(difference):
        return Clock(about)
    off = (difference - about).astype(np.float64)
    level = round(float(np.median(off)))
    at = int(pairs.own_end[0])
    time = (pairs.own_end - at).astype(np.float64)
    middle = float(np.median(time))
    if len(off) >= LEAST_DRIFTING and np.ptp(time) > 0:
        parts = np.array_split(np.argsort(time, kind="stable"), min(STRETCHES, len(off) // 3))
        x, y = (np.array([np.median(values[part]) for part in parts]) for values in (time, off))
        first, second = np.triu_indices(len(parts), 1)
        apart = x[second] > x[first]
        slopes = (y[second] - y[first])[apart] / (x[second] - x[first])[apart]
        slope = float(np.median(slopes)) if len(slopes) else 0.0
        fitted = off - slope * (time - middle)
        drifting = float(np.median(fitted))
        if abs(slope) <= FASTEST_DRIFT and _about(fitted, drifting) <= BETTER * _about(off, level):
            return Clock(about + round(drifting), slope, at + round(middle))
    return Clock(about + level, 0.0, at)


def _find_healthy(pairs: _Pairs) -> Mask:
    """Calls of groups that take no longer than other groups do: over a slow link ranks do not end at once."""
    found = np.ones(len(pairs.bytes), dtype=bool)
    for size in np.unique(pairs.bytes):
        own = pairs.bytes == size
        typical = {
            group: np.median(pairs.shortest[own & (pairs.group == group)]) for group in np.unique(pairs.group[own])
        }
        slow = [group for group, each in typical.items() if each > LONGER * min(typical.values())]
        found[own & np.isin(pairs.group, slow)] = False
    return found


def _about(values: F64, middle: float) -> float:
    return float(np.median(np.abs(values - middle)))


def _pair_with_aligned(
    ranks: Sequence[RankActivity], each: Matched, clocks: Sequence[Clock | None], place: int, group: int
) -> _Pairs:
    column = each.places.index(place)
    known = [at for at, other in enumerate(each.places) if clocks[other]]
    start, end = each.times(ranks, _known(clocks))
    typical = np.median(end[:, known] - end[:, known[:1]], axis=1).astype(np.int64)
    own = each.call[:, column]
    return _Pairs(
        start=np.stack((start[:, known].max(axis=1), start[:, column]), axis=1),
        end=np.stack((end[:, known[0]] + typical, end[:, column]), axis=1),
        bytes=ranks[place].calls.bytes[own],
        certain=np.full(len(own), each.certain),
        own_end=ranks[place].calls.end[own],
        shortest=(end - start).min(axis=1),
        group=np.full(len(own), group),
    )


def _typical(values: I64) -> int:
    return round(float(np.median(values))) if len(values) else 0
