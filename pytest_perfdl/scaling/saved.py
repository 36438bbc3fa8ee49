"""A choice among models as plain data, and how each part of a step grows over the sizes of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.model.errors import OtherSchemaError, ScalingError
from pytest_perfdl.model.record import Call, Record, RowKind
from pytest_perfdl.model.record_json import check_schema
from pytest_perfdl.scaling.choose import Choice, Coefficient, Fit, evaluate
from pytest_perfdl.scaling.generic import ADDITIVE, PRODUCT
from pytest_perfdl.scaling.laws import AFFINE, PIECEWISE, Form
from pytest_perfdl.scaling.physical import PHYSICAL
from pytest_perfdl.scaling.points import Member, Points

# A choice among models as plain data and back: what was fitted once predicts later, without its points' file.


SCHEMA = 1

_FORMS: Mapping[str, Form[Any]] = {form.name: form for form in (AFFINE, PIECEWISE, PHYSICAL, PRODUCT, ADDITIVE)}


def to_data(choice: Choice) -> dict[str, Any]:
    """Everything that `from_data` needs: numbers, text, lists and dicts; times in nanoseconds."""
    points = choice.points
    return {
        "schema": SCHEMA,
        "intrinsic": list(points.intrinsic),
        "extrinsic": list(points.extrinsic),
        "columns": {name: points.columns[name].tolist() for name in points.factors},
        "ns": points.ns.tolist(),
        "chosen": choice.chosen.name,
        "explanation": list(choice.explanation),
        "warnings": list(choice.warnings),
        "fits": msgspec.to_builtins(choice.fits, enc_hook=np.ndarray.tolist),
    }


def from_data(data: Any) -> Choice:
    """What `to_data` was given.

    Raises
    ------
    ScalingError
        The data is not of that form.
    OtherSchemaError
        It is of another version.
    """
    try:
        check_schema(data["schema"], SCHEMA)
        names = (*data["intrinsic"], *data["extrinsic"])
        rows = zip(*(data["columns"][name] for name in names), data["ns"], strict=True)
        measured = ((dict(zip(names, row[:-1], strict=True)), row[-1]) for row in rows)
        points = Points.of(measured, intrinsic=data["intrinsic"], extrinsic=data["extrinsic"])
        fits = tuple(_fit(each) for each in data["fits"])
        (chosen,) = (fit for fit in fits if fit.name == data["chosen"])
        explanation, warnings = (tuple(map(str, data[name])) for name in ("explanation", "warnings"))
        return Choice(points, fits, chosen, explanation, warnings)
    except (ScalingError, OtherSchemaError):
        raise
    except (KeyError, TypeError, ValueError, IndexError, msgspec.ValidationError) as error:
        raise ScalingError(f"the file is not a saved model ({type(error).__name__}: {error})") from None


def _fit(data: Any) -> Fit:
    kind = _FORMS[data["name"]].curve
    return Fit(
        name=data["name"],
        curve=msgspec.convert(data["curve"], kind),
        replicas=tuple(msgspec.convert(each, kind) for each in data["replicas"]),
        coefficients=msgspec.convert(data["coefficients"], tuple[Coefficient, ...]),
        errors=np.array(data["errors"], dtype=np.float64),
        freedom=msgspec.convert(data["freedom"], int),
        fit_seconds=msgspec.convert(data["fit_seconds"], float),
    )


# How each part of a step grows: operators, kernels and idle time of a run's tests, over their sizes.
#
#     found = parts_of(members_of(records))
#     found.parts[0].name, found.parts[0].fit.coefficients
#
# The time of a step over its size says that something grows; its parts say what does. They are those of the profiled
# steps, so a part of many small operators has the profiler's time in it.


LEAST_SHARE = 0.01
"""Of a profiled step, at any of the sizes, from which a part is told."""


@dataclass(frozen=True, slots=True, eq=False)
class TimePart:
    """A part of the step that there is at every size."""

    kind: RowKind
    name: str
    ns: float
    """Mean at the size where the step takes longest."""
    share: float
    """Of the profiled step there."""
    points: Points
    fit: Fit
    """Of its times, the physical model."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a step is made of."""

    at: Mapping[str, float]
    """The size where the profiled step takes longest."""
    ns: float
    """Its mean there."""
    parts: tuple[TimePart, ...]
    """Largest share first."""
    elsewhere: float
    """Share of what is not told: parts that are small, or not there at every size. Below zero where parts overlap."""


def parts_of(
    members: Sequence[Member],
    *,
    metric: str = "step_time",
    intrinsic: Sequence[str] | None = None,
    extrinsic: Sequence[str] | None = None,
) -> Parts:
    """Fit each part of a test's step. Of the metric only its call counts: that of "forward.step_time" is "forward".

    Raises
    ------
    ScalingError
        A size has no profile that can be used, or there are fewer than three.
    """
    calls = [(sizes, _call(record, metric)) for sizes, record in members]
    at, longest = max(calls, key=lambda each: fmean(each[1].profiled_ns))
    whole = fmean(longest.profiled_ns)
    parts = []
    for kind, name in _shared_parts([call for _, call in calls]):
        measured = [(sizes, float(ns)) for sizes, call in calls for ns in _times(call, kind, name)]
        points = Points.of(measured, intrinsic=intrinsic, extrinsic=extrinsic)
        ns = fmean(_times(longest, kind, name))
        parts.append(TimePart(kind, name, ns, ns / whole, points, evaluate(PHYSICAL, points)))
    parts.sort(key=lambda part: -part.share)
    return Parts(at, whole, tuple(parts), 1 - sum(part.share for part in parts))


def _call(record: Record, metric: str) -> Call:
    for finding in record.integrity:
        if finding.level == "invalid":
            raise ScalingError(f"{record.test}: its parts cannot be used: {finding.message}")
    name = metric.rpartition(".")[0]
    found = next((call for call in record.calls if call.name == name), None)
    if found is None or not found.rows or not all(ns > 0 for ns in found.profiled_ns):
        raise ScalingError(f"{record.test} has no profiled step{f' of {name}' if name else ''}")
    return found


def _shared_parts(calls: Sequence[Call]) -> list[tuple[RowKind, str]]:
    """Parts that every repeat of every size has, and that are no trifle in some."""
    everywhere = [{(row.kind, row.name) for row in call.rows if all(ns > 0 for ns in row.ns)} for call in calls]
    large = {
        (row.kind, row.name)
        for call in calls
        for row in call.rows
        if fmean(row.ns) >= LEAST_SHARE * fmean(call.profiled_ns)
    }
    return sorted(large.intersection(*everywhere))


def _times(call: Call, kind: RowKind, name: str) -> tuple[int, ...]:
    return next(row.ns for row in call.rows if (row.kind, row.name) == (kind, name))
