"""The HTML report: one self-contained file that opens from disk, on a phone, printed, in light and dark.

The templates walk the run itself; numbers are formatted by the filters of `figures`, sentences come from
`words`. Everything that was not written here is text to them: names are escaped, control characters and marks
of writing direction are spelled out, and the page's policy lets only the page's own script run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_perfdl import units
from pytest_perfdl.judge.verdict import VERDICTS, MetricVerdict
from pytest_perfdl.report import figures, traces, words
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
_TEMPLATES = Path(__file__).parent / "templates"


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
    style, script = _asset("style.css"), _asset("script.js")
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            run=run,
            results=ranked,
            collected=collected,
            embedded=_embedded(ranked, collected),
            style=Markup(style),
            script=Markup(script),
            style_hash=_policy_hash(style),
            script_hash=_policy_hash(script),
            run_json=script_safe(to_json(run)),
        )
    )


def script_safe(data: Any) -> Markup:
    r"""JSON that may stand inside a script element: no `<`, no `&`, ASCII only.

    >>> script_safe("</script>")
    Markup('"\\u003c/script\\u003e"')
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.filters.update(
        {
            "visible": words.visible,
            "quantity": _quantity,
            "number": _number,
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
            "plural": words.plural,
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


def _finalize(value: Any) -> Any:
    """Spell out control characters in every text that a template shows."""
    if isinstance(value, Markup):
        return value
    return words.visible(value) if isinstance(value, str) else value


def _number(value: float | None) -> str:
    """A number for scripts to sort by; empty for none."""
    return "" if value is None or not math.isfinite(value) else repr(value)


def _quantity(value: float | None, unit: str, signed: bool = False) -> str:
    return "" if value is None or not math.isfinite(value) else units.format_quantity(value, unit, signed=signed)


def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _policy_hash(text: str) -> str:
    """The source expression that allows exactly this inline text, per Content Security Policy level 2."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
