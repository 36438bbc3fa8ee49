"""Measuring one commit, or one mixture of two environments, by a pytest of its own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pytest_perfdl.model.errors import CheckoutError, RunFailed, RunFileError
from pytest_perfdl.report.story import cause_line, story
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.runs import child_pytest
from pytest_perfdl.runs.bisect.history import WORKING_TREE, History
from pytest_perfdl.runs.bisect.measurements import Measurement, Request, measurement_of
from pytest_perfdl.runs.bisect.mixtures import NEW, Environments, complaints
from pytest_perfdl.runs.bisect.posterior import Chosen
from pytest_perfdl.system import clocks, folders
from pytest_perfdl.system.git import content
from pytest_perfdl.workers.checkout import Checkout, checked_out, overlay

# One run of pytest for a search: the options that all of them have, and what is kept of the run.


COUNTING_STEPS = ("--perf-warmup=2", "--perf-steps=4", "--perf-memory=off")
"""Counts need no timed steps."""


def options(request: Request, scratch: Path, further: Sequence[str], metric: str, limit: float) -> tuple[str, ...]:
    """The options of a run of one test, besides those of every `child_pytest.command`.

    Parameters
    ----------
    further
        Options of the user, which come after those that they may replace.
    metric, limit
        Which time the rounds are for, and the slowdown (a fraction) that they have to tell from none.
    """
    limits = {"step_time": "off", "block_time": "off"} | ({metric: f"{limit * 100:.6g}%"} if request.timed else {})
    return (
        "--perf-calibrate=off",
        # An empty folder: no baseline of the project is compared with.
        *(f"--perf-dir={scratch / 'baselines'}", "--perf-fail-on=invalid", "--perf-require=0"),
        # A benchmark alone: as a case of its file it has no counts and causes to search by.
        *("-o", "perf_shared=false"),
        *(() if request.timed else COUNTING_STEPS),
        *further,
        *(f"--perf-limit={name}:{text}" for name, text in limits.items()),
    )


def measured(
    request: Request,
    command: Callable[[Path], Sequence[str]],
    reports: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Measurement:
    """Run pytest, and keep what came of it; a run that measured nothing is said to be skipped.

    Parameters
    ----------
    reports
        Folder that keeps the reports of comparisons; see `report_folder`.
    command, folder, environment
        As `child_pytest.run` takes them.

    Raises
    ------
    KeyboardInterrupt
        After pytest has ended too.
    """
    with child_pytest.run(command, "bisect", folder=folder, environment=environment) as ended:
        if ended.run_file is None:
            return Measurement(request, ended.raised or ended.reason)
        try:
            run = read_run(ended.run_file, child_pytest.report(ended.folder))
        except RunFileError as error:
            return Measurement(request, ended.raised or str(error))
        found = measurement_of(run, request)
        if found.skipped:
            return replace(found, skipped=": ".join(filter(None, (found.skipped, ended.raised))))
        if request.against is not None:
            with contextlib.suppress(FileNotFoundError):
                shutil.copytree(child_pytest.report(ended.folder), report_folder(reports, request), dirs_exist_ok=True)
            # As pytest's own report has them.
            found = replace(found, causes=tuple(cause_line(group) for group in story(run.results[0], run).causes))
        return found


def report_folder(reports: Path, request: Request) -> Path:
    """The folder of the report of a comparison, if that was made."""
    # A request may name a hundred distributions, and a file's name has 255 bytes.
    return reports / hashlib.sha256(repr(request).encode()).hexdigest()[:16]


# Measures one commit in a pytest of its own, in a checkout of that commit.


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
        Folder that keeps the reports of comparisons; see `child.report_folder`.
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
        return measured(
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
            *options(request, scratch, further, metric, limit),
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


# Measures a mixture of two environments by a pytest that runs in it.


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
    """Folder that keeps the report of each comparison; see `child.report_folder`."""

    def measure(self, request: Request, metric: str, limit: float) -> Measurement:
        """Measure one; one that pip refuses or that cannot be made or measured is said to be skipped."""
        started = clocks.monotonic()
        if request.commit == NEW:
            made = self._run(request, self.environments.new.executable, metric, limit)
        else:
            made = self._mix(request, frozenset(request.commit.split(",")), metric, limit)
        return replace(made, seconds=round(clocks.monotonic() - started, 3))

    def _mix(self, request: Request, chosen: Chosen, metric: str, limit: float) -> Measurement:
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
        return measured(
            request, lambda scratch: self.command(request, interpreter, scratch, metric, limit), self.reports
        )

    def command(self, request: Request, interpreter: str, scratch: Path, metric: str, limit: float) -> tuple[str, ...]:
        """The command line of one run; its report and run file go into the scratch folder."""
        against = () if request.against is None else (f"--perf-against-python={self.environments.old.executable}",)
        return (
            *child_pytest.command(scratch, self.test, interpreter=interpreter),
            *options(request, scratch, self.options, metric, limit),
            *(against or ("-o", "perf_against_python=")),
        )
