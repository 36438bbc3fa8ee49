"""Write baselines from a run file, such as a CI artifact.

The run may come from another machine: the machine ID is in the file. The whole file is checked before anything is
written.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.text import keep_cases
from pytest_perfdl.cli.common import add_note, note_of, run_file, say, shown
from pytest_perfdl.cli.project import add_dir
from pytest_perfdl.cli.project import store as baselines_of
from pytest_perfdl.config.short_names import SHARED
from pytest_perfdl.model.errors import BaselineError, CommandError, TraceError
from pytest_perfdl.model.record import INJECTED, Record
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.results.verdict import REWRITTEN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument(
        "run",
        metavar="RUN.json",
        type=run_file,
        help="run.json file of a report, or the folder of the report; traces in its traces/ folder are stored with the "
        "baselines",
    )
    parser.add_argument("-k", metavar="TEXT", default="", help="accept only tests whose id contains TEXT")
    parser.add_argument(
        "--test",
        metavar="ID",
        action="append",
        default=[],
        help="accept this test, whatever its verdict, and no others (repeatable)",
    )
    add_note(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="accept every measured test, even if its verdict does not require a new baseline",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the baselines; 3 when the run file has nothing to accept."""
    path: Path = arguments.run
    results = read_run(path).results
    note = note_of(arguments)
    tests = [test for test in results if arguments.k in test.id and test.new is not None]
    if arguments.test:
        tests = _select_tests(path, tests, arguments.test)
    else:
        tests = [test for test in tests if arguments.all or _is_called_for(test)]
    store = baselines_of(arguments)
    accepted = [
        (_with_other_tests(store, _with_note(_record(path, test), note)), _exemplars(path, test)) for test in tests
    ]
    if not accepted:
        say(
            "nothing to accept: no test has a verdict that requires a new baseline (add --all to accept every "
            "measured test)"
        )
        return 3
    if not (arguments.all or arguments.test):
        for test in tests:
            _check_base(store, path, test)
    for record, _ in accepted:
        store.checked(record)
    for record, exemplars in accepted:
        _accept(store, record, exemplars)
    return 0


def _select_tests(path: Path, tests: Sequence[Result], names: Sequence[str]) -> list[Result]:
    if absent := [name for name in names if name not in {test.id for test in tests}]:
        raise CommandError(f"{path}: the run did not measure {absent[0]!r}: give the id as perfdl report shows it")
    return [test for test in tests if test.id in names]


def _check_base(store: Store, path: Path, test: Result) -> None:
    """Refuse a verdict on another baseline than the one that would be replaced: it says nothing about that one."""
    assert test.new is not None
    stored = _stored(store, test.new)
    known = [each.occasions for each in (test.new, test.base) if each is not None]
    if stored is not None and stored.occasions not in known:
        raise CommandError(
            f"{path}: {visible(test.id)} was not compared with the baseline that is stored now, which was "
            f"recorded on {stored.occasions[-1].date[:10]}: measure again, or name the test with --test"
        )


def _stored(store: Store, record: Record) -> Record | None:
    """The baseline that a record replaces."""
    try:
        return store.load(record.test, record.key.slug)
    except BaselineError:
        # A damaged one is replaced; what else is wrong is said when it is written.
        return None


def _with_other_tests(store: Store, record: Record) -> Record:
    """The record of the tests of a file with those stored ones that the run did not measure."""
    stored = _stored(store, record) if record.test.endswith(f"::{SHARED}") else None
    if stored is None or stored.table is None or record.table is None:
        return record
    measured = {case.id for case in record.table.cases}
    return keep_cases(record, stored, {case.id: case for case in stored.table.cases if case.id not in measured})


def _with_note(record: Record, note: str | None) -> Record:
    return record if note is None else replace(record, note=note)


def _accept(store: Store, record: Record, exemplars: Mapping[str, bytes]) -> None:
    written = store.save(record, exemplars)
    path = store.path(record.test, record.key.slug)
    say(f"{'accepted ' if written else 'unchanged'}  {visible(record.test)}  {shown(path)}")
    if record.repeats < _USABLE_REPEATS:
        few = plural(record.repeats, "process", "processes")
        say(f"           only {few} recorded; to add more: pytest --perf-update=append")


def _is_called_for(test: Result) -> bool:
    """Whether a new baseline would change a test's verdict."""
    if test.verdict == "waived" or test.other_side:
        # A waived slowdown is not accepted, and a verdict on another commit or interpreter is none on the baseline.
        return False
    return (test.verdict in REWRITTEN and not test.judgement.is_budgets_alone) or test.judgement.counts_changed


_USABLE_REPEATS = 10
"""Processes that make a usable baseline; see the statistics in the documentation."""


def _record(path: Path, test: Result) -> Record:
    assert test.new is not None
    if any(finding.code == INJECTED for finding in test.new.integrity):
        raise CommandError(
            f"{path}: {test.id} was measured with an injected slowdown and cannot become a baseline: measure "
            "again without --perf-inject"
        )
    return test.new


def _exemplars(path: Path, test: Result) -> dict[str, bytes]:
    """The traces of the current side that lie beside the run file, by call."""
    from pytest_perfdl.trace import read_exemplar

    found = {}
    for trace in test.exemplars:
        if trace.new is not None:
            try:
                found[trace.call] = read_exemplar(trace.new)
            except TraceError as error:
                raise CommandError(f"{path}: the trace of {test.id} cannot be used: {error}") from error
    return found
