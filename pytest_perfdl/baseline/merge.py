"""Merges two updates of one baseline: those of two git branches, or of two writers of a remote store.

A baseline is the measurement of some code. So the merge asks first which code the merged tree has, as a three-way merge
of the recorded code does:

- Only one side recorded other code than the common ancestor: the merged tree has that code, and the record of that
  side stays. What the other side measured is of code that the merge replaces.
- Both sides recorded the same code: their processes are joined, in the order of their dates. An occasion that one side
  dropped (it recorded the test again) stays dropped.
- Both sides recorded different code: neither record is of the merged code, whose time is that of no side. This is a
  conflict, which ends when the test is recorded again. Until then one record stays, whole. A mean of both, or the
  slower of both, would hide a slowdown that neither side accepted.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_perfdl.baseline.append import append
from pytest_perfdl.baseline.text import dump, parse
from pytest_perfdl.model.errors import BaselineError, RecordError

if TYPE_CHECKING:
    from pytest_perfdl.model.record import Record


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge gives."""

    data: bytes
    """The file: always one that can be read, if one of the sides was."""
    conflict: str = ""
    """Why neither side is the baseline of the merge, in words; empty if it was merged."""
    test: str = ""
    """Node id, if it is known."""


def merge_files(bases: Sequence[bytes], ours: bytes, theirs: bytes) -> Merged:
    """Merge two versions of a file among the baselines.

    Parameters
    ----------
    bases
        The common ancestor; none if both sides added the file, several if the histories crossed.
    ours, theirs
        The two sides. In a conflict, `ours` stays, or `theirs` if `ours` cannot be read.
    """
    if ours == theirs or theirs in bases:
        return Merged(ours)
    if ours in bases:
        return Merged(theirs)
    dates = [_date_of_no_record(each) for each in (ours, theirs)]
    if None not in dates:
        # Rates of one machine, measured twice: the later measurement stays.
        return Merged(max((ours, dates[0]), (theirs, dates[1]), key=lambda each: each[1] or "")[0])
    try:
        mine = parse(ours)
    except RecordError as error:
        return Merged(theirs if _is_record(theirs) else ours, f"our version {error}")
    try:
        others = parse(theirs)
    except RecordError as error:
        return Merged(ours, f"their version {error}", mine.test)
    record, conflict = merge([parse(base) for base in bases if _is_record(base)], mine, others)
    return Merged(ours if record is mine else theirs if record is others else dump(record), conflict, mine.test)


def merge(bases: Sequence[Record], ours: Record, theirs: Record) -> tuple[Record, str]:
    """Merge two records of one test with one machine ID, by the rules of this module.

    Returns
    -------
    record, conflict
        The merged record, with the traces of `ours` where processes were joined. In a conflict, `ours`, and why.
    """
    if ours.test != theirs.test or ours.key.slug != theirs.key.slug:
        return ours, "the versions are of different tests or machine IDs"
    if _same_code(bases, ours, theirs):
        try:
            return _joined(bases, ours, theirs), ""
        except BaselineError as error:
            return ours, f"the processes of both sides cannot be joined ({_without_advice(error)})"
    changed = [not _has_code_of(bases, each) for each in (ours, theirs)]
    if changed == [False, True]:
        return theirs, ""
    if changed == [True, False]:
        return ours, ""
    return ours, "both sides recorded the test, and with different code, so neither is the baseline of the merged code"


def _joined(bases: Sequence[Record], ours: Record, theirs: Record) -> Record:
    """The occasions of both sides without those that one side dropped, in the order of their dates.

    Raises
    ------
    BaselineError
        As `append` does.
    """
    before = {each for base in bases for each in _identities(base)}
    mine, others = _identities(ours), _identities(theirs)
    known, there = set(mine), set(others)
    kept = [place for place, each in enumerate(mine) if each not in before or each in there]
    more = [place for place, each in enumerate(others) if each not in before and each not in known]
    if not more:
        return ours if len(kept) == len(mine) else _only(ours, kept) if kept else theirs
    if not kept:
        return theirs if len(more) == len(others) else _only(theirs, more)
    # The same result, whichever side is called ours.
    sides = sorted((_only(ours, kept), _only(theirs, more)), key=lambda each: (each.occasions[-1].date, dump(each)))
    joined = append(*sides)
    order = sorted(range(len(joined.occasions)), key=lambda place: joined.occasions[place].date)
    return replace(_only(joined, order), exemplars=ours.exemplars)


def _only(record: Record, places: Sequence[int]) -> Record:
    """A record with some of its occasions, in this order.

    What is not stored by process, the mean count of a row and the operators of profiled steps, stays as it is.
    """
    starts = [0]
    for occasion in record.occasions:
        starts.append(starts[-1] + occasion.repeats)
    repeats = [repeat for place in places for repeat in range(starts[place], starts[place + 1])]

    def those(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(values[repeat] for repeat in repeats) if values else values

    return replace(
        record,
        occasions=tuple(record.occasions[place] for place in places),
        calls=tuple(
            replace(
                call,
                series={name: replace(series, values=those(series.values)) for name, series in call.series.items()},
                rows=tuple(replace(row, ns=those(row.ns)) for row in call.rows),
                profiled_ns=those(call.profiled_ns),
            )
            for call in record.calls
        ),
    )


def _identities(record: Record) -> list[Hashable]:
    """What tells the occasions of a record from others, in their order: when they were, and what they measured."""
    found: list[Hashable] = []
    start = 0
    metrics = sorted(record.metrics().items())
    for occasion in record.occasions:
        end = start + occasion.repeats
        found.append((occasion, tuple((name, series.values[start:end]) for name, series in metrics)))
        start = end
    return found


def _same_code(bases: Sequence[Record], ours: Record, theirs: Record) -> bool:
    """Whether both sides measured the same code; of unknown code, whether both only added to what was there."""
    if ours.code is None or theirs.code is None:
        return bool(bases) and all(_adds_to(bases, each) for each in (ours, theirs))
    return _code(ours) == _code(theirs)


def _has_code_of(bases: Sequence[Record], record: Record) -> bool:
    if record.code is None:
        return bool(bases) and _adds_to(bases, record)
    return any(base.code is not None and _code(base) == _code(record) for base in bases)


def _adds_to(bases: Sequence[Record], record: Record) -> bool:
    there = set(_identities(record))
    return all(each in there for base in bases for each in _identities(base))


def _code(record: Record) -> Hashable:
    assert record.code is not None
    files, packages = (tuple(sorted(each.items())) for each in (record.code.files, record.code.packages))
    return files, packages, record.test_hash, tuple(record.plan.shape.items())


def _is_record(data: bytes) -> bool:
    try:
        parse(data)
    except RecordError:
        return False
    return True


def _date_of_no_record(data: bytes) -> str | None:
    """The date in a JSON object that is no record, such as machine.json; `None` for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return str(found.get("date", "")) if isinstance(found, dict) and "schema" not in found else None


def _without_advice(error: BaselineError) -> str:
    return str(error).rpartition(": record the baseline again")[0] or str(error)
