"""Measure which slowdowns a suite detects on this machine.

Runs the suite with unchanged code and with injected slowdowns, and counts regressions.

Exit codes: 0 done, 2 wrong usage or a suite without usable baselines, 3 no run to show, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_perfdl.cli.common import say, say_json, say_progress, seconds_above_0, width
from pytest_perfdl.cli.project import add_dir
from pytest_perfdl.model.errors import INTERRUPTED, CommandError, RunFailed
from pytest_perfdl.model.units import duration, format_percent, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.runs.log import Log
from pytest_perfdl.runs.qualify import (
    FOUND,
    NOISE,
    TOGETHER,
    DetectionLimit,
    Outcome,
    Summary,
    Tally,
    expected_seconds,
    ini_lines,
    log,
    next_run,
    run_suite,
    runs_left,
    seconds_left,
    summarize,
)
from pytest_perfdl.stats.quantiles import Rate
from pytest_perfdl.system import clocks

_OURS = (
    *("--perf-update", "--perf-inject", "--perf-isolate", "--no-perf"),
    *("--perf-json", "--perf-report", "--perf-fail-on", "--perf-traces", "--perf-dir"),
)
"""Options of pytest that every run is given, or that would make it another kind of run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument(
        "-n", type=_number, metavar="N", default=20, help="number of runs of unchanged code (default: %(default)s)"
    )
    parser.add_argument(
        "-m", type=_number, metavar="M", default=10, help="number of runs per injected slowdown (default: %(default)s)"
    )
    parser.add_argument(
        "--effects",
        type=_effects,
        default=_effects("3,5,10,20"),
        metavar="LIST",
        help="slowdowns to inject, in percent (default: 3,5,10,20)",
    )
    parser.add_argument("--seconds", type=seconds_above_0, metavar="S", help="time budget in seconds")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("perf-qualify.jsonl"),
        metavar="FILE",
        help="results file (JSON Lines); an existing file is continued (default: %(default)s)",
    )
    parser.add_argument("--table", action="store_true", help="do not run tests; only print the results in the file")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs="*", help="arguments for pytest: test files, and options after --"
    )


def run(arguments: argparse.Namespace) -> int:
    """Make the runs that the file lacks, then print what all of them say."""
    runs = log(arguments.out)
    done = runs.read()
    interrupted = not arguments.table and not _make(arguments, runs, done)
    if not done:
        say(f"{arguments.out} contains no runs", error=True)
        return INTERRUPTED if interrupted else 3
    summary = summarize(done)
    if arguments.json:
        say_json(json.dumps(as_json(summary), indent=2))
    else:
        say(page(summary, width()))
    return INTERRUPTED if interrupted else 0


def _make(arguments: argparse.Namespace, runs: Log[Outcome], done: list[Outcome]) -> bool:
    """Make the runs that are left; false when Ctrl-C ended that."""
    given = tuple(arguments.arguments)
    ours = [word for word in given if word.partition("=")[0] in _OURS]
    if ours:
        raise CommandError(f"{ours[0]} cannot be used with perfdl qualify: remove {ours[0]}")
    others = [outcome.arguments for outcome in done if outcome.arguments != given]
    if others:
        words = " ".join(others[0]) or "no arguments"
        raise CommandError(
            f"{runs.path} contains runs with other pytest arguments ({words}): choose another file with --out"
        )
    wanted = {0.0: arguments.n} | dict.fromkeys(arguments.effects, arguments.m)
    folder = None if arguments.dir is None else str(Path(arguments.dir).resolve())
    total = len(done) + sum(runs_left(done, wanted).values())
    started, first = clocks.monotonic(), True
    try:
        while (share := next_run(done, wanted)) is not None:
            spent = clocks.monotonic() - started
            ahead = expected_seconds(done, share) if done else 0.0
            if arguments.seconds is not None and spent + ahead > arguments.seconds:
                say_progress(f"stopped by --seconds after {duration(spent)}: {plural(total - len(done), 'run')} left\n")
                break
            say_progress(f"run {len(done) + 1} of {total}, {_condition(share)} ... ")
            outcome = run_suite(given, share, first=first, folder=folder)
            if done and outcome.key != done[0].key:
                say_progress("\n")
                raise CommandError(
                    f"{runs.path} contains runs of another machine ({done[0].key}): choose another file with --out"
                )
            if done and (differs := outcome.differs(done[0])):
                say_progress("\n")
                raise CommandError(
                    f"{runs.path} contains runs that were compared otherwise ({visible(differs)}): choose another file "
                    "with --out"
                )
            runs.append(outcome)
            done.append(outcome)
            first = False
            say_progress(f"{_counts(outcome)} ({duration(outcome.seconds)}){_format_remaining(done, wanted)}\n")
    except KeyboardInterrupt:
        say_progress("interrupted\n")
        return False
    except RunFailed:
        say_progress("failed\n")
        raise
    return True


def page(summary: Summary, width: int) -> str:
    """All numbers as text."""
    code = " at commit " + ", ".join(commit[:9] for commit in summary.commits) if summary.commits else ""
    text = f"{plural(sum(summary.runs.values()), 'run')} on machine {', '.join(summary.keys)}{code}"
    lines = layout.paragraph(text, 0, width)
    for share, number in sorted(summary.runs.items()):
        lines.append(f"  {number:4}  {_condition(share)}")
    if summary.alarms[TOGETHER].judged:
        lines += ["", *_alarms(summary, width)]
    if summary.effects:
        lines += ["", *_format_summary(summary, width)]
        lines += ["", *_limits(summary, width)]
    if summary.unjudged:
        named = ", ".join(f"{number} {verdict}" for verdict, number in sorted(summary.unjudged.items()))
        lines += ["", *layout.paragraph(f"Test results without a verdict on time, not counted: {named}", 0, width)]
    if summary.left_out:
        text = f"Tests that were not compared with a baseline, not counted: {', '.join(summary.left_out)}"
        lines += ["", *layout.paragraph(text, 0, width)]
    return "\n".join(lines)


def _alarms(summary: Summary, width: int) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "trials", "regressed", "paired", "suspect")]
    for name, tally in summary.alarms.items():
        regressed, suspect = (f"{rate.count} ({_at_most(rate)})" for rate in (tally.found, tally.suspected))
        rows.append((name, str(tally.judged), regressed, str(tally.paired), suspect))
    runs = summary.alarmed_runs
    return [
        "False positives on unchanged code",
        *layout.rows(rows, "lrrrr", 2, width, layout.last_parts),
        *layout.paragraph(
            f"{runs.count} of {plural(runs.of, 'run')} had at least one regressed test ({_at_most(runs)})", 2, width
        ),
        *layout.paragraph(
            'A trial is one test in one run. "at most": upper bound with 95% confidence. "paired": regressed '
            "trials that paired rounds confirmed.",
            2,
            width,
        ),
    ]


def _format_summary(summary: Summary, width: int) -> list[str]:
    columns = list(summary.effects.values())
    names = list(dict.fromkeys(name for tallies in columns for name in tallies))
    lines = ["Detected slowdowns: regressed trials per injected slowdown [95% interval]"]
    rows = [("", *map(_percent, summary.effects))]
    for name in names:
        rows.append((name, *(_rate(tallies[name].found) if name in tallies else "" for tallies in columns)))
        if name == TOGETHER:
            rows.append(("  confirmed in paired rounds", *(str(tallies[name].paired) for tallies in columns)))
            rows.append(("  not confirmed in paired rounds", *(str(tallies[name].unpaired) for tallies in columns)))
            rows.append(("  suspect, not regressed", *(str(tallies[name].suspect) for tallies in columns)))
    lines += layout.rows(rows, "l" * len(rows[0]), 2, width, layout.last_parts)
    rows = [(f"Smallest slowdown detected in {FOUND:.0%} of the trials", "")]
    for name in names:
        smallest = summary.smallest_found(name)
        rows.append((f"  {name}", "none" if smallest is None else _percent(smallest)))
    return [*lines, *layout.rows(rows, "lr", 2, width, layout.last_parts)]


def _limits(summary: Summary, width: int) -> list[str]:
    lines = ini_lines(summary)
    if lines:
        lines = ["Smallest limits that this machine can enforce for these tests, for the ini file", "", *lines, ""]
    return lines + [line for limit in summary.limits for line in layout.paragraph(_why(limit), 0, width)]


def _why(limit: DetectionLimit) -> str:
    if limit.noise is None:
        return f"{limit.metric}: no limit can be computed without runs of unchanged code"
    moved = f"{NOISE:.0%} of measurements of unchanged code changed by {_size(limit.noise)} or less"
    if limit.share is None:
        return (
            f"{limit.metric}: no limit, because no larger slowdown was detected in {FOUND:.0%} of the trials; {moved}"
        )
    found = _rate(limit.found[limit.share])
    return f"{limit.metric}: {found} trials detected a slowdown of {_percent(limit.share)}; {moved}"


def as_json(summary: Summary) -> dict[str, Any]:
    """All numbers as plain data; effects and bounds are shares."""
    return {
        "runs": [{"effect": share, "runs": number} for share, number in summary.runs.items()],
        "keys": list(summary.keys),
        "commits": list(summary.commits),
        "unchanged": {name: _tally_json(tally) for name, tally in summary.alarms.items()},
        "unchanged_runs": _rate_json(summary.alarmed_runs),
        "effects": [
            {"effect": share, "tests": {name: _tally_json(tally) for name, tally in tallies.items()}}
            for share, tallies in summary.effects.items()
        ],
        "smallest_found": {
            name: summary.smallest_found(name)
            for name in dict.fromkeys(name for tallies in summary.effects.values() for name in tallies)
        },
        "limits": [
            {
                "metric": limit.metric,
                "limit": limit.share,
                "noise": limit.noise,
                "found": [{"effect": share, **_rate_json(rate)} for share, rate in limit.found.items()],
            }
            for limit in summary.limits
        ],
        "ini": ini_lines(summary),
        "unjudged": dict(summary.unjudged),
        "left_out": list(summary.left_out),
    }


def _tally_json(tally: Tally) -> dict[str, Any]:
    return {
        "trials": tally.judged,
        "regressed": _rate_json(tally.found),
        "paired": tally.paired,
        "unpaired": tally.unpaired,
        "suspect": _rate_json(tally.suspected),
    }


def _rate_json(rate: Rate) -> dict[str, Any]:
    return {"count": rate.count, "of": rate.of, "upper": rate.upper, "interval": list(rate.interval)}


def _condition(share: float) -> str:
    return f"with an injected slowdown of {_percent(share)}" if share else "with unchanged code"


def _counts(outcome: Outcome) -> str:
    tally = Tally.of(case for case in outcome.cases if case.judged)
    return f"{tally.regressed} regressed and {tally.suspect} suspect, of {plural(tally.judged, 'test')}"


def _format_remaining(done: Sequence[Outcome], wanted: dict[float, int]) -> str:
    seconds = seconds_left(done, wanted)
    return f", about {duration(seconds)} left" if seconds else ""


def _at_most(rate: Rate) -> str:
    return f"at most {_size(rate.upper)}"


def _rate(rate: Rate) -> str:
    low, high = rate.interval
    return f"{rate.count} of {rate.of} [{low:.0%}, {high:.0%}]"


def _percent(share: float) -> str:
    """As it was given."""
    return f"{share * 100:g}%"


def _size(share: float) -> str:
    return format_percent(share, signed=False)


def _number(text: str) -> int:
    number = int(text) if text.strip().isdecimal() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs: expected an integer of at least 0")
    return number


def _effects(text: str) -> tuple[float, ...]:
    try:
        percents = [float(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError:
        percents = [-1.0]
    if not all(0 < percent < float("inf") for percent in percents):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of percents above 0, such as 3,5,10")
    return tuple(sorted({percent / 100 for percent in percents}))
