"""Other tools' decision rules, as functions from stored processes' steps and fresh ones' to "slower" or not.

Each rule gets what its tool would measure: so many stored processes, so many fresh ones, and of each as many
steps as the tool takes by default, as far as they were recorded. All get warmed-up steps, one process a run and
the pinned environment, which most of them do not provide: what they are charged with here is their decision.
Only slowdowns count as alarms; what a rule calls faster does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Steps = NDArray[np.int64]
"""Step times of one process, in nanoseconds."""
Floats = NDArray[np.float64]
Sides = Callable[[Sequence[Steps], Sequence[Steps]], bool]
"""Whether the fresh processes (second) are slower than the stored ones (first)."""

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Rule:
    """A tool's rule and what it measures for it."""

    name: str
    stored: int
    """Processes whose steps it compares with, the newest last."""
    fresh: int
    """Processes it runs to decide."""
    slower: Sides
    taken: Callable[[Steps], int]
    """How many of a fresh process' steps it takes."""


# pytest-benchmark


def benchmark_rounds(steps: Steps, max_seconds: float = 1.0, least: int = 5) -> int:
    """How many rounds pytest-benchmark runs of a step that needs no inner loop, at most all that were recorded.

    pytest-benchmark 5.3.1, `fixture.py`, `BenchmarkFixture._raw`: `ceil(max_time / duration)`, the duration being
    the calibrating call's, and at least `--benchmark-min-rounds` (5).
    """
    return min(len(steps), max(math.ceil(max_seconds * SECOND / int(steps[0])), least))


def precise_rounds(steps: Steps, precision: float = 0.02, confidence: float = 0.99, least: int = 5) -> int:
    """How many rounds until the mean is precise, at most `benchmark_rounds`.

    pytest-benchmark 5.3.1, `fixture.py`, `BenchmarkFixture._run_until_precise` (`--benchmark-precision`,
    `--benchmark-confidence`, new in 5.3.0): stop when the normal margin of error of the mean is at most this
    share of the mean. The precision is the one that the option's help gives as its example; there is no default.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    most = benchmark_rounds(steps, least=least)
    for rounds in range(max(least, 2), most + 1):
        seen = steps[:rounds].astype(float)
        if z * float(seen.std(ddof=1)) / math.sqrt(rounds) / float(seen.mean()) <= precision:
            return rounds
    return most


def compare_fail(
    stored: Sequence[Steps],
    fresh: Sequence[Steps],
    *,
    field: Callable[[Steps], np.floating | np.integer],
    percent: int,
    rounds: Callable[[Steps], int] = benchmark_rounds,
) -> bool:
    """`--benchmark-compare-fail=FIELD:PERCENT%` against the last saved run.

    pytest-benchmark 5.3.1, `utils.py`, `PercentageRegressionCheck`: fails when `current / saved * 100 - 100` is
    above the threshold.
    """
    saved, current = (float(field(side[-1][: rounds(side[-1])])) for side in (stored, fresh))
    return current / saved * 100 - 100 > percent


# asv


def asv_samples(steps: Steps, most: int = 5, sample_time: int = SECOND // 100) -> Floats:
    """The samples that asv takes of one process: each the mean of as many calls as last 10 ms.

    asv_runner 219f089, `benchmarks/time.py`: `sample_time` .01 s; with the default 2 rounds, at most 5 samples a
    round; a round is a process.
    """
    calls = asv_calls(steps, sample_time)
    count = min(most, len(steps) // calls)
    return np.asarray(steps[: count * calls].reshape(count, calls).mean(axis=1))


def asv_calls(steps: Steps, sample_time: int = SECOND // 100) -> int:
    """How many calls make a sample."""
    return min(len(steps), max(1, math.ceil(sample_time / float(np.median(steps)))))


def asv_different(a: Floats, b: Floats, threshold: float = 0.002) -> bool:
    """Mann-Whitney at .002 where so many samples can give that, else 99 % intervals that do not overlap.

    asv 7032df7, `_stats.py`, `is_different`; the interval is that of `asv_runner/statistics.py`,
    `quantile_ci(samples, 0.5)`. asv's own Mann-Whitney is exact up to 20 samples a side and normal above.
    """
    if 1 / math.comb(len(a) + len(b), min(len(a), len(b))) < threshold:
        method: Literal["exact", "asymptotic"] = "exact" if max(len(a), len(b)) <= 20 else "asymptotic"
        return float(stats.mannwhitneyu(a, b, alternative="two-sided", method=method).pvalue) < threshold
    (low_a, high_a), (low_b, high_b) = asv_interval(a), asv_interval(b)
    return not (high_a >= low_b and low_a <= high_b)


def asv_interval(samples: Floats, alpha: float = 0.01) -> tuple[float, float]:
    """The order statistics between which the median lies with this confidence, infinite where there are too few.

    asv falls back on a posterior interval there, which is never narrower than the samples' range.
    """
    ordered = np.sort(samples)
    below = stats.binom.cdf(np.arange(len(ordered)), len(ordered), 0.5)
    low, high = np.flatnonzero(below <= alpha / 2), np.flatnonzero(below >= 1 - alpha / 2)
    return (
        float(ordered[low[-1]]) if low.size else -math.inf,
        float(ordered[high[0]]) if high.size else math.inf,
    )


def asv_continuous(stored: Sequence[Steps], fresh: Sequence[Steps], factor: float = 1.1) -> bool:
    """`asv continuous`: significantly different, and the median of all samples above 1.1 times the other's.

    asv 7032df7, `commands/compare.py`, `_is_result_better`: `a < b / factor`, after `is_different`.
    """
    before, after = (np.concatenate([asv_samples(steps) for steps in side]) for side in (stored, fresh))
    return asv_different(before, after) and float(np.median(before)) < float(np.median(after)) / factor


# Google Benchmark


def repetitions(steps: Steps, count: int = 10) -> Floats:
    """Repetitions of one process: each the mean of equally many successive steps."""
    size = len(steps) // count
    return np.asarray(steps[: count * size].reshape(count, size).mean(axis=1))


def google_compare(stored: Sequence[Steps], fresh: Sequence[Steps], alpha: float = 0.05) -> bool:
    """`compare.py benchmarks`: two-sided Mann-Whitney over the repetitions of one process a side.

    google/benchmark 267a111, `tools/gbench/report.py`, `calc_utest` (`alternative='two-sided'`, alpha .05, 9
    repetitions or more asked for). Its output has no verdict; one that is significant and slower is taken for one.
    """
    before, after = repetitions(stored[-1]), repetitions(fresh[-1])
    p = float(stats.mannwhitneyu(before, after, alternative="two-sided").pvalue)
    return p < alpha and float(np.median(after)) > float(np.median(before))


# criterion.rs


def criterion(
    stored: Sequence[Steps],
    fresh: Sequence[Steps],
    *,
    resamples: int = 2000,
    alpha: float = 0.05,
    noise: float = 0.01,
) -> bool:
    """`cargo bench`: a bootstrapped t test, and the whole 95 % interval of the mean's change above +1 %.

    criterion.rs 567405d, `analysis/compare.rs`: Welch's t, its distribution from resamples of both samples put
    together (`stats/univariate/mixed.rs`), two-sided p as in `Distribution::p_value`, significance level .05;
    then percentiles of the bootstrapped ratio of means against `noise_threshold` .01 (`report.rs`,
    `compare_to_threshold`). 100 samples of one process; it resamples 100,000 times. The seed follows from the
    samples.
    """
    after, before = fresh[-1].astype(float), stored[-1].astype(float)
    rng = np.random.default_rng([int(before.sum()), int(after.sum())])
    together = np.concatenate([after, before])
    mixed = together[rng.integers(len(together), size=(resamples, len(together)))]
    spread = _welch(mixed[:, : len(after)], mixed[:, len(after) :])
    below = int((spread < _welch(after, before)).sum())
    if 2 * min(below, resamples - below) / resamples >= alpha:
        return False
    means = [side[rng.integers(len(side), size=(resamples, len(side)))].mean(axis=1) for side in (after, before)]
    low, high = np.percentile(means[0] / means[1] - 1, [2.5, 97.5])
    return bool(low > noise and high > noise)


def _welch(a: Floats, b: Floats) -> Floats:
    error = np.sqrt(a.var(axis=-1, ddof=1) / a.shape[-1] + b.var(axis=-1, ddof=1) / b.shape[-1])
    return np.asarray((a.mean(axis=-1) - b.mean(axis=-1)) / error)


# pyperf


def pyperf_values(steps: Steps, count: int = 3, least: int = SECOND // 10) -> Floats:
    """The values of one worker process: each the mean of as many calls as last .1 s, as far as they were recorded."""
    calls = min(max(1, math.ceil(least / float(np.median(steps)))), len(steps) // count)
    return np.asarray(steps[: count * calls].reshape(count, calls).mean(axis=1))


def pyperf_compare(stored: Sequence[Steps], fresh: Sequence[Steps]) -> bool:
    """`pyperf compare_to`: Student's pooled two-sided t test at .05 over all values of all processes.

    pyperf ab7fd04, `_utils.py`, `is_significant`: both sides with as many values, `abs(t) >= critical`. Here with
    10 processes of 3 values a side, as by `--fast`; its default is 20.
    """
    before, after = (np.concatenate([pyperf_values(steps) for steps in side]) for side in (stored, fresh))
    found = stats.ttest_ind(after, before, equal_var=True)
    return float(found.pvalue) <= 0.05 and float(found.statistic) > 0


# rustc-perf


def rustc_threshold(history: Floats, multiplier: float = 3.0) -> float:
    """Q3 + 3 IQR of the relative changes between adjacent results.

    rust-lang/rustc-perf 169b07b, `site/src/comparison.rs`, `HistoricalData::significance_threshold`; the quartiles
    are the medians of the lower and of the upper changes, as its `quartiles` cuts them.
    """
    changes = np.sort(np.abs(np.diff(history)) / history[:-1])
    half = len(changes) // 2
    lower = changes[: half - 1] if len(changes) % 2 == 0 else changes[:half]
    q1, q3 = float(np.median(lower)), float(np.median(changes[half + 1 :]))
    return q3 + multiplier * (q3 - q1)


def rustc_perf(stored: Sequence[Steps], fresh: Sequence[Steps]) -> bool:
    """rustc-perf: a change from the last result to the new one that is an outlier among 30 earlier ones.

    rust-lang/rustc-perf 169b07b, `TestResultComparison::is_significant`: `abs(change) >= threshold`, and
    `is_regression`: the new one is larger. Made for instruction counts; here a result is the median step time of
    one process.
    """
    history = np.array([np.median(steps) for steps in stored])
    change = float(np.median(fresh[-1])) / float(history[-1]) - 1
    return change > 0 and change >= rustc_threshold(history)


# bencher


def bencher_limit(history: Floats, boundary: float = 0.99) -> float:
    """The upper boundary: mean + t quantile x standard deviation.

    bencherdev/bencher 8d75325, `lib/bencher_boundary`: `MetricsLimits::new_normal` with Student's t at n - 1
    degrees of freedom, located at the mean and scaled by the standard deviation, which `mean.rs` divides by n.
    """
    return float(history.mean() + stats.t.ppf(boundary, len(history) - 1) * history.std())


def bencher(stored: Sequence[Steps], fresh: Sequence[Steps]) -> bool:
    """`bencher run --threshold-test t_test --threshold-upper-boundary 0.99`: the new mean above the boundary."""
    return float(fresh[-1].mean()) > bencher_limit(np.array([steps.mean() for steps in stored]))


def _all(steps: Steps) -> int:
    return len(steps)


RULES = (
    Rule("pytest-benchmark 5.3, `mean:5%`", 1, 1, partial(compare_fail, field=np.mean, percent=5), benchmark_rounds),
    Rule(
        "pytest-benchmark 5.3, `median:5%`", 1, 1, partial(compare_fail, field=np.median, percent=5), benchmark_rounds
    ),
    Rule("pytest-benchmark 5.3, `min:5%`", 1, 1, partial(compare_fail, field=np.min, percent=5), benchmark_rounds),
    Rule(
        "pytest-benchmark 5.3, `--benchmark-precision=0.02`, `mean:5%`",
        1,
        1,
        partial(compare_fail, field=np.mean, percent=5, rounds=precise_rounds),
        precise_rounds,
    ),
    Rule("asv continuous", 2, 2, asv_continuous, lambda steps: len(asv_samples(steps)) * asv_calls(steps)),
    Rule("Google Benchmark `compare.py`", 1, 1, google_compare, _all),
    Rule("criterion.rs", 1, 1, criterion, _all),
    Rule("pyperf `compare_to`, 10 processes", 10, 10, pyperf_compare, _all),
    Rule("rustc-perf, 30 earlier results", 30, 1, rustc_perf, _all),
    Rule("bencher, t test .99, 30 earlier results", 30, 1, bencher, _all),
)
