"""Joins verdicts on assertions and curves with the result of a test."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from pytest_perfdl.model.record import Finding
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import FailOn, MetricVerdict, Verdict, worst


def joined(
    result: Result,
    metrics: Sequence[MetricVerdict],
    findings: Sequence[Finding] = (),
    *,
    fail_on: Set[FailOn],
    of_baseline: bool = False,
) -> Result:
    """A result with further metrics and findings: the worst verdict of all, and why.

    A test that failed before still does, whatever is added.

    Parameters
    ----------
    findings
        Say why where no metric does; one of level "invalid" makes the test `invalid`.
    fail_on
        Verdicts that fail a test.
    of_baseline
        Whether the metrics were compared with the baseline: a run that records a new one does not fail because of them.
    """
    known = result.judgement
    added: list[Verdict] = [metric.outcome for metric in metrics if metric.outcome is not None]
    added += ["invalid" for finding in findings if finding.level == "invalid"]
    verdict = worst([*added, known.verdict])
    telling = [f"{metric.name}: {metric.reason}" for metric in metrics if metric.outcome == verdict and metric.reason]
    telling = telling or [finding.message for finding in findings if finding.level == verdict]
    reasons = [*telling, known.reason] if verdict == known.verdict or not telling else telling
    judgement = replace(
        known,
        verdict=verdict,
        reason="; ".join(filter(None, reasons)),
        metrics=(*known.metrics, *metrics),
        integrity=(*known.integrity, *findings),
    )
    lifted = of_baseline and result.updated and worst(added) != "invalid"
    return replace(result, judgement=judgement, fails=result.fails or (worst(added) in fail_on and not lifted))
