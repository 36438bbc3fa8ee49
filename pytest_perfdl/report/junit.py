"""JUnit: the properties of a perf test, for `item.user_properties`."""

from __future__ import annotations

import math

from pytest_perfdl.report.words import shown_path, visible
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import MetricVerdict


def properties(result: Result, run: Run) -> list[tuple[str, object]]:
    """`perf.verdict`, `perf.key`, `perf.report` and, for each metric, what is known of it.

    Values are strings and finite numbers: base and new in the metric's base unit (nanoseconds, bytes), change
    and interval in per cent. What is unknown is absent.
    """
    found: list[tuple[str, object]] = [
        ("perf.verdict", result.judgement.verdict),
        ("perf.reason", visible(result.judgement.reason)),
        ("perf.key", run.key.slug),
        ("perf.report", shown_path(run, run.report_dir / "index.html")),
    ]
    for metric in result.judgement.metrics:
        name = f"perf.{visible(metric.name)}"
        found += [(f"{name}.{part}", value) for part, value in _parts(metric) if _known(value)]
    return found


def _parts(metric: MetricVerdict) -> list[tuple[str, object]]:
    low, high = metric.ci95 or (None, None)
    return [
        ("unit", metric.unit),
        ("base", metric.base),
        ("new", metric.new),
        ("delta_pct", _percent(metric.effect)),
        ("ci_low", _percent(low)),
        ("ci_high", _percent(high)),
        ("limit", metric.limit),
        ("verdict", metric.verdict),
    ]


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None or not math.isfinite(ratio) else round(ratio * 100, 4)


def _known(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))
