"""The verdict on a table: the rule of `families`, with the ids, limits and records of its cases.

gate = TableGate.of(base, now, new, limits, tests)      # the table's calls: recorded, of the base's code now, current
while (outcome := gate.look(rounds, spent)).open:
    rounds += ...                                       # with the cases in outcome.cases
confirmed = ...                                         # rounds of each of gate.suspects(rounds) alone
judgement = settle_table(found, gate, rounds, confirmed, new, base)
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.judge import reasons
from pytest_perfdl.judge.families import (
    Family,
    FamilyOutcome,
    Judged,
    Limits,
    Node,
    Ratios,
    grow_tree,
    name_groups,
    typical,
)
from pytest_perfdl.judge.kernels import judge_comparison, order_sides
from pytest_perfdl.judge.log_ratios import as_ratio, with_change
from pytest_perfdl.judge.round_data import broken, head_second
from pytest_perfdl.judge.stopping_rule import OVER, Gate, GateOutcome, Held, Spent
from pytest_perfdl.judge.untimed import judgement
from pytest_perfdl.machine.utilization import case_rates
from pytest_perfdl.model.cases import axes_of, group_name
from pytest_perfdl.model.metrics import CASE_TIME, GROUP_TIME
from pytest_perfdl.model.record import CASES_DIFFER, CASES_LATE, Finding
from pytest_perfdl.model.record_json import significant
from pytest_perfdl.model.units import format_percent, plural, some
from pytest_perfdl.results.verdict import CaseVerdict, GroupVerdict, Judgement, MetricVerdict, Verdict
from pytest_perfdl.stats.evidence import Estimate

if TYPE_CHECKING:
    from pytest_perfdl.judge.round_data import Round, TimedCases
    from pytest_perfdl.machine.rates import Peaks
    from pytest_perfdl.model import limits as model_limits
    from pytest_perfdl.model.limits import Expected, Limit
    from pytest_perfdl.model.record import Call, Case, Record

SHOWN = 10
"""Named cases that are metrics of the test: those with the largest change that are in no named group."""
DIGITS = 6
"""Significant digits of the figures of cases: more say nothing, and a page holds thousands of them."""
PROBES = 5
"""Members of a named group that are measured alone."""
_MOST_PROBED = 20
"""Cases that are measured alone at most; more of them are told by a group."""

Alone = Mapping[str, Sequence[float]]
"""Log ratios of cases that were measured without any other one, by id."""


@dataclass(frozen=True, slots=True)
class TableGate:
    """The rule for the times of one table."""

    family: Family
    case_limit: Limit
    group_limit: Limit
    base: Mapping[str, Case]
    """The cases as the base's code has them now, by id."""
    new: Mapping[str, Case]
    late: tuple[str, ...] = ()
    """Cases that both sides have, but the time budget does not."""

    @classmethod
    def of(
        cls, base: Call, now: Call, new: Call, limits: model_limits.Limits, tests: int, share: float = 1.0
    ) -> TableGate | None:
        """The rule for a table, with the tree of its baseline; `None` if there is nothing to compare.

        Parameters
        ----------
        base
            The table as it was recorded: its operators make groups.
        now, new
            What the base's code and the current code have now; cases that both can measure are compared.
        tests
            Tests, and comparisons in them, that share the error rate.
        share
            Of the time of a whole round, what the time budget has: with less than 1, some cases are left out, evenly
            over the table.
        """
        held = {name: limits.for_metric(name) for name in (CASE_TIME, GROUP_TIME)}
        case_limit, group_limit = held[CASE_TIME], held[GROUP_TIME]
        sides = [{case.id: case for case in call.cases} for call in (now, new)]
        ids = [case for case in sides[0] if case in sides[1] and not _is_redefined(sides[0][case], sides[1][case])]
        if case_limit is None or case_limit.relative is None or not ids:
            return None
        kept = max(1, int(share * len(ids)))
        chosen = set(range(len(ids))) if share >= 1 else {place * len(ids) // kept for place in range(kept)}
        late = tuple(case for place, case in enumerate(ids) if place not in chosen)
        ids = [case for place, case in enumerate(ids) if place in chosen]
        recorded = {case.id: case for case in base.cases}
        operators = {case: frozenset(recorded.get(case, sides[0][case]).operators) for case in ids}
        tree = grow_tree(ids, {case: axes_of(case) for case in ids}, operators)
        if group_limit is None or group_limit.relative is None:
            tree, group_limit = replace(tree, nodes=()), case_limit
        logs = [Held(name, each).bet for name, each in ((CASE_TIME, case_limit), (GROUP_TIME, group_limit))]
        return cls(Family(tree, Limits(*logs), tests), case_limit, group_limit, sides[0], sides[1], late)

    @property
    def loops(self) -> dict[str, int]:
        """Calls in a step of each case: as many as the side that needs more of them asks for, the same for both."""
        return {case: max(self.base[case].loops, self.new[case].loops) for case in self.family.tree.cases}

    def look(self, rounds: Sequence[Round], spent: Spent | None = None) -> GateOutcome:
        """Whether to measure another round, and of which cases."""
        if not rounds:
            return GateOutcome(open=True, cases=frozenset(self.family.tree.cases))
        if broken(rounds, ()):
            return GateOutcome(open=False)
        outcome = self.judge(rounds, spent, final=False)
        failed = {case for each in rounds if each.cases is not None for case in each.cases.problems}
        chosen = frozenset(self.family.tree.cases[place] for place in outcome.next) - failed
        return GateOutcome(open=bool(chosen), cases=chosen)

    def judge(self, rounds: Sequence[Round], spent: Spent | None = None, *, final: bool = True) -> FamilyOutcome:
        """What the rounds so far say of every case and group; see `Family.look`."""
        return self.family.look(Ratios(self._ratios(rounds), head_second(rounds)), spent, final=final)

    def _ratios(self, rounds: Sequence[Round]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        places = {case: place for place, case in enumerate(self.family.tree.cases)}
        values = np.full((len(rounds), len(places)), np.nan)
        for row, each in zip(values, rounds, strict=True):
            for case, base_ns in ({} if each.cases is None else each.cases.base).items():
                assert each.cases is not None
                row[places[case]] = math.log(each.cases.head[case] / base_ns)
        return values

    def probes(self, outcome: FamilyOutcome) -> list[str]:
        """Cases to measure alone: those that are named, and typical members of the groups that are."""
        tree = self.family.tree
        found: list[int] = []
        for node, judged in name_groups(tree, outcome):
            found += self._typical(node, judged, outcome)
        named = [place for place, each in enumerate(outcome.cases) if each.standing == "regressed"]
        found += sorted(named, key=lambda place: -(outcome.cases[place].effect or 0.0))
        return [tree.cases[place] for place in dict.fromkeys(found)][:_MOST_PROBED]

    def _typical(self, node: Node, judged: Judged, outcome: FamilyOutcome) -> list[int]:
        """Members whose own change is next to that of their group."""

        def distance(place: int) -> float:
            return abs((outcome.cases[place].effect or 0.0) - (judged.effect or 0.0))

        return sorted(node.members, key=distance)[:PROBES]

    def confirms_case(self, place: int, outcome: FamilyOutcome, alone: Alone) -> bool:
        """Whether a named case is slower alone too: by half of its change at least. One not measured alone is not."""
        return _confirms(alone.get(self.family.tree.cases[place], ()), outcome.cases[place])

    def confirms_group(self, node: Node, judged: Judged, outcome: FamilyOutcome, alone: Alone) -> bool:
        """The same of a group, by its typical members together."""
        members = [self.family.tree.cases[place] for place in self._typical(node, judged, outcome)]
        return _confirms([value for case in members for value in alone.get(case, ())], judged)


def _confirms(alone: Sequence[float], judged: Judged) -> bool:
    return bool(alone) and Estimate(tuple(alone)).center >= (judged.effect or 0.0) / 2


def alone_in(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Log ratios of cases in the rounds that measured nothing else."""
    found: dict[str, list[float]] = {}
    for each in rounds:
        if each.cases is not None and len(each.cases.base) == 1:
            ((case, base_ns),) = each.cases.base.items()
            found.setdefault(case, []).append(math.log(each.cases.head[case] / base_ns))
    return found


def settle_table(
    found: Judgement,
    gate: TableGate,
    rounds: Sequence[Round],
    alone: Alone,
    spent: Spent,
    new: Record,
    base: Record,
    now: Record,
    peaks: Peaks | None = None,
) -> Judgement:
    """The judgement on a table whose times were compared.

    Parameters
    ----------
    found
        Of everything but times.
    rounds
        Those that the rule asked for.
    new, base, now
        The current record, the baseline's, and what the baseline's code gives now.
    alone
        What named cases took in rounds without other cases.
    peaks
        Rates that the cases' rooflines are relative to; `None` if unknown.
    """
    assert new.table is not None
    assert now.table is not None
    if reason := broken(rounds, ()):
        metric = replace(_metric(CASE_TIME, gate.case_limit), verdict="invalid", reason=reason, rounds=len(rounds))
        return judgement(new, base, (*found.metrics, metric), None, "")
    told = _Told(gate, gate.judge(rounds, spent), rounds, alone, peaks)
    settled = judgement(new, base, (*found.metrics, *told.metrics), None, "")
    findings = (*found.integrity, *_differing(now.table, new.table), *late_cases(gate))
    return replace(settled, cases=told.cases, groups=told.groups, integrity=findings)


@dataclass(frozen=True, slots=True)
class AlternativesGate:
    """The rule for two alternatives with many cases: their geometric mean, and if asked every single case.

    The mean of a round is that of all cases, so that rounds without some of them do not count for it.
    """

    mean: Gate
    every: TableGate
    expected: Expected
    nowhere: Expected | None
    """What is expected of every single case; `None` if nothing is."""

    def look(self, rounds: Sequence[Round], spent: Spent | None = None) -> GateOutcome:
        """Whether to measure another round, and of which cases; the verdict on the mean."""
        ids = frozenset(self.every.family.tree.cases)
        if not rounds:
            return GateOutcome(open=True, cases=ids)
        (held,) = self.mean.held
        if failed := {case: why for each in rounds if each.cases for case, why in each.cases.problems.items()}:
            why = f"cases failed: {some([f'{case} ({said})' for case, said in failed.items()])}"
            said = replace(_metric(held.name, held.limit), verdict="invalid", reason=why, rounds=len(rounds))
            return GateOutcome(open=False, verdicts={held.name: said})
        found = self.mean.look(self.means(rounds), spent)
        if found.open or self.nowhere is None:
            return replace(found, cases=ids)
        rest = self.every.look(rounds, spent)
        return replace(found, open=rest.open, cases=rest.cases)

    def means(self, rounds: Sequence[Round]) -> list[Round]:
        """The rounds with all cases, with the geometric mean of their times in nanoseconds as the only metric."""
        count = len(self.every.family.tree.cases)
        (held,) = self.mean.held
        found = [
            replace(each, base={held.name: _mean(each.cases.base)}, head={held.name: _mean(each.cases.head)})
            for each in rounds
            if each.cases is not None and len(each.cases.base) == count
        ]
        return order_sides(found, self.expected)


def _mean(times: Mapping[str, float]) -> float:
    return math.exp(float(np.mean(np.log(list(times.values())))))


def settle_alternatives(
    gate: AlternativesGate, rounds: Sequence[Round], alone: Alone, spent: Spent, labels: tuple[str, str]
) -> tuple[list[MetricVerdict], tuple[CaseVerdict, ...]]:
    """The verdicts on every single case, as metrics of the test and one by one; none if nothing is expected of them.

    Parameters
    ----------
    alone
        What named cases took in rounds without other cases.
    labels
        Names of the first and the second alternative.
    """
    nowhere = gate.nowhere
    if nowhere is None or broken(rounds, ()):
        return [], ()
    told = _Told(gate.every, gate.every.judge(rounds, spent), rounds, alone, None)
    summary, *others = told.metrics
    holds = summary.verdict in ("unchanged", "improved")
    every = replace(
        summary,
        name="every case",
        limit=nowhere,
        verdict="unchanged" if holds else summary.verdict,
        reason=f"{labels[1]} compared with {labels[0]}: {summary.reason}",
    )
    named = [
        judge_comparison(each, nowhere, labels) if each.verdict == "regressed" else replace(each, limit=nowhere)
        for each in others
    ]
    return [every, *named], tuple(replace(case, alternatives=" -> ".join(labels)) for case in told.cases)


def late_cases(gate: TableGate) -> list[Finding]:
    """A note on the cases that rounds had no time for."""
    if not gate.late:
        return []
    cases = len(gate.late) + len(gate.family.tree.cases)
    count = f"{len(gate.late)} of {plural(cases, 'case')}"
    do = "choose cases with --perf-case, or set a larger --perf-budget"
    return [Finding("note", CASES_LATE, f"{count} do not fit into the time budget: {some(gate.late)}; {do}")]


def _is_redefined(base: Case, new: Case) -> bool:
    return base.definition != new.definition


def _differing(base: Call, new: Call) -> list[Finding]:
    """Notes on cases that one side does not have, or has otherwise."""
    before, after = ({case.id: case for case in call.cases} for call in (base, new))
    both = sorted(before.keys() & after.keys())
    said = (
        ("not in the baseline", sorted(after.keys() - before.keys())),
        ("only in the baseline", sorted(before.keys() - after.keys())),
        ("defined otherwise in the baseline", [case for case in both if _is_redefined(before[case], after[case])]),
    )
    return [
        Finding("note", CASES_DIFFER, f"{plural(len(ids), 'case')} {where}, not compared: {some(ids)}")
        for where, ids in said
        if ids
    ]


@dataclass(frozen=True)
class _Told:
    """What is said of a table."""

    gate: TableGate
    outcome: FamilyOutcome
    rounds: Sequence[Round]
    alone: Alone
    peaks: Peaks | None

    @functools.cached_property
    def times(self) -> dict[str, tuple[float, float]]:
        """Medians over the rounds of a case's call, base and head."""
        found: dict[str, list[tuple[float, float]]] = {}
        for each in self.rounds:
            for case, base_ns in ({} if each.cases is None else each.cases.base).items():
                assert each.cases is not None
                found.setdefault(case, []).append((base_ns, each.cases.head[case]))
        middles = {case: np.median(values, axis=0) for case, values in found.items()}
        return {case: (float(base), float(head)) for case, (base, head) in middles.items()}

    @functools.cached_property
    def problems(self) -> dict[str, str]:
        """Cases that failed in a round, although they had not before."""
        return {
            case: said for each in self.rounds if each.cases is not None for case, said in each.cases.problems.items()
        }

    @functools.cached_property
    def cases(self) -> tuple[CaseVerdict, ...]:
        """The verdicts on all cases of the current code, worst first: by their change, and not by their names."""
        tree = self.gate.family.tree
        compared = [self._case(place) for place in range(len(tree.cases))]
        known = {each.id for each in compared}
        others = [
            self._with_rates(CaseVerdict(case.id, "new", time_ns=float(np.exp(np.log(case.ns).mean()))))
            for case in self.gate.new.values()
            if case.id not in known and case.id not in self.gate.late
        ]
        return (*sorted(compared, key=lambda each: (-(each.effect or 0.0), each.id)), *others)

    def _case(self, place: int) -> CaseVerdict:
        case, judged = self.gate.family.tree.cases[place], self.outcome.cases[place]
        base_ns, time_ns = self.times.get(case, (None, None))
        verdict, reason = self._verdict(place, judged)
        effect = None if judged.effect is None else as_ratio(judged.effect)
        if time_ns is not None and judged.effect is not None:
            # As everywhere: the robust change of paired rounds, and times that agree with it.
            base_ns = time_ns * math.exp(-judged.effect)
        found = CaseVerdict(
            id=case,
            verdict=verdict,
            effect=effect,
            interval=None if judged.interval is None else (as_ratio(judged.interval[0]), as_ratio(judged.interval[1])),
            base_ns=base_ns,
            time_ns=time_ns,
            noise=judged.noise,
            rounds=judged.rounds,
            base_counts=_counts(self.gate.base[case]),
            reason=reason,
        )
        return self._with_rates(found)

    def _with_rates(self, found: CaseVerdict) -> CaseVerdict:
        """A case with what a call runs, and the rates of both sides by the work that the current test states."""
        new = self.gate.new[found.id]
        base, now = (case_rates(new.work, ns, self.peaks) for ns in (found.base_ns, found.time_ns))
        interval = found.interval
        return replace(
            found,
            effect=_rounded(found.effect),
            interval=None if interval is None else (significant(interval[0], DIGITS), significant(interval[1], DIGITS)),
            base_ns=_rounded(found.base_ns),
            time_ns=_rounded(found.time_ns),
            noise=_rounded(found.noise),
            counts=_counts(new),
            rates={name: significant(value, DIGITS) for name, value in now.values.items()},
            base_rates={name: significant(value, DIGITS) for name, value in base.values.items()},
            no_roofline=now.absent.get("roofline", ""),
        )

    def _verdict(self, place: int, judged: Judged) -> tuple[Verdict, str]:
        case = self.gate.family.tree.cases[place]
        if case in self.problems:
            return "invalid", self.problems[case]
        if judged.standing == "regressed":
            if self.gate.confirms_case(place, self.outcome, self.alone):
                return "regressed", ""
            if case not in self.alone and any(
                place in node.members for node, _, verdict in self.named if verdict == "regressed"
            ):
                return "regressed", "as its group"
            return "suspect", "not slower when it is measured alone, without the cases before it"
        if judged.standing == "improved":
            return "improved", ""
        if judged.excluded:
            return "unchanged", ""
        if judged.over >= 1 - (1 - OVER) * self.gate.family.tree.case_weight:
            return "suspect", "over the limit, but not for certain"
        if group := next((group_name(node.where) for node, _, _ in self.named if place in node.members), ""):
            return "inconclusive", f"a case of {group}, which got slower; not for certain over its own limit"
        most = 0.0 if judged.interval is None else judged.interval[1]
        slower = (
            f"of up to {format_percent(as_ratio(most))}" if most > self.gate.family.limits.case else "above the limit"
        )
        return "inconclusive", f"no change found, but a slowdown {slower} is not excluded"

    @functools.cached_property
    def named(self) -> list[tuple[Node, Judged, Verdict]]:
        """The groups that are named, with what is said of them."""
        return [
            (
                node,
                judged,
                "regressed" if self.gate.confirms_group(node, judged, self.outcome, self.alone) else "suspect",
            )
            for node, judged in name_groups(self.gate.family.tree, self.outcome)
        ]

    @functools.cached_property
    def groups(self) -> tuple[GroupVerdict, ...]:
        """The verdicts on groups that got slower, the largest change first."""
        found = []
        for node, judged, verdict in self.named:
            assert judged.effect is not None
            assert judged.interval is not None
            low, high = map(as_ratio, judged.interval)
            found.append(
                GroupVerdict(
                    node.where,
                    len(node.members),
                    as_ratio(judged.effect),
                    (low, high),
                    self._cause(node.members),
                    verdict,
                    judged.agreeing,
                    judged.noise,
                    judged.rounds,
                )
            )
        return tuple(found)

    def _cause(self, places: Sequence[int]) -> str:
        """What most of some cases run that they did not run before, or the reverse."""
        added: Counter[str] = Counter()
        for place in places:
            case = self.gate.family.tree.cases[place]
            before, after = self.gate.base[case].operators, self.gate.new[case].operators
            added.update(f"{name} is new" for name in after if name not in before)
            added.update(f"{name} is gone" for name in before if name not in after)
        most = [said for said, count in added.items() if 2 * count > len(places)]
        return some(sorted(most))

    @functools.cached_property
    def metrics(self) -> list[MetricVerdict]:
        """The table as metrics: its summary, the groups that are named, and the worst cases in none of them."""
        limit = self.gate.group_limit
        found = [
            self._figures(f"group {group_name(node.where)}", limit, judged, verdict, self._members(node, judged))
            for node, judged, verdict in self.named
        ]
        tree = self.gate.family.tree
        places = {case: place for place, case in enumerate(tree.cases)}
        worse = [each for each in self.cases if each.verdict in ("regressed", "suspect") and each.base_ns is not None]
        for each in [each for each in worse if not self._is_told_by_group(places[each.id])][:SHOWN]:
            place = places[each.id]
            remark = "; ".join(filter(None, (each.reason, self._cause((place,)))))
            judged = self.outcome.cases[place]
            found.append(self._figures(each.metric, self.gate.case_limit, judged, each.verdict, remark))
        return [self._summary(bool(found)), *found]

    def _is_told_by_group(self, place: int) -> bool:
        """Whether a group that fails says of a case how much slower it is."""
        own = self.outcome.cases[place].interval
        return any(
            verdict == "regressed"
            and place in node.members
            and (own is None or judged.interval is None or own[0] <= judged.interval[1])
            for node, judged, verdict in self.named
        )

    def _members(self, node: Node, judged: Judged) -> str:
        """What is said of a group beside its change."""
        agree = f"typical of {plural(len(node.members), 'case')}, {judged.agreeing} of them slower for themselves"
        return "; ".join(filter(None, (agree, self._cause(node.members))))

    def _figures(self, name: str, limit: Limit, judged: Judged, verdict: Verdict, remark: str) -> MetricVerdict:
        tree = self.gate.family.tree
        members = next((node.members for node, each, _ in self.named if each is judged), ())
        ids = [tree.cases[place] for place in members] or [name.removeprefix("case ")]
        assert judged.effect is not None
        assert judged.interval is not None
        time_ns = _mean({case: self.times[case][1] for case in ids if case in self.times})
        shown = with_change(_metric(name, limit), time_ns, judged.effect, judged.interval)
        effect = as_ratio(judged.effect)
        shown = replace(
            shown,
            verdict=verdict,
            rounds=judged.rounds,
            times_over=effect / limit.relative if verdict == "regressed" and limit.relative else None,
            pairs=tuple(_together(each.cases, ids) for each in self.rounds if each.cases and each.cases.has(ids)),
        )
        return reasons.with_reason(shown, reasons.interval(shown, reasons.name_rounds(judged.rounds)), remark)

    def _summary(self, told: bool) -> MetricVerdict:
        """All cases together: their number by verdict; `told` says whether something worse is told beside it."""
        compared = [each for each in self.cases if each.verdict != "new"]
        counts = Counter(each.verdict for each in compared)
        open_ones = counts["inconclusive"] + counts["suspect"] * (not told)
        verdict: Verdict = "unchanged"
        if counts["improved"] and not told:
            verdict = "improved"
        if open_ones:
            verdict = "inconclusive"
        if counts["invalid"]:
            verdict = "invalid"
        times = [(each.base_ns, each.time_ns) for each in compared if each.base_ns and each.time_ns]
        logs = np.log(np.array(times, np.float64).reshape(-1, 2)).mean(axis=0) if times else None
        said = [f"{number} {word}" for word, number in sorted(counts.items())]
        worst = next((each for each in self.cases if each.effect is not None and each.verdict == verdict), None)
        reason = f"{plural(len(compared), 'case')}: {', '.join(said)}"
        if verdict == "inconclusive":
            noisiest = max(compared, key=lambda each: (each.verdict == verdict, (each.interval or (0.0, 0.0))[1]))
            reason += f"; {noisiest.reason} ({noisiest.id})"
        elif worst is not None and worst.interval is not None and verdict != "unchanged":
            reason += f"; largest change {format_percent(worst.effect or 0.0)} ({worst.id})"
        if verdict == "invalid":
            reason += f"; {some([f'{case} ({why})' for case, why in self.problems.items()])}"
        return replace(
            _metric(CASE_TIME, self.gate.case_limit),
            base=None if logs is None else math.exp(logs[0]),
            new=None if logs is None else math.exp(logs[1]),
            effect=None if logs is None else math.expm1(logs[1] - logs[0]),
            verdict=verdict,
            reason=reason,
            rounds=len(self.rounds),
        )


def _together(timed: TimedCases, ids: Sequence[str]) -> tuple[float, float]:
    """Nanoseconds of both sides in a round: the geometric mean of some cases, and that with their typical change."""
    base, head = (np.log([side[case] for case in ids]) for side in (timed.base, timed.head))
    mean = float(base.mean())
    return math.exp(mean), math.exp(mean + float(typical((head - base)[None])[0]))


def _metric(name: str, limit: Limit) -> MetricVerdict:
    return MetricVerdict(name, "timed", "ns", "lower", None, None, limit=limit, evidence="paired")


def _rounded(value: float | None) -> float | None:
    return None if value is None else significant(value, DIGITS)


def _counts(case: Case) -> dict[str, int]:
    return {"ops": case.ops, "kernels": case.kernels, "allocations": case.allocations}
