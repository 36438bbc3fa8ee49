"""The code that a run measures: the working tree and other revisions, and checks that a side ran its own code."""

from __future__ import annotations

import contextlib
import filecmp
import glob
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath

import pytest

from pytest_perfdl.baseline.code import (
    MeasuredCode,
    changed_ns,
    contents,
    measured_code,
    tracked,
)
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.recorded_commit import BaselineCode, difference, few, pair_of
from pytest_perfdl.config.settings import Settings
from pytest_perfdl.measure.commands import CallInfo
from pytest_perfdl.model.errors import BaselineError, CheckoutError, GitError
from pytest_perfdl.model.record import UNTIED, Code, Finding, Record
from pytest_perfdl.model.units import some
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.definitions import Redefined, redefined
from pytest_perfdl.system import clocks
from pytest_perfdl.system.distributions import from_an_index, modules_from
from pytest_perfdl.system.git import commit_of, cut_off, git, modified, read, top_of, tree_of, trouble
from pytest_perfdl.workers.channel import Origins
from pytest_perfdl.workers.checkout import Checkout, checked_out, kept_commits, overlay, with_conftests
from pytest_perfdl.workers.interpreter import Interpreter, check_version, describe, differences
from pytest_perfdl.workers.origins import (
    MADE_WHILE_BUILDING,
    NOT_MEASURED,
    Elsewhere,
    code_names,
    elsewhere,
    import_roots,
)

_NEVER_PAIRED = (
    "the recorded baselines cannot be compared in paired rounds later, so only larger slowdowns are detected"
)
_MOST_NAMED = 4
"""Files that a command names; it adds all where there are more."""
_COMPILED = frozenset((".so", ".pyd", ".dylib"))
"""Suffixes of libraries and compiled modules."""
_SOURCES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".f90", ".h", ".hip", ".hpp", ".mm", ".pxd", ".pyx", ".rs")
"""What compiled modules are built from."""
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
"""What pip finds in a folder that it can install."""
NOTED_SECONDS = 5.0
"""Time for checkouts from which on the summary says how long they took."""


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
        self._began = clocks.time_ns()
        self.top = top_of(config.rootpath)
        """Top of the repository, if there is one."""
        self.commit = git(config.rootpath, "rev-parse", "--verify", "--quiet", "HEAD")
        """The commit that is checked out when the session begins."""
        self._recorded: dict[str, str] = {}
        """Files that tests loaded or read, with the first digits of each file's git hash."""
        self._checkouts: dict[tuple[str, bool], Checkout] = {}
        """Checkouts of the session, by commit, and by whether the working tree's tests were laid over."""
        self._redefined: dict[tuple[str, str], Redefined | None] = {}
        """How the definitions of tests differ from those of a commit, by test and commit: checkouts and tests ask."""
        self._prefer: tuple[str, ...] | None = None
        """Commits that several tests of the session can share, see `code_of`."""
        self._roots: dict[Path, Mapping[str, tuple[str, ...]]] = {}
        """By folder of a side, where its code can be imported from, see `import_roots`."""
        self._differ: dict[Path, Sequence[str]] = {}
        """By folder of a checkout, the files that differ from the working tree's."""
        self._cleaning = contextlib.ExitStack()

    # Which code was measured

    def tied(self, record: Record, loaded: Origins | None) -> Record:
        """A record of the working tree with hashes of its code, if exactly that code was measured."""
        if self.top is None or loaded is None:
            return record
        installed = self._elsewhere(loaded, None)
        if installed is None and (copied := self._copied(loaded)) is not None:
            # Of a package index, it is rather the project that a copy in this repository was taken from.
            installed = None if all(map(from_an_index, copied.names)) else copied
        copies = [] if installed is None else installed.counterparts
        names = [place.relative_to(self.top).as_posix() for place in copies if place.is_relative_to(self.top)]
        found, why = MeasuredCode(Code({})), ""
        try:
            found = measured_code(
                self.top,
                (*loaded.files, *names),
                loaded.packages,
                without=[self._config.rootpath / folder for folder in self._left_out],
                unnoted=loaded.unnoted,
                commit=self.commit,
                since_ns=self._began,
            )
        except GitError as error:
            why = str(error)
        if installed is not None and not installed.is_the_same:
            why = (
                f"the test imported {installed.names_and_path}, not the code in this repository (to fix: pip install "
                "-e .)"
            )
        elif found.changed:
            why = f"the code changed during the measurement ({some(found.changed)})"
        elif not found.code.files:
            why = why or trouble(self._config.rootpath) or "git cannot read the repository"
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
        try:
            there = contents(self.top, self.commit, sorted(self._recorded)) if self.commit else {}
        except GitError as error:
            return f"{_NEVER_PAIRED}: {error}"
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

    def mistaken(self, loaded: Origins | None, checkout: Checkout | None, against: Checkout | None = None) -> str:
        """Why a side did not run its own code, which makes the comparison invalid; empty if it did.

        Parameters
        ----------
        loaded, checkout
            What a process of the side loaded, and the checkout that it ran; `None` for the working tree.
        against
            For the working tree, the checkout that it is compared with, as far as that is known.
        """
        if loaded is None:
            return ""
        side = "baseline" if checkout else "current"
        wanted = sys.prefix if checkout is None or checkout.interpreter is None else checkout.interpreter.prefix
        if loaded.prefix != wanted:
            return f"the {side} side ran in the environment {loaded.prefix} instead of {wanted}"
        if self._settings.compares_sides and self._settings.against is None:
            # Both sides are meant to run the same code.
            return ""
        other = "the working tree" if checkout else "the baseline commit"
        if loaded.foreign:
            names = ", ".join(loaded.foreign[:3])
            return (
                f"the {side} side loaded code of {other} ({names}), so both sides run the same code: "
                f"{self._way_out(None, checkout)}, or set perf_against_setup"
            )
        if borrowed := list(_borrowed(loaded, checkout, against)):
            return (
                f"the {side} side loaded or read {some(borrowed)} of {other}, so both sides use the same: name files "
                "relative to the one that uses them (Path(__file__).parent), not by an absolute path"
            )
        installed = self._elsewhere(loaded, checkout)
        if installed is None and (compared := checkout or against) is not None:
            # Deeper in the tree may be stubs and copies of other projects, which nobody means to run or changes.
            installed = self._copied(loaded, checkout)
            own = compared.working_tree if checkout is None else checkout.root
            packages = () if installed is None else installed.packages
            places = tuple(f"{place.relative_to(own)}{os.sep}" for place in packages)
            differing = self._differing(compared)
            installed = installed if any(f"{name}{os.sep}".startswith(places) for name in differing) else None
            if (built := self._built_once(loaded)) and any(name.endswith(_SOURCES) for name in differing):
                return (
                    f"both sides load {some(built)}, built once, but the sources of compiled code differ between the "
                    "sides: build it in place on each side (python setup.py build_ext --inplace, also as "
                    "perf_against_setup)"
                )
        if installed is None:
            return ""
        return (
            f"the {side} side imported {installed.names_and_path}, so both sides run the same code: "
            f"{self._way_out(installed, checkout)}"
        )

    def only_tests(self, loaded: Origins | None, checkout: Checkout | None) -> str:
        """A line if a side loaded none of the repository's code but tests, although there is more; else empty."""
        if loaded is None or self.top is None:
            return ""
        root = self.top if checkout is None else checkout.root
        if any(map(_is_code, loaded.files)):
            return ""
        others = (PurePosixPath(name) for name in tracked(root) if _is_code(name))
        if all(NOT_MEASURED.intersection((*path.parts, path.stem)) for path in others):
            return ""
        side = "baseline" if checkout else "current"
        return f"the {side} side loaded no code of this repository but tests and conftest files"

    def one_sided(self, head: Origins | None, base: Origins, checkout: Checkout) -> str:
        """Why the sides differ in files that no commit has, in one line; empty if they do not.

        Such a file, a compiled module or a table that is made once, is beside the code on one side only, and the test
        does without it on the other.
        """
        if head is None or self.top is None or not checkout.is_other_code:
            return ""
        if empty := _not_fetched({*head.files}.difference(base.borrowed), self.top, checkout.root):
            return (
                f"the current side used files of {some(empty)}, a submodule that the baseline commit's checkout has "
                "without its files, so the sides differ by more than their commits: set perf_against_setup = git "
                "submodule update --init --recursive"
            )
        if ours := self._lacking(head.files, base, checkout):
            return (
                f"the current side used {some(ours)}, which git ignores and the baseline commit's checkout lacks"
                f"{' or made anew in this run' if any(_is_there(checkout.root, name) for name in ours) else ''}, so "
                "the sides differ by more than their commits: make it there too with perf_against_setup, or delete it"
            )
        theirs = [name for name in self.ignored(base.files, checkout) if not _is_there(self.top, name)]
        if theirs:
            return (
                f"the baseline side used {some(theirs)}, which git ignores and the working tree lacks, so the sides "
                "differ by more than their commits: make it in the working tree too, as perf_against_setup does"
            )
        return ""

    def maybe_one_sided(self, head: Origins | None, base: Origins, checkout: Checkout) -> str:
        """A line about files as of `one_sided` that were opened by nobody knows whom; empty if there are none."""
        found = [] if head is None or not checkout.is_other_code else self._lacking(head.unnoted or (), base, checkout)
        return (
            f"compiled code or another process opened {some(found)} while the current side ran, which git ignores and "
            "the baseline commit's checkout lacks: if the test uses it, make it there too with perf_against_setup"
            if found
            else ""
        )

    def shared(self, head: Origins | None, base: Origins, checkout: Checkout) -> str:
        """A line about code outside of the repository that both sides ran from one place; empty if there is none.

        A build or cache folder may have it, or a folder that an absolute path names. Another project's code has nothing
        to do with the commits; a library may, where the sources of compiled code differ.
        """
        if head is None or self.top is None or not checkout.is_other_code:
            return ""
        both = sorted({*head.elsewhere}.intersection(base.elsewhere))
        built = bool(both) and any(name.endswith(_SOURCES) for name in self._differing(checkout))
        found = [place for place in both if (built if _is_compiled(place) else _may_be_of(self.top, Path(place)))]
        return (
            f"both sides ran {some(found)}, which is outside of the repository and of installed packages: if it was "
            "made from the repository's code, it is that of one side"
            if found
            else ""
        )

    def _lacking(self, used: Iterable[str], base: Origins, checkout: Checkout) -> list[str]:
        """Those of the working tree's files that git ignores and the other side neither had nor used from here."""
        borrowed = {*base.borrowed}
        return [
            name
            for name in self.ignored(used)
            if name not in borrowed and (not _is_there(checkout.root, name) or _is_made_otherwise(checkout, name))
        ]

    def is_same(self, test: PerfTest, base: Record | None, info: CallInfo) -> bool:
        """Whether a test need not be measured: `--perf-skip-same`, and same code and environment as its baseline."""
        if not self._settings.skip_same or self.top is None or base is None or base.key.slug != info.key.slug:
            return False
        try:
            return not difference(
                base, self.top, test.item.path, test_hash=test.hash, plan=test.plan, context=info.context
            )
        except GitError:
            # Nobody knows, so the test is measured.
            return False

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

    def ignored(self, used: Iterable[str], checkout: Checkout | None = None) -> list[str]:
        """Those of a side's files that git ignores, without caches and metadata."""
        if self.top is None:
            return []
        root = self.top if checkout is None else checkout.root
        places = (self._config.rootpath / folder for folder in self._left_out)
        without = [place if checkout is None else Path(checkout.path(place)) for place in places]
        # What this run wrote was not there before; a checkout is made in it.
        since = self._began if checkout is None else None
        found = measured_code(root, used, (), without=without, since_ns=since).code.ignored
        return [name for name in found if not _is_by_the_way(root, name)]

    def names(self, checkout: Checkout | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Top-level names of a side's code: those on its import path, and those of what lies deeper."""
        if self.top is None:
            return (), ()
        names = code_names(self.import_folders(checkout))
        deeper = {*self._import_roots(self.top if checkout is None else checkout.root), *self._installed}
        return names, tuple(sorted(deeper.difference(names)))

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

    def _elsewhere(self, loaded: Origins, checkout: Checkout | None) -> Elsewhere | None:
        """Code on a side's import path that it loaded from elsewhere."""
        return elsewhere(loaded, self.import_folders(checkout))

    def _copied(self, loaded: Origins, checkout: Checkout | None = None) -> Elsewhere | None:
        """Code at any depth of the repository that a side loaded from elsewhere."""
        assert self.top is not None
        root = self.top if checkout is None else checkout.root
        names = dict.fromkeys(name.partition(".")[0] for name, _ in loaded.outside)
        folders = dict.fromkeys(root / folder for name in names for folder in self._import_roots(root).get(name, ()))
        return elsewhere(loaded, list(folders)) if folders else None

    def _import_roots(self, root: Path) -> Mapping[str, tuple[str, ...]]:
        if root not in self._roots:
            self._roots[root] = import_roots(tracked(root))
        return self._roots[root]

    @cached_property
    def _installed(self) -> set[str]:
        """Top-level names of the modules that were installed from the repository."""
        return set() if self.top is None else modules_from(self.top)

    def _built_once(self, loaded: Origins) -> list[str]:
        """Files of compiled modules of the repository that lie outside of it, where one build serves both sides."""
        own = {name.partition(".")[0] for name in loaded.own} | self._installed
        return [file for name, file in loaded.outside if _is_compiled(file) and name.partition(".")[0] in own]

    def _differing(self, compared: Checkout) -> Sequence[str]:
        """Files of the repository that are not the same on both sides, by their paths from the top.

        Raises
        ------
        GitError
        """
        if not compared.is_other_code:
            return ()
        if compared.root not in self._differ:
            head = read(compared.root, "rev-parse", "HEAD").strip()
            self._differ[compared.root] = modified(compared.working_tree, head)
        return self._differ[compared.root]

    def _way_out(self, installed: Elsewhere | None, checkout: Checkout | None) -> str:
        """What makes a side run its own code, as a clause."""
        assert self.top is not None
        root = self.top if checkout is None else checkout.root
        folder = self._config.rootpath.resolve() / "src"
        if installed is not None:
            folder = self.top / installed.folders[installed.names[0]][1].relative_to(root)
        above = (place for place in (folder, *folder.parents) if place.is_relative_to(self.top))
        project = next((place for place in above if any((place / name).is_file() for name in _PROJECT_FILES)), self.top)
        there, path = (os.path.relpath(place, self._config.rootpath) for place in (project, folder))
        editable = f"install the package in editable mode (pip install -e {there})"
        return f"{editable}, or set pythonpath = {path} in the ini file"

    # Which revision to compare with

    def code_of(self, own: Record | None, others: Sequence[Record]) -> BaselineCode:
        """The commit to compare with in paired rounds, from the baselines of a test for this and other machine IDs.

        Of equivalent commits, one that other tests of the run can use too, or that is already checked out.
        """
        try:
            if self._prefer is None:
                self._prefer = self._shared(own.key.slug if own is not None else "")
            return pair_of(
                own,
                others,
                lambda record: self._store.path(record.test, record.key.slug),
                self._config.rootpath,
                prefer=self._prefer,
            )
        except GitError as error:
            return BaselineCode(None, str(error))

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
            said = trouble(self._config.rootpath) or cut_off(self._config.rootpath)
            raise CheckoutError(f"--perf-against: there is no git revision {name!r}{(f' ({said})' if said else '')}")
        return commit

    # Checkouts

    def redefined(self, test: PerfTest, commit: str) -> Redefined | None:
        """How the test is defined otherwise in a commit, or is not in it; `None` if the definition is the same.

        Where tests are cases of one, each side runs its own: those that are defined otherwise are not compared.
        """
        if self.top is None or not commit or test.cases:
            return None
        key = test.item.nodeid, commit
        if key not in self._redefined:
            self._redefined[key] = redefined(test.item, self.top, commit)
        return self._redefined[key]

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


def _is_code(name: str) -> bool:
    """Whether a file of the repository is a module or a library, and neither a test's nor a conftest file."""
    path = PurePosixPath(name)
    if not (path.suffix == ".py" or _is_compiled(name)) or path.name in ("conftest.py", *_PROJECT_FILES):
        return False
    return not path.stem.startswith("test_") and not path.stem.endswith("_test") and not _TESTS & {*path.parent.parts}


_TESTS = {"test", "tests", "testing"}
"""Folders of tests."""


def _is_compiled(name: str) -> bool:
    return not _COMPILED.isdisjoint(PurePosixPath(name).suffixes)


def _borrowed(loaded: Origins, checkout: Checkout | None, against: Checkout | None) -> Iterator[str]:
    """Files of the other side that a side used in place of its own: libraries, and files that differ between them."""
    compared = checkout or against
    if compared is None:
        return
    own, other = (compared.root, compared.working_tree)[:: 1 if checkout else -1]
    for name in loaded.borrowed:
        mine = own / name
        if mine.is_file():
            if not filecmp.cmp(mine, other / name, shallow=False):
                yield name
        elif _is_compiled(name):
            yield name


def _may_be_of(top: Path, place: Path) -> bool:
    """Whether code outside of a repository may come from it: it is of no other project, or of another worktree."""
    marks = (".git", *_PROJECT_FILES)
    projects = [folder for folder in place.parents if any((folder / name).exists() for name in marks)]
    return not projects or any((top / place.relative_to(folder)).is_file() for folder in projects)


def _is_there(root: Path, name: str) -> bool:
    """Whether a side has a file; of a compiled module, whether it has it for any version of Python."""
    path = root / name
    if path.exists() or not _is_compiled(name):
        return path.exists()
    return any(path.parent.glob(f"{glob.escape(path.name.partition('.')[0])}.*{path.suffix}"))


def _not_fetched(used: Iterable[str], root: Path, other: Path) -> list[str]:
    """Folders of submodules that one side used files of, and the other has without any: git leaves them empty."""
    found = set()
    for name in used:
        above = (folder for folder in PurePosixPath(name).parents[:-1] if (other / folder).is_dir())
        folder = None if (other / name).exists() else next(above, None)
        if folder is not None and (root / folder / ".git").exists() and not any((other / folder).iterdir()):
            found.add(str(folder))
    return sorted(found)


def _is_made_otherwise(checkout: Checkout, name: str) -> bool:
    """Whether the other side's process itself wrote a file, and not what the working tree has from an earlier time."""
    made = checkout.root / name
    if checkout.ready_ns is None or not made.is_file() or changed_ns(made) <= checkout.ready_ns:
        return False
    return not filecmp.cmp(made, checkout.working_tree / name, shallow=False)


def _is_by_the_way(root: Path, name: str) -> bool:
    """Whether a file that git ignores says nothing about the code: it is in a cache, or describes an installation."""
    path = PurePosixPath(name)
    described = path.name in MADE_WHILE_BUILDING or any(part.endswith(_METADATA) for part in path.parts)
    # Tools mark their caches (https://bford.info/cachedir).
    return described or any((root / folder / "CACHEDIR.TAG").is_file() for folder in path.parents)


_METADATA = (".egg-info", ".dist-info", ".hypothesis")
"""Ends of names of folders with the metadata of distributions, and of a cache without mark."""
