"""The search between two environments: which of the distributions that differ made a test slower."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pytest_perfdl.analysis.events.source_lines import FRAME
from pytest_perfdl.bisect.answer import EXIT_CODES, Effect, Status, finite
from pytest_perfdl.bisect.child import COUNTING_STEPS, causes_in_words
from pytest_perfdl.bisect.culprit_set import Chosen, culprit_set
from pytest_perfdl.bisect.ends import (
    END_MEASUREMENTS,
    SURE_OVER,
    effect_in_words,
    is_counted,
    is_slower,
    pooled_rounds,
    sign_of,
    worse_count,
)
from pytest_perfdl.bisect.measurements import Measurement, Request, measurement_of
from pytest_perfdl.bisect.mixtures import Environments, complaints, owners
from pytest_perfdl.bisect.posterior import odds_of_rounds
from pytest_perfdl.model.errors import CheckoutError, OutcomeError, RunFailed
from pytest_perfdl.model.units import format_percent, plural
from pytest_perfdl.stats.evidence import Estimate
from pytest_perfdl.system import child_pytest, folders
from pytest_perfdl.workers.interpreter import Interpreter

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
    """Measures mixtures: `MixtureChild`, or a simulation of it."""

    def measure(self, request: Request, chosen: Chosen | None, metric: str, limit: float) -> Measurement:
        """Measure the environment with these distributions of the new one; `None` for the new one itself."""
        ...


@dataclass(frozen=True, slots=True)
class MixtureChild:
    """Measures an environment by a pytest that runs in it, against the old one.

    A mixture exists only while it is measured.
    """

    environments: Environments
    test: str
    """As given on the command line: relative to the current folder."""
    options: tuple[str, ...]
    """Further options of pytest."""
    reports: Path
    """Folder that keeps the report of each comparison."""

    def measure(self, request: Request, chosen: Chosen | None, metric: str, limit: float) -> Measurement:
        """Measure one; one that pip refuses or that cannot be made or measured is said to be skipped."""
        started = time.monotonic()
        if chosen is None:
            return self._run(request, self.environments.new.executable, metric, limit, started)
        if not chosen:
            return self._run(request, self.environments.old.executable, metric, limit, started)
        # Beside the environments: hard links need the same file system.
        parent = Path(self.environments.new.prefix).resolve().parent
        if not os.access(parent, os.W_OK):
            folder = folders.temporary("mixture")
        else:
            folders.sweep(parent, "mixture")
            folder = folders.make(parent, "mixture")
        try:
            mixed = self.environments.mix(chosen, folder.path / "environment")
            known = {line for side in self._ends for line in complaints(side.executable)}
            if wrong := sorted(complaints(str(mixed)) - known):
                return Measurement(request, f"pip check: {wrong[0]}", seconds=time.monotonic() - started)
            return self._run(request, str(mixed), metric, limit, started)
        except CheckoutError as error:
            return Measurement(request, str(error), seconds=time.monotonic() - started)
        finally:
            folder.remove()

    @property
    def _ends(self) -> tuple[Interpreter, Interpreter]:
        return self.environments.old, self.environments.new

    def _run(self, request: Request, interpreter: str, metric: str, limit: float, started: float) -> Measurement:
        with folders.for_a_while("bisect") as scratch:
            run_file, output = scratch / "run.json", scratch / "output.txt"
            code = child_pytest.run(self.command(request, interpreter, scratch, metric, limit), output)
            seconds = round(time.monotonic() - started, 3)
            if code not in child_pytest.CAME_TO_ITS_END or not run_file.is_file():
                return Measurement(request, child_pytest.raised(output) or child_pytest.reason(output), seconds=seconds)
            try:
                found = measurement_of(json.loads(run_file.read_bytes()), request, seconds)
            except (OutcomeError, ValueError) as error:
                why = child_pytest.raised(output) or f"the run file that pytest wrote {error}"
                return Measurement(request, why, seconds=seconds)
            if found.skipped:
                raised = child_pytest.raised(output)
                return replace(found, skipped=f"{found.skipped}: {raised}" if raised else found.skipped)
            if request.timed:
                found = replace(found, causes=causes_in_words(run_file))
            if request.against is not None and (scratch / "report").is_dir():
                shutil.copytree(scratch / "report", self.report(request), dirs_exist_ok=True)
            return found

    def command(self, request: Request, interpreter: str, scratch: Path, metric: str, limit: float) -> tuple[str, ...]:
        """The command line of one run; its report and run file go into the scratch folder."""
        limits = {"step_time": "off", "block_time": "off"} | ({metric: f"{limit * 100:.6g}%"} if request.timed else {})
        against = () if request.against is None else (f"--perf-against-python={self.environments.old.executable}",)
        return (
            *(interpreter, "-m", "pytest", self.test),
            *("--perf", "--perf-github=off", "--perf-calibrate=off", "--perf-traces=none", "-p", "no:cacheprovider"),
            *(f"--perf-json={scratch / 'run.json'}", f"--perf-report={scratch / 'report'}"),
            # An empty folder: no baseline of the project is compared with.
            *(f"--perf-dir={scratch / 'baselines'}", "--perf-fail-on=invalid", "--perf-require=0"),
            *(() if request.timed else COUNTING_STEPS),
            *self.options,
            *(f"--perf-limit={name}:{text}" for name, text in limits.items()),
            *(against or ("-o", "perf_against_python=")),
        )

    def report(self, request: Request) -> Path:
        """Folder of the report of a comparison, if there is one."""
        return self.reports / (request.commit if request.commit in (OLD, NEW) else "mixture")


@dataclass(frozen=True, slots=True)
class EnvironmentAnswer:
    """The distributions that made the test slower."""

    status: Status
    environments: Environments
    differing: Mapping[str, tuple[str, str]]
    """Name -> (old, new) version."""
    metric: str
    reason: str
    """One sentence."""
    culprits: tuple[str, ...] = ()
    """Names of the distributions; as small a set as was found."""
    whole: Effect | None = None
    """Of the new environment against the old one."""
    effect: Effect | None = None
    """Of the culprits alone against the old environment."""
    built: int = 0
    """How many environments were built."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Mixtures that cannot be measured, by their distributions of the new environment, and why."""
    proof: Measurement | None = None
    """The measurement of the culprits alone."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 for the culprits, 1 for a set that may be too large, 3 if there is nothing to find."""
        return EXIT_CODES[self.status]


def to_json(answer: EnvironmentAnswer) -> dict[str, Any]:
    """Plain data for `json`; effects are ratios, and what is not known is null."""
    effect, whole, proof = answer.effect, answer.whole, answer.proof
    both = answer.environments
    return {
        "status": answer.status,
        "reason": answer.reason,
        "culprits": [
            {"name": name, "old": answer.differing[name][0], "new": answer.differing[name][1]}
            for name in answer.culprits
        ],
        "metric": answer.metric,
        "effect": None if effect is None else finite(effect.ratio),
        "interval": None if effect is None else [finite(end) for end in effect.interval],
        "whole_effect": None if whole is None else finite(whole.ratio),
        "whole_interval": None if whole is None else [finite(end) for end in whole.interval],
        "built_environments": answer.built,
        "differing": [{"name": name, "old": old, "new": new} for name, (old, new) in answer.differing.items()],
        "skipped": [{"new": names.split(","), "why": why} for names, why in answer.skipped],
        "blame": [] if proof is None else [dict(each) for each in proof.blame],
        "notes": list(answer.notes),
        "old": {"executable": both.old.executable, "python": both.old.python},
        "new": {"executable": both.new.executable, "python": both.new.python},
        "seconds": round(answer.seconds, 3),
    }


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
        wanted, found = self.metric or DEFAULT_TIME, list[Measurement]()
        metric, pooled = wanted, tuple[float, ...]()
        while len(found) < END_MEASUREMENTS:
            found.append(self._end(timed=True, metric=wanted))
            metric, pooled = pooled_rounds(found, wanted)
            if is_slower(pooled, self.limit) or Estimate(pooled).over(math.log1p(self.limit)) < 1 - SURE_OVER:
                break
        whole = Effect.of_rounds(pooled, sign_of(metric))
        count = worse_count(found[-1], None)
        if not is_slower(pooled, self.limit):
            if count is not None and self.metric is None:
                answer = self._by_counts(found[-1], count, differing)
                return replace(answer, notes=(*answer.notes, f"{metric} did not get slower: {effect_in_words(whole)}"))
            faster = Estimate(pooled).interval[1] < 0
            how = "is faster than" if faster else "is not measurably slower than"
            reason = f"the new environment {how} the old one: {metric} {effect_in_words(whole)}"
            answer = self._answer("faster" if faster else "no difference", metric, reason, differing)
            return replace(answer, whole=whole, effect=whole)
        effect = Estimate(pooled).center
        if count is not None and self.metric is None and len(differing) > 1:
            search = culprit_set(
                list(differing), self._counting(found[-1], count), self._suspects(found[-1], differing)
            )
            answer = self._proved(search.culprits, search.is_smallest, metric, effect, whole, differing)
            explained = answer.effect is not None and math.log1p(answer.effect.ratio) * sign_of(metric) > effect / 2
            if explained and answer.status == "found":
                return answer
        self._rounds[frozenset(differing)] = list(pooled)
        self._proofs[frozenset(differing)] = found[-1]
        search = culprit_set(list(differing), self._timing(metric, effect), self._suspects(found[-1], differing))
        return self._proved(search.culprits, search.is_smallest, metric, effect, whole, differing)

    def _by_counts(self, ends: Measurement, metric: str, differing: Mapping[str, tuple[str, str]]) -> EnvironmentAnswer:
        search = culprit_set(list(differing), self._counting(ends, metric), self._suspects(ends, differing))
        whole = Effect.of_counts(ends.base_counts[metric], ends.counts[metric])
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
    of = plural(len(differing), "distribution")
    if status == "found":
        return f"{names} made the test slower, of {of} that differ"
    return f"the change is in {names}, of {of} that differ: smaller sets could not be measured"
