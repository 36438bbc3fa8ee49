"""A trace's summary as JSON, for other programs.

Times are integer nanoseconds, sizes bytes, shares ratios (0.1 is 10 %); what a trace does not have is null. Numbers of
tables are totals over the trace; the same divided by its steps are in "per_step".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_perfdl.analysis.efficiency.roofline import RooflineRow
from pytest_perfdl.analysis.overview.memory_timeline import Alive
from pytest_perfdl.analysis.overview.summary import TraceSummary
from pytest_perfdl.analysis.overview.tables import KernelRow, OperatorRow
from pytest_perfdl.analysis.ranks import RankFigures
from pytest_perfdl.analysis.waiting.critical_path import PathRow
from pytest_perfdl.model.json import derived, filled, plain
from pytest_perfdl.model.selection import Selection
from pytest_perfdl.report.trace.tables import step_count
from pytest_perfdl.report.whatif import advice_json, replay_json

if TYPE_CHECKING:
    from pytest_perfdl.report.whatif import Answers


SCHEMA = 2
"""Version of this form. Raised when an older reader would misread a newer one."""


Kernel = derived("Kernel", KernelRow, more={"mean_ns": float, "per_step": dict[str, float]})
Operator = derived("Operator", OperatorRow, more={"per_step": dict[str, float]})
Roofline = derived("Roofline", RooflineRow, more=dict.fromkeys(("efficiency", "flops_per_s", "bytes_per_s"), float))


class _Memory(msgspec.Struct):
    """Without the timeline itself, which is as long as the trace."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    base_bytes: int | None
    alive_at_peak: tuple[Alive, ...]


class _CriticalPath(msgspec.Struct):
    span_ns: int
    per_step_ns: float
    classes: dict[str, int]
    names: tuple[PathRow, ...]


class _LeftOut(msgspec.Struct):
    step: int
    reason: str


TraceForm = derived(
    "TraceForm",
    TraceSummary,
    first=(
        *("source", "events", "device", "rank", "world_size", "bottleneck", "bottleneck_kind", "findings", "steps"),
        *("groups", "left_out"),
    ),
    without=("doubts", "noticed"),
    more={
        "device": str | None,
        "bottleneck": str,
        "bottleneck_kind": str,
        "findings": list[str],
        "left_out": list[_LeftOut],
        "kernels": list[Kernel],  # type: ignore[valid-type]
        **dict.fromkeys(("operators", "shapes", "modules", "lines"), list[Operator]),  # type: ignore[valid-type]
        "roofline": list[Roofline],  # type: ignore[valid-type]
        "memory": dict[str, _Memory],
        "critical_path": _CriticalPath,
        "replay": dict[str, Any] | None,
        "advice": list[dict[str, Any]] | None,
    },
)
"""Of one trace. "replay" says how well the simulation reproduces it, as in `perfdl whatif`; null without --advise."""
_Ranks = derived(
    "ComparedRanks",
    RankFigures,
    first=("count", "straggler", "waits", "exposed_waits", "overlap"),
    without=("waits_ns", "exposed_waits_ns"),
    more={"count": int, "waits": list[list[int]], "exposed_waits": list[list[int]], "overlap": list[float | None]},
)
"""What compares the ranks of a job; `analysis.ranks.figures` says what each field is.

"waits" and "exposed_waits" are matrices: a row for each rank that waits, a column for each that is waited for, in the
order of "ranks".
"""


class RanksForm(msgspec.Struct):
    """Of several traces, the ranks of one job."""

    ranks: _Ranks  # type: ignore[valid-type]
    traces: list[TraceForm]  # type: ignore[valid-type]


def to_json(
    summaries: Sequence[TraceSummary],
    ranks: RankFigures | None,
    advised: Sequence[Answers | None],
    selection: Selection,
) -> dict[str, Any]:
    """Plain data for `json`: of one trace its summary, of several a list of them ("traces") and the "ranks" compared.

    `advised` has an entry for each summary. Tables have the rows that are selected.
    """
    traces = [_summary(summary, each, selection) for summary, each in zip(summaries, advised, strict=True)]
    if ranks is None:
        return {"schema": SCHEMA, **plain(traces[0])}
    waits = {"waits": ranks.waits_ns, "exposed_waits": ranks.exposed_waits_ns}
    form = RanksForm(filled(_Ranks, ranks, count=len(ranks.ranks), **waits), traces)
    return {"schema": SCHEMA, **plain(form)}


def _summary(summary: TraceSummary, answers: Answers | None, selection: Selection) -> Any:
    path, steps = summary.critical_path, step_count(summary)
    tables = {
        name: [filled(Operator, row, per_step=_divide(row, steps)) for row in selection.rows(getattr(summary, name))]
        for name in ("operators", "shapes", "modules", "lines")
    }
    return filled(
        TraceForm,
        summary,
        **tables,
        device=summary.device or None,
        bottleneck=summary.bottleneck.text,
        bottleneck_kind=summary.bottleneck.kind,
        findings=[*summary.findings, *summary.doubts, *(finding.text for finding in summary.noticed)],
        left_out=[_LeftOut(*each) for each in summary.left_out],
        kernels=[
            filled(Kernel, row, mean_ns=row.total_ns / row.count, per_step=_divide(row, steps))
            for row in selection.rows(summary.kernels)
        ],
        roofline=[filled(Roofline, row) for row in selection.rows(summary.roofline)],
        memory={device.device: filled(_Memory, device) for device in summary.memory},
        critical_path=_CriticalPath(path.span_ns, path.span_ns / steps, dict(path.by_class), path.by_name),
        replay=None if answers is None else replay_json(answers),
        advice=None if answers is None else [advice_json(each) for each in answers.advice],
    )


TOTALS = (
    "count",
    "total_ns",
    "exposed_ns",
    "self_ns",
    "device_self_ns",
    "device_total_ns",
    "kernels",
    "time_ns",
    "bytes",
)
"""Fields of rows that are totals over the trace."""


def _divide(row: KernelRow | OperatorRow, steps: int) -> dict[str, float]:
    """Totals of a row divided by the number of steps."""
    return {name: getattr(row, name) / steps for name in TOTALS if hasattr(row, name)}
