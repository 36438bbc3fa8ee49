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

    pytest calls this hook once, at the end of `pytest --perf`, after the report is written to `run.report_dir`. `run`
    has the measurements, verdicts and causes of every perf test. Times are in nanoseconds, and sizes in bytes. If the
    hook raises an exception, the run fails, and the summary shows the exception.
    """


@pytest.hookspec
def pytest_perfdl_name_rules() -> Iterable[tuple[str, str]] | None:
    r"""Return rewrite rules for kernel and operator names that differ between builds of this project.

    pytest calls this hook once, before it measures the first test. A rule is a pair of a regular expression and a
    replacement, as for `re.sub`. pytest-perfdl applies the rules in order to the profiler's names, before its built-in
    rules. Kernels and operators with equal rewritten names are compared with each other.

        def pytest_perfdl_name_rules():
            return [(r"_build\d+$", "")]
    """
