"""A diff as plain data: times in integer nanoseconds per step, shares as ratios of the step's change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pytest_perfdl.diff import AccountLine, causes, places, regions
from pytest_perfdl.diff.account import AccountDrift, Amount
from pytest_perfdl.diff.side import Counterfactual, MachineUse, Share
from pytest_perfdl.model.json import derived, filled, plain
from pytest_perfdl.results.verdict import VERDICTS, Verdict

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff, DiffCause
    from pytest_perfdl.results.verdict import MetricVerdict


SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""


class _Side(msgspec.Struct):
    label: str
    columns: int
    unit: str


class _Timed(msgspec.Struct):
    """The step time that a run measured without the profiler, with its verdict."""

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


_Amount = derived("Amount", Amount, more={"busy_ns": int, "ns": int})
_Place = derived("Place", AccountLine, more={"delta_ns": int})
_Drift = derived("Drift", AccountDrift, more={"ns": int})


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
    base: _Amount  # type: ignore[valid-type]
    new: _Amount  # type: ignore[valid-type]
    bound: str
    certain: bool
    confidence: float


class _Unmatched(msgspec.Struct):
    side: Literal["base", "new"]
    kind: str
    name: str
    module: str
    ns: int


class _Matching(msgspec.Struct):
    coverage: float
    by: dict[str, float]
    unmatched: list[_Unmatched]


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


_Counterfactual = derived("Counterfactual", Counterfactual, first=("refused", "exact"), more={"shares": list[_Share]})
"""Shares, what is not named and what is not explained add up to the step's change."""


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
    modules: list[_Place]  # type: ignore[valid-type]
    lines: list[_Place]  # type: ignore[valid-type]
    matching: _Matching
    drift: _Drift  # type: ignore[valid-type]
    detectable_ns: int | None
    utilization: MachineUse | None
    counterfactual: _Counterfactual | None  # type: ignore[valid-type]


class DiffForm(_TestDiff, kw_only=True):
    """The worst diff, and all of them if there are several."""

    limit: float
    tests: list[_TestDiff]


def to_json(diffs: Sequence[tuple[str, Diff]], limit: float) -> dict[str, Any]:
    """All of them under "tests"; the worst one also at the top, where a diff of traces is."""
    found = [_diff(title, each, limit) for title, each in diffs]
    worst = min(found, key=lambda each: VERDICTS.index(each.verdict))
    tests = found if len(found) > 1 or found[0].id else []
    return {"schema": SCHEMA, "limit": limit, **plain(filled(DiffForm, worst, limit=limit, tests=tests))}


def share(part: float, whole: float) -> float | None:
    """Part of the whole change; `None` where there is none."""
    return part / whole if whole else None


def _diff(title: str, each: Diff, limit: float) -> _TestDiff:
    found = each.counterfactual
    return filled(
        _TestDiff,
        each,
        id=title,
        verdict=each.verdict(limit),
        incomparable=f"not comparable: {each.incomparable}" if each.incomparable else None,
        notes=[*filter(None, [each.devices]), *each.notes],
        base=filled(_Side, each.base),
        new=filled(_Side, each.new),
        step=None if each.incomparable else _step(each),
        account=[filled(_Line, line, share=share(line.delta_ns, each.delta_ns)) for line in each.account],
        blame=[_cause(cause, each) for cause in causes(each)],
        modules=_places(each, "module"),
        lines=_places(each, "line"),
        matching=_Matching(each.coverage, dict(sorted(each.matched_by.items())), list(_unmatched(each))),
        drift=filled(_Drift, each.drift, ns=round(each.drift.ns)),
        detectable_ns=_round(each.detectable_ns),
        utilization=each.use,
        counterfactual=found and filled(_Counterfactual, found, shares=[_share(share) for share in found.shares]),
    )


def _step(each: Diff) -> _Step:
    whole = regions(each.new)
    return filled(
        _Step,
        each,
        ci95_ns=_interval(each.interval),
        intervals_over=each.unit,
        timed=None if each.timed is None else _timed(each.timed),
        unprofiled_ns=_round(each.unprofiled_ns),
        bound=whole.bound(),
        launch_share=whole.launch_share(),
    )


def _timed(metric: MetricVerdict) -> _Timed:
    return filled(_Timed, metric, metric=metric.name, base_ns=_round(metric.base), new_ns=_round(metric.new))


def _share(each: Share) -> _Share:
    cause = each.cause
    work = {"work_base_ns": round(cause.base.ns), "work_new_ns": round(cause.new.ns), "work_delta_ns": cause.delta_ns}
    return filled(_Share, each, cause, **work, step_without_ns=each.without_ns)


def _cause(cause: DiffCause, each: Diff) -> _Cause:
    return filled(
        _Cause,
        cause,
        own_ns=round(cause.own_ns),
        share=share(cause.own_ns, each.delta_ns),
        effects=cause.effects_ns,
        base=_amount(cause.base),
        new=_amount(cause.new),
    )


def _amount(amount: Amount) -> Any:
    return _Amount(amount.count, round(amount.busy_ns), round(amount.ns))


def _unmatched(each: Diff) -> Iterator[_Unmatched]:
    for change in each.alone:
        for part in (*change.base_parts, *change.new_parts):
            side: Literal["base", "new"] = "base" if change.base_parts else "new"
            yield _Unmatched(side, change.kind, part.name, part.module, change.base_ns + change.new_ns)


def _places(each: Diff, kind: Literal["module", "line"]) -> list[Any]:
    return [filled(_Place, place) for place in places(each, kind) if place.name]


def _round(value: float | None) -> int | None:
    return None if value is None else round(value)


def _interval(ends: tuple[float, float] | None) -> list[int] | None:
    return None if ends is None or not all(map(math.isfinite, ends)) else [round(end) for end in ends]
