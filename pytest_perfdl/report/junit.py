"""JUnit: the properties of a perf test, for `item.user_properties`."""

from __future__ import annotations

from pytest_perfdl.judge.waivers import phrase
from pytest_perfdl.report.words import shown_path, visible
from pytest_perfdl.results.numbers import numbers
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import MetricVerdict


def properties(result: Result, run: Run) -> list[tuple[str, object]]:
    """`perf.verdict`, `perf.reason`, `perf.machine_id`, `perf.report` and, for each metric, what is known of it.

    `perf.step_time.verdict`, `.limit` and `.waiver` are text; `.baseline_seconds`, `.current_seconds`, `.change_ratio`,
    `.change_ci95_low_ratio` and `.change_ci95_high_ratio` are finite numbers, with the unit at the end of the name
    (seconds, bytes, ratios, or that of the metric). What is not known is absent.
    """
    found: list[tuple[str, object]] = [
        ("perf.verdict", result.verdict),
        ("perf.reason", visible(result.judgement.reason)),
        ("perf.machine_id", visible(run.machine_id)),
        ("perf.report", shown_path(run, run.report_dir / "index.html")),
    ]
    for metric in result.metrics:
        found += [(f"perf.{visible(metric.name)}.{part}", value) for part, value in _parts(metric)]
    return found


def _parts(metric: MetricVerdict) -> list[tuple[str, object]]:
    waiver = None if metric.waiver is None else visible(phrase(metric.waiver))
    words = (("verdict", metric.verdict), ("limit", metric.limit), ("waiver", waiver))
    return [*((name, word) for name, word in words if word is not None), *numbers(metric).items()]
