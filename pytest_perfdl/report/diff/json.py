"""A diff as plain data: times in integer nanoseconds per step, shares as ratios of the step's change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pytest_perfdl.diff import causes, places, regions
from pytest_perfdl.results.verdict import VERDICTS, Verdict

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff, DiffCause
    from pytest_perfdl.diff.account import Amount
    from pytest_perfdl.diff.side import Counterfactual
    from pytest_perfdl.results.verdict import MetricVerdict


SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""


def to_json(diffs: Sequence[tuple[str, Diff]], limit: float) -> dict[str, Any]:
    """All of them under "tests"; the worst one also at the top, where a diff of traces is."""
    found = [{"id": title, **_diff(each, limit)} for title, each in diffs]
    worst = min(found, key=lambda each: VERDICTS.index(each["verdict"]))
    return {"schema": SCHEMA, "limit": limit, **worst, "tests": found if len(found) > 1 or found[0]["id"] else []}


def share(part: float, whole: float) -> float | None:
    """Part of the whole change; `None` where there is none."""
    return part / whole if whole else None


def _step(each: Diff) -> dict[str, Any]:
    whole = regions(each.new)
    return {
        "base_ns": each.base_ns,
        "new_ns": each.new_ns,
        "delta_ns": each.delta_ns,
        "ci95_ns": _interval(each.interval),
        "intervals_over": each.unit,
        "timed": None if each.timed is None else _timed(each.timed),
        "unprofiled_ns": None if each.unprofiled_ns is None else round(each.unprofiled_ns),
        "bound": whole.bound(),
        "launch_share": whole.launch_share(),
    }


def _diff(each: Diff, limit: float) -> dict[str, Any]:
    return {
        "verdict": each.verdict(limit),
        "incomparable": f"not comparable: {each.incomparable}" if each.incomparable else None,
        "notes": [*filter(None, [each.devices]), *each.notes],
        "base": {"label": each.base.label, "columns": each.base.columns, "unit": each.base.unit},
        "new": {"label": each.new.label, "columns": each.new.columns, "unit": each.new.unit},
        "step": None if each.incomparable else _step(each),
        "account": [
            {
                "class": line.name,
                "base_ns": line.base_ns,
                "new_ns": line.new_ns,
                "delta_ns": line.delta_ns,
                "share": share(line.delta_ns, each.delta_ns),
            }
            for line in each.account
        ],
        "residual_ns": each.residual_ns,
        "blame": [_cause(cause, each) for cause in causes(each)],
        "modules": _places(each, "module"),
        "lines": _places(each, "line"),
        "matching": {
            "coverage": each.coverage,
            "by": dict(sorted(each.matched_by.items())),
            "unmatched": [
                {
                    "side": "base" if change.base_parts else "new",
                    "kind": change.kind,
                    "name": part.name,
                    "module": part.module,
                    "ns": change.base_ns + change.new_ns,
                }
                for change in each.alone
                for part in (*change.base_parts, *change.new_parts)
            ],
        },
        "drift": {"factor": each.drift.factor, "applied": each.drift.applied, "ns": round(each.drift.ns)},
        "detectable_ns": None if each.detectable_ns is None else round(each.detectable_ns),
        "utilization": None if each.use is None else dataclasses.asdict(each.use),
        "counterfactual": None if each.counterfactual is None else _counterfactual(each.counterfactual),
    }


def _timed(metric: MetricVerdict) -> dict[str, Any]:
    """The step time that a run measured without the profiler, with its verdict."""
    return {
        "metric": metric.name,
        "base_ns": None if metric.base is None else round(metric.base),
        "new_ns": None if metric.new is None else round(metric.new),
        "effect": metric.effect,
        "ci95": metric.ci95,
        "rounds": metric.rounds,
        "limit": metric.limit,
        "verdict": metric.verdict,
    }


def _counterfactual(found: Counterfactual) -> dict[str, Any]:
    """Shares, what is not named and what is not explained add up to the step's change."""
    return {
        "refused": found.refused,
        "exact": found.exact,
        "shares": [
            {
                "kind": share.cause.kind,
                "name": share.cause.name,
                "module": share.cause.module,
                "line": share.cause.line,
                "graph": share.cause.graph,
                "work_base_ns": round(share.cause.base.ns),
                "work_new_ns": round(share.cause.new.ns),
                "work_delta_ns": share.cause.delta_ns,
                "share_ns": share.share_ns,
                "step_without_ns": share.without_ns,
                "latent": share.latent,
                "slack_ns": share.slack_ns,
            }
            for share in found.shares
        ],
        "others_ns": found.others_ns,
        "beyond_ns": found.beyond_ns,
    }


def _cause(cause: DiffCause, each: Diff) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "name": cause.name,
        "status": cause.status,
        "module": cause.module,
        "line": cause.line,
        "graph": cause.graph,
        "delta_ns": cause.delta_ns,
        "own_ns": round(cause.own_ns),
        "share": share(cause.own_ns, each.delta_ns),
        "effects": {name: round(ns) for name, ns in dataclasses.asdict(cause.effects).items()},
        "base": _amount(cause.base),
        "new": _amount(cause.new),
        "bound": cause.bound,
        "certain": cause.certain,
        "confidence": cause.confidence,
    }


def _amount(amount: Amount) -> dict[str, Any]:
    return {"count": amount.count, "busy_ns": round(amount.busy_ns), "ns": round(amount.ns)}


def _places(each: Diff, kind: Literal["module", "line"]) -> list[dict[str, Any]]:
    return [
        {"name": place.name, "base_ns": place.base_ns, "new_ns": place.new_ns, "delta_ns": place.delta_ns}
        for place in places(each, kind)
        if place.name
    ]


def _interval(ends: tuple[float, float] | None) -> list[int] | None:
    return None if ends is None or not all(map(math.isfinite, ends)) else [round(end) for end in ends]


# The form of `perfdl diff --json`, for its schema: what `to_json` writes.


class _Side(msgspec.Struct):
    label: str
    columns: int
    unit: str


class _Timed(msgspec.Struct):
    metric: str
    base_ns: int | None
    new_ns: int | None
    effect: float | None
    ci95: tuple[float, float] | None
    rounds: int | None
    limit: str | None
    verdict: Verdict | None


class _Step(msgspec.Struct):
    base_ns: int
    new_ns: int
    delta_ns: int
    ci95_ns: list[int] | None
    intervals_over: str
    timed: _Timed | None
    unprofiled_ns: int | None
    bound: str
    launch_share: float | None


class _Line(msgspec.Struct, rename={"name": "class"}):
    name: str
    base_ns: int
    new_ns: int
    delta_ns: int
    share: float | None


class _Amount(msgspec.Struct):
    count: float
    busy_ns: int
    ns: int


class _Cause(msgspec.Struct):
    kind: str
    name: str
    status: Literal["new", "gone", "changed"]
    module: str
    line: str
    graph: str
    delta_ns: int
    own_ns: int
    share: float | None
    effects: dict[str, int]
    base: _Amount
    new: _Amount
    bound: str
    certain: bool
    confidence: float


class _Place(msgspec.Struct):
    name: str
    base_ns: int
    new_ns: int
    delta_ns: int


class _Unmatched(msgspec.Struct):
    side: Literal["base", "new"]
    kind: str
    name: str
    module: str
    ns: int


class _Matching(msgspec.Struct):
    coverage: float
    by: dict[str, Any]
    unmatched: list[_Unmatched]


class _Drift(msgspec.Struct):
    factor: float
    applied: bool
    ns: int


class _Share(msgspec.Struct):
    kind: str
    name: str
    module: str
    line: str
    graph: str
    work_base_ns: int
    work_new_ns: int
    work_delta_ns: int
    share_ns: int
    step_without_ns: int | None
    latent: bool
    slack_ns: int | None


class _Counterfactual(msgspec.Struct):
    refused: str
    exact: bool
    shares: list[_Share]
    others_ns: int
    beyond_ns: int


class _TestDiff(msgspec.Struct):
    id: str
    verdict: Verdict
    incomparable: str | None
    """Why the two are not comparable; null where they are."""
    notes: list[str]
    """What to know before the figures: other devices, damage of a trace."""
    base: _Side
    new: _Side
    step: _Step | None
    """Null where the two are not comparable."""
    account: list[_Line]
    residual_ns: int
    blame: list[_Cause]
    modules: list[_Place]
    lines: list[_Place]
    matching: _Matching
    drift: _Drift
    detectable_ns: int | None
    utilization: dict[str, Any] | None
    counterfactual: _Counterfactual | None


class DiffForm(_TestDiff, kw_only=True):
    """The worst diff, and all of them if there are several."""

    limit: float
    tests: list[_TestDiff]
