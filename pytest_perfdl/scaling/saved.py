"""A choice among models as plain data, and how each part of a step grows over the sizes of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.record import Call, RowKind
from pytest_perfdl.scaling.choose import Choice, Coefficient, Fit, evaluate
from pytest_perfdl.scaling.generic import PowerSum
from pytest_perfdl.scaling.laws import StraightLine, TwoLines
from pytest_perfdl.scaling.physical import Physical, Sum
from pytest_perfdl.scaling.points import Member, Members, Point, Points, naming

# A choice among models as plain data and back: what was fitted once predicts later, without its points' file.


_CURVES: dict[str, type[Any]] = {
    "affine": StraightLine,
    "piecewise": TwoLines,
    "physical": Sum,
    "generic product": PowerSum,
    "generic additive": PowerSum,
}
"""What the form of each name gives."""


def to_data(choice: Choice) -> dict[str, Any]:
    """Everything that `from_data` needs: numbers, text, lists and dicts; times in nanoseconds."""
    points = choice.points
    return {
        "intrinsic": list(points.intrinsic),
        "extrinsic": list(points.extrinsic),
        "columns": {name: points.columns[name].tolist() for name in points.factors},
        "ns": points.ns.tolist(),
        "chosen": choice.chosen.name,
        "explanation": list(choice.explanation),
        "warnings": list(choice.warnings),
        "fits": [
            {
                "name": fit.name,
                "curve": msgspec.to_builtins(fit.curve),
                "replicas": msgspec.to_builtins(fit.replicas),
                "coefficients": msgspec.to_builtins(fit.coefficients),
                "errors": fit.errors.tolist(),
                "freedom": fit.freedom,
                "fit_seconds": fit.fit_seconds,
            }
            for fit in choice.fits
        ],
    }


def from_data(data: Any) -> Choice:
    """What `to_data` was given.

    Raises
    ------
    ScalingError
        The data is not of that form.
    """
    try:
        names = (*data["intrinsic"], *data["extrinsic"])
        rows = zip(*(data["columns"][name] for name in names), data["ns"], strict=True)
        points = Points.of(
            (Point(dict(zip(names, row[:-1], strict=True)), row[-1]) for row in rows),
            intrinsic=data["intrinsic"],
            extrinsic=data["extrinsic"],
        )
        fits = tuple(_fit(each) for each in data["fits"])
        (chosen,) = (fit for fit in fits if fit.name == data["chosen"])
        explanation, warnings = (tuple(map(str, data[name])) for name in ("explanation", "warnings"))
        return Choice(points, fits, chosen, explanation, warnings)
    except ScalingError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, msgspec.ValidationError) as error:
        raise ScalingError(f"the file is not a saved model ({type(error).__name__}: {error})") from None


def _fit(data: Any) -> Fit:
    kind = _CURVES[data["name"]]
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
    members: Members,
    *,
    metric: str = "step_time",
    intrinsic: Sequence[str] | None = None,
    extrinsic: Sequence[str] | None = None,
) -> Parts:
    """Fit each part of a test's step.

    Parameters
    ----------
    members
        The sizes of the test.
    metric
        Only its call counts: that of "forward.step_time" is "forward".
    intrinsic, extrinsic
        Kinds of the factors, as `Points.of` sorts them.

    Raises
    ------
    ScalingError
        One line that begins with the file's name.
    """
    with naming(members.source):
        calls = [(member.sizes, _call(member, metric)) for member in members.each]
        at, longest = max(calls, key=lambda each: fmean(each[1].profiled_ns))
        whole = fmean(longest.profiled_ns)
        parts = []
        for kind, name in _told([call for _, call in calls]):
            measured = [Point(sizes, float(ns)) for sizes, call in calls for ns in _times(call, kind, name)]
            points = Points.of(measured, intrinsic=intrinsic, extrinsic=extrinsic)
            ns = fmean(_times(longest, kind, name))
            parts.append(TimePart(kind, name, ns, ns / whole, points, evaluate(Physical(), points)))
    parts.sort(key=lambda part: -part.share)
    return Parts(at, whole, tuple(parts), 1 - sum(part.share for part in parts))


def _call(member: Member, metric: str) -> Call:
    for finding in member.record.integrity:
        if finding.level == "invalid":
            raise ScalingError(f"{member.record.test}: its parts cannot be used: {finding.message}")
    name = metric.rpartition(".")[0]
    found = next((call for call in member.record.calls if call.name == name), None)
    if found is None or not found.rows or not all(ns > 0 for ns in found.profiled_ns):
        raise ScalingError(f"{member.record.test} has no profiled step{f' of {name}' if name else ''}")
    return found


def _told(calls: Sequence[Call]) -> list[tuple[RowKind, str]]:
    """Parts that every repeat of every size has, and that are no trifle in some."""
    found = None
    large = set()
    for call in calls:
        here = {(row.kind, row.name) for row in call.rows if all(ns > 0 for ns in row.ns)}
        found = here if found is None else found & here
        whole = fmean(call.profiled_ns)
        large |= {(row.kind, row.name) for row in call.rows if fmean(row.ns) >= LEAST_SHARE * whole}
    return sorted((found or set()) & large)


def _times(call: Call, kind: RowKind, name: str) -> tuple[int, ...]:
    return next(row.ns for row in call.rows if (row.kind, row.name) == (kind, name))
