"""The search for a commit: the ends first, then one after the other, then the one that was found against its parent."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pytest_perfdl.model.metrics import METRICS, general
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.runs.bisect.answers import Answer, CommitAnswer, Effect, Status
from pytest_perfdl.runs.bisect.history import Commit, History
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.runs.bisect.posterior import EXACT, Blamed, Posterior, odds_of_rounds, uniform
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

MOST = 8
"""Most measurements of one commit between the ends."""
_CLEARLY = math.log(19)
"""Log odds from which a commit is called slow or not slow."""


@dataclass
class CommitSearch:
    """One search.

    Parameters
    ----------
    measure
        Measures a commit.
    prior
        The probability of the commits 1 to n, given where the causes of the whole change are.
    undone
        A later commit at which the changes of a commit are not there, if there is one: it is measured before that
        commit is named.
    done
        Measurements of earlier runs of the same search, which are not made again.
    keep
        Called with every new measurement.
    tell
        Called before every new measurement.
    """

    history: History
    measure: Measure
    options: Options = field(default_factory=Options)
    prior: Callable[[Blamed], Sequence[float]] | None = None
    undone: Callable[[int], int | None] = lambda _: None
    done: Sequence[Measurement] = ()
    keep: Callable[[Measurement], None] = lambda _: None
    tell: Callable[[Progress], None] = lambda _: None

    def __post_init__(self) -> None:
        good, bad = self.history.good, self.history.bad
        self._measurements = Measurements(self.measure, self.done, self.keep, self.tell, one_machine=True)
        counted, timed = Request(bad.sha, good.sha), Request(bad.sha, good.sha, timed=True)
        self._ends = Ends(good.name, bad.name, counted, timed, self._measurements)
        self._skipped: dict[int, str] = {}
        self._reverts: list[str] = []

    def run(self) -> CommitAnswer:
        """Search until the answer is known.

        Raises
        ------
        RunFailed
            An end cannot be measured, or the test has no such metric.
        KeyboardInterrupt
            All measurements that had ended were kept.
        """
        return replace(self._run(), seconds=self._measurements.seconds)

    def _run(self) -> CommitAnswer:
        wanted = self.options.metric
        if wanted is None or is_counted(wanted):
            ends = self._ends.compare(self._ends.counted, DEFAULT_TIME, self.options.limit)
            if metric := worse_count(ends, wanted):
                return self._search_by_counts(ends, metric)
            if wanted is not None:
                return self._nothing(self._ends.not_higher(ends, wanted))
        return self._search_by_time(wanted or DEFAULT_TIME)

    # By counts

    def _search_by_counts(self, ends: Measurement, metric: str) -> CommitAnswer:
        good, bad = ends.base_counts.get(metric, 0.0), ends.counts[metric]
        values = {0: good, self.history.last: bad}
        posterior = self._start(ends)
        while (number := self._next(posterior)) is not None:
            if self._is_spent:
                break
            found = self._one(Request(self.history.commits[number].sha), number, metric, 0.0, posterior)
            if found is not None and metric not in found.counts:
                self._skipped[number] = f"the test has no {metric} there"
            elif found is not None:
                values[number] = found.counts[metric]
                # Most of the change is behind it, or before it.
                is_worse = values[number] - good > (bad - good) / 2
                posterior = self._update(posterior, number, EXACT if is_worse else -EXACT)
            posterior = replace(posterior, skipped=frozenset(self._skipped))
        return self._counted_answer(posterior, metric, values, ends)

    def _counted_answer(
        self, posterior: Posterior, metric: str, values: dict[int, float], ends: Measurement
    ) -> CommitAnswer:
        last = self.history.last
        whole = Effect.of_counts(values[0], values[last])
        answer = self._answer(posterior, metric, whole)
        if answer.culprit is None:
            return replace(answer, effect=whole, comparison=ends)
        number = posterior.best.first
        base, new = values[number - 1], values[number]
        # Only rounds locate the lines of a change, and what it costs is of interest too.
        proof = self._proof(number, DEFAULT_TIME, self.options.limit)
        timed = [name for name in proof.rounds if general(name) == DEFAULT_TIME]
        times = [(name, each) for name in timed if (each := self._measurements.effect(proof.request, name))]
        notes = [*answer.notes]
        rest = (values[last] - values[0]) - (new - base)
        if rest:
            unit = METRICS[general(metric)].unit
            notes.append(
                f"other commits change {metric} too: between the ends it went from "
                f"{format_quantity(values[0], unit)} to {format_quantity(values[last], unit)}"
            )
        between = {value for value in values.values() if value not in (base, new, values[0], values[last])}
        if between and not rest:
            notes.append(f"{metric} had other values in between: {plural(len(between), 'value')}")
        return replace(
            answer,
            effect=Effect.of_counts(base, new),
            values=(base, new),
            comparison=proof if not proof.skipped else ends,
            time=max(times, key=lambda each: each[1].ratio, default=None),
            notes=tuple(notes),
            commands=self._commands(number, several=bool(rest)),
        )

    # By time

    def _search_by_time(self, wanted: str) -> CommitAnswer:
        limit = self.options.limit
        ends, metric, pooled = self._ends.compare_times(wanted, limit)
        if not is_slower(pooled, limit):
            return self._nothing(self._ends.not_slower(metric, pooled))
        whole = Effect.of_rounds(pooled, sign_of(metric))
        effect = Estimate(pooled).center
        posterior = self._start(ends)
        seen: dict[int, list[float]] = defaultdict(list)
        times: dict[int, int] = defaultdict(int)
        while (number := self._next(posterior, [each for each, count in times.items() if count >= MOST])) is not None:
            if self._is_spent:
                break
            request = Request(self.history.commits[number].sha, self.history.good.sha, timed=True)
            measured = self._one(request, number, metric, math.expm1(effect / 2), posterior)
            if measured is not None and not measured.differences(metric):
                self._skipped[number] = f"the test has no {metric} there"
            elif measured is not None:
                times[number] += 1
                seen[number] += measured.differences(metric)
                posterior = self._update(posterior, number, odds_of_rounds(seen[number], effect))
            posterior = replace(posterior, skipped=frozenset(self._skipped))
        answer = replace(self._answer(posterior, metric, whole), effect=whole, comparison=ends)
        return answer if answer.culprit is None else self._prove(answer, posterior, metric, effect)

    def _prove(self, answer: CommitAnswer, posterior: Posterior, metric: str, whole: float) -> CommitAnswer:
        """With the comparison of the commit with its parent; a range if that shows no slowdown."""
        number = posterior.best.first
        proof = self._proof(number, metric, math.expm1(whole / 2))
        effect = self._measurements.effect(proof.request, metric)
        if effect is None:
            reason = f"{answer.candidates[0].name} could not be compared with its parent: {proof.skipped}"
            return replace(answer, status="range", reason=reason)
        differences = self._measurements.differences(proof.request, metric)
        if Estimate(differences).interval[0] <= 0:
            likely = tuple(self.history.commits[k] for each in posterior.likely for k in each.commits)
            reason = (
                f"{answer.candidates[0].name} is most likely, but no slower than its parent "
                f"({effect_in_words(effect)}): several commits may have small effects"
            )
            return replace(answer, status="range", reason=reason, candidates=likely)
        rest = rest_of(whole, differences, metric)
        several = [f"it is not the only one: {rest} of the change comes from other commits"] if rest else []
        return replace(
            answer,
            effect=effect,
            comparison=proof,
            notes=(*answer.notes, *several),
            commands=self._commands(number, several=bool(rest)),
        )

    # What both have in common

    def _next(self, posterior: Posterior, exhausted: Sequence[int] = ()) -> int | None:
        """The commit to measure next; `None` when the answer is known, or nothing that is left would tell it."""
        if not posterior.is_sure:
            return posterior.next_commit(exhausted)
        later = self.undone(posterior.best.last) if posterior.best.first == posterior.best.last else None
        return None if later in (*posterior.log_odds, *self._skipped) else later

    def _update(self, posterior: Posterior, number: int, odds: float) -> Posterior:
        """The posterior with another measured commit; where that shows a revert, only of the commits after it."""
        if posterior.is_sure and odds < -_CLEARLY:
            first, name = self.history.commits[posterior.best.last].name, self.history.commits[number].name
            self._reverts.append(f"there was an earlier slowdown: {first} is slow too, and {name} no longer")
            return posterior.after(number)
        return replace(posterior, log_odds={**posterior.log_odds, number: odds})

    def _one(
        self, request: Request, number: int, metric: str, limit: float, posterior: Posterior
    ) -> Measurement | None:
        """Measure a commit between the ends; `None` if that is not possible, which is noted."""
        made = self._measure_commit(request, self.history.commits[number], metric, limit, posterior)
        if made.skipped:
            self._skipped[number] = made.skipped
            return None
        return made

    def _proof(self, number: int, metric: str, limit: float) -> Measurement:
        """Compare a commit with its parent in rounds, if that was not done on the way."""
        commit, parent = self.history.commits[number], self.history.commits[number - 1]
        request = Request(commit.sha, parent.sha, timed=True)
        return self._measurements.last(request) or self._measure_commit(request, commit, metric, limit, None)

    def _measure_commit(
        self, request: Request, commit: Commit, metric: str, limit: float, posterior: Posterior | None
    ) -> Measurement:
        what = f"{commit.name} against {request.against[:9]}" if request.against else commit.name
        candidates = None if posterior is None else sum(len(each.commits) for each in posterior.likely)
        progress = Progress(what, request.timed, candidates, self._seconds_left(request, posterior))
        return self._measurements.make(request, metric, limit, progress)

    def _seconds_left(self, request: Request, posterior: Posterior | None) -> float | None:
        """About how long the rest takes: as many measurements as the posterior has bits, and the comparison."""
        alike = [
            each.seconds
            for asked, made in self._measurements.made.items()
            for each in made
            if (asked.timed, asked.against is None) == (request.timed, request.against is None) and not each.skipped
        ]
        if posterior is None or not alike:
            return None
        bits = -sum(each * math.log2(each) for each in posterior.probabilities if each > 0)
        return (max(1, math.ceil(bits)) + 1) * sum(alike) / len(alike)

    def _start(self, ends: Measurement) -> Posterior:
        prior: Iterable[float] = uniform(self.history.last)
        if self.prior is not None:
            prior = self.prior(Blamed.of(ends.blame, ends.source_diffs))
        return Posterior(tuple(prior))

    @property
    def _is_spent(self) -> bool:
        return self._measurements.seconds >= self.options.budget

    def _answer(self, posterior: Posterior, metric: str, whole: Effect) -> CommitAnswer:
        """The commit or the range that the posterior names, without the comparison of the commit with its parent."""
        best = posterior.best
        if posterior.is_sure:
            candidates, probability = [self.history.commits[k] for k in best.commits], best.probability
        else:
            likely = posterior.likely
            candidates = [self.history.commits[k] for each in likely for k in each.commits]
            probability = sum(each.probability for each in likely)
        status: Status = "found" if posterior.is_sure and len(candidates) == 1 else "range"
        if status == "found":
            reason = f"{candidates[0].name} is the first bad commit of {self.history.last}"
        elif posterior.is_sure:
            reason = f"it is one of these {len(candidates)} commits: those before the last cannot be measured"
        elif self._is_spent:
            reason = f"it is one of these {len(candidates)} commits: the time budget has ended (--budget)"
        else:
            reason = f"it is one of these {len(candidates)} commits: more rounds do not separate them"
        notes = (*self.history.notes, *self._reverts)
        answer = self._nothing(Answer(status=status, metric=metric, reason=reason, whole=whole))
        return replace(answer, effect=None, candidates=tuple(candidates), probability=probability, notes=notes)

    def _nothing(self, found: Answer) -> CommitAnswer:
        return CommitAnswer(
            status=found.status,
            history=self.history,
            metric=found.metric,
            reason=found.reason,
            whole=found.whole,
            effect=found.whole,
            measured=self._measured_commits,
            skipped=self._skips,
            notes=self.history.notes,
        )

    @property
    def _measured_commits(self) -> tuple[Commit, ...]:
        measured = {request.commit for request in [*self._measurements.made] if self._measurements.last(request)}
        return tuple(each for each in self.history.commits if each.sha in measured or each == self.history.good)

    @property
    def _skips(self) -> tuple[tuple[Commit, str], ...]:
        return tuple((self.history.commits[number], why) for number, why in sorted(self._skipped.items()))

    def _commands(self, number: int, *, several: bool) -> tuple[str, ...]:
        """Arguments of `perfdl bisect` without the test: the proof again, then the searches for what remains."""
        commits = self.history.commits
        proof = f"{commits[number - 1].sha} {_revision(commits[number])}".strip()
        if not several:
            return (proof,)
        before = [] if number == 1 else [f"{commits[0].sha} {commits[number - 1].sha}"]
        after = [] if number == self.history.last else [f"{commits[number].sha} {_revision(commits[-1])}".strip()]
        return (proof, *before, *after)


def _revision(commit: Commit) -> str:
    return "" if commit.is_working_tree else commit.sha
