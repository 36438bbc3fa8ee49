"""Is this machine fit to measure? Says what is in the way, why it matters, and what to do.

Exit codes: 0 fit, 1 when a finding is bad (with --strict: or a warning), 2 wrong usage.
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

from pytest_perfdl.cli.common import say_colored, say_json
from pytest_perfdl.cli.project import add_dir, store
from pytest_perfdl.machine.fitness import LEVELS, MachineFinding, Place, examine
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.workers.process import environment

_COLOURS = {"bad": "31;1", "warn": "33", "note": "36", "ok": "32"}
_WORDS = {"bad": ("bad", "bad"), "warn": ("warning",), "note": ("note",), "ok": ("ok", "ok")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out the timed part, about a second; and where limits of this machine are kept some 6 s more",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings, worst first; 1 when the machine is not fit."""
    findings = examine(_here(), timed=not arguments.quick)
    if not arguments.quick and find_spec("torch") is not None:
        # Imported here: it loads torch, a second or two.
        from pytest_perfdl.run.machine_limits import reached

        kept = reached(store(arguments))
        findings = tuple(sorted((*findings, *kept), key=lambda finding: LEVELS.index(finding.level)))
    unfit = ("bad", "warn") if arguments.strict else ("bad",)
    fit = not any(finding.level in unfit for finding in findings)
    if arguments.json:
        say_json(json.dumps({"fit": fit, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        say_colored(_page(findings, fit, colored=_wants_color(sys.stdout)))
    return 0 if fit else 1


def _here() -> Place:
    return Place(environment=dict(os.environ), worker_environment=environment(threads=1), project=Path.cwd())


def _wants_color(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _page(findings: Sequence[MachineFinding], fit: bool, *, colored: bool) -> str:
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        level = f"{finding.level:<4}"
        if colored:
            level = f"\033[{_COLOURS[finding.level]}m{level}\033[0m"
        why = f": {finding.why}" if finding.why else ""
        lines.append(level + visible(f"  {finding.topic:<{width}}  {finding.found}{why}"))
        if finding.do:
            lines.append(visible(f"{'':{4 + 2 + width}}  do: {finding.do}"))
    counts = Counter(finding.level for finding in findings)
    named = ", ".join(plural(counts[level], *_WORDS[level]) for level in LEVELS if counts[level])
    return "\n".join([*lines, "", f"{'fit to measure' if fit else 'not fit to measure'}: {named}"])
