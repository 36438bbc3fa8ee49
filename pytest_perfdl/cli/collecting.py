"""Which tests a project has: collected by a pytest of its own, told by its hooks.

This module is that pytest's plugin too. Node ids are taken when they are collected, before anything deselects them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_perfdl.cli.project import Project
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.system import folders, processes
from pytest_perfdl.system.import_path import LIBRARY_FIRST, module_command

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
    command += [*_kept(project.options), "-pperfdl", f"-p{__name__}", "--", *paths]
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


def _kept(options: Sequence[str]) -> list[str]:
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
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        _broken[report.nodeid] = (why.strip().splitlines() or [report.outcome])[-1].removeprefix("E ").strip()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems() -> None:
    """Everything was collected: when something ends pytest before this, nothing is written."""
    data = {"tests": sorted(_tests), "files": sorted(_files), "broken": _broken}
    Path(os.environ[_OUT]).write_text(json.dumps(data), encoding="ascii")
