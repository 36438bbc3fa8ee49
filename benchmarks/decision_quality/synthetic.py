"""The paired confirmation on synthetic rounds, where the truth is known: what it promises, checked in numbers.

    python benchmarks/decision_quality/synthetic.py                  # some minutes, prints Markdown
    python benchmarks/decision_quality/synthetic.py --suites 200 --tests 500     # a quick look

Noise and suites are those of tests/unit/judge/paired_suites.py, the decisions those of pytest_perfdl/judge.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "judge"))

import paired_suites as synthetic  # noqa: E402 (the tests are no package)

from pytest_perfdl.judge import futility, sequential, signedrank, signflip, spending  # noqa: E402

Noise = Callable[[np.random.Generator, int], np.ndarray]
"""Log ratios of so many tests of unchanged code, shape (tests, summaries, rounds)."""
SUMMARIES = len(synthetic.SUMMARIES)
ROUNDS = synthetic.ROUNDS
PLACES = {
    "alone": spending.Spending(1).level(()),
    "1st suspect of 20": spending.Spending(20).level(()),
    "5th suspect of 20": spending.Spending(20).level((False,) * 4),
    "20 tests, A/B": spending.Spending(20, screened=False).level(()),
}
"""Where a test stands in its suite, and the level that this gives it."""


def ping_pong(spread: float) -> Noise:
    """Noise as two live processes in turns showed it; the two summaries of a process share most of it."""

    def draw(rng: np.random.Generator, tests: int) -> np.ndarray:
        shared = rng.standard_normal((tests, 1, ROUNDS))
        own = rng.standard_normal((tests, SUMMARIES, ROUNDS))
        return spread * (math.sqrt(0.8) * shared + math.sqrt(0.2) * own)

    return draw


def of_null(null: str) -> Noise:
    """The noise of one of the adversarial nulls."""

    def draw(rng: np.random.Generator, tests: int) -> np.ndarray:
        suites = synthetic.unchanged(null, -(-tests // synthetic.TESTS), int(rng.integers(1 << 30)), kernels=0)
        return np.asarray(suites.head - suites.base, np.float64)[:tests]

    return draw


PING_PONG = {"1.6 %": ping_pong(0.016), "0.9 %": ping_pong(0.009)}


def judged(ratios: np.ndarray, limit: float, plan: sequential.Plan) -> tuple[np.ndarray, np.ndarray]:
    """Verdicts of the summaries, and after how many rounds; undecided ones took all rounds."""
    past = math.log1p(limit)
    found, when = sequential.replay(ratios - past, -ratios - past, plan, plan.until(ROUNDS))
    return found, np.where(when, when, ROUNDS)


def given_up(ratios: np.ndarray, limit: float, plan: sequential.Plan) -> tuple[np.ndarray, np.ndarray]:
    """Verdicts and rounds of tests that are given up once no summary is on course to be found slower."""
    found, when = judged(ratios, limit, plan)
    past = ratios - math.log1p(limit)
    ends = np.full(len(ratios), ROUNDS)
    for rounds in range(futility.FEWEST, ROUNDS):
        undecided = (when > rounds) | ((when == rounds) & (found == sequential.UNDECIDED))
        hopeful = futility.hopeful(past[..., :rounds], plan.rejecting, plan.level / plan.suspects) & undecided
        ends = np.where((ends == ROUNDS) & ~hopeful.any(axis=1), rounds, ends)
    late = when > ends[:, None]
    return np.where(late, sequential.UNDECIDED, found), np.minimum(when, ends[:, None])


def giving_up(tests: int, seed: int) -> Iterator[str]:
    """What it costs, and saves, to give up suspects that are not on course to be regressed."""
    yield f"Tests regressed, with mean rounds: all looks taken, and given up when hopeless; {tests} tests each.\n"
    effects = (-0.02, 0.0, 0.02, 0.05, 0.10, 0.20)
    plan = sequential.Plan.of(PLACES["1st suspect of 20"], SUMMARIES)
    noises = {**PING_PONG, "5 %": ping_pong(0.05), "10 %": ping_pong(0.10)}
    noises |= {null: of_null(null) for null in synthetic.NULLS[1:]}
    rng = np.random.default_rng(seed)
    rows: list[Sequence[object]] = []
    for name, noise in noises.items():
        cells = []
        for effect in effects:
            ratios = noise(rng, tests) + math.log1p(effect)
            cells.append(" / ".join(_hits(*how(ratios, 0.03, plan)) for how in (judged, given_up)))
        rows.append((name, *cells))
    yield from table(("noise of a round", *(f"{effect:+.0%}" for effect in effects)), rows)


def _hits(found: np.ndarray, when: np.ndarray) -> str:
    hit = (found == sequential.REGRESSED).any(axis=1).mean()
    return f"{hit:.1%} ({when.max(axis=1).mean():.1f})"


def false_alarms(suites: int, seed: int) -> Iterator[str]:
    """Suites of unchanged code, and of code slower by less than the limit, that raise an alarm."""
    bound = synthetic.most_alarms(suites)
    yield f"Alarmed suites of {suites}: {synthetic.TESTS} tests of two summaries, {synthetic.KERNELS} kernels each;"
    yield f"at most {bound} are within the promise of 1 % (97.5 % bound).\n"
    rows = []
    for null in synthetic.NULLS:
        found = synthetic.unchanged(null, suites, seed)
        plain = synthetic.alarms(found)
        more = math.log1p(0.02)
        slower = replace(found, head=found.head + more, kernels_head=found.kernels_head + more)
        within = synthetic.alarms(slower, delta=0.03)
        rows.append((null, *plain.sum(axis=0), plain.any(axis=1).sum(), within.any(axis=1).sum()))
    heads = ("unchanged code", *synthetic.SUMMARIES, "kernels", "any", "any, if 2 % slower with a limit of 3 %")
    yield from table(heads, rows)
    yield "\nThe same with a mistake in the procedure:\n"
    broken = {mutant: synthetic.mutant_alarms(mutant, suites, seed).any(axis=1).sum() for mutant in synthetic.MUTANTS}
    yield from table(("mistake", "alarmed suites"), broken.items())


def power(tests: int, seed: int) -> Iterator[str]:
    """How often slowdowns are found, and when."""
    yield f"Tests regressed by any summary, with mean rounds to the last suspect's verdict; {tests} tests each.\n"
    rng = np.random.default_rng(seed)
    effects = (0.0, 0.03, 0.05, 0.10, 0.20)
    rows: list[Sequence[object]] = []
    for spread, noise in PING_PONG.items():
        for limit in (0.02, 0.03):
            for place, level in PLACES.items():
                plan = sequential.Plan.of(level, SUMMARIES)
                cells = []
                for effect in effects:
                    found, when = judged(noise(rng, tests) + math.log1p(effect), limit, plan)
                    hit = (found == sequential.REGRESSED).any(axis=1).mean()
                    cells.append(f"{hit:.1%} ({when.max(axis=1).mean():.1f})")
                rows.append((spread, f"{limit:.0%}", place, *cells))
    yield from table(("noise of a round", "limit", "place", *(f"{effect:+.0%}" for effect in effects)), rows)


def kernels(tests: int, seed: int) -> Iterator[str]:
    """How often one slow kernel of 100 is found and named."""
    yield f"One of 100 kernels slower: found, and how many tests named another one; {tests} tests each.\n"
    rng = np.random.default_rng(seed)
    rows = []
    for place in ("alone", "20 tests, A/B"):
        plan = sequential.Plan.of(PLACES[place], 1)
        for spread in (0.03, 0.05):
            cells = []
            for effect in (0.10, 0.20, 0.30, 0.50):
                named = [slow_kernels(rng, spread, effect, plan) for _ in range(tests)]
                others = sum(bool(names - {0}) for names in named)
                cells.append(
                    f"{sum(0 in names for names in named) / tests:.0%}" + (f", {others} wrong" if others else "")
                )
            rows.append((place, f"{spread:.0%}", *cells))
    yield from table(("place", "noise", "+10%", "+20%", "+30%", "+50%"), rows)


def slow_kernels(rng: np.random.Generator, spread: float, effect: float, plan: sequential.Plan) -> set[int]:
    """Numbers of the kernels called slower; only the first is."""
    base, head = spread / math.sqrt(2) * rng.standard_normal((2, ROUNDS, 100))
    head[:, 0] += math.log1p(effect)
    named: set[int] = set()
    for look in plan.rejecting:
        p = signflip.step_down(signflip.scores(base[:look], head[:look]), plan.level)
        named |= set(np.flatnonzero(p <= plan.level).tolist())
    return named


def honesty(tests: int, seed: int) -> Iterator[str]:
    """Intervals, "unchanged" that is not, and whether what is said to be detectable is detected."""
    limit, rng = 0.03, np.random.default_rng(seed)
    plan = sequential.Plan.of(PLACES["1st suspect of 20"], SUMMARIES)
    yield f"By summary, {tests} tests each, first suspect of 20, limit 3 %. Coverage is that of the interval shown with"
    yield "the verdict; the slowdown called unchanged is just past the limit; the detectable one is what a test of"
    yield "unchanged code shows, injected into another one.\n"
    rows = []
    kinds = {**{f"normal, {spread}": noise for spread, noise in PING_PONG.items()}, "normal, 5 %": ping_pong(0.05)}
    kinds |= {null: of_null(null) for null in synthetic.NULLS[1:]}
    for name, noise in kinds.items():
        covered = [coverage(noise(rng, tests), effect, limit, plan) for effect in (0.0, 0.05, 0.10)]
        just_past, _ = judged(noise(rng, tests) + math.log1p(limit) + 1e-6, limit, plan)
        shown = detectable(noise(rng, tests), limit, plan)
        found, _ = judged(noise(rng, tests) + np.log1p(shown)[..., None], limit, plan)
        rows.append(
            (
                name,
                *(f"{share:.1%}" for share in covered),
                f"{(just_past == sequential.UNCHANGED).mean():.1%}",
                f"{np.median(shown):.1%}",
                f"{(found == sequential.REGRESSED).mean():.1%}",
            )
        )
    heads = ("noise", "coverage at 0 %", "at +5 %", "at +10 %", "called unchanged", "detectable (median)", "detected")
    yield from table(heads, rows)


def coverage(ratios: np.ndarray, effect: float, limit: float, plan: sequential.Plan) -> float:
    """Share of the intervals, as shown with the verdict, that hold the effect."""
    true = math.log1p(effect)
    _, when = judged(ratios + true, limit, plan)
    hits = 0
    for rounds in np.unique(when).tolist():
        shown = signedrank.averages((ratios[when == rounds] + true)[:, :rounds])
        ends = signedrank.interval(shown, plan.confidence)
        assert ends is not None
        hits += int(((ends[0] <= true) & (true <= ends[1])).sum())
    return hits / when.size


def detectable(ratios: np.ndarray, limit: float, plan: sequential.Plan) -> np.ndarray:
    """The smallest detectable effect that each test shows after its verdict."""
    _, when = judged(ratios, limit, plan)
    reach = {
        rounds: signedrank.reach(ROUNDS, plan.level / plan.suspects, rounds) for rounds in np.unique(when).tolist()
    }
    counted = np.where(np.arange(ROUNDS) < when[..., None], ratios, np.nan)
    factors = np.vectorize(reach.__getitem__, otypes=[float])(when)
    return np.asarray(np.expm1(math.log1p(limit) + factors * np.nanstd(counted, axis=-1, ddof=1)))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def main() -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", type=int, default=2000, metavar="N", help="suites per null (2000)")
    parser.add_argument("--tests", type=int, default=4000, metavar="N", help="tests per figure (4000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for title, lines in (
        ("False alarms", false_alarms(options.suites, options.seed)),
        ("Power", power(options.tests, options.seed)),
        ("Giving up", giving_up(options.tests, options.seed)),
        ("Kernels", kernels(max(1, options.tests // 100), options.seed)),
        ("Honesty", honesty(options.tests, options.seed)),
    ):
        print(f"## {title}\n", flush=True)
        for line in lines:
            print(line, flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
