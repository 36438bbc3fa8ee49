"""CSV: one row for each test and metric of a run, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import math

from pytest_perfdl.judge.waivers import phrase
from pytest_perfdl.report.words import visible
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import MetricVerdict

COLUMNS = (
    "test",
    "metric",
    "kind",
    "unit",
    "better",
    "baseline",
    "current",
    "change",
    "change_ci95_low",
    "change_ci95_high",
    "limit",
    "verdict",
    "test_verdict",
    "evidence",
    "rounds",
    "machine_id",
    "commit",
    "date",
    "waiver",
)
_FORMULA = ("=", "+", "-", "@")
"""A spreadsheet calculates a cell that begins with one of these."""


def to_csv(run: Run) -> str:
    """The run as CSV (RFC 4180, but lines end with a newline alone), the names of the columns first.

    `baseline` and `current` are in the metric's `unit`, `change` and the ends of its 95 % interval are ratios (0.1 is
    10 %). What is not known is empty. A test that has no metrics, since it was not measured, has one row without them.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in run.results:
        for metric in result.metrics or (None,):
            row = cells(run, result, metric)
            writer.writerow([cell(row.get(column)) for column in COLUMNS])
    return file.getvalue()


def cells(run: Run, result: Result, metric: MetricVerdict | None) -> dict[str, str | float | None]:
    """The values of a row by column; a column that is not known may be absent, and numbers may not be finite."""
    found: dict[str, str | float | None] = {
        "test": result.id,
        "test_verdict": result.verdict,
        "machine_id": run.machine_id if result.new is None else result.new.key.slug,
        "commit": run.commit,
        "date": run.date,
    }
    if metric is not None:
        low, high = metric.ci95 or (None, None)
        found |= {
            "metric": metric.name,
            "kind": metric.kind,
            "unit": metric.unit,
            "better": metric.better,
            "baseline": metric.base,
            "current": metric.new,
            "change": metric.effect,
            "change_ci95_low": low,
            "change_ci95_high": high,
            "limit": metric.limit,
            "verdict": metric.verdict,
            "evidence": metric.evidence,
            "rounds": metric.rounds,
            "waiver": None if metric.waiver is None else phrase(metric.waiver),
        }
    return found


def cell(value: str | float | None) -> str:
    """A cell that no spreadsheet calculates; empty for what is not known."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = visible(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    if not math.isfinite(value):
        return ""
    return str(int(value)) if float(value).is_integer() else repr(value)
