"""Sentences on changes, environments and notes of a history."""

from __future__ import annotations

import math

from pytest_perfdl.model.units import format_percent, format_quantity, some
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results.history import Point, TestHistory
from pytest_perfdl.stats.change_points import ChangePoint


def values_words(history: TestHistory) -> str:
    """First and last value, "41.20 -> 45.08 ms (+9.4%)", or what both are."""
    first, last = history.points[0].value, history.points[-1].value
    if first == last:
        return format_quantity(first, history.unit)
    before, after = format_quantity(first, history.unit), format_quantity(last, history.unit)
    number, _, unit = before.partition(" ")
    pair = f"{number} -> {after}" if unit and after.endswith(f" {unit}") else f"{before} -> {after}"
    return f"{pair} ({format_percent(last / first - 1)})" if first > 0 else pair


def place_words(point: Point) -> str:
    """Commit and day of a point: "3f2c1abf9 2026-05-02"."""
    return " ".join(filter(None, (visible(point.name) or "unknown commit", visible(point.date[:10]))))


def change_words(history: TestHistory, change: ChangePoint) -> str:
    """What a change was: "+9.4% [+8.9%, +9.9%] (worse), probability 99.9%"."""
    words = effect_words(change)
    if change.interval[0] != change.interval[1]:
        words += f" [{format_percent(change.interval[0])}, {format_percent(change.interval[1])}]"
    words += " (worse)" if history.is_worse(change) else " (better)"
    return words if change.probability == 1 else f"{words}, probability {probability_words(change.probability)}"


def effect_words(change: ChangePoint) -> str:
    """The change of the level; of one from 0, which has no ratio, only that."""
    return format_percent(change.effect) if math.isfinite(change.effect) else "from 0"


def probability_words(probability: float) -> str:
    """A probability near 1 as a percentage that is not rounded to 100 %.

    >>> probability_words(0.95), probability_words(0.99996)
    ('95.0%', '>99.9%')
    """
    return ">99.9%" if probability > 0.999 else f"{probability * 100:.1f}%"


def environment_words(point: Point) -> str:
    """What changed in the environment: "torch 2.12.0 -> 2.13.0"; empty for nothing."""
    return visible(some([f"{name} {before} -> {after}" for name, before, after in point.environment_changes]))
