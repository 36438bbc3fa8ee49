"""Which tests of a run count: shards of about equal duration, and waivers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_perfdl.config.settings import Settings
from pytest_perfdl.config.waivers import LIMIT, parse, read
from pytest_perfdl.model.errors import GitError, InputError
from pytest_perfdl.model.visible import visible
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.results.run import WaiverFile
from pytest_perfdl.run.scaling_curves import curve_key, sizes
from pytest_perfdl.system import clocks
from pytest_perfdl.system.git import FETCH_ALL, commit_of, content, git, merge_request_base, trouble

if TYPE_CHECKING:
    from pytest_perfdl.run.collection import PerfTest


# Splits the perf tests of a run into shards of about equal duration (`--perf-shard`).
#
# Every machine with the same checkout gets the same shards: the split depends on the tests' ids and on their baselines,
# not on the machine, nor on the order of the tests. Groups of tests are assigned one by one, the longest first, to the
# shard with the least work so far. Then no two shards differ by more than the longest group (Graham, "Bounds on
# Multiprocessing Timing Anomalies", 1969).


_ASSERTION = b"assert_scaling"


def shard_of_each(tests: Sequence[PerfTest], seconds: Mapping[str, float | None], count: int) -> dict[str, int]:
    """The shard of every test by its id, from 1.

    Parameters
    ----------
    tests
        All collected perf tests.
    seconds
        Expected duration by id; `None` if it is unknown, and then assumed to be the mean of the known ones.
    count
        Number of shards.
    """
    known = sorted(each for each in seconds.values() if each is not None)
    mean = math.fsum(known) / len(known) if known else 1.0
    whole = {name: mean if each is None else each for name, each in seconds.items()}
    return split([[test.item.nodeid for test in group] for group in together(tests)], whole, count)


def split(groups: Iterable[Sequence[str]], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard of every id, from 1; those of one group are in one shard.

    >>> split([["a"], ["b", "c"], ["d"]], {"a": 5, "b": 3, "c": 3, "d": 2}, 2)
    {'b': 1, 'c': 1, 'a': 2, 'd': 2}
    """
    # `fsum` does not depend on the order of what it adds.
    weighed = sorted((-math.fsum(seconds[name] for name in group), min(group), sorted(group)) for group in groups)
    loads = [0.0] * count
    found: dict[str, int] = {}
    for negative, _, names in weighed:
        least = min(range(count), key=loads.__getitem__)
        loads[least] -= negative
        found |= dict.fromkeys(names, least + 1)
    return found


def together(tests: Sequence[PerfTest]) -> list[list[PerfTest]]:
    """The tests in groups: all sizes of one curve must be measured in one run, other tests are groups by themselves.

    Which tests call `perf.assert_scaling` is known only when they run, so every file that mentions it is taken for one
    whose tests do.
    """
    groups = {test.item.nodeid: [test] for test in tests}
    first_of_curve: dict[object, str] = {}
    mentions: dict[Path, bool] = {}
    for test in tests:
        name = test.item.nodeid
        for axis in _axes(test, mentions):
            other = groups[first_of_curve.setdefault((axis, curve_key(test, axis)), name)]
            if other is not groups[name]:
                other += groups[name]
                groups |= dict.fromkeys((each.item.nodeid for each in other), other)
    return list({id(group): group for group in groups.values()}.values())


def _axes(test: PerfTest, mentions: dict[Path, bool]) -> list[str]:
    """Parameters over which the test may be a point of a curve; `mentions` is what is known of files."""
    numbers = sizes(test)
    if not numbers:
        return []
    path = test.item.path
    if path not in mentions:
        try:
            mentions[path] = _ASSERTION in path.read_bytes()
        except OSError:
            mentions[path] = False
    return list(numbers) if mentions[path] else [axis for axis in test.options.scaling or {} if axis in numbers]


# The waivers of a run: read from the working tree, and compared with the file before the current change.


_UNKNOWN = "it is unknown which waivers the current change adds"


def resolve(root: Path, settings: Settings, environ: Mapping[str, str] = os.environ) -> WaiverFile:
    """The waivers of a project, each with whether it has expired and whether the current change adds it.

    The current change is what differs from the merge base with the revision of `--perf-against`, or with the target of
    the pull request (`GITHUB_BASE_REF`) or of GitLab's merge request; otherwise what differs from HEAD.

    Raises
    ------
    InputError
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
    if against is not None:
        name, wanted = against, [against]
    elif name := environ.get("GITHUB_BASE_REF", ""):
        wanted = [f"refs/remotes/origin/{name}", f"refs/heads/{name}"]
    elif name := merge_request_base(environ):
        wanted = [name]
    else:
        return head, ""
    commits = [commit for name in wanted if not name.startswith("-") and (commit := commit_of(root, name))]
    for commit in commits:
        if base := git(root, "merge-base", head, commit):
            return base, ""
    return None, f"{_UNKNOWN}, because git has no common commit with {visible(name)[:100]}: run {FETCH_ALL}"


def _committed(root: Path, commit: str, name: str) -> tuple[Waiver, ...]:
    """The waivers at a commit; none where the file does not exist there, or is invalid."""
    data = content(root, commit, Path(name).as_posix(), LIMIT)
    try:
        return () if data is None else parse(data, name)
    except InputError:
        return ()


def is_narrowed(config: pytest.Config) -> bool:
    """Whether the files that are collected may have more tests than those that this run selects."""
    options = ("keyword", "markexpr", "deselect", "lf", "stepwise", "ignore_glob", "ignore")
    if any("::" in str(word) for word in config.args) or any(config.getoption(name, None) for name in options):
        return True
    # Other plugins deselect tests, too.
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter is not None and "deselected" in reporter.stats


def unmatched(found: Iterable[Waiver], tests: Iterable[str], config: pytest.Config) -> tuple[Waiver, ...]:
    """Waivers without a test; those whose tests this run does not collect are left out.

    Parameters
    ----------
    tests
        Node ids of all selected perf tests.
    """
    if is_narrowed(config):
        return ()
    ids = tuple(tests)
    places = [(config.invocation_params.dir / str(word)).resolve() for word in config.args]
    return tuple(
        each
        for each in found
        if not any(map(each.matches, ids))
        and any((config.rootpath / each.test.partition("::")[0]).resolve().is_relative_to(place) for place in places)
    )
