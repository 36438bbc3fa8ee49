"""Turn the measurements of a run file, a CI artifact say, into baselines.

The machine that measured need not be this one: a laptop has no H100, and the key is in the file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pytest_perfdl.baseline.files import BaselineError
from pytest_perfdl.cli.common import CommandError, say, shown
from pytest_perfdl.cli.project import add_dir
from pytest_perfdl.cli.project import store as baselines_of
from pytest_perfdl.record import INJECTED
from pytest_perfdl.record_json import RecordError, from_json
from pytest_perfdl.units import plural
from pytest_perfdl.visible import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument("run", type=Path, help="run.json of a report, with its traces/ folder beside it if wanted")
    parser.add_argument("-k", metavar="TEXT", default="", help="only tests whose id contains this text")
    parser.add_argument("--all", action="store_true", help="also tests whose verdict calls for no new baseline")


def run(arguments: argparse.Namespace) -> int:
    """Write the baselines; 3 when the run file holds nothing to accept."""
    tests = [test for test in _tests(arguments.run) if arguments.k in str(test.get("id", ""))]
    tests = [test for test in tests if test.get("record") and (arguments.all or test.get("verdict") in _ACCEPTABLE)]
    if not tests:
        say("nothing to accept: no test was measured with a verdict that calls for a new baseline (see --all)")
        return 3
    store = baselines_of(arguments)
    for test in tests:
        try:
            record = from_json(test["record"])
            if any(finding.code == INJECTED for finding in record.integrity):
                raise CommandError(f"{arguments.run}: the steps of {test.get('id')} were slowed down on purpose")
            written = store.save(record, _exemplars(arguments.run, test))
        except RecordError as error:
            raise CommandError(f"{arguments.run}: the record of {test.get('id')} {error}") from error
        except BaselineError as error:
            raise CommandError(str(error)) from error
        path = store.path(record.test, record.key.slug)
        say(f"{'accepted ' if written else 'unchanged'}  {visible(record.test)}  {shown(path)}")
        if record.repeats < _USABLE_REPEATS:
            few = plural(record.repeats, "process", "processes")
            say(f"           measured in {few} only: pytest --perf-update=append adds more")
    return 0


_ACCEPTABLE = frozenset({"regressed", "missing", "outdated", "changed", "improved", "incomparable"})
_USABLE_REPEATS = 10
"""Repeats that make a usable screen; see the statistics in the documentation."""


def _tests(path: Path) -> list[dict[str, Any]]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}") from error
    tests = data.get("tests") if isinstance(data, dict) else None
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise CommandError(f"{path} is not a run file of pytest --perf: it has no list of tests")
    return tests


def _exemplars(run_file: Path, test: dict[str, Any]) -> dict[str, bytes]:
    """The traces of the current side that lie beside the run file, by call."""
    found = {}
    for trace in test.get("traces") or ():
        name = trace.get("new")
        if isinstance(name, str) and (run_file.parent / name).is_file():
            found[str(trace.get("call", ""))] = (run_file.parent / name).read_bytes()
    return found
