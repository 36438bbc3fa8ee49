"""Verdicts: one `MetricVerdict` per metric, one `Judgement` per test.

`VERDICTS` is their order, worst first; a test's verdict is the worst of its metrics'.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.limits import Budget, Requirement
from pytest_perfdl.model.memory import MemoryChange
from pytest_perfdl.model.metrics import GROWTH, STEP_TIMES, general
from pytest_perfdl.model.record import TEST_ERROR, Better, Finding, Kind
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.results.curve import RankComparison

Verdict = Literal[
    "invalid",
    "regressed",
    "missing",
    "outdated",
    "waived",
    "suspect",
    "changed",
    "inconclusive",
    "incomparable",
    "improved",
    "unchanged",
    "new",
    "unmeasured",
]

FailOn = Verdict | Literal["suspect-in-every-round"]
"""A word of `--perf-fail-on`."""
EVERY_ROUND: FailOn = "suspect-in-every-round"
"""A suspect that was past its limit in every one of enough rounds."""

Evidence = Literal["unpaired", "paired"]
"""Fresh repeats against stored ones, or rounds of pairs."""

SAME_CODE = "same code"
"""Reason of a test that was not measured, since it would run what its baseline was recorded on (--perf-skip-same)."""

Bound = Literal["launch", "kernel", "host", ""]
"""What the time of a region goes to: waiting for its launches, its kernels, Python on a CPU-only step; or unknown."""

VERDICTS: tuple[Verdict, ...] = (
    "invalid",
    "regressed",
    "missing",
    "outdated",
    "waived",
    "suspect",
    "changed",
    "inconclusive",
    "incomparable",
    "improved",
    "unchanged",
    "new",
    "unmeasured",
)
FAILS_BY_DEFAULT: frozenset[FailOn] = frozenset({"invalid", "regressed", "missing", "outdated", EVERY_ROUND})
WARNS_BY_DEFAULT: frozenset[Verdict] = frozenset({"waived", "suspect", "changed", "inconclusive", "incomparable"})
SLOWER: frozenset[Verdict] = frozenset({"regressed", "suspect"})
"""Verdicts on a metric that a waiver may cover."""
WORSE: frozenset[Verdict] = SLOWER | {"waived"}
"""Verdicts on a test that got worse, surely or probably."""
UNRECORDED: frozenset[Verdict] = frozenset({"missing", "incomparable"})
"""Verdicts without a baseline for this machine ID."""
ACCEPTED_BY_UPDATE: frozenset[Verdict] = frozenset({"regressed", "outdated", "changed", "improved"})
"""Verdicts that a new baseline would change."""
REWRITTEN = ACCEPTED_BY_UPDATE | UNRECORDED
"""Verdicts for which `--perf-update=changed` and `perfdl accept` write a new baseline."""


def worst(verdicts: list[Verdict], default: Verdict = "unchanged") -> Verdict:
    """The first of `VERDICTS` that occurs, or `default` when there is none."""
    return min(verdicts, key=VERDICTS.index, default=default)


def importance(metric: MetricVerdict) -> int:
    """The place of a metric among those of one verdict: what readers ask for first comes first.

    The step's time, other times, memory, counts, and then single kernels and operators.
    """
    name = general(metric.name)
    if not metric.of_step:
        return 5
    if name in STEP_TIMES:
        return STEP_TIMES.index(name)
    return 2 if metric.kind == "timed" else 3 if metric.unit == "B" else 4


def parse_fail_on(text: str) -> frozenset[FailOn]:
    """Read what fails a test: a comma-separated list of verdicts, or `all` for every failure and warning but `waived`.

    >>> sorted(parse_fail_on("invalid, regressed"))
    ['invalid', 'regressed']

    Raises
    ------
    InputError
        A word is not a verdict; the message names it in one line.
    """
    words = [word.strip().lower() for word in text.split(",")]
    if words == ["all"]:
        return FAILS_BY_DEFAULT | WARNS_BY_DEFAULT - {"waived"}
    choices: dict[str, FailOn] = {verdict: verdict for verdict in VERDICTS if verdict != "unchanged"}
    choices[EVERY_ROUND] = EVERY_ROUND
    for word in words:
        if word not in choices:
            raise InputError(f"{word!r} is not a verdict that can fail a test: expected {', '.join(choices)}, or all")
    return frozenset(choices[word] for word in words)


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """The verdict on one metric, with its baseline and current value.

    Of a timed metric `new` is the median over the current processes, and `base` what that was before the `effect`, so
    that all three agree; without an effect it is the median over the baseline's processes. `effect` is `new / base - 1`
    (so +0.10 is 10 % larger), in rounds the posterior's median, else the Hodges-Lehmann estimate; `ci95` its 95 %
    interval. Both are `None` where there is nothing to compare with, `ci95` also for exact metrics.
    """

    name: str
    """`step_time`, or `forward.step_time` for a named call."""
    kind: Kind
    """`timed` (judged with statistics) or `counted` (compared exactly)."""
    unit: str
    """Unit of `base` and `new`: "ns", "B", "1", "%", "items/s", or that of `perf.metric`."""
    better: Better
    """`lower` or `higher`."""
    base: float | None
    """The baseline's value; `None` where there is none."""
    new: float | None
    """The current value; `None` where there is none."""
    effect: float | None = None
    """Change from the baseline, as a ratio (0.1 is 10 % more); `None` where there is nothing to compare with."""
    ci95: tuple[float, float] | None = None
    """Ends of the change's 95 % interval, as ratios; `None` for counts."""
    excluded: float | None = None
    """A change for the worse above this fraction is excluded (97.5 % confidence); paired rounds only."""
    limit: Requirement | None = None
    """The limit ("10%"), budget ("<= 45ms") or expectation ("at least 10% faster") that the metric is compared with;
    `None` where it has none."""
    verdict: Verdict | None = None
    """Verdict of the metric; `None` where it is not judged."""
    reason: str = ""
    """Why the metric has its verdict: values, limit and remarks, in one sentence."""
    remark: str | None = None
    """The reason without numbers, for tables that show them; `None` if the reason has no numbers."""
    times_over: float | None = None
    """How many times over the limit, for a regressed metric."""
    evidence: Evidence | None = None
    """`paired` (from paired rounds) or `unpaired` (against the recorded baseline); `None` for counts and budgets, and
    where the metric is not judged."""
    rounds: int | None = None
    """Number of paired rounds; `None` for other evidence."""
    in_every_round: bool = False
    """Whether a suspect was over its limit in all of enough rounds to fail (`stopping_rule.EVERY_ROUND`)."""
    stored: float | None = None
    """The recorded median, if `base` was measured again."""
    pairs: tuple[tuple[float, float], ...] = ()
    """Baseline's and current value of each paired round, which `base`, `new`, `effect` and `ci95` are made from; empty
    for what no rounds measured."""
    of_step: bool = True
    """Whether the metric is of the whole step, not of one of its kernels or operators."""
    waiver: Waiver | None = None
    """The waiver that keeps a `regressed` or `suspect` metric from failing its test; `None` where there is none."""

    @property
    def outcome(self) -> Verdict | None:
        """What the metric contributes to the verdict of its test: its verdict, or `waived`."""
        return self.verdict if self.waiver is None else "waived"

    @property
    def is_held_to_budget(self) -> bool:
        """Whether its limit is an absolute bound ("<= 45ms") rather than a change from the baseline."""
        return isinstance(self.limit, Budget)


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
    """The innermost module with most of the change; empty if unknown."""
    line: str = ""
    """The source line with most of the change."""
    effects: Mapping[str, int] = field(default_factory=dict)
    """Effects that changed the time, in nanoseconds (`diff.account.effects`); empty if unknown."""
    bound: Bound = ""
    """What limits the region around it (`diff.causes.find_bound`); empty if unknown."""
    certain: bool = True
    """Whether the change is certain; otherwise it is the most likely cause of a changed step."""
    members: tuple[str, ...] = ()
    """Names of all parts that it comprises, if there are several."""
    rank: int | None = None
    """The rank whose step changed; `None` if all ranks' did, or without ranks."""

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
class BreakdownRow:
    """An operator, kernel or class of idle time in the mean profiled step of either side; `None` where it is not."""

    kind: Literal["operator", "kernel", "idle"]
    name: str
    base_count: float | None
    new_count: float | None
    """Occurrences per step."""
    base_ns: int | None
    new_ns: int | None
    """Time per step."""
    matched_by: str = ""
    """What shows that both sides are the same work (`diff.matching.stages.By`); empty where there is one side only."""
    confidence: float | None = None
    """How sure that is, from 0 to 1; `None` where nothing was matched."""
    effects: Mapping[str, int] = field(default_factory=dict)
    """Why its time changed, in nanoseconds, as `Cause.effects`; empty for what hardly changed."""
    members: tuple[str, ...] = ()
    """Names of all parts that it stands for, where these are several."""
    base_rounds: tuple[int, ...] = ()
    new_rounds: tuple[int, ...] = ()
    """Time per step in each paired round; empty where there were none, and for tests without a change to explain."""

    @property
    def delta_ns(self) -> int:
        """Change of time per step."""
        return (self.new_ns or 0) - (self.base_ns or 0)


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """What the mean profiled step of a call is made of, on both sides."""

    call: str
    base_ns: int
    new_ns: int
    """Profiled step."""
    rows: tuple[BreakdownRow, ...]
    """Most time first. Where all of them are parts of the step, and not also operators that only launch kernels,
    they add up to `base_ns` and `new_ns`."""
    base_rounds: tuple[int, ...] = ()
    new_rounds: tuple[int, ...] = ()
    """Profiled step in each paired round; as for rows."""

    @property
    def delta_ns(self) -> int:
        """Change of the profiled step."""
        return self.new_ns - self.base_ns


WorkKind = Literal["more work", "dearer type", "more traffic or calls", "done worse"]
"""Why a step is slower; only for the first kind its FLOPs increased."""


@dataclass(frozen=True, slots=True)
class WorkSide:
    """Work of a mean step, or of an operator in it, and its time."""

    flops: float
    bytes: float
    """Bytes of inputs (read once) and outputs (written once)."""
    calls: float
    time_ns: float
    types: Mapping[str, float]
    """Element type -> fraction of the FLOPs."""
    roofline: float | None
    """Minimum time (roofline of the machine) relative to its time; `None` without peak rates of the machine or without
    a cost model."""
    bound: Literal["compute", "memory", "cache", ""] = ""
    """What limits the minimum time (`machine.utilization.Bound`); empty if unknown."""

    @property
    def flops_per_s(self) -> float | None:
        """Achieved FLOP/s; `None` without counted FLOPs."""
        return self.flops * 1e9 / self.time_ns if self.flops and self.time_ns else None

    @property
    def bytes_per_s(self) -> float | None:
        """Achieved bytes per second."""
        return self.bytes * 1e9 / self.time_ns if self.bytes and self.time_ns else None


@dataclass(frozen=True, slots=True)
class OperatorSides:
    """The calls of one operator with equal shapes and element type in a mean step of either side."""

    call: str
    operator: str
    """Empty for device events without a known operator."""
    shapes: str
    """`Input Dims` as JSON; empty without a cost model."""
    dtype: str
    """Element type of the computation; empty without a cost model."""
    base: WorkSide | None
    """`None` if that side has no such calls, or was not profiled."""
    new: WorkSide | None


@dataclass(frozen=True, slots=True)
class WorkChange:
    """Whether a slower step does more work, or the same work less efficiently."""

    kind: WorkKind
    call: str
    operator: str
    """The operator with most of the change; empty for the whole step."""
    base: WorkSide
    """Work of the operator, or of the step."""
    new: WorkSide
    base_step: WorkSide
    new_step: WorkSide
    share: float | None = None
    """The operator's fraction of the total increase; `None` for the whole step."""


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """Source diff of a function at a cause, relative to the baseline commit."""

    file: str
    """Path relative to the top of the repository."""
    function: str
    text: str
    """Hunks of a unified diff, without the file's header."""
    line: int = 0
    """The first changed line in the current file, from 1; 0 where that is not known."""
    called: bool = True
    """Whether a cause is in the function; otherwise the function changed in a file that the test loads, and no function
    with a cause changed."""


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The verdict on one case of a table."""

    id: str
    """Its values by axis, "op=add,dtype=float16", or what the test calls it."""
    verdict: Verdict
    """`inconclusive` where no change was found, but a slowdown above the limit is not excluded."""
    effect: float | None = None
    """Change of the time of a call, as a ratio; `None` where it was not compared."""
    interval: tuple[float, float] | None = None
    """Ends of its 95 % interval."""
    base_ns: float | None = None
    """Time of a call of the baseline's code, in nanoseconds: that of the current code before `effect`, if it is known;
    else the median over the rounds."""
    time_ns: float | None = None
    """Time of a call of the current code: the median over the rounds; of a new case that of its only process."""
    noise: float | None = None
    """Robust standard deviation of a round's change, as a fraction; `None` for fewer than three rounds."""
    rounds: int = 0
    """Paired rounds that measured it."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Operators (`ops`), kernels (`kernels`) and memory allocations (`allocations`) of a call."""
    base_counts: Mapping[str, int] = field(default_factory=dict)
    """The same of the baseline's code."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """From the work that the test states: `items_per_s`, `flops_per_s`, `bytes_per_s`, and `roofline`, the least time
    at the machine's peak rates as a share of the time of a call; without what is unknown."""
    base_rates: Mapping[str, float] = field(default_factory=dict)
    """The same for the time of the baseline's code: both sides have the work that the current test states."""
    no_roofline: str = ""
    """Why `roofline` is unknown; empty if it is known, and if the test states neither FLOPs nor bytes."""
    reason: str = ""
    """Why it was not measured, or what else is to be said, in one line."""
    alternatives: str = ""
    """Of `perf.compare`, the first and the second alternative, "eager -> fused": `base` is the first one."""

    @property
    def metric(self) -> str:
        """Its name among the metrics of its test."""
        return f"case {self.id}"


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """A group of cases that got slower."""

    where: Mapping[str, str]
    """What they have in common: an axis with its value, or `operator` with its name; empty for all cases."""
    cases: int
    """Number of its cases."""
    effect: float
    """Typical change: of the median over its cases."""
    interval: tuple[float, float]
    """Ends of its 95 % interval."""
    cause: str
    """What most of its cases run that they did not run before; empty if their operators are the same."""
    verdict: Verdict = "regressed"
    """`suspect` if its typical cases are not slower when each of them is measured alone."""
    agreeing: int = 0
    """Cases whose own interval lies above zero."""
    noise: float | None = None
    """Robust standard deviation of a round's change, as a fraction; `None` for fewer than three rounds."""
    rounds: int = 0
    """Paired rounds that measured all of its cases."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one test, with everything that a report says about it."""

    test: str
    verdict: Verdict
    reason: str
    """Why the test has its verdict, in one sentence."""
    metrics: tuple[MetricVerdict, ...] = ()
    blame: tuple[Cause, ...] = ()
    """Largest change first, by absolute time; then changes of count alone."""
    integrity: tuple[Finding, ...] = ()
    """Findings about the measurement; one of level `invalid` makes the verdict `invalid`."""
    context_changes: tuple[tuple[str, str, str], ...] = ()
    """(name, baseline's value, current value) of context fields that differ."""
    source_diffs: tuple[SourceDiff, ...] = ()
    """Of changed functions at causes, those of the largest causes first."""
    definition: tuple[SourceDiff, ...] = ()
    """How the test itself, its fixtures and constants differ between the two sides; empty where they do not."""
    work: tuple[WorkChange, ...] = ()
    """One per slower call; empty if unknown."""
    operators: tuple[OperatorSides, ...] = ()
    """Work of the operators in the profiled steps, most time first."""
    ranks: tuple[RankComparison, ...] = ()
    """The ranks of each call; empty without ranks."""
    breakdowns: tuple[StepBreakdown, ...] = ()
    """Of each call, from the profiled steps of paired rounds; empty where there were none."""
    memory: tuple[MemoryChange, ...] = ()
    """Breakdowns of memory, for calls whose memory changed or grows."""
    rounds: str = ""
    """How the rounds were run: forked or new processes, pinned or not, with reasons; how many steps were timed; and the
    highest temperature and power of GPUs, if the driver tells them."""
    cases: tuple[CaseVerdict, ...] = ()
    """Of a table, the slowest changes first; empty for other tests."""
    groups: tuple[GroupVerdict, ...] = ()
    """Of a table, groups that got slower, the largest change first."""
    environment: tuple[MetricVerdict, ...] = ()
    """If the environment differs: the baseline's recorded times compared with those of the same code now."""

    def with_findings(self, *found: Finding) -> Judgement:
        """The judgement with further findings."""
        return replace(self, integrity=(*self.integrity, *found))

    @property
    def is_test_error(self) -> bool:
        """Whether the step, or an assertion of the test, failed: its measurement is not at fault."""
        return any(finding.code == TEST_ERROR for finding in self.integrity)

    @property
    def counts_changed(self) -> bool:
        """Whether a count differs from the baseline's, independent of the verdict on times.

        Also true for a metric with a limit that the baseline lacks.
        """
        return any(metric.verdict == "changed" for metric in self.metrics)

    @property
    def growth(self) -> dict[str, float]:
        """Bytes that every step leaves allocated, by call, for calls whose memory grows."""
        return {
            each.name.removesuffix(GROWTH).removesuffix("."): each.new
            for each in self.metrics
            if general(each.name) == GROWTH and each.new
        }

    @property
    def over_budget(self) -> tuple[MetricVerdict, ...]:
        """Metrics outside their budget, which a new baseline does not change."""
        return tuple(each for each in self.metrics if each.outcome == "regressed" and each.is_held_to_budget)

    @property
    def is_budgets_alone(self) -> bool:
        """Whether only budgets fail, of a test that was compared with its baseline."""
        over = self.over_budget
        others = {metric.verdict for metric in self.metrics if metric not in over and metric.base is not None}
        return bool(over) and "unchanged" in others and not others & REWRITTEN and not self.environment

    def fails(self, fail_on: Set[FailOn]) -> bool:
        """Whether the test fails, given the verdicts of `--perf-fail-on`."""
        if self.verdict in fail_on or ("changed" in fail_on and self.counts_changed):
            return True
        if self.verdict == "waived" and any(metric.outcome in fail_on for metric in self.metrics):
            # A waiver of one metric does not hide another one.
            return True
        return EVERY_ROUND in fail_on and any(metric.in_every_round for metric in self.metrics)
