"""A diff as one page that opens from disk: the same figures as on the terminal, and all of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.report import templating
from pytest_perfdl.report.diff.json import to_json
from pytest_perfdl.report.diff.terminal import (
    bound_words,
    columns_of,
    counterfactual_words,
    drift_words,
    large_effects,
    latent_words,
    refused_words,
    slower_words,
    step_words,
    use_rows,
)
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.words import bound

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff

ROWS = 300
"""Rows of a table that the page holds; all of them are in its data, and in `--json`."""

Column = tuple[str, str, str]
"""Heading, key of a row, and kind of value, of what stands beside a name and what is told of it."""

CAUSES: tuple[Column, ...] = (
    ("Change", "own_ns", "signed"),
    ("Of the change", "share", "share"),
    ("Before", "base_ns", "ns"),
    ("After", "new_ns", "ns"),
    ("Count before", "base_count", "count"),
    ("Count after", "new_count", "count"),
)
SHARES: tuple[Column, ...] = (
    ("Its work changed by", "work_delta_ns", "signed"),
    ("The step by", "share_ns", "signed"),
    ("Step without it", "step_without_ns", "ns"),
    ("Slack left", "slack_ns", "ns"),
)


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
            compared=" and ".join(_names(diffs[0][1])),
            sheets=[_sheet(title, each, one, limit) for (title, each), one in zip(diffs, found, strict=True)],
            json=templating.script_safe(data),
            **templating.frame(),
        )
    )
    write_files({path: text.encode("utf-8", "backslashreplace")})


def _headline(diffs: Sequence[tuple[str, Diff]], limit: float) -> str:
    if len(diffs) == 1:
        return f"{diffs[0][1].verdict(limit)}: {step_words(diffs[0][1])}"
    verdicts = [each.verdict(limit) for _, each in diffs]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(verdicts)))
    return f"{plural(len(diffs), 'test')}: {counted}"


def _sheet(title: str, each: Diff, data: dict[str, Any], limit: float) -> dict[str, Any]:
    """What the template shows of one diff."""
    causes = list(map(_cause, data["blame"]))
    shares = _shares(data["counterfactual"])
    return {
        "title": title or " and ".join(_names(each)),
        "verdict": data["verdict"],
        "step": step_words(each),
        "base": f"{each.base.label}, {columns_of(each.base)}",
        "new": f"{each.new.label}, {columns_of(each.new)}",
        "coverage": data["matching"]["coverage"],
        "detectable_ns": data["detectable_ns"],
        "notes": [
            *filter(None, [slower_words(each, limit)]),
            *drift_words(each),
            *bound_words(each),
            *_simulated(each),
        ],
        "use": [] if each.use is None else use_rows(each.use),
        "account": [{**line, "name": line["class"], "share": _plain(line["share"])} for line in data["account"]],
        "causes": causes,
        "cause_columns": _told(CAUSES, causes),
        "shares": shares,
        "share_columns": _told(SHARES, shares),
        "shares_note": "" if each.counterfactual is None else counterfactual_words(each.counterfactual),
        "modules": data["modules"],
        "lines": data["lines"],
        "unmatched": data["matching"]["unmatched"],
    }


def _names(each: Diff) -> tuple[str, str]:
    """What both sides are called in a heading: files by their names alone, where those differ."""
    base, new = (Path(side.label).name for side in (each.base, each.new))
    return (base, new) if base and new and base != new else (each.base.label, each.new.label)


def _cause(cause: dict[str, Any]) -> dict[str, Any]:
    """A row, with what is told below its name; counts only of what is counted."""
    counted = cause["kind"] != "idle"
    why = large_effects(cause["effects"])
    told = [
        "" if cause["status"] == "changed" else cause["status"],
        ", ".join(f"{name} {format_quantity(ns, 'ns', signed=True)}" for name, ns in why) if len(why) > 1 else "",
        bound(cause["bound"]) if cause["bound"] else "",
        f"matched with confidence {cause['confidence']:.2f}" if cause["confidence"] < 1 else "",
    ]
    return {
        **cause,
        "share": _plain(cause["share"]),
        "base_ns": cause["base"]["ns"],
        "new_ns": cause["new"]["ns"],
        "base_count": cause["base"]["count"] if counted else None,
        "new_count": cause["new"]["count"] if counted else None,
        "told": list(filter(None, (_where(cause), "; ".join(filter(None, told))))),
    }


def _where(row: dict[str, Any]) -> str:
    return " at ".join(filter(None, (row["module"], row["line"])))


def _plain(share: float | None) -> float | None:
    """A share without the sign that rounding to zero would leave."""
    return 0.0 if share is not None and abs(share) < 0.0005 else share


def _told(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> list[Column]:
    """The columns that say something of any row."""
    return [column for column in columns if any(row[column[1]] is not None for row in rows)]


def _simulated(each: Diff) -> list[str]:
    """What the simulation warns of, or why there is none."""
    found = each.counterfactual
    if found is None:
        return []
    return [refused_words(found)] if found.refused else latent_words(found)


def _shares(data: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Rows that add up to the step's change."""
    if data is None or data["refused"]:
        return []
    nothing = dict.fromkeys(("work_delta_ns", "step_without_ns", "slack_ns"))
    rest = (("all other work", data["others_ns"]), ("not from durations", data["beyond_ns"]))
    return [
        *(
            {**share, "told": list(filter(None, (_where(share), "latent: the step does not pay" * share["latent"])))}
            for share in data["shares"]
        ),
        *({**nothing, "name": name, "share_ns": ns, "told": []} for name, ns in rest),
    ]


@cache
def _environment() -> jinja2.Environment:
    environment = templating.environment()
    environment.globals.update(limit=ROWS)
    return environment
