"""The HTML report: one self-contained file that opens from disk, on a phone, printed, in light and dark.

Each test is a card, whose first screen is its `story`; sections below it are folded. The templates walk the run itself;
numbers are formatted by the filters of `figures`, sentences come from `words`. What is long or drawn is in the page as
data (`details`) and becomes tables and charts (`templates/charts.js`) when its section is opened.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_perfdl.judge.kernels import ALPHA as ROW_ALPHA
from pytest_perfdl.judge.stopping_rule import ALPHA, EVERY_ROUND
from pytest_perfdl.judge.stored_repeats import UNPAIRED_ALPHA
from pytest_perfdl.model import units
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import cases, compared, figures, memory, ranks, traces, words
from pytest_perfdl.report import scaling as curves
from pytest_perfdl.report.details import Names, details
from pytest_perfdl.report.evidence import pictures
from pytest_perfdl.report.figures import name_words
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.story import CauseGroup, Story, frame_place, largest_groups, rest_of, story
from pytest_perfdl.report.traces import CallTraces, TraceFile
from pytest_perfdl.results.memory_causes import cause_name
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.run_file import to_json
from pytest_perfdl.results.trace_files import stem
from pytest_perfdl.results.verdict import VERDICTS, Cause, Judgement, MetricVerdict

# What every page of ours is made with: templates, styles, scripts, and a policy that lets only these run.
#
# Everything that was not written here is text to the templates: names are escaped, control characters and marks of
# writing direction are spelled out.


_TEMPLATES = Path(__file__).parent / "templates"


ROWS = 300
"""Rows of a table that a page holds; all of them are in its data, and in `--json`."""
COLUMNS = 10
"""Columns of such a table; of one with more, a page holds as many cells."""


def write_page(path: Path, template: str, **shown: Any) -> None:
    """Write the page of a command.

    Raises
    ------
    ReportError
        When it cannot be written; an earlier page is then still whole.
    """
    text = _environment().get_template(template).render(**shown, **frame())
    write_files({path: text.encode("utf-8", "backslashreplace")})


def frame(*more: str) -> dict[str, Markup]:
    """Style and script of a page, and the hashes that its policy allows them by; `more` are further scripts' files."""
    style, script = _asset("style.css"), "\n".join(_asset(name) for name in ("script.js", *more))
    return {
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": Markup(policy_hash(style)),
        "script_hash": Markup(policy_hash(script)),
    }


def script_safe(data: Any) -> Markup:
    r"""JSON that may stand inside a script element: no `<`, no `&`, ASCII only.

    >>> script_safe("</script>")
    Markup('"\\u003c/script\\u003e"')
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def pack(text: str) -> Markup:
    """Text gzip-compressed and in base64, for what a page unpacks when it needs it; equal text gives equal bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    data = packer.compress(text.encode("utf-8", "backslashreplace")) + packer.flush()
    return Markup(base64.b64encode(data).decode("ascii"))


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


def _percent(ratio: float | None) -> str:
    return "" if ratio is None or not math.isfinite(ratio) else units.format_percent(ratio, signed=False)


def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def policy_hash(text: str) -> str:
    """The source expression that allows exactly this inline text, per Content Security Policy level 2."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


# The library that draws the page's charts: plotly.js, as the installed package `plotly` brings it.
#
# Of the libraries that a package on PyPI brings along, plotly.js alone has every chart that the page needs (bars with a
# start, waterfalls, box plots that show each point, flame graphs) without a Python stack around it. Whole it has 4.8
# MB; a page holds it once, compressed to 2 MB, and unpacks it when the first chart comes into view.


_FILE = "package_data/plotly.min.js"


@dataclass(frozen=True, slots=True)
class Library:
    """A script and what lets it run."""

    packed: str
    """Its text, gzip-compressed, in base64."""
    policy: str
    """The source expression of a Content Security Policy that allows exactly this script."""


@cache
def plotting_library() -> Library | None:
    """The library; `None` where the package is not installed, and then a page has tables only."""
    found = util.find_spec("plotly")
    for folder in () if found is None else found.submodule_search_locations or ():
        path = Path(folder) / _FILE
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            return Library(pack(text), policy_hash(text))
    return None


# How sure a run's verdicts are, in sentences: the false-positive rate, and the smallest change that would show.


def certainty(run: Run) -> list[str]:
    """One sentence for each kind of evidence that the run's verdicts on times rest on, and one on what it could see."""
    if not run.judged:
        return []
    metrics = [metric for result in run.results for metric in result.judgement.metrics]
    evidence = [metric.evidence for metric in metrics if metric.verdict not in (None, "unchanged")]
    sentences = []
    if "paired" in evidence:
        chance = format_percent(ALPHA + 2 * ROW_ALPHA, signed=False)
        sentences.append(
            "Times were compared in paired rounds: a fresh process of the baseline commit and one of the current "
            "code alternate in blocks of timed steps, and which one goes first is random. "
            f"False-positive rate for the whole run: at most {chance}."
        )
    if any(metric.in_every_round for metric in metrics):
        sentences.append(
            f"A suspect test also fails if it exceeds its limit in every round, after at least {EVERY_ROUND} rounds "
            "(--perf-fail-on). If the noise is symmetric, code within its limit fails this way in at most 1 of "
            f"{2**EVERY_ROUND} runs."
        )
    if unpaired := evidence.count("unpaired"):
        chance = format_percent(UNPAIRED_ALPHA, signed=False)
        sentences.append(
            f"{plural(unpaired, 'verdict')} on times could not be confirmed in paired rounds: the false-positive rate "
            f"of each verdict is {chance}, and higher if the machine changed since the baseline was recorded."
        )
    if any(metric.kind == "counted" and metric.verdict not in (None, "unchanged") for metric in metrics):
        sentences.append("Counted metrics are deterministic and cannot cause false positives.")
    seen = sorted(
        metric.excluded
        for metric in metrics
        if metric.excluded is not None
        and math.isfinite(metric.excluded)
        and metric.excluded > 0
        and metric.verdict == "unchanged"
        and general(metric.name) == "step_time"
    )
    if seen:
        middle, most = (format_percent(each, signed=False) for each in (statistics.median(seen), seen[-1]))
        what = "Minimum detectable slowdown of step_time (97.5% probability)"
        sentences.append(
            f"{what}: {middle} in half of the tests, {most} in all tests." if len(seen) > 1 else f"{what}: {middle}."
        )
    return sentences


EMBEDDED_BYTES = 3 * 2**20
"""Traces embedded in the page for Perfetto, compressed bytes in all; the worst tests' come first."""
OPEN_AT_MOST = 10
"""Tests that need a look and are open when the page is; the others open on request."""
PLAIN_AT_MOST = 60
"""With more tests than these a folded one is in the page compressed, and only notable ones have matched rows."""
CAUSES_LISTED = 12
"""Most causes of a test that its table lists; the others are one row."""
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
    embedded = _embed_traces(ranked, collected)
    names = Names()
    library = plotting_library()
    shared = {
        "run": run,
        "collected": collected,
        "embedded": embedded,
        "library": library,
        "stories": {result.id: story(result, run) for result in ranked},
        "anchors": {result.id: anchor(result.id) for result in ranked},
    }
    # A test's data as it stands in the page, and of a test whose part of the page is there, what that is made of.
    found: list[tuple[Markup, dict[str, Any] | None]] = []
    for number, result in enumerate(ranked, start=1):
        traces_of = collected.get(result.id, ())
        accounted = not inert or words.notable(result)
        peaks = None if result.new is None else run.peaks.get(result.new.key.slug)
        one = details(result, traces_of, names, embedded=tuple(embedded), accounted=accounted, peaks=peaks)
        if inert and number not in open_first:
            body = _environment().get_template("_body.html.j2")
            one["html"] = body.render(**shared, result=result, number=number, data=one)
            found.append((pack(json.dumps(one, allow_nan=False)), None))
        else:
            found.append((script_safe(one), one))
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            **shared,
            results=ranked,
            run_json=script_safe(without_records(to_json(run) if data is None else data)),
            details=found,
            names=script_safe(names.listed()),
            open_first=open_first,
            inert=inert,
            sure=certainty(run),
            todo=words.run_commands(run) if len(ranked) > 1 else [],
            **frame("charts.js", "timeline.js", "report.js"),
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
        # What is not said of a case is a tenth of what a thousand cases take.
        kept["cases"] = [{name: value for name, value in case.items() if value != ""} for case in test["cases"]]
        tests.append(kept)
    return {**data, "tests": tests}


_SHOWN_OTHERWISE = frozenset({"record", "base_record", "base_now", "operators", "rank_times", "breakdowns", "memory"})


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


def _embed_traces(ranked: Sequence[Result], collected: Mapping[str, Sequence[CallTraces]]) -> dict[str, str]:
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
        visible=words.visible,
        quantity=_quantity,
        percent=_percent,
        number=_number,
        plural=units.plural,
        value=figures.value,
        effect=figures.effect,
        interval=figures.interval,
        change=figures.change,
        capitalized=lambda text: text[:1].upper() + text[1:],
        arrow=lambda text: text.replace("->", "→"),
        main_trace=main_trace,
        symbol=SYMBOLS.__getitem__,
    )
    environment.globals.update(
        library=None,
        rows_of=lambda table: table.rows[: ROWS * COLUMNS // max(COLUMNS, len(table.columns))],
        words=words,
        memory=memory,
        compared=compared,
        figures=figures,
        curves=curves,
        ranks_of=ranks,
        cases_of=cases,
        share=format_percent,
        also_shown=ALSO_SHOWN,
        trace_labels=traces.LABELS,
    )
    used: tuple[Callable[..., Any], ...] = (cause_name, chips, evidence_words, excluded_sentences, frame_place)
    used += (has_history, has_memory, has_places, headline_metric, is_paired, listed_causes, measurement_gist)
    used += (members, memory_gist, name_words, pictures, rest_of, split_metrics)
    environment.globals.update({each.__name__: each for each in used})
    return environment
