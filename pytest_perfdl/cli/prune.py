"""List baselines of tests that no longer exist; --apply deletes them."""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_perfdl.baseline.files import Store, exemplar_path
from pytest_perfdl.cli.common import say, shown
from pytest_perfdl.cli.project import Project, add_dir, baselines, find_project, store
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.record import Record
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system import folders, processes
from pytest_perfdl.system.folders import delete_file
from pytest_perfdl.system.git import read, top_of, trouble
from pytest_perfdl.system.import_path import LIBRARY_FIRST, module_command
from pytest_perfdl.workers.channel import text_of
from pytest_perfdl.workers.checkout import clear

# Which tests a project has: collected by a pytest of its own, told by its hooks.
#
# This module is that pytest's plugin too. Node ids are taken when they are collected, before anything deselects them.


_OUT = "PERFDL_COLLECTED"
_SECONDS = 600.0
"""Longest that importing all test files may take, as the time limit of one of their processes."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What pytest found."""

    tests: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    """Files that were collected; a test that is not in one of these may still exist."""
    broken: dict[str, str] = field(default_factory=dict)
    """Node ids of files, folders and classes that could not be collected or skipped themselves, with why."""


def collect(project: Project, paths: Sequence[str]) -> Collected:
    """Ask pytest for the tests in some paths, or for those that it collects without any.

    Its options in the ini file and the environment do not apply, except for those that say which plugins there are and
    how modules are imported.

    Raises
    ------
    CommandError
        When it did not get through.
    """
    options = ["--collect-only", f"--rootdir={project.root}", "-oaddopts="]
    command = module_command(sys.executable, "pytest", *options, path=LIBRARY_FIRST)
    command += [] if project.ini is None else ["-c", str(project.ini)]
    command += [*_keep_plugins(project.options), "-pperfdl", f"-p{__name__}", "--", *paths]
    with folders.for_a_while("collect") as scratch:
        out = scratch / "collected.json"
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"} | {_OUT: str(out)}
        try:
            done = processes.run(command, project.root, seconds=_SECONDS, environment=environment)
        except subprocess.TimeoutExpired:
            raise CommandError(f"pytest did not collect the tests within {_SECONDS:g} s") from None
        if not out.is_file():
            text = (done.output + done.errors).decode("utf-8", "backslashreplace")
            said = [line for line in text.splitlines() if line.strip()]
            telling = next((line for line in said if line.startswith(("ERROR:", "E  "))), said[-1] if said else "")
            raise CommandError(f"pytest could not collect the tests (exit code {done.code}): {telling.strip()}")
        found = json.loads(out.read_text(encoding="ascii"))
    return Collected(frozenset(found["tests"]), frozenset(found["files"]), found["broken"])


def _keep_plugins(options: Sequence[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-p", action="append", default=[])
    parser.add_argument("--import-mode")
    try:
        found, _ = parser.parse_known_args(options)
    except argparse.ArgumentError:
        return []
    plugins = [f"-p{name}" for name in found.p if name != "no:perfdl"]
    return plugins if found.import_mode is None else [*plugins, f"--import-mode={found.import_mode}"]


_tests: set[str] = set()
_files: set[str] = set()
_broken: dict[str, str] = {}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Before any plugin deselects it."""
    _tests.add(item.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file, folder or class is done."""
    if report.passed:
        _files.add(report.nodeid)
    else:
        _broken[report.nodeid] = (
            (text_of(report).strip().splitlines() or [report.outcome])[-1].removeprefix("E ").strip()
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems() -> None:
    """Everything was collected: when something ends pytest before this, nothing is written."""
    data = {"tests": sorted(_tests), "files": sorted(_files), "broken": _broken}
    Path(os.environ[_OUT]).write_text(json.dumps(data), encoding="ascii")


# List baselines of tests that no longer exist; --apply deletes them.
#
# pytest collects the project's tests. A baseline is deleted only if its test's file is gone, or was collected and does
# not define the test any more. Only files that git can restore are deleted. --checkouts deletes other revisions'
# checkouts instead, which earlier runs keep in the git folder.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument(
        "--apply", action="store_true", help="delete the listed baselines (default: only list the baselines)"
    )
    parser.add_argument(
        "--params", action="store_true", help="include baselines of parameter values that a test no longer has"
    )
    parser.add_argument("--all", action="store_true", help="allow the deletion of all baselines")
    parser.add_argument("--force", action="store_true", help="also delete files that git cannot restore")
    parser.add_argument(
        "--checkouts",
        action="store_true",
        help="delete the checkouts of other commits that pytest-perfdl keeps in the .git folder; no baselines are "
        "deleted",
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="check only baselines of tests in these files or folders"
    )


@dataclass(frozen=True, slots=True)
class _Baseline:
    path: Path
    record: Record
    orphan: bool
    why: str
    """Empty for a baseline whose test was collected."""

    @property
    def files(self) -> list[Path]:
        pictures = [exemplar_path(self.path, call.name) for call in self.record.calls]
        return [self.path, *(picture for picture in pictures if picture.exists())]


def run(arguments: argparse.Namespace) -> int:
    """Print, and with --apply delete; 3 when no baseline is without its test."""
    if arguments.checkouts:
        return _clear(Path.cwd())
    project, stored = find_project(), store(arguments)
    asked = _Asked(arguments.paths, project)
    considered = [(path, record) for path, record in baselines(stored) if asked.covers(record.test)]
    collected = collect(project, asked.existing) if considered and not asked.gone else Collected()
    found = [
        _Baseline(path, record, *_fate(record.test, project.root, collected, params=arguments.params))
        for path, record in considered
    ]
    orphans = [each for each in found if each.orphan]
    kept = [each for each in found if each.why and not each.orphan]
    if arguments.apply:
        _check(orphans, of=len(found), store=stored, everything=arguments.all, force=arguments.force)
    for each in kept:
        say(f"kept     {_line(each)}")
    for each in orphans:
        say(f"{'deleted' if arguments.apply else 'no test'}  {_line(each)}")
        if arguments.apply:
            _delete(each, stored)
    total = plural(len(found), "baseline")
    if not orphans:
        say(
            f"nothing to prune: no baseline without a test (checked {total}"
            + (f", {len(kept)} of them uncertain)" if kept else ")")
        )
        return 3
    if not arguments.apply:
        verb, them = ("has", "this baseline") if len(orphans) == 1 else ("have", "these baselines")
        say(f"{len(orphans)} of {total} {verb} no test; run `perfdl prune --apply` to delete {them}")
    return 0


def _clear(here: Path) -> int:
    """Delete kept checkouts; 3 when there is none that no run uses."""
    top = top_of(here)
    if top is None:
        raise CommandError(trouble(here) or "the working directory is not in a git repository")
    count, size = clear(top)
    say(f"{plural(count, 'checkout')} deleted, {format_quantity(size, 'B')}" if count else "no checkouts to delete")
    return 0 if count else 3


class _Asked:
    """What the command line names, or everything."""

    def __init__(self, paths: Sequence[str], project: Project) -> None:
        self._root = project.root
        parts = [path.partition("::") for path in paths]
        self._asked = [(Path(os.path.normpath(Path.cwd() / file)), names) for file, _, names in parts]

    @property
    def existing(self) -> list[str]:
        """The files and folders that are there, for pytest."""
        return list(dict.fromkeys(str(path) for path, _ in self._asked if path.exists()))

    @property
    def gone(self) -> bool:
        """Whether nothing of it is there, so that there is nothing to collect."""
        return bool(self._asked) and not self.existing

    def covers(self, test: str) -> bool:
        """Whether a test is, or was, in what is named."""
        file, _, names = test.partition("::")
        path = Path(os.path.normpath(self._root / file))
        return not self._asked or any(
            (asked == path or asked in path.parents)
            and (not wanted or names == wanted or names.startswith((f"{wanted}[", f"{wanted}::")))
            for asked, wanted in self._asked
        )


def _fate(test: str, root: Path, collected: Collected, *, params: bool) -> tuple[bool, str]:
    """Whether a test is gone for certain, and why it is thought to be, or not; empty for one that was collected."""
    file, _, names = test.partition("::")
    if test in collected.tests:
        return False, ""
    if not os.path.lexists(root / file):
        return (
            (False, f"{file} is excluded by git sparse-checkout")
            if _is_sparse(root, file)
            else (True, "the test file does not exist")
        )
    for node, why in collected.broken.items():
        if _within(test, node):
            return False, f"pytest did not collect {node or 'the project'}: {why}"
    if file not in collected.files:
        return False, f"pytest did not collect {file}"
    function = names.partition("[")[0]
    if any(each.partition("[")[0] == f"{file}::{function}" for each in collected.tests):
        return (
            params,
            "the test has other parameters now" if params else "the test no longer has these parameters (see --params)",
        )
    if function in _find_definitions(root / file):
        return False, "pytest did not collect the test, although its file defines it"
    return True, "the file has no test with this name"


def _within(test: str, node: str) -> bool:
    node = node.removesuffix("/__init__.py")
    return node in ("", ".", test) or test.startswith((f"{node}::", f"{node}/"))


def _find_definitions(path: Path) -> set[str]:
    """Names of all functions that a file defines under whatever condition, with their classes: `TestIt::test_step`."""
    found: set[str] = set()

    def look(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(outer + child.name)
            elif isinstance(child, ast.ClassDef):
                look(child, f"{outer}{child.name}::")
            else:
                look(child, outer)

    try:
        look(ast.parse(path.read_bytes()), "")
    except (OSError, SyntaxError, ValueError):
        return found
    return found


def _is_sparse(root: Path, file: str) -> bool:
    """Whether git has the file, and leaves it out of the working tree on purpose."""
    if top_of(root) is None:
        if said := trouble(root):
            raise CommandError(f"git cannot tell whether {visible(file)} is excluded by git sparse-checkout: {said}")
        return False
    return read(root, "ls-files", "-t", "--", file).startswith("S ")


def _delete(baseline: _Baseline, store: Store) -> None:
    """Delete a baseline with its traces, the record last: while it is there, an interrupted command is repeated."""
    record = baseline.record
    if store.path(record.test, record.key.slug) == baseline.path:
        store.remove(record.test, record.key.slug)
        return
    for file in reversed(baseline.files):
        try:
            delete_file(file, store.base)
        except OSError as error:
            raise CommandError(f"{shown(baseline.path)} cannot be deleted: {error.strerror or error}") from error


def _check(orphans: Sequence[_Baseline], *, of: int, store: Store, everything: bool, force: bool) -> None:
    """Refuse what looks like a mistake, before anything is deleted."""
    if orphans and len(orphans) == of and not everything:
        whole = "the only baseline" if of == 1 else f"all {plural(of, 'baseline')}"
        raise CommandError(f"the command would delete {whole}: add --all to confirm")
    lost = [] if force else sorted(set(_files_of(orphans)) - store.restorable())
    if lost:
        which = shown(lost[0]) + (f" and {len(lost) - 1} more" if len(lost) > 1 else "")
        raise CommandError(f"nothing was deleted, because git cannot restore {which}: commit first, or add --force")


def _files_of(baselines: Iterable[_Baseline]) -> Iterable[Path]:
    return (file for each in baselines for file in each.files)


def _line(baseline: _Baseline) -> str:
    return f"{visible(baseline.record.test)}  {shown(baseline.path)}  ({visible(baseline.why)})"
