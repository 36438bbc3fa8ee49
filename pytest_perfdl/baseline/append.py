"""Joins two recordings: a baseline from several days includes machine drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.baseline.text import dump, parse
from pytest_perfdl.model.errors import BaselineError, RecordError
from pytest_perfdl.model.metrics import COUNT_SCOPE, is_utilization, scope
from pytest_perfdl.model.record import Call, Row, Series
from pytest_perfdl.model.units import some

if TYPE_CHECKING:
    from pytest_perfdl.model.record import MeasurementPlan, Record


def append(base: Record, new: Record) -> Record:
    """The baseline `base` with the repeats of `new` after its own.

    Rows are joined by kind and name; one that a side does not have took no time there, and a count is the
    mean over all repeats. A utilization that a side could not compute is left out. The note is that of `new`, if it
    has one. Both are rounded as they are stored
    before they are joined, so that an exact count stays the same number.

    Raises
    ------
    BaselineError
        The two are not comparable: different test, machine ID, measurement settings, test source, environment or code,
        different calls or metrics, or different counts; the message is one line.
    """
    try:
        base, new = parse(dump(base)), parse(dump(new))
    except RecordError as error:
        raise BaselineError(f"cannot append to the baseline of {new.test}: a record {error}") from error
    for what, before, after in (
        ("test", base.test, new.test),
        ("machine ID", base.key.slug, new.key.slug),
        ("test source", base.test_hash, new.test_hash),
        ("measurement settings", _differing(base.plan, new.plan), _differing(new.plan, base.plan)),
        ("calls", [call.name for call in base.calls], [call.name for call in new.calls]),
    ):
        _agree(new, what, before, after)
    for name in sorted({*base.context, *new.context}):
        _agree(new, f"context {name}", base.context.get(name), new.context.get(name))
    if base.code is not None and new.code is not None:
        files, packages = (base.code.files, new.code.files), (base.code.packages, new.code.packages)
        for what, (old, now) in {"code": files, "versions of packages": packages}.items():
            _agree(new, what, _others(old, now), _others(now, old))
    calls = tuple(_call(new, before, after) for before, after in zip(base.calls, new.calls, strict=True))
    return replace(
        new,
        calls=calls,
        occasions=base.occasions + new.occasions,
        modes={
            name: tuple(dict.fromkeys((*base.modes.get(name, ()), *new.modes.get(name, ()))))
            for name in sorted({*base.modes, *new.modes})
        },
        integrity=tuple(dict.fromkeys((*base.integrity, *new.integrity))),
        note=new.note if new.note is not None else base.note,
        refreshed=base.refreshed,
    )


def _differing(plan: MeasurementPlan, other: MeasurementPlan) -> str:
    """The settings of a plan that differ from another one's, as text."""
    others = other.shape
    return ", ".join(f"{name}={value}" for name, value in plan.shape.items() if value != others[name])


def _others(values: Mapping[str, str], others: Mapping[str, str]) -> str:
    """What differs from other values, as text."""
    return some([f"{name} {value}" for name, value in values.items() if value != others.get(name)]) or "none"


def _agree(record: Record, what: str, before: object, after: object) -> None:
    if before != after:
        raise BaselineError(
            f"cannot append to the baseline of {record.test}, which has different {what} (baseline {before}, current "
            f"{after}): record the baseline again with pytest --perf-update=all"
        )


def _call(record: Record, base: Call, new: Call) -> Call:
    prefix = f"{new.name}." if new.name else ""
    _agree(record, f"list of {prefix}metrics", _wanted(base), _wanted(new))
    shared = {name: (base.series[name], after) for name, after in new.series.items() if name in base.series}
    for name, (before, after) in shared.items():
        what = f"metric {prefix}{name}"
        _agree(record, what, (before.kind, before.unit, before.better), (after.kind, after.unit, after.better))
        counted = after.kind == "counted" and scope(name) == COUNT_SCOPE
        if counted and before.stable and after.stable:
            _agree(record, what, before.values[0], after.values[0])
    return Call(
        name=new.name,
        series={name: _joined(before, after) for name, (before, after) in shared.items()},
        rows=_rows(base, new),
        profiled_ns=base.profiled_ns + new.profiled_ns,
        op_counts=base.op_counts if base.op_counts == new.op_counts else base.op_counts + new.op_counts,
        uncounted=tuple(dict.fromkeys((*base.uncounted, *new.uncounted))),
    )


def _wanted(call: Call) -> list[str]:
    """The metrics that both recordings must have.

    Whether there is a utilization depends on the day: on peak rates of the machine, which may not have been measured or
    reached, and on the overhead of the profiler. One that a recording lacks is not kept.
    """
    return sorted(name for name in call.series if not is_utilization(name))


def _joined(base: Series, new: Series) -> Series:
    return replace(new, values=base.values + new.values)


def _rows(base: Call, new: Call) -> tuple[Row, ...]:
    """The rows of both, in the order of `new`, then those that only `base` has."""
    stored, drawn = len(base.profiled_ns), len(new.profiled_ns)
    before = {(row.kind, row.name): row for row in base.rows}
    after = {(row.kind, row.name): row for row in new.rows}
    rows = []
    for kind, name in dict.fromkeys((*after, *before)):
        nothing = Row(kind, name, 0, ())
        old, now = before.get((kind, name), nothing), after.get((kind, name), nothing)
        same = old.count == now.count
        rows.append(
            Row(
                kind=kind,
                name=name,
                count=now.count if same else (old.count * stored + now.count * drawn) / (stored + drawn),
                ns=(old.ns or (0,) * stored) + (now.ns or (0,) * drawn),
            )
        )
    return tuple(rows)
