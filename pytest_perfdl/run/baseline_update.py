"""Records the baseline of a test if the mode of `--perf-update` and the verdict require it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_perfdl.baseline.text import append, keep_cases
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import Case, Record
from pytest_perfdl.results.verdict import REWRITTEN, Judgement
from pytest_perfdl.run.assemble import exemplars
from pytest_perfdl.run.collection import PerfTest
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


def is_written(mode: str | None, base: Record | None, judgement: Judgement) -> bool:
    """Whether a baseline is written in a mode of `--perf-update`."""
    return base is None or mode in ("all", "append") or rewrites(mode, judgement)


def kept_cases(
    new: Record, base: Record, judgement: Judgement, mode: str | None, *, stays: Callable[[str], bool]
) -> dict[str, Case]:
    """The cases of a table that a new baseline has as they are stored, by id: those that did not change.

    So it has another line for a case that changed, and no others; with the mode `new`, only for a case without one.

    Parameters
    ----------
    stays
        Whether a case that was not measured is kept, by its id.
    """
    measured = {} if new.table is None else {case.id: case for case in new.table.cases}
    verdicts = {case.id: case.verdict for case in judgement.cases}

    def is_kept(before: Case) -> bool:
        case = measured.get(before.id)
        if case is None:
            return stays(before.id)
        if mode not in ("new", "changed") or before.definition != case.definition:
            return False
        unchanged = verdicts.get(case.id) in ("unchanged", "inconclusive") and _work_of(before) == _work_of(case)
        return mode == "new" or unchanged

    return {} if base.table is None else {case.id: case for case in base.table.cases if is_kept(case)}


def stored_cases(
    context: RunContext, test: PerfTest, new: Record, base: Record, judgement: Judgement
) -> dict[str, Case]:
    """The cases of a baseline that the one that a run writes has as they are, by id.

    Where the cases are tests, those that were not selected stay; with the mode `all`, unless the file has them no more.
    """
    mode = context.settings.update

    def stays(case: str) -> bool:
        return bool(test.cases) and (mode != "all" or context.narrowed or case in test.cases)

    # Other cases are refused where repeats are appended.
    return {} if mode == "append" else kept_cases(new, base, judgement, mode, stays=stays)


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
    settings, store, test = context.settings, context.store, measurement.test
    if not is_written(settings.update, base, judgement):
        return False
    ended = measurement.remote.phases.get("teardown")
    if ended is not None and ended.raw == "failed":
        raise PerfError("no baseline was recorded, because the test's teardown phase failed")

    def joined(there: Record | None) -> Record:
        # What another process recorded since the baseline was read is kept, too.
        stored = there or base
        if stored is None:
            return new
        if settings.update == "append":
            return append(stored, new)
        return keep_cases(new, stored, stored_cases(context, test, new, stored, judgement))

    # A damaged baseline has nothing to keep, and is replaced.
    keeps = settings.update == "append" or (new.table is not None and (base is not None or settings.update != "all"))
    try:
        pictures = {call: Path(path).read_bytes() for call, path in exemplars(measurement.repeats).items()}
        return bool(store.save(new, pictures, joined if keeps else None))
    except BaselineError as error:
        raise PerfError(str(error)) from None


def _work_of(case: Case) -> tuple[object, ...]:
    """What a call of a case runs and allocates."""
    return case.operators, case.ops, case.kernels, case.allocations
