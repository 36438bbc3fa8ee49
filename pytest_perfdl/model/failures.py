"""Exceptions that fail a perf test: pytest failures, without a traceback into this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_perfdl.model.visible import harmless

if TYPE_CHECKING:
    from _pytest.outcomes import Failed
else:
    Failed = pytest.fail.Exception


class _PerfFailure(Failed):
    def __init__(self, message: str) -> None:
        super().__init__(harmless(message), pytrace=False)


class PerfError(_PerfFailure):
    """A perf test that could not be measured or judged."""


class PerfRegression(_PerfFailure):
    """A perf test whose verdict fails it; the text alone says what is wrong and what to do."""


# pytest's short summary names an exception's module unless it is a builtin.
for _error in (PerfError, PerfRegression):
    _error.__module__ = "builtins"
