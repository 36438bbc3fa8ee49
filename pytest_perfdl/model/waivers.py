"""A waiver: a known slowdown of a test that a project accepts until a date, up to a limit.

`config.waivers` reads the file; `judge.budget` applies waivers to verdicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_perfdl.model.metrics import general

EVERY = ""
"""The metric of a waiver that covers every judged metric."""


@dataclass(frozen=True, slots=True)
class Waiver:
    """One entry of the waiver file."""

    test: str
    """Node id, or a pattern for node ids."""
    metric: str
    """Name of a metric, as of a limit; empty for every judged metric."""
    limit: str
    """How much worse the metric may get, as of a limit; of a budget, by how much it may be exceeded."""
    until: str
    """Last day on which it applies, as ISO 8601 date (UTC)."""
    why: str
    who: str
    expired: bool = False
    """Whether the last day has passed."""
    added: bool = False
    """Whether the current change adds or changes the entry."""

    @property
    def content(self) -> tuple[str, ...]:
        """What the file says: equal for entries that are the same."""
        return self.test, self.metric, self.limit, self.until, self.why, self.who

    def matches(self, test: str) -> bool:
        """Whether it is for a test: by the node id, or by a pattern with `*` and `?`.

        Within the path of the file, neither of them matches a `/`, as in `.gitignore`; `**` as a part of the path
        is any number of folders. A pattern that names no file is for the whole node id. Brackets are not part of a
        pattern, since node ids contain them.

        >>> Waiver("tests/*::test_step[b*]", "", "1%", "2026-12-01", "", "").matches("tests/t.py::test_step[bf16]")
        True
        """
        if test == self.test:
            return True
        pattern = self.test.replace("[", "[[]")
        if "*" not in pattern and "?" not in pattern:
            return False
        if "/" not in pattern and "::" not in pattern:
            return fnmatchcase(test, pattern)
        wanted, colons, rest = pattern.partition("::")
        path, _, name = test.partition("::")
        return _is_below(wanted.split("/"), path.split("/")) and fnmatchcase(name, rest if colons else "*")

    def covers(self, metric: str) -> bool:
        """Whether it is for a metric, by its full name."""
        return self.metric in (EVERY, metric, general(metric))


def waivers_for(test: str, waivers: Iterable[Waiver], tests: Collection[str]) -> tuple[Waiver, ...]:
    """The waivers of a test: those with its node id, then patterns, each in their order.

    Parameters
    ----------
    tests
        Node ids of all tests; a waiver with one of them is for this test only, also where the id has a `*`.
    """
    given = tuple(waivers)
    own = tuple(each for each in given if each.test == test)
    return own + tuple(each for each in given if each.test not in tests and each not in own and each.matches(test))


def _is_below(wanted: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path matches the parts of a pattern."""
    reached = {0}
    for part in wanted:
        if part == "**":
            reached = {place for first in reached for place in range(first, len(path) + 1)}
        else:
            reached = {place + 1 for place in reached if place < len(path) and fnmatchcase(path[place], part)}
    return len(path) in reached
