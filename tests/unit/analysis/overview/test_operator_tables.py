"""Tables of operators by hand, and against the slow reference on every public trace."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launching_operator
from pytest_perfdl.analysis.overview.tables import OperatorRow, operator_tables
from pytest_perfdl.trace import Category, read
from unit.analysis.slow_operators import Operators
from unit.trace.chrome import each_recording, kernel, launch, name_of, trace, trace_files, x

GROUPINGS = ("name", "shapes", "module", "line")


def rows(*events, by="name"):
    """(count, self, total, device self, device total, kernels) by what the rows are grouped by."""
    return {
        getattr(row, by): (row.count, row.self_ns, row.total_ns, row.device_self_ns, row.device_total_ns, row.kernels)
        for row in operator_tables(trace(*events))[by]
    }


STEP = (
    x("aten::linear", 0, 50, **{"Input Dims": [[2, 3], [4, 3]]}),
    x("aten::addmm", 5, 30, **{"Input Dims": [[4], [2, 3]]}),
    launch(10, 5, 1),
    kernel("gemm", 40, 20, 1),
    x("aten::addmm", 100, 10, **{"Input Dims": [[4], [9, 3]]}),
    launch(101, 5, 2),
    launch(107, 1, 3, name="cudaMemcpyAsync"),
    kernel("gemm", 120, 7, 2),
    kernel("Memcpy DtoD (Device -> Device)", 130, 3, 3, cat="gpu_memcpy"),
    kernel("carried over", 1, 4, 99),
)


def test_self_and_total_on_host_and_device():
    assert rows(*STEP) == {
        "aten::addmm": (2, 40_000, 40_000, 30_000, 30_000, 3),
        "aten::linear": (1, 20_000, 50_000, 0, 20_000, 0),
    }


def test_shapes_split_a_name():
    found = {(row.name, row.shapes): row.kernels for row in operator_tables(trace(*STEP))["shapes"]}
    assert found == {
        ("aten::addmm", "[[4], [2, 3]]"): 1,
        ("aten::addmm", "[[4], [9, 3]]"): 2,
        ("aten::linear", "[[2, 3], [4, 3]]"): 0,
    }


def test_what_is_not_grouped_by_is_empty_and_most_device_time_comes_first():
    first, second = operator_tables(trace(*STEP))["name"]
    assert first == OperatorRow("aten::addmm", "", "", "", 2, 40_000, 40_000, 30_000, 30_000, 3)
    assert second.name == "aten::linear"
    host = operator_tables(trace(x("b", 0, 5), x("a", 10, 5), x("c", 20, 9)))["name"]
    assert [row.name for row in host] == ["c", "a", "b"]


def test_recursion_counts_once_in_totals():
    found = rows(x("f", 0, 100), x("g", 10, 80), x("f", 20, 60), launch(30, 1, 1), kernel("k", 40, 5, 1), x("f", 25, 3))
    assert found == {"f": (3, 80_000, 100_000, 5_000, 5_000, 1), "g": (1, 20_000, 80_000, 0, 5_000, 0)}


def test_modules_hold_the_modules_inside_them():
    found = rows(
        x("nn.Module: Net_0", 0, 100, "python_function"),
        x("nn.Module: Stack_0", 5, 60, "python_function"),
        x("nn.Module: Linear_0", 10, 20, "python_function"),
        x("aten::linear", 12, 10),
        x("aten::addmm", 14, 5),
        launch(15, 1, 1),
        x("nn.Module: Linear_1", 40, 20, "python_function"),
        x("aten::linear", 42, 10),
        x("aten::add", 80, 10),
        x("aten::zero_", 200, 10),
        kernel("gemm", 30, 9, 1),
        by="module",
    )
    assert found == {
        "Net_0": (1, 10_000, 30_000, 0, 9_000, 0),
        "Net_0.Stack_0": (0, 0, 20_000, 0, 9_000, 0),
        "Net_0.Stack_0.Linear_0": (2, 10_000, 10_000, 9_000, 9_000, 1),
        "Net_0.Stack_0.Linear_1": (1, 10_000, 10_000, 0, 0, 0),
        "": (1, 10_000, 10_000, 0, 0, 0),
    }


def test_lines():
    found = rows(
        x("train.py(3): step", 0, 50, "python_function"), x("a", 5, 20), x("b", 8, 5), x("c", 60, 7), by="line"
    )
    assert found == {"train.py(3): step": (2, 20_000, 20_000, 0, 0, 0), "": (1, 7_000, 7_000, 0, 0, 0)}


def test_a_trace_without_operators():
    assert operator_tables(trace()) == dict.fromkeys(GROUPINGS, ())
    assert operator_tables(trace(launch(0, 1, 1), kernel("k", 2, 3, 1))) == dict.fromkeys(GROUPINGS, ())


@pytest.fixture(scope="module", params=trace_files(), ids=name_of)
def path(request):
    return request.param


def check_sums(read_in):
    """Every table is closed: over threads on the host, over device events on the device."""
    operators = np.flatnonzero(read_in.category == Category.CPU_OP)
    threads = set(zip(read_in.pid[operators].tolist(), read_in.tid[operators].tolist(), strict=True))
    covered = 0
    for pid, tid in threads:
        own = operators[(read_in.pid[operators] == pid) & (read_in.tid[operators] == tid)]
        covered += Intervals.union_of(read_in.start[own], read_in.end[own]).length
    device = read_in.device_rows()
    alone = launching_operator(read_in)[device] < 0
    launched = int(read_in.duration[device[~alone]].sum())
    tables = operator_tables(read_in)
    assert tuple(tables) == GROUPINGS
    for table in tables.values():
        assert sum(row.self_ns for row in table) == covered
        assert sum(row.device_self_ns for row in table) == launched
        assert sum(row.kernels for row in table) == np.count_nonzero(~alone)
        assert sum(row.count for row in table) == len(operators)
        for row in table:
            assert 0 <= row.self_ns <= row.total_ns
            assert 0 <= row.device_self_ns <= row.device_total_ns


def test_sums_are_closed_on_public_traces(path):
    check_sums(read(path))


@each_recording
def test_sums_are_closed_on_recordings(path):
    check_sums(read(path))


def test_public_traces_against_the_reference(path):
    reference = Operators(path)
    own, total, alone = reference.device_ns()
    table = operator_tables(read(path))["name"]
    assert {row.name: row.self_ns for row in table} == dict(reference.self_ns())
    assert {row.name: row.total_ns for row in table} == dict(reference.total_ns())
    assert {row.name: row.count for row in table} == Counter(event["name"] for event in reference.operators)
    assert {row.name: row.device_self_ns for row in table if row.device_self_ns} == dict(+own)
    assert {row.name: row.device_total_ns for row in table if row.device_total_ns} == dict(+total)
    assert sum(own.values()) + alone == sum(event["end"] - event["start"] for event in reference.device)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 30), st.integers(1, 2))))
@settings(max_examples=60, deadline=None)
def test_sums_are_closed_whatever_overlaps(events):
    launches = [launch(ts, 1, index, tid=tid) for index, (_, ts, _, tid) in enumerate(events)]
    kernels = [kernel("k", ts + 5, 3, index) for index, (_, ts, _, _) in enumerate(events)]
    operators = [x(name, ts, duration, tid=tid) for name, ts, duration, tid in events]
    read_in = trace(*operators, *launches, *kernels)
    table = operator_tables(read_in)["name"]
    covered = sum(
        len({moment for name, ts, duration, own in events if own == tid for moment in range(ts, ts + duration)})
        for tid in (1, 2)
    )
    assert sum(row.self_ns for row in table) == covered * 1000
    found = launching_operator(read_in)
    assert sum(row.kernels for row in table) == np.count_nonzero(found >= 0)


def test_a_module_holds_what_is_inside_a_list_of_modules():
    """The list is never called, and has no range of its own."""
    found = trace(
        x("perfdl.module: Net", 0, 100, "user_annotation"),
        x("aten::embedding", 1, 5),
        x("perfdl.module: Net.blocks.0", 10, 40, "user_annotation"),
        x("aten::mm", 12, 20),
    )
    rows = {row.module: row for row in operator_tables(found)["module"]}
    assert (rows["Net"].self_ns, rows["Net"].total_ns, rows["Net.blocks.0"].total_ns) == (5_000, 25_000, 20_000)
