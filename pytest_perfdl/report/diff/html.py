"""A diff as one self-contained page: the same numbers as on the terminal, and more rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_perfdl.diff import causes as causes_of
from pytest_perfdl.model.units import plural
from pytest_perfdl.report import html
from pytest_perfdl.report.diff import wording
from pytest_perfdl.report.diff.json import to_json
from pytest_perfdl.report.diff.wording import (
    SURE,
    bound_words,
    cause_name,
    drift_words,
    large_effects,
    latent_words,
    refused_words,
    replaced_words,
    side_words,
    slower_words,
    step_words,
    use_rows,
)
from pytest_perfdl.report.figures import effect_words
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.words import bound

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff, DiffCause

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
    html.write_page(
        path,
        "diff.html.j2",
        headline=_headline(diffs, limit),
        compared=" and ".join(_names(diffs[0][1])),
        sheets=[_sheet(title, each, limit) for title, each in diffs],
        json=html.script_safe(to_json(diffs, limit)),
    )


def _headline(diffs: Sequence[tuple[str, Diff]], limit: float) -> str:
    if len(diffs) == 1:
        (_, each), words = diffs[0], step_words(diffs[0][1])
        return words if each.incomparable else f"{each.verdict(limit)}: {words}"
    verdicts = [each.verdict(limit) for _, each in diffs]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(verdicts)))
    return f"{plural(len(diffs), 'test')}: {counted}"


def _sheet(title: str, each: Diff, limit: float) -> dict[str, Any]:
    """What the template shows of one diff."""
    found = each.counterfactual
    return {
        "title": title or " and ".join(_names(each)),
        "verdict": each.verdict(limit),
        "incomparable": each.incomparable,
        "step": step_words(each),
        "base": side_words(each.base),
        "new": side_words(each.new),
        "coverage": each.coverage,
        "detectable_ns": None if each.detectable_ns is None else round(each.detectable_ns),
        "notes": [
            *filter(None, [each.devices]),
            *each.notes,
            *filter(None, [slower_words(each, limit)]),
            *drift_words(each),
            *bound_words(each),
            *_simulated(each),
        ],
        "use": [] if each.use is None else use_rows(each.use),
        "tables": {
            "account": wording.breakdown(each),
            "causes": _causes(each),
            **({} if found is None or found.refused else {"shares": wording.shares(found)}),
            "modules": wording.by_place(each, "module"),
            "lines": wording.by_place(each, "line"),
            "unmatched": _unmatched(each),
        },
    }


def _names(each: Diff) -> tuple[str, str]:
    """What both sides are called in a heading: files by their names alone, where those differ."""
    base, new = (Path(side.label).name for side in (each.base, each.new))
    return (base, new) if base and new and base != new else (each.base.label, each.new.label)


def _causes(each: Diff) -> Table:
    """The causes, with the reasons below each name; only what is counted has calls."""
    columns = (
        Column("Name", cause_name, "name"),
        Column("Change", lambda cause: round(cause.own_ns), "signed"),
        Column("Share", lambda cause: wording.share(cause.own_ns, each), "share"),
        Column("Baseline", lambda cause: round(cause.base.ns), "ns"),
        Column("Current", lambda cause: round(cause.new.ns), "ns"),
        Column("Calls, baseline", lambda cause: None if cause.kind == "idle" else cause.base.count, "count"),
        Column("Calls, current", lambda cause: None if cause.kind == "idle" else cause.new.count, "count"),
    )
    return Table("Causes", columns, causes_of(each), note=_OF_CAUSES, told=_reasons)


def _reasons(cause: DiffCause) -> list[str]:
    large = large_effects(cause.effects_ns)
    why = [
        replaced_words(cause),
        ", ".join(effect_words(name, ns) for name, ns in large) if cause.status == "changed" and len(large) > 1 else "",
        bound(cause.bound) if cause.bound else "",
        "uncertain match" if cause.confidence < SURE else "",
    ]
    return list(filter(None, (wording.where(cause), "; ".join(filter(None, why)))))


def _unmatched(each: Diff) -> Table:
    columns = (
        Column("Name", lambda row: row[1].name, "name"),
        Column("Side", lambda row: "baseline" if row[0].base_parts else "current"),
        Column("Time", lambda row: row[0].base_ns + row[0].new_ns, "ns"),
        Column("Module", lambda row: row[1].module),
    )
    rows = [(change, part) for change in each.alone for part in (*change.base_parts, *change.new_parts)]
    return Table("Only in baseline or only in current", columns, rows)


def _simulated(each: Diff) -> list[str]:
    """Warnings of the simulation, or why there is none."""
    found = each.counterfactual
    if found is None:
        return []
    return [refused_words(found)] if found.refused else latent_words(found)
