"""The input of every report: one `Run`, with a `Result` for each perf test.

Reports are plain functions `Run -> text or files`; none of them measures or compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.config.invocation import Invocation
from pytest_perfdl.machine.peaks import Peaks
from pytest_perfdl.model.record import Key, Record, Scalar
from pytest_perfdl.results.numbers import numbers, safe_name
from pytest_perfdl.results.verdict import VERDICTS, Judgement, MetricVerdict, Verdict

if TYPE_CHECKING:
    from pytest_perfdl.results.curve import JudgedCurve

Traces = Literal["regressed", "all", "none"]
"""Of tests whose verdict is not `unchanged`, of all tests, or of none."""


@dataclass(frozen=True, slots=True)
class Exemplars:
    """One representative step's Chrome trace on each side of a call, as gzip files; `None` where there is none."""

    call: str
    base: Path | None
    new: Path | None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something that would make a step faster, with what it is predicted to gain."""

    text: str
    """What was found, one sentence with figures."""
    how: str
    """What to do."""
    gain: float
    """Share of the step that would be saved."""
    interval: tuple[float, float] | None = None
    """Of the predicted gain: what the prediction's own error leaves open."""
    doubt: str = ""
    """Why the prediction is to be trusted little; empty where it is trusted."""
    example: str = ""
    """An example that shows it before and after, as a path in this project's repository."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a recorded time will be able to show where it cannot be compared in paired rounds."""

    metric: str
    spread: float
    """Standard deviation of the processes' times, as a share of their mean."""
    detectable: float | None
    """Slowdown that is found in four of five cases, as a share; `None` where there are too few processes for any."""
    processes: int
    needed: int
    """Processes that a baseline needs, so that a slowdown can be found at all."""
    limit: float
    """What the test holds the metric to in paired rounds, as a share: a larger spread is noise worth a warning."""


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
    """Whether the verdict fails the test under `--perf-fail-on`."""
    new: Record | None = None
    base: Record | None = None
    """The baseline of the same key."""
    base_path: str = ""
    """Where the baseline is or would be, relative to the root directory."""
    against: str = ""
    """The revision that it was measured against, as it was given; empty for a baseline."""
    exemplars: tuple[Exemplars, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    """The largest predicted gain first."""
    curves: tuple[JudgedCurve, ...] = ()
    """Of the size of a scaling test that ran last: its times over all sizes."""
    history: tuple[Record, ...] = ()
    """What earlier runs measured, the oldest first: for `perfdl report` of several."""
    updated: bool = False
    """Whether this run wrote its baseline."""
    sensitivity: Sensitivity | None = None
    """Of the baseline that this run wrote."""
    seconds: float = 0.0
    """Wall time that measuring took."""

    @property
    def safe_id(self) -> str:
        """Name of the test for programs that take no node ids: letters, digits and underscores, always the same.

        No other test has it: behind the test's name is a digest of the node id.
        """
        return safe_name(self.id.rpartition("::")[2], of=self.id)

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
class Run:
    """A whole `pytest --perf` session."""

    root: Path
    """pytest's root directory."""
    key: Key
    context: Mapping[str, Scalar]
    """Software versions, driver and flags of the process that measured, by name."""
    results: tuple[Result, ...]
    """One for each perf test that was selected, in the order in which they ran."""
    perf_dir: str
    """Baseline folder relative to `root`."""
    report_dir: Path
    """Folder of the report: `index.html`, `summary.md`, `run.json`, `traces/`."""
    date: str
    """When the run started: UTC, ISO 8601, to the second."""
    commit: str | None = None
    """Full hash of the commit that is checked out; `None` outside of git."""
    seconds: float = 0.0
    """Wall time of the whole run."""
    judged: bool = True
    """False under `--perf-isolate=none`: figures without verdicts."""
    notes: tuple[str, ...] = ()
    """What the summary says about the run as a whole, a line each."""
    invocation: Invocation = field(default_factory=Invocation)
    """How pytest was called: what the commands that reports show must repeat."""
    peaks: Mapping[str, Peaks] = field(default_factory=dict)
    """The limits of the machine that utilization was held against, by key; without keys that have none."""
    repository: str = ""
    """Address of the repository on the web, "https://github.com/owner/name"; empty where it has none that is known."""
    traces: Traces = "regressed"
    """Which tests' traces the report holds, as `--perf-traces` says."""

    @property
    def machine_id(self) -> str:
        """Name of the hardware that was measured on: times with different ones do not compare."""
        return self.key.slug

    def counts(self) -> dict[Verdict, int]:
        """Number of tests with each verdict, worst verdict first; a verdict that no test has is absent."""
        found = [result.judgement.verdict for result in self.results]
        return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}
