"""A trace's summary as one self-contained page: the same numbers as on the terminal, and more rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from pytest_perfdl.analysis.overview.findings import TraceFinding
from pytest_perfdl.analysis.overview.memory_timeline import DeviceTimeline
from pytest_perfdl.analysis.overview.summary import TraceSummary
from pytest_perfdl.analysis.ranks import Collective, RankActivity, RankFigures
from pytest_perfdl.analysis.ranks.meetings import CLASSES, Timeline, timeline
from pytest_perfdl.model.selection import Selection
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.report import html, svg
from pytest_perfdl.report.advice import no_advice, sentences
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.ranks import ALIKE, choose_telling, wait_table
from pytest_perfdl.report.svg import Axis
from pytest_perfdl.report.trace import ranks as ranks_of
from pytest_perfdl.report.trace import tables
from pytest_perfdl.report.trace.json import to_json

if TYPE_CHECKING:
    from pytest_perfdl.report.whatif import Answers


# All ranks of a job on one time axis, as inline SVG: what each does when, and where collectives start.
#
# What a rank does is told by the height of its bar, beside the color: a chart is also read in print and without colors.


MOST_STEPS = 6
"""Steps that a chart shows."""
MOST_ROWS = 32
"""Ranks that a chart shows; of more the telling ones."""
BINS = 1200
"""Parts that the time axis has: of each the class is shown that takes most of it."""
COLLECTIVES = 40
"""Collectives that are marked: those that ranks wait in longest."""
_NAMES, _LEFT, _CHART_WIDTH, _RIGHT, _TOP = 76, 4, 1024, 32, 20
_CHART_HEIGHT = {"compute": 1.0, "input": 0.75, "host": 0.4, "communication": 0.6, "waiting": 0.16}
"""Of a bar, as a share of the row's."""
NAMES = {
    "compute": "compute",
    "input": "waiting for input",
    "host": "host, nothing runs",
    "communication": "communication, exposed",
    "waiting": "waiting for other ranks",
}


@dataclass(frozen=True, slots=True)
class RankChart:
    """The chart, and what it shows."""

    names: Markup
    """The ranks' names, which stay where they are while the chart beside them is moved; at the same scale."""
    svg: Markup
    title: str
    note: str


def chosen_steps(figures: RankFigures) -> tuple[int, ...]:
    """Steps that the chart shows: from the one before the straggler begins, else the last ones."""
    steps, found = figures.step_numbers, figures.straggler
    first = max(len(steps) - MOST_STEPS, 0)
    if found is not None and found.since_step in steps:
        first = min(max(steps.index(found.since_step) - 1, 0), first)
    return steps[first : first + MOST_STEPS]


def rank_chart(timeline: Timeline, figures: RankFigures, shown: Sequence[int]) -> RankChart:
    """Draw some of the ranks.

    Parameters
    ----------
    shown
        Their places, in order.
    """
    row = 22 if len(shown) <= ALIKE else 13
    bar = round(row * 0.75)
    marked = ranks_of.straggler_place(figures)
    bottom = _TOP + row * len(shown)
    across = Axis(timeline.start_ns, timeline.end_ns, _LEFT, _LEFT + _CHART_WIDTH)
    names: list[Markup] = []
    parts: list[Markup] = []
    for at, place in enumerate(shown):
        top, name = _TOP + at * row, f"rank {figures.ranks[place].rank}"
        if place == marked:
            names.append(svg.box("marked", 0, top, _NAMES, row))
            parts.append(svg.box("marked", 0, top, _LEFT + _CHART_WIDTH, row))
            name = f"▸ {name}"
        names.append(svg.text(name, _NAMES - 6, top + row * 0.68, "marked" if place == marked else "", anchor="end"))
    bin_width = _CHART_WIDTH / timeline.codes.shape[1]
    for code, kind in enumerate(CLASSES):
        height = max(2, round(bar * _CHART_HEIGHT[kind]))
        drawn = "".join(
            f"M{_LEFT + first * bin_width:.1f} {_TOP + at * row + (row + bar) / 2 - height:g}"
            f"h{(last - first) * bin_width:.1f}v{height}h-{(last - first) * bin_width:.1f}z"
            for at, place in enumerate(shown)
            for first, last in _runs(timeline, place, code)
        )
        if drawn:
            parts.append(svg.path(f"of-{kind}", drawn))
    parts += _steps(timeline, across, shown, row)
    collectives = _collectives(timeline, figures)
    parts += _starts(collectives, across, figures, shown, row)
    since = Axis(0, timeline.end_ns - timeline.start_ns, across.start, across.end)
    for tick in since.ticks(6):
        parts.append(svg.rule("tick", since.at(tick), bottom, bottom + 4))
        parts.append(svg.text(format_quantity(tick, "ns") if tick else "0", since.at(tick), bottom + 17))
    numbers = timeline.steps
    which = f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers[0]} to {numbers[-1]}"
    if numbers[0] < 0:
        which = "the whole trace"
    title = f"Ranks on one time axis, {which} of the trace" if numbers[0] >= 0 else f"Ranks on one time axis, {which}"
    label = f"{title}: {len(shown)} rows, one for each rank; the table of ranks has the numbers"
    return RankChart(
        svg.picture("ranks names", "", _NAMES, bottom + 24, names),
        svg.picture("ranks", label, _LEFT + _CHART_WIDTH + _RIGHT, bottom + 24, parts),
        title,
        _note(timeline, figures, collectives, marked is not None, len(shown)),
    )


def _note(timeline: Timeline, figures: RankFigures, drawn: Sequence[Collective], marked: bool, shown: int) -> str:
    said = []
    if marked:
        said.append("▸: the straggler.")
    if drawn:
        said.append(
            "Thin lines connect the starts of one collective on its ranks"
            + (f", for the {len(drawn)} that ranks wait in longest." if len(drawn) == COLLECTIVES else ".")
        )
    width = (timeline.end_ns - timeline.start_ns) // timeline.codes.shape[1]
    said.append(f"Each {format_quantity(width, 'ns')} of the axis shows what takes most of it.")
    if shown < len(figures.ranks):
        said.append(f"{shown} of {len(figures.ranks)} ranks are shown.")
    return " ".join(said)


def _runs(timeline: Timeline, place: int, code: int) -> Iterator[tuple[int, int]]:
    """First and end of neighboring bins of one class."""
    same = np.concatenate(([False], timeline.codes[place] == code, [False]))
    edges = np.flatnonzero(same[1:] != same[:-1]).tolist()
    yield from zip(edges[::2], edges[1::2], strict=True)


def _steps(timeline: Timeline, across: Axis, shown: Sequence[int], row: int) -> Iterator[Markup]:
    """A mark where a step begins on each rank, and its number above."""
    if timeline.steps[0] < 0:
        return
    for number, opens in zip(timeline.steps, timeline.opens_ns, strict=True):
        x = [across.at(int(opens[place])) for place in shown]
        yield svg.path("step", "".join(f"M{left:.1f} {_TOP + at * row}v{row}" for at, left in enumerate(x)))
        yield svg.text(f"step {number}", x[0] + 3, _TOP - 6, "step", anchor="")


def _collectives(timeline: Timeline, figures: RankFigures) -> list[Collective]:
    inside = [
        each
        for each in figures.collectives
        if min(each.start_ns) >= timeline.start_ns and max(each.start_ns) <= timeline.end_ns
    ]
    longest = sorted(inside, key=lambda each: -sum(each.wait_ns))[:COLLECTIVES]
    return sorted(longest, key=lambda each: min(each.start_ns))


def _starts(
    drawn: Sequence[Collective], across: Axis, figures: RankFigures, shown: Sequence[int], row: int
) -> Iterator[Markup]:
    """A line through the starts of each collective on its ranks."""
    at = {figures.ranks[place].rank: position for position, place in enumerate(shown)}
    path = []
    for each in drawn:
        known = [(rank, start) for rank, start in zip(each.ranks, each.start_ns, strict=True) if rank in at]
        points = [
            f"{across.at(start):.1f} {_TOP + (at[rank] + 0.5) * row:g}"
            for rank, start in sorted(known, key=lambda pair: at[pair[0]])
        ]
        if len(points) > 1:
            path.append("M" + "L".join(points))
    if path:
        yield svg.path("starts", "".join(path))


def legend() -> list[tuple[str, str, Markup]]:
    """Class, name and swatch of what the bars say."""
    found = []
    for kind in CLASSES:
        height = max(2, round(14 * _CHART_HEIGHT[kind]))
        swatch = svg.box(f"of-{kind}", 0, 14 - height, 22, height)
        picture = svg.picture("ranks swatch", "", 22, 14, [swatch], sized=True)
        found.append((kind, NAMES[kind], picture))
    return found


RANKS = 4
"""Ranks of which the page has the traces of all; of more it has those of a few."""
POINTS = 600
"""Most points of a memory curve; each is the highest value of its stretch of time."""
_WIDTH, _HEIGHT, _AXIS = 640, 120, 18


def write_page(
    path: Path,
    summaries: Sequence[TraceSummary],
    ranks: RankFigures | None,
    selection: Selection,
    advised: Sequence[Answers | None],
    activities: Sequence[RankActivity] = (),
) -> None:
    """Write the page; `advised` has an entry for each summary.

    Of several ranks, `summaries` and `activities` are in the order of `ranks.ranks`. The page of many ranks has the
    traces of a few of them (`ranks.choose_reported`).

    Raises
    ------
    ReportError
        When it cannot be written; an earlier page is then still whole.
    """
    places = range(len(summaries)) if ranks is None else ranks_of.choose_reported(ranks, RANKS)
    shown, advice = [summaries[place] for place in places], [advised[place] for place in places]
    html.write_page(
        path,
        "trace.html.j2",
        summaries=[_with_advice(*each) for each in zip(shown, advice, strict=True)],
        ranks=ranks,
        selection=selection,
        data=html.script_safe(to_json(shown, ranks, advice, selection)),
        tables_of=tables,
        ranks_of=ranks_of,
        kernels=kernels,
        memory_curve=memory_curve,
        rank_legend=legend(),
        **({} if ranks is None else _across(ranks, activities)),
    )


def _across(ranks: RankFigures, activities: Sequence[RankActivity]) -> dict[str, Any]:
    """What the page shows of the ranks together."""
    marked = ranks_of.straggler_place(ranks)
    chart = None
    if activities and (steps := chosen_steps(ranks)):
        own, waits = [ranks_of.own_ns(rank) for rank in ranks.ranks], ranks.exposed_waits_ns
        chart = rank_chart(
            timeline(activities, ranks, steps, BINS), ranks, choose_telling(own, waits, marked, MOST_ROWS)
        )
    return {
        "chart": chart,
        "waits": wait_table([rank.rank for rank in ranks.ranks], ranks_of.waits_per_step(ranks), marked),
        "rank_table": tables.rank_table(ranks, range(len(ranks.ranks)), "▸ straggler"),
    }


def _with_advice(summary: TraceSummary, answers: Answers | None) -> TraceSummary:
    """The summary with the advice after its findings: the page has one list of both."""
    if answers is None:
        return summary
    advice = [f"Advice: {finding} {'; '.join(rest)}" for finding, *rest in map(sentences, answers.advice)]
    lines = advice or [f"Advice: {no_advice(answers)}"]
    return replace(summary, noticed=(*summary.noticed, *(TraceFinding("advice", line, 0.0) for line in lines)))


def memory_curve(device: DeviceTimeline) -> Markup | None:
    """Allocated bytes over time as inline SVG, the peak marked; `None` without events or time."""
    time, allocated = device.time_ns, device.allocated
    if len(time) < 2 or time[-1] == time[0]:
        return None
    start, span = int(time[0]), int(time[-1] - time[0])
    bucket = np.minimum((time - start) * POINTS // span, POINTS - 1)
    first = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
    highest = np.maximum.reduceat(allocated, first)
    across = Axis(0, span, 0, _WIDTH)
    up = Axis(min(0, int(highest.min())), max(1, int(highest.max())), _HEIGHT, 0)
    parts = []
    for value in filter(None, up.ticks(3)):
        parts.append(svg.path("tick", f"M0,{up.at(value):.1f}H{_WIDTH}"))
        parts.append(svg.text(format_quantity(value, "B"), 4, up.at(value) - 3, anchor=""))
    x = (bucket[first] / POINTS * _WIDTH).tolist()
    parts.append(svg.line("", [(left, up.at(value)) for left, value in zip(x, highest.tolist(), strict=True)]))
    parts.append(svg.rule("median", across.at(device.peak_allocated_at_ns - start), 0, _HEIGHT))
    parts.append(svg.text(format_quantity(span, "ns"), _WIDTH, _HEIGHT + 14, anchor="end"))
    label = (
        f"Allocated memory ({device.device}) over {format_quantity(span, 'ns')}: "
        f"peak {format_quantity(device.peak_allocated_bytes, 'B')}"
    )
    return svg.picture("curve", label, _WIDTH, _HEIGHT + _AXIS, parts)


def kernels(summary: TraceSummary, selection: Selection) -> Table:
    """The table of kernels with their short names, as there is no width that names have to fit into."""
    found = tables.kernels(summary, selection)
    names = tables.short_kernels(found.rows)
    name = Column("Name", lambda row: names[row.name], "name")
    return replace(found, all_columns=(name, *found.all_columns[1:]))
