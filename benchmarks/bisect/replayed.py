"""Replays searches of `perfdl bisect` on recorded rounds: how often the commit is found, and with how many commits.

A search is the real one (`bisect.campaign.CommitSearch`), with the real stopping rule of a comparison
(`judge.stopping_rule.Gate`); only the rounds are drawn, with replacement, from those that
`benchmarks/decision_quality` recorded: of a commit before the culprit the rounds of unchanged code, else those with the
slowdown. Every history has a culprit at random, three commits that do not import, none right before the culprit, and
with `--prior` a tenth of the other commits that change the same function as the culprit.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from recording import unpack
from replay import Pool

from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.stopping_rule import Gate, Held, Spent
from pytest_perfdl.model.limits import parse_limit
from pytest_perfdl.runs.bisect.answers import CommitAnswer
from pytest_perfdl.runs.bisect.campaign import CommitSearch
from pytest_perfdl.runs.bisect.child import BUDGET
from pytest_perfdl.runs.bisect.history import Commit, History
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.runs.bisect.posterior import FUNCTION, mixed
from pytest_perfdl.runs.bisect.search import Options

RECORDED = Path(__file__).resolve().parents[1] / "decision_quality" / "data" / "recorded.json.gz"
CELL = "forked, pinned, quiet"
WORKLOADS = ("transformer", "convnet")
STARTING_SECONDS = 8.0
"""Of a measurement: starting pytest, and the first process of each side."""
COUNTING_SECONDS = 6.0
BROKEN = 3
LIKE_IT = 0.1
"""Share of the other commits that change the culprit's function."""


@dataclass(frozen=True)
class Kind:
    """What the culprit does."""

    name: str
    share: float
    """By how much it is slower; 0 for one that changes counts."""


KINDS = (Kind("counts", 0.0), Kind("+5 %", 0.05), Kind("+3 %", 0.03))


class Replayed:
    """Measures the commits of a made-up history by drawing rounds."""

    def __init__(self, culprit: int, broken: Sequence[int], kind: Kind, pool: Pool, rng: np.random.Generator) -> None:
        self._culprit, self._broken, self._kind, self._rng = culprit, frozenset(broken), kind, rng
        self._draws = {share: pool.drawing(share, rng) for share in {0.0, kind.share}}

    def measure(self, request: Request, _: str, limit: float) -> Measurement:
        """Draw rounds until the rule of a comparison is met."""
        number = int(request.commit)
        if number in self._broken:
            return Measurement(
                request, "ModuleNotFoundError: No module named 'nothing_there'", seconds=COUNTING_SECONDS
            )
        base = None if request.against is None else int(request.against)
        counts = {"ops": self._ops(number)}
        base_counts = {} if base is None else {"ops": self._ops(base)}
        if not request.timed or base is None:
            return Measurement(request, "", counts, base_counts, seconds=COUNTING_SECONDS, key="recorded")
        is_slower = base < self._culprit <= number
        rounds, seconds = self._rounds(self._kind.share if is_slower else 0.0, limit)
        pairs = tuple((each.base["step_time"], each.head["step_time"]) for each in rounds)
        return Measurement(
            request, "", counts, base_counts, {"step_time": pairs}, seconds=seconds + STARTING_SECONDS, key="recorded"
        )

    def _rounds(self, share: float, limit: float) -> tuple[list[Round], float]:
        gate = Gate((Held("step_time", parse_limit("step_time", f"{limit * 100:.6g}%")),))
        budget = float(BUDGET.partition("=")[2])
        rounds: list[Round] = []
        seconds = 0.0
        while gate.look(rounds, Spent(seconds, budget)).open:
            each, took = self._draws[share]()
            rounds.append(each)
            seconds += took
        return rounds, seconds

    def _ops(self, number: int) -> float:
        return 18.0 if self._kind.share == 0 and number >= self._culprit else 16.0


def searched(
    kind: Kind, commits: int, seed: int, pool: Pool, *, prior: bool, misleads: bool
) -> tuple[CommitAnswer, str]:
    """One search, and the hash of its culprit."""
    lots = random.Random(seed)
    culprit = lots.randint(1, commits)
    broken = lots.sample([each for each in range(1, commits) if each not in (culprit, culprit - 1)], BROKEN)
    history = History(
        Path("/replayed"), tuple(Commit(str(number), "2026-01-01", f"commit {number}") for number in range(commits + 1))
    )
    others = lots.sample([each for each in range(1, commits + 1) if each != culprit], round(LIKE_IT * commits))
    like_it = {*others, *(() if misleads else (culprit,))}
    weights = [FUNCTION if number in like_it else 1.0 for number in range(1, commits + 1)]
    measure = Replayed(culprit, broken, kind, pool, np.random.default_rng(seed))
    options = Options(None if kind.share == 0 else "step_time")
    return CommitSearch(history, measure.measure, options, (lambda _: mixed(weights)) if prior else None).run(), str(
        culprit
    )


def row(kind: Kind, commits: int, count: int, *, prior: bool = False, misleads: bool = False) -> Sequence[object]:
    """So many searches, as a row of the table."""
    _, runs = unpack(RECORDED)
    cell = next(each.cell for each in runs if getattr(each, "cell", None) and str(each.cell) == CELL)
    pools = [Pool(runs, workload, cell) for workload in WORKLOADS]
    found, measured, seconds = Counter(), [], []
    for seed in range(count):
        answer, culprit = searched(kind, commits, seed, pools[seed % len(pools)], prior=prior, misleads=misleads)
        word = answer.status
        if answer.culprit is not None and answer.culprit.sha != culprit:
            word = "wrong"
        if answer.status == "range" and culprit not in {each.sha for each in answer.candidates}:
            word = "range without it"
        found[word] += 1
        measured.append(len(answer.measured))
        seconds.append(answer.seconds)
    how = "misleading" if misleads else "yes" if prior else "no"
    others = ", ".join(f"{number} {word}" for word, number in sorted(found.items()) if word != "found") or "-"
    return (
        *(kind.name, commits, how, f"{found['found']} of {count}", others),
        *(f"{statistics.median(measured):g}", max(measured), f"{statistics.median(seconds) / 60:.1f} min"),
    )
