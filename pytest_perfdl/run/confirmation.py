"""Compares the times of a test in paired rounds, until they are decided or the time budget ends."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_perfdl.fixture.requests import Expectation
from pytest_perfdl.judge import kernels
from pytest_perfdl.judge.blame import locate_causes, rename_rows
from pytest_perfdl.judge.budget import WaivedGate, cover_rows
from pytest_perfdl.judge.kernels import Rows, demand, order_sides
from pytest_perfdl.judge.kernels import judge_comparison as verdict_on
from pytest_perfdl.judge.ranks import find_explaining
from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.settle import select_held, settle
from pytest_perfdl.judge.stopping_rule import LEAST_ROUNDS, Gate, GateOutcome, Held, Spent
from pytest_perfdl.judge.tables import (
    AlternativesGate,
    TableGate,
    alone_in,
    late_cases,
    settle_alternatives,
    settle_table,
)
from pytest_perfdl.judge.untimed import EXPLAINED
from pytest_perfdl.machine.device_state import DeviceUses
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.limits import Expected, Limits
from pytest_perfdl.model.metrics import CASE_TIME, GROUP_TIME, needs_profile
from pytest_perfdl.model.record import CASE_ERROR, Call, Finding, Record, metric_name, row_name
from pytest_perfdl.model.units import duration, plural
from pytest_perfdl.results.verdict import CaseVerdict, Judgement, MetricVerdict
from pytest_perfdl.run import assemble
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.context import RunContext
from pytest_perfdl.run.definitions import Touched
from pytest_perfdl.run.measurement import Measurement
from pytest_perfdl.run.paired_rounds import Rounds, RoundSide, cases_of, parts_of
from pytest_perfdl.system import clocks
from pytest_perfdl.workers.channel import Shown
from pytest_perfdl.workers.checkout import Checkout

PROFILED = LEAST_ROUNDS
"""Number of first rounds that are profiled in any case."""
TABLE_ROUNDS = 4
"""Rounds of all cases of a table that a budget must hold: three decide most of them."""
BUILT_IN_NOWHERE = "5%"
"""The limit of the cases of two alternatives where none is asserted, which decides nothing."""
SLOW_START = 20.0
"""Seconds that starting a process takes from which on two rounds may exclude a slowdown."""
_REMEDY = "let the GPU cool, lock its clocks (perfdl check shows the command), and stop other processes"


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What rounds say of an assertion about alternatives with many cases."""

    metrics: list[MetricVerdict]
    """Their geometric mean, and if asked every case."""
    findings: list[Finding]
    """On cases that cannot be measured, and on those that were left out."""
    cases: tuple[CaseVerdict, ...]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The rounds of one test; it has one level for all that is asked of its times.

    Every method raises `SideError` when a side cannot be measured, and `WorkerError` when a worker dies or hangs.
    """

    context: RunContext
    test: PerfTest
    questions: int
    """How many share the level: the test's own steps, and each of its expectations."""

    @classmethod
    def of(cls, measurement: Measurement) -> Confirmation:
        """That of a measured test."""
        questions = bool(measurement.repeats) + len(measurement.alternatives)
        return cls(measurement.context, measurement.test, questions)

    def of_code(
        self,
        found: Judgement,
        new: Record,
        base: Record,
        now: Record,
        checkout: Checkout,
        *,
        shown: tuple[Shown, Shown] | None,
        touched: frozenset[str] = frozenset(),
    ) -> Judgement:
        """Measure paired rounds of the baseline's and the current code until every time has a verdict.

        Parameters
        ----------
        found
            The judgement of everything but times.
        new, base, now
            The working tree's record, the baseline's, and what the baseline's code gives now.
        checkout
            The baseline's code.
        shown
            What the first process of each side showed, base and head.
        touched
            Full names of the kernels and operators below functions that the change of the source touches.
        """
        times, rules = select_held(found, self.test.limits), self.context.rules
        limits = kernels.select_rows(new, now, self.test.limits)
        rows = Rows(limits, touched & limits.keys(), self.context.collected)
        gate = self._gate(times, resolution=self.test.options.resolution_for(self.context.settings), shown=shown)
        always = self.test.plan.ranks or found.verdict in EXPLAINED or any(needs_profile(each.name) for each in times)

        def profiles(rounds: list[Round], outcome: GateOutcome) -> bool:
            """Profiling takes about as long as the timed steps: only as long as somebody will look at the profiles."""
            if always or len(rounds) < PROFILED or not outcome.open or outcome.leans:
                return True
            return rows.watched(rounds)

        outcome, rounds, findings, how, _ = self._measure(
            WaivedGate(gate, self.test.limits),
            RoundSide("base", checkout),
            RoundSide("head", against=checkout),
            rows=None if cover_rows(self.test.limits) else rows,
            profiles=profiles,
            shown=shown,
        )
        by_row = (*rows.regressed(rounds), *rows.promising(rounds, outcome.verdicts))
        machine = self.context.machines.of(new.key)
        peaks = None if machine is None else machine.peaks
        settled = settle(found, new, base, now, outcome.verdicts, rounds, self.test.limits, by_row, rules, peaks)
        return replace(settled, integrity=tuple(dict.fromkeys((*settled.integrity, *findings))), rounds=how)

    def of_table(
        self,
        found: Judgement,
        new: Record,
        base: Record,
        now: Record,
        checkout: Checkout,
        *,
        shown: tuple[Shown, Shown] | None,
    ) -> Judgement:
        """Measure paired rounds of a table until its cases are decided, then what is named alone.

        Parameters are those of `of_code`. A case that is named may have got slower only because of what a case before
        it left in the process: it fails if it is slower in processes that measure nothing else.
        """
        assert new.table is not None
        assert base.table is not None
        assert now.table is not None
        tests = self.context.collected * self.questions
        share, budget = self._sizes(now.table, new.table)
        gate = TableGate.of(base.table, now.table, new.table, self.test.limits, tests, share)
        if gate is None:
            return found
        sides = RoundSide("base", checkout), RoundSide("head", against=checkout)
        measured = self._measure(gate, *sides, shown=shown, loops=gate.loops, budget=budget)
        _, rounds, findings, how, spent = measured
        alone = self._alone(gate, rounds, spent, sides, shown)
        machine = self.context.machines.of(new.key)
        peaks = None if machine is None else machine.peaks
        settled = settle_table(found, gate, rounds, alone, spent, new, base, now, peaks)
        return replace(settled, integrity=tuple(dict.fromkeys((*settled.integrity, *findings))), rounds=how)

    def _sizes(self, now: Call, new: Call) -> tuple[float, float]:
        """What a table is measured for, as the first processes show it.

        Returns
        -------
        tuple[float, float]
            The time budget over the time of `TABLE_ROUNDS` rounds of all cases, and the seconds that rounds may take.
        """
        plan, settings = self.test.plan, self.context.settings
        most, least = settings.budget, settings.shared_budget if self.test.cases else settings.budget
        steps = plan.warmup + plan.steps
        taken = sum(max(case.ns) * case.loops for call in (now, new) for case in call.cases) * steps / 1e9
        share = most / (TABLE_ROUNDS * taken) if taken else 1.0
        return share, min(most, max(least, 2 * TABLE_ROUNDS * taken))

    def _alone(
        self,
        gate: TableGate,
        rounds: Sequence[Round],
        spent: Spent,
        sides: tuple[RoundSide, RoundSide],
        shown: tuple[Shown, Shown] | None,
    ) -> dict[str, list[float]]:
        """Log ratios of the cases that must be measured without all others, in rounds of their own."""
        alone = alone_in(rounds)
        for case in gate.probes(gate.judge(rounds, spent)):
            seed = secrets.randbits(32)
            measuring = Rounds(self.context, self.test, *sides, seed=seed, shown=shown, loops=gate.loops)
            found = []
            for number in range(1, 1 + LEAST_ROUNDS - len(alone.get(case, ()))):
                self.context.progress.start(f"{case} alone, round {number}", self.test.item.nodeid)
                found.append(measuring.measure(number, cases=frozenset({case})))
            self.context.progress.clear()
            alone.setdefault(case, []).extend(alone_in(found).get(case, ()))
        return alone

    def located(self, judgement: Judgement, checkout: Checkout) -> Judgement:
        """The judgement with the modules and lines that its causes come from: one stack pass on each side."""
        sides = (RoundSide("base", checkout), RoundSide("head", against=checkout))
        self.context.progress.start("locating the change", self.test.item.nodeid)
        ranks = {each.call: find_explaining(each) for each in judgement.ranks}
        base, head = (parts_of(self.context, self.test, side, ranks) for side in sides)
        self.context.progress.clear()
        causes = locate_causes(judgement.blame, base, head, self.context.rules)
        return replace(judgement, blame=causes, breakdowns=rename_rows(judgement.breakdowns, judgement.blame, causes))

    def below(self, functions: Sequence[Touched], checkout: Checkout) -> frozenset[str]:
        """Full names of the kernels and operators that run in these functions: one stack pass of the working tree."""
        self.context.progress.start("locating the change", self.test.item.nodeid)
        by_call = parts_of(self.context, self.test, RoundSide("head", against=checkout))
        self.context.progress.clear()
        return frozenset(
            row_name(call, part.kind, part.name)
            for call, whole in by_call.items()
            for part in whole.parts
            if part.kind != "idle" and any(function.holds(part) for function in functions)
        )

    def of_cases(self, expectation: Expectation, shown: Shown | None) -> Alternatives:
        """Measure paired rounds of alternatives with many cases until the assertion on them is decided.

        `shown` is what the first process showed. A case that fails the assertion was measured alone, too, as in
        `of_table`.
        """
        name, expected, nowhere = expectation.comparison, expectation.expected, expectation.nowhere
        sides = _alternatives(expectation)
        (base, *_), (head, *_) = found = [cases_of(self.context, self.test, side) for side in sides]
        asked = demand(metric_name(name, CASE_TIME), expected)
        tests = self.context.collected * (self.questions + bool(nowhere))
        limits = Limits.parse({CASE_TIME: nowhere or BUILT_IN_NOWHERE, GROUP_TIME: "off"})
        every = TableGate.of(base, base, head, limits, tests, self._sizes(base, head)[0])
        if every is None:
            raise PerfError("perf.compare(..., cases=...): no case can be measured with both alternatives")
        everywhere = Expected("not slower", nowhere) if nowhere else None
        gate = AlternativesGate(Gate((asked,), tests, asked.limit.relative), every, expected, everywhere)
        both = (shown, shown) if shown is not None else None
        outcome, rounds, _, _, spent = self._measure(gate, *sides, shown=both, loops=every.loops)
        alone = self._alone(every, rounds, spent, sides, both) if nowhere else {}
        labels = expectation.base, expectation.head
        mean = verdict_on(outcome.verdicts[asked.name], expected, labels)
        others, cases = settle_alternatives(gate, rounds, alone, spent, labels)
        notes = [
            replace(each, level="invalid", message=side.tell(each.message)) if each.code == CASE_ERROR else each
            for side, (_, own) in zip(sides, found, strict=True)
            for each in own
        ]
        return Alternatives([mean, *others], [*dict.fromkeys(notes), *late_cases(every)], cases)

    def of_alternatives(self, expectation: Expectation, shown: Shown | None) -> MetricVerdict:
        """Measure paired rounds of the alternatives of a `perf.compare` until its assertion is decided.

        `shown` is what the first process showed, which ran both.
        """
        name, expected = expectation.comparison, expectation.expected
        metric = metric_name(name, "step_time")
        base, head = _alternatives(expectation)
        asked = demand(metric, expected)
        gate = self._gate((asked,), resolution=asked.limit.relative)
        outcome, *_ = self._measure(
            gate,
            base,
            head,
            as_judged=lambda rounds: order_sides(rounds, expected),
            shown=(shown, shown) if shown is not None else None,
        )
        return verdict_on(outcome.verdicts[metric], expected, (expectation.base, expectation.head))

    def _gate(
        self, times: tuple[Held, ...], *, resolution: float | None, shown: tuple[Shown, Shown] | None = None
    ) -> Gate:
        slow = shown is not None and max(side.start_seconds for side in shown) > SLOW_START
        return Gate(times, self.context.collected * self.questions, resolution, 2 if slow else LEAST_ROUNDS)

    def _measure(
        self,
        gate: Gate | WaivedGate | TableGate | AlternativesGate,
        base: RoundSide,
        head: RoundSide,
        *,
        as_judged: Callable[[list[Round]], list[Round]] = list,
        rows: Rows | None = None,
        profiles: Callable[[list[Round], GateOutcome], bool] = lambda *_: False,
        shown: tuple[Shown, Shown] | None = None,
        loops: Mapping[str, int] | None = None,
        budget: float | None = None,
    ) -> tuple[GateOutcome, list[Round], list[Finding], str, Spent]:
        """Rounds until the gate is done and, unless the test fails already, no row looks slower.

        Whether a round is profiled follows from the rounds before it, for both sides alike, so that signs stay fair.
        A round in which a GPU was disturbed is withheld, and another one measured (`DeviceUses.withheld`). Also returns
        their outcome, findings about the machine, how they were run, and what they took.
        """
        progress, budget = self.context.progress, budget or self.context.settings.budget
        measuring = Rounds(self.context, self.test, base, head, seed=secrets.randbits(32), shown=shown, loops=loops)
        rounds: list[Round] = []
        outcome = gate.look(rounds)
        started, spent = clocks.monotonic(), Spent(0.0, budget)
        for number in itertools.count(1):
            suspect = " for a suspect" if spent.ended else ""
            spent_of = f"{duration(spent.seconds)} of {duration(spent.most)}{suspect}"
            progress.start(f"paired round {number}, {spent_of}", self.test.item.nodeid)
            profiled = profiles(rounds, outcome)
            measured = measuring.measure(number, profiled=profiled, cases=outcome.cases)
            if not measuring.withheld:
                rounds.append(measured)
            spent = Spent(clocks.monotonic() - started, budget)
            if outcome.open:
                outcome = gate.look(as_judged(rounds), spent)
            if outcome.open:
                continue
            fails = any(each.outcome == "regressed" for each in outcome.verdicts.values())
            if fails or rows is None or spent.ended or not rows.promising(rounds, outcome.verdicts):
                break
        progress.clear()
        how = f"{plural(len(rounds), 'round')}, {measuring.how}"
        found = [*assemble.findings(measuring.results), *device_findings(measuring.uses)]
        return explain_withheld(outcome, measuring.uses), rounds, found, how, spent


def _alternatives(expectation: Expectation) -> tuple[RoundSide, RoundSide]:
    """The sides of an assertion about alternatives, with the names that the test gives them."""
    base, head = (
        RoundSide(side, variant=f"{side}:{expectation.comparison}", alternative=label)
        for side, label in (("base", expectation.base), ("head", expectation.head))
    )
    return base, head


def explain_withheld(outcome: GateOutcome, uses: Sequence[DeviceUses]) -> GateOutcome:
    """The outcome, where what is not decided says why rounds were withheld."""
    why = next((each.withheld for each in uses if each.withheld), "")
    if not why or outcome.open:
        return outcome
    shown = {
        name: replace(each, reason=f"{each.reason}; {why}") if each.verdict == "inconclusive" else each
        for name, each in outcome.verdicts.items()
    }
    return replace(outcome, verdicts=shown)


def device_findings(uses: Sequence[DeviceUses]) -> Iterator[Finding]:
    """What the rounds' GPUs were disturbed by, and a clock that was reduced on one side more than on the other."""
    withheld = [each.withheld for each in uses if each.withheld]
    for why in dict.fromkeys(withheld):
        count = plural(withheld.count(why), "paired round")
        yield Finding("note", "withheld", f"{count} of {len(uses)} not used, because {why}: {_REMEDY}")
    whole = DeviceUses.joined(uses)
    base, head = whole.base, whole.head
    if errors := base.memory_errors + head.memory_errors:
        text = f"ECC found {plural(errors, 'memory error')} of the GPU in paired rounds, which takes time"
        see = "nvidia-smi -q -d ECC, or amd-smi metric --ecc, shows whether they are corrected"
        yield Finding("note", "memory-errors", f"{text}: {see}")
    if base.has_clients or head.has_clients:
        text = "CUDA MPS runs kernels of several processes on the GPU at the same time"
        yield Finding("note", "mps", f"{text}: the two processes of a paired round alternate, as without it")
    shares = f"{base.reduced:.0%} of the time of the baseline code and {head.reduced:.0%} of that of the current code"
    if whole.at_power_limit:
        text = f"the clock of the GPU was reduced by the power that the step draws, during {shares}"
        yield Finding("note", "power-limit", f"{text}: times are those at the power limit of this machine")
    if bool(base.throttled_by) != bool(head.throttled_by):
        side, slow = ("baseline", base) if base.throttled_by else ("current", head)
        text = f"the clock of the GPU was reduced by {', '.join(slow.throttled_by)} during {shares}"
        sensed = f" ({whole.sensed})" if whole.sensed else ""
        yield Finding("note", "throttled-side", f"{text}{sensed}: times of the {side} code include that")
