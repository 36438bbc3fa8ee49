"""Measures a mixture of two environments by a pytest that runs in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_perfdl.bisect import pytest_run
from pytest_perfdl.bisect.culprit_set import Chosen
from pytest_perfdl.bisect.measurements import Measurement, Request
from pytest_perfdl.bisect.mixtures import Environments, complaints
from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.system import clocks, folders
from pytest_perfdl.system.import_path import LIBRARY_FIRST, module_command


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
    """Folder that keeps the report of each comparison."""

    def measure(self, request: Request, chosen: Chosen | None, metric: str, limit: float) -> Measurement:
        """Measure one; one that pip refuses or that cannot be made or measured is said to be skipped."""
        started = clocks.monotonic()
        if chosen is None:
            return self._run(request, self.environments.new.executable, metric, limit, started)
        if not chosen:
            return self._run(request, self.environments.old.executable, metric, limit, started)
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
                return Measurement(request, f"pip check: {wrong[0]}", seconds=clocks.monotonic() - started)
            return self._run(request, str(mixed), metric, limit, started)
        except CheckoutError as error:
            return Measurement(request, str(error), seconds=clocks.monotonic() - started)
        finally:
            folder.remove()

    @cached_property
    def _known_complaints(self) -> frozenset[str]:
        """What pip finds wrong with the two environments themselves, which excludes no mixture."""
        return complaints(self.environments.old.executable) | complaints(self.environments.new.executable)

    def _run(self, request: Request, interpreter: str, metric: str, limit: float, started: float) -> Measurement:
        return pytest_run.measured(
            request,
            lambda scratch: self.command(request, interpreter, scratch, metric, limit),
            self.reports,
            started,
        )

    def command(self, request: Request, interpreter: str, scratch: Path, metric: str, limit: float) -> tuple[str, ...]:
        """The command line of one run; its report and run file go into the scratch folder."""
        against = () if request.against is None else (f"--perf-against-python={self.environments.old.executable}",)
        return (
            *module_command(interpreter, "pytest", self.test, path=LIBRARY_FIRST),
            *pytest_run.options(request, scratch, self.options, metric, limit),
            *(against or ("-o", "perf_against_python=")),
        )

    def report(self, request: Request) -> Path:
        """The folder of the report of a comparison, if that was made."""
        return pytest_run.report_folder(self.reports, request)
