"""A trace's summary as one self-contained page: the same numbers as on the terminal, and more rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from markupsafe import Markup

from pytest_perfdl.analysis.overview.memory_timeline import DeviceTimeline
from pytest_perfdl.analysis.overview.summary import TraceSummary
from pytest_perfdl.analysis.overview.trace_findings import TraceFinding
from pytest_perfdl.analysis.ranks import RankActivity, RankFigures
from pytest_perfdl.analysis.ranks.timeline import timeline
from pytest_perfdl.model.selection import Selection
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.report import svg, templating
from pytest_perfdl.report.document import Column, Table
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.svg import Axis
from pytest_perfdl.report.trace import tables
from pytest_perfdl.report.trace.json import to_json
from pytest_perfdl.report.trace.rank_chart import BINS, MOST_ROWS, chosen_steps, legend, rank_chart
from pytest_perfdl.report.trace.ranks import (
    clocks_line,
    own_ns,
    reported,
    straggler_place,
    verdict,
    waits_per_step,
)
from pytest_perfdl.report.trace.wording import (
    by_size,
    integrity_lines,
    mean_account,
    per_step,
    per_step_words,
    step_count,
    step_words,
)
from pytest_perfdl.report.waits import telling, wait_table
from pytest_perfdl.report.whatif.advice import no_advice, sentences

if TYPE_CHECKING:
    from pytest_perfdl.report.whatif import Answers

ROWS = 300
"""Rows of a table that the page holds; all of them are in its data, and in `--json`."""
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
    traces of a few of them (`ranks.reported`).

    Raises
    ------
    ReportError
        When it cannot be written; an earlier page is then still whole.
    """
    places = range(len(summaries)) if ranks is None else reported(ranks, RANKS)
    shown, advice = [summaries[place] for place in places], [advised[place] for place in places]
    text = (
        _environment()
        .get_template("trace.html.j2")
        .render(
            summaries=[_with_advice(*each) for each in zip(shown, advice, strict=True)],
            ranks=ranks,
            selection=selection,
            data=templating.script_safe(to_json(shown, ranks, advice, selection)),
            **_across(ranks, activities),
            **templating.frame(),
        )
    )
    write_files({path: text.encode("utf-8", "backslashreplace")})


def _across(ranks: RankFigures | None, activities: Sequence[RankActivity]) -> dict[str, Any]:
    """What the page shows of the ranks together."""
    if ranks is None:
        return {"chart": None, "waits": None}
    marked = straggler_place(ranks)
    chart = None
    if activities and (steps := chosen_steps(ranks)):
        own, waits = [own_ns(rank) for rank in ranks.ranks], ranks.exposed_waits_ns
        chart = rank_chart(timeline(activities, ranks, steps, BINS), ranks, telling(own, waits, marked, MOST_ROWS))
    return {
        "chart": chart,
        "waits": wait_table([rank.rank for rank in ranks.ranks], waits_per_step(ranks), marked),
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


def divided(parts: Mapping[str, float], steps: int) -> dict[str, float]:
    """Totals by name, divided by the number of steps."""
    return {name: ns / steps for name, ns in parts.items()}


@cache
def _environment() -> jinja2.Environment:
    environment = templating.environment()
    environment.globals.update(
        memory_curve=memory_curve,
        step_words=step_words,
        mean_account=mean_account,
        by_size=by_size,
        integrity_lines=integrity_lines,
        step_count=step_count,
        per_step=per_step,
        per_step_words=per_step_words,
        tables_of=tables,
        kernels=kernels,
        divided=divided,
        limit=ROWS,
        verdict=verdict,
        rank_table=lambda ranks: tables.of_ranks(ranks, range(len(ranks.ranks)), "▸ straggler"),
        clocks_line=clocks_line,
        rank_legend=legend(),
    )
    return environment
