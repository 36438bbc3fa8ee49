"""The waivers of a run: read from the working tree, and compared with the file before the current change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.config.settings import Settings
from pytest_perfdl.config.waivers import LIMIT, parse, read
from pytest_perfdl.model.errors import GitError, WaiverError
from pytest_perfdl.model.visible import visible
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.results.run import WaiverFile
from pytest_perfdl.system import clocks
from pytest_perfdl.system.git import commit_of, content, git, trouble

_UNKNOWN = "it is unknown which waivers the current change adds"


def resolve(root: Path, settings: Settings, environ: Mapping[str, str] = os.environ) -> WaiverFile:
    """The waivers of a project, each with whether it has expired and whether the current change adds it.

    The current change is what differs from the merge base with the revision of `--perf-against`, or with the target of
    the pull request (`GITHUB_BASE_REF`); otherwise what differs from HEAD.

    Raises
    ------
    WaiverError
        The file is invalid.
    """
    found = read(root, settings.waivers)
    if not found:
        return WaiverFile(settings.waivers)
    day = clocks.today().isoformat()
    # Dates in ISO 8601 sort as text.
    found = tuple(replace(each, expired=each.until < day) for each in found)
    base, unknown = _base(root, settings.against, environ)
    if base is None:
        return WaiverFile(settings.waivers, found, doubt=unknown)
    try:
        before = {each.content for each in _committed(root, base, settings.waivers)}
    except GitError as error:
        return WaiverFile(settings.waivers, found, doubt=f"{_UNKNOWN}, because {error}")
    return WaiverFile(settings.waivers, tuple(replace(each, added=each.content not in before) for each in found))


def _base(root: Path, against: str | None, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The commit before the current change, or why it is not known; both are empty outside of git."""
    head = commit_of(root, "HEAD")
    if head is None:
        said = trouble(root)
        return None, f"{_UNKNOWN}, because git failed: {said}" if said else ""
    target = environ.get("GITHUB_BASE_REF", "")
    wanted = [against] if against is not None else [f"refs/remotes/origin/{target}", f"refs/heads/{target}"]
    if against is None and not target:
        return head, ""
    commits = [commit for name in wanted if not name.startswith("-") and (commit := commit_of(root, name))]
    for commit in commits:
        if base := git(root, "merge-base", head, commit):
            return base, ""
    name = visible(against if against is not None else target)[:100]
    return None, (f"{_UNKNOWN}, because git has no common commit with {name}: fetch the whole history (fetch-depth: 0)")


def _committed(root: Path, commit: str, name: str) -> tuple[Waiver, ...]:
    """The waivers at a commit; none where the file does not exist there, or is invalid."""
    data = content(root, commit, Path(name).as_posix(), LIMIT)
    try:
        return () if data is None else parse(data, name)
    except WaiverError:
        return ()


def unmatched(found: Iterable[Waiver], tests: Iterable[str], config: pytest.Config) -> tuple[Waiver, ...]:
    """Waivers without a test; those whose tests this run does not collect are left out.

    Parameters
    ----------
    tests
        Node ids of all selected perf tests.
    """
    words = [str(word) for word in config.args]
    narrowed = ("keyword", "deselect", "lf", "stepwise", "ignore_glob", "ignore")
    if any("::" in word for word in words) or any(config.getoption(name, None) for name in narrowed):
        return ()
    ids = tuple(tests)
    places = [(config.invocation_params.dir / word).resolve() for word in words]
    return tuple(
        each
        for each in found
        if not any(map(each.matches, ids))
        and any((config.rootpath / each.test.partition("::")[0]).resolve().is_relative_to(place) for place in places)
    )
