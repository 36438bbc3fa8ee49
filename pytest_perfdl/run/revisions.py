"""The code that a run measures: the working tree and other revisions, and checks that a side ran its own code."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pytest

from pytest_perfdl.baseline.code import contents, measured_code
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.recorded_commit import BaselineCode, few, pair_of
from pytest_perfdl.baseline.same import difference
from pytest_perfdl.config.settings import Settings
from pytest_perfdl.measure.commands import CallInfo
from pytest_perfdl.model.errors import BaselineError, CheckoutError
from pytest_perfdl.model.record import Finding, Record
from pytest_perfdl.model.units import some
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.definitions import Redefined, redefined
from pytest_perfdl.system.git import commit_of, git, top_of, tree_of, trouble
from pytest_perfdl.workers.checkout import Checkout, checked_out, kept_commits
from pytest_perfdl.workers.interpreter import Interpreter, check_version, describe, differences
from pytest_perfdl.workers.messages import Origins
from pytest_perfdl.workers.origins import Elsewhere, elsewhere
from pytest_perfdl.workers.overlay import overlay, with_conftests

_NEVER_PAIRED = (
    "the recorded baselines cannot be compared in paired rounds later, so only larger slowdowns are detected"
)
_MOST_NAMED = 4
"""Files that a command names; it adds all where there are more."""
NOTED_SECONDS = 5.0
"""Time for checkouts from which on the summary says how long they took."""
UNTIED = "untied"
"""Code of the note on a record that is tied to no commit, since it is not of the code that the tree had."""


class Revisions:
    """The repository's code in one run.

    Parameters
    ----------
    tests
        All that will be measured.
    """

    def __init__(self, config: pytest.Config, settings: Settings, store: Store, tests: Sequence[PerfTest]) -> None:
        self._config = config
        self._settings = settings
        self._store = store
        self._tests = tests
        self._began = time.time_ns()
        self.top = top_of(config.rootpath)
        """Top of the repository, if there is one."""
        self.commit = git(config.rootpath, "rev-parse", "--verify", "--quiet", "HEAD")
        """The commit that is checked out when the session begins."""
        self._recorded: dict[str, str] = {}
        """Files that tests loaded or read, with the first digits of each file's git hash."""
        self._checkouts: dict[tuple[str, bool], Checkout] = {}
        """Checkouts of the session, by commit, and by whether the working tree's tests were laid over."""
        self._prefer: tuple[str, ...] | None = None
        """Commits that several tests of the session can share, see `code_of`."""
        self._cleaning = contextlib.ExitStack()

    # Which code was measured

    def tied(self, record: Record, loaded: Origins | None) -> Record:
        """A record of the working tree with hashes of its code, if exactly that code was measured."""
        if self.top is None or loaded is None:
            return record
        installed = self._elsewhere(loaded, None)
        copies = [] if installed is None else installed.counterparts
        names = [place.relative_to(self.top).as_posix() for place in copies if place.is_relative_to(self.top)]
        found = measured_code(
            self.top,
            (*loaded.files, *names),
            loaded.packages,
            without=[self._config.rootpath / folder for folder in self._left_out],
            commit=self.commit,
            since_ns=self._began,
        )
        if installed is not None and not installed.is_the_same:
            why = (
                f"the test imported {installed.names_and_path}, not the code in this repository (to fix: pip install "
                "-e .)"
            )
        elif found.changed:
            why = f"the code changed during the measurement ({some(found.changed)})"
        elif not found.code.files:
            why = trouble(self._config.rootpath) or "git cannot read the repository"
        else:
            self._recorded.update(found.code.files)
            return replace(record, code=found.code)
        more = "a baseline from this measurement belongs to no commit and cannot be used in paired rounds"
        return replace(record, integrity=(*record.integrity, Finding("note", UNTIED, f"{why}; {more}")))

    @property
    def warning(self) -> str:
        """A warning for runs that record: why the baselines belong to no commit; empty if there is no problem."""
        if said := trouble(self._config.rootpath):
            return f"{_NEVER_PAIRED}: {said}"
        if self.top is None:
            return (
                f"{_NEVER_PAIRED}: {self._config.rootpath} is not in a git repository. To enable paired rounds: git "
                "init, record again (pytest --perf-update=all), then git add . and git commit"
            )
        there = contents(self.top, self.commit, sorted(self._recorded)) if self.commit else {}
        names = [name for name, found in sorted(self._recorded.items()) if not there.get(name, "").startswith(found)]
        if not names:
            return ""
        # They may be in a shared folder outside.
        baselines = [self._store.folder] if self._store.base.resolve().is_relative_to(self.top) else []
        added = " ".join(map(shlex.quote, [*names, *baselines])) if len(names) <= _MOST_NAMED else "-A"
        return (
            f"the recorded code is not committed yet ({some(names)}): commit the code together with the baselines "
            f"(git add {added}; git commit), or later runs cannot use paired rounds"
        )

    def mistaken(self, loaded: Origins | None, checkout: Checkout | None) -> str:
        """Why a side did not run its own code, which makes the comparison invalid; empty if it did."""
        if loaded is None:
            return ""
        side = "baseline" if checkout else "current"
        wanted = sys.prefix if checkout is None or checkout.interpreter is None else checkout.interpreter.prefix
        if loaded.prefix != wanted:
            return f"the {side} side ran in the environment {loaded.prefix} instead of {wanted}"
        if self._settings.compares_sides and self._settings.against is None:
            # Both sides are meant to run the same code.
            return ""
        do = "install the package in editable mode (pip install -e .), or set pythonpath = src in the ini file"
        if loaded.foreign:
            names = ", ".join(loaded.foreign[:3])
            other = "the working tree" if checkout else "the baseline commit"
            return (
                f"the {side} side loaded code of {other} ({names}), so both sides run the same code: {do}, or set "
                "perf_against_setup"
            )
        installed = self._elsewhere(loaded, checkout)
        if installed is None:
            return ""
        return f"the {side} side imported {installed.names_and_path}, so both sides run the same code: {do}"

    def is_same(self, test: PerfTest, base: Record | None, info: CallInfo) -> bool:
        """Whether a test need not be measured: `--perf-skip-same`, and same code and environment as its baseline."""
        if not self._settings.skip_same or self.top is None or base is None or base.key.slug != info.key.slug:
            return False
        return not difference(base, self.top, test.item.path, test_hash=test.hash, plan=test.plan, context=info.context)

    def not_as_recorded(self, base: Record, loaded: Origins, checkout: Checkout) -> str:
        """A line about files of the baseline commit that differ from the recorded ones; empty if there are none.

        A process may load other modules, for example if a file ignored by git decides which.
        """
        if base.code is None or not base.code.files:
            return ""
        without = [Path(checkout.path(self._config.rootpath / folder)) for folder in self._left_out]
        then, now = base.code.files, measured_code(checkout.root, loaded.files, (), without=without).code.files
        laid = {
            Path(checkout.path(file)).relative_to(checkout.root).as_posix() for file in self._laid_over(checkout, "")
        }
        # The data that a step reads may be random; the modules that it loads are not.
        both = {name for name in {*now, *then} if name.endswith(".py") or (name in now and name in then)}
        other = sorted(name for name in both - laid if now.get(name) != then.get(name))
        return (
            f"files of the baseline commit differ from the files at the time of recording: {some(other)}"
            if other
            else ""
        )

    def ignored(self, loaded: Origins | None) -> tuple[str, ...]:
        """Files in the repository that the working tree's test loaded or read although git ignores them."""
        if self.top is None or loaded is None:
            return ()
        without = [self._config.rootpath / folder for folder in self._left_out]
        return measured_code(self.top, loaded.files, (), without=without).code.ignored

    def import_folders(self, checkout: Checkout | None) -> list[Path]:
        """Where a side's code is imported from: the top, `src`, and what the ini's `pythonpath` names there."""
        assert self.top is not None
        tops = (self.top, self._config.rootpath.resolve())
        places = [*tops, *(top / "src" for top in tops)]
        with contextlib.suppress(ValueError):  # pytest's plugin for it can be turned off
            named = (place.resolve() for place in self._config.getini("pythonpath"))
            places += (place for place in named if place.is_relative_to(self.top))
        moved = places if checkout is None else [Path(checkout.path(place)) for place in places]
        return list(dict.fromkeys(moved))

    def _elsewhere(self, loaded: Origins | None, checkout: Checkout | None) -> Elsewhere | None:
        return None if loaded is None else elsewhere(loaded, self.import_folders(checkout))

    # Which revision to compare with

    def code_of(self, own: Record | None, others: Sequence[Record]) -> BaselineCode:
        """The commit to compare with in paired rounds, from the baselines of a test for this and other machine IDs.

        Of equivalent commits, one that other tests of the run can use too, or that is already checked out.
        """
        if self._prefer is None:
            self._prefer = self._shared(own.key.slug if own is not None else "")
        return pair_of(
            own,
            others,
            lambda record: self._store.path(record.test, record.key.slug),
            self._config.rootpath,
            self._left_out,
            prefer=self._prefer,
        )

    def _shared(self, slug: str) -> tuple[str, ...]:
        """As few commits as possible with the code of all tests' baselines, preferably of this machine ID."""
        if self.top is None:
            return ()
        wanted = []
        for test in self._tests:
            # An unreadable baseline is reported when it is needed.
            with contextlib.suppress(BaselineError):
                known = [each for each in self._store.others(test.item.nodeid, "") if each.code is not None]
                known.sort(key=lambda record: (record.key.slug == slug, record.occasions[-1].date))
                wanted += [known[-1].code.files] if known and known[-1].code is not None else []
        return tuple(few(self.top, wanted, kept_commits(self.top))) if wanted else ()

    @property
    def _left_out(self) -> tuple[str, ...]:
        """Directories that are not part of the code, relative to the root directory."""
        return self._store.folder, str(self._settings.report)

    @property
    def against(self) -> str:
        """Commit of `--perf-against`; empty where only the interpreter differs.

        Raises
        ------
        CheckoutError
            There is no such revision.
        """
        name = self._settings.against
        if name is None:
            return ""
        commit = commit_of(self._config.rootpath, name)
        if commit is None:
            said = trouble(self._config.rootpath)
            raise CheckoutError(f"--perf-against: there is no git revision {name!r}{(f' ({said})' if said else '')}")
        return commit

    # Checkouts

    def redefined(self, test: PerfTest, commit: str) -> Redefined | None:
        """How the test is defined otherwise in a commit, or is not in it; `None` if the definition is the same."""
        return redefined(test.item, self.top, commit) if self.top is not None and commit else None

    def prepare_other_sides(self) -> None:
        """Make the other sides that the tests of the run need.

        Raises
        ------
        CheckoutError
        """
        commit, whose = self.against, self._settings.against_tests
        changed = (self.redefined(test, commit) for test in self._tests)
        for over in {whose == "head" and each is not None for each in changed} or {False}:
            self.other_side(commit, tests_of_head=over)

    def other_side(self, commit: str, *, tests_of_head: bool = False) -> Checkout:
        """The other side of a run that compares two: a commit's code, or the working tree's, and its interpreter.

        With `tests_of_head` the tests of the working tree are laid over the commit's.

        Raises
        ------
        CheckoutError
        """
        top = self.top or self._config.rootpath
        code = self.checkout(commit, tests_of_head=tests_of_head) if commit else Checkout(working_tree=top, root=top)
        return replace(code, interpreter=self.interpreter)

    @cached_property
    def interpreter(self) -> Interpreter | None:
        """The other side's, of `--perf-against-python`; `None` if it runs under this one.

        Raises
        ------
        CheckoutError
        """
        if self._settings.against_python is None:
            return None
        try:
            found = describe(self._settings.against_python)
            check_version(found)
        except CheckoutError as error:
            raise CheckoutError(f"--perf-against-python: {error}") from None
        return found

    def with_environments(self, new: Record, base: Record) -> tuple[Record, Record]:
        """Records of both sides with the distributions that differ in their contexts, where interpreters differ."""
        if self.interpreter is None:
            return new, base
        found = self._environment_differences
        before, after = ({name: texts[side] for name, texts in found.items()} for side in (0, 1))
        return replace(new, context={**new.context, **after}), replace(base, context={**base.context, **before})

    @cached_property
    def _environment_differences(self) -> Mapping[str, tuple[str, str]]:
        """What differs between the two interpreters: name -> (the other side's, this one's); the same for all tests."""
        assert self.interpreter is not None
        here = describe(sys.executable)
        places = {"interpreter": (self.interpreter.executable, here.executable)}
        return places | differences(self.interpreter, here)

    def checkout(self, commit: str, *, tests_of_head: bool = False) -> Checkout:
        """A commit's code on disk, made when first asked for; it stays there until the run ends, and for later runs.

        There are two where some tests are defined otherwise in the commit: the others run as they are there.

        Raises
        ------
        CheckoutError
        """
        if (commit, tests_of_head) not in self._checkouts:
            top = self.top
            if top is None:
                raise CheckoutError(trouble(self._config.rootpath) or "the project is not in a git repository")
            same = (
                made
                for (known, over), made in self._checkouts.items()
                if over == tests_of_head and tree_of(top, known) == tree_of(top, commit)
            )
            laid_over = commit if tests_of_head else ""
            self._checkouts[commit, tests_of_head] = next(same, None) or self._check_out(top, commit, laid_over)
        return self._checkouts[commit, tests_of_head]

    @property
    def checked_out(self) -> str:
        """A line about checkouts and their time, which is in no test's budget; empty if that was short."""
        made = {id(each): each for each in self._checkouts.values()}.values()
        if sum(each.seconds for each in made) < NOTED_SECONDS:
            return ""
        kept = sum(each.is_kept for each in made)
        counts = [f"{len(made) - kept} checked out", f"{kept} reused from earlier runs"]
        said = ", ".join(count for count in counts if not count.startswith("0 "))
        return f"baseline commits: {said}, in {sum(each.seconds for each in made):.1f} s"

    def _check_out(self, top: Path, commit: str, laid_over: str) -> Checkout:
        with contextlib.ExitStack() as cleaning:
            made = cleaning.enter_context(
                checked_out(top, commit, seconds=self._settings.timeout, setup=self._settings.against_setup)
            )
            overlay(made, self._laid_over(made, laid_over))
            self._cleaning.enter_context(cleaning.pop_all())
        return made

    def _laid_over(self, checkout: Checkout, commit: str) -> list[Path]:
        """What of the working tree runs on the other revision: an ini file it lacks, and the tests, if of a commit."""
        root, ini = self._config.rootpath, self._config.inipath
        files: list[Path] = []
        if commit:
            files = with_conftests((test.item.path for test in self._tests), root)
            others = (each.files for test in self._tests if (each := self.redefined(test, commit)) is not None)
            files = list(dict.fromkeys((*files, *(file for found in others for file in found))))
        if ini is not None and (files or not Path(checkout.path(ini)).exists()):
            files.append(ini)
        return files

    def close(self) -> None:
        """Remove what was checked out, but for what later runs keep."""
        self._cleaning.close()
