"""Histories: on the terminal, as JSON and CSV, and as a page.

- `page`: the text on the terminal, a sparkline and the changes of every test.
- `to_json` and `to_csv`: all points, for other programs.
- `write_page`: the page; `chart` draws its pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from pytest_perfdl.model.json import derived, filled, plain
from pytest_perfdl.model.units import format_percent, format_quantity, plural, some
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import html, layout, svg
from pytest_perfdl.report.exports import csv_text
from pytest_perfdl.report.figures import pair
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.svg import Axis
from pytest_perfdl.results.curve import Point, TestHistory
from pytest_perfdl.stats.change_points import ChangePoint

# Sentences on changes, environments and notes of a history.


def values_words(history: TestHistory) -> str:
    """First and last value, "41.20 -> 45.08 ms (+9.4%)", or what both are."""
    first, last = history.points[0].value, history.points[-1].value
    if first == last:
        return format_quantity(first, history.unit)
    both = pair(first, last, history.unit)
    return f"{both} ({format_percent(last / first - 1)})" if first > 0 else both


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


# A history as SVG: values with their intervals over commits, changes and environments as vertical lines.


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
    return svg.picture("plot history", label, _WIDTH, _HEIGHT, _draw(history))


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


def _draw(history: TestHistory) -> Iterator[Markup]:
    """Everything inside the picture, in the order of painting."""
    first = max(0, len(history.points) - POINTS)
    points = history.points[first:]
    bottom = _HEIGHT - _BOTTOM
    x = Axis(-0.5, len(points) - 0.5, _LEFT, _WIDTH - _RIGHT).at
    up = Axis(*_range(points), bottom, _TOP)
    marks = [(tick, format_quantity(tick, history.unit)) for tick in up.ticks()]
    yield from svg.frame(up, marks, _LEFT, _WIDTH - _RIGHT)
    for number, place in enumerate(_choose_labels(len(points))):
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


def _choose_labels(count: int) -> list[int]:
    """Points whose commits the axis names, evenly spaced."""
    if count <= _LABELS:
        return list(range(count))
    return [round(place * (count - 1) / (_LABELS - 1)) for place in range(_LABELS)]


# Histories as CSV: one row for each point, for spreadsheets and data frames.


def _history_column(title: str, field: str = "") -> Column:
    return Column(title, lambda row: getattr(row[0], field or title))


def _point_column(title: str) -> Column:
    return Column(title, lambda row: getattr(row[1], title))


COLUMNS = (
    _history_column("test", "id"),
    _history_column("metric"),
    _history_column("unit"),
    _history_column("better"),
    _history_column("machine_id"),
    _point_column("commit"),
    _point_column("date"),
    _point_column("value"),
    Column("value_ci95_low", lambda row: (row[1].interval or (None, None))[0]),
    Column("value_ci95_high", lambda row: (row[1].interval or (None, None))[1]),
    Column("paired", lambda row: int(row[1].is_paired)),
    _point_column("environment"),
    Column("environment_changes", lambda row: environment_words(row[1])),
    Column("change", lambda row: getattr(row[2], "effect", None)),
    Column("change_probability", lambda row: getattr(row[2], "probability", None)),
    _point_column("subject"),
    _point_column("note"),
)
"""Of rows (history, point, change); the change is that whose first point this is, or `None`."""


def to_csv(histories: Sequence[TestHistory]) -> str:
    """All points as CSV, `change` as a ratio."""
    rows = (
        (history, point, changes.get(index))
        for history in histories
        for changes in [_changes(history)]
        for index, point in enumerate(history.points)
    )
    return csv_text(COLUMNS, rows)


def _changes(history: TestHistory) -> dict[int, ChangePoint]:
    """The changes by the place of their first point."""
    return {change.index: change for change in history.change_points}


# `perfdl history --json`: values in the metric's unit, effects as ratios, null for what is not known.


SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""


class _EnvironmentChange(msgspec.Struct):
    name: str
    base: str
    new: str


_Point = derived(
    "Point",
    Point,
    first=("commit", "date", "value", "interval", "environment", "environment_changes", "paired"),
    without=("is_paired",),
    more={
        **dict.fromkeys(("commit", "note"), str | None),
        "environment_changes": list[_EnvironmentChange],
        "paired": bool,
    },
)
_ChangePoint = derived(
    "ChangePoint",
    ChangePoint,
    first=("commit", "date", "point"),
    without=("index",),
    more={"commit": str | None, "date": str, "point": int, "worse": bool},
)
"""A change of the level; `point` is the index of its first point."""
_LISTS = {"points": list[_Point], "change_points": list[_ChangePoint]}  # type: ignore[valid-type]
_Test = derived("Test", TestHistory, more=_LISTS)


class HistoryForm(msgspec.Struct):
    """All histories, and one line for each file that could not be used."""

    tests: list[_Test]  # type: ignore[valid-type]
    skipped: list[str]


def to_json(histories: Sequence[TestHistory], skipped: Sequence[str] = ()) -> dict[str, Any]:
    """All histories as plain data; `skipped` are the files that could not be used, one line each."""
    return {"schema": SCHEMA, **plain(HistoryForm([_history(each) for each in histories], list(skipped)))}


def _history(history: TestHistory) -> Any:
    changes = [
        filled(
            _ChangePoint,
            change,
            commit=history.points[change.index].commit or None,
            date=history.points[change.index].date,
            point=change.index,
            worse=history.is_worse(change),
        )
        for change in history.change_points
    ]
    return filled(_Test, history, points=[_point(each) for each in history.points], change_points=changes)


def _point(point: Point) -> Any:
    return filled(
        _Point,
        point,
        commit=point.commit or None,
        environment_changes=[_EnvironmentChange(*each) for each in point.environment_changes],
        paired=point.is_paired,
        note=point.note or None,
    )


# Histories as one self-contained page: a picture, the changes and all points of every test.


OPEN = 20
"""Tests that are not folded."""
EVENTS = 20
"""Changes above the picture of a test: the newest ones."""


def write_page(path: Path, histories: Sequence[TestHistory]) -> None:
    """Write the page.

    Raises
    ------
    ReportError
        When it cannot be written; an earlier page is then still whole.
    """
    newest_first = sorted(histories, key=_last_change, reverse=True)
    html.write_page(
        path,
        "history.html.j2",
        headline=_headline(histories),
        sheets=[_sheet(each) for each in newest_first],
        json=html.script_safe(to_json(histories)),
        opened=OPEN,
        most_events=EVENTS,
    )


def _last_change(history: TestHistory) -> str:
    """Date of the newest change; empty if there is none."""
    return max((history.points[change.index].date for change in history.change_points), default="")


def _headline(histories: Sequence[TestHistory]) -> str:
    changes = [each.is_worse(change) for each in histories for change in each.change_points]
    tests = plural(len({each.id for each in histories}), "test")
    return f"{tests}: {plural(sum(changes), 'change')} for the worse, {len(changes) - sum(changes)} for the better"


def _sheet(history: TestHistory) -> dict[str, Any]:
    """What the template shows of one history."""
    return {
        "history": history,
        "values": _arrows(values_words(history)),
        "chart": chart(history),
        "hidden": max(0, len(history.points) - POINTS),
        "events": list(_events(history)),
        "points": _points(history),
    }


def _points(history: TestHistory) -> Table:
    """All points, the newest first."""
    changes = _changes(history)
    columns = (
        Column("Commit", lambda row: row[1].name or "unknown"),
        Column("Date", lambda row: row[1].date[:16].replace("T", " "), "short"),
        Column("Value", lambda row: row[1].value, history.unit),
        Column("95% interval", lambda row: interval_words(history, row[1]), "short"),
        Column("Change", lambda row: change_words(history, changes[row[0]]) if row[0] in changes else ""),
        Column("Environment", lambda row: _arrows(environment_words(row[1]))),
    )
    rows = list(enumerate(history.points))[::-1]
    return Table("Points", columns, rows, told=lambda row: _point_notes(row[1]))


def _point_notes(point: Point) -> list[str]:
    """The subject and the note of a point, where it has them."""
    return [text for text in (point.subject, f"note: {point.note}" if point.note else "") if text]


def _events(history: TestHistory) -> Iterator[dict[str, Any]]:
    """Changes of the level and of the environment, and notes, the newest first."""
    changes = _changes(history)
    for index, point in reversed(list(enumerate(history.points))):
        place = place_words(point)
        if index in changes:
            name = "up" if history.is_worse(changes[index]) else "down"
            words = change_words(history, changes[index])
            yield {"name": name, "place": place, "words": words, "told": _point_notes(point)}
        elif point.note:
            yield {"name": "of-note", "place": place, "words": f"note: {point.note}", "told": []}
        if words := _arrows(environment_words(point)):
            yield {"name": "of-environment", "place": place, "words": f"environment: {words}", "told": []}


def _arrows(text: str) -> str:
    """Text of a terminal, with the arrows of pages."""
    return text.replace(" -> ", " \N{RIGHTWARDS ARROW} ")


# Histories on a terminal: for every test a sparkline, its values and its changes.


BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=+*#"
"""Levels of a sparkline, where the terminal's encoding has no blocks."""
_INDENT = 2
_MOST_LINES = 12
"""Lines on changes, environments and notes of one series; the newest ones are shown."""


def page(histories: Sequence[TestHistory], width: int, *, blocks: bool = True) -> str:
    """All histories, those of one test under its id.

    Parameters
    ----------
    width
        Columns of the terminal.
    blocks
        Whether its encoding has block elements.
    """
    lines: list[str] = []
    test = machine = None
    several = len({each.machine_id for each in histories}) > 1
    for each in histories:
        if each.id != test:
            lines += ["", visible(each.id)] if lines else [visible(each.id)]
            test, machine = each.id, None
        if several and each.machine_id != machine:
            lines.append(f"{' ' * _INDENT}machine ID {visible(each.machine_id)}")
            machine = each.machine_id
        lines += _block(each, width, blocks)
    worse = sum(each.is_worse(change) for each in histories for change in each.change_points)
    better = sum(len(each.change_points) for each in histories) - worse
    tests = len({each.id for each in histories})
    lines += ["", f"{plural(tests, 'test')}, {plural(worse, 'change')} for the worse, {better} for the better"]
    return "\n".join(lines)


def sparkline(values: Sequence[float], columns: int, levels: str = BLOCKS) -> str:
    """Values as characters of increasing height; means of neighbors where there are more than columns.

    >>> sparkline([10, 10, 11, 20], 8), sparkline([10, 10, 20, 20], 2, ASCII)
    ('▁▁▂█', '_#')
    """
    means = [
        math.fsum(part) / len(part) for part in (values[first:last] for first, last in _bins(len(values), columns))
    ]
    low, high = min(means), max(means)
    least = _LEAST_SPREAD * max(abs(low), abs(high))
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    if high == low:
        return levels[0] * len(means)
    top = len(levels) - 1
    return "".join(levels[round((value - low) / (high - low) * top)] for value in means)


def _bins(points: int, columns: int) -> list[tuple[int, int]]:
    """First point, and the one after the last, of each column."""
    count = min(points, columns)
    return [(points * place // count, points * (place + 1) // count) for place in range(count)]


def _block(history: TestHistory, width: int, blocks: bool) -> Iterator[str]:
    values = [point.value for point in history.points]
    space = " " * _INDENT
    columns = width - 2 * _INDENT
    yield from layout.paragraph(
        f"{visible(history.metric)}  {values_words(history)}, {plural(len(values), 'point')}", _INDENT, width, more=2
    )
    yield f"{space * 2}{sparkline(values, columns, BLOCKS if blocks else ASCII)}"
    marks = _marks(history, columns)
    if marks.strip():
        yield f"{space * 2}{marks}".rstrip()
    told = list(_event_lines(history))
    if len(told) > _MOST_LINES:
        yield f"{space * 2}{plural(len(told) - _MOST_LINES, 'earlier change')} not shown (--json has all)"
    for text in told[-_MOST_LINES:]:
        yield from layout.paragraph(text, 2 * _INDENT, width, more=2)


def _marks(history: TestHistory, columns: int) -> str:
    """Below the sparkline: `^` where the level changed, `|` where the environment did."""
    changed = {change.index for change in history.change_points}
    marks = ""
    for first, last in _bins(len(history.points), columns):
        has_environment = any(point.environment_changes for point in history.points[first:last])
        marks += "^" if changed.intersection(range(first, last)) else "|" if has_environment else " "
    return marks


def _event_lines(history: TestHistory) -> Iterator[str]:
    """One text for each change, environment and note, the oldest first."""
    changes = _changes(history)
    for index, point in enumerate(history.points):
        if index in changes:
            subject = f": {visible(point.subject)}" if point.subject else ""
            yield f"^ {place_words(point)} {change_words(history, changes[index])}{subject}"
        if point.environment_changes:
            yield f"| {place_words(point)} environment: {environment_words(point)}"
        if point.note:
            yield f"  {place_words(point)} note: {visible(point.note)}"
