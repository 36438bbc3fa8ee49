"""A diff as one page that opens from disk: the same figures as on the terminal, and all of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from pytest_perfdl.report import page
from pytest_perfdl.report.diff.json import to_json
from pytest_perfdl.report.diff.terminal import bound_words, columns_of, drift_words, step_words
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.words import plural

if TYPE_CHECKING:
    from pytest_perfdl.judge.diff import Diff

ROWS = 300
"""Rows of a table that the page holds; all of them are in its data, and in `--json`."""


def write_page(path: Path, diffs: Sequence[tuple[str, Diff]], limit: float) -> None:
    """Write the page.

    Raises
    ------
    ReportError
        When it cannot be written; an earlier page is then still whole.
    """
    data = to_json(diffs, limit)
    found = data["tests"] or [data]
    text = (
        _environment()
        .get_template("diff.html.j2")
        .render(
            data=data,
            headline=_headline(diffs, limit),
            sheets=[_sheet(title, each, one) for (title, each), one in zip(diffs, found, strict=True)],
            json=page.script_safe(data),
            **page.frame(),
        )
    )
    write_files({path: text.encode("utf-8", "backslashreplace")})


def _headline(diffs: Sequence[tuple[str, Diff]], limit: float) -> str:
    if len(diffs) == 1:
        return f"{diffs[0][1].verdict(limit)}: {step_words(diffs[0][1])}"
    verdicts = [each.verdict(limit) for _, each in diffs]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(verdicts)))
    return f"{plural(len(diffs), 'test')}: {counted}"


def _sheet(title: str, each: Diff, data: dict[str, Any]) -> dict[str, Any]:
    """What the template shows of one diff."""
    causes = [
        {
            **cause,
            **cause["effects"],
            "base_ns": cause["base"]["ns"],
            "new_ns": cause["new"]["ns"],
            "base_count": cause["base"]["count"],
            "new_count": cause["new"]["count"],
        }
        for cause in data["blame"]
    ]
    return {
        "title": title or f"{each.base.label} and {each.new.label}",
        "verdict": data["verdict"],
        "step": step_words(each),
        "base": f"{each.base.label}, {columns_of(each.base)}",
        "new": f"{each.new.label}, {columns_of(each.new)}",
        "coverage": data["matching"]["coverage"],
        "detectable_ns": data["detectable_ns"],
        "notes": [*drift_words(each), *bound_words(each)],
        "account": [{**line, "name": line["class"]} for line in data["account"]],
        "causes": causes,
        "modules": data["modules"],
        "lines": data["lines"],
        "unmatched": data["matching"]["unmatched"],
    }


@cache
def _environment() -> jinja2.Environment:
    environment = page.environment()
    environment.globals.update(limit=ROWS)
    return environment
