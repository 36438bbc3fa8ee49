"""The HTML report: one self-contained file that opens from disk, on a phone, printed, in light and dark.

The templates walk the run itself; numbers are formatted by the filters of `figures`, sentences come from
`words`, and `page` holds what all pages share. What is long or drawn is in the page as data (`details`) and becomes
tables and charts (`charts`) when a test is opened.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.units import format_percent
from pytest_perfdl.report import charts, compared, figures, memory, templating, traces, words
from pytest_perfdl.report.certainty import certainty
from pytest_perfdl.report.details import Names, details
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.json import to_json, without_records
from pytest_perfdl.report.scaling import html as curves
from pytest_perfdl.report.scaling.wording import figure
from pytest_perfdl.report.traces import CallTraces, TraceFile
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import VERDICTS, MetricVerdict

EMBEDDED_BYTES = 3 * 2**20
"""Traces embedded in the page for Perfetto, compressed bytes in all; the worst tests' come first."""
OPEN_AT_MOST = 10
"""Tests that need a look and are open when the page is; the others open on request."""
PLAIN_AT_MOST = 60
"""With more tests than these a folded one is in the page compressed, and only notable ones are accounted for."""
SYMBOLS = {
    "invalid": "✕",
    "regressed": "▲",
    "missing": "∅",
    "outdated": "↻",
    "suspect": "△",
    "changed": "≠",
    "inconclusive": "?",
    "incomparable": "∥",
    "improved": "▼",
    "unchanged": "=",
    "new": "+",
    "unmeasured": "–",
}
"""A verdict's sign, so that color is never the only one."""


def write_html(run: Run, path: Path) -> None:
    """Write the page.

    Raises
    ------
    ReportError
        When it cannot be written; an earlier page is then still whole.
    """
    write_files({path: render(run, traces.collect(run)).encode("utf-8", "backslashreplace")})


def render(run: Run, collected: Mapping[str, Sequence[CallTraces]], data: dict[str, Any] | None = None) -> str:
    """The page as text.

    Parameters
    ----------
    collected
        The run's traces by test, as `traces.collect` gives them.
    data
        What `to_json` makes of the run, where that is at hand.
    """
    ranked = words.worst_first(run.results)
    wanted = [number for number, result in enumerate(ranked, start=1) if words.notable(result)]
    open_first = frozenset(wanted[:OPEN_AT_MOST] if len(ranked) > 1 else [1])
    inert = len(ranked) > PLAIN_AT_MOST
    embedded = _embedded(ranked, collected)
    names = Names()
    shared = {"run": run, "collected": collected, "embedded": embedded}
    found = []
    for number, result in enumerate(ranked, start=1):
        traces_of = collected.get(result.id, ())
        accounted = not inert or words.notable(result)
        peaks = None if result.new is None else run.peaks.get(result.new.key.slug)
        one = details(result, traces_of, names, embedded=tuple(embedded), accounted=accounted, peaks=peaks)
        if inert and number not in open_first:
            body = _environment().get_template("_body.html.j2")
            one["html"] = body.render(**shared, result=result, number=number, anchors={result.id: anchor(result.id)})
            found.append(_Details(templating.packed(json.dumps(one, allow_nan=False)), False))
        else:
            found.append(_Details(templating.script_safe(one), True))
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            **shared,
            results=ranked,
            run_json=templating.script_safe(without_records(to_json(run) if data is None else data)),
            details=found,
            names=templating.script_safe(names.listed()),
            library=charts.library(),
            anchors={result.id: anchor(result.id) for result in ranked},
            open_first=open_first,
            inert=inert,
            sure=certainty(run),
            todo=words.run_commands(run) if len(ranked) > 1 else [],
            **templating.frame("charts.js", "timeline.js", "report.js"),
        )
    )


@dataclass(frozen=True, slots=True)
class _Details:
    """A test's data as it stands in the page."""

    text: str
    plain: bool
    """Whether it is JSON, and the test's part of the page is there; else both are in it, packed."""


def anchor(test: str) -> str:
    """The id of a test's part of the page, the same in every run: what a link to it ends with."""
    return f"test-{traces.stem(test, '')}"


def headline_metric(result: Result) -> MetricVerdict | None:
    """The metric that a row about the test shows: its worst one, else its step time."""
    ordered = words.metrics_worst_first(result.judgement.metrics)
    telling = [metric for metric in ordered if words.judged(metric)]
    timed = [metric for metric in ordered if general(metric.name) == "step_time"]
    return next(iter([*telling, *timed, *ordered]), None)


def _embedded(ranked: Sequence[Result], collected: Mapping[str, Sequence[CallTraces]]) -> dict[str, str]:
    """Base64 of one trace for each call: both sides if there is such a picture, while the room lasts."""
    chosen: dict[str, str] = {}
    room = EMBEDDED_BYTES
    for result in ranked:
        for call in collected.get(result.id, ()):
            file = main_trace(call)
            if file is not None and len(file.data) <= room:
                room -= len(file.data)
                chosen[file.name] = base64.b64encode(file.data).decode("ascii")
    return chosen


def main_trace(call: CallTraces) -> TraceFile | None:
    """The trace to open first: both sides, else this run's, else the baseline's."""
    by_role = {file.role: file for file in call.files}
    return by_role.get("diff") or by_role.get("new") or by_role.get("base")


@cache
def _environment() -> jinja2.Environment:
    environment = templating.environment()
    environment.filters.update(
        {
            "value": figures.value,
            "effect": figures.effect,
            "interval": figures.interval,
            "times_over": figures.times_over,
            "excluded": figures.excluded,
            "cause_count": figures.cause_count,
            "cause_time": figures.cause_time,
            "cause_effect": figures.cause_effect,
            "cause_share": figures.cause_share,
            "cause_status": figures.cause_status,
            "capitalized": lambda text: text[:1].upper() + text[1:],
            "symbol": SYMBOLS.__getitem__,
            "rank": VERDICTS.index,
        }
    )
    environment.globals.update(
        words=words,
        memory=memory,
        compared=compared,
        figures=figures,
        curves=curves,
        figure=figure,
        share=format_percent,
        verdicts=VERDICTS,
        headline_metric=headline_metric,
        main_trace=main_trace,
        trace_labels=traces.LABELS,
    )
    return environment
