"""Kernels of a CUDA graph: a change is named with graph and node, without an operator or module of the replay."""

from __future__ import annotations

import pytest

from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.diff import causes, diff, side_of_traces
from unit.trace.chrome import kernel, launch, step, trace, x

NODES = [("gemm", 100), ("gemm", 100), ("relu", 20), ("gemm", 100)]


def replays(slower=(), *, graph=7, first=100, ids=True):
    """Two replays of one graph inside of an operator and a module; nodes of `slower` take 1.5 times as long."""
    found = []
    for number in range(2):
        start = 1000 * number
        found += [
            step(number, start, 600),
            x("nn.Module: Net_0", start + 2, 590, "python_function", **{"Python id": number + 1}),
            x("CompiledFunction", start + 5, 500),
            launch(start + 20, 20, number + 1, name="cudaGraphLaunch"),
        ]
        at = start + 60
        for node, (name, length) in enumerate(NODES):
            args = {"graph id": graph, "graph node id": first + node} if ids else {}
            length = length * (1.5 if node in slower else 1) + number
            found.append(kernel(name, at, length, number + 1, **args))
            at += length + 2
    return trace(*found)


def parts(made):
    return side_of_traces("side", [step_parts(made)])


def gemm(base, new):
    (found,) = [each for each in causes(diff(parts(base), parts(new))) if each.name == "gemm"]
    return found


def test_a_slower_node_is_named_with_its_graph():
    # Ids are those of a process: another one gives the same node another.
    found = gemm(replays(), replays([1], graph=9, first=500))
    assert (found.graph, found.delta_ns, found.confidence) == ("graph 9, node 501", 50_000, 1.0)
    assert (found.module, found.changes[0].new_parts[0].operator) == ("", "")


def test_of_several_nodes_the_graph_is_named():
    assert gemm(replays(), replays([0, 1, 3])).graph == "graph 7"


def test_without_ids_nothing_is_made_up():
    found = gemm(replays(ids=False), replays([1], ids=False))
    assert (found.graph, found.module, found.delta_ns) == ("", "", 50_000)


@pytest.mark.parametrize("ids", [True, False])
def test_kernels_of_a_graph_have_no_operator_and_no_module(ids):
    found = [part for part in step_parts(replays(ids=ids)).parts if part.kind == "kernel"]
    assert len(found) == (4 if ids else 2)
    assert {(part.operator, part.module, part.shapes) for part in found} == {("", "", "")}
