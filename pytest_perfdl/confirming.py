"""A test's suspects confirmed in pairs: rounds are measured until everything is decided, or the budget ends."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from pytest_perfdl.bench import Bench
from pytest_perfdl.collect import PerfTest
from pytest_perfdl.fixture import Expectation
from pytest_perfdl.isolate.checkout import Checkout
from pytest_perfdl.isolate.remote import RemoteTest
from pytest_perfdl.judge import kernels
from pytest_perfdl.judge.blame import located
from pytest_perfdl.judge.expectation import demand, sides
from pytest_perfdl.judge.expectation import verdict as verdict_on
from pytest_perfdl.judge.matching.names import NO_RULES, Rules
from pytest_perfdl.judge.paired import PairedOutcome, PairedTest, Suspect
from pytest_perfdl.judge.rounds import Round
from pytest_perfdl.judge.settle import settle
from pytest_perfdl.judge.signflip import KernelTest
from pytest_perfdl.judge.verdict import Judgement, MetricVerdict
from pytest_perfdl.measure import surroundings
from pytest_perfdl.record import Finding, Record, metric_name
from pytest_perfdl.rounds import Rounds, Side, parts_of


@dataclass(frozen=True, slots=True)
class Suspects:
    """What rounds must decide of a test."""

    metrics: tuple[Suspect, ...]
    rows: tuple[str, ...] = ()
    """Kernels and operators, by full name."""


@dataclass(slots=True)
class Confirmation:
    """The confirming of one test; it has one level for all that is asked of it.

    Every method raises `rounds.SideError` when a side cannot be measured, and `PerfError` through `serving`.
    """

    bench: Bench
    test: PerfTest
    serving: Callable[[RemoteTest], AbstractContextManager[None]]
    """A context around waiting for a worker, which ends it when something goes wrong."""
    questions: int
    """How many families of suspects share the level: the test's own steps, and each of its expectations."""
    rules: Rules = NO_RULES
    """The project's own, for names."""
    decided: list[MetricVerdict] = field(default_factory=list)
    """What rounds said of its times, over all questions."""

    def of_code(self, found: Suspects, screened: Judgement, new: Record, base: Record, checkout: Checkout) -> Judgement:
        """Measure the baseline's code and the working tree's in turns until every suspect is decided.

        What a screen suspected is given up as soon as no regression is to be expected; where another revision is
        asked for, rounds go on to `unchanged`.
        """
        limits = self.test.limits
        family = kernels.tested(new, base, limits)
        awaited = tuple(name for name in found.rows if name in family.limits)
        by_row = family.test(self._row_level)
        outcome, rounds, ended, findings = self._measure(
            found.metrics,
            Side("base", checkout),
            Side("head", against=checkout),
            by_row=by_row,
            awaited=awaited,
            patient=self.bench.against is not None,
        )
        rows: list[MetricVerdict] = []
        if by_row is not None and rounds:
            slow = by_row.look(rounds, ended=ended)
            rows += (kernels.regressed(each, family.limits[each.name]) for each in slow)
            still_open = by_row.undecided(rounds, awaited, slow)
            rows += (kernels.undecided(name, family.limits[name], len(rounds)) for name in still_open)
        settled = settle(screened, new, base, outcome, rounds, limits, rows, self.rules)
        return replace(settled, integrity=tuple(dict.fromkeys((*settled.integrity, *findings))))

    def located(self, judgement: Judgement, checkout: Checkout) -> Judgement:
        """The judgement with the modules and lines that its causes come from: one stack pass on each side."""
        sides = (Side("base", checkout), Side("head", against=checkout))
        self.bench.progress.start_stacks(self.test.item.nodeid)
        base, head = (parts_of(self.bench, self.test, side) for side in sides)
        self.bench.progress.clear()
        return replace(judgement, blame=located(judgement.blame, base, head, self.rules))

    def of_curve(self, count: int, checkout: Checkout) -> list[Round]:
        """As many rounds of both codes as a curve wants of one of its sizes; fewer where the budget ends."""
        bench, rounds, started = self.bench, list[Round](), time.monotonic()
        sides = Side("base", checkout), Side("head", against=checkout)
        measuring = Rounds(bench, self.test, *sides, self.serving, seed=secrets.randbits(32), profiled=False)
        while len(rounds) < count and time.monotonic() - started < bench.settings.budget:
            bench.progress.start_round(len(rounds) + 1, count, self.test.item.nodeid)
            rounds.append(measuring.measure(len(rounds) + 1))
        bench.progress.clear()
        return rounds

    def of_alternatives(self, expectation: Expectation) -> MetricVerdict:
        """Measure the two alternatives of a `perf.compare` in turns until the expectation on them is decided."""
        kind, amount, name = expectation.kind, expectation.amount, expectation.comparison
        metric = metric_name(name, "step_time")
        base, head = (Side(side, variant=f"{side}:{name}") for side in ("base", "head"))
        outcome, *_ = self._measure(
            (demand(metric, kind, amount),), base, head, as_judged=lambda rounds: sides(rounds, kind)
        )
        return verdict_on(outcome, metric, kind, amount, (expectation.base, expectation.head))

    @property
    def _level(self) -> float:
        """For times of steps."""
        return self.bench.spending.level(self.bench.confirmed) / self.questions

    @property
    def _row_level(self) -> float:
        """For kernels and operators; a test never finds all of its rows slower, so none passes its level on."""
        return self.bench.spending.level([False] * len(self.bench.confirmed))

    def _measure(
        self,
        suspects: tuple[Suspect, ...],
        base: Side,
        head: Side,
        *,
        as_judged: Callable[[list[Round]], list[Round]] = list,
        by_row: KernelTest | None = None,
        awaited: tuple[str, ...] = (),
        patient: bool = True,
    ) -> tuple[PairedOutcome, list[Round], bool, list[Finding]]:
        """Rounds until nothing is left to decide: what they say, and whether the budget ended them.

        Also what the machine did meanwhile. Without patience they also end when no regression is to be expected.
        """
        bench = self.bench
        paired = PairedTest(suspects, self._level)
        profiled = base.checkout is not None
        measuring = Rounds(bench, self.test, base, head, self.serving, seed=secrets.randbits(32), profiled=profiled)
        rounds: list[Round] = []
        started = time.monotonic()
        ended = False
        outcome = paired.look(rounds)
        upcoming = outcome.next_look
        given_up = False
        while upcoming is not None and not ended and not given_up:
            while len(rounds) < upcoming and not ended and not given_up:
                bench.progress.start_round(len(rounds) + 1, upcoming, self.test.item.nodeid)
                rounds.append(measuring.measure(len(rounds) + 1))
                ended = time.monotonic() - started > bench.settings.budget
                given_up = not patient and _hopeless(rounds, paired, by_row, awaited)
            outcome = paired.look(as_judged(rounds), ended=ended, given_up=given_up)
            upcoming = outcome.next_look
            if upcoming is None and by_row is not None and awaited:
                still_open = by_row.undecided(rounds, awaited, by_row.look(rounds))
                upcoming = by_row.next_look(rounds) if still_open else None
        bench.progress.clear()
        self.decided += outcome.decided.values()
        return outcome, rounds, ended, list(surroundings.findings(measuring.results))


def _hopeless(rounds: list[Round], paired: PairedTest, by_row: KernelTest | None, awaited: tuple[str, ...]) -> bool:
    """Whether neither a metric nor an awaited kernel is on course to be found slower."""
    if not paired.hopeless(rounds):
        return False
    if by_row is None:
        return True
    return by_row.hopeless(rounds, by_row.undecided(rounds, awaited, by_row.look(rounds)))
