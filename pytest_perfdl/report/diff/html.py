"""A diff as one self-contained page: the same numbers as on the terminal, and more rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from pytest_perfdl.diff import causes as causes_of
from pytest_perfdl.model.units import plural
from pytest_perfdl.report import html
from pytest_perfdl.report.diff import wording
from pytest_perfdl.report.diff.json import to_json
from pytest_perfdl.report.diff.wording import (
    SURE,
    UNEXPLAINED,
    bound_words,
    cause_name,
    counterfactual_words,
    drift_words,
    effect_words,
    large_effects,
    latent_words,
    refused_words,
    replaced,
    side_words,
    slower_words,
    step_words,
    use_rows,
)
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.layout import Table, keyed
from pytest_perfdl.report.trace.tables import place
from pytest_perfdl.report.words import bound

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff, DiffCause

ROWS = 300
"""Rows of a table that the page holds; all of them are in its data, and in `--json`."""

_CAUSES = (
    keyed("Name", "name", "name"),
    keyed("Change", "own_ns", "signed"),
    keyed("Share", "share", "share"),
    keyed("Baseline", "base_ns", "ns"),
    keyed("Current", "new_ns", "ns"),
    keyed("Calls, baseline", "base_count", "count"),
    keyed("Calls, current", "new_count", "count"),
)
_SHARES = (
    keyed("Name", "name", "name"),
    keyed("Own change", "work_delta_ns", "signed"),
    keyed("Effect on the step", "share_ns", "signed"),
    keyed("Step without the change", "step_without_ns", "ns"),
    keyed("Slack", "slack_ns", "ns"),
)
_UNMATCHED = (
    keyed("Name", "name", "name"),
    keyed("Side", "side"),
    keyed("Time", "ns", "ns"),
    keyed("Module", "module"),
)
_OF_CAUSES = (
    "Machine drift is subtracted from the changes. Share: percentage of the profiled step's change. The reasons of a "
    "cause (more or fewer calls, slower or faster per call, different inputs, less or more overlap) add up to its "
    "change."
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
            json=html.script_safe(data),
            **html.frame(),
        )
    )
    write_files({path: text.encode("utf-8", "backslashreplace")})


def _headline(diffs: Sequence[tuple[str, Diff]], limit: float) -> str:
    if len(diffs) == 1:
        (_, each), words = diffs[0], step_words(diffs[0][1])
        return words if each.incomparable else f"{each.verdict(limit)}: {words}"
    verdicts = [each.verdict(limit) for _, each in diffs]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(verdicts)))
    return f"{plural(len(diffs), 'test')}: {counted}"


def _sheet(title: str, each: Diff, data: dict[str, Any], limit: float) -> dict[str, Any]:
    """What the template shows of one diff."""
    causes = [_cause(cause, row, each) for cause, row in zip(causes_of(each), data["blame"], strict=True)]
    return {
        "title": title or " and ".join(_names(each)),
        "verdict": data["verdict"],
        "incomparable": data["incomparable"],
        "step": step_words(each),
        "base": side_words(each.base),
        "new": side_words(each.new),
        "coverage": data["matching"]["coverage"],
        "detectable_ns": data["detectable_ns"],
        "notes": [
            *data["notes"],
            *filter(None, [slower_words(each, limit)]),
            *drift_words(each),
            *bound_words(each),
            *_simulated(each),
        ],
        "use": [] if each.use is None else use_rows(each.use),
        "account": wording.breakdown(each),
        "causes": Table("Causes", _CAUSES, causes, note=_OF_CAUSES, told=itemgetter("told")),
        "shares": Table(
            "Step time without each change (simulated)",
            _SHARES,
            _shares(each, data["counterfactual"]),
            note="" if each.counterfactual is None else _sentence(counterfactual_words(each.counterfactual)),
            told=itemgetter("told"),
        ),
        "modules": wording.by_place(each, "module"),
        "lines": wording.by_place(each, "line"),
        "unmatched": Table(
            "Only in baseline or only in current",
            _UNMATCHED,
            [
                {**row, "side": "baseline" if row["side"] == "base" else "current"}
                for row in data["matching"]["unmatched"]
            ],
        ),
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _names(each: Diff) -> tuple[str, str]:
    """What both sides are called in a heading: files by their names alone, where those differ."""
    base, new = (Path(side.label).name for side in (each.base, each.new))
    return (base, new) if base and new and base != new else (each.base.label, each.new.label)


def _cause(cause: DiffCause, row: dict[str, Any], each: Diff) -> dict[str, Any]:
    """A row with the reasons below its name; only what is counted has calls."""
    counted = cause.kind != "idle"
    large = large_effects(row["effects"])
    why = [
        replaced(cause),
        ", ".join(effect_words(name, ns) for name, ns in large) if cause.status == "changed" and len(large) > 1 else "",
        bound(cause.bound) if cause.bound else "",
        "uncertain match" if cause.confidence < SURE else "",
    ]
    return {
        **row,
        "name": cause_name(cause),
        "share": wording.share(cause.own_ns, each),
        "base_ns": row["base"]["ns"],
        "new_ns": row["new"]["ns"],
        "base_count": row["base"]["count"] if counted else None,
        "new_count": row["new"]["count"] if counted else None,
        "told": list(filter(None, (_where(row), "; ".join(filter(None, why))))),
    }


def _where(row: dict[str, Any]) -> str:
    return " at ".join(filter(None, (row["module"], row["graph"], place(row["line"]))))


def _simulated(each: Diff) -> list[str]:
    """Warnings of the simulation, or why there is none."""
    found = each.counterfactual
    if found is None:
        return []
    return [refused_words(found)] if found.refused else latent_words(found)


def _shares(each: Diff, data: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Rows that add up to the step's change."""
    if each.counterfactual is None or data is None or data["refused"]:
        return []
    nothing = dict.fromkeys(("work_delta_ns", "step_without_ns", "slack_ns"))
    rest = (("all other work", data["others_ns"]), (UNEXPLAINED, data["beyond_ns"]))
    return [
        *(
            {
                **row,
                "name": cause_name(share.cause),
                "told": list(filter(None, (_where(row), "currently hidden by other work" * row["latent"]))),
            }
            for share, row in zip(each.counterfactual.shares, data["shares"], strict=True)
        ),
        *({**nothing, "name": name, "share_ns": ns, "told": []} for name, ns in rest),
    ]


@cache
def _environment() -> jinja2.Environment:
    environment = html.template_environment()
    environment.globals.update(limit=ROWS)
    return environment
