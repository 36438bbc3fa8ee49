"""Histories as plain data: values in the metric's unit, effects as ratios, null for what is not known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_perfdl.results.history import Point, TestHistory
from pytest_perfdl.stats.change_points import ChangePoint

SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""


def to_json(histories: Sequence[TestHistory], skipped: Sequence[str] = ()) -> dict[str, Any]:
    """All histories; `skipped` are the files that could not be used, one line each."""
    return {"schema": SCHEMA, "tests": [_history(each) for each in histories], "skipped": list(skipped)}


def _history(history: TestHistory) -> dict[str, Any]:
    return {
        "id": history.id,
        "metric": history.metric,
        "unit": history.unit,
        "better": history.better,
        "machine_id": history.machine_id,
        "points": [_point(point) for point in history.points],
        "change_points": [_change(history, change) for change in history.change_points],
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "commit": point.commit or None,
        "date": point.date,
        "value": point.value,
        "interval": None if point.interval is None else list(point.interval),
        "environment": point.environment,
        "environment_changes": [
            {"name": name, "base": before, "new": after} for name, before, after in point.environment_changes
        ],
        "paired": point.is_paired,
        "subject": point.subject,
        "note": point.note or None,
    }


def _change(history: TestHistory, change: ChangePoint) -> dict[str, Any]:
    point = history.points[change.index]
    return {
        "commit": point.commit or None,
        "date": point.date,
        "point": change.index,
        "effect": _finite(change.effect),
        "interval": [_finite(end) for end in change.interval],
        "probability": change.probability,
        "worse": history.is_worse(change),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
