"""Parquet: the table of `csv` with typed columns, for data frames and warehouses."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.report.csv import COLUMNS, cells
from pytest_perfdl.report.words import visible
from pytest_perfdl.results.run import Run

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
