"""How sure a run's verdicts are, in sentences: the chance of a false alarm, and the smallest change that would show."""

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
    said = []
    if "paired" in evidence:
        chance = format_percent(ALPHA + 2 * ROW_ALPHA, signed=False)
        said.append(
            "Times were measured in rounds of fresh processes, one of each side in turns: were the code unchanged, the "
            f"chance that any test of the run is called regressed for its times is at most {chance}."
        )
    if any(metric.in_every_round for metric in metrics):
        said.append(
            f"A suspect past its limit in every one of {EVERY_ROUND} or more rounds fails too: code that is not past "
            "its limit does so in at most one run of 32, if what disturbs it is symmetric (--perf-fail-on)."
        )
    if unpaired := evidence.count("unpaired"):
        chance = format_percent(UNPAIRED_ALPHA, signed=False)
        said.append(
            f"{plural(unpaired, 'verdict')} on times could not be confirmed in pairs: each is tested at {chance} "
            "against stored repeats, and what the machine does between two occasions comes on top."
        )
    if any(metric.kind == "counted" and metric.verdict not in (None, "unchanged") for metric in metrics):
        said.append("Counts and sizes are compared exactly within their scope: they raise no alarm by chance.")
    seen = sorted(
        metric.excluded
        for metric in metrics
        if metric.excluded is not None
        and math.isfinite(metric.excluded)
        and metric.verdict in ("unchanged", "improved")
        and general(metric.name) == "step_time"
    )
    if seen:
        middle, most = (format_percent(max(each, 0.0), signed=False) for each in (statistics.median(seen), seen[-1]))
        worst = f" (in half of the tests; {most} in all)" if len(seen) > 1 else ""
        said.append(f"A slowdown of step_time by more than {middle}{worst} is excluded with 97.5% probability.")
    return said
