"""The tables of a diff that the terminal and the page have in common. Times are per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pytest_perfdl.diff import AccountLine, places
from pytest_perfdl.report.document import Column, Table
from pytest_perfdl.report.trace.wording import place

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff


def share(ns: float, each: Diff) -> float | None:
    """Part of the profiled step's change, where it changed; without the sign that rounding to zero would leave."""
    if not each.delta_ns:
        return None
    part = ns / each.delta_ns
    return part if abs(part) >= 0.0005 else 0.0


def breakdown(each: Diff) -> Table:
    """The profiled step by class."""
    note = "The changes of all parts add up to it."
    columns = _columns(Column("Part", lambda line: line.name), each)
    return Table("Breakdown of the profiled step", columns, each.account, "Breakdown of the profiled step", note)


def by_place(each: Diff, kind: Literal["module", "line"]) -> Table:
    """Time by module, with the modules inside it, or by source line; the largest change first."""
    rows = [row for row in places(each, kind) if row.name]
    if kind == "line":
        return Table("Source lines", _columns(Column("Line", lambda line: place(line.name), "place"), each), rows)
    columns = _columns(Column("Module", lambda line: line.name, "place"), each)
    ordered = "Modules (times include the modules inside them)"
    return Table("Modules", columns, rows, ordered, "Times include the modules inside each module.")


def _columns(name: Column, each: Diff) -> tuple[Column, ...]:
    """Both sides of an `AccountLine`, and what it gained."""
    return (
        name,
        Column("Baseline", lambda line: line.base_ns, "ns"),
        Column("Current", lambda line: line.new_ns, "ns"),
        Column("Change", lambda line: line.delta_ns, "signed"),
        Column("Share", lambda line: share(line.delta_ns, each), "share", "percentage of the profiled step's change"),
    )


def total(each: Diff) -> AccountLine:
    """The row that the classes add up to."""
    return AccountLine("total", each.base_ns, each.new_ns)
