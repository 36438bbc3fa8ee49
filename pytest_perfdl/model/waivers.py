"""A waiver: a known slowdown of a test that a project accepts until a date, up to a limit.

`config.waivers` reads the file; `judge.waivers` applies waivers to verdicts.
"""

from __future__ import annotations

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

        Brackets are not part of a pattern, since node ids contain them.

        >>> Waiver("tests/*::test_step[b*]", "", "1%", "2026-12-01", "", "").matches("tests/t.py::test_step[bf16]")
        True
        """
        return test == self.test or fnmatchcase(test, self.test.replace("[", "[[]"))

    def covers(self, metric: str) -> bool:
        """Whether it is for a metric, by its full name."""
        return self.metric in (EVERY, metric, general(metric))
