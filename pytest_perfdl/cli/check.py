"""Check whether this machine is fit to measure on.

Each finding comes with why it matters, and what to do.

Exit codes: 0 fit, 1 not fit (a finding is bad; with --strict: or a warning), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from pytest_perfdl.cli.common import say_colored, say_json, width
from pytest_perfdl.cli.project import add_dir, on_device, store
from pytest_perfdl.machine.fitness import LEVELS, MachineFinding, Place, examine
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.workers.process import environment

_COLORS = {"bad": "31;1", "warn": "33", "note": "36", "ok": "32"}
_INDENT = 6
_WORDS = {"bad": ("bad", "bad"), "warn": ("warning",), "note": ("note",), "ok": ("ok", "ok")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="also print the checks that passed")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="skip the timed checks (about 1 s; 7 s if a machine.json file has the peak rates of this machine)",
    )
    parser.add_argument("--strict", action="store_true", help="also exit with code 1 if there are warnings")


def run(arguments: argparse.Namespace) -> int:
    """Print the result, then the findings, worst first; 1 when the machine is not fit."""
    if arguments.quick:
        findings = examine(_here(), timed=False)
    else:
        with on_device():
            findings = _run_timed_checks(arguments)
    unfit = ("bad", "warn") if arguments.strict else ("bad",)
    fit = not any(finding.level in unfit for finding in findings)
    if arguments.json:
        say_json(json.dumps({"fit": fit, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        colored = _wants_color(sys.stdout)
        say_colored(_page(findings, fit, verbose=arguments.verbose, colored=colored, width=width()))
    return 0 if fit else 1


def _run_timed_checks(arguments: argparse.Namespace) -> tuple[MachineFinding, ...]:
    """All findings, with those that are timed."""
    findings = examine(_here(), timed=True)
    if find_spec("torch") is None:
        return findings
    # Imported here: it loads torch, a second or two.
    from pytest_perfdl.run.machine_rates import reached

    return tuple(sorted((*findings, *reached(store(arguments))), key=lambda finding: LEVELS.index(finding.level)))


def _here() -> Place:
    return Place(environment=dict(os.environ), worker_environment=environment(threads=1), project=Path.cwd())


def _wants_color(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _page(findings: Sequence[MachineFinding], fit: bool, *, verbose: bool, colored: bool, width: int) -> str:
    counts = Counter(finding.level for finding in findings)
    named = ", ".join(plural(counts[level], *_WORDS[level]) for level in LEVELS if counts[level])
    hidden = "" if verbose or not counts["ok"] else " (-v lists all checks)"
    lines = [f"this machine is {('fit' if fit else 'not fit')} to measure on: {named}{hidden}"]
    for finding in findings:
        if finding.level == "ok" and not verbose:
            continue
        why = f": {finding.why}" if finding.why else ""
        first, *rest = layout.paragraph(visible(f"{finding.topic}: {finding.found}{why}"), _INDENT, width)
        level = f"{finding.level:<{_INDENT}}"
        if colored:
            level = f"\033[{_COLORS[finding.level]}m{level}\033[0m"
        lines += [level + first.lstrip(), *rest]
        if finding.do:
            lines += layout.paragraph(visible(f"do: {finding.do}"), _INDENT, width)
    return "\n".join(lines)
