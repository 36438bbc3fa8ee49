"""The HTML report: one self-contained file that opens from disk, on a phone, printed, in light and dark.

Each test is a card, whose first screen is its `story`; sections below it are folded. The templates walk the run itself;
numbers are formatted by the filters of `figures`, sentences come from `words`. What is long or drawn is in the page as
data (`details`) and becomes tables and charts (`charts`) when its section is opened.
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
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import charts, compared, figures, memory, ranks, templating, traces, words
from pytest_perfdl.report.certainty import certainty
from pytest_perfdl.report.details import Names, details
from pytest_perfdl.report.evidence import pictures
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.frames import name_words
from pytest_perfdl.report.scaling import html as curves
from pytest_perfdl.report.scaling.wording import figure
from pytest_perfdl.report.story import CauseGroup, Story, frame_place, largest_groups, rest_of, story
from pytest_perfdl.report.traces import CallTraces, TraceFile
from pytest_perfdl.results.memory_causes import cause_name
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.run_file import to_json
from pytest_perfdl.results.trace_files import stem
from pytest_perfdl.results.verdict import VERDICTS, Cause, Judgement, MetricVerdict

EMBEDDED_BYTES = 3 * 2**20
"""Traces embedded in the page for Perfetto, compressed bytes in all; the worst tests' come first."""
OPEN_AT_MOST = 10
"""Tests that need a look and are open when the page is; the others open on request."""
PLAIN_AT_MOST = 60
"""With more tests than these a folded one is in the page compressed, and only notable ones have matched rows."""
CAUSES_LISTED = 12
"""Most causes of a test that its table lists; the others are one row."""
LEAST_SHARE = 0.01
"""Part of the step's change that a cause after the first has at least to be listed."""
LEAST_MEMBER = 0.02
"""Part of a cause's largest change that another part of it has at least to be listed."""
ALSO_SHOWN = 4
"""Most further metrics that the first screen names."""
RECORDED = "recorded"
"""Shown in place of the verdict of a test whose baseline the run wrote."""
SYMBOLS = {
    compared.TEST_ERROR_WORD: "✕",
    "invalid": "✕",
    "regressed": "▲",
    "missing": "∅",
    "outdated": "↻",
    "waived": "◇",
    "suspect": "△",
    "changed": "≠",
    "inconclusive": "?",
    "incomparable": "∥",
    "improved": "▼",
    "unchanged": "=",
    "new": "+",
    "unmeasured": "–",
    RECORDED: "●",
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
    library = charts.library()
    shared = {
        "run": run,
        "collected": collected,
        "embedded": embedded,
        "library": library,
        "stories": {result.id: story(result, run) for result in ranked},
        "anchors": {result.id: anchor(result.id) for result in ranked},
    }
    found = []
    for number, result in enumerate(ranked, start=1):
        traces_of = collected.get(result.id, ())
        accounted = not inert or words.notable(result)
        peaks = None if result.new is None else run.peaks.get(result.new.key.slug)
        one = details(result, traces_of, names, embedded=tuple(embedded), accounted=accounted, peaks=peaks)
        if inert and number not in open_first:
            body = _environment().get_template("_body.html.j2")
            one["html"] = body.render(**shared, result=result, number=number, data=one)
            found.append(_Details(templating.packed(json.dumps(one, allow_nan=False)), False, {}))
        else:
            found.append(_Details(templating.script_safe(one), True, one))
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            **shared,
            results=ranked,
            run_json=templating.script_safe(without_records(to_json(run) if data is None else data)),
            details=found,
            names=templating.script_safe(names.listed()),
            open_first=open_first,
            inert=inert,
            sure=certainty(run),
            todo=words.run_commands(run) if len(ranked) > 1 else [],
            **templating.frame("charts.js", "timeline.js", "report.js"),
        )
    )


def without_records(data: dict[str, Any]) -> dict[str, Any]:
    """The run file's data less what a page shows in a form of its own: records, operators, accounts, repeats."""
    tests = []
    for test in data["tests"]:
        kept = {name: value for name, value in test.items() if name not in _SHOWN_OTHERWISE}
        kept["metrics"] = {
            name: {entry: value for entry, value in metric.items() if entry not in ("base_values", "new_values")}
            for name, metric in test["metrics"].items()
        }
        tests.append(kept)
    return {**data, "tests": tests}


_SHOWN_OTHERWISE = frozenset({"record", "base_record", "base_now", "operators", "rank_times", "breakdowns", "memory"})


@dataclass(frozen=True, slots=True)
class _Details:
    """A test's data as it stands in the page."""

    text: str
    plain: bool
    """Whether it is JSON, and the test's part of the page is there; else both are in it, packed."""
    data: Mapping[str, Any]
    """What the text is of, where it is plain."""


def anchor(test: str) -> str:
    """The id of a test's part of the page, the same in every run: what a link to it ends with."""
    return f"test-{stem(test, '')}"


def chips(results: Sequence[Result]) -> list[tuple[str, int]]:
    """How many tests have each shown verdict, the worst verdict first."""
    found = [words.word(result) for result in results]
    return [(word, found.count(word)) for word in (compared.TEST_ERROR_WORD, *VERDICTS, RECORDED) if word in found]


def headline_metric(result: Result, told: Story) -> MetricVerdict | None:
    """The metric that a row about the test shows: its story's, else its step time, else its first."""
    timed = [metric for metric in result.judgement.metrics if general(metric.name) == "step_time"]
    return next(iter([*([told.headline] if told.headline else []), *timed, *result.judgement.metrics]), None)


def evidence_words(metric: MetricVerdict) -> str:
    """What a metric's change rests on: "95% interval +43.5% to +46.9%, limit 10%, 12 paired rounds"."""
    parts = []
    if figures.interval(metric):
        low, high = (format_percent(end) for end in metric.ci95 or ())
        parts.append(f"95% interval {low} to {high}")
    elif metric.kind != "timed":
        parts.append("exact")
    if metric.limit is not None:
        parts.append(figures.limit(metric))
    if metric.evidence == "paired" and metric.rounds:
        parts.append(plural(metric.rounds, "paired round"))
    elif metric.evidence == "unpaired":
        parts.append("no paired rounds: compared with the recorded baseline")
    if _excludes(metric):
        parts.append(f"slowdowns above {figures.excluded(metric)} are excluded")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class MetricGroups:
    """The metrics of a test by how much they say, the worst first in each."""

    changed: list[MetricVerdict]
    minor: list[MetricVerdict]
    """With a verdict that says little beside the test's."""
    same: list[MetricVerdict]
    shown: list[MetricVerdict]
    """Without a limit."""

    @property
    def gist(self) -> str:
        """How many there are of each, "2 changed, 8 unchanged, 4 without a limit"."""
        counts = (
            (self.changed, "changed"),
            (self.minor, "with a minor change"),
            (self.same, "unchanged"),
            (self.shown, "without a limit"),
        )
        return ", ".join(f"{len(each)} {word}" for each, word in counts if each)

    @property
    def folded(self) -> str:
        """The same of those that are folded, "8 unchanged metrics, 4 metrics without a limit"."""
        counts = (
            (self.minor, "metric with a minor change", "metrics with a minor change"),
            (self.same, "unchanged metric", "unchanged metrics"),
            (self.shown, "metric without a limit", "metrics without a limit"),
        )
        return ", ".join(plural(len(each), *word) for each, *word in counts if each)


def split_metrics(judgement: Judgement) -> MetricGroups:
    """The metrics of a test by how much they say."""
    ordered = words.metrics_worst_first(judgement.metrics, judgement.verdict)
    judged = [metric for metric in ordered if words.judged(metric)]
    changed = [metric for metric in judged if words.matters(metric, judgement)]
    minor = [metric for metric in judged if metric not in changed]
    exact = [metric for metric in ordered if metric.verdict is None and metric.kind != "timed" and metric.effect == 0]
    same = [metric for metric in ordered if metric.verdict in ("unchanged", "new")] + exact
    return MetricGroups(changed, minor, same, [metric for metric in ordered if metric not in (*judged, *same)])


def excluded_sentences(metrics: Sequence[MetricVerdict]) -> list[str]:
    """Which slowdowns the paired rounds of a time that passed exclude."""
    return [
        f"A slowdown of {metric.name} by more than {figures.excluded(metric)} is excluded with 97.5% probability."
        for metric in metrics
        if _excludes(metric)
    ]


def _excludes(metric: MetricVerdict) -> bool:
    passes = metric.verdict in ("unchanged", "improved")
    return passes and bool(figures.excluded(metric))


def measurement_gist(judgement: Judgement) -> str:
    """How a test was measured, in a few words: "12 paired rounds, 3 notes"."""
    rounds = max((metric.rounds or 0 for metric in judgement.metrics), default=0)
    notes = len(words.told_findings(judgement))
    parts = [plural(rounds, "paired round") if rounds else "", plural(notes, "note") if notes else ""]
    return ", ".join(filter(None, parts))


def is_paired(judgement: Judgement) -> bool:
    """Whether paired rounds were measured."""
    return any(metric.evidence == "paired" for metric in judgement.metrics)


def listed_causes(told: Story) -> tuple[CauseGroup, ...]:
    """The causes that a test's table lists; the rest is one row of it."""
    return largest_groups(told.groups, CAUSES_LISTED)


def members(group: CauseGroup) -> tuple[list[Cause], int, int]:
    """The parts of a cause that hold its change, largest first; how many others there are, and their change."""
    most = max((abs(cause.delta_ns) for cause in group.causes), default=0)
    ordered = sorted(group.causes, key=lambda cause: -abs(cause.delta_ns))
    listed = [cause for cause in ordered if abs(cause.delta_ns) >= LEAST_MEMBER * most][:CAUSES_LISTED]
    others = [cause for cause in ordered if cause not in listed]
    return listed, len(others), sum(cause.delta_ns for cause in others)


def memory_gist(judgement: Judgement) -> str:
    """How the peak changed, "peak +30.40 MiB"; empty where that is not known."""
    return ", ".join(
        f"peak {format_quantity(change.new.peak_bytes - change.base.peak_bytes, 'B', signed=True)}"
        for change in judgement.memory
        if change.base is not None and change.new.peak_bytes != change.base.peak_bytes
    )


def has_places(data: Mapping[str, Any]) -> bool:
    """Whether a test's traces tell modules or source lines."""
    return any(call["modules"] or call["lines"] for call in data["calls"])


def has_memory(data: Mapping[str, Any]) -> bool:
    """Whether a test's traces or measurements have memory to draw."""
    return bool(data["peaks"]) or any(call["memory"] for call in data["calls"])


def has_history(data: Mapping[str, Any]) -> bool:
    """Whether there are step times of more than one recording."""
    return any(times for one in data["history"] for times in one["step_time"].values())


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
    """The trace to open first: both sides, else the current one, else the baseline's."""
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
            "change": figures.change,
            "cause_count": figures.cause_count,
            "cause_time": figures.cause_time,
            "cause_effect": figures.cause_effect,
            "cause_share": figures.cause_share,
            "cause_status": figures.cause_status,
            "capitalized": lambda text: text[:1].upper() + text[1:],
            "arrow": lambda text: text.replace("->", "→"),
            "main_trace": main_trace,
            "symbol": SYMBOLS.__getitem__,
        }
    )
    environment.globals.update(
        words=words,
        name_words=name_words,
        frame_place=frame_place,
        cause_name=cause_name,
        memory=memory,
        compared=compared,
        figures=figures,
        curves=curves,
        figure=figure,
        share=format_percent,
        also_shown=ALSO_SHOWN,
        chips=chips,
        headline=words.headline,
        headline_metric=headline_metric,
        evidence_words=evidence_words,
        split_metrics=split_metrics,
        excluded_sentences=excluded_sentences,
        measurement_gist=measurement_gist,
        is_paired=is_paired,
        listed_causes=listed_causes,
        members=members,
        pictures=pictures,
        rest_of=rest_of,
        memory_gist=memory_gist,
        has_places=has_places,
        has_memory=has_memory,
        has_history=has_history,
        trace_labels=traces.LABELS,
        rank_classes=[name.capitalize() for name in ranks.CLASSES],
        rank_rows=ranks.rank_rows,
        rank_sentences=ranks.sentences,
        ranks_gist=ranks.gist,
        ranks_left_out=ranks.left_out,
        waits_table=ranks.waits_table,
    )
    return environment
