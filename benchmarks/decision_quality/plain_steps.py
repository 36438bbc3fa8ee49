"""A pytest plugin that stands in for ours: `perf(fn, *args)` calls the step PLAIN_STEPS times and does nothing else.

Loaded with `-p no:perfdl -p plain_steps`, it makes of a perf test what somebody would write who only wants the steps
to run: the floor that the price of a measurement is held against.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker that our plugin declares."""
    config.addinivalue_line("markers", "perf: a perf test whose steps are only run")


@pytest.fixture
def perf() -> Callable[..., Any]:
    """Call the step again and again; the last result."""

    def call(step: Callable[..., Any], *args: Any, **_: Any) -> Any:
        result = None
        for _ in range(int(os.environ["PLAIN_STEPS"])):
            result = step(*args)
        return result

    return call
