"""`--step-name`: annotations that are the steps, in place of `ProfilerStep#N`."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.units import plural

if TYPE_CHECKING:
    from pytest_perfdl.trace import Trace

_LISTED = 8
"""Names of annotations that an error lists."""
_LONGEST = 60


def add_step_name(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--step-name",
        metavar="REGEX",
        type=_pattern,
        help="the steps are the annotations (record_function) whose whole name matches REGEX, such as 'execute_.*', "
        "instead of ProfilerStep#N; steps for which the groups of REGEX capture different text are different kinds of "
        "steps, which are not mixed",
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def with_step_name(traces: Sequence[Trace], pattern: re.Pattern[str] | None) -> tuple[Trace, ...]:
    """The traces with the annotations that are their steps.

    Raises
    ------
    CommandError
        When a trace has none.
    """
    from pytest_perfdl.trace.annotations import step_annotations

    if pattern is None:
        return tuple(traces)
    found = tuple(replace(trace, step_name=pattern) for trace in traces)
    for trace in found:
        if not len(step_annotations(trace)[0]):
            raise CommandError(
                f"--step-name {pattern.pattern!r}: no annotation of {trace.source} has a name that matches as a whole; "
                f"{_listed(trace)}"
            )
    return found


def _listed(trace: Trace) -> str:
    """Which annotations there are, the most frequent first."""
    from pytest_perfdl.trace.annotations import NUMBER
    from pytest_perfdl.trace.model import Category

    rows = trace.rows(Category.USER_ANNOTATION)
    counts = Counter[str]()
    shown: dict[str, str] = {}
    for name, count in Counter(trace.name[rows].tolist()).items():
        # Names that differ in numbers only are one.
        key = NUMBER.sub("#", trace.names[name])
        counts[key] += count
        shown.setdefault(key, trace.names[name])
    parts = [f"{shown[key][:_LONGEST]!r} ({count:,})" for key, count in counts.most_common(_LISTED)]
    if not parts:
        return "it has no annotations"
    more = f", and {plural(len(counts) - _LISTED, 'other name')}" if len(counts) > _LISTED else ""
    return f"its annotations are {', '.join(parts)}{more}"
