"""Everything that the tests of a run share, and what joins assertions and name rules with a test's result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

import pytest

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.config.settings import Settings
from pytest_perfdl.diff.matching.names import NO_RULES, Rules, rules_of
from pytest_perfdl.measure.sizes import ROUNDS
from pytest_perfdl.model.record import Finding
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import FailOn, MetricVerdict, Verdict, worst
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.machine_rates import MachineRates
from pytest_perfdl.run.processes import Processes
from pytest_perfdl.run.progress import Progress
from pytest_perfdl.run.revisions import Revisions

# Everything that the tests of a run share; created once after collection, and immutable.


@dataclass(frozen=True, slots=True)
class RunContext:
    """One for each run."""

    config: pytest.Config
    settings: Settings
    tests: tuple[PerfTest, ...]
    """All that will be measured."""
    collected: int
    """How many tests share the false-alarm level: all that were selected, also those of other shards."""
    narrowed: bool
    """Whether the files of the tests may have more tests than those that were selected."""
    store: Store
    """The baselines."""
    revisions: Revisions
    """The repository's code: the working tree's, and that of other revisions."""
    processes: Processes
    """What measures."""
    machines: MachineRates
    """Peak rates, for utilization."""
    progress: Progress
    """The progress line."""
    date: str
    """When the run began."""
    fail_on: frozenset[FailOn]
    """Verdicts that fail a test."""
    rules: Rules = NO_RULES
    """The project's own, for names of kernels and operators."""

    @property
    def recording(self) -> bool:
        """Whether the run writes baselines."""
        return self.settings.update is not None

    @property
    def step_seconds(self) -> float:
        """Seconds that the steps of a test may take in one process that is not one of a round's two."""
        return self.settings.budget / ROUNDS


# A project's rules for kernel and operator names, from its `conftest.py` (`hookspecs.pytest_perfdl_name_rules`).


_RULES = pytest.StashKey[Rules]()
_HOOK = "pytest_perfdl_name_rules"


def name_rules(config: pytest.Config) -> Rules:
    """The rules of all `conftest.py` files and plugins, compiled; asked for once a session.

    Raises
    ------
    pytest.UsageError
        When a rule cannot be used: without it every comparison would say something else than the project meant.
    """
    if _RULES not in config.stash:
        try:
            config.stash[_RULES] = rules_of(
                pair for pairs in config.hook.pytest_perfdl_name_rules() for pair in _read_pairs(pairs)
            )
        except ValueError as error:
            raise pytest.UsageError(f"{_HOOK}: {error}") from None
    return config.stash[_RULES]


def _read_pairs(pairs: object) -> Iterable[object]:
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise ValueError(f"{pairs!r} is not a list of (pattern, replacement) pairs")
    return pairs


# Joins verdicts on assertions and curves with the result of a test.


def joined(
    result: Result,
    metrics: Sequence[MetricVerdict],
    findings: Sequence[Finding] = (),
    *,
    fail_on: Set[FailOn],
    of_baseline: bool = False,
) -> Result:
    """A result with further metrics and findings: the worst verdict of all, and why.

    A test that failed before still does, whatever is added.

    Parameters
    ----------
    findings
        Say why where no metric does; one of level "invalid" makes the test `invalid`.
    fail_on
        Verdicts that fail a test.
    of_baseline
        Whether the metrics were compared with the baseline: a run that records a new one does not fail because of them.
    """
    known = result.judgement
    added: list[Verdict] = [metric.outcome for metric in metrics if metric.outcome is not None]
    added += ["invalid" for finding in findings if finding.level == "invalid"]
    verdict = worst([*added, known.verdict])
    telling = [f"{metric.name}: {metric.reason}" for metric in metrics if metric.outcome == verdict and metric.reason]
    telling = telling or [finding.message for finding in findings if finding.level == verdict]
    reasons = [*telling, known.reason] if verdict == known.verdict or not telling else telling
    judgement = replace(
        known,
        verdict=verdict,
        reason="; ".join(filter(None, reasons)),
        metrics=(*known.metrics, *metrics),
        integrity=(*known.integrity, *findings),
    )
    lifted = of_baseline and result.updated and worst(added) != "invalid"
    return replace(result, judgement=judgement, fails=result.fails or (worst(added) in fail_on and not lifted))
