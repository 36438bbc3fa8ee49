"""The search between two environments: which of the distributions that differ made a test slower."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pytest_perfdl.analysis.events.origins import FRAME
from pytest_perfdl.runs.bisect.answers import Answer, Effect, EnvironmentAnswer, Status
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.runs.bisect.mixtures import NEW, OLD, Environments, owners
from pytest_perfdl.runs.bisect.posterior import Chosen, Trial, culprit_set, odds_of_rounds
from pytest_perfdl.runs.bisect.search import (
    DEFAULT_TIME,
    Ends,
    Measure,
    Measurements,
    Options,
    Progress,
    effect_in_words,
    is_counted,
    is_slower,
    rest_of,
    sign_of,
    worse_count,
)
from pytest_perfdl.stats.evidence import Estimate

TOLD = math.log(19)
"""Log odds from which rounds tell whether a mixture is slow."""
MOST = 3
"""Most measurements of one mixture, as long as they leave that open."""
MOST_NAMES = 3
"""Distributions that are named while a mixture is measured."""
MOST_SUSPECTS = 2
"""Distributions that are tried alone first, since causes lie in their files."""


@dataclass
class EnvironmentSearch:
    """One search.

    Times are compared first, since they are what a user asks about. Where counts differ too, they decide which mixtures
    are slow, exactly and with one process each; the comparison at the end shows whether they explain the time.

    Parameters
    ----------
    measure
        Measures mixtures, which a request names by the distributions that they have of the new environment.
    options
        The budget has no meaning.
    keep
        Called with every measurement.
    tell
        Called before every measurement.
    """

    environments: Environments
    measure: Measure
    options: Options = field(default_factory=Options)
    keep: Callable[[Measurement], None] = lambda _: None
    tell: Callable[[Progress], None] = lambda _: None

    def __post_init__(self) -> None:
        self._measurements = Measurements(self.measure, (), self.keep, self.tell, one_machine=False)
        counted, timed = Request(NEW, OLD), Request(NEW, OLD, timed=True)
        self._ends = Ends("the old one", "the new environment", counted, timed, self._measurements)
        self._differing = self.environments.differing()
        self._built: set[Chosen] = set()
        self._skipped: dict[Chosen, str] = {}

    def run(self) -> EnvironmentAnswer:
        """Search until the answer is known.

        Raises
        ------
        CheckoutError
            Distributions of the two cannot be mixed.
        RunFailed
            The new environment cannot be compared with the old one, or the test has no such metric.
        """
        return replace(self._run(), seconds=self._measurements.seconds)

    def _run(self) -> EnvironmentAnswer:
        wanted, limit = self.options.metric, self.options.limit
        if not self._differing:
            reason = "both environments have the same distributions, with the same files"
            return self._answer("no difference", wanted or DEFAULT_TIME, reason)
        if wanted is not None and is_counted(wanted):
            ends = self._ends.compare(self._ends.counted, DEFAULT_TIME, limit)
            if count := worse_count(ends, wanted):
                return self._search_by_counts(ends, count)
            return self._nothing(self._ends.not_higher(ends, wanted))
        return self._search_by_time(wanted or DEFAULT_TIME, limit)

    def _search_by_time(self, wanted: str, limit: float) -> EnvironmentAnswer:
        ends, metric, pooled = self._ends.compare_times(wanted, limit)
        whole = Effect.of_rounds(pooled, sign_of(metric))
        count = worse_count(ends, None) if self.options.metric is None else None
        if not is_slower(pooled, limit):
            if count is None:
                return self._nothing(self._ends.not_slower(metric, pooled))
            answer = self._search_by_counts(ends, count)
            return replace(answer, notes=(*answer.notes, f"{metric} did not get slower: {effect_in_words(whole)}"))
        effect = Estimate(pooled).center
        if count is not None and len(self._differing) > 1:
            answer = self._prove(self._counting(ends, count), ends, metric, effect, whole)
            explained = answer.effect is not None and math.log1p(answer.effect.ratio) * sign_of(metric) > effect / 2
            if explained and answer.status == "found":
                return answer
        return self._prove(self._timing(metric, effect), ends, metric, effect, whole)

    def _search_by_counts(self, ends: Measurement, metric: str) -> EnvironmentAnswer:
        search = culprit_set([*self._differing], self._counting(ends, metric), self._suspects(ends))
        whole = Effect.of_counts(ends.base_counts[metric], ends.counts[metric])
        proof = ends
        if len(search.culprits) < len(self._differing):
            proof = self._one(search.culprits, metric, 0.0, against=OLD)
        effect = whole if proof.skipped else Effect.of_counts(ends.base_counts[metric], proof.counts[metric])
        answer = self._answer_found(search.culprits, "found" if search.is_smallest else "range", metric)
        return replace(answer, whole=whole, effect=effect, comparison=proof)

    def _counting(self, ends: Measurement, metric: str) -> Trial:
        """A trial by an exact count: most of the change is there, or not."""
        old, new = ends.base_counts[metric], ends.counts[metric]

        def trial(chosen: Chosen) -> bool | None:
            made = self._one(chosen, metric, 0.0)
            if made.skipped or metric not in made.counts:
                return None
            return made.counts[metric] - old > (new - old) / 2

        return trial

    def _timing(self, metric: str, effect: float) -> Trial:
        """A trial by rounds against the old environment: more than half of the slowdown is there, or not."""

        def trial(chosen: Chosen) -> bool | None:
            seen: list[float] = []
            for _ in range(MOST):
                made = self._one(chosen, metric, math.expm1(effect / 2), against=OLD, timed=True)
                if made.skipped:
                    return None
                seen += made.differences(metric)
                odds = odds_of_rounds(seen, effect)
                if abs(odds) >= TOLD:
                    return odds > 0
            return None

        return trial

    def _prove(
        self, trial: Trial, ends: Measurement, metric: str, whole_effect: float, whole: Effect
    ) -> EnvironmentAnswer:
        """Search by trials, then compare the culprits alone with the old environment."""
        search = culprit_set([*self._differing], trial, self._suspects(ends))
        request = self._request(search.culprits, OLD, timed=True)
        proof = self._measurements.last(request) or self._one(
            search.culprits, metric, math.expm1(whole_effect / 2), against=OLD, timed=True
        )
        differences = self._measurements.differences(request, metric)
        status: Status = "found" if search.is_smallest and differences else "range"
        answer = replace(
            self._answer_found(search.culprits, status, metric), whole=whole, effect=whole, comparison=proof
        )
        if not differences:
            return replace(answer, notes=(f"they could not be measured alone: {proof.skipped}",))
        rest = rest_of(whole_effect, differences, metric)
        others = f"other distributions have a part too: {rest} of the change is not of these"
        return replace(
            answer, effect=Effect.of_rounds(differences, sign_of(metric)), notes=(others,) if rest else answer.notes
        )

    def _suspects(self, ends: Measurement) -> list[str]:
        """Distributions that differ and have files that causes lie in."""
        files: dict[str, float] = defaultdict(float)
        for cause in ends.blame:
            if match := FRAME.fullmatch(str(cause.get("line", ""))):
                files[match["path"]] += max(float(cause.get("delta_ns") or 0.0), 0.0)
        found = owners(self.environments.new, files) if files else []
        return [name for name in found if name in self._differing][:MOST_SUSPECTS]

    def _one(
        self, chosen: Chosen, metric: str, limit: float, *, against: str | None = None, timed: bool = False
    ) -> Measurement:
        self._built.add(chosen)
        names = ", ".join(sorted(chosen)) if len(chosen) <= MOST_NAMES else ""
        what = f"the old environment with the new {names}"
        if not names:
            what = f"the old environment with {len(chosen)} packages of the new one"
        made = self._measurements.make(
            self._request(chosen, against, timed=timed), metric, limit, Progress(what, timed)
        )
        if made.skipped:
            self._skipped[chosen] = made.skipped
        return made

    def _request(self, chosen: Chosen, against: str | None, *, timed: bool) -> Request:
        names = NEW if chosen == self._differing.keys() else ",".join(sorted(chosen))
        return Request(names, against, timed)

    def _answer_found(self, culprits: Chosen, status: Status, metric: str) -> EnvironmentAnswer:
        names = tuple(name for name in self._differing if name in culprits)
        number = len(self._differing)
        of = f", of {number} distributions that differ" if number > 1 else ", the only difference"
        reason = f"the change is in {', '.join(names)}{of}: smaller sets could not be measured"
        if status == "found":
            reason = f"{', '.join(names)} made the test slower{of}"
        return replace(self._answer(status, metric, reason), culprits=names)

    def _nothing(self, found: Answer) -> EnvironmentAnswer:
        return replace(self._answer(found.status, found.metric, found.reason), whole=found.whole, effect=found.whole)

    def _answer(self, status: Status, metric: str, reason: str) -> EnvironmentAnswer:
        return EnvironmentAnswer(
            status=status,
            environments=self.environments,
            differing=self._differing,
            metric=metric,
            reason=reason,
            built=len(self._built),
            skipped=tuple((",".join(sorted(chosen)), why) for chosen, why in self._skipped.items()),
        )
