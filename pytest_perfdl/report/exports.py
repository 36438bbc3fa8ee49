"""The results of a run for other tools: CSV, Parquet and JUnit properties."""

from __future__ import annotations

import csv
import io
import math
from importlib.util import find_spec
from typing import Any

from pytest_perfdl.judge.budget import phrase
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.report.words import shown_path, visible
from pytest_perfdl.results.numbers import numbers
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import MetricVerdict

# CSV: one row for each test and metric of a run, for spreadsheets and data frames.


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
            "limit": None if metric.limit is None else str(metric.limit),
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


# Parquet: the table of `to_csv` with typed columns, for data frames and warehouses.


_NUMBERS = frozenset({"baseline", "current", "change", "change_ci95_low", "change_ci95_high"})


def to_parquet(run: Run) -> bytes:
    """The run as one Parquet table; what is not known is null.

    Raises
    ------
    CommandError
        pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise CommandError("--format parquet needs pyarrow: pip install pyarrow")
    import pyarrow
    from pyarrow import parquet

    def kind(column: str) -> Any:
        if column in _NUMBERS:
            return pyarrow.float64()
        return pyarrow.int64() if column == "rounds" else pyarrow.string()

    found = (cells(run, result, metric) for result in run.results for metric in result.metrics or (None,))
    rows = [{column: _value(row.get(column)) for column in COLUMNS} for row in found]
    schema = pyarrow.schema([(column, kind(column)) for column in COLUMNS])
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


def _value(value: str | float | None) -> str | float | None:
    """A cell: text without control characters, and finite numbers only."""
    if isinstance(value, str):
        return visible(value)
    return value if value is not None and math.isfinite(value) else None


# JUnit: the properties of a perf test, for `item.user_properties`.


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
    words = (
        ("verdict", metric.verdict),
        ("limit", None if metric.limit is None else str(metric.limit)),
        ("waiver", waiver),
    )
    return [*((name, word) for name, word in words if word is not None), *numbers(metric).items()]
