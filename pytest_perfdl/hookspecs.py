"""Hooks that projects can implement in `conftest.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_perfdl.results.run import Run


@pytest.hookspec
def pytest_perfdl_report(run: Run) -> None:
    """Receive the results of a run, for example to send them to a dashboard.

    Called once at the end of `pytest --perf`, after the report is written to `run.report_dir`. `run` holds the
    measurements, verdicts and causes of every perf test; times are in nanoseconds, sizes in bytes. An exception is
    reported in the summary and fails the run.
    """


@pytest.hookspec
def pytest_perfdl_name_rules() -> Iterable[tuple[str, str]] | None:
    r"""Rewrite rules for kernel and operator names that differ between builds of this project.

    Called once, before the first test is measured. A rule is a pair of a regular expression and a replacement, as for
    `re.sub`. Rules are applied in order to the profiler's names, before the built-in rules. Kernels and operators whose
    rewritten names are equal are compared with each other.

        def pytest_perfdl_name_rules():
            return [(r"_build\d+$", "")]
    """
