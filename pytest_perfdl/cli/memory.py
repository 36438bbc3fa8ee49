"""`perfdl diff --memory`: two peaks subtracted, of traces, snapshots of a device's allocator, or runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.analysis.account.peak import trace_accounts
from pytest_perfdl.analysis.account.snapshot_peak import snapshot_accounts
from pytest_perfdl.cli.common import one_run
from pytest_perfdl.diff.memory import peak_causes
from pytest_perfdl.model.errors import CommandError, NotATrace, TraceError
from pytest_perfdl.model.memory import MemoryAccount, MemoryChange
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.trace import read
from pytest_perfdl.trace.formats import OBJECT, PICKLE, RUN
from pytest_perfdl.trace.memory_snapshot import read_snapshot
from pytest_perfdl.trace.reader import refusal_of

_SNAPSHOTS = (".pickle", ".pkl")


def changes(base: str, new: str, tests: str) -> list[MemoryChange]:
    """How the peaks of two sources differ, by device or by test and call.

    Parameters
    ----------
    base, new
        Paths of a trace with memory events, of a snapshot (`torch.cuda.memory._dump_snapshot`), or of a run.json.
    tests
        Of runs, only tests whose id contains it.

    Raises
    ------
    CommandError
        When one has no account, or both have none in common.
    """
    if base == new and (both := _read_both_sides(Path(new), tests)):
        return both
    before, after = _accounts(base, tests), _accounts(new, tests)
    names = [name for name in after if name in before]
    if not names and len(before) == len(after) == 1:
        ((name, now),), (was,) = after.items(), before.values()
        return [MemoryChange(name, was, now, peak_causes(was, now))]
    if not names:
        raise CommandError(
            f"{base} and {new} have no test or device in common: {base} has {_list_accounts(before)}; {new} has "
            f"{_list_accounts(after)}"
        )
    return [
        MemoryChange(name, before[name], after[name], peak_causes(before[name], after[name]))
        for name in sorted(names, key=lambda name: -after[name].peak_bytes)
    ]


def _list_accounts(accounts: Mapping[str, MemoryAccount]) -> str:
    return ", ".join(map(visible, sorted(accounts))) or "none"


def _accounts(source: str, tests: str) -> dict[str, MemoryAccount]:
    path = _file(Path(source))
    refused = refusal_of(path)
    if _is_snapshot(path, refused):
        found = {_name_device(account): account for account in snapshot_accounts(read_snapshot(path))}
        problem = (
            f"{source} has no stack traces of allocations: call torch.cuda.memory._record_memory_history() before the "
            "first allocation"
        )
    elif refused is not None:
        if isinstance(refused, NotATrace) and refused.what not in (RUN, OBJECT):
            raise refused
        found = {name: change.new for name, change in _read_run_changes(path, tests).items()}
        problem = f"{source} has no memory breakdown: measure with `pytest --perf --perf-memory=all`"
    else:
        found = {_name_device(account): account for account in trace_accounts(one_run(read(path)))}
        problem = f"{source} has no memory events with addresses: record the trace with profile_memory=True"
    if not found:
        raise CommandError(problem)
    return found


def _is_snapshot(path: Path, refused: TraceError | None) -> bool:
    return path.suffix in _SNAPSHOTS or (isinstance(refused, NotATrace) and refused.what == PICKLE)


def _name_device(account: MemoryAccount) -> str:
    """A device as torch's API names it, whoever made it."""
    return account.device.replace("hip:", "cuda:")


def _read_both_sides(path: Path, tests: str) -> list[MemoryChange]:
    """What a run says of both of its sides; empty for what is no run, or has one side only."""
    path = _file(path)
    refused = refusal_of(path)
    if refused is None or _is_snapshot(path, refused):
        return []
    found = _read_run_changes(path, tests).items()
    return [replace(change, call=name) for name, change in found if change.base is not None]


def _read_run_changes(path: Path, tests: str) -> dict[str, MemoryChange]:
    """What a run says of memory, by test and call."""
    return {
        f"{result.id} {change.call}".strip(): change
        for result in read_run(path).results
        if tests in result.id
        for change in result.judgement.memory
    }


def _file(path: Path) -> Path:
    return path / "run.json" if path.is_dir() else path
