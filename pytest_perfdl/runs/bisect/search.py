"""What all searches do: compare the ends, measure between them, and say when there is nothing to find."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.model.metrics import METRICS, CountedMetric, better, general, is_utilization
from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.runs.bisect.answers import Answer, Effect
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.stats.evidence import Estimate, evidence

DEFAULT_TIME = "step_time"
LIMIT = 0.015
"""Smallest slowdown that is searched for by time."""
COUNTS = ("ops", "kernels", "launches", "flops", "h2d_bytes", "allocations", "alloc_bytes")
"""Counted metrics that explain time, the one that decides first."""
END_MEASUREMENTS = 4
"""Most measurements of the ends, as long as they leave open whether these differ."""
EVIDENCE = 200.0
"""Evidence (`stats.evidence`) at which the ends differ: equal ends do so in at most 1 of 200 searches."""
SURE_OVER = 0.95
"""Probability of being over the limit from which an end counts as slower, and below which of the rest as not."""
_REST = 0.25
"""Share of the whole effect that has to remain for several culprits to be reported."""


Measure = Callable[[Request, str, float], Measurement]
"""Measures what a search asks for, a metric and the slowdown that rounds have to tell from none: `child.Child.measure`,
`child.MixtureChild.measure`, or a simulation of one."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to search."""

    metric: str | None = None
    """By its general or full name; `None` to leave that to what the ends differ in."""
    limit: float = LIMIT
    """Smallest slowdown that is searched for by time."""
    budget: float = math.inf
    """Seconds of measurements, from which on no commit is measured any more."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a search is about to measure."""

    what: str
    timed: bool = False
    candidates: int | None = None
    """How many are left; `None` for the ends, and for the comparison at the end."""
    seconds: float | None = None
    """Estimated time of all measurements that are left; `None` if not known yet."""


class Measurements:
    """The measurements of one search, by what was asked for.

    Parameters
    ----------
    measure
        Makes them.
    done
        Those of earlier runs of the same search, which are not made again.
    keep
        Called with every new one.
    tell
        Called before every new one.
    one_machine
        Whether all must have the same machine ID, which packages of an environment may change.
    """

    def __init__(
        self,
        measure: Measure,
        done: Sequence[Measurement],
        keep: Callable[[Measurement], None],
        tell: Callable[[Progress], None],
        *,
        one_machine: bool,
    ) -> None:
        self._measure, self._keep, self._tell, self._one_machine = measure, keep, tell, one_machine
        self._earlier: dict[Request, list[Measurement]] = defaultdict(list)
        for each in done:
            self._earlier[each.request].append(each)
        self._key = next((each.key for each in done if each.key), "")
        self.made: dict[Request, list[Measurement]] = defaultdict(list)
        """In the order in which they were asked for."""
        self.seconds = 0.0
        """Time of all of them, those of earlier runs included."""

    def make(self, request: Request, metric: str, limit: float, progress: Progress) -> Measurement:
        """Measure, or take the next one of the earlier runs.

        Raises
        ------
        RunFailed
            It is of another machine than the others.
        """
        if self._earlier[request]:
            made = self._earlier[request].pop(0)
        else:
            self._tell(progress)
            made = self._measure(request, metric, limit)
            if self._one_machine and made.key and self._key and made.key != self._key:
                raise RunFailed(f"the log has measurements of another machine ({self._key}): use another --log")
            self._key = self._key or made.key
            self._keep(made)
        self.made[request].append(made)
        self.seconds += made.seconds
        return made

    def last(self, request: Request) -> Measurement | None:
        """The last measurement of a request that was not skipped."""
        return next((each for each in reversed(self.made[request]) if not each.skipped), None)

    def differences(self, request: Request, metric: str) -> tuple[float, ...]:
        """log(new / base) of the rounds of all measurements of a request, above zero for worse."""
        return tuple(each for made in self.made[request] for each in made.differences(metric))

    def effect(self, request: Request, metric: str) -> Effect | None:
        """The effect in all rounds of a request; `None` without rounds."""
        differences = self.differences(request, metric)
        return Effect.of_rounds(differences, sign_of(metric)) if differences else None


@dataclass(frozen=True)
class Ends:
    """The two ends of a search."""

    good: str
    """Name in sentences."""
    bad: str
    counted: Request
    """Compares the bad end with the good one by counts alone."""
    timed: Request
    """The same in rounds."""
    measurements: Measurements

    def compare(self, request: Request, metric: str, limit: float) -> Measurement:
        """Compare the ends once.

        Raises
        ------
        RunFailed
            That is not possible.
        """
        made = self.measurements.make(
            request, metric, limit, Progress(f"{self.bad} against {self.good}", request.timed)
        )
        if made.skipped:
            raise RunFailed(f"{self.bad} cannot be compared with {self.good}: {made.skipped}")
        return made

    def compare_times(self, wanted: str, limit: float) -> tuple[Measurement, str, tuple[float, ...]]:
        """Compare the ends by rounds until these tell whether they differ.

        Parameters
        ----------
        wanted
            A time by its general or full name.
        limit
            Smallest slowdown (a fraction) that counts.

        Returns
        -------
        tuple
            The last measurement, the full name of the time, and log(bad / good) of all rounds, above zero for worse.

        Raises
        ------
        RunFailed
            The ends cannot be compared, or the test has no such time.
        """
        found: list[Measurement] = []
        while True:
            found.append(self.compare(self.timed, wanted, limit))
            metric, pooled = _pooled_rounds(found, wanted)
            is_told = is_slower(pooled, limit) or Estimate(pooled).over(math.log1p(limit)) < 1 - SURE_OVER
            if is_told or len(found) == END_MEASUREMENTS:
                return found[-1], metric, pooled

    def not_slower(self, metric: str, differences: tuple[float, ...]) -> Answer:
        """Of ends that do not differ by time, or of which the bad one is faster."""
        estimate, effect = Estimate(differences), Effect.of_rounds(differences, sign_of(metric))
        change = f"{metric} {effect_in_words(effect)}"
        if estimate.interval[1] < 0:
            reason = f"{self.bad} is faster than {self.good}: {change}, so there is no slowdown to search for"
            return Answer(status="faster", metric=metric, reason=reason, whole=effect)
        most = format_percent(math.expm1(estimate.interval[1]))
        reason = f"{self.bad} is not measurably slower than {self.good}: {change}, more than {most} is excluded"
        return Answer(status="no difference", metric=metric, reason=reason, whole=effect)

    def not_higher(self, compared: Measurement, wanted: str) -> Answer:
        """Of ends that do not differ by a count, or of which the bad one has a lower count.

        Raises
        ------
        RunFailed
            The test has no such metric.
        """
        name = next((name for name in compared.counts if wanted in (name, general(name))), None)
        if name is None:
            raise RunFailed(f"the test has no metric {wanted}: it has {', '.join(sorted(compared.counts))}")
        base, new = compared.base_counts.get(name, 0.0), compared.counts[name]
        effect = Effect.of_counts(base, new)
        if new < base:
            reason = f"{name} is lower in {self.bad} than in {self.good}"
            return Answer(status="faster", metric=name, reason=reason, whole=effect)
        reason = f"{name} is {format_quantity(new, METRICS[general(name)].unit)} at both ends"
        return Answer(status="no difference", metric=name, reason=reason, whole=effect)


def is_counted(metric: str) -> bool:
    """Whether a metric is compared exactly.

    >>> is_counted("ops"), is_counted("forward.step_time")
    (True, False)
    """
    return isinstance(METRICS.get(general(metric)), CountedMetric)


def is_searchable(metric: str) -> bool:
    """Whether a commit can be searched for by a metric."""
    return general(metric) in METRICS and not is_utilization(metric)


def worse_count(ends: Measurement, wanted: str | None) -> str | None:
    """The counted metric that got worse between the ends; of several, the first of `COUNTS`."""
    worse = [name for name, value in ends.counts.items() if value > ends.base_counts.get(name, math.inf)]
    if wanted is not None:
        return next((name for name in worse if wanted in (name, general(name))), None)
    return min(
        (name for name in worse if general(name) in COUNTS), key=lambda n: COUNTS.index(general(n)), default=None
    )


def is_slower(differences: Sequence[float], limit: float) -> bool:
    """Whether the ends differ: the evidence of fair coins, and an estimate over the limit."""
    bound = math.log1p(limit)
    return Estimate(tuple(differences)).over(bound) >= SURE_OVER and evidence(differences, bound) >= EVIDENCE


def rest_of(whole: float, differences: tuple[float, ...], metric: str) -> str:
    """How much of the whole effect, a logarithm, these rounds do not have; empty if they may have all of it."""
    estimate = Estimate(differences)
    rest = whole - estimate.center
    if estimate.interval[1] >= whole or rest <= _REST * whole:
        return ""
    return format_percent(math.expm1(sign_of(metric) * rest))


def sign_of(metric: str) -> int:
    """The sign of a change for the worse: -1 for metrics of which more is better."""
    return 1 if better(metric) == "lower" else -1


def effect_in_words(effect: Effect) -> str:
    """An effect with its 95 % interval: "+5.1% [+4.2%, +6.0%]"."""
    low, high = effect.interval
    return f"{format_percent(effect.ratio)} [{format_percent(low)}, {format_percent(high)}]"


def _pooled_rounds(found: Sequence[Measurement], wanted: str) -> tuple[str, tuple[float, ...]]:
    """The full name of a time, and its rounds; of the calls of a test, the one that got slower most."""
    rounds: dict[str, list[float]] = defaultdict(list)
    for each in found:
        for name in each.rounds:
            if wanted in (name, general(name)):
                rounds[name] += each.differences(name)
    if not any(rounds.values()):
        raise RunFailed(f"the test has no rounds of {wanted}: name a time that it measures with --metric")
    name = max(rounds, key=lambda each: sum(rounds[each]) / max(len(rounds[each]), 1))
    return name, tuple(rounds[name])
