"""The JSON form of a record, in baseline files and run files.

`from_json` is the only way to read one. Baselines come with pull requests and run files from CI artifacts, so it checks
every part: types, hashes, sizes, and that numbers are finite and small enough for results computed from them to be
finite, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from pytest_perfdl.model.cases import LONGEST_ID
from pytest_perfdl.model.errors import OtherSchemaError, RecordError
from pytest_perfdl.model.metrics import METRICS, STEP_TIMES, TimedMetric
from pytest_perfdl.model.record import (
    LONGEST_NOTE,
    SHORT_HASH,
    Better,
    Call,
    Case,
    CaseWork,
    Code,
    Finding,
    Key,
    Kind,
    MeasurementPlan,
    Occasion,
    Record,
    Refreshed,
    Row,
    RowKind,
    Scalar,
    Series,
)
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible

SCHEMA = 1
"""Version of the JSON form, the only one that is read. Raised when readers would misread the new form."""
RUN_FILE_SCHEMA, RUN_FILE_LIMIT = 1, 2**29
"""Schema and most bytes of a run file, here for histories, which read parts of it without pytest's import."""
LONGEST_NS = 2**61
"""Nanoseconds that a duration may have, 73 years: sums of a few stay 64-bit integers."""
LARGEST = 1e100
"""Magnitude that any other figure may have: sums of squares stay finite."""
_REPEATS = 100_000
"""Repeats that a record may have."""
_SAID = 500
"""Characters of an error's text."""
_PATTERNS = {
    "traces/": "not a file name in traces/",
    f"{{{SHORT_HASH}}}": "not an abbreviated hash",
    "x1f": "not a path relative to the repository",
}
"""What a text is not that does not match, by a part of the pattern."""


_T = TypeVar("_T")
_Number = int | float
_Count = Annotated[int, msgspec.Meta(ge=1, le=_REPEATS)]
_Small = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
ScalarForm = str | bool | Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | float | None
GitHash = Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")]
"""Of a commit or tree. Nothing else is ever given to git."""
_ShortHash = Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{SHORT_HASH}}}\Z")]
PATH = r"^(?!/|-|:)(?!(?:.*/)?\.{0,2}(?:/|\Z))[^\x00-\x1f\x7f\\]+\Z"
"""Of a file in a repository, from its top; it is given to git."""
_Path = Annotated[str, msgspec.Meta(pattern=PATH, max_length=4096)]
_CASES = 100_000
"""Cases that a table may have."""
_FILES = 10_000
"""Files that a record may name."""
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class KeyForm(msgspec.Struct):
    """A key, as records and run files hold it."""

    slug: str
    parts: dict[str, ScalarForm]


class _PlanForm(msgspec.Struct, forbid_unknown_fields=True):
    # A part of the plan that this version does not know would be another measurement.
    warmup: _Small
    steps: _Small
    period: _Small = 1
    profiled: _Small = 4
    threads: _Small = 1
    seed: int = 0
    ranks: _Small = 0
    backend: str = ""
    loops: dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**31)]] = {}


class _OccasionOutline(msgspec.Struct):
    repeats: _Count
    date: str
    commit: GitHash | None


class OccasionForm(_OccasionOutline):
    """An occasion, as records hold it."""

    tree: GitHash | None
    reference_ns: list[_Number] | None = None
    seconds: _Number | None = None


class _SeriesForm(msgspec.Struct):
    kind: Kind
    unit: str
    better: Better
    values: list[_Number]


class _RowForm(msgspec.Struct):
    kind: RowKind
    name: str
    count: _Number
    ns: list[_Number]


class _WorkForm(msgspec.Struct):
    items: _Number | None = None
    flops: _Number | None = None
    bytes: _Number | None = None
    dtype: str = ""
    cold: bool = False


class _CaseForm(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)]
    ns: list[_Number]
    loops: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    ops: _Small
    kernels: _Small
    allocations: _Small
    operators: list[str]
    work: _WorkForm | None = None
    definition: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] = ""


class CallOutline(msgspec.Struct):
    """The metrics of a call."""

    name: str
    metrics: dict[str, _SeriesForm]


class _CallForm(CallOutline):
    rows: list[_RowForm]
    profiled_ns: list[_Number]
    op_counts: list[_Small]
    uncounted: list[str]
    cases: Annotated[list[_CaseForm], msgspec.Meta(max_length=_CASES)] = []


class _CodeForm(msgspec.Struct):
    files: Annotated[dict[_Path, _ShortHash], msgspec.Meta(max_length=_FILES)]
    packages: Annotated[dict[str, str], msgspec.Meta(max_length=_FILES)] = {}
    ignored: Annotated[list[_Path], msgspec.Meta(max_length=_FILES)] = []
    left_out: _Small = 0


class _RefreshedForm(msgspec.Struct):
    date: str
    commit: GitHash | None
    best: dict[str, _Number]


class RecordForm(msgspec.Struct):
    """A record, as baselines and run files hold it, without the number of the schema."""

    test: str
    key: KeyForm
    context: dict[str, ScalarForm]
    test_hash: str
    plan: _PlanForm
    occasions: list[OccasionForm]
    modes: dict[str, list[str]]
    integrity: list[Finding]
    calls: list[_CallForm]
    exemplars: dict[str, _Digest] = {}
    code: _CodeForm | None = None
    note: Annotated[str, msgspec.Meta(max_length=LONGEST_NOTE)] | None = None
    refreshed: _RefreshedForm | None = None


class Versioned(msgspec.Struct):
    """What every file has."""

    schema: int


class Outline(Versioned):
    """What lists and histories need of a record: neither rows nor files of code."""

    test: str
    key: KeyForm
    context: dict[str, ScalarForm]
    occasions: Annotated[list[_OccasionOutline], msgspec.Meta(min_length=1)]
    calls: list[CallOutline]
    test_hash: str = ""
    plan: dict[str, Any] = {}
    integrity: list[Finding] = []
    note: str | None = None


class _Twice(Exception):
    """An object of a JSON text has a name twice."""


class _Pairs(list[tuple[str, Any]]):
    """An object of a JSON text, with all of its names."""


def loaded(data: bytes) -> Any:
    """The plain data of a JSON text in UTF-8 without a byte order mark, as `decoded` takes it.

    Raises
    ------
    RecordError
        When an object has a name twice: whoever reads the text and whoever reads the data could see two records.
    ValueError
        As of `json.loads`.
    """
    text = data.decode()
    try:
        return json.loads(text, object_pairs_hook=_object)
    except _Twice:
        raise RecordError(f"is damaged ({_twice(json.loads(text, object_pairs_hook=_Pairs))})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Twice
    return found


def _twice(data: Any) -> str:
    """Which name stands twice, and in which object; the first one of the text."""
    parts = [("", data)]
    while True:
        place, value = parts.pop()
        inner = []
        if isinstance(value, _Pairs):
            name = next((name for name, count in Counter(name for name, _ in value).items() if count > 1), None)
            if name is not None:
                said = f"{visible(name[:_SAID])!r} stands twice"
                return f"{_cut(place.removeprefix('.'))}: {said}" if place else said
            inner = [(f"{place}.{name}", each) for name, each in value]
        elif isinstance(value, list):
            inner = [(f"{place}[{number}]", each) for number, each in enumerate(value)]
        parts += reversed(inner)


_V = TypeVar("_V", bound=Versioned)
_DAMAGED = (msgspec.DecodeError, UnicodeError, RecursionError)


def decoded(data: bytes, form: type[_V], known: int = SCHEMA) -> _V:
    """The parts of a file that a form has, several times as fast as all of it.

    Raises
    ------
    RecordError
        When it is no such file, or of another schema; the message continues the name of the file.
    """
    try:
        found = msgspec.json.decode(data, type=form)
    except _DAMAGED as error:
        # The form of another version need not be like this one.
        with contextlib.suppress(*_DAMAGED):
            check_schema(msgspec.json.decode(data, type=Versioned).schema, known)
        raise RecordError(f"is damaged, or no file of pytest-perfdl ({visible(str(error)[:_SAID])})") from None
    check_schema(found.schema, known)
    return found


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
        "plan": _plan_to_json(record.plan),
        "occasions": [_occasion_to_json(occasion) for occasion in record.occasions],
        "modes": {name: list(labels) for name, labels in record.modes.items()},
        "integrity": [dataclasses.asdict(finding) for finding in record.integrity],
        "calls": [_call_to_json(call) for call in record.calls],
        **({"exemplars": dict(record.exemplars)} if record.exemplars else {}),
        **({"code": _code_to_json(record.code)} if record.code is not None else {}),
        **({"note": record.note} if record.note is not None else {}),
        **({"refreshed": _refreshed_to_json(record.refreshed)} if record.refreshed is not None else {}),
    }


def from_json(data: Any) -> Record:
    """Read what `to_json` wrote.

    Raises
    ------
    OtherSchemaError
        When the data is of another schema.
    RecordError
        When a part is missing, of the wrong type or out of bounds; the message names the place.
    """
    if not isinstance(data, dict) or type(data.get("schema")) is not int:
        raise RecordError("is not a pytest-perfdl record: it has no schema number")
    check_schema(data["schema"], SCHEMA)
    return of_form(converted(data, RecordForm))


def of_form(form: RecordForm) -> Record:
    """A record of its checked form.

    Raises
    ------
    RecordError
        As `from_json`.
    """
    occasions = tuple(_occasion(each, f"occasions[{place}]") for place, each in enumerate(form.occasions))
    repeats = sum(occasion.repeats for occasion in occasions)
    if not 0 < repeats <= _REPEATS:
        raise RecordError(f"is malformed (occasions: {plural(repeats, 'repeat')}, expected 1 to {_REPEATS})")
    _check_unique([each.name for each in form.calls], "calls")
    return Record(
        test=form.test,
        key=Key(form.key.slug, _scalars(form.key.parts, "key.parts")),
        context=_scalars(form.context, "context"),
        test_hash=form.test_hash,
        plan=MeasurementPlan(**msgspec.structs.asdict(form.plan)),
        calls=tuple(_call(each, f"calls[{place}]", repeats) for place, each in enumerate(form.calls)),
        occasions=occasions,
        modes={name: tuple(labels) for name, labels in form.modes.items()},
        integrity=tuple(form.integrity),
        exemplars=form.exemplars,
        code=None if form.code is None else _code(form.code),
        note=form.note,
        refreshed=None if form.refreshed is None else _read_refreshed(form.refreshed),
    )


def check_schema(found: int, known: int) -> None:
    """Refuse a file whose schema is not the one that is read.

    Raises
    ------
    OtherSchemaError
    """
    if found != known:
        raise OtherSchemaError(
            f"was written by another version of pytest-perfdl (schema {str(found)[:20]}, this one reads {known}): use "
            "that version, or measure again"
        )


def converted(data: Any, form: type[_T]) -> _T:
    """Plain data as a form of msgspec, checked.

    Raises
    ------
    RecordError
        "is malformed (occasions[0].repeats: expected `int`, got `str`)", at most a line of moderate length.
    """
    try:
        return msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        if "matching regex" in what:
            what = next((said for part, said in _PATTERNS.items() if part in what), "not a full hash in lower case")
        what = what.replace("Object missing required field", "missing field")
        place = place.strip("`").removeprefix("$").removeprefix(".").replace("key` in `$.", "a key of ")
        said = f"{place}: {what[:1].lower()}{what[1:]}" if place else f"{what[:1].lower()}{what[1:]}"
        raise RecordError(f"is malformed ({visible(said[:_SAID])})") from None
    except UnicodeError:
        raise RecordError("is malformed (a name is not valid Unicode)") from None


def _plan_to_json(plan: MeasurementPlan) -> dict[str, Any]:
    """Its fields; without loops and ranks where there are none."""
    later = ("ranks", "backend", "loops")
    return {name: value for name, value in dataclasses.asdict(plan).items() if name not in later or value}


def _occasion_to_json(occasion: Occasion) -> dict[str, Any]:
    """Its fields; without those that are not known."""
    fields = dataclasses.asdict(occasion) | {"reference_ns": _numbers(occasion.reference_ns, significant)}
    return {name: value for name, value in fields.items() if name not in ("reference_ns", "seconds") or value}


def _code_to_json(code: Code) -> dict[str, Any]:
    """Its fields without those that say nothing; a file a line, so that a review sees which of them changed."""
    fields = {
        "files": dict(code.files),
        "packages": dict(code.packages),
        "ignored": list(code.ignored),
        "left_out": code.left_out,
    }
    return {name: value for name, value in fields.items() if name == "files" or value}


def _refreshed_to_json(refreshed: Refreshed) -> dict[str, Any]:
    best = {name: significant(value) for name, value in refreshed.best.items()}
    return {"date": refreshed.date, "commit": refreshed.commit, "best": best}


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
        **({"cases": [_case_to_json(case) for case in call.cases]} if call.cases else {}),
    }


def _case_to_json(case: Case) -> dict[str, Any]:
    """Its fields: one line of a baseline."""
    written = dataclasses.asdict(case) | {"ns": _numbers(case.ns, significant), "operators": list(case.operators)}
    definition = written.pop("definition")
    stated = (written.pop("work") or {}).items()
    known = {name: value for name, value in stated if value is not None and value is not False and value != ""}
    work = {name: value if name in ("dtype", "cold") else _exact(value) for name, value in known.items()}
    return written | ({"work": work} if work else {}) | ({"definition": definition} if definition else {})


def _occasion(form: OccasionForm, place: str) -> Occasion:
    reference_ns: tuple[int, ...] = ()
    if form.reference_ns is not None:
        reference_ns = _durations(form.reference_ns, form.repeats, f"{place}.reference_ns")
        if min(reference_ns) <= 0:
            raise RecordError(f"is malformed ({place}.reference_ns: {min(reference_ns)} ns, expected a time above 0)")
    seconds = form.seconds
    if seconds is not None:
        (seconds,) = _check_bounds([seconds], f"{place}.seconds", LONGEST_NS)
    return Occasion(form.repeats, form.date, form.commit, form.tree, reference_ns, seconds)


def _code(form: _CodeForm) -> Code:
    return Code(form.files, form.packages, tuple(form.ignored), form.left_out)


def _read_refreshed(form: _RefreshedForm) -> Refreshed:
    for name, value in form.best.items():
        _check_bounds([value], f"refreshed.best.{name}", LARGEST)
    return Refreshed(form.date, form.commit, form.best)


def _call(form: _CallForm, place: str, repeats: int) -> Call:
    _check_unique([(each.kind, each.name) for each in form.rows], f"{place}.rows")
    _check_unique([each.id for each in form.cases], f"{place}.cases")
    return Call(
        name=form.name,
        series={name: _series(name, each, f"{place}.metrics.{name}", repeats) for name, each in form.metrics.items()},
        rows=tuple(_row(each, f"{place}.rows[{number}]", repeats) for number, each in enumerate(form.rows)),
        profiled_ns=_durations(form.profiled_ns, repeats, f"{place}.profiled_ns"),
        op_counts=tuple(form.op_counts),
        uncounted=tuple(form.uncounted),
        cases=tuple(_case(each, f"{place}.cases[{number}]", repeats) for number, each in enumerate(form.cases)),
    )


def _case(form: _CaseForm, place: str, repeats: int) -> Case:
    times = _check_bounds(_each(form.ns, repeats, f"{place}.ns"), f"{place}.ns", LONGEST_NS)
    if min(times) <= 0:
        raise RecordError(f"is malformed ({_cut(place)}.ns: {min(times)} ns, expected a time above 0)")
    work = None if form.work is None else _work(form.work, f"{place}.work")
    operators = tuple(form.operators)
    counts = form.ops, form.kernels
    return Case(form.id, tuple(times), form.loops, *counts, operators, work, form.definition, form.allocations)


def _work(form: _WorkForm, place: str) -> CaseWork:
    stated = [each for each in (form.items, form.flops, form.bytes) if each is not None]
    _check_sign(_check_bounds(stated, place, LARGEST), place)
    return CaseWork(form.items, form.flops, form.bytes, form.dtype, form.cold)


def _series(name: str, form: _SeriesForm, place: str, repeats: int) -> Series:
    most = LONGEST_NS if form.unit == "ns" else LARGEST
    values = _check_bounds(_each(form.values, repeats, place), place, most)
    if (known := METRICS.get(name)) is not None:
        kind, better = ("timed", known.better) if isinstance(known, TimedMetric) else ("counted", "lower")
        for field, found, meant in (
            ("kind", form.kind, kind),
            ("unit", form.unit, known.unit),
            ("better", form.better, better),
        ):
            if found != meant:
                raise RecordError(f"is malformed ({_cut(place)}.{field}: {visible(found)[:20]!r}, expected {meant!r})")
        if name in STEP_TIMES and min(values) <= 0:
            raise RecordError(f"is malformed ({_cut(place)}: {min(values)} ns, expected a time above 0)")
        if kind == "counted" or form.unit == "ns":
            _check_sign(values, place)
    return Series(form.kind, form.unit, form.better, tuple(values))


def _row(form: _RowForm, place: str, repeats: int) -> Row:
    (count,) = _check_sign(_check_bounds([form.count], f"{place}.count", LARGEST), f"{place}.count")
    return Row(form.kind, form.name, count, _durations(form.ns, repeats, f"{place}.ns"))


def _durations(values: Sequence[float], repeats: int, place: str) -> tuple[int, ...]:
    checked = _check_bounds(_each(values, repeats, place), place, LONGEST_NS)
    return tuple(int(value) for value in _check_sign(checked, place))


def _check_unique(names: Sequence[Hashable], place: str) -> None:
    if len(set(names)) == len(names):
        return
    name = next(name for name, count in Counter(names).items() if count > 1)
    said = " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
    raise RecordError(f"is malformed ({_cut(place)}: two are called {visible(said)[:_SAID]!r})")


def _check_sign(values: Sequence[float], place: str) -> Sequence[float]:
    """The values, if none is below 0."""
    if min(values, default=0) < 0:
        raise RecordError(f"is malformed ({_cut(place)}: {min(values)}, expected a number of at least 0)")
    return values


def _each(values: Sequence[float], repeats: int, place: str) -> Sequence[float]:
    if len(values) != repeats:
        raise RecordError(
            f"is malformed ({_cut(place)}: {plural(len(values), 'value')} for {plural(repeats, 'repeat')})"
        )
    return values


def _check_bounds(values: Sequence[float], place: str, most: float) -> Sequence[float]:
    """The values, if each is 0 or its magnitude lies between the largest and its inverse: then quotients are finite."""
    least = 1 / LARGEST
    for value in values:
        # False for NaN too.
        if not (value == 0 or least <= abs(value) <= most):
            raise RecordError(f"is malformed ({_cut(place)}: {str(value)[:20]} is not a number up to {most:.4g})")
    return values


def _scalars(values: Mapping[str, Scalar], place: str) -> Mapping[str, Scalar]:
    for name, value in values.items():
        if isinstance(value, float):
            _check_bounds([value], f"{place}.{name}", LARGEST)
    return values


def _cut(place: str) -> str:
    return visible(place[:_SAID])


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
