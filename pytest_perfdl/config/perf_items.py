"""Which items are perf tests, and what a run says of them that does not measure them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_perfdl.config import short_names
from pytest_perfdl.model.units import plural

NOTHING_SELECTED = "perf: no perf test was selected, so --perf measured nothing"


def is_perf_test(item: pytest.Item, markers: tuple[str, ...]) -> bool:
    """Whether an item carries the marker or asks for the fixture.

    A doctest in a marked module inherits the marker and is no perf test all the same.
    """
    if not isinstance(item, pytest.Function):
        return False
    return any(item.get_closest_marker(name) for name in markers) or short_names.uses_fixture(item)


def smoke_line(tests: int) -> str:
    """What an ordinary run says about perf tests."""
    return f"perf: {plural(tests, 'perf test')} ran once, unmeasured; pytest --perf measures and judges"


def foreign_marks_line(items: Sequence[pytest.Item], markers: tuple[str, ...]) -> str | None:
    """What to say of tests with a marker `perf` that the project registers itself; nothing where there are none."""
    if markers != (short_names.LONG,):
        return None
    others = [item for item in items if not is_perf_test(item, markers)]
    count = sum(item.get_closest_marker(short_names.SHORT) is not None for item in others)
    if not count:
        return None
    return (
        f"perf: {plural(count, 'test')} with the marker perf not measured, since this project registers that "
        "marker itself: mark perf tests as perfdl, or set perf_marker = perf"
    )
