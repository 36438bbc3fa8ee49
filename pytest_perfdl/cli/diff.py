"""Compare two traces, runs, baselines or git revisions.

`perfdl diff A B`: the change of the step, its breakdown, and which kernels, operators and Python functions caused it,
in which module and line. `perfdl diff run.json`: the same for the two sides of one run. Exit code 1 for a verdict that
--fail-on names, 3 if the two have no test in common, or what they have is not comparable.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import print_json, say, width
from pytest_perfdl.cli.project import add_dir, store
from pytest_perfdl.cli.traces import add_peaks, add_step_name, parse_peaks
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.visible import visible

if TYPE_CHECKING:
    from pytest_perfdl.cli.diff_inputs import LoadedSide, Sides
    from pytest_perfdl.diff import Diff
    from pytest_perfdl.diff.matching.names import Rules
    from pytest_perfdl.diff.side import MachineUse
    from pytest_perfdl.machine.rates import Peaks
    from pytest_perfdl.results.verdict import FailOn
    from pytest_perfdl.trace import Trace

_VERDICTS: frozenset[FailOn] = frozenset(
    {"regressed", "suspect", "improved", "inconclusive", "incomparable", "missing", "new"}
)
"""What a diff may be; the last two for a test that only one side has."""
_LIMIT = "3%"
_NAMED = 8
"""Kinds of steps that an error names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "base",
        metavar="A",
        help="baseline: a trace, a folder of traces, a run.json file, a baseline file, a folder of baselines, or a "
        "git revision with committed baselines",
    )
    parser.add_argument(
        "new",
        metavar="B",
        nargs="?",
        help="current: the same kinds of input as A; without B, A must be a run.json file, and its baseline and "
        "current measurements are compared",
    )
    parser.add_argument(
        "-k", metavar="TEXT", default="", help="compare only tests, or kinds of steps, whose name contains TEXT"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a self-contained HTML report")
    parser.add_argument(
        "--limit", metavar="PERCENT", help=f"treat step-time changes up to PERCENT as unchanged (default: {_LIMIT}%)"
    )
    parser.add_argument(
        "--fail-on",
        metavar="VERDICTS",
        default="",
        help="exit with code 1 if a test has one of these verdicts: comma-separated, such as regressed,missing, or all",
    )
    parser.add_argument(
        "--rename",
        metavar="PATTERN=REPLACEMENT",
        action="append",
        default=[],
        help="replace PATTERN, a regular expression, in operator and kernel names before matching; repeatable",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="compare the tensors that make up peak memory, instead of time: in traces with memory events, PyTorch "
        "memory snapshots (.pickle) or run.json files",
    )
    add_step_name(parser)
    add_peaks(parser)
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="maximum number of rows per table (default: %(default)s)"
    )
    add_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read both sides, compare and report; 1 for a verdict to fail on, 3 when there is nothing to compare."""
    from pytest_perfdl.cli.diff_inputs import load, pairs

    if arguments.top < 1:
        raise CommandError("--top must be at least 1")
    if arguments.step_name is not None and (arguments.memory or arguments.new is None):
        raise CommandError("--step-name needs two inputs that are traces, and compares times: remove it or --memory")
    if arguments.memory:
        return _memory(arguments)
    fail_on = _fail_on(arguments.fail_on)
    rules, limit = _rules(arguments.rename), _limit(arguments.limit or _LIMIT)
    if arguments.new is None:
        return _own(arguments, rules, limit, fail_on)
    peaks = parse_peaks(arguments.peaks)
    sides = (arguments.base, arguments.new)
    folder = "" if all(Path(source).exists() for source in sides) else str(store(arguments).base)
    base, new = (load(source, folder, arguments.step_name) for source in sides)
    paired = [each for each in pairs(base, new) if arguments.k in each[0].test or not each[0].test]
    if any(name.of_job for name, *_ in paired):
        # The rank whose own work changed most explains the others, which wait for it.
        paired.sort(key=lambda item: -abs(item[2].side.own_ns - item[1].side.own_ns))
    simulated = (place == 0 or not name.of_job for place, (name, *_) in enumerate(paired))
    found = [
        (name.title, _compare(old, now, rules, peaks, simulates=simulates))
        for (name, old, now), simulates in zip(paired, simulated, strict=True)
    ]
    if not found:
        of_job = any(name.of_job for side in (base, new) for name in side)
        what = "rank" if of_job else "test" if arguments.step_name is None else "kind of steps"
        have = [f"{source} has {_titles(side)}" for source, side in ((arguments.base, base), (arguments.new, new))]
        more = "" if what == "test" else f" ({'; '.join(have)})"
        say(f"{arguments.base} and {arguments.new} have no {what} in common: nothing to compare{visible(more)}")
        return 3
    for note in dict.fromkeys(note for side in (base, new) for each in side.values() for note in each.notes):
        say(f"perfdl diff: {visible(note)}", error=True)
    common = {(name.test, name.call) for name, *_ in paired}
    gone, added = (_alone(side, common, arguments.k) for side in (base, new))
    for source, names in ((arguments.base, gone), (arguments.new, added)):
        for name in names:
            say(f"perfdl diff: {visible(name)} is only in {source}", error=True)
    _report(arguments, found, limit, of_job=any(name.of_job for name, *_ in paired))
    verdicts = {each.verdict(limit) for _, each in found}
    if verdicts & fail_on or (gone and "missing" in fail_on) or (added and "new" in fail_on):
        return 1
    return 3 if "incomparable" in verdicts else 0


def _own(arguments: argparse.Namespace, rules: Rules, limit: float, fail_on: frozenset[FailOn]) -> int:
    """Compare the baseline and the current side of one run."""
    from pytest_perfdl.cli.diff_inputs import own_sides
    from pytest_perfdl.diff import diff

    if arguments.limit is not None:
        raise CommandError("--limit needs two inputs: in a single run.json, each test has the limits of the pytest run")
    found = [
        (each.name.title, replace(made, timed=each.timed or made.timed))
        for each in own_sides(arguments.base)
        if arguments.k in each.name.test
        for made in (diff(each.base, each.new, paired=each.paired, rules=rules),)
    ]
    if not found:
        named = f" whose id contains {arguments.k!r}" if arguments.k else ""
        say(f"{arguments.base} has no test{named} with both a baseline and a current measurement")
        return 3
    _report(arguments, found, limit)
    return 1 if {each.verdict(limit) for _, each in found} & fail_on else 0


def _rules(texts: Sequence[str]) -> Rules:
    from pytest_perfdl.diff.matching.names import rules_of

    try:
        return rules_of(map(_renaming, texts))
    except ValueError as error:
        raise CommandError(str(error)) from error


def _limit(text: str) -> float:
    from pytest_perfdl.model.limits import parse_limit

    limit = parse_limit("step_time", text)
    if limit.relative is None or limit.absolute is not None:
        raise CommandError(f"--limit {text!r}: expected a percentage such as 3%")
    return limit.relative


def _memory(arguments: argparse.Namespace) -> int:
    """Compare the peaks of memory."""
    from pytest_perfdl.cli.memory import changes
    from pytest_perfdl.report import memory
    from pytest_perfdl.results import memory_causes

    if arguments.html is not None or arguments.fail_on:
        raise CommandError("--memory can be combined only with --json, -k and --top: remove other options")
    found = changes(arguments.base, arguments.new or arguments.base, arguments.k)
    if arguments.json:
        print_json({"memory": memory_causes.to_json(found), "blame": memory_causes.causes_to_json(found)})
    else:
        say("\n\n".join(memory.terminal(change, arguments.top, width()) for change in found))
    return 0


def _titles(side: Sides) -> str:
    titles = [repr(name.title) if name.title else "one trace" for name in side]
    return ", ".join(titles[:_NAMED]) + (f" and {len(titles) - _NAMED} more" if len(titles) > _NAMED else "")


def _alone(side: Sides, common: Set[tuple[str, str]], text: str) -> list[str]:
    """What one side has and the other has not, of the tests whose id contains the text."""
    return sorted({name.title for name in side if (name.test, name.call) not in common and text in name.test})


def _fail_on(text: str) -> frozenset[FailOn]:
    from pytest_perfdl.results.verdict import parse_fail_on

    found = parse_fail_on(text) if text else frozenset()
    impossible = sorted(found - _VERDICTS)
    if impossible and text.strip().lower() != "all":
        raise CommandError(
            f"--fail-on: {impossible[0]} is not a verdict of perfdl diff; choose from {', '.join(sorted(_VERDICTS))}"
        )
    return found


def _compare(base: LoadedSide, new: LoadedSide, rules: Rules, peaks: Peaks | None, *, simulates: bool) -> Diff:
    from pytest_perfdl.diff import diff
    from pytest_perfdl.whatif.counterfactual import counterfactual

    found = diff(base.side, new.side, rules=rules)
    known = simulates and bool(found.base_ns and found.new_ns) and not found.incomparable
    if not known or base.trace is None or new.trace is None:
        return found
    traces = base.trace(), new.trace()
    simulated = counterfactual(found, *traces, rules)
    return replace(found, counterfactual=simulated, use=_use(found, *traces, peaks))


def _use(found: Diff, base: Trace, new: Trace, peaks: Peaks | None) -> MachineUse:
    """How well the steps of two traces use the machine, against the limits of one."""
    from pytest_perfdl.analysis.account.accounts import profile_tables
    from pytest_perfdl.analysis.efficiency.roofline import peaks_of, step_work
    from pytest_perfdl.analysis.overview.summary import trace_utilization
    from pytest_perfdl.diff.side import MachineUse
    from pytest_perfdl.judge.work import StepWork, operator_sides, work_change

    peaks = peaks or peaks_of(base) or peaks_of(new)
    before, after = ([StepWork(profile_tables(each).steps, step_work(each))] for each in (base, new))
    return MachineUse(
        base=trace_utilization(base, peaks),
        new=trace_utilization(new, peaks),
        work=work_change("", before, after, peaks, found.delta_ns) if found.delta_ns > 0 else None,
        operators=tuple(operator_sides("", before, after, peaks)),
    )


def _renaming(text: str) -> tuple[str, str]:
    """A rule for names; a pattern may contain `=`, a replacement may not."""
    pattern, divided, replacement = text.rpartition("=")
    if not divided:
        raise CommandError(f"--rename {text!r}: expected PATTERN=REPLACEMENT")
    return pattern, replacement


def _report(
    arguments: argparse.Namespace, found: list[tuple[str, Diff]], limit: float, *, of_job: bool = False
) -> None:
    if not of_job:
        found.sort(key=lambda item: -abs(item[1].delta_ns / max(item[1].base_ns, 1)))
    if arguments.html is not None:
        from pytest_perfdl.report.diff.html import write_page

        write_page(arguments.html, found, limit)
        say(f"wrote {arguments.html}", error=arguments.json)
    if arguments.json:
        from pytest_perfdl.report.diff.json import to_json

        print_json(to_json(found, limit))
    elif arguments.html is None:
        from pytest_perfdl.report.diff import terminal

        reports = terminal.report_ranks if of_job and len(found) > 1 else terminal.reports
        say(reports(found, limit, arguments.top, width()))
