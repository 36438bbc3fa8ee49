"""Every operator, kernel and idle class of a test, both sides beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_perfdl.model.record import Record, Row, RowKind
from pytest_perfdl.results.run import Result


@dataclass(frozen=True, slots=True)
class ComparedOperator:
    """One line of the table; times are means per profiled step over the repeats, in nanoseconds."""

    call: str
    kind: RowKind
    name: str
    base_count: float | None
    new_count: float | None
    base_ns: int | None
    new_ns: int | None

    @property
    def delta_ns(self) -> int | None:
        """Change of time per step; `None` when there is no baseline to hold against."""
        if self.base_ns is None and self.new_ns is None:
            return None
        return (self.new_ns or 0) - (self.base_ns or 0)


def operators(result: Result) -> list[ComparedOperator]:
    """The rows of both records joined by call, kind and name, the most expensive first."""
    base, new = _rows(result.base), _rows(result.new)
    joined = [
        ComparedOperator(
            *place,
            base_count=base[place].count if place in base else None,
            new_count=new[place].count if place in new else None,
            base_ns=_mean(base[place]) if place in base else None,
            new_ns=_mean(new[place]) if place in new else None,
        )
        for place in {**new, **base}
    ]
    return sorted(joined, key=lambda row: (-max(row.new_ns or 0, row.base_ns or 0), row.call, row.kind, row.name))


def _rows(side: Record | None) -> dict[tuple[str, RowKind, str], Row]:
    if side is None:
        return {}
    return {(call.name, row.kind, row.name): row for call in side.calls for row in call.rows}


def _mean(row: Row) -> int:
    return round(sum(row.ns) / len(row.ns))
