"""The cases of a table: lists of them and of slower groups, two pictures of them, and as metrics for exports."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_perfdl.machine.utilization import NO_RATES
from pytest_perfdl.model.cases import axes_of, group_name
from pytest_perfdl.model.metrics import CASE_TIME, METRICS
from pytest_perfdl.model.units import format_percent, format_quantity, plural, some
from pytest_perfdl.report import figures, svg
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.results.verdict import VERDICTS, MetricVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from markupsafe import Markup

    from pytest_perfdl.machine.rates import Peaks
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
        Column("Group", lambda group: group_name(group.where)),
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
        Column("Alternatives", lambda case: case.alternatives, "text"),
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
_COUNTS = {"ops": "operators", "kernels": "kernels", "allocations": "allocations"}


def rate_column(name: str, rates_of: Callable[[Any], Mapping[str, float]], side: str = "") -> Column:
    """A rate of each row; that of another side than the current one only on pages, which have room."""
    meaning = _ROOFLINE if name == "roofline" and not side else ""
    title = f"{side}{_TITLES[name]}"
    return Column(title, lambda row: rates_of(row).get(name), RATES[name], meaning, wide=bool(side), optional=not side)


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


# The FLOP/s of the cases over their FLOPs per byte, below the roofs of the machine.


_WIDTH, _HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 24, 16, 52
_ROOM = 2.0
"""Factor by which both axes reach beyond what is drawn."""
_TICK = 8
"""Width of the baseline's mark."""
_TOLD = 100
"""Points that tell a pointer what they are, the slowest cases; each of them takes a page as much as ten others."""
_KINDS = {"regressed": "point slower", "improved": "point faster"}


def roofline(result: Result, peaks: Mapping[str, Peaks]) -> Markup | None:
    """A point for each case whose FLOPs and bytes the test states, and a line to it from where the baseline is.

    Both sides of a case lie above each other: they have the same work. `None` without such cases.

    Parameters
    ----------
    peaks
        Rates of machines, by their IDs; without those of the machine of the test, there are no roofs.
    """
    record = result.new
    if record is None or record.table is None:
        return None
    placed = [case for case in result.judgement.cases if all(map(case.rates.get, ("flops_per_s", "bytes_per_s")))]
    if not placed:
        return None
    works = {case.id: case.work for case in record.table.cases}
    stated = [work for case in placed if (work := works.get(case.id)) is not None]
    known = peaks.get(record.key.slug)
    slopes: dict[str, float] = {}
    ceilings: dict[str, float] = {}
    if known is not None:
        ceilings = {work.dtype: known.flops_per_s[work.dtype] for work in stated if work.dtype in known.flops_per_s}
        slopes = {"memory": known.bytes_per_s}
        if known.bandwidths and not all(work.cold for work in stated):
            rates = [rate for _, rate in known.bandwidths]
            slopes = {"memory": rates[-1]} | ({"cache": max(rates)} if max(rates) > rates[-1] else {})
    label = f"FLOP/s of {plural(len(placed), 'case')} over their FLOPs per byte; the table below has all of them"
    return svg.picture("plot roofline", label, _WIDTH, _HEIGHT, _draw_roofline(placed, slopes, ceilings))


def _intensity(case: CaseVerdict) -> float:
    """FLOPs per byte."""
    return case.rates["flops_per_s"] / case.rates["bytes_per_s"]


def _draw_roofline(
    cases: Sequence[CaseVerdict], slopes: Mapping[str, float], ceilings: Mapping[str, float]
) -> Iterator[Markup]:
    """Everything inside the picture, in the order of painting.

    Parameters
    ----------
    slopes, ceilings
        Bytes and FLOPs per second of the machine, by what they are of.
    """
    speeds = [side["flops_per_s"] for case in cases for side in (case.base_rates, case.rates) if side]
    ridges = [ceiling / slope for ceiling in ceilings.values() for slope in slopes.values()]
    xs, ys = [*map(_intensity, cases), *ridges], [*speeds, *ceilings.values()]
    across = svg.Axis(min(xs) / _ROOM, max(xs) * _ROOM, _LEFT, _WIDTH - _RIGHT, logarithmic=True)
    up = svg.Axis(min(ys) / _ROOM, max(ys) * _ROOM, _HEIGHT - _BOTTOM, _TOP, logarithmic=True)
    yield from svg.frame(up, [(y, format_quantity(y, "flop/s")) for y in up.ticks(6)], _LEFT, _WIDTH - _RIGHT)
    for x in across.ticks(6):
        yield svg.text(f"{x:g}", across.at(x), _HEIGHT - _BOTTOM + 18)
    highest = max(ceilings.values(), default=up.high)
    for name, slope in slopes.items():
        # From where it enters the picture to the highest ceiling.
        ends = max(across.low, up.low / slope), min(across.high, highest / slope)
        if ends[0] < ends[1]:
            yield svg.line(f"roof {name}", [(across.at(x), up.at(slope * x)) for x in ends])
            x = math.sqrt(ends[0] * ends[1])
            yield svg.text(name, across.at(x) - 6, up.at(slope * x) - 6, anchor="end")
    for name, ceiling in ceilings.items():
        starts = max(across.low, ceiling / max(slopes.values()))
        yield svg.line("roof", [(across.at(x), up.at(ceiling)) for x in (starts, across.high)])
        yield svg.text(name, across.end, up.at(ceiling) - 5, anchor="end")
    ways: list[str] = []
    others: dict[str, list[str]] = {}
    for place, case in enumerate(cases):
        x, y = across.at(_intensity(case)), up.at(case.rates["flops_per_s"])
        if case.base_rates:
            before = up.at(case.base_rates["flops_per_s"])
            ways.append(f"M{x - _TICK / 2:.1f},{before:.1f}h{_TICK}m{-_TICK / 2:g},0V{y:.1f}")
        if place >= _TOLD:
            others.setdefault(_KINDS.get(case.verdict, "point"), []).append(f"M{x:.1f},{y:.1f}h0")
    yield svg.path("whisker of-base", "".join(ways))
    for kind, points in others.items():
        yield svg.path(kind, "".join(points))
    for case in reversed(cases[:_TOLD]):
        said = [format_quantity(side["flops_per_s"], "flop/s") for side in (case.base_rates, case.rates) if side]
        share = case.rates.get("roofline")
        of_roof = "" if share is None else f", {format_percent(share, signed=False)} of its roofline"
        x, y = across.at(_intensity(case)), up.at(case.rates["flops_per_s"])
        yield svg.dot(_KINDS.get(case.verdict, "point"), x, y, 3, f"{case.id}: {' → '.join(said)}{of_roof}")
    yield svg.text("FLOPs per byte", (_WIDTH + _LEFT - _RIGHT) / 2, _HEIGHT - 8)


def _interval(row: CaseVerdict | GroupVerdict) -> str:
    return "" if row.interval is None else f"[{format_percent(row.interval[0])}, {format_percent(row.interval[1])}]"


def case_text(case: CaseVerdict, whole: str) -> str:
    """What `PerfRegression` says of a test that is a case of another one (node id `whole`)."""
    change = "" if case.effect is None else f" {format_percent(case.effect)} {_interval(case)}"
    times = [format_quantity(ns, "ns") for ns in (case.base_ns, case.time_ns) if ns is not None]
    return f"{case.verdict}:{change} ({' -> '.join(times)}); {whole} has the report"
