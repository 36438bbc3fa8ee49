"""Histories as CSV: one row for each point, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from pytest_perfdl.report.csv import cell
from pytest_perfdl.report.history.wording import environment_words
from pytest_perfdl.results.history import TestHistory

COLUMNS = (
    "test",
    "metric",
    "unit",
    "better",
    "machine_id",
    "commit",
    "date",
    "value",
    "value_ci95_low",
    "value_ci95_high",
    "paired",
    "environment",
    "environment_changes",
    "change",
    "change_probability",
    "subject",
    "note",
)


def to_csv(histories: Sequence[TestHistory]) -> str:
    """All points as CSV (RFC 4180, but lines end with a newline alone), the names of the columns first.

    `change` is the effect of a change point as a ratio, at its first point; empty elsewhere.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for history in histories:
        changes = {change.index: change for change in history.change_points}
        for index, point in enumerate(history.points):
            low, high = point.interval or (None, None)
            change = changes.get(index)
            row = (
                *(history.id, history.metric, history.unit, history.better, history.machine_id),
                *(point.commit, point.date, point.value, low, high, int(point.is_paired)),
                *(point.environment, environment_words(point)),
                *((None, None) if change is None else (change.effect, change.probability)),
                *(point.subject, point.note),
            )
            writer.writerow([cell(value) for value in row])
    return file.getvalue()
