"""What the verdict on a time rests on, drawn: each paired round, or the processes of both sides.

The pictures are part of the page as it is written: they need no script, and are there on paper and in a capture.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_perfdl.model.limits import Limit
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import figures, svg, words
from pytest_perfdl.report.svg import Axis
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import MetricVerdict

MOST = 6
"""Most metrics of a test that are drawn."""
WIDTH = 368
_EDGE, _TOP, _BOTTOM = 8, 30, 34
_DOT = 4
_ROUND, _FEWEST = 11, 4
"""Height of a round, and the fewest rounds that a picture has room for."""
_ROW = 34
"""Height of a side's processes with their label."""
_CROWDED = 0.3
"""Part of the width below which two labels are put away from each other."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing with what it is called."""

    title: str
    note: str
    svg: Markup


def pictures(result: Result) -> list[Picture]:
    """Of each time with a verdict, and of the step's time; the worst first."""
    drawn = []
    ordered = words.metrics_worst_first(result.judgement.metrics, result.judgement.verdict)
    if ordered and ordered[0].kind != "timed" and words.judged(ordered[0]):
        # A count is exact: a picture of a time beside it would be taken for its evidence.
        return []
    for metric in ordered:
        telling = metric.verdict is not None or general(metric.name) == "step_time"
        if metric.kind != "timed" or not telling:
            continue
        if metric.pairs or metric.evidence == "paired":
            if figures.finite(_changes(metric)) or _interval(metric):
                drawn.append(_draw_rounds(metric))
        elif any(sides := _processes(metric, result)):
            drawn.append(_draw_processes(metric, *sides))
    return drawn[:MOST]


def limit_change(metric: MetricVerdict) -> float | None:
    """The change at which the limit is reached, as a ratio; `None` for a budget, and where there is none."""
    if not isinstance(metric.limit, Limit) or not metric.base:
        return None
    allowed = metric.limit.allowed(metric.base, metric.unit)
    return allowed / metric.base if metric.better == "lower" else -allowed / metric.base


def _changes(metric: MetricVerdict) -> list[float]:
    return [new / base - 1 if base else math.nan for base, new in metric.pairs]


def _interval(metric: MetricVerdict) -> tuple[float, float] | None:
    return metric.ci95 if metric.ci95 is not None and all(map(math.isfinite, metric.ci95)) else None


def _processes(metric: MetricVerdict, result: Result) -> tuple[list[float], list[float]]:
    """The values of the recording's processes, and of the current ones."""
    sides = [{} if side is None else side.metrics() for side in (result.base, result.new)]
    base, new = (figures.finite(side[metric.name].values) if metric.name in side else [] for side in sides)
    return base, new


def _axis_around(values: Sequence[float]) -> Axis:
    """The axis across a picture, with some room on both sides of the values."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - room, high + room, _EDGE, WIDTH - _EDGE)


def _draw_rounds(metric: MetricVerdict) -> Picture:
    """A dot for each round at its change, the first round on top; the limit a line, the interval a band."""
    changes, interval, limit = _changes(metric), _interval(metric), limit_change(metric)
    known = figures.finite(changes)
    axis = _axis_around([0.0, *known, *(interval or ()), *([] if limit is None else [limit])])
    height = _ROUND * max(len(changes), _FEWEST)
    drawn = [*_frame(axis, height, [(tick, f"{100 * tick:+.4g}%" if tick else "0%") for tick in axis.ticks(5)])]
    if interval:
        low, high = (axis.at(end) for end in interval)
        drawn.append(svg.box("interval", low, _TOP, max(high - low, 1), height))
    drawn.append(svg.rule("zero", axis.at(0.0), _TOP, _TOP + height))
    if limit is not None:
        drawn.append(svg.rule("limit", axis.at(limit), _TOP, _TOP + height))
    for number, (change, (base, new)) in enumerate(zip(changes, metric.pairs, strict=True)):
        if math.isfinite(change):
            values = f"{format_quantity(base, metric.unit)} → {format_quantity(new, metric.unit)}"
            said = f"round {number + 1}: {values}, {format_percent(change)}"
            y = _TOP + height * (number + 0.5) / len(changes)
            drawn.append(svg.dot("dot", axis.at(change), y, _DOT, said))
    labels = [("limit", f"limit {format_percent(limit)}", axis.at(limit))] if limit is not None else []
    if interval:
        labels.append(("interval", "95% interval", axis.at(sum(interval) / 2)))
    drawn += _labels(labels)
    drawn.append(_caption("change from baseline to current", height))
    rounds = plural(len(changes), "paired round")
    spread = f"{rounds}, {format_percent(min(known))} to {format_percent(max(known))}. " if known else ""
    held = "" if limit is None else f"Limit {format_percent(limit)}."
    label = f"{metric.name}, change from baseline to current: {spread}{_in_words(metric)}{held}"
    note = (
        f"{rounds}: one dot per round, the first round on top"
        if known
        else "this run file contains only the interval, not the rounds"
    )
    return Picture(metric.name, note, _picture(label, height, drawn))


def _draw_processes(metric: MetricVerdict, base: list[float], new: list[float]) -> Picture:
    """A mark for each process of either side over the values, with the median; the interval around the baseline."""
    interval, limit = _interval(metric), limit_change(metric)
    ends = [metric.base * (1 + end) for end in interval] if interval and metric.base else []
    held = [] if limit is None or metric.base is None else [metric.base * (1 + limit)]
    axis = _axis_around([*base, *new, *ends, *held])
    rows = (("current processes", "", new), ("recorded baseline processes", " recorded", base))
    sides = [(what, of, values) for what, of, values in rows if values]
    height = _ROW * (len(sides) + bool(ends))
    marks = [(tick, format_quantity(tick, metric.unit)) for tick in axis.ticks(3)]
    drawn = [*_frame(axis, height, marks)]
    told = []
    for row, (what, of, values) in enumerate(sides):
        top = _TOP + _ROW * row
        median = statistics.median(values)
        drawn.append(svg.text(what, _EDGE, top + 10, anchor=""))
        drawn.append(svg.rule("median", axis.at(median), top + 14, top + 30))
        for number, value in enumerate(values):
            said = f"{what}, {number + 1}: {format_quantity(value, metric.unit)}"
            drawn.append(svg.dot(f"dot{of}", axis.at(value), top + 22, _DOT, said))
        least, most = (format_quantity(end, metric.unit) for end in (min(values), max(values)))
        count = plural(len(values), "process", "processes")
        told.append(f"{what}: median {format_quantity(median, metric.unit)}, {least} to {most} in {count}. ")
    if ends:
        top = _TOP + _ROW * len(sides)
        drawn.append(svg.text("baseline plus the 95% interval of the change", _EDGE, top + 10, anchor=""))
        low, high = (axis.at(end) for end in ends)
        drawn.append(svg.path("whisker", f"M{low:.1f},{top + 18}v8m0,-4H{high:.1f}m0,-4v8"))
    if held:
        drawn.append(svg.rule("limit", axis.at(held[0]), _TOP, _TOP + height))
        drawn += _labels([("limit", f"limit {format_percent(limit or 0.0)}", axis.at(held[0]))])
    drawn.append(_caption("one mark per process; vertical line: median", height))
    label = f"{metric.name}. {''.join(told)}{_in_words(metric)}"
    return Picture(
        metric.name,
        "no paired rounds: current processes and recorded processes of the baseline",
        _picture(label, height, drawn),
    )


def _in_words(metric: MetricVerdict) -> str:
    interval = _interval(metric)
    if interval is None or metric.effect is None or not math.isfinite(metric.effect):
        return ""
    low, high = map(format_percent, interval)
    return f"Change {format_percent(metric.effect)}, 95% interval {low} to {high}. "


def _frame(axis: Axis, height: int, marks: Sequence[tuple[float, str]]) -> Iterator[Markup]:
    for value, text in marks:
        yield svg.rule("frame", axis.at(value), _TOP, _TOP + height)
        yield svg.text(text, axis.at(value), _TOP + height + 14)


def _caption(text: str, height: int) -> Markup:
    return svg.text(text, WIDTH / 2, _TOP + height + 29)


def _labels(wanted: Sequence[tuple[str, str, float]]) -> Iterator[Markup]:
    """Labels above the picture, away from each other where they are near, and never beyond its edge."""
    for number, (kind, text, x) in enumerate(wanted):
        others = [other for place, (_, _, other) in enumerate(wanted) if place != number]
        near = [other for other in others if abs(other - x) < _CROWDED * WIDTH]
        away = "middle" if not near else "end" if x < near[0] or (x == near[0] and number) else "start"
        inside = "start" if x < 0.2 * WIDTH else "end" if x > 0.8 * WIDTH else away
        yield svg.text(text, x, _TOP - 6 - (12 if near and inside != away else 0), kind, anchor=inside)


def _picture(label: str, height: int, drawn: Sequence[Markup]) -> Markup:
    return svg.picture("evidence", label, WIDTH, _TOP + height + _BOTTOM, drawn)
