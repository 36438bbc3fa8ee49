"""Records the baseline of a test if the mode of `--perf-update` and the verdict require it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_perfdl.baseline.text import append
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import Call, Case, Record
from pytest_perfdl.results.verdict import REWRITTEN, Judgement
from pytest_perfdl.run.assemble import exemplars
from pytest_perfdl.run.context import RunContext
from pytest_perfdl.run.measurement import Measurement


def rewrites(mode: str | None, judgement: Judgement) -> bool:
    """Whether the verdict requires a new baseline; an incomplete baseline counts as none.

    What is waived is a slowdown that is not accepted: its baseline stays, unless all are recorded.
    """
    verdict = judgement.verdict
    if verdict == "waived":
        return False
    if mode == "changed":
        return (verdict in REWRITTEN and not judgement.is_budgets_alone) or judgement.counts_changed
    return mode == "new" and verdict == "missing"


def keep_cases(new: Record, base: Record, judgement: Judgement) -> Record:
    """The record with the stored times of those cases of a table that did not change.

    So a new baseline has another line for a case that changed, and no others.
    """
    same = {each.id for each in judgement.cases if each.verdict in ("unchanged", "inconclusive")}
    stored = {case.id: case for call in base.calls for case in call.cases if case.id in same}
    if not stored or new.repeats != base.repeats:
        return new

    def kept(call: Call) -> Call:
        return replace(call, cases=tuple(_kept(case, stored.get(case.id)) for case in call.cases))

    return replace(new, calls=tuple(map(kept, new.calls)))


def _kept(case: Case, stored: Case | None) -> Case:
    """The stored case, if a call of it runs the same."""
    if stored is None or (stored.operators, stored.ops, stored.kernels) != (case.operators, case.ops, case.kernels):
        return case
    return stored


def update(
    context: RunContext, measurement: Measurement, new: Record, base: Record | None, judgement: Judgement
) -> bool:
    """Write the baseline if the mode and the verdict require it; true if a file changed.

    Parameters
    ----------
    base
        The existing baseline.

    Raises
    ------
    PerfError
        The file cannot be written, or the test's teardown failed.
    """
    settings, store = context.settings, context.store
    mode = settings.update
    wanted = base is None or mode in ("all", "append") or rewrites(mode, judgement)
    if not wanted:
        return False
    ended = measurement.remote.phases.get("teardown")
    if ended is not None and ended.raw == "failed":
        raise PerfError("no baseline was recorded, because the test's teardown phase failed")
    try:
        pictures = {call: Path(path).read_bytes() for call, path in exemplars(measurement.repeats).items()}
        # Keep repeats that another process appended since the baseline was read.
        joined = (lambda there: _append(there or base, new)) if mode == "append" else None
        return bool(store.save(new, pictures, joined))
    except BaselineError as error:
        raise PerfError(str(error)) from None


def _append(base: Record | None, new: Record) -> Record:
    return new if base is None else append(base, new)
