"""Update baselines from the run files of several nights: improvements and new environments, but no slowdowns.

A run file is of `pytest --perf`. Improvements need two runs; a change of the environment needs paired rounds without a
slowdown, and keeps the baseline's code. Everything else that changed is refused, with the command that accepts it.
"""

from __future__ import annotations

import argparse
import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.cli.common import add_note, note_of, print_json, run_file, say, shown
from pytest_perfdl.cli.project import add_dir
from pytest_perfdl.cli.project import store as baselines_of
from pytest_perfdl.model.errors import BaselineError, CommandError, TraceError
from pytest_perfdl.model.record import Record
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible

if TYPE_CHECKING:
    from pytest_perfdl.runs.refresh import Decision


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        type=run_file,
        help="run.json file of a report, or the report's folder; runs are ordered by their dates",
    )
    parser.add_argument("-k", metavar="TEXT", default="", help="refresh only tests whose id contains TEXT")
    parser.add_argument("--dry-run", action="store_true", help="print what would be written, but write nothing")
    add_note(parser)
    parser.add_argument("--json", action="store_true", help="print what was decided as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Write the baselines that are adopted; 3 when the runs measured nothing."""
    from pytest_perfdl.runs.refresh import decide

    note, store = note_of(arguments), baselines_of(arguments)
    found = _read_measurements(arguments.runs, arguments.k)
    not_in_git = functools.partial(_not_in_git, store.root)
    decided = []
    for (test, machine), runs in found.items():
        stored = store.load(test, machine)
        decision = decide(runs, stored, not_in_git=not_in_git)
        if decision.record is not None and note is not None:
            decision = replace(decision, record=replace(decision.record, note=note))
        decided.append((decision, stored))
    adopted = [(decision, stored) for decision, stored in decided if decision.record is not None]
    traces = [_traces(decision) for decision, _ in adopted]
    for decision, _ in adopted:
        assert decision.record is not None
        store.checked(decision.record)
    if not arguments.dry_run:
        for (decision, stored), pictures in zip(adopted, traces, strict=True):
            _write(store, decision, stored, pictures)
    decisions = [decision for decision, _ in decided]
    if arguments.json:
        from pytest_perfdl.runs.refresh import to_json

        print_json(to_json(decisions, lambda decision: _file(decision, store), _command))
    else:
        _say(decisions, store, dry_run=arguments.dry_run)
    return 0 if decisions else 3


def _read_measurements(paths: Sequence[Path], text: str) -> dict[tuple[str, str], list[Any]]:
    """The measurements of every test in the run files."""
    from pytest_perfdl.results.run_file import read_run
    from pytest_perfdl.runs.refresh import of_runs

    found = of_runs([(path, read_run(path)) for path in paths])
    return {key: runs for key, runs in found.items() if text in key[0]}


def _not_in_git(root: Path, record: Record) -> str:
    """Why later runs could not measure the code of a record again; empty if its commit is there, or without git."""
    from pytest_perfdl.baseline.recorded_commit import having
    from pytest_perfdl.system.git import commit_of, top_of, trouble

    top = top_of(root)
    if top is None or record.code is None:
        return trouble(root)
    commit = record.occasions[-1].commit
    if commit is None or commit_of(top, commit) is None:
        return f"this clone does not have the commit of the run ({(commit or 'unknown')[:9]}): run git fetch"
    if having(top, record.code.files, (commit,)) is None:
        return f"commit {commit[:9]} does not contain the measured code, which was not committed"
    return ""


def _traces(decision: Decision) -> Mapping[str, bytes]:
    """The traces of a new baseline."""
    from pytest_perfdl.trace import read_exemplar

    try:
        return {call: read_exemplar(path) for call, path in decision.traces.items()}
    except TraceError as error:
        raise CommandError(f"{decision.run}: the trace of {decision.test} cannot be used: {error}") from error


def _write(store: Store, decision: Decision, stored: Record | None, traces: Mapping[str, bytes]) -> None:
    record = decision.record
    assert record is not None
    new: Record = record

    def unless_replaced(there: Record | None) -> Record:
        if there != stored:
            path = store.shown(store.path(new.test, new.key.slug))
            raise BaselineError(f"{path} was replaced while the runs were read: run perfdl refresh again")
        return new

    store.save(new, traces, unless_replaced)


def _say(decisions: Sequence[Decision], store: Store, *, dry_run: bool) -> None:
    if not decisions:
        say("nothing to refresh: the runs have no perf test")
        return
    for kind in ("adopted", "refused", "unchanged"):
        for decision in decisions:
            if decision.kind != kind:
                continue
            place = f"  {_file(decision, store)}" if decision.record is not None else ""
            say(f"{kind:<11}{visible(decision.test)}{place}")
            say(f"{'':<11}{visible(decision.why)}")
            if kind == "refused":
                say(f"{'':<11}to accept: {_command(decision)}")
    counts = {kind: sum(each.kind == kind for each in decisions) for kind in ("adopted", "refused", "unchanged")}
    said = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    more = "; nothing was written (--dry-run)" if dry_run and counts["adopted"] else ""
    say(f"{plural(len(decisions), 'baseline')}: {said}{more}")


def _file(decision: Decision, store: Store) -> str:
    return shown(store.path(decision.test, decision.machine))


def _command(decision: Decision) -> str:
    """The command that makes the refused run the baseline."""
    words = ["perfdl", "accept", shown(decision.run or Path("run.json")), "--test", decision.test]
    words += ["--note", "the reason"]
    return visible(shlex.join(words))
