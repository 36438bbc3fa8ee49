"""The results of a run for other tools: CSV, Parquet and JUnit properties."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from pytest_perfdl.judge.budget import phrase
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.report import cases
from pytest_perfdl.report.layout import Column
from pytest_perfdl.report.words import shown_path, visible
from pytest_perfdl.results.numbers import numbers
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import MetricVerdict

# CSV: one row for each test and metric of a run, and for each case of a table, for spreadsheets and data frames.


def _metric_column(title: str, field: str = "", kind: str = "text") -> Column:
    """A column of a metric's field, by default that of the title."""
    return Column(title, lambda row: getattr(row[2], field or title, None), kind)


def _rate_column(name: str) -> Column:
    return Column(name, lambda row: row[3].get(name), "number")


COLUMNS = (
    Column("test", lambda row: row[1].id),
    _metric_column("metric", "name"),
    _metric_column("kind"),
    _metric_column("unit"),
    _metric_column("better"),
    _metric_column("baseline", "base", "number"),
    _metric_column("current", "new", "number"),
    _metric_column("change", "effect", "number"),
    Column("change_ci95_low", lambda row: (getattr(row[2], "ci95", None) or (None, None))[0], "number"),
    Column("change_ci95_high", lambda row: (getattr(row[2], "ci95", None) or (None, None))[1], "number"),
    Column("limit", lambda row: _limit(row[2])),
    _metric_column("verdict"),
    Column("test_verdict", lambda row: row[1].verdict),
    _metric_column("evidence"),
    _metric_column("rounds", kind="count"),
    Column("machine_id", lambda row: row[0].machine_id if row[1].new is None else row[1].new.key.slug),
    Column("commit", lambda row: row[0].commit),
    Column("date", lambda row: row[0].date),
    Column("waiver", lambda row: _waiver(row[2])),
    *map(_rate_column, cases.RATES),
)
"""Of rows (run, result, metric, rates); the metric is `None` for a test that was not measured, and only cases of tables
have rates."""
_FORMULA = ("=", "+", "-", "@")
"""A spreadsheet calculates a cell that begins with one of these."""


def to_csv(run: Run) -> str:
    """The run as CSV.

    `baseline` and `current` are in the metric's `unit`, `change` and the ends of its 95 % interval are ratios (0.1 is
    10 %). What is not known is empty. A test that has no metrics, since it was not measured, has one row without them.
    Every case of a table has a row, as the metric `case ID`, with its rates in the last columns.
    """
    return csv_text(COLUMNS, _rows(run))


def csv_text(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    """Rows as CSV (RFC 4180, but lines end with a newline alone), the titles of the columns first."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(column.title for column in columns)
    writer.writerows([cell(column.value(row)) for column in columns] for row in rows)
    return file.getvalue()


def _rows(run: Run) -> Iterator[tuple[Run, Result, MetricVerdict | None, Mapping[str, float]]]:
    for result in run.results:
        rates = {case.metric: case.rates for case in result.judgement.cases}
        for metric in cases.with_cases(result) or (None,):
            yield run, result, metric, {} if metric is None else rates.get(metric.name, {})


def _limit(metric: MetricVerdict | None) -> str | None:
    return None if metric is None or metric.limit is None else str(metric.limit)


def _waiver(metric: MetricVerdict | None) -> str | None:
    return None if metric is None or metric.waiver is None else phrase(metric.waiver)


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

    types = {"number": pyarrow.float64(), "count": pyarrow.int64(), "text": pyarrow.string()}
    rows = [{column.title: _value(column.value(row)) for column in COLUMNS} for row in _rows(run)]
    schema = pyarrow.schema([(column.title, types[column.kind]) for column in COLUMNS])
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
    """`perf.verdict`, `perf.reason`, `perf.machine_id`, `perf.report`, and what is known of each metric and case.

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
    for metric in cases.with_cases(result):
        found += [(f"perf.{visible(metric.name)}.{part}", value) for part, value in _parts(metric)]
    return found


def _parts(metric: MetricVerdict) -> list[tuple[str, object]]:
    waiver = _waiver(metric)
    words = (("verdict", metric.verdict), ("limit", _limit(metric)), ("waiver", waiver and visible(waiver)))
    return [*((name, word) for name, word in words if word is not None), *numbers(metric).items()]
