"""Histories on a terminal: for every test a sparkline, its values and its changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.history.wording import change_words, environment_words, place_words, values_words
from pytest_perfdl.results.history import TestHistory

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=+*#"
"""Levels of a sparkline, where the terminal's encoding has no blocks."""
_LEAST_SPREAD = 0.05
"""A sparkline spans this share of the values at least: noise must not look like a change."""
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
