"""The search: the ends first, then one commit after the other, then the commit that was found against its parent."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_perfdl.bisect.answer import Answer, Effect, Status
from pytest_perfdl.bisect.ends import compared_ends, effect_in_words, is_counted, is_slower, sign_of, worse_count
from pytest_perfdl.bisect.history import Commit, History
from pytest_perfdl.bisect.measurements import Measurement, Request
from pytest_perfdl.bisect.posterior import EXACT, Posterior, odds_of_rounds, uniform
from pytest_perfdl.bisect.prior import Blamed
from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.model.metrics import METRICS, general
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.stats.evidence import Estimate

DEFAULT_TIME = "step_time"
LIMIT = 0.015
"""Smallest slowdown that is searched for by time."""
MOST = 8
"""Most measurements of one commit between the ends."""
_CLEARLY = math.log(19)
"""Log odds from which a commit is called slow or not slow."""
_REST = 0.25
"""Share of the whole effect that has to remain for several culprits to be reported."""


class Measure(Protocol):
    """Measures a commit: `child.Child`, or a simulation of it."""

    def measure(self, request: Request, metric: str, limit: float) -> Measurement:
        """Measure a commit; `limit` is the slowdown that rounds have to tell from none."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """How to search."""

    metric: str | None = None
    """By its general or full name; `None` for counts where they differ, else `step_time`."""
    limit: float = LIMIT
    """Smallest slowdown that is searched for by time."""
    budget: float = math.inf
    """Seconds of measurements, from which on no commit is measured any more."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a search is about to measure."""

    request: Request
    commit: Commit
    posterior: Posterior | None
    """`None` for the ends, and for the comparison at the end."""
    seconds: float | None
    """Estimated time of all measurements that are left; `None` if not known yet."""


@dataclass
class Search:
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
        self._earlier: dict[Request, list[Measurement]] = defaultdict(list)
        for each in self.done:
            self._earlier[each.request].append(each)
        self._made: dict[Request, list[Measurement]] = defaultdict(list)
        self._skipped: dict[int, str] = {}
        self._reverts: list[str] = []
        self._seconds = 0.0
        self._key = next((each.key for each in self.done if each.key), "")

    def run(self) -> Answer:
        """Search until the answer is known.

        Raises
        ------
        RunFailed
            An end cannot be measured, or the test has no such metric.
        KeyboardInterrupt
            All measurements that had ended were kept.
        """
        wanted = self.options.metric
        if wanted is None or is_counted(wanted):
            ends = self._ends(timed=False)
            if metric := worse_count(ends, wanted):
                return self._by_counts(ends, metric)
            if wanted is not None:
                return self._no_count(ends, wanted)
        return self._by_time(wanted or DEFAULT_TIME)

    # By counts

    def _by_counts(self, ends: Measurement, metric: str) -> Answer:
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
                posterior = self._updated(posterior, number, EXACT if is_worse else -EXACT)
            posterior = replace(posterior, skipped=frozenset(self._skipped))
        return self._counted_answer(posterior, metric, values, ends)

    def _counted_answer(self, posterior: Posterior, metric: str, values: dict[int, float], ends: Measurement) -> Answer:
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
        times = [(name, each) for name in timed if (each := self._rounds(proof, name))]
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
            seconds=self._seconds,
            commands=self._commands(number, several=bool(rest)),
        )

    def _no_count(self, ends: Measurement, wanted: str) -> Answer:
        known = [name for name in ends.counts if wanted in (name, general(name))]
        if not known:
            raise RunFailed(f"the test has no metric {wanted}: it has {', '.join(sorted(ends.counts))}")
        name = known[0]
        unit = METRICS[general(name)].unit
        base, new = ends.base_counts.get(name, 0.0), ends.counts[name]
        if new < base:
            reason = f"{name} is lower in {self.history.bad.name} than in {self.history.good.name}"
            return self._nothing("faster", name, reason, Effect.of_counts(base, new))
        reason = f"{name} is {format_quantity(new, unit)} at both ends"
        return self._nothing("no difference", name, reason, Effect.of_counts(base, new))

    # By time

    def _by_time(self, wanted: str) -> Answer:
        limit = self.options.limit
        ends, metric, pooled = compared_ends(lambda: self._ends(timed=True, metric=wanted, limit=limit), wanted, limit)
        whole = Effect.of_rounds(pooled, sign_of(metric))
        if not is_slower(pooled, limit):
            return self._not_slower(metric, pooled, whole)
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
                posterior = self._updated(posterior, number, odds_of_rounds(seen[number], effect))
            posterior = replace(posterior, skipped=frozenset(self._skipped))
        answer = replace(self._answer(posterior, metric, whole), effect=whole, comparison=ends)
        return answer if answer.culprit is None else self._proved(answer, posterior, metric, effect)

    def _proved(self, answer: Answer, posterior: Posterior, metric: str, whole: float) -> Answer:
        """With the comparison of the commit with its parent; a range if that shows no slowdown."""
        number = posterior.best.first
        proof = self._proof(number, metric, math.expm1(whole / 2))
        effect = self._rounds(proof, metric)
        if effect is None:
            reason = f"{answer.candidates[0].name} could not be compared with its parent: {proof.skipped}"
            return replace(answer, status="range", reason=reason, seconds=self._seconds)
        estimate = Estimate(self._differences(proof, metric))
        if estimate.interval[0] <= 0:
            likely = tuple(self.history.commits[k] for each in posterior.likely for k in each.commits)
            reason = (
                f"{answer.candidates[0].name} is most likely, but no slower than its parent "
                f"({effect_in_words(effect)}): several commits may have small effects"
            )
            return replace(answer, status="range", reason=reason, candidates=likely, seconds=self._seconds)
        notes = list(answer.notes)
        several = estimate.interval[1] < whole and whole - estimate.center > _REST * whole
        if several:
            rest = math.expm1(sign_of(metric) * (whole - estimate.center))
            notes.append(f"it is not the only one: {format_percent(rest)} of the change comes from other commits")
        return replace(
            answer,
            effect=effect,
            comparison=proof,
            notes=tuple(notes),
            seconds=self._seconds,
            commands=self._commands(number, several=several),
        )

    def _not_slower(self, metric: str, pooled: Sequence[float], whole: Effect) -> Answer:
        good, bad = self.history.good.name, self.history.bad.name
        estimate = Estimate(tuple(pooled))
        if estimate.interval[1] < 0:
            change = f"{metric} {effect_in_words(whole)}"
            reason = f"{bad} is faster than {good}: {change}, so there is no slowdown to search for"
            return self._nothing("faster", metric, reason, whole)
        most = format_percent(math.expm1(estimate.interval[1]))
        change = f"{metric} {effect_in_words(whole)}, more than {most} is excluded"
        reason = f"{bad} is not measurably slower than {good}: {change}"
        return self._nothing("no difference", metric, reason, whole)

    # What both have in common

    def _next(self, posterior: Posterior, exhausted: Sequence[int] = ()) -> int | None:
        """The commit to measure next; `None` when the answer is known, or nothing that is left would tell it."""
        if not posterior.is_sure:
            return posterior.next_commit(exhausted)
        later = self.undone(posterior.best.last) if posterior.best.first == posterior.best.last else None
        return None if later in (*posterior.log_odds, *self._skipped) else later

    def _updated(self, posterior: Posterior, number: int, odds: float) -> Posterior:
        """The posterior with another measured commit; where that shows a revert, only of the commits after it."""
        if posterior.is_sure and odds < -_CLEARLY:
            first, name = self.history.commits[posterior.best.last].name, self.history.commits[number].name
            self._reverts.append(f"there was an earlier slowdown: {first} is slow too, and {name} no longer")
            return posterior.after(number)
        return replace(posterior, log_odds={**posterior.log_odds, number: odds})

    def _ends(self, *, timed: bool, metric: str = DEFAULT_TIME, limit: float = 0.0) -> Measurement:
        good, bad = self.history.good, self.history.bad
        made = self._measured(Request(bad.sha, good.sha, timed), bad, metric, limit, None)
        if made.skipped:
            raise RunFailed(f"{bad.name} cannot be compared with {good.name}: {made.skipped}")
        return made

    def _one(
        self, request: Request, number: int, metric: str, limit: float, posterior: Posterior
    ) -> Measurement | None:
        """Measure a commit between the ends; `None` if that is not possible, which is noted."""
        made = self._measured(request, self.history.commits[number], metric, limit, posterior)
        if made.skipped:
            self._skipped[number] = made.skipped
            return None
        return made

    def _proof(self, number: int, metric: str, limit: float) -> Measurement:
        """Compare a commit with its parent in rounds, if that was not done on the way."""
        commit, parent = self.history.commits[number], self.history.commits[number - 1]
        request = Request(commit.sha, parent.sha, timed=True)
        if made := [each for each in self._made[request] if not each.skipped]:
            return made[-1]
        return self._measured(request, commit, metric, limit, None)

    def _differences(self, measured: Measurement, metric: str) -> tuple[float, ...]:
        """Those of all measurements of the same request."""
        return tuple(each for made in self._made[measured.request] for each in made.differences(metric))

    def _rounds(self, measured: Measurement, metric: str) -> Effect | None:
        differences = self._differences(measured, metric)
        return Effect.of_rounds(differences, sign_of(metric)) if differences else None

    def _measured(
        self, request: Request, commit: Commit, metric: str, limit: float, posterior: Posterior | None
    ) -> Measurement:
        if self._earlier[request]:
            made = self._earlier[request].pop(0)
        else:
            self.tell(Progress(request, commit, posterior, self._seconds_left(request, posterior)))
            made = self.measure.measure(request, metric, limit)
            if made.key and self._key and made.key != self._key:
                raise RunFailed(f"the log has measurements of another machine ({self._key}): use another --log")
            self._key = self._key or made.key
            self.keep(made)
        self._made[request].append(made)
        self._seconds += made.seconds
        return made

    def _seconds_left(self, request: Request, posterior: Posterior | None) -> float | None:
        """About how long the rest takes: as many measurements as the posterior has bits, and the comparison."""
        alike = [
            each.seconds
            for asked, made in self._made.items()
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
        return self._seconds >= self.options.budget

    def _answer(self, posterior: Posterior, metric: str, whole: Effect) -> Answer:
        """The commit or the range that the posterior names, without the comparison of the commit with its parent."""
        best = posterior.best
        notes = (*self.history.notes, *self._reverts)
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
        return Answer(
            status,
            self.history,
            metric,
            reason,
            whole=whole,
            candidates=tuple(candidates),
            probability=probability,
            measured=self._measured_commits,
            skipped=self._skips,
            notes=notes,
            seconds=self._seconds,
        )

    def _nothing(self, status: Status, metric: str, reason: str, whole: Effect) -> Answer:
        return Answer(
            status,
            self.history,
            metric,
            reason,
            whole=whole,
            effect=whole,
            measured=self._measured_commits,
            skipped=self._skips,
            notes=self.history.notes,
            seconds=self._seconds,
        )

    @property
    def _measured_commits(self) -> tuple[Commit, ...]:
        measured = {request.commit for request, made in self._made.items() if any(not each.skipped for each in made)}
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
