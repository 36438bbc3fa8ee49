"""A model and itself compiled: what was fused is one group, no time is lost, and what is left over is listed."""

from pathlib import Path

import pytest

from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.diff import causes, diff, side_of_traces
from pytest_perfdl.trace import read

DATA = Path(__file__).parent / "data"
"""Recorded by `record_compiled.py` there."""


@pytest.fixture(scope="module")
def sides():
    return [side_of_traces(name, [step_parts(read(DATA / f"{name}.json.gz"))]) for name in ("eager", "compiled")]


def test_what_was_fused_is_matched_with_what_it_replaced(sides):
    found = diff(*sides)
    fused = {
        cause.changes[0].new_parts[0].phase: cause
        for cause in causes(found, everything=True)
        if cause.status == "fused"
    }
    assert set(fused) == {"forward", "backward"}
    assert {"aten::gelu", "aten::native_layer_norm", "aten::mul", "aten::add"} <= members(fused["forward"])
    assert {"aten::gelu_backward", "aten::native_layer_norm_backward"} <= members(fused["backward"])
    for cause in fused.values():
        assert cause.confidence <= 0.4
        # It is called by what took most.
        assert any(name in cause.name.split(" -> ")[0] for name in ("aten::gelu", "aten::mul", "aten::add"))
        assert "CompiledFunction" in cause.name.split(" -> ")[1]


def members(cause):
    return {part.name for change in cause.changes for part in change.base_parts}


@pytest.mark.parametrize("order", [1, -1], ids=["eager first", "compiled first"])
def test_products_stay_what_they_are_and_nothing_is_lost(sides, order):
    found = diff(*sides[::order])
    assert found.coverage >= 0.95
    assert found.residual_ns == 0
    assert sum(line.delta_ns for line in found.account) == found.delta_ns
    assert sum(change.base_ns for change in found.changes) == found.base_ns
    assert sum(change.new_ns for change in found.changes) == found.new_ns
    alike = {change.new_parts[0].name for change in found.changes if change.group.by in ("exact", "name")}
    assert {"aten::addmm", "aten::mm"} <= alike
    # What only a compiled step does.
    alone = {part.name for change in found.alone for part in (*change.base_parts, *change.new_parts)}
    assert "TorchDynamo Cache Lookup" in alone


def test_both_ways_are_each_other_exchanged(sides):
    forth, back = diff(*sides), diff(*sides[::-1])
    assert forth.coverage == pytest.approx(back.coverage)
    assert {(change.group.base, change.group.new) for change in forth.changes} == {
        (change.group.new, change.group.base) for change in back.changes
    }
