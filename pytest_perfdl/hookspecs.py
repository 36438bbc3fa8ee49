"""Hooks that a project may implement in its `conftest.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_perfdl.results.run import Run


@pytest.hookspec
def pytest_perfdl_report(run: Run) -> None:
    """Send a run elsewhere, to a dashboard say.

    Called once at the end of `pytest --perf`, after the report is written to `run.report_dir`. An error in it does not
    end pytest: the summary names it, and the run fails.
    """


@pytest.hookspec
def pytest_perfdl_name_rules() -> Iterable[tuple[str, str]] | None:
    r"""Rules for names of kernels and operators that change from build to build in a way only this project knows.

    Called once, before the first test is measured. Each rule is a regular expression and what stands in its place, as
    for `re.sub`; they are applied in order to the name as the profiler has it, before the built-in rules are. Names
    that are equal afterwards are taken for the same operation where two sides are compared.

        def pytest_perfdl_name_rules():
            return [(r"_build\d+$", "")]
    """
