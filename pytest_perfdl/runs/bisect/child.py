"""Measures one commit in a pytest of its own, in a checkout of that commit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_perfdl.model.errors import CheckoutError, RunFailed
from pytest_perfdl.runs import child_pytest
from pytest_perfdl.runs.bisect import pytest_run
from pytest_perfdl.runs.bisect.history import WORKING_TREE, History
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.system import clocks
from pytest_perfdl.system.git import content
from pytest_perfdl.workers.checkout import Checkout, checked_out
from pytest_perfdl.workers.overlay import overlay

BUDGET = "--perf-budget=120"
"""Of the rounds of one measurement; a commit that stays undecided is measured again."""
OWN_TESTS = "commit"
"""In place of a commit: every commit runs its own version of the test."""


@dataclass(frozen=True, slots=True)
class Suite:
    """What runs on every commit."""

    history: History
    root: Path
    """pytest's root directory."""
    ini: Path | None
    test: Path
    """The test's file in the working tree, absolute; it need not exist there."""
    name: str
    """What follows it in the node id: `::test_step`, or nothing."""
    tests_of: str
    """Full hash of the commit, or `WORKING_TREE`, whose tests run on every commit; `OWN_TESTS` for each one's own."""
    options: tuple[str, ...] = ()
    """Further options of pytest."""
    setup: str = ""
    """`perf_against_setup`."""
    seconds: float = 600.0
    """Longest that git and `setup` may take each."""

    @property
    def laid_over(self) -> tuple[Path, ...]:
        """Places in the working tree of the files that every commit gets: test, conftest files, ini file.

        Not all of them need exist.
        """
        if self.tests_of == OWN_TESTS:
            return ()
        folders_above = [folder for folder in self.test.parents if folder.is_relative_to(self.root)]
        conftests = [folder / "conftest.py" for folder in folders_above]
        return (self.test, *conftests, *([self.ini] if self.ini is not None else []))


class Child:
    """Runs pytest on commits.

    Parameters
    ----------
    suite
        What to run.
    tests
        A folder in which the files that every commit gets lie as in the repository; see `kept_tests`.
    reports
        Folder that keeps the reports of comparisons; see `pytest_run.report_folder`.
    """

    def __init__(self, suite: Suite, tests: Path, reports: Path) -> None:
        self._suite = suite
        self._tests = tests
        self._reports = reports

    def measure(self, request: Request, metric: str, limit: float) -> Measurement:
        """Measure a commit; one that cannot be measured is said to be skipped.

        Parameters
        ----------
        metric, limit
            Which time the rounds are for, and the slowdown (a fraction) that they have to tell from none.

        Raises
        ------
        KeyboardInterrupt
            After pytest has ended too.
        """
        started = clocks.monotonic()
        try:
            with self._code(request.commit) as checkout:
                made = self._run(request, checkout, metric, limit)
        except CheckoutError as error:
            made = Measurement(request, str(error).partition("\n")[0])
        return replace(made, seconds=round(clocks.monotonic() - started, 3))

    @contextlib.contextmanager
    def _code(self, commit: str) -> Iterator[Checkout]:
        """A folder with a commit's code, and the tests that are to run."""
        suite = self._suite
        top = suite.history.top
        if commit == WORKING_TREE:
            checkout = Checkout(top, top)
            if suite.tests_of in (WORKING_TREE, OWN_TESTS):
                yield checkout
                return
            raise CheckoutError(f"the working tree is measured with its own tests, not with those of {suite.tests_of}")
        with checked_out(top, commit, seconds=suite.seconds, setup=suite.setup) as checkout:
            self._lay_over(checkout)
            yield checkout

    def _lay_over(self, checkout: Checkout) -> None:
        top = self._suite.history.top
        for file in self._suite.laid_over:
            kept = self._tests / file.relative_to(top)
            if kept.is_file():
                overlay(Checkout(self._tests, checkout.root), [kept])
        ini = self._suite.ini
        if ini is not None and ini.is_file() and not Path(checkout.path(ini)).exists():
            overlay(checkout, [ini])

    def _run(self, request: Request, checkout: Checkout, metric: str, limit: float) -> Measurement:
        file = Path(checkout.path(self._suite.test))
        if not file.is_file():
            return Measurement(request, f"there is no {self._suite.test.name}")
        return pytest_run.measured(
            request,
            lambda scratch: self.command(request, checkout, scratch, metric, limit),
            self._reports,
            folder=Path(checkout.folder(Path.cwd())),
            environment={**os.environ, **_import_path(checkout)},
        )

    def command(
        self, request: Request, checkout: Checkout, scratch: Path, metric: str, limit: float
    ) -> tuple[str, ...]:
        """The command line of one run; its report and run file go into the scratch folder."""
        suite = self._suite
        ini = None if suite.ini is None else checkout.path(suite.ini)
        tests = "own" if suite.tests_of == OWN_TESTS else "head"
        further = (*((BUDGET,) if request.timed else ()), *suite.options)
        return (
            *child_pytest.command(scratch, f"{checkout.path(suite.test)}{suite.name}"),
            *(f"--rootdir={checkout.path(suite.root)}", *(["-c", ini] if ini is not None else [])),
            *pytest_run.options(request, scratch, further, metric, limit),
            *(() if request.against is None else (f"--perf-against={request.against}",)),
            *("-o", f"perf_against_tests={tests}"),
        )


def _import_path(checkout: Checkout) -> dict[str, str]:
    """What makes a process import the checkout's code, also where the working tree is installed in editable mode."""
    return {} if checkout.root == checkout.working_tree else checkout.environment()


def keep_tests(suite: Suite, folder: Path) -> None:
    """Copy the files that every commit gets into a folder, so that all commits run the same ones.

    Raises
    ------
    RunFailed
        The test does not exist there.
    """
    top = suite.history.top
    if suite.tests_of == OWN_TESTS:
        return
    for file in suite.laid_over:
        name = file.relative_to(top)
        kept = folder / name
        if suite.tests_of == WORKING_TREE:
            text = file.read_bytes() if file.is_file() else None
        else:
            text = content(top, suite.tests_of, name.as_posix())
        if text is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(text)
        elif file == suite.test:
            where = "the working tree" if suite.tests_of == WORKING_TREE else suite.tests_of[:9]
            raise RunFailed(f"there is no {name} in {where}: name a test file, and its commit with --tests")
