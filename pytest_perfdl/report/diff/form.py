"""The form of `perfdl diff --json`, for its schema: what `json.to_json` writes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pytest_perfdl.results.verdict import Verdict


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
