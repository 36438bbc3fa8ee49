"""The form of `perfdl history --json`, for its schema: what `json.to_json` writes."""

from __future__ import annotations

import msgspec

from pytest_perfdl.model.record import Better


class _EnvironmentChange(msgspec.Struct):
    name: str
    base: str
    new: str


class _Point(msgspec.Struct):
    commit: str | None
    date: str
    value: float
    interval: tuple[float, float] | None
    environment: str
    environment_changes: list[_EnvironmentChange]
    paired: bool
    subject: str
    note: str | None


class _ChangePoint(msgspec.Struct):
    commit: str | None
    date: str
    point: int
    """Index of the first point of the new level."""
    effect: float
    interval: tuple[float, float]
    probability: float
    worse: bool


class _Test(msgspec.Struct):
    id: str
    metric: str
    unit: str
    better: Better
    machine_id: str
    points: list[_Point]
    change_points: list[_ChangePoint]


class HistoryForm(msgspec.Struct):
    """All histories, and one line for each file that could not be used."""

    tests: list[_Test]
    skipped: list[str]
