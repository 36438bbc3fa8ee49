"""The gate on synthetic rounds, where the truth is known: what it promises, checked in numbers.

    python benchmarks/decision_quality/synthetic.py --jobs 2           # half an hour, prints Markdown
    python benchmarks/decision_quality/synthetic.py --unchanged 200 --slowed 50       # a quick look

The noises are those of `noises.py`, the decisions those of pytest_perfdl/judge. A round takes as long as one of started
processes, so that the budget holds some ninety of them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE)]

from common.tables import table
from noises import NOISES
from noises import rounds as noisy_rounds
from ours import NAMES, Draw, Outcome, Perf
from scipy import stats

from pytest_perfdl.config.options import BUDGET_SECONDS
from pytest_perfdl.judge.kernels import ALPHA as ROW_ALPHA
from pytest_perfdl.judge.kernels import Rows
from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.stopping_rule import ALPHA
from pytest_perfdl.model.limits import BUILT_IN, PER_KERNEL

ROUND_SECONDS = 3.3
"""Of a round of started processes, the mean of what was recorded."""
MOST_ROUNDS = math.ceil(2 * BUDGET_SECONDS / ROUND_SECONDS) + 1
SLOWED = (0.02, 0.05, 0.06, 0.10)
"""The first is within the limit."""
LEVEL_NS = 1e7
FIRST_LOOK = 4
"""Rounds that the step itself takes, the usual number where it is unchanged; rows alone ask for those after."""
MOST_WRONG = 0.10
"""Share of tests whose bound may be below the truth."""


@dataclass(frozen=True)
class Job:
    """Tests of one noise and slowdown."""

    noise: str
    slowdown: float
    count: int
    tests: int
    """That the run of each has."""
    seed: int


@dataclass(frozen=True)
class Found:
    """What became of them."""

    count: int
    alarms: int
    """That fail."""
    seconds: float
    """Mean."""
    positive: int
    wrong: int
    """That end `unchanged` with a bound below the slowdown that there was."""

    @property
    def wrong_share(self) -> float:
        """Of all tests."""
        return self.wrong / self.count


def judged(job: Job) -> Found:
    """Judge them."""
    rule = Perf(tests=job.tests)
    rng = np.random.default_rng([job.seed, list(NOISES).index(job.noise), round(1000 * job.slowdown)])
    made = [rule.decide(draw) for draw in drawing(job, rng)]
    return Found(
        count=len(made),
        alarms=sum(each.fails for each in made),
        seconds=sum(each.seconds for each in made) / len(made),
        positive=sum(each.positive for each in made),
        wrong=sum(is_wrong(each, job.slowdown) for each in made),
    )


def drawing(job: Job, rng: np.random.Generator) -> Iterator[Draw]:
    """The rounds of each test."""
    found, head_first = noisy_rounds(
        NOISES[job.noise], rng, job.count, MOST_ROUNDS, slowdown=job.slowdown, metrics=len(NAMES)
    )
    for differences, first in zip(found, head_first, strict=True):
        made = (
            (
                Round(
                    "head first" if is_first else "base first",
                    dict.fromkeys(NAMES, LEVEL_NS),
                    dict(zip(NAMES, LEVEL_NS * np.exp(each), strict=True)),
                ),
                ROUND_SECONDS,
            )
            for each, is_first in zip(differences, first, strict=True)
        )
        yield partial(next, made)


def is_wrong(outcome: Outcome, slowdown: float) -> bool:
    """Whether more than what there was is said to be excluded."""
    return outcome.verdict == "unchanged" and outcome.excluded < slowdown


def stress(options: argparse.Namespace) -> Iterator[str]:
    """Every noise: alarms, power, and whether the bounds hold."""
    allowed = most_alarms(options.unchanged, ALPHA / options.tests)
    yield f"{options.unchanged} unchanged tests and {options.slowed} of each slowdown; runs of {options.tests} test(s),"
    yield f"whose promise allows {allowed} alarms (97.5 % bound). Wrong: `unchanged`, with a bound below the truth.\n"
    shares = (0.0, *SLOWED)
    at = " / ".join(f"{slowdown:+.0%}" for slowdown in shares)
    heads = ("noise of a round", "alarms", "seconds", "positive", "+5 % found", "+10 % found", f"wrong, at {at}")
    with ProcessPoolExecutor(options.jobs) as executor:
        jobs = [
            Job(noise, share, options.slowed if share else options.unchanged, options.tests, options.seed)
            for noise in NOISES
            for share in shares
        ]
        results: dict[str, dict[float, Found]] = {}
        yield from table(heads, rows(executor.map(judged, jobs), results))
        yield ""
        yield from beyond(results, allowed)


def rows(found: Iterator[Found], results: dict[str, dict[float, Found]]) -> Iterator[Sequence[object]]:
    """A row a noise as soon as it is found, which is kept in `results` too."""
    for noise in NOISES:
        results[noise] = {share: next(found) for share in (0.0, *SLOWED)}
        yield row(noise, results[noise])


def row(noise: str, found: Mapping[float, Found]) -> Sequence[object]:
    """One noise."""
    still = found[0.0]
    power = [f"{found[share].alarms / found[share].count:.0%}" for share in (0.05, 0.10)]
    wrong = " / ".join(f"{each.wrong_share:.1%}" for each in found.values())
    return (noise, still.alarms, f"{still.seconds:.1f}", f"{still.positive / still.count:.1%}", *power, wrong)


def beyond(results: Mapping[str, Mapping[float, Found]], allowed: int) -> Iterator[str]:
    """What is beyond what is promised or wanted."""
    for noise, found in results.items():
        if found[0.0].alarms > allowed:
            yield f"- {noise}: more alarms than are allowed"
        worst = max((each.wrong_share, share) for share, each in found.items())
        if worst[0] > MOST_WRONG:
            yield f"- {noise}: {worst[0]:.1%} of bounds are below the truth at {worst[1]:+.0%}"


def most_alarms(count: int, level: float) -> int:
    """Alarms that a level allows: more have a chance of at most 2.5 %.

    >>> most_alarms(2000, 0.005)
    17
    """
    return int(stats.binom.ppf(0.975, count, level))


def kernels(options: argparse.Namespace) -> Iterator[str]:
    """How often one slow row of many is found and named, and after how many rounds; touched, and not."""
    rows, tests = 40, options.kernels
    yield f"One of {rows} rows of a test slower: named within 60 rounds, and after how many; {tests} tests each.\n"
    slowdowns = (0.10, 0.20, 0.50)
    found = []
    for many in (1, 40):
        for touched in (True, False):
            for spread in (0.03, 0.05):
                cells = []
                for slowdown in slowdowns:
                    rng = np.random.default_rng(
                        [options.seed, many, touched, round(1e3 * spread), round(1e3 * slowdown)]
                    )
                    taken = [named_after(rng, rows, spread, slowdown, many, touched=touched) for _ in range(tests)]
                    hits = [each for each in taken if each is not None]
                    mean = f" ({sum(hits) / len(hits):.0f})" if hits else ""
                    cells.append(f"{len(hits) / tests:.0%}{mean}")
                found.append((many, "yes" if touched else "no", f"{spread:.0%}", *cells))
    heads = ("tests", "touched", "noise", *(f"{each:+.0%}" for each in slowdowns))
    yield from table(heads, found)
    yield f"\nThe level is {ROW_ALPHA:.2%} of runs for rows below touched functions, and as much for all others."


def named_after(
    rng: np.random.Generator, rows: int, spread: float, slowdown: float, tests: int, *, touched: bool
) -> int | None:
    """Rounds until the slow row fails the test; `None` where it is given up or another one does first."""
    limit = BUILT_IN.for_metric(PER_KERNEL)
    assert limit is not None
    names = [f"operator {number}" for number in range(rows)]
    judge = Rows(dict.fromkeys(names, limit), frozenset(names[:2]) if touched else frozenset(), tests)
    made: list[Round] = []
    for number in range(1, 61):
        base, head = LEVEL_NS / rows * np.exp(spread / math.sqrt(2) * rng.standard_normal((2, rows)))
        head[0] *= 1 + slowdown
        before, now = (dict(zip(names, side.tolist(), strict=True)) for side in (base, head))
        made.append(Round("base first", {}, {}, before, now))
        if number < FIRST_LOOK:
            continue
        if failed := judge.regressed(made):
            return number if failed[0].name == names[0] else None
        if not judge.promising(made):
            return None
    return None


def main() -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unchanged", type=int, default=2000, metavar="N", help="unchanged tests of a noise (2000)")
    parser.add_argument("--slowed", type=int, default=300, metavar="N", help="tests of each slowdown (300)")
    parser.add_argument("--tests", type=int, default=1, metavar="N", help="tests in a run (1)")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="instead, tests with one slow kernel")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for line in kernels(options) if options.kernels else stress(options):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
