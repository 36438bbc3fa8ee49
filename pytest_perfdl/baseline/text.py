"""The text format of a record, the same bytes for the same record, and two recordings joined to one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pytest_perfdl.model.errors import BaselineError, ConflictedRecordError, RecordError
from pytest_perfdl.model.metrics import CASES, COUNT_SCOPE, is_utilization, scope
from pytest_perfdl.model.record import Call, Case, MeasurementPlan, Record, Row, Series
from pytest_perfdl.model.record_json import from_json, loaded, to_json
from pytest_perfdl.model.units import plural, some

# The text format of a record: sorted, indented, one row per line, the same bytes for the same record.


LIMIT = 2**26
"""Bytes that a baseline's file may have."""
_MARK = re.compile(rb"^(?:<{7}|\|{7}|={7}|>{7})(?=[ \r\n]|\Z)", re.MULTILINE)
"""A line that git writes into a file that it cannot merge; no line of JSON begins like that."""


def dump(record: Record) -> bytes:
    """A record as UTF-8 JSON.

    Keys are sorted; a list of numbers or words, and a member of a list that holds nothing deeper, takes one
    line, so that a changed operator is a changed line. Reading it and dumping again gives the same bytes.

    Raises
    ------
    RecordError
        When a number is not finite, which JSON cannot say.
    """
    try:
        return (_lines(to_json(record), "") + "\n").encode()
    except ValueError as error:
        raise RecordError(f"contains a number that is not finite ({error})") from error


def parse(data: bytes) -> Record:
    """Read what `dump` wrote.

    Raises
    ------
    RecordError
        When it is not JSON, with the place, or has conflict marks of git; when something has two values; when it is not
        a record, or a newer one; when nothing was measured, since whatever is held against such a baseline would pass.
    """
    try:
        decoded = loaded(data)
    except json.JSONDecodeError as error:
        check_merged(data)
        raise RecordError(
            f"is damaged at line {error.lineno}, column {error.colno} (byte {_byte(error)}): {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise RecordError(f"is damaged at byte {error.start}: not UTF-8 text") from error
    except RecursionError as error:
        raise RecordError("is damaged: the JSON is nested too deeply") from error
    except RecordError:
        raise
    except ValueError as error:
        raise RecordError("is damaged: a number has over 4300 digits") from error
    record = from_json(decoded)
    if not record.calls or not all(call.series for call in record.calls):
        raise RecordError("contains no measurement: a record needs at least one perf(...) call with metrics")
    return record


def check_merged(data: bytes) -> None:
    """Check that a JSON file has no conflict marks of git.

    Raises
    ------
    ConflictedRecordError
        With the first line that is one, and what to do.
    """
    if mark := _MARK.search(data):
        line = data.count(b"\n", 0, mark.start()) + 1
        raise ConflictedRecordError(
            f"has an unresolved merge conflict at line {line}: take either side (git checkout --ours or --theirs), "
            "then record again with pytest --perf-update=all"
        )


def _byte(error: json.JSONDecodeError) -> int:
    return len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))


def _lines(value: Any, indent: str, *, member: bool = False) -> str:
    if not value or not isinstance(value, (dict, list)) or _flat(value) or (member and _shallow(value)):
        return json.dumps(value, sort_keys=True, allow_nan=False)
    deeper = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_lines(value[key], deeper)}" for key in sorted(value)]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    parts = [_lines(part, deeper, member=True) for part in value]
    return "[\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}]"


def _flat(value: Any) -> bool:
    """Whether it is a list of scalars."""
    return isinstance(value, list) and not any(isinstance(part, (dict, list)) for part in value)


def _shallow(value: Any) -> bool:
    """Whether it is a mapping to scalars, and to lists of scalars and mappings to scalars."""
    if not isinstance(value, dict):
        return False
    held = [
        part.values() if isinstance(part, dict) else part for part in value.values() if isinstance(part, (dict, list))
    ]
    return not any(isinstance(each, (dict, list)) for part in held for each in part)


# Joins two recordings: a baseline from several days includes machine drift.


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
        different calls, metrics or cases, or different counts; the message is one line.
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
    _agree(record, f"list of {prefix}metrics", _required_metrics(base), _required_metrics(new))
    shared = {name: (base.series[name], after) for name, after in new.series.items() if name in base.series}
    for name, (before, after) in shared.items():
        what = f"metric {prefix}{name}"
        _agree(record, what, (before.kind, before.unit, before.better), (after.kind, after.unit, after.better))
        counted = after.kind == "counted" and scope(name) == COUNT_SCOPE
        if counted and before.stable and after.stable:
            _agree(record, what, before.values[0], after.values[0])
    return Call(
        name=new.name,
        series={name: _join(before, after) for name, (before, after) in shared.items()},
        rows=_rows(base, new),
        profiled_ns=base.profiled_ns + new.profiled_ns,
        op_counts=base.op_counts if base.op_counts == new.op_counts else base.op_counts + new.op_counts,
        uncounted=tuple(dict.fromkeys((*base.uncounted, *new.uncounted))),
        cases=_cases(record, base, new),
    )


def _cases(record: Record, base: Call, new: Call) -> tuple[Case, ...]:
    """The cases of a table with the times of both."""
    before, after = ({case.id: case for case in call.cases} for call in (base, new))
    _agree(record, "list of cases", some(sorted(before.keys() - after)), some(sorted(after.keys() - before)))
    for name, case in after.items():
        old, now = _of_case(before[name]), _of_case(case)
        _agree(record, f"case {name}", _others(old, now), _others(now, old))
    return tuple(replace(case, ns=before[name].ns + case.ns) for name, case in after.items())


def keep_cases(new: Record, base: Record, kept: Mapping[str, Case]) -> Record:
    """The record with some stored cases of a table instead of those that were measured, or besides them.

    Raises
    ------
    BaselineError
        They have the times of more or fewer processes than were measured.
    """
    if not kept:
        return new
    if new.repeats != base.repeats:
        stored = plural(base.repeats, "process", "processes")
        raise BaselineError(
            f"cannot record a part of the cases of {new.test}: the others have the times of {stored}, and "
            f"{new.repeats} measured now; record all of its cases again with pytest --perf-update=all"
        )

    def merged(call: Call) -> Call:
        cases = {**{case.id: case for case in call.cases}, **kept}
        series = dict(call.series)
        if CASES in series:
            count = tuple(max(value, len(cases)) for value in series[CASES].values)
            series[CASES] = replace(series[CASES], values=count)
        return replace(call, series=series, cases=tuple(cases[name] for name in sorted(cases)))

    return replace(new, calls=tuple(map(merged, new.calls)))


def _of_case(case: Case) -> dict[str, str]:
    """What repeats of a case have in common."""
    counts = {"ops": case.ops, "kernels": case.kernels, "allocations": case.allocations}
    work = {} if case.work is None else {f"stated {name}": value for name, value in asdict(case.work).items()}
    operators = {f"operator {name}": "run" for name in case.operators}
    return {name: str(value) for name, value in {"definition": case.definition, **counts, **work, **operators}.items()}


def _required_metrics(call: Call) -> list[str]:
    """The metrics that both recordings must have.

    Whether there is a utilization depends on the day: on peak rates of the machine, which may not have been measured or
    reached, and on the overhead of the profiler. One that a recording lacks is not kept.
    """
    return sorted(name for name in call.series if not is_utilization(name))


def _join(base: Series, new: Series) -> Series:
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
