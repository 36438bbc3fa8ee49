"""How sure a run's verdicts are, in sentences: the false-positive rate, and the smallest change that would show."""

from __future__ import annotations

import math
import statistics

from pytest_perfdl.judge.kernels import ALPHA as ROW_ALPHA
from pytest_perfdl.judge.stopping_rule import ALPHA, EVERY_ROUND
from pytest_perfdl.judge.stored_repeats import UNPAIRED_ALPHA
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.units import format_percent, plural
from pytest_perfdl.results.run import Run


def certainty(run: Run) -> list[str]:
    """One sentence for each kind of evidence that the run's verdicts on times rest on, and one on what it could see."""
    if not run.judged:
        return []
    metrics = [metric for result in run.results for metric in result.judgement.metrics]
    evidence = [metric.evidence for metric in metrics if metric.verdict not in (None, "unchanged")]
    sentences = []
    if "paired" in evidence:
        chance = format_percent(ALPHA + 2 * ROW_ALPHA, signed=False)
        sentences.append(
            "Times were compared in paired rounds: a fresh process of the baseline commit and one of the current "
            "code alternate in blocks of timed steps, and which one goes first is random. "
            f"False-positive rate for the whole run: at most {chance}."
        )
    if any(metric.in_every_round for metric in metrics):
        sentences.append(
            f"A suspect test also fails if it exceeds its limit in every round, after at least {EVERY_ROUND} rounds "
            "(--perf-fail-on). If the noise is symmetric, code within its limit fails this way in at most 1 of "
            f"{2**EVERY_ROUND} runs."
        )
    if unpaired := evidence.count("unpaired"):
        chance = format_percent(UNPAIRED_ALPHA, signed=False)
        sentences.append(
            f"{plural(unpaired, 'verdict')} on times could not be confirmed in paired rounds: the false-positive rate "
            f"of each verdict is {chance}, and higher if the machine changed since the baseline was recorded."
        )
    if any(metric.kind == "counted" and metric.verdict not in (None, "unchanged") for metric in metrics):
        sentences.append("Counted metrics are deterministic and cannot cause false positives.")
    seen = sorted(
        metric.excluded
        for metric in metrics
        if metric.excluded is not None
        and math.isfinite(metric.excluded)
        and metric.excluded > 0
        and metric.verdict == "unchanged"
        and general(metric.name) == "step_time"
    )
    if seen:
        middle, most = (format_percent(each, signed=False) for each in (statistics.median(seen), seen[-1]))
        what = "Minimum detectable slowdown of step_time (97.5% probability)"
        sentences.append(
            f"{what}: {middle} in half of the tests, {most} in all tests." if len(seen) > 1 else f"{what}: {middle}."
        )
    return sentences
