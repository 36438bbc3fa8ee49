"""Histories as one self-contained page: a picture, the changes and all points of every test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2

from pytest_perfdl.model.units import plural
from pytest_perfdl.report import templating
from pytest_perfdl.report.document import Column, Table, keyed
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.history.chart import POINTS, chart, interval_words
from pytest_perfdl.report.history.json import to_json
from pytest_perfdl.report.history.wording import change_words, environment_words, place_words, values_words
from pytest_perfdl.results.history import TestHistory
from pytest_perfdl.stats.change_points import ChangePoint

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
            json=templating.script_safe(to_json(histories)),
            **templating.frame(),
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
    environment = templating.environment()
    environment.globals.update(limit=ROWS, opened=OPEN, most_events=EVENTS)
    return environment
