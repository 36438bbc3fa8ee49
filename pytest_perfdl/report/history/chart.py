"""A history as SVG: values with their intervals over commits, changes and environments as vertical lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import svg
from pytest_perfdl.report.history.wording import change_words, environment_words, place_words, values_words
from pytest_perfdl.report.svg import Axis
from pytest_perfdl.results.history import Point, TestHistory

POINTS = 1000
"""Most points that are drawn: the newest ones."""
_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 36, 14, 52
_LABELS = 5
"""Commits that the axis names; on phones, every other one is hidden."""
_LEAST_SPREAD = 0.05
"""The axis spans this share of the values at least: noise must not look like a change."""


def chart(history: TestHistory) -> Markup:
    """The picture, with what a pointer reads of each point, change and environment."""
    label = f"{history.metric} over {len(history.points)} points: {values_words(history)}. The table below has all."
    return svg.picture("plot history", label, _WIDTH, _HEIGHT, _drawn(history))


def point_words(history: TestHistory, point: Point) -> str:
    """All of a point, one line each: value, commit, date, subject, environment and note."""
    value = format_quantity(point.value, history.unit)
    lines = [f"{value} {interval_words(history, point)}".strip(), place_words(point), visible(point.subject)]
    if environment_words(point):
        lines.append(f"environment: {environment_words(point)}")
    if point.note:
        lines.append(f"note: {visible(point.note)}")
    return "\n".join(filter(None, lines))


def interval_words(history: TestHistory, point: Point) -> str:
    """The interval of a value; empty where it is the value alone."""
    if point.interval is None or point.interval[0] == point.interval[1]:
        return ""
    return "[{}, {}]".format(*(format_quantity(end, history.unit) for end in point.interval))


def _drawn(history: TestHistory) -> Iterator[Markup]:
    """Everything inside the picture, in the order of painting."""
    first = max(0, len(history.points) - POINTS)
    points = history.points[first:]
    bottom = _HEIGHT - _BOTTOM
    x = Axis(-0.5, len(points) - 0.5, _LEFT, _WIDTH - _RIGHT).at
    up = Axis(*_range(points), bottom, _TOP)
    marks = [(tick, format_quantity(tick, history.unit)) for tick in up.ticks()]
    yield from svg.frame(up, marks, _LEFT, _WIDTH - _RIGHT)
    for number, place in enumerate(_labelled(len(points))):
        labelled = points[place]
        yield Markup(
            '<text class="{0}" y="{1}" text-anchor="middle"><tspan x="{2:.1f}" dy="1.4em">{3}</tspan>'
            '<tspan x="{2:.1f}" dy="1.2em">{4}</tspan></text>'
        ).format(
            "wide-only" if number % 2 else "", bottom, x(place), visible(labelled.name), visible(labelled.date[:10])
        )
    for index, point in enumerate(points):
        if point.environment_changes:
            yield svg.target("environment", x(index - 0.5), _TOP, bottom, point_words(history, point))
    for change in history.change_points:
        if change.index >= first:
            point = points[change.index - first]
            words = f"{change_words(history, change)}\n{point_words(history, point)}"
            name = "change worse" if history.is_worse(change) else "change better"
            yield svg.target(name, x(change.index - first - 0.5), _TOP, bottom, words)
    yield svg.line("line", [(x(index), up.at(point.value)) for index, point in enumerate(points)])
    for index, point in enumerate(points):
        if interval_words(history, point) and point.interval is not None:
            lower, upper = point.interval
            yield svg.rule("whisker", x(index), up.at(lower), up.at(upper))
    size = 3.5 if len(points) <= 100 else 2
    for index, point in enumerate(points):
        yield svg.dot("point", x(index), up.at(point.value), size, point_words(history, point))


def _range(points: Sequence[Point]) -> tuple[float, float]:
    """Ends of the axis of values."""
    ends = [end for point in points for end in (point.value, *(point.interval or ()))]
    low, high = min(ends), max(ends)
    least = _LEAST_SPREAD * max(abs(low), abs(high)) or 1.0
    more = max(0.05 * (high - low), (least - (high - low)) / 2)
    return low - more, high + more


def _labelled(count: int) -> list[int]:
    """Points whose commits the axis names, evenly spaced."""
    if count <= _LABELS:
        return list(range(count))
    return [round(place * (count - 1) / (_LABELS - 1)) for place in range(_LABELS)]
