"""Histories: on the terminal, as JSON and CSV, and as a page.

- `page`: the text on the terminal, a sparkline and the changes of every test.
- `to_json` and `to_csv`: all points, for other programs.
- `write_page`: the page; `chart` draws its pictures.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from pytest_perfdl.model.json import filled, plain
from pytest_perfdl.model.record import Better
from pytest_perfdl.model.units import format_percent, format_quantity, plural, some
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import html, layout, svg
from pytest_perfdl.report.exports import cell
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.layout import Column, Table, keyed
from pytest_perfdl.report.svg import Axis
from pytest_perfdl.results.curve import Point, TestHistory
from pytest_perfdl.stats.change_points import ChangePoint

# Sentences on changes, environments and notes of a history.


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


# Histories as CSV: one row for each point, for spreadsheets and data frames.


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


# `perfdl history --json`: values in the metric's unit, effects as ratios, null for what is not known.


SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""


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


def to_json(histories: Sequence[TestHistory], skipped: Sequence[str] = ()) -> dict[str, Any]:
    """All histories as plain data; `skipped` are the files that could not be used, one line each."""
    return {"schema": SCHEMA, **plain(HistoryForm([_history(each) for each in histories], list(skipped)))}


def _history(history: TestHistory) -> _Test:
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


def _point(point: Point) -> _Point:
    return filled(
        _Point,
        point,
        commit=point.commit or None,
        environment_changes=[_EnvironmentChange(*each) for each in point.environment_changes],
        paired=point.is_paired,
        note=point.note or None,
    )


# Histories as one self-contained page: a picture, the changes and all points of every test.


ROWS = 300
"""Rows of a table that the page holds; all of them are in its data, and in `--json`."""
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
    text = (
        _environment()
        .get_template("history.html.j2")
        .render(
            headline=_headline(histories),
            sheets=[_sheet(each) for each in newest_first],
            json=html.script_safe(to_json(histories)),
            **html.frame(),
        )
    )
    write_files({path: text.encode("utf-8", "backslashreplace")})


def _columns(history: TestHistory) -> list[Column]:
    return [
        keyed("Commit", "commit"),
        keyed("Date", "date", "short"),
        keyed("Value", "value", history.unit),
        keyed("95% interval", "interval", "short"),
        keyed("Change", "change"),
        keyed("Environment", "environment"),
    ]


def _last_change(history: TestHistory) -> str:
    """Date of the newest change; empty if there is none."""
    return max((history.points[change.index].date for change in history.change_points), default="")


def _headline(histories: Sequence[TestHistory]) -> str:
    changes = [each.is_worse(change) for each in histories for change in each.change_points]
    tests = plural(len({each.id for each in histories}), "test")
    return f"{tests}: {plural(sum(changes), 'change')} for the worse, {len(changes) - sum(changes)} for the better"


def _sheet(history: TestHistory) -> dict[str, Any]:
    """What the template shows of one history."""
    changes = {change.index: change for change in history.change_points}
    rows = [
        {
            "commit": point.name or "unknown",
            "date": point.date[:16].replace("T", " "),
            "value": point.value,
            "interval": interval_words(history, point),
            "change": change_words(history, changes[index]) if index in changes else "",
            "environment": _arrows(environment_words(point)),
            "told": [text for text in (point.subject, f"note: {point.note}" if point.note else "") if text],
        }
        for index, point in enumerate(history.points)
    ]
    return {
        "history": history,
        "values": _arrows(values_words(history)),
        "chart": chart(history),
        "hidden": max(0, len(history.points) - POINTS),
        "events": _events(history, changes),
        "points": Table("Points", _columns(history), rows[::-1], told=itemgetter("told")),
    }


def _events(history: TestHistory, changes: Mapping[int, ChangePoint]) -> list[dict[str, Any]]:
    """Changes of the level and of the environment, and notes, the newest first."""
    found: list[dict[str, Any]] = []
    for index, point in reversed(list(enumerate(history.points))):
        place, note = place_words(point), f"note: {point.note}" if point.note else ""
        if index in changes:
            name = "up" if history.is_worse(changes[index]) else "down"
            told = list(filter(None, (point.subject, note)))
            found.append({"name": name, "place": place, "words": change_words(history, changes[index]), "told": told})
        elif note:
            found.append({"name": "of-note", "place": place, "words": note, "told": []})
        if words := _arrows(environment_words(point)):
            found.append({"name": "of-environment", "place": place, "words": f"environment: {words}", "told": []})
    return found


def _arrows(text: str) -> str:
    """Text of a terminal, with the arrows of pages."""
    return text.replace(" -> ", " \N{RIGHTWARDS ARROW} ")


@cache
def _environment() -> jinja2.Environment:
    environment = html.template_environment()
    environment.globals.update(limit=ROWS, opened=OPEN, most_events=EVENTS)
    return environment


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
    told = list(_told(history))
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


def _told(history: TestHistory) -> Iterator[str]:
    """One text for each change, environment and note, the oldest first."""
    changes = {change.index: change for change in history.change_points}
    for index, point in enumerate(history.points):
        if index in changes:
            subject = f": {visible(point.subject)}" if point.subject else ""
            yield f"^ {place_words(point)} {change_words(history, changes[index])}{subject}"
        if point.environment_changes:
            yield f"| {place_words(point)} environment: {environment_words(point)}"
        if point.note:
            yield f"  {place_words(point)} note: {visible(point.note)}"
