"""Everything that the tests of a run share; created once after collection, and immutable."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.config.settings import Settings
from pytest_perfdl.diff.matching.names import NO_RULES, Rules
from pytest_perfdl.measure.sizes import ROUNDS
from pytest_perfdl.results.verdict import FailOn
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.machine_limits import MachineLimits
from pytest_perfdl.run.processes import Processes
from pytest_perfdl.run.progress import Progress
from pytest_perfdl.run.revisions import Revisions


@dataclass(frozen=True, slots=True)
class RunContext:
    """One for each run."""

    config: pytest.Config
    settings: Settings
    tests: tuple[PerfTest, ...]
    """All that will be measured."""
    collected: int
    """How many tests share the false-alarm level: all that were selected, also those of other shards."""
    store: Store
    """The baselines."""
    revisions: Revisions
    """The repository's code: the working tree's, and that of other revisions."""
    processes: Processes
    """What measures."""
    machines: MachineLimits
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
