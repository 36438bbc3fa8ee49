"""Call trees by hand, and on random nests."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.analysis.events.launches import call_tree, launches, launching_operator, pair_codes
from pytest_perfdl.trace import read
from unit.analysis.slow_operators import Operators
from unit.trace.chrome import each_trace_file, kernel, launch, step, trace, x


def parents(*events):
    """Name of each event's parent, by its own name."""
    read = trace(*events)
    tree = call_tree(read)
    return {
        read.name_of(row): read.name_of(above) if above >= 0 else None for row, above in enumerate(tree.parent.tolist())
    }


def frame(name, ts, dur, **more):
    return x(name, ts, dur, "python_function", **more)


def test_all_host_categories_nest_in_one_another_and_threads_apart():
    assert parents(
        step(1, 0, 100),
        frame("train.py(3): step", 1, 90),
        x("aten::linear", 2, 50),
        x("aten::addmm", 3, 40),
        launch(4, 5, 1),
        x("elsewhere", 3, 10, tid=9),
        x("other process", 3, 10, pid=7),
        kernel("gemm", 20, 60, 1),
    ) == {
        "ProfilerStep#1": None,
        "train.py(3): step": "ProfilerStep#1",
        "aten::linear": "train.py(3): step",
        "aten::addmm": "aten::linear",
        "cudaLaunchKernel": "aten::addmm",
        "elsewhere": None,
        "other process": None,
        "gemm": None,
    }


def test_equal_touching_and_empty_events():
    assert parents(
        x("second", 0, 10),
        x("first", 0, 20),
        x("twin", 0, 20),
        x("touching", 20, 5),
        x("instant at the end", 20, 0),
        x("instant at the start", 0, 0),
        x("its twin", 0, 0),
    ) == {
        "first": None,
        "twin": "first",
        "second": "twin",
        "touching": None,
        "instant at the end": "touching",
        "instant at the start": "second",
        "its twin": "second",
    }


def test_what_bleeds_over_belongs_to_what_contains_it():
    read = trace(x("outer", 0, 100), x("early", 10, 20), x("in early", 12, 15), x("late", 25, 30), x("in late", 40, 10))
    tree = call_tree(read)
    assert tree.parent.tolist() == [-1, 0, 1, 0, 3]
    assert tree.depth.tolist() == [0, 1, 2, 1, 2]
    assert tree.bled.tolist() == [3]


def test_depth_tells_roots_from_what_is_no_host_event():
    read = trace(launch(0, 5, 1), kernel("k", 6, 5, 1), x("projected", 6, 5, "gpu_user_annotation"))
    assert call_tree(read).depth.tolist() == [0, -1, -1]


def ancestors(tree, row):
    """Rows around one row, the innermost first."""
    above = int(tree.parent[row])
    return [above, *ancestors(tree, above)] if above >= 0 else []


def test_helpers_by_hand():
    read = trace(x("a", 0, 100), x("b", 10, 40), x("c", 20, 10), x("d", 60, 10), x("e", 200, 10))
    tree = call_tree(read)
    assert ancestors(tree, 2) == [1, 0]
    assert ancestors(tree, 4) == []
    first, rows = tree.children()
    assert [rows[first[row] : first[row + 1]].tolist() for row in range(5)] == [[1, 3], [2], [], [], []]
    assert tree.subtree_sums(np.array([1, 10, 100, 1000, 10000])).tolist() == [1111, 110, 100, 1000, 10000]
    mask = np.array([True, True, False, False, False])
    assert tree.nearest(mask).tolist() == [0, 1, 1, 0, -1]
    assert tree.outermost(mask).tolist() == [0, 0, 0, 0, -1]


@st.composite
def forests(draw):
    """Parent of each event, and start and end of events that nest so, in a random order of the file."""
    count = draw(st.integers(0, 12))
    above = [draw(st.integers(-1, index - 1)) for index in range(count)]
    clock = 0
    spans = [[0, 0] for _ in range(count)]

    def visit(index):
        nonlocal clock
        spans[index][0] = clock
        clock += draw(st.integers(1, 3))
        for child in range(count):
            if above[child] == index:
                visit(child)
        clock += draw(st.integers(0, 2))
        spans[index][1] = clock

    for index in range(count):
        if above[index] < 0:
            visit(index)
            clock += draw(st.integers(0, 2))
    return above, spans, draw(st.permutations(range(count)))


@given(forests())
@settings(max_examples=150, deadline=None)
def test_random_nests_are_found_again(forest):
    above, spans, order = forest
    read = trace(*(x(f"op{index}", spans[index][0], spans[index][1] - spans[index][0]) for index in order))
    tree = call_tree(read)
    row_of = {index: row for row, index in enumerate(order)}
    assert tree.parent.tolist() == [row_of[above[index]] if above[index] >= 0 else -1 for index in order]
    assert len(tree.bled) == 0
    around = [ancestors(tree, row) for row in range(len(order))]
    assert tree.depth.tolist() == [len(found) for found in around]
    mask = np.array([index % 3 == 0 for index in order], dtype=bool)
    for row, found in enumerate(around):
        chosen = [other for other in (row, *found) if mask[other]]
        assert tree.nearest(mask)[row] == (chosen[0] if chosen else -1)
        assert tree.outermost(mask)[row] == (chosen[-1] if chosen else -1)
    sums = tree.subtree_sums(np.arange(len(order), dtype=np.int64))
    assert sums.tolist() == [
        sum(other for other in range(len(order)) if row in (other, *around[other])) for row in range(len(order))
    ]


def test_device_events_belong_to_the_innermost_operator_around_their_launch():
    read = trace(
        x("aten::linear", 0, 50),
        x("aten::addmm", 5, 40),
        frame("kernels.py(1): run", 6, 30),
        launch(10, 5, 1),
        launch(60, 5, 2),
        kernel("gemm", 20, 10, 1),
        kernel("alone", 70, 10, 2),
    )
    assert launching_operator(read).tolist() == [-1, -1, -1, -1, -1, 1, -1]


def test_without_a_call_the_external_id_joins_unless_time_contradicts():
    read = trace(
        x("aten::mm", 0, 50, **{"External id": 5}),
        x("aten::add", 90, 5, **{"External id": 6}),
        kernel("gemm", 20, 10, 1, **{"External id": 5}),
        kernel("add", 30, 10, 2, **{"External id": 6}),
        kernel("unknown", 40, 10, 3, **{"External id": 7}),
        kernel("none", 50, 10, 4),
    )
    assert launching_operator(read).tolist() == [-1, -1, 0, -1, -1, -1]


@each_trace_file
def test_launching_operators_of_public_traces(path):
    read_in = read(path)
    found = launching_operator(read_in)
    joined = launches(read_in)
    assert (found[joined.device] >= -1).all()
    expected = {}
    for event, operator in Operators(path).launched():
        key = event["start"], event["end"], event["name"]
        expected.setdefault(key, set()).add(operator and (operator["start"], operator["end"], operator["name"]))
    for row in joined.device.tolist():
        above = int(found[row])
        key = int(read_in.start[row]), int(read_in.end[row]), read_in.name_of(row)
        name = (int(read_in.start[above]), int(read_in.end[above]), read_in.name_of(above)) if above >= 0 else None
        assert name in expected[key]


def test_a_trace_without_host_events():
    read_in = trace(kernel("k", 0, 5, 1))
    tree = call_tree(read_in)
    assert (tree.parent.tolist(), tree.bled.tolist()) == ([-1], [])
    assert tree.nearest(np.ones(1, dtype=bool)).tolist() == [0]
    assert tree.children()[1].tolist() == []
    assert len(call_tree(trace()).parent) == 0


def test_pairs_get_numbers_in_their_order():
    codes = pair_codes(np.array([5, 5, -1, 5]), np.array([2, 1, 9, 2]))
    assert codes[0] == codes[3]
    assert codes[2] < codes[1] < codes[0]
