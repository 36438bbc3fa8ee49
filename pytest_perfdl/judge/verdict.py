"""What a judgement says: one `MetricVerdict` a metric, one `Judgement` a test.

The words and their order are DESIGN's; `VERDICTS` is that order, worst first, and a test's verdict is the
worst of its metrics'.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.record import Better, Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

Verdict = Literal[
    "invalid",
    "regressed",
    "missing",
    "outdated",
    "suspect",
    "changed",
    "inconclusive",
    "incomparable",
    "improved",
    "unchanged",
    "new",
    "unmeasured",
]

Evidence = Literal["screen", "unpaired", "paired"]
"""Fresh repeats against stored ones; more of them, drawn after a suspicion; rounds of pairs."""

Bound = Literal["launch", "kernel", "host", ""]
"""What the time of a region goes to: waiting for its launches, its kernels, Python on a CPU-only step; or unknown."""

VERDICTS: tuple[Verdict, ...] = (
    "invalid",
    "regressed",
    "missing",
    "outdated",
    "suspect",
    "changed",
    "inconclusive",
    "incomparable",
    "improved",
    "unchanged",
    "new",
    "unmeasured",
)
FAILS_BY_DEFAULT: frozenset[Verdict] = frozenset({"invalid", "regressed", "missing", "outdated"})
WARNS_BY_DEFAULT: frozenset[Verdict] = frozenset({"suspect", "changed", "inconclusive", "incomparable"})


def worst(verdicts: list[Verdict], default: Verdict = "unchanged") -> Verdict:
    """The first of `VERDICTS` that occurs, or `default` when there is none."""
    return min(verdicts, key=VERDICTS.index, default=default)


def parse_fail_on(text: str) -> frozenset[Verdict]:
    """Read the verdicts that fail a test: a comma-separated list, or `all` for every failure and warning.

    >>> sorted(parse_fail_on("invalid, regressed"))
    ['invalid', 'regressed']

    Raises
    ------
    ValueError
        One line that names the word that is no verdict.
    """
    words = [word.strip().lower() for word in text.split(",")]
    if words == ["all"]:
        return FAILS_BY_DEFAULT | WARNS_BY_DEFAULT
    choices: dict[str, Verdict] = {verdict: verdict for verdict in VERDICTS if verdict != "unchanged"}
    for word in words:
        if word not in choices:
            raise ValueError(
                f"{word!r} is not a verdict that can fail a test: choose from {', '.join(choices)}; or all"
            )
    return frozenset(choices[word] for word in words)


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """How one metric of the new record stands to the baseline's.

    `base` and `new` are geometric means over the repeats of a timed metric. `effect` is `new / base - 1` (so
    +0.10 is 10 % larger), once confirmed the Hodges-Lehmann estimate of it; `ci95` an interval for it that is
    honest for a new process; `mde` the smallest worsening that would have been found with 80 % probability.
    All three are `None` where there is nothing to compare with; `ci95` and `mde` also for exact metrics.
    """

    name: str
    kind: Kind
    unit: str
    better: Better
    base: float | None
    new: float | None
    effect: float | None = None
    ci95: tuple[float, float] | None = None
    mde: float | None = None
    limit: str | None = None
    """The limit or budget it was held to, as text ("10%", "<= 45ms"); `None` when it is only shown."""
    verdict: Verdict | None = None
    """`None` when it is only shown."""
    reason: str = ""
    times_over: float | None = None
    """How many times over the limit, for a regressed metric."""
    evidence: Evidence | None = None
    """What the verdict on a time rests on; `None` for counts and budgets, and when it is only shown."""
    rounds: int | None = None
    """How many, for paired evidence."""
    of_step: bool = True
    """Whether it is the step's, rather than that of one of its kernels or operators."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A part of the step whose time or count changed; `share` is of the whole step's change."""

    kind: Literal["operator", "kernel", "module", "line", "idle"]
    name: str
    call: str
    base_count: float
    new_count: float
    base_ns: int
    new_ns: int
    share: float | None
    """`delta_ns` over the change of the profiled step; `None` when the step did not change."""
    module: str = ""
    """The innermost module that most of the change is in; empty where none is known."""
    line: str = ""
    """The user's line that most of it comes from."""
    effects: Mapping[str, int] = field(default_factory=dict)
    """Why the time changed, in nanoseconds (`judge.diff.effects`); empty where that is not known."""
    bound: Bound = ""
    """Of the region that it is in (`judge.diff.bound`); empty where that is not known."""
    certain: bool = True
    """Whether it changed for certain; else it is the likeliest cause of a step that did."""

    @property
    def delta_ns(self) -> int:
        """Change of time per step."""
        return self.new_ns - self.base_ns

    @property
    def status(self) -> Literal["new", "gone", "changed"]:
        """Whether the part appeared, disappeared or only changed."""
        if self.base_count == 0:
            return "new"
        return "gone" if self.new_count == 0 else "changed"


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """How the source of a function that a cause comes from differs from the other side's commit."""

    file: str
    """Path from the top of the repository."""
    function: str
    text: str
    """Hunks of a unified diff, without the file's header."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one test, with everything that a report says about it."""

    test: str
    verdict: Verdict
    reason: str
    metrics: tuple[MetricVerdict, ...] = ()
    blame: tuple[Cause, ...] = ()
    """Largest change first, by absolute time; then changes of count alone."""
    integrity: tuple[Finding, ...] = ()
    context_changes: tuple[tuple[str, str, str], ...] = ()
    """(name, baseline's value, this run's value) for context that differs."""
    suspects: tuple[str, ...] = field(default=())
    """Metrics that the screen found slower: what more repeats should settle."""
    source_diffs: tuple[SourceDiff, ...] = ()
    """Of the guilty functions that changed, those of the largest causes first."""
