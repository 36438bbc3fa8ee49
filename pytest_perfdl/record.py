"""The one noun of the system: what one test measured in one environment.

A baseline file holds a `Record`, a run holds `Record`s, a judgement takes two. This module knows their
parts and their JSON form; it imports nothing heavy, so that the orchestrating process may hold records
without numpy or torch.

Units: every duration is an integer number of nanoseconds, every size a number of bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""

Kind = Literal["timed", "counted"]
Better = Literal["lower", "higher"]
RowKind = Literal["operator", "kernel", "idle"]
Scalar = str | int | float | bool | None


COUNT_SCOPE = ("torch", "flags", "device")
"""Context in which operators, launches and arithmetic are exact."""
BYTE_SCOPE = (*COUNT_SCOPE, "threads", "cpu_capability")
"""Context in which sizes and allocations are exact too."""
_COUNTS = frozenset({"ops", "kernels", "launches", "flops", "h2d_bytes", "recompiles", "graph_breaks"})


def scope(metric: str) -> tuple[str, ...]:
    """Names of the context that must be equal for a counted metric (without its call) to compare exactly.

    A metric that is not known to need less is exact only in the narrower scope.

    >>> scope("ops"), scope("peak_memory")[3:]
    (('torch', 'flags', 'device'), ('threads', 'cpu_capability'))
    """
    return COUNT_SCOPE if metric in _COUNTS else BYTE_SCOPE


class RecordError(ValueError):
    """A stored record cannot be used; the message is one line for people."""


class NewerRecordError(RecordError):
    """A stored record is of a schema that only a newer version reads."""


@dataclass(frozen=True, slots=True)
class Key:
    """What decides whether timed metrics may be compared: the hardware that matters.

    `slug` names the baseline folder; `parts` are the facts it was made from.
    """

    slug: str
    parts: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a test was measured. A change of plan makes a baseline outdated."""

    warmup: int
    """Least number of warm-up steps before anything counts."""
    steps: int
    """Timed steps per repeat."""
    period: int = 1
    """Steps that make a cycle (gradient accumulation)."""
    profiled: int = 4
    """Steps seen by the profiler; a multiple of `period`."""
    threads: int = 1
    """Intra-op threads of the worker."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one call: a value per repeat, in the order of the record's repeats.

    Timed values are nanoseconds (unit "ns") and one number per process: the repeat, not the step, is the
    statistical unit. Counted values are means per step, exact because the profiled steps are whole periods.
    """

    kind: Kind
    unit: str
    better: Better
    values: tuple[float, ...]

    @property
    def stable(self) -> bool:
        """Whether every repeat agrees; only then can a counted metric be compared exactly."""
        return all(value == self.values[0] for value in self.values)


@dataclass(frozen=True, slots=True)
class Row:
    """An operator (self time), a kernel (duration) or a class of idle time: what a step's time is made of.

    `count` is occurrences per step; `ns` the mean time per profiled step, one value per repeat. The rows of
    one call add up to its profiled step (CPU-only), so differences of rows close an account.
    """

    kind: RowKind
    name: str
    count: float
    ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What one `perf(...)` call of a test measured; `name` is empty unless the author gave one."""

    name: str
    series: Mapping[str, Series]
    rows: tuple[Row, ...]
    profiled_ns: tuple[int, ...]
    """Mean duration of a profiled step, one value per repeat."""
    op_counts: tuple[int, ...] = ()
    """Operators in each profiled step, in order: more than one value means that steps differ."""
    uncounted: tuple[str, ...] = ()
    """Operators that do arithmetic the FLOP counter does not know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the measurement noticed about itself. `invalid` breaks it, `note` explains it."""

    level: Literal["invalid", "note"]
    code: str
    message: str


INJECTED = "injected"
"""Code of the finding that every measurement carries whose steps were slowed down on purpose."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """When and on what code a group of repeats was measured."""

    repeats: int
    date: str
    commit: str | None
    """Commit checked out while measuring, `None` outside git."""
    tree: str | None
    """Hash of the working tree without the baseline folder: identifies the measured code."""
    reference_ns: tuple[int, ...] = ()
    """What the reference load took around each repeat: how fast the machine was. Empty where it was not timed."""
    seconds: float | None = None
    """What one repeat took on average, its worker's start included; `None` where that was not noted."""


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that one test measured in one environment."""

    test: str
    """Node id."""
    key: Key
    context: Mapping[str, Scalar]
    """Software versions, driver, clocks: shown when different, never a reason to refuse."""
    test_hash: str
    plan: Plan
    calls: tuple[Call, ...]
    occasions: tuple[Occasion, ...]
    modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels of the machine's state seen in the repeats, such as the page-fault mode."""
    integrity: tuple[Finding, ...] = ()

    @property
    def repeats(self) -> int:
        """Number of measured processes."""
        return sum(occasion.repeats for occasion in self.occasions)

    @property
    def reference_ns(self) -> tuple[int | None, ...]:
        """What the reference load took around each repeat, `None` where it was not timed."""
        return tuple(ns for occasion in self.occasions for ns in occasion.reference_ns or (None,) * occasion.repeats)

    def metrics(self) -> dict[str, Series]:
        """Every metric under its full name: `step_time`, or `forward.step_time` for a named call."""
        return {metric_name(call.name, name): series for call in self.calls for name, series in call.series.items()}


def metric_name(call: str, name: str) -> str:
    """A metric's full name: that of a named call has the call's name in front."""
    return f"{call}.{name}" if call else name


def row_name(call: str, kind: RowKind, name: str) -> str:
    """A row's full name among all of a test's.

    >>> row_name("forward", "operator", "aten::mm"), row_name("", "kernel", "gemm")
    ('forward.operator aten::mm', 'kernel gemm')
    """
    return metric_name(call, f"{kind} {name}")


def significant(value: float, digits: int = 4) -> float:
    """Round to significant digits, so that a stored number carries no noise that git would show.

    >>> significant(41234567), significant(0.00123456), significant(12)
    (41230000, 0.001235, 12)
    """
    if value == 0 or not math.isfinite(value):
        return value
    return _whole(float(f"{value:.{digits - 1}e}"))


def to_json(record: Record) -> dict[str, Any]:
    """Plain data for `json`, rounded: timed values to four significant digits, counted ones exact."""
    return {
        "schema": SCHEMA,
        "test": record.test,
        "key": {"slug": record.key.slug, "parts": dict(record.key.parts)},
        "context": dict(record.context),
        "test_hash": record.test_hash,
        "plan": dataclasses.asdict(record.plan),
        "occasions": [_occasion_to_json(occasion) for occasion in record.occasions],
        "modes": {name: list(labels) for name, labels in record.modes.items()},
        "integrity": [dataclasses.asdict(finding) for finding in record.integrity],
        "calls": [_call_to_json(call) for call in record.calls],
    }


def from_json(data: Any) -> Record:
    """Read what `to_json` wrote.

    Raises
    ------
    NewerRecordError
        When the data is of a newer schema.
    RecordError
        When a part is missing or of the wrong type.
    """
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise RecordError("is not a perfdl record: it has no schema number")
    if data["schema"] > SCHEMA:
        raise NewerRecordError(
            f"was written by a newer pytest-perfdl (schema {data['schema']}, this one reads {SCHEMA}): "
            "upgrade pytest-perfdl"
        )
    try:
        return Record(
            test=_typed(data, "test", str),
            key=Key(_typed(data["key"], "slug", str), _scalars(_typed(data["key"], "parts", dict))),
            context=_scalars(_typed(data, "context", dict)),
            test_hash=_typed(data, "test_hash", str),
            plan=Plan(**{name: int(value) for name, value in _typed(data, "plan", dict).items()}),
            occasions=tuple(_occasion_from_json(occasion) for occasion in data["occasions"]),
            modes={name: tuple(labels) for name, labels in data["modes"].items()},
            integrity=tuple(Finding(**finding) for finding in data["integrity"]),
            calls=_checked(tuple(_call_from_json(call) for call in data["calls"]), data["occasions"]),
        )
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"is malformed ({error})"
        raise RecordError(what) from error


def _occasion_to_json(occasion: Occasion) -> dict[str, Any]:
    """Its fields; without those that were not noted, as in files of before they were."""
    fields = dataclasses.asdict(occasion) | {"reference_ns": _numbers(occasion.reference_ns, significant)}
    return {name: value for name, value in fields.items() if name not in ("reference_ns", "seconds") or value}


def _occasion_from_json(data: Mapping[str, Any]) -> Occasion:
    if "reference_ns" not in data:
        return Occasion(**data)
    occasion = Occasion(**{**data, "reference_ns": tuple(int(value) for value in _finite(data["reference_ns"]))})
    if len(occasion.reference_ns) != occasion.repeats or min(occasion.reference_ns) <= 0:
        raise RecordError(f"is malformed (an occasion of {occasion.repeats} repeats has other reference times)")
    return occasion


def _call_to_json(call: Call) -> dict[str, Any]:
    return {
        "name": call.name,
        "metrics": {
            name: {
                "kind": series.kind,
                "unit": series.unit,
                "better": series.better,
                "values": _numbers(series.values, significant if series.kind == "timed" else _exact),
            }
            for name, series in call.series.items()
        },
        "profiled_ns": _numbers(call.profiled_ns, significant),
        "op_counts": list(call.op_counts),
        "uncounted": list(call.uncounted),
        "rows": [
            {"kind": row.kind, "name": row.name, "count": _exact(row.count), "ns": _numbers(row.ns, significant)}
            for row in call.rows
        ],
    }


def _call_from_json(data: Mapping[str, Any]) -> Call:
    return Call(
        name=_typed(data, "name", str),
        series={
            name: Series(
                kind=_one_of(series["kind"], ("timed", "counted")),
                unit=_typed(series, "unit", str),
                better=_one_of(series["better"], ("lower", "higher")),
                values=_finite(series["values"]),
            )
            for name, series in data["metrics"].items()
        },
        rows=tuple(
            Row(
                kind=_one_of(row["kind"], ("operator", "kernel", "idle")),
                name=_typed(row, "name", str),
                count=_finite([row["count"]])[0],
                ns=tuple(int(value) for value in _finite(row["ns"])),
            )
            for row in data["rows"]
        ),
        profiled_ns=tuple(int(value) for value in _finite(data["profiled_ns"])),
        op_counts=tuple(int(value) for value in data["op_counts"]),
        uncounted=tuple(data["uncounted"]),
    )


def _exact(value: float) -> float:
    """Whole numbers without a fraction; others to twelve digits, the same on every platform."""
    if isinstance(value, int):
        return value
    return _whole(value if value.is_integer() else float(f"{value:.12g}"))


def _whole(value: float) -> float:
    """An integer where that says the same, so that what was read is written again as it was."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _numbers(values: Sequence[float], shorten: Callable[[float], float]) -> list[float]:
    return [shorten(value) for value in values]


def _finite(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not values:
        raise RecordError("is malformed (a metric without values)")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RecordError(f"is malformed ({value!r} is not a finite number)")
    return tuple(values)


def _typed(data: Mapping[str, Any], name: str, kind: type) -> Any:
    value = data[name]
    if not isinstance(value, kind):
        raise RecordError(f"is malformed ({name!r} should be {kind.__name__}, is {type(value).__name__})")
    return value


def _scalars(data: Mapping[str, Any]) -> dict[str, Scalar]:
    for name, value in data.items():
        if not isinstance(value, (str, int, float, bool, type(None))):
            raise RecordError(f"is malformed ({name!r} should be a scalar)")
    return dict(data)


def _one_of(value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise RecordError(f"is malformed ({value!r} is none of {', '.join(allowed)})")
    return value


def _checked(calls: tuple[Call, ...], occasions: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    repeats = sum(int(occasion["repeats"]) for occasion in occasions)
    for call in calls:
        lengths = {len(series.values) for series in call.series.values()} | {len(call.profiled_ns)}
        lengths |= {len(row.ns) for row in call.rows}
        if lengths - {repeats}:
            raise RecordError(
                f"is malformed (its occasions count {repeats} repeats, a metric has {max(lengths - {repeats})})"
            )
    return calls
