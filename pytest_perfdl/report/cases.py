"""The cases of a table, and the groups of them that got slower: declared once, for terminals and pages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_perfdl.model.units import format_percent, plural
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.results.verdict import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        Column("Noise", lambda case: case.noise, "share", "standard deviation of the change in a round", wide=True),
        Column("Verdict", lambda case: case.verdict, "short"),
        Column("Reason", lambda case: case.reason, "text", wide=True),
    )
    return Table("Cases", columns, judgement.cases[:most], "Slowest cases")


def where(axes: Mapping[str, str]) -> str:
    """What the cases of a group have in common, "dtype=float16"."""
    return ",".join(f"{axis}={value}" for axis, value in axes.items()) or "all cases"


def _interval(row: CaseVerdict | GroupVerdict) -> str:
    return "" if row.interval is None else f"[{format_percent(row.interval[0])}, {format_percent(row.interval[1])}]"
