"""Nesting by numpy against a stack, one event at a time, on every kind of overlap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.analysis.events.launches import by_thread
from pytest_perfdl.analysis.events.nesting import by_level, nest, nesting_order, ownership
from pytest_perfdl.trace import Category, read
from unit.trace.chrome import each_trace_file

spans = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 15)), max_size=14)


def columns(pairs):
    """Start and end in nesting order, of (start, duration)."""
    start = np.array([start for start, _ in pairs], dtype=np.int64)
    end = start + np.array([duration for _, duration in pairs], dtype=np.int64)
    order = nesting_order(start, end)
    return start[order], end[order]


def slow_pieces(start, end):
    """Pieces of time by owner, handed out with a stack; and how many events overlap."""
    pieces, running, now, overlapping = [], [], 0, 0

    def advance(until):
        nonlocal now
        while running and (until is None or now < until or running[-1][1] <= now):
            owner, its_end = running[-1]
            if its_end <= now:
                running.pop()
                continue
            reach = its_end if until is None else min(its_end, until)
            pieces.append((now, reach, owner))
            now = reach

    for index, (its_start, its_end) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        advance(its_start)
        now = its_start
        overlapping += bool(running) and running[-1][1] < its_end
        running.append((index, its_end))
    advance(None)
    return pieces, overlapping


def check_ownership(start, end):
    found = ownership(start, end)
    pieces, overlapping = slow_pieces(start, end)
    assert list(zip(found.start.tolist(), found.end.tolist(), found.owner.tolist(), strict=True)) == pieces
    assert found.overlapping == overlapping


@given(spans)
@settings(max_examples=300)
def test_order_is_by_start_then_longest_then_as_given(pairs):
    start = np.array([start for start, _ in pairs], dtype=np.int64)
    duration = np.array([duration for _, duration in pairs], dtype=np.int64)
    assert nesting_order(start, start + duration).tolist() == np.lexsort((-duration, start)).tolist()


@pytest.mark.long
@given(spans)
@settings(max_examples=500)
def test_parents_are_the_innermost_events_that_contain(pairs):
    start, end = columns(pairs)
    forest = nest(start, end)
    for index in range(len(start)):
        around = [
            other for other in range(index) if start[other] <= start[index] < end[other] and end[other] >= end[index]
        ]
        parent = max(around, default=-1)
        assert forest.parent[index] == parent
        assert forest.depth[index] == (forest.depth[parent] + 1 if parent >= 0 else 0)
    bled = set(forest.bled.tolist())
    for index in range(len(start)):
        running = [other for other in range(index) if start[other] <= start[index] < end[other]]
        assert (index in bled) == bool(running and end[max(running)] < end[index])
    assert (forest.end <= end).all()


@pytest.mark.long
@given(spans)
@settings(max_examples=500)
def test_ownership_equals_the_stack_piece_by_piece(pairs):
    check_ownership(*columns(pairs))


@given(spans)
def test_the_owner_of_a_moment_is_that_of_its_piece(pairs):
    start, end = columns(pairs)
    pieces, _ = slow_pieces(start, end)
    moments = np.unique(np.concatenate((start, end, end + 1)))
    owners = [[owner for first, last, owner in pieces if first <= moment < last] for moment in moments.tolist()]
    assert ownership(start, end).at(moments).tolist() == [owner[0] if owner else -1 for owner in owners]


@each_trace_file
def test_ownership_on_public_traces(path):
    trace = read(path)
    operators = np.flatnonzero(np.isin(trace.category, (Category.CPU_OP, Category.PYTHON_FUNCTION)))
    for rows in by_thread(trace, operators):
        check_ownership(trace.start[rows], trace.start[rows] + trace.duration[rows])


@pytest.mark.parametrize("depth", [1, 2**15 - 1, 2**15 + 7], ids=["flat", "widest-16-bit", "wider"])
def test_deep_nests_of_equal_ends(depth):
    start = np.arange(depth, dtype=np.int64)
    forest = nest(start, np.full(depth, depth, dtype=np.int64))
    assert forest.parent.tolist() == list(range(-1, depth - 1))
    assert forest.depth.tolist() == list(range(depth))
    assert len(forest.bled) == 0


def test_levels_of_nothing():
    order, bounds = by_level(np.zeros(0, dtype=np.int32))
    assert (order.tolist(), bounds.tolist()) == ([], [0])
    assert len(nest(*columns([])).parent) == 0
