"""Simulated nights: tests whose code and environment change, measured every night, and their baselines refreshed.

Every night, each test has paired rounds of its baseline's code and the current code, drawn in blocks from the rounds of
unchanged code that `benchmarks/decision_quality` recorded, with the current side slowed by the true ratio of the two.
The verdict is that of the real gate and the real `settle`; `pytest_perfdl.runs.refresh.decide` reads the last
nights and decides about the baseline.

The gate is asked once for `OUTCOMES` draws of each workload and true ratio; a night takes one of them at random. The
nights of `detection.py` have a new draw each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "decision_quality"))

from ours import record
from recording import Cell, unpack
from recording import Round as Recorded
from shortcut import Shortcut

from pytest_perfdl.baseline.text import dump, parse
from pytest_perfdl.config.options import BUDGET_SECONDS, RECORDING_REPEATS
from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.settle import select_held, settle
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import BUILT_IN
from pytest_perfdl.model.record import Code, Record
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import MetricVerdict
from pytest_perfdl.runs.refresh import Decision, Measured, decide

RECORDING = Path(__file__).resolve().parents[1] / "decision_quality/data/recorded.json.gz"
NIGHTS, TESTS = 60, 200
OUTCOMES = 30
"""Draws of the gate for each workload and true ratio."""
BLOCK = 4
"""Successive recorded rounds that stay together: a lot of the recording."""
WINDOW = 3
"""Nights whose run files `refresh` is given."""
WORKLOADS = ("transformer", "convnet", "loader")
STEPS = (0.03, 0.05, 0.08, 0.12, 0.20)
GAINS = (0.05, 0.06, 0.08, 0.10, 0.15, 0.20)


@dataclass(frozen=True)
class Outcome:
    """What the rounds of one night say of one test."""

    verdicts: Mapping[str, MetricVerdict]
    rounds: tuple[Round, ...]


class Bank:
    """Outcomes of the gate by workload and true ratio of the current to the baseline's code.

    Parameters
    ----------
    tests
        In the run.
    count
        Draws that are kept of each workload and true ratio; 0 for a new one every night.
    """

    def __init__(self, recording: Path, tests: int, count: int = OUTCOMES) -> None:
        _, runs = unpack(recording)
        quiet = Cell("forked", True, 0.0)
        self._pools: dict[str, list[Recorded]] = {
            name: sorted(
                (
                    each
                    for each in runs
                    if isinstance(each, Recorded) and (each.workload, each.cell, each.share) == (name, quiet, 0.0)
                ),
                key=lambda each: each.at,
            )
            for name in WORKLOADS
        }
        self._count, self._tests = count, tests
        self._known: dict[tuple[str, int], list[Outcome]] = {}

    def outcomes(self, workload: str, ratio: float) -> list[Outcome]:
        """Outcomes for a true ratio, rounded to a thousandth of a percent."""
        key = workload, round(ratio * 1e5)
        if key not in self._known:
            rng = np.random.default_rng([WORKLOADS.index(workload), key[1]])
            self._known[key] = [self._measured(workload, key[1] / 1e5, rng) for _ in range(self._count)]
        return self._known[key]

    def outcome(self, workload: str, ratio: float, rng: np.random.Generator) -> Outcome:
        """The outcome of a night: one of those that were drawn before, or a new one where none are kept."""
        if not self._count:
            return self._measured(workload, ratio, rng)
        known = self.outcomes(workload, ratio)
        return known[int(rng.integers(len(known)))]

    def stored(self, workload: str, rng: np.random.Generator) -> list[dict[str, float]]:
        """Times of a baseline's processes, recorded one after the other."""
        pool = self._pools[workload]
        start = int(rng.integers(len(pool)))
        return [dict(pool[(start + number) % len(pool)].base) for number in range(RECORDING_REPEATS)]

    def _measured(self, workload: str, ratio: float, rng: np.random.Generator) -> Outcome:
        pool = self._pools[workload]
        names = tuple(pool[0].base)
        once = record([dict.fromkeys(names, 1e6)])
        gate = Gate(select_held(standing(once, once, (), BUILT_IN), BUILT_IN), self._tests)
        shortcut, rounds, seconds = Shortcut(gate), [], 0.0
        while True:
            start = int(rng.integers(len(pool)))
            for number in range(BLOCK):
                drawn = pool[(start + number) % len(pool)]
                head = {name: value * ratio for name, value in drawn.head.items()}
                rounds.append(Round(drawn.order, drawn.base, head))
                shortcut.add(rounds[-1])
                seconds += drawn.seconds
                spent = Spent(seconds, BUDGET_SECONDS)
                if shortcut.surely_open(spent):
                    continue
                outcome = gate.look(rounds, spent)
                if not outcome.open:
                    return Outcome(outcome.verdicts, tuple(rounds))


@dataclass(frozen=True)
class Change:
    """What happens to a test in one night."""

    night: int
    code: float = 1.0
    """The step takes this times as long."""
    environment: float | None = None
    """Another environment, in which any code takes this times as long; `None` for the same one."""


@dataclass(frozen=True)
class Story:
    """What happens to one test."""

    kind: str
    """`step`, `creep` or `improvement`."""
    workload: str
    changes: tuple[Change, ...]
    hidden: bool = False
    """Whether a slowdown comes in the night of another change, or right after an improvement."""

    def code(self, night: int) -> float:
        """Time of the code in a night, relative to the first one."""
        return float(np.prod([each.code for each in self.changes if each.night <= night]))

    def version(self, night: int) -> int:
        """The night since which the code of a night has not changed; 0 for the first code."""
        return max((each.night for each in self.changes if each.night <= night and each.code != 1), default=0)

    def environment(self, night: int) -> tuple[int, float]:
        """Number and factor of the environment in a night."""
        found = [each.environment for each in self.changes if each.night <= night and each.environment is not None]
        return len(found), found[-1] if found else 1.0


def stories(rng: np.random.Generator) -> list[Story]:
    """A hundred tests that get slower, and a hundred that get faster and whose environment changes."""
    found = []
    for number in range(TESTS):
        workload = WORKLOADS[number % len(WORKLOADS)]

        def other() -> float:
            return float(rng.uniform(0.98, 1.02))

        if number < TESTS // 4:
            night, hidden = int(rng.integers(8, 45)), number % 5 < 2
            size = STEPS[(number // 3) % len(STEPS)]
            changes = [Change(night, 1 + size, other() if hidden else None)]
            found.append(Story("step", workload, tuple(changes), hidden))
        elif number < TESTS // 2:
            first, every, hidden = int(rng.integers(8, 16)), int(rng.integers(1, 5)), number % 2 == 0
            changes = [Change(first + every * step, 1.01) for step in range(8)]
            changes.append(Change(first + 4 * every, 1.0, other()))
            if hidden:
                changes.append(Change(first - 1, 0.9))
            found.append(Story("creep", workload, tuple(changes), hidden))
        else:
            gain = GAINS[(number // 3) % len(GAINS)]
            changes = [Change(int(rng.integers(6, 28)), 1 - gain), Change(int(rng.integers(33, 55)), 1.0, other())]
            found.append(Story("improvement", workload, tuple(changes)))
    return found


@dataclass
class Test:
    """One test in the course of the nights."""

    name: str
    story: Story
    stored: Record
    anchor: int = 0
    """Night of the baseline's code; 0 for the first."""
    runs: list[Measured] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """The time of one process of each night, as tools without rounds measure it."""
    decisions: list[Decision] = field(default_factory=list)
    swallowed: list[int] = field(default_factory=list)
    """Nights in which the baseline moved to code that is slower than earlier code."""


def run(seed: int, *, nights: int = NIGHTS, outcomes: int = OUTCOMES) -> list[Test]:
    """All nights of all tests."""
    rng = np.random.default_rng(seed)
    bank = Bank(RECORDING, TESTS, outcomes)
    tests = []
    for number, story in enumerate(stories(rng)):
        tests.append(first_test(f"tests/test_{story.kind}.py::test_{number}", story, bank, rng))
    for night in range(1, nights + 1):
        for test in tests:
            measure(test, night, bank, rng)
            decision = decide(test.runs[-WINDOW:], test.stored)
            test.decisions.append(decision)
            if decision.record is not None:
                _adopt(test, decision.record)
    return tests


def first_test(name: str, story: Story, bank: Bank, rng: np.random.Generator) -> Test:
    """A test before the first night, with a baseline of its first code."""
    return Test(name, story, _as_stored(_record(name, bank.stored(story.workload, rng), 0, 0, 0)))


def measure(test: Test, night: int, bank: Bank, rng: np.random.Generator) -> None:
    """Measure a test in a night, and keep its run."""
    story = test.story
    environment, factor = story.environment(night)
    ratio = story.code(night) / story.code(test.anchor)
    outcome = bank.outcome(story.workload, ratio, rng)
    # The baseline's code runs in tonight's environment, too.
    scale = factor * story.code(test.anchor)
    rounds = [_scaled(each, scale) for each in outcome.rounds]
    new = _record(test.name, [rounds[0].head], night, environment, story.version(night))
    now = _record(test.name, [rounds[0].base], night, environment, test.anchor)
    base = test.stored
    same = base.context == new.context
    verdicts = {name: _scaled_verdict(each, scale) for name, each in outcome.verdicts.items()}
    found = standing(new, base, (), BUILT_IN)
    judged = settle(found, new, base, now, verdicts, rounds, BUILT_IN)
    result = Result(test.name, "tests/test.py", 1, judged, fails=False, new=new, base=base)
    result = replace(result, base_now=None if same else now)
    test.runs.append(Measured(Path(f"night-{night}/run.json"), _date(night), result))
    test.values.append(next(iter(rounds[0].head.values())))


def _adopt(test: Test, record: Record) -> None:
    assert record.code is not None
    anchor = int(record.code.files["model.py"], 16)
    best = min(test.story.code(night) for night in range(anchor + 1))
    if test.story.code(anchor) > best * (1 + 1e-9) and anchor != test.anchor:
        test.swallowed.append(len(test.runs))
    test.anchor, test.stored = anchor, _as_stored(record)


def _record(test: str, repeats: Sequence[Mapping[str, float]], night: int, environment: int, code: int) -> Record:
    made = record([{name: round(value) for name, value in each.items()} for each in repeats])
    return replace(
        made,
        test=test,
        context={"torch": f"2.{environment}.0"},
        occasions=(replace(made.occasions[0], date=_date(night), commit=f"{night:040x}"),),
        code=Code({"model.py": f"{code:012x}"}, {"torch": f"2.{environment}.0"}),
    )


def _as_stored(record: Record) -> Record:
    return parse(dump(record))


def _scaled(measured: Round, scale: float) -> Round:
    base, head = ({name: value * scale for name, value in side.items()} for side in (measured.base, measured.head))
    return Round(measured.order, base, head)


def _scaled_verdict(metric: MetricVerdict, scale: float) -> MetricVerdict:
    base, new = (None if value is None else value * scale for value in (metric.base, metric.new))
    return replace(metric, base=base, new=new)


def _date(night: int) -> str:
    return f"2026-{1 + night // 28:02}-{1 + night % 28:02}T02:00:00Z"
