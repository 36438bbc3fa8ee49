"""The input of every report: one `Run`, with a `Result` for each perf test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.config.invocation import Invocation
from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.model.record import Key, Record, Scalar
from pytest_perfdl.model.shard import Shard
from pytest_perfdl.model.units import format_percent
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.results.numbers import numbers, safe_name
from pytest_perfdl.results.verdict import VERDICTS, Judgement, MetricVerdict, Verdict

if TYPE_CHECKING:
    from pytest_perfdl.results.curve import JudgedCurve


# The input of every report: one `Run`, with a `Result` for each perf test.
#
# Reports are plain functions `Run -> text or files`; none of them measures or compares.


Traces = Literal["regressed", "all", "none"]
"""Traces of tests whose verdict is not `unchanged`, of all tests, or of none."""


@dataclass(frozen=True, slots=True)
class Exemplars:
    """Chrome traces (gzip) of one representative step of a call, baseline and current; `None` if there is none."""

    call: str
    base: Path | None
    new: Path | None
    base_ranks: tuple[Path, ...] = ()
    """Traces of the same step of all ranks of the baseline, if this run measured it: one each, in the order of the
    ranks, or (read from a report) one that has them all; empty without ranks."""
    new_ranks: tuple[Path, ...] = ()
    """The same of the current side."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An optimization of a step, with its predicted gain."""

    text: str
    """The finding, one sentence with numbers."""
    how: str
    """What to do."""
    gain: float
    """Predicted gain, as a fraction of the step."""
    interval: tuple[float, float] | None = None
    """Interval of the predicted gain, from the prediction's error."""
    doubt: str = ""
    """Why confidence in the prediction is low; empty if it is not."""
    example: str = ""
    """An example with and without the optimization, as a path in the repository of pytest-perfdl."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Sensitivity of a recorded time in comparisons without paired rounds."""

    metric: str
    spread: float
    """Standard deviation of the processes' times, relative to their mean."""
    detectable: float | None
    """Smallest slowdown (a fraction) that is detected with 80 % power; `None` with too few processes."""
    processes: int
    needed: int
    """Minimum number of processes of a baseline to detect any slowdown."""
    limit: float
    """Limit of the metric in paired rounds (a fraction); a larger spread gives a warning."""


@dataclass(frozen=True, slots=True)
class Result:
    """One perf test of a run."""

    id: str
    """Node id."""
    file: str
    """Path of the test file relative to the root directory."""
    line: int
    """Line of the test function, from 1."""
    judgement: Judgement
    """The verdict with everything that a report shows about it."""
    fails: bool
    """Whether the verdict fails the test, given `--perf-fail-on`."""
    new: Record | None = None
    base: Record | None = None
    """The baseline for the same machine ID."""
    base_now: Record | None = None
    """The baseline's code as this run measured it, where the environment is another than the baseline's."""
    base_path: str = ""
    """Path of the baseline (which may not exist), relative to the root directory."""
    against: str = ""
    """The revision of `--perf-against`, as given; empty for a baseline."""
    against_python: str = ""
    """The interpreter of `--perf-against-python`, as given; empty where both sides have the same."""
    exemplars: tuple[Exemplars, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    """Largest predicted gain first."""
    curves: tuple[JudgedCurve, ...] = ()
    """Curves over all sizes; only in the result of the size that ran last."""
    history: tuple[Record, ...] = ()
    """Measurements of earlier runs, oldest first: for `perfdl report` with several run files."""
    updated: bool = False
    """Whether this run recorded its baseline."""
    sensitivity: Sensitivity | None = None
    """Sensitivity of the baseline that this run recorded."""
    seconds: float = 0.0
    """Wall time of the measurement."""

    @property
    def safe_id(self) -> str:
        """Name of the test for programs that take no node ids: letters, digits and underscores, always the same.

        No other test has it: behind the test's name is a digest of the node id.
        """
        return safe_name(self.id.rpartition("::")[2], of=self.id)

    @property
    def other_side(self) -> str:
        """The revision and the interpreter that the test was compared with, in words; empty for a baseline."""
        return " with ".join(filter(None, (self.against, self.against_python)))

    @property
    def verdict(self) -> Verdict:
        """Verdict of the test: the worst of its metrics'."""
        return self.judgement.verdict

    @property
    def metrics(self) -> tuple[MetricVerdict, ...]:
        """The metrics of the test, each with baseline, current value, change and verdict."""
        return self.judgement.metrics

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the step's metrics for a dashboard, in seconds, bytes and ratios; the unit ends the name.

        `step_time.baseline_seconds`, `step_time.current_seconds`, `step_time.change_ratio`, and the ends of the
        change's 95 % interval, `step_time.change_ci95_low_ratio` and `step_time.change_ci95_high_ratio`. Names hold
        letters, digits, underscores and dots. A number that is not known is absent.
        """
        found = {}
        for metric in self.metrics:
            if metric.of_step:
                call, _, name = metric.name.rpartition(".")
                prefix = f"{safe_name(call)}." if call else ""
                found.update({f"{prefix}{safe_name(name)}.{part}": value for part, value in numbers(metric).items()})
        return found


@dataclass(frozen=True, slots=True)
class WaiverFile:
    """The waivers of a run."""

    name: str = ""
    """Path of the file relative to the root directory."""
    waivers: tuple[Waiver, ...] = ()
    """All of them, as in the file."""
    unmatched: tuple[Waiver, ...] = ()
    """Those without a test, as far as this run collects tests."""
    doubt: str = ""
    """Why it is unknown which of them the current change adds; empty if it is known."""


@dataclass(frozen=True, slots=True)
class Run:
    """A whole `pytest --perf` session."""

    root: Path
    """pytest's root directory."""
    key: Key
    context: Mapping[str, Scalar]
    """Software versions, driver and flags of the process that measured, by name."""
    results: tuple[Result, ...]
    """One per selected perf test, in the order in which they ran."""
    perf_dir: str
    """Directory of the baselines, relative to `root`."""
    report_dir: Path
    """Directory of the report: `index.html`, `summary.md`, `run.json`, `traces/`."""
    date: str
    """When the run started: UTC, ISO 8601, to the second."""
    commit: str | None = None
    """Full hash of the commit that is checked out; `None` outside of git."""
    seconds: float = 0.0
    """Wall time of the whole run."""
    judged: bool = True
    """False with `--perf-isolate=none`: metrics without verdicts."""
    notes: tuple[str, ...] = ()
    """Notes about the whole run, one line per note."""
    invocation: Invocation = field(default_factory=Invocation)
    """How pytest was called, for the commands in reports."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What decides how tests are measured and judged, by option or ini key: equal in runs that are comparable."""
    peaks: Mapping[str, Peaks] = field(default_factory=dict)
    """Peak rates, to which utilization is relative, by machine ID."""
    repository: str = ""
    """Address of the repository on the web, "https://github.com/owner/name"; empty where it has none that is known."""
    traces: Traces = "regressed"
    """Which traces the report contains (`--perf-traces`)."""
    shard: Shard | None = None
    """Which shard of the tests this is; `None` for all of them."""
    waivers: WaiverFile = field(default_factory=WaiverFile)
    """The project's waivers."""

    @property
    def machine_id(self) -> str:
        """Machine ID: times with different IDs are not comparable."""
        return self.key.slug

    def counts(self) -> dict[Verdict, int]:
        """Number of tests with each verdict, worst verdict first; a verdict that no test has is absent."""
        found = [result.judgement.verdict for result in self.results]
        return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}


def with_history(runs: Sequence[Run]) -> Run:
    """The last of several runs by their dates, each of its tests with what the earlier ones measured like it."""
    *earlier, last = sorted(runs, key=lambda run: run.date)
    return replace(last, results=tuple(replace(one, history=_before(one, earlier)) for one in last.results))


def _before(result: Result, earlier: Sequence[Run]) -> tuple[Record, ...]:
    return tuple(
        one.new
        for run in earlier
        for one in run.results
        if one.id == result.id and one.new is not None and (result.new is None or _is_like(one.new, result.new))
    )


def _is_like(one: Record, other: Record) -> bool:
    """Whether two records were measured on one machine and in one way."""
    return one.key.slug == other.key.slug and one.plan.shape == other.plan.shape and one.test_hash == other.test_hash


# The first suggestion of a test in one line, for terminal and summary; the page lists all suggestions.


def first_suggestion(result: Result) -> tuple[str, str] | None:
    """The change, and its predicted gain with interval; `None` if there is no suggestion.

    "DataLoader(num_workers=2)", "predicted gain 34.5% of the step [33.9%, 35.1%]"
    """
    if not result.suggestions:
        return None
    found = result.suggestions[0]
    ends = ", ".join(format_percent(end, signed=False) for end in found.interval or ())
    gain = f"predicted gain {format_percent(found.gain, signed=False)} of the step"
    doubt = ", low confidence" if found.doubt else ""
    return found.how, (f"{gain} [{ends}]" if ends else gain) + doubt
