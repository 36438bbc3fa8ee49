"""What pytest's hooks do with a face around the call of a test."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_perfdl.faces.host import Host
from pytest_perfdl.faces.measured import Measured
from pytest_perfdl.faces.smoke import Smoke
from pytest_perfdl.short_names import LONG, SHORT, uses_fixture


@contextlib.contextmanager
def measuring(item: pytest.Function, host: Host) -> Iterator[None]:
    """Around the call of a test, whoever calls it: makes the body of a bare test its step, and sees loops end."""
    body = item.obj
    if not uses_fixture(item):

        @functools.wraps(body)
        def measured(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return Measured(host)(body, *args, **kwargs)

        item.obj = measured
    try:
        yield
    finally:
        item.obj = body
    close(item)


def close(item: pytest.Function) -> None:
    """After the call of a test: see that what it asked of the fixture is complete.

    Raises
    ------
    PerfError
    """
    for name in (SHORT, LONG):
        fixture = item.funcargs.get(name)
        if isinstance(fixture, (Smoke, Measured)):
            fixture.close()
