"""Which items are perf tests, and the lines printed about perf tests that are not measured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_perfdl.config import short_names
from pytest_perfdl.model.units import plural

NOTHING_SELECTED = "perf: no perf test was selected, so nothing was measured"


def is_perf_test(item: pytest.Item, markers: tuple[str, ...]) -> bool:
    """Whether an item has the marker or uses the fixture.

    A doctest in a marked module inherits the marker but is not a perf test.
    """
    if not isinstance(item, pytest.Function):
        return False
    return any(item.get_closest_marker(name) for name in markers) or short_names.uses_fixture(item)


def smoke_line(tests: int) -> str:
    """The summary line of a run without `--perf`."""
    return f"perf: {plural(tests, 'perf test')} ran once, unmeasured; run pytest --perf to measure"


def foreign_marks_line(items: Sequence[pytest.Item], markers: tuple[str, ...]) -> str | None:
    """A warning about tests with a marker `perf` that the project itself registers; `None` if there are none."""
    if markers != (short_names.LONG,):
        return None
    others = [item for item in items if not is_perf_test(item, markers)]
    count = sum(item.get_closest_marker(short_names.SHORT) is not None for item in others)
    if not count:
        return None
    return (
        f"perf: {plural(count, 'test')} with the marker perf not measured, because this project registers a marker "
        "named perf: use the marker perfdl, or set perf_marker = perf"
    )
