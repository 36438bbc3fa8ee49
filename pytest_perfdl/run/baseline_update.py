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
    has_new_case = any(case.verdict == "new" for case in judgement.cases)
    if mode == "changed":
        changed = verdict in REWRITTEN and not judgement.is_budgets_alone
        return changed or judgement.counts_changed or has_new_case
    # The commit that the others are compared with would move past a slowdown.
    adds = has_new_case and verdict in ("unchanged", "inconclusive")
    return mode == "new" and (verdict == "missing" or adds)


def keep_cases(new: Record, base: Record, judgement: Judgement, mode: str, *, of_tests: bool) -> Record:
    """The record with the stored times of those cases of a table that did not change.

    So a new baseline has another line for a case that changed, and no others. Where the cases are tests (`of_tests`),
    those that were not selected stay, and with the mode `new` those that have a baseline.
    """
    stored = {case.id: case for call in base.calls for case in call.cases}
    verdicts = {case.id: case.verdict for case in judgement.cases}
    if not stored or new.repeats != base.repeats:
        return new

    def kept(case: Case) -> Case:
        before = stored.get(case.id)
        if before is None or before.definition != case.definition:
            return case
        same_work = (before.operators, before.ops, before.kernels) == (case.operators, case.ops, case.kernels)
        unchanged = verdicts.get(case.id) in ("unchanged", "inconclusive") and same_work
        return before if mode == "new" or unchanged else case

    def merged(call: Call) -> Call:
        measured = {case.id for case in call.cases}
        others = [case for case in stored.values() if of_tests and case.id not in measured]
        return replace(call, cases=tuple(sorted((*map(kept, call.cases), *others), key=lambda case: case.id)))

    return replace(new, calls=tuple(map(merged, new.calls)))


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
