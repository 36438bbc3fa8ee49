"""Changes of the environment: the baseline's code, measured in the new environment, becomes the baseline.

The code of the baseline stays the same, so later rounds compare with the same commit as before: a slowdown of the
current code, however small, is never part of such an update. What the environment itself did to the times of that code
is compared with recorded times, and so only within the limit of unpaired times (`kept.slower_environment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_perfdl.baseline.append import append
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.record import Code, Record
from pytest_perfdl.runs.refresh.kept import kept
from pytest_perfdl.runs.refresh.measured import Measured, paired_times


def trouble(run: Measured, stored: Record) -> str:
    """Why a run does not show the baseline's code in its environment, in one line; empty if it does."""
    now, new = run.result.base_now, run.result.new
    if stored.code is None or not stored.code.files:
        return "the baseline does not list the files of its code, so a new file could not name its commit"
    if now is None or new is None:
        return "the run file does not contain the baseline's code in this environment (of an earlier pytest-perfdl)"
    if any(finding.level == "invalid" for finding in now.integrity):
        return "the measurement of the baseline's code is invalid"
    if now.context != new.context:
        return "the baseline's code ran in another environment than the current code"
    if now.test_hash != stored.test_hash or now.plan.shape != stored.plan.shape:
        return "the baseline's code has another version of the test, or other measurement settings"
    return ""


def base_times(runs: Sequence[Measured]) -> dict[str, tuple[float, ...]]:
    """Values of the baseline's code in all rounds, by metric."""
    found: dict[str, tuple[float, ...]] = {}
    for run in runs:
        for name, metric in paired_times(run.result).items():
            found[name] = found.get(name, ()) + tuple(base for base, _ in metric.pairs)
    return found


def adopted(runs: Sequence[Measured], stored: Record) -> Record:
    """The new baseline, from the newest runs in one environment: see `trouble`."""
    records = [run.result.base_now for run in runs]
    record = records[-1]
    assert record is not None
    for before in reversed(records[:-1]):
        assert before is not None
        try:
            record = append(before, record)
        except BaselineError:
            # Memory or counts differ between processes: those of the newest run are enough.
            break
    latest = runs[-1].result.new
    assert latest is not None
    assert stored.code is not None
    times = {name: metric.base for name, metric in paired_times(runs[-1].result).items() if metric.base is not None}
    return replace(
        record,
        key=stored.key,
        code=_in_environment(stored.code, latest.code),
        note=stored.note,
        exemplars={},
        refreshed=kept(stored, record, times),
    )


def _in_environment(code: Code, latest: Code | None) -> Code:
    """The same files, with the versions of the packages that are installed now."""
    installed = {} if latest is None else latest.packages
    return replace(code, packages={name: installed.get(name, version) for name, version in code.packages.items()})
