"""Joins the runs of all shards of a suite (`--perf-shard`) into one run, for one report.

What cannot be one run is refused: shards of different commits, machine IDs or splits, shards that were compared with
different bases or under different settings, and missing shards. Other versions of packages are said: each shard was
compared with a base of its own environment, or has the verdict that tells of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.shard import Shard
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report.compared import not_compared, shortfall
from pytest_perfdl.results.run import Run


@dataclass(frozen=True, slots=True)
class ShardRun:
    """A shard, and the run file that it was read from."""

    path: Path
    shard: Shard
    run: Run


@dataclass(frozen=True, slots=True)
class Merged:
    """The run of all shards."""

    run: Run
    fails: bool
    """Whether a test fails, or too few tests were compared (`--perf-require`)."""
    remarks: tuple[str, ...]
    """What was left out, one line each."""


def merged(runs: Mapping[Path, Run], *, partial: bool = False) -> Merged:
    """One run of several shards; of a shard that was measured more than once, the newest.

    Parameters
    ----------
    runs
        By the path of the run file.
    partial
        Whether shards may be missing.

    Raises
    ------
    CommandError
        The runs are not the shards of one run; the message names two of them.
    """
    given = [_shard_run(path, run) for path, run in runs.items()]
    for what, read in _EQUAL.items():
        _check_equal(given, what, read)
    for name in sorted({name for each in given for name in each.run.settings}):
        _check_equal(given, f"setting {visible(name)}", lambda each, name=name: each.run.settings.get(name, "none"))  # type: ignore[misc]
    shards, remarks = _newest(given)
    first = shards[0].shard
    absent = [str(index) for index in range(1, first.count + 1) if index not in {each.shard.index for each in shards}]
    said = ""
    if absent:
        said = f"{_list_names(absent)} of {plural(first.count, 'shard')} {'is' if len(absent) == 1 else 'are'} missing"
        if not partial:
            raise CommandError(f"{said}: add the run files, or use --partial to merge the others")
    _check_tests(shards, complete=not absent)
    results = [result for each in shards for result in each.run.results]
    too_few = "" if absent else shortfall(results, first.require)
    fails = bool(too_few) or any(result.fails for result in results)
    return Merged(_join_shards(shards, [said, too_few]), fails, remarks)


def _shard_run(path: Path, run: Run) -> ShardRun:
    if run.shard is None:
        raise CommandError(f"{path} is not a shard: it was measured without --perf-shard")
    return ShardRun(path, run.shard, run)


def _base(each: ShardRun) -> str | None:
    """What tests were compared with: baselines, or the commit and the interpreter of the other side."""
    found = set()
    for result in each.run.results:
        if result.base is not None:
            commit = result.against and (result.base.occasions[-1].commit or result.against)
            found.add(" with ".join(filter(None, (commit, result.against_python))) or "baselines")
    return ", ".join(sorted(found)) or None


def _folder(each: ShardRun) -> str | None:
    """Where baselines are; `None` for a path that may be another one on every machine."""
    return None if Path(each.run.perf_dir).is_absolute() else each.run.perf_dir


_EQUAL: dict[str, Callable[[ShardRun], Hashable]] = {
    "number of shards": lambda each: each.shard.count,
    "number of perf tests in all shards": lambda each: each.shard.tests,
    "commit": lambda each: each.run.commit or "none",
    # A shard without a measured test has no machine, and one that compared nothing no base.
    "machine ID": lambda each: each.run.key.slug or None,
    "base of the comparison": _base,
    "folder of the baselines": _folder,
    "minimum number of compared tests": lambda each: each.shard.require,
}
"""What all shards of a run have in common."""


def _check_equal(given: Sequence[ShardRun], what: str, read: Callable[[ShardRun], Hashable]) -> None:
    known = [(each.path, value) for each in given if (value := read(each)) is not None]
    for path, value in known[1:]:
        if value != known[0][1]:
            first = f"{visible(str(known[0][1]))} in {known[0][0]}"
            raise CommandError(f"the shards differ in the {what}: {first}, {visible(str(value))} in {path}")


def _newest(given: Iterable[ShardRun]) -> tuple[list[ShardRun], tuple[str, ...]]:
    """One run for every shard, by index; and which were left out."""
    found: dict[int, ShardRun] = {}
    remarks = []
    for each in sorted(given, key=lambda each: each.run.date):
        older = found.get(each.shard.index)
        if older is not None:
            remarks.append(f"{each.shard}: {each.path} is used, and not the older {older.path}")
        found[each.shard.index] = each
    return [found[index] for index in sorted(found)], tuple(remarks)


def _check_tests(shards: Sequence[ShardRun], *, complete: bool) -> None:
    """Raise CommandError unless every collected test is in exactly one shard."""
    again = "measure all shards from the same checkout, with the same options"
    of_test: dict[str, ShardRun] = {}
    for each in shards:
        for result in each.run.results:
            other = of_test.setdefault(result.id, each)
            if other is not each:
                both = f"{other.path} and {each.path}"
                raise CommandError(f"{visible(result.id)} was measured in two shards, {both}: {again}")
    total = shards[0].shard.tests
    if complete and len(of_test) != total:
        raise CommandError(f"{plural(total, 'perf test')} collected, but {len(of_test)} in the shards: {again}")


def _join_shards(shards: Sequence[ShardRun], said: Sequence[str]) -> Run:
    runs = [each.run for each in shards]
    # Of a run that measured something: its machine and its versions are known.
    first = next((run for run in runs if run.key.slug), runs[0])
    results = sorted((result for run in runs for result in run.results), key=lambda one: (one.file, one.line, one.id))
    versions = sorted(
        {name for run in runs if run.key.slug for name, _ in set(run.context.items()) ^ set(first.context.items())}
    )
    differs = f"the shards differ in {_list_names([visible(name) for name in versions])}" if versions else ""
    notes = [*said, differs, _describe_uncompared(shards), *(note for each in shards for note in _notes(each))]
    return replace(
        first,
        results=tuple(results),
        date=min(run.date for run in runs),
        seconds=sum(run.seconds for run in runs),
        judged=all(run.judged for run in runs),
        notes=tuple(dict.fromkeys(filter(None, notes))),
        peaks={key: peaks for run in runs for key, peaks in run.peaks.items()},
        repository=next((run.repository for run in runs if run.repository), ""),
        shard=None,
    )


def _notes(of: ShardRun) -> list[str]:
    """A shard's notes on its run, less those on the number of its tests that were compared."""
    results, shard = of.run.results, of.shard
    alone = {
        not_compared(results),
        not_compared(results, tests_of_head=True),
        shortfall(results, shard.required_here(len(results)), of=f" in {shard}"),
    }
    return [f"{shard}: {note}" for note in of.run.notes if note not in alone and not note.startswith(f"{shard}: ")]


def _describe_uncompared(shards: Sequence[ShardRun]) -> str:
    """What is said of a run that compared too little, of all shards."""
    of_head = any(not_compared(each.run.results, tests_of_head=True) in each.run.notes for each in shards)
    results = [result for each in shards for result in each.run.results]
    return not_compared(results, required=shards[0].shard.require, tests_of_head=of_head)


def _list_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
