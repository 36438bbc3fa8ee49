"""Measures a mixture of two environments by a pytest that runs in it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.runs import child_pytest
from pytest_perfdl.runs.bisect import pytest_run
from pytest_perfdl.runs.bisect.culprit_set import Chosen
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.runs.bisect.mixtures import NEW, Environments, complaints
from pytest_perfdl.system import clocks, folders


@dataclass(frozen=True)
class MixtureChild:
    """Measures an environment by a pytest that runs in it, against the old one.

    A mixture exists only while it is measured.
    """

    environments: Environments
    test: str
    """As given on the command line: relative to the current folder."""
    options: tuple[str, ...]
    """Further options of pytest."""
    reports: Path
    """Folder that keeps the report of each comparison; see `pytest_run.report_folder`."""

    def measure(self, request: Request, metric: str, limit: float) -> Measurement:
        """Measure one; one that pip refuses or that cannot be made or measured is said to be skipped."""
        started = clocks.monotonic()
        if request.commit == NEW:
            made = self._run(request, self.environments.new.executable, metric, limit)
        else:
            made = self._mixed(request, frozenset(request.commit.split(",")), metric, limit)
        return replace(made, seconds=round(clocks.monotonic() - started, 3))

    def _mixed(self, request: Request, chosen: Chosen, metric: str, limit: float) -> Measurement:
        # Beside the environments: only files of one file system can share what is the same.
        parent = Path(self.environments.new.prefix).resolve().parent
        if not os.access(parent, os.W_OK):
            folder = folders.temporary("mixture")
        else:
            folders.sweep(parent, "mixture")
            folder = folders.make(parent, "mixture")
        try:
            mixed = self.environments.mix(chosen, folder.path / "environment")
            if wrong := sorted(complaints(str(mixed)) - self._known_complaints):
                return Measurement(request, f"pip check: {wrong[0]}")
            return self._run(request, str(mixed), metric, limit)
        except CheckoutError as error:
            return Measurement(request, str(error))
        finally:
            folder.remove()

    @cached_property
    def _known_complaints(self) -> frozenset[str]:
        """What pip finds wrong with the two environments themselves, which excludes no mixture."""
        return complaints(self.environments.old.executable) | complaints(self.environments.new.executable)

    def _run(self, request: Request, interpreter: str, metric: str, limit: float) -> Measurement:
        return pytest_run.measured(
            request, lambda scratch: self.command(request, interpreter, scratch, metric, limit), self.reports
        )

    def command(self, request: Request, interpreter: str, scratch: Path, metric: str, limit: float) -> tuple[str, ...]:
        """The command line of one run; its report and run file go into the scratch folder."""
        against = () if request.against is None else (f"--perf-against-python={self.environments.old.executable}",)
        return (
            *child_pytest.command(scratch, self.test, interpreter=interpreter),
            *pytest_run.options(request, scratch, self.options, metric, limit),
            *(against or ("-o", "perf_against_python=")),
        )
