"""The cases of a table: lists of them and of slower groups, their change over two axes, and as metrics for exports."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_perfdl.machine.utilization import NO_RATES
from pytest_perfdl.model.cases import axes_of
from pytest_perfdl.model.metrics import CASE_TIME, METRICS
from pytest_perfdl.model.units import format_percent, format_quantity, plural, some
from pytest_perfdl.report import figures
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.results.verdict import VERDICTS, MetricVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_perfdl.results.run import Result
    from pytest_perfdl.results.verdict import CaseVerdict, GroupVerdict, Judgement

SHOWN = 10
"""Cases that a terminal lists with -v."""


def gist(judgement: Judgement) -> str:
    """How many cases have each verdict: "500 cases: 1 regressed, 499 unchanged"."""
    counts = Counter(case.verdict for case in judgement.cases)
    said = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return f"{plural(len(judgement.cases), 'case')}: {', '.join(said)}"


def group_table(judgement: Judgement) -> Table:
    """The groups that got slower, the largest change first."""
    columns = (
        Column("Group", lambda group: where(group.where)),
        Column("Cases", lambda group: group.cases, "count"),
        Column("Change", lambda group: group.effect, "change"),
        Column("95% interval", lambda group: _interval(group), "short"),
        Column("Slower cases", lambda group: group.agreeing, "count", "cases whose own interval lies above zero"),
        Column("Verdict", lambda group: group.verdict, "short"),
        Column("Operators", lambda group: group.cause, "text", wide=True),
    )
    return Table("Groups", columns, judgement.groups)


def case_table(judgement: Judgement, most: int | None = None) -> Table:
    """The cases, the largest change first."""
    columns = (
        Column("Case", lambda case: case.id),
        Column("Baseline", lambda case: case.base_ns, "ns"),
        Column("Current", lambda case: case.time_ns, "ns"),
        Column("Change", lambda case: case.effect, "change"),
        Column("95% interval", lambda case: _interval(case), "short"),
        Column("Verdict", lambda case: case.verdict, "short"),
        Column("Noise", lambda case: case.noise, "share", "standard deviation of the change in a round", wide=True),
        *(column for name in RATES for column in _both_rates(name)),
        *(column for name in _COUNTS for column in _both_counts(name)),
    )
    return Table(
        "Cases",
        columns,
        judgement.cases[:most],
        "Slowest cases",
        unknown_rooflines(judgement),
        told=lambda case: [case.reason] if case.reason else [],
    )


RATES = {"items_per_s": "items/s", "flops_per_s": "flop/s", "bytes_per_s": "B/s", "roofline": "share"}
"""Rates of a case, with their units."""
_TITLES = {"items_per_s": "Items/s", "flops_per_s": "FLOP/s", "bytes_per_s": "Bytes/s", "roofline": "Roofline"}
_ROOFLINE = "least time of the FLOPs and bytes at the machine's peak rates, as a share of the time of a call"
_COUNTS = {"ops": "operators", "kernels": "kernels"}


def rate_column(name: str, rates_of: Callable[[Any], Mapping[str, float]], side: str = "") -> Column:
    """A rate of each row; that of another side than the current one only on pages, which have room."""
    meaning = _ROOFLINE if name == "roofline" and not side else ""
    return Column(f"{side}{_TITLES[name]}", lambda row: rates_of(row).get(name), RATES[name], meaning, wide=bool(side))


def _both_rates(name: str) -> tuple[Column, Column]:
    before = rate_column(name, lambda case: case.base_rates, "Baseline ")
    return before, rate_column(name, lambda case: case.rates)


def _both_counts(name: str) -> tuple[Column, Column]:
    """What a call runs, and what it ran in the baseline where that differs; on pages."""

    def before(case: CaseVerdict) -> int | None:
        count = case.base_counts.get(name)
        return None if count == case.counts.get(name) else count

    return (
        Column(f"Baseline {_COUNTS[name]}", before, "count", "where their number differs", wide=True),
        Column(_COUNTS[name].capitalize(), lambda case: case.counts.get(name) or None, "count", wide=True),
    )


def unknown_rooflines(judgement: Judgement) -> str:
    """Why cases have no share of the roofline, in a sentence; empty if all have that the test asks it of."""
    reasons = Counter(case.no_roofline for case in judgement.cases if case.no_roofline)
    hints = {NO_RATES: f"{NO_RATES}, run perfdl constants to measure them"}
    said = [f"{hints.get(why, why)} ({plural(count, 'case')})" for why, count in reasons.most_common()]
    return f"The roofline is unknown: {some(said)}." if said else ""


def with_cases(result: Result) -> tuple[MetricVerdict, ...]:
    """The metrics of a test for other programs: its own, then each case of a table that is not among them."""
    limit = next((metric.limit for metric in result.metrics if metric.name == CASE_TIME), None)
    told = {metric.name for metric in result.metrics}
    others = [
        MetricVerdict(
            case.metric,
            "timed",
            METRICS[CASE_TIME].unit,
            "lower",
            case.base_ns,
            case.time_ns,
            case.effect,
            case.interval,
            limit=limit,
            verdict=case.verdict,
            reason=case.reason,
            evidence="paired" if case.rounds else None,
            rounds=case.rounds or None,
        )
        for case in result.judgement.cases
        if case.metric not in told
    ]
    return (*result.metrics, *others)


# The change of the cases over two axes, as a table whose cells are shaded.


MOST_VALUES = 40
"""Values of an axis of the heat map."""
SHADES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Changes from which a cell has the next shade."""
SLOWER = "▲"
"""Marks cells with a case that got slower for certain."""


@dataclass(frozen=True, slots=True)
class HeatCell:
    """The cases that have one value of each axis."""

    text: str
    """Their typical change, behind a mark if one of them is `regressed`."""
    shade: int
    """From 0 to the number of `SHADES`; below 0 for faster."""
    about: str
    """Their number and the largest change, or both times of a single one."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The typical change of the cases over two axes."""

    rows: str
    columns: str
    """Names of the axes."""
    titles: tuple[str, ...]
    """Values of the axis of the columns."""
    lines: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]
    """Of each value of the other axis the cells; `None` without cases."""


def heat_map(judgement: Judgement) -> HeatMap | None:
    """The compared cases over the two axes with the most values, of those with 2 to `MOST_VALUES`.

    The change of a cell is the median of its cases'. `None` if fewer than two axes have so many values.
    """
    axes = {case.id: axes_of(case.id) for case in judgement.cases if case.effect is not None}
    values: dict[str, set[str]] = {}
    for own in axes.values():
        for axis, value in own.items():
            values.setdefault(axis, set()).add(value)
    chosen = [axis for axis in sorted(values) if 2 <= len(values[axis]) <= MOST_VALUES]
    if len(chosen) < 2:
        return None
    rows, columns = sorted(chosen, key=lambda axis: -len(values[axis]))[:2]
    cells: dict[tuple[str, str], list[CaseVerdict]] = {}
    for case in judgement.cases:
        own = axes.get(case.id, {})
        if rows in own and columns in own:
            cells.setdefault((own[rows], own[columns]), []).append(case)
    titles = sorted(values[columns], key=_in_order)
    return HeatMap(
        rows,
        columns,
        tuple(titles),
        tuple(
            (value, tuple(_heat_cell(cells.get((value, title), ())) for title in titles))
            for value in sorted(values[rows], key=_in_order)
        ),
    )


def _heat_cell(cases: Sequence[CaseVerdict]) -> HeatCell | None:
    effects = [case.effect for case in cases if case.effect is not None]
    if not effects:
        return None
    typical = statistics.median(effects)
    shade = bisect.bisect_right(SHADES, abs(typical))
    slower = sum(case.verdict == "regressed" for case in cases)
    largest = max(effects, key=abs)
    about = f"{plural(len(cases), 'case')}, largest change {format_percent(largest)}, {slower} regressed"
    if len(cases) == 1 and cases[0].base_ns is not None and cases[0].time_ns is not None:
        about = figures.pair(cases[0].base_ns, cases[0].time_ns, "ns")
    mark = f"{SLOWER} " if slower else ""
    return HeatCell(f"{mark}{format_percent(typical)}", shade if typical > 0 else -shade, about)


def _in_order(value: str) -> tuple[list[float], str]:
    """What values of an axis are sorted by: as numbers and sizes ("64x128"), else as text after these."""
    try:
        sizes = [float(part) for part in value.split("x")]
    except ValueError:
        sizes = [math.nan]
    return (sizes, "") if all(map(math.isfinite, sizes)) else ([math.inf], value)


def where(axes: Mapping[str, str]) -> str:
    """What the cases of a group have in common, "dtype=float16"."""
    return ",".join(f"{axis}={value}" for axis, value in axes.items()) or "all cases"


def _interval(row: CaseVerdict | GroupVerdict) -> str:
    return "" if row.interval is None else f"[{format_percent(row.interval[0])}, {format_percent(row.interval[1])}]"


def case_text(case: CaseVerdict, whole: str) -> str:
    """What `PerfRegression` says of a test that is a case of another one (node id `whole`)."""
    change = "" if case.effect is None else f" {format_percent(case.effect)} {_interval(case)}"
    times = [format_quantity(ns, "ns") for ns in (case.base_ns, case.time_ns) if ns is not None]
    return f"{case.verdict}:{change} ({' -> '.join(times)}); {whole} has the report"
