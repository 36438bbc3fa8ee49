"""Selects the tests that are the sizes of one curve, and its parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_perfdl.fixture.requests import CurveExpectation
    from pytest_perfdl.run.collection import PerfTest


def axes(test: PerfTest, expectations: Sequence[CurveExpectation]) -> dict[str, list[CurveExpectation]]:
    """The parameters along which a test is a point of a curve, with what is expected of each.

    Raises
    ------
    ValueError
        An expectation names no parameter with numbers.
    """
    marked = list(test.options.scaling or {})
    found: dict[str, list[CurveExpectation]] = {name: [] for name in marked}
    for each in expectations:
        axis = each.axis or (marked[0] if len(marked) == 1 else "")
        if axis not in sizes(test):
            what = (
                f"the test has no parameter {axis!r} that is a number above 0"
                if axis
                else ("the argument axis is missing")
            )
            raise ValueError(f"perf.assert_scaling({each.axis!r}): {what}")
        found.setdefault(axis, []).append(each)
    return found


def sizes(test: PerfTest) -> dict[str, float]:
    """Parameters of a test that are numbers above zero."""
    return {
        name: float(value)
        for name, value in _params(test).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    }


def members(test: PerfTest, axis: str, tests: Sequence[PerfTest]) -> list[PerfTest]:
    """The tests that differ from one in a parameter only, in the order of the run."""
    return [each for each in tests if axis in sizes(each) and curve_key(each, axis) == curve_key(test, axis)]


def curve_key(test: PerfTest, axis: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """What all tests of one curve over a parameter have in common: the name, and the other parameters."""
    others = frozenset((name, repr(value)) for name, value in _params(test).items() if name != axis)
    return without_parameters(test), others


def without_parameters(test: PerfTest) -> str:
    """A test's node id without its parameters; the names of folders may hold brackets, too."""
    file, colons, name = test.item.nodeid.partition("::")
    return f"{file}{colons}{name.partition('[')[0]}"


def _params(test: PerfTest) -> Mapping[str, object]:
    params: Mapping[str, object] = getattr(getattr(test.item, "callspec", None), "params", {})
    return params
