"""The search between two environments: which of the distributions that differ made a test slower."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_perfdl.analysis.events.source_lines import FRAME
from pytest_perfdl.bisect.answer import Effect, Status
from pytest_perfdl.bisect.culprit_set import Chosen, culprit_set
from pytest_perfdl.bisect.ends import compared_ends, effect_in_words, is_counted, is_slower, sign_of, worse_count
from pytest_perfdl.bisect.environment_answer import EnvironmentAnswer
from pytest_perfdl.bisect.measurements import Measurement, Request
from pytest_perfdl.bisect.mixtures import Environments, owners
from pytest_perfdl.bisect.posterior import odds_of_rounds
from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.model.units import format_percent
from pytest_perfdl.stats.evidence import Estimate

DEFAULT_TIME = "step_time"
TOLD = math.log(19)
"""Log odds from which rounds tell whether a mixture is slow."""
MOST = 3
"""Most measurements of one mixture, as long as they leave that open."""
MOST_SUSPECTS = 2
"""Distributions that are tried alone first, since causes lie in their files."""
OLD, NEW = "old", "new"
"""Names of the two environments in a `Request`; a mixture's is the names that it has of the new one."""


class Measure(Protocol):
    """Measures mixtures: `mixture_child.MixtureChild`, or a simulation of it."""

    def measure(self, request: Request, chosen: Chosen | None, metric: str, limit: float) -> Measurement:
        """Measure the environment with these distributions of the new one; `None` for the new one itself."""
        ...


@dataclass
class EnvironmentSearch:
    """One search.

    Times are compared first, since they are what a user asks about. Where counts differ too, they decide which mixtures
    are slow, exactly and with one process each; the comparison at the end shows whether they explain the time.

    Parameters
    ----------
    metric
        By its general or full name; `None` for the step's time, or counts where only these got worse.
    limit
        Smallest slowdown that is searched for by time.
    tell
        Called before every measurement with what is measured and how many distributions are left.
    keep
        Called with every measurement.
    """

    environments: Environments
    measure: Measure
    metric: str | None = None
    limit: float = 0.015
    tell: Callable[[str, bool], None] = lambda *_: None
    keep: Callable[[Measurement], None] = lambda _: None
    _built: set[Chosen] = field(default_factory=set)
    _skipped: dict[Chosen, str] = field(default_factory=dict)
    _seconds: float = 0.0

    def run(self) -> EnvironmentAnswer:
        """Search until the answer is known.

        Raises
        ------
        CheckoutError
            Distributions of the two cannot be mixed.
        RunFailed
            The new environment cannot be compared with the old one, or the test has no such metric.
        """
        differing = self.environments.differing()
        if not differing:
            reason = "both environments have the same distributions, with the same files"
            return self._answer("no difference", self.metric or DEFAULT_TIME, reason, {})
        if self.metric is not None and is_counted(self.metric):
            ends = self._end(timed=False)
            count = worse_count(ends, self.metric)
            return self._nothing_counted(ends, differing) if count is None else self._by_counts(ends, count, differing)
        return self._by_time(differing)

    def _by_time(self, differing: Mapping[str, tuple[str, str]]) -> EnvironmentAnswer:
        wanted = self.metric or DEFAULT_TIME
        ends, metric, pooled = compared_ends(lambda: self._end(timed=True, metric=wanted), wanted, self.limit)
        whole = Effect.of_rounds(pooled, sign_of(metric))
        count = worse_count(ends, None)
        if not is_slower(pooled, self.limit):
            if count is not None and self.metric is None:
                answer = self._by_counts(ends, count, differing)
                return replace(answer, notes=(*answer.notes, f"{metric} did not get slower: {effect_in_words(whole)}"))
            faster = Estimate(pooled).interval[1] < 0
            how = "is faster than" if faster else "is not measurably slower than"
            reason = f"the new environment {how} the old one: {metric} {effect_in_words(whole)}"
            answer = self._answer("faster" if faster else "no difference", metric, reason, differing)
            return replace(answer, whole=whole, effect=whole)
        effect = Estimate(pooled).center
        self._rounds[frozenset(differing)] = list(pooled)
        self._proofs[frozenset(differing)] = ends
        if count is not None and self.metric is None and len(differing) > 1:
            search = culprit_set(list(differing), self._counting(ends, count), self._suspects(ends, differing))
            answer = self._proved(search.culprits, search.is_smallest, metric, effect, whole, differing)
            explained = answer.effect is not None and math.log1p(answer.effect.ratio) * sign_of(metric) > effect / 2
            if explained and answer.status == "found":
                return answer
        search = culprit_set(list(differing), self._timing(metric, effect), self._suspects(ends, differing))
        return self._proved(search.culprits, search.is_smallest, metric, effect, whole, differing)

    def _by_counts(self, ends: Measurement, metric: str, differing: Mapping[str, tuple[str, str]]) -> EnvironmentAnswer:
        search = culprit_set(list(differing), self._counting(ends, metric), self._suspects(ends, differing))
        whole = Effect.of_counts(ends.base_counts[metric], ends.counts[metric])
        proof = ends
        if len(search.culprits) < len(differing):
            proof = self._one(search.culprits, timed=False, metric=metric, limit=0.0, against=OLD)
        status: Status = "found" if search.is_smallest else "range"
        answer = self._answer(status, metric, _reason(search.culprits, differing, status), differing)
        effect = whole if proof.skipped else Effect.of_counts(ends.base_counts[metric], proof.counts[metric])
        return replace(answer, culprits=_in_order(search.culprits, differing), whole=whole, effect=effect, proof=proof)

    def _counting(self, ends: Measurement, metric: str) -> Callable[[Chosen], bool | None]:
        """A trial by an exact count: most of the change is there, or not."""
        old, new = ends.base_counts[metric], ends.counts[metric]

        def trial(chosen: Chosen) -> bool | None:
            made = self._one(chosen, timed=False, metric=metric, limit=0.0)
            if made.skipped or metric not in made.counts:
                return None
            return made.counts[metric] - old > (new - old) / 2

        return trial

    def _timing(self, metric: str, effect: float) -> Callable[[Chosen], bool | None]:
        """A trial by rounds against the old environment: more than half of the slowdown is there, or not."""

        def trial(chosen: Chosen) -> bool | None:
            seen: list[float] = []
            for _ in range(MOST):
                made = self._one(chosen, timed=True, metric=metric, limit=math.expm1(effect / 2), against=OLD)
                if made.skipped:
                    return None
                seen += made.differences(metric)
                self._rounds[chosen] += made.differences(metric)
                odds = odds_of_rounds(seen, effect)
                if abs(odds) >= TOLD:
                    return odds > 0
            return None

        return trial

    def _proved(
        self,
        culprits: Chosen,
        is_smallest: bool,
        metric: str,
        whole_effect: float,
        whole: Effect,
        differing: Mapping[str, tuple[str, str]],
    ) -> EnvironmentAnswer:
        """With the comparison of the culprits alone with the old environment."""
        earlier = self._proofs.get(culprits)
        proof = earlier or self._one(
            culprits, timed=True, metric=metric, limit=math.expm1(whole_effect / 2), against=OLD
        )
        differences = self._rounds.get(culprits) or list(proof.differences(metric))
        status: Status = "found" if is_smallest and differences else "range"
        answer = self._answer(status, metric, _reason(culprits, differing, status), differing)
        answer = replace(answer, culprits=_in_order(culprits, differing), whole=whole, effect=whole, proof=proof)
        if not differences:
            return replace(answer, notes=(f"they could not be measured alone: {proof.skipped}",))
        estimate = Estimate(tuple(differences))
        rest = whole_effect - estimate.center
        notes = list(answer.notes)
        if estimate.interval[1] < whole_effect and rest > whole_effect / 4:
            share = format_percent(math.expm1(sign_of(metric) * rest))
            notes.append(f"other distributions have a part too: {share} of the change is not of these")
        return replace(answer, effect=Effect.of_rounds(differences, sign_of(metric)), notes=tuple(notes))

    def _suspects(self, ends: Measurement, differing: Mapping[str, tuple[str, str]]) -> list[str]:
        """Distributions that differ and have files that causes lie in."""
        files: dict[str, float] = defaultdict(float)
        for cause in ends.blame:
            if match := FRAME.fullmatch(str(cause.get("line", ""))):
                files[match["path"]] += max(float(cause.get("delta_ns") or 0.0), 0.0)
        found = owners(self.environments.new, files) if files else []
        return [name for name in found if name in differing][:MOST_SUSPECTS]

    # Measurements

    def __post_init__(self) -> None:
        self._rounds: dict[Chosen, list[float]] = defaultdict(list)
        self._proofs: dict[Chosen, Measurement] = {}

    def _end(self, *, timed: bool, metric: str = DEFAULT_TIME) -> Measurement:
        made = self._measured(Request(NEW, OLD, timed), None, metric, self.limit)
        if made.skipped:
            raise RunFailed(f"the new environment cannot be compared with the old one: {made.skipped}")
        return made

    def _one(
        self, chosen: Chosen, *, timed: bool, metric: str, limit: float, against: str | None = None
    ) -> Measurement:
        self._built.add(chosen)
        made = self._measured(Request(",".join(sorted(chosen)), against, timed), chosen, metric, limit)
        if made.skipped:
            self._skipped[chosen] = made.skipped
        elif timed:
            self._proofs[chosen] = made
        return made

    def _measured(self, request: Request, chosen: Chosen | None, metric: str, limit: float) -> Measurement:
        self.tell(request.commit, request.timed)
        made = self.measure.measure(request, chosen, metric, limit)
        self._seconds += made.seconds
        self.keep(made)
        return made

    def _nothing_counted(self, ends: Measurement, differing: Mapping[str, tuple[str, str]]) -> EnvironmentAnswer:
        assert self.metric is not None
        if not any(self.metric in (name, name.rpartition(".")[2]) for name in ends.counts):
            raise RunFailed(f"the test has no metric {self.metric}: it has {', '.join(sorted(ends.counts))}")
        reason = f"{self.metric} is not higher in the new environment than in the old one"
        return self._answer("no difference", self.metric, reason, differing)

    def _answer(
        self, status: Status, metric: str, reason: str, differing: Mapping[str, tuple[str, str]]
    ) -> EnvironmentAnswer:
        skipped = tuple((",".join(sorted(chosen)), why) for chosen, why in self._skipped.items())
        return EnvironmentAnswer(
            status,
            self.environments,
            differing,
            metric,
            reason,
            built=len(self._built),
            skipped=skipped,
            seconds=self._seconds,
        )


def _in_order(culprits: Chosen, differing: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    return tuple(name for name in differing if name in culprits)


def _reason(culprits: Chosen, differing: Mapping[str, tuple[str, str]], status: Status) -> str:
    names = ", ".join(_in_order(culprits, differing))
    of = f", of {len(differing)} distributions that differ" if len(differing) > 1 else ", the only difference"
    if status == "found":
        return f"{names} made the test slower{of}"
    return f"the change is in {names}{of}: smaller sets could not be measured"
