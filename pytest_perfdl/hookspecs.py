"""Hooks that a project may implement in its `conftest.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_perfdl.report.run import Run


@pytest.hookspec
def pytest_perfdl_report(run: Run) -> None:
    """Called once with the whole judged run, before the report is written."""
