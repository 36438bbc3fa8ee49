"""Interval arithmetic and ownership against sets of single nanoseconds."""

import random

import numpy as np
import pytest

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.nesting import ownership


def _of(*pairs):
    start, end = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Intervals.union_of(start, end)


def _pairs(intervals):
    return list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


def _points(intervals):
    return {moment for start, end in _pairs(intervals) for moment in range(start, end)}


def test_union_merges_what_overlaps_or_touches_and_drops_the_empty():
    assert _pairs(_of((5, 7), (0, 2), (1, 3), (3, 4), (9, 9), (6, 6))) == [(0, 4), (5, 7)]
    assert _pairs(_of((0, 10), (2, 3))) == [(0, 10)]
    assert _pairs(_of()) == []
    assert len(_of((1, 2), (3, 4))) == 2
    assert _of((1, 2), (3, 5)).length == 3


def test_between_is_empty_when_backwards():
    assert _pairs(Intervals.between(3, 5)) == [(3, 5)]
    assert _pairs(Intervals.between(5, 5)) == []
    assert _pairs(Intervals.between(7, 5)) == []


@pytest.mark.parametrize("seed", range(30))
def test_against_sets_of_points(seed):
    draw = random.Random(seed)

    def some():
        return [(start, start + draw.randrange(8)) for start in (draw.randrange(60) for _ in range(draw.randrange(9)))]

    pairs = some(), some()
    a, b = _of(*pairs[0]), _of(*pairs[1])
    assert _points(a) == {moment for start, end in pairs[0] for moment in range(start, end)}
    assert a.length == len(_points(a))
    results = {
        "union": (a.union(b), _points(a) | _points(b)),
        "intersection": (a.intersection(b), _points(a) & _points(b)),
        "difference": (a.difference(b), _points(a) - _points(b)),
        "clip": (a.clip(10, 40), _points(a) & set(range(10, 40))),
    }
    for found, expected in results.values():
        assert _points(found) == expected
        assert (found.start[1:] > found.end[:-1]).all(), "sorted, disjoint, not touching"
    moments = np.arange(-2, 72)
    assert a.contains(moments).tolist() == [moment in _points(a) for moment in range(-2, 72)]
    assert a.covered_before(moments).tolist() == [sum(p < moment for p in _points(a)) for moment in range(-2, 72)]
    assert a.within(moments, moments + 7).tolist() == [
        len(_points(a) & set(range(moment, moment + 7))) for moment in range(-2, 72)
    ]


def _owned(*pairs):
    """Owner of each piece by hand: (start, end, index)."""
    start, end = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    found = ownership(start, end)
    return list(zip(found.start.tolist(), found.end.tolist(), found.owner.tolist(), strict=True)), found


def test_a_parent_owns_what_its_children_leave():
    pieces, found = _owned((0, 10), (2, 4), (5, 9), (6, 7))
    assert pieces == [(0, 2, 0), (2, 4, 1), (4, 5, 0), (5, 6, 2), (6, 7, 3), (7, 9, 2), (9, 10, 0)]
    assert found.overlapping == 0


def test_a_child_that_outlives_its_parent_keeps_its_time_and_is_counted():
    pieces, found = _owned((0, 10), (8, 12), (12, 14))
    assert pieces == [(0, 8, 0), (8, 12, 1), (12, 14, 2)]
    assert found.overlapping == 1


def test_equal_empty_and_touching_events():
    pieces, found = _owned((0, 5), (0, 5), (3, 3), (5, 6))
    assert pieces == [(0, 3, 1), (3, 5, 1), (5, 6, 3)]
    assert found.overlapping == 0
    assert _owned()[0] == []


@pytest.mark.parametrize("seed", range(20))
def test_ownership_against_a_reading_moment_by_moment(seed):
    draw = random.Random(seed)
    pairs = sorted(
        ((start, start + draw.randrange(20)) for start in (draw.randrange(-50, 100) for _ in range(40))),
        key=lambda pair: (pair[0], -pair[1]),
    )
    pieces, _ = _owned(*pairs)
    owner = {moment: index for start, end, index in pieces for moment in range(start, end)}
    assert len(owner) == sum(end - start for start, end, _ in pieces), "pieces are disjoint"
    expected = {}
    for moment in range(-50, 130):
        running = [index for index, (start, end) in enumerate(pairs) if start <= moment < end]
        if running:
            expected[moment] = max(running)
    assert owner == expected
