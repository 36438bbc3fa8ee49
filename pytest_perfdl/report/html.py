"""The HTML report: one self-contained file that opens from disk, on a phone, printed, in light and dark.

The templates walk the run itself; numbers are formatted by the filters of `figures`, sentences come from
`words`, and `page` holds what all pages share.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from pytest_perfdl.judge.verdict import VERDICTS, MetricVerdict
from pytest_perfdl.report import figures, page, traces, words
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.json import to_json
from pytest_perfdl.report.operators import operators
from pytest_perfdl.report.run import Result, Run
from pytest_perfdl.report.strip import strip
from pytest_perfdl.report.traces import CallTraces, TraceFile

EMBEDDED_BYTES = 16 * 2**20
"""Traces embedded in the page for Perfetto, compressed bytes in all; the worst tests' come first."""
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
"""A verdict's sign, so that colour is never the only one."""


def write_html(run: Run, path: Path) -> None:
    """Write the page.

    Raises
    ------
    ReportError
        When it cannot be written; an earlier page is then still whole.
    """
    write_files({path: render(run, traces.collect(run)).encode("utf-8", "backslashreplace")})


def render(run: Run, collected: Mapping[str, Sequence[CallTraces]]) -> str:
    """The page as text; `collected` are the run's traces by test, as `traces.collect` gives them."""
    ranked = words.worst_first(run.results)
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            run=run,
            results=ranked,
            collected=collected,
            embedded=_embedded(ranked, collected),
            run_json=page.script_safe(to_json(run)),
            **page.frame(),
        )
    )


def headline_metric(result: Result) -> MetricVerdict | None:
    """The metric that a row about the test shows: its worst one, else its step time."""
    ordered = words.metrics_worst_first(result.judgement.metrics)
    telling = [metric for metric in ordered if words.judged(metric)]
    timed = [metric for metric in ordered if metric.name.rpartition(".")[2] == "step_time"]
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


def _strip_of(metric: MetricVerdict, result: Result) -> Markup | None:
    sides = [
        [] if side is None or metric.name not in side.metrics() else list(side.metrics()[metric.name].values)
        for side in (result.base, result.new)
    ]
    return strip(words.visible(metric.name), metric.unit, sides[0], sides[1])


@cache
def _environment() -> jinja2.Environment:
    environment = page.environment()
    environment.filters.update(
        {
            "value": figures.value,
            "effect": figures.effect,
            "interval": figures.interval,
            "times_over": figures.times_over,
            "detectable": figures.detectable,
            "cause_count": figures.cause_count,
            "cause_time": figures.cause_time,
            "cause_effect": figures.cause_effect,
            "cause_share": figures.cause_share,
            "cause_status": figures.cause_status,
            "symbol": SYMBOLS.__getitem__,
            "rank": VERDICTS.index,
        }
    )
    environment.globals.update(
        words=words,
        figures=figures,
        verdicts=VERDICTS,
        strip=_strip_of,
        operators=operators,
        headline_metric=headline_metric,
        main_trace=main_trace,
    )
    return environment
