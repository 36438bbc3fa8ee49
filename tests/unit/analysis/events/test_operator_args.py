"""Arguments and time of operators, which several analyses share: against plain json, and one by one."""

import gzip
import json

import numpy as np
import pytest

from pytest_perfdl.analysis.events.nesting import innermost
from pytest_perfdl.analysis.events.operators import operator_args, operator_at, operator_time
from pytest_perfdl.trace import Category, read
from unit.trace.chrome import each_trace_file, kernel, trace, x


def test_texts_are_numbered_in_the_order_of_the_file():
    found = operator_args(
        trace(
            x("b", 50, 5, **{"Input Dims": [[2], []], "Module Hierarchy": "TOP(Net)::forward", "Sequence number": 7}),
            kernel("k", 0, 5, 1, **{"Input Dims": [[9]], "Call stack": "no.py(1): operator", "Sequence number": 1}),
            x("a", 0, 5, **{"Input Dims": [[2], []], "Call stack": "x.py(1): f", "Fwd thread id": 3}),
            x("b", 10, 5, **{"Input Dims": [[2], []], "Call stack": ""}),
            x("b", 20, 5),
        )
    )
    assert found.call.tolist() == [0, -1, 1, 0, 2]
    assert [dims.replace(b" ", b"") for _, dims in found.calls] == [b"[[2],[]]", b"[[2],[]]", b""]
    assert found.sequence.tolist() == [7, -1, -1, -1, -1]
    assert found.forward_thread.tolist() == [-1, -1, 3, -1, -1]
    assert (found.hierarchy.tolist(), found.hierarchies) == ([0, -1, -1, -1, -1], ("TOP(Net)::forward",))
    assert (found.stack.tolist(), found.stacks) == ([-1, -1, 0, -1, -1], ("x.py(1): f",))


@pytest.mark.parametrize(
    "number",
    [2**64 - 1, 2**63, 2**70, "7", 7.0, True, None, [7]],
    ids=["unsigned-none", "first-none", "beyond", "text", "fraction", "truth", "null", "list"],
)
def test_what_is_no_number_costs_nothing_else(number):
    args = {"Sequence number": number, "Fwd thread id": 2, "Module Hierarchy": 5, "Call stack": "x.py(1): f"}
    found = operator_args(trace(x("a", 0, 5, **args, **{"Input Dims": [[1]]})))
    assert (found.sequence.tolist(), found.forward_thread.tolist()) == ([-1], [2])
    assert (found.hierarchy.tolist(), found.stacks) == ([-1], ("x.py(1): f",))
    assert found.calls == ((0, b"[[1]]"),)


def test_the_largest_number_that_is_one():
    found = operator_args(trace(x("a", 0, 5, **{"Sequence number": 2**63 - 1, "Fwd thread id": 0})))
    assert (found.sequence.tolist(), found.forward_thread.tolist()) == ([2**63 - 1], [0])


def test_a_trace_without_operators():
    empty = trace(kernel("k", 0, 5, 1))
    found = operator_args(empty)
    assert (found.call.tolist(), found.calls, found.stacks, found.hierarchies) == ([-1], (), (), ())
    assert operator_time(empty) == {}
    nothing = np.zeros(0, dtype=np.int64)
    assert operator_at(empty, np.array([2]), np.array([0]), np.array([7])).tolist() == [-1]
    assert operator_at(empty, nothing, nothing, nothing).tolist() == []


@each_trace_file
def test_arguments_of_public_traces_equal_those_of_json(path):
    found = read(path)
    data = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    events = data["traceEvents"] if isinstance(data, dict) else data
    raw = [event.get("args", {}) for event in events if event.get("ph") == "X"]
    args = operator_args(found)
    for row, expected in enumerate(raw):
        is_operator = found.category[row] == Category.CPU_OP
        expected = expected if is_operator else {}
        assert (args.call[row] >= 0) == is_operator
        if is_operator:
            name, dims = args.calls[args.call[row]]
            assert name == found.name[row]
            assert (json.loads(dims) if dims else None) == expected.get("Input Dims")
        stack, hierarchy = expected.get("Call stack", ""), expected.get("Module Hierarchy", "")
        assert stack == (args.stacks[args.stack[row]] if args.stack[row] >= 0 else "")
        assert hierarchy == (args.hierarchies[args.hierarchy[row]] if args.hierarchy[row] >= 0 else "")
        for column, key in ((args.sequence, "Sequence number"), (args.forward_thread, "Fwd thread id")):
            number = expected.get(key, -1)
            assert column[row] == (number if number < 2**63 else -1)


@each_trace_file
def test_the_operator_at_a_moment_is_the_innermost_one(path):
    found = read(path)
    rows = found.rows(Category.CPU_OP, Category.CUDA_RUNTIME, Category.USER_ANNOTATION)
    time = found.start[rows] + np.arange(len(rows)) % 3
    asked = time, found.pid[rows], found.tid[rows]
    assert operator_at(found, *asked).tolist() == innermost(found, found.rows(Category.CPU_OP), *asked).tolist()
    operators = np.concatenate([np.zeros(0, dtype=np.intp), *(own for own, _ in operator_time(found).values())])
    assert sorted(operators.tolist()) == np.flatnonzero(found.category == Category.CPU_OP).tolist()
