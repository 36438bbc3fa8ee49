"""Find the commit, or the package, that made a test slower.

Compares commits between a good and a bad one: by counts if these differ, else by paired rounds. With --environments,
compares mixtures of two Python environments instead, to find the packages of the new one that made the test slower.

Exit codes: 0 the commit or packages are found, 1 only a range of them, 2 wrong usage or a test that cannot be measured
at an end, 3 no difference between the ends, 130 interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_perfdl import __version__
from pytest_perfdl.cli.common import print_json, say, say_progress, seconds_above_0, shown, width
from pytest_perfdl.cli.project import find_project
from pytest_perfdl.model.errors import INTERRUPTED, CommandError, PerfdlError

if TYPE_CHECKING:
    from pytest_perfdl.runs.bisect.child import Suite
    from pytest_perfdl.runs.bisect.measurements import Measurement
    from pytest_perfdl.runs.bisect.search import Progress

_LIMIT = 0.015
_OF_CHECKOUTS = ("--rootdir", "-c")
"""Options of pytest that every run in a checkout is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.usage = (
        "perfdl bisect [options] GOOD [BAD] TEST [-- PYTEST_OPTION ...]\n"
        "       perfdl bisect --environments [options] OLD_PYTHON NEW_PYTHON TEST"
    )
    parser.add_argument(
        "--environments",
        action="store_true",
        help="search between two Python environments, given by their interpreters or folders, instead of two commits",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="metric to search by, such as step_time or ops (default: operators, kernels, FLOPs or allocations if they "
        "increased, else step_time)",
    )
    parser.add_argument(
        "--limit",
        type=_percent,
        default=_LIMIT,
        metavar="PERCENT",
        help="smallest slowdown to search for by time (default: 1.5)",
    )
    parser.add_argument(
        "--tests",
        metavar="WHICH",
        default="bad",
        help="whose test, conftest and ini files run on every commit: those of BAD (`bad`), of a revision, of the "
        "`working-tree`, or each commit's own (`commit`) (default: bad)",
    )
    parser.add_argument(
        "--no-prior", action="store_true", help="do not prefer commits that change a function with causes"
    )
    parser.add_argument(
        "--budget",
        type=seconds_above_0,
        default=3600.0,
        metavar="SECONDS",
        help="time of all measurements after which no further commit is measured (default: 3600)",
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="file of the measurements (JSON Lines); an existing one is resumed (default: in the git folder)",
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the report on the commit as HTML")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "arguments",
        metavar="GOOD [BAD] TEST",
        nargs="*",
        help="two revisions (BAD: the working tree if left out), or two interpreters (--environments), and one test; "
        "options of pytest after --",
    )


def run(arguments: argparse.Namespace) -> int:
    """Search, then print what was found."""
    if arguments.environments:
        return _between_environments(arguments)
    from pytest_perfdl.runs.bisect import child
    from pytest_perfdl.runs.bisect.answers import to_json
    from pytest_perfdl.runs.bisect.campaign import CommitSearch
    from pytest_perfdl.runs.bisect.history import undone
    from pytest_perfdl.runs.bisect.measurements import Measurement
    from pytest_perfdl.runs.bisect.posterior import prior_of
    from pytest_perfdl.runs.bisect.search import Options
    from pytest_perfdl.runs.log import Log
    from pytest_perfdl.system import folders
    from pytest_perfdl.workers.checkout import sweep

    revisions, test, options = _words(arguments.arguments)
    _check(arguments, options)
    suite = _suite(arguments.tests, revisions, test, options)
    history = suite.history
    for note in history.notes:
        say_progress(f"{note}\n")
    sweep(history.top)
    with folders.for_a_while("bisect") as scratch:
        tests = scratch / "tests"
        child.keep_tests(suite, tests)
        path, interchangeable = _log(arguments, suite, tests)
        log = Log(path, Measurement, "perfdl bisect", interchangeable)
        done = log.read()
        if done:
            say_progress(f"going on from {shown(log.path)}, which has {len(done)} measurements\n")
        laid_over = [file.relative_to(history.top).as_posix() for file in suite.laid_over]

        def keep(measurement: Measurement) -> None:
            log.append(measurement)
            _say_end(measurement)

        reports = scratch / "reports"
        measure = child.Child(suite, tests, reports)
        search = CommitSearch(
            history,
            measure.measure,
            Options(arguments.metric, arguments.limit, arguments.budget),
            None if arguments.no_prior else lambda blamed: prior_of(history, blamed, laid_over),
            lambda number: undone(history, number),
            done,
            keep,
            _say_begin,
        )
        try:
            answer = search.run()
            if arguments.out is not None and answer.comparison is not None:
                request = answer.comparison.request
                page_file = child.report_folder(reports, request) / "index.html"
                if not page_file.is_file():
                    say_progress("measuring the commit against its parent again, for the report\n")
                    measure.measure(request, answer.metric, arguments.limit)
                _write(page_file, arguments.out)
        except KeyboardInterrupt:
            say_progress(f"interrupted: the same command goes on from {shown(log.path)}\n")
            return INTERRUPTED
        except PerfdlError:
            say_progress("\n")
            raise
    commands = tuple(_command(arguments, words, suite) for words in answer.commands)
    if arguments.json:
        print_json(to_json(answer, commands))
    else:
        from pytest_perfdl.runs.bisect.page import page

        say(page(answer, commands, width()))
    return answer.exit_code


def _between_environments(arguments: argparse.Namespace) -> int:
    from pytest_perfdl.runs.bisect.answers import to_json
    from pytest_perfdl.runs.bisect.child import MixtureChild, report_folder
    from pytest_perfdl.runs.bisect.environments import EnvironmentSearch
    from pytest_perfdl.runs.bisect.mixtures import Environments
    from pytest_perfdl.runs.bisect.search import Options
    from pytest_perfdl.system import folders
    from pytest_perfdl.workers.interpreter import check_version, describe

    ends, test, options = _words(arguments.arguments, "OLD_PYTHON NEW_PYTHON TEST")
    _check(arguments, options)
    for name, is_given in (("--log", arguments.log is not None), ("--tests", arguments.tests != "bad")):
        if is_given:
            raise CommandError(f"{name} has no meaning with --environments: remove it")
    if len(ends) != 2:
        raise CommandError("--environments: expected OLD_PYTHON NEW_PYTHON TEST (see perfdl bisect --help)")
    both = Environments(*map(describe, ends))
    for interpreter in (both.old, both.new):
        check_version(interpreter)
    if not Path(test.partition("::")[0]).is_file():
        raise CommandError(f"{test!r} is no test: name it as tests/test_speed.py::test_step")
    with folders.for_a_while("bisect") as scratch:
        reports = scratch / "reports"
        measure = MixtureChild(both, test, options, reports)
        search = EnvironmentSearch(
            both, measure.measure, Options(arguments.metric, arguments.limit), _say_end, _say_begin
        )
        try:
            answer = search.run()
        except KeyboardInterrupt:
            say_progress("interrupted\n")
            return INTERRUPTED
        except PerfdlError:
            say_progress("\n")
            raise
        if arguments.out is not None and answer.comparison is not None:
            _write(report_folder(reports, answer.comparison.request) / "index.html", arguments.out)
    if arguments.json:
        print_json(to_json(answer))
    else:
        from pytest_perfdl.runs.bisect.page import page_of_environments

        say(page_of_environments(answer, width()))
    return answer.exit_code


def _words(given: Sequence[str], wanted: str = "GOOD [BAD] TEST") -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Revisions or interpreters, test and options of pytest."""
    first = next((at for at, word in enumerate(given) if word.startswith("-")), len(given))
    words, options = list(given[:first]), tuple(given[first:])
    if len(words) not in (2, 3):
        if options and len(words) < 2:
            raise CommandError(f"{options[0]!r} begins with a dash, so it is no git revision: name GOOD [BAD] TEST")
        raise CommandError(f"expected {wanted}, got {shlex.join(words) or 'nothing'} (see perfdl bisect --help)")
    return tuple(words[:-1]), words[-1], options


def _check(arguments: argparse.Namespace, options: Sequence[str]) -> None:
    from pytest_perfdl.config.invocation import is_of_bisect
    from pytest_perfdl.runs.bisect.search import is_searchable

    of_checkouts = () if arguments.environments else _OF_CHECKOUTS
    ours = [word for word in options if is_of_bisect(word) or word.partition("=")[0] in of_checkouts]
    if ours:
        raise CommandError(f"{ours[0]} cannot be used with bisect: remove it")
    if arguments.metric is not None and not is_searchable(arguments.metric):
        raise CommandError(f"--metric: {arguments.metric!r} cannot be searched by: use a time or a count")
    if arguments.out is not None and not arguments.out.resolve().parent.is_dir():
        raise CommandError(f"--out: no folder {shown(arguments.out.resolve().parent)}: create it first")


def _suite(tests: str, revisions: Sequence[str], test: str, options: tuple[str, ...]) -> Suite:
    """What runs on every commit."""
    from pytest_perfdl.runs.bisect.child import OWN_TESTS, Suite
    from pytest_perfdl.runs.bisect.history import WORKING_TREE, read_history
    from pytest_perfdl.system.git import commit_of
    from pytest_perfdl.system.pytest_internals import find_ini

    project = find_project()
    history = read_history(Path.cwd(), *revisions)
    values: Mapping[str, Any] = find_ini(Path.cwd())[2]
    name, separator, rest = test.partition("::")
    file = Path(os.path.normpath(Path.cwd() / name))
    if not file.is_relative_to(history.top) or file.suffix != ".py":
        raise CommandError(f"{test!r} is no test of this repository: name it as tests/test_speed.py::test_step")
    source = history.bad.sha
    if tests == "commit":
        source = OWN_TESTS
    elif tests == "working-tree":
        source = WORKING_TREE
    elif tests != "bad":
        found = None if tests.startswith("-") else commit_of(history.top, tests)
        if found is None:
            raise CommandError(f"--tests: no git revision {tests!r}: use bad, commit, working-tree or a revision")
        if history.bad.is_working_tree:
            raise CommandError("--tests: the working tree has its own tests: use bad or commit, or name BAD")
        source = found
    return Suite(
        history,
        project.root.resolve(),
        project.ini,
        file,
        separator + rest,
        source,
        options,
        _value(values, "perf_against_setup"),
        float(_value(values, "perf_timeout") or 600),
    )


def _value(values: Mapping[str, Any], key: str) -> str:
    return str(values.get(key.replace("perf_", "perfdl_", 1)) or values.get(key) or "").strip()


def _log(arguments: argparse.Namespace, suite: Suite, tests: Path) -> tuple[Path, dict[str, Any]]:
    """The file of the search, and what makes its measurements interchangeable."""
    from pytest_perfdl.runs.bisect.history import working_tree_state
    from pytest_perfdl.workers.checkout import common_folder, environment

    history = suite.history
    contents = hashlib.sha256()
    for file in sorted(path for path in tests.rglob("*") if path.is_file()):
        contents.update(str(file.relative_to(tests)).encode("utf-8", "surrogateescape") + b"\0" + file.read_bytes())
    search = {
        "good": history.good.sha,
        "bad": working_tree_state(history.top) if history.bad.is_working_tree else history.bad.sha,
        "test": f"{suite.test.relative_to(history.top).as_posix()}{suite.name}",
        "tests": suite.tests_of,
        "contents": contents.hexdigest()[:16],
        "metric": arguments.metric,
        "limit": arguments.limit,
        "prior": not arguments.no_prior,
        "options": list(suite.options),
        "setup": suite.setup,
        "python": sys.executable,
        "environment": hashlib.sha256(os.fsencode("\0".join(environment(suite.setup)))).hexdigest()[:16],
        "version": __version__,
    }
    if arguments.log is not None:
        return arguments.log, search
    name = hashlib.sha256(json.dumps(search, sort_keys=True).encode()).hexdigest()[:16]
    common = common_folder(history.top)
    assert common is not None
    return common / "perfdl" / f"bisect-{name}.jsonl", search


# Progress on stderr: one line for each measurement.


def _say_begin(progress: Progress) -> None:
    from pytest_perfdl.model.units import duration

    left = f", about {duration(progress.seconds)} left" if progress.seconds else ""
    candidates = "" if progress.candidates is None else f"{progress.candidates} candidates{left}; "
    say_progress(f"{candidates}{'timing' if progress.timed else 'counting'} {progress.what} ... ")


def _say_end(measurement: Measurement) -> None:
    from pytest_perfdl.model.units import duration, format_percent, plural
    from pytest_perfdl.runs.bisect.answers import Effect

    if measurement.skipped:
        say_progress(f"skipped: {measurement.skipped}\n")
        return
    texts = []
    for name in sorted(measurement.rounds):
        if name.endswith("step_time"):
            effect = Effect.of_rounds(measurement.differences(name), 1)
            texts.append(f"{name} {format_percent(effect.ratio)} in {plural(effect.rounds, 'round')}")
    if not measurement.rounds:
        texts = [f"{name} {value:g}" for name, value in measurement.counts.items() if name.endswith("ops")]
    say_progress(f"{', '.join(texts) or 'done'} ({duration(measurement.seconds)})\n")


def _write(made: Path, output: Path) -> None:
    if not made.is_file():
        raise CommandError("the comparison with the parent left no report: try again without --out")
    from pytest_perfdl.system.files import write_files

    try:
        write_files({output: made.read_bytes()})
    except OSError as error:
        raise CommandError(f"--out: {shown(output)} cannot be written: {error.strerror}") from error
    say_progress(f"report {shown(output)}\n")


def _command(arguments: argparse.Namespace, revisions: str, suite: Suite) -> str:
    """A whole command line for other ends, with the same test, the same version of it, and the same options."""
    from pytest_perfdl.runs.bisect.child import OWN_TESTS
    from pytest_perfdl.runs.bisect.history import WORKING_TREE

    _, test, options = _words(arguments.arguments)
    ends = revisions.split()
    words = ["perfdl", "bisect"]
    words += ["--metric", arguments.metric] if arguments.metric is not None else []
    words += ["--limit", f"{arguments.limit * 100:g}"] if arguments.limit != _LIMIT else []
    tests = {OWN_TESTS: "commit", WORKING_TREE: "working-tree"}.get(suite.tests_of, suite.tests_of)
    ends_with_them = suite.tests_of == ends[1] if len(ends) > 1 else suite.tests_of == WORKING_TREE
    words += [] if ends_with_them else ["--tests", tests]
    return shlex.join([*words, *ends, test, *(["--", *options] if options else [])])


def _percent(text: str) -> float:
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 < percent < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage above 0, such as 1.5")
    return percent / 100
