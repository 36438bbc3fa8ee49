"""Right, or said: whether `perfdl trace` and `perfdl diff` tell a trace's known figures, or why they do not.

The commands run in this process, on files. A figure is wrong where it is off by more than 1 % from that of the steps
that the output lists; it is said where a line is about the file's state: the findings, the steps that are
left out, a refusal. Lines on what costs time, which every trace may have, say nothing of damage.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from damages import Damage, Damaged, Made, Truth, by_name

from pytest_perfdl import cli
from pytest_perfdl.report.trace import json as trace_json

OFF = 0.01
"""A figure that is off by more is wrong."""
ENDINGS = (0, 1, 2, 3)
NEUTRAL = re.compile(
    r"other operators|operators.* differ|runs? (other|different)|runs? \d+ operators|moved no bytes", re.IGNORECASE
)
"""A line that says how steps differ, or that copies may have moved nothing: of undamaged traces too, by right."""
READ = re.compile(r"read as ranks")


@dataclass(frozen=True)
class Ran:
    """One command."""

    code: int
    out: Any
    """What it printed as JSON; `None` where it printed none."""
    err: tuple[str, ...]
    """Lines on stderr."""
    trace: str = ""
    """A traceback."""
    notices: frozenset[str] = frozenset()
    """Lines on what costs time, which any trace has."""


@dataclass(frozen=True)
class Outcome:
    """What came of a trace."""

    wrong: tuple[str, ...] = ()
    """Figures that are off, of commands that say nothing of damage."""
    off: tuple[str, ...] = ()
    """All figures that are off."""
    lines: tuple[str, ...] = ()
    """What was said of damage."""
    traceback: str = ""
    shown: bool | None = None
    """Whether the step times of all undamaged steps are there and right; `None` where there is none."""
    kernels_shown: bool | None = None
    """Whether the mean kernel time of a step is there and right, where undamaged steps are all that is listed."""
    named: bool | None = None
    """Whether a line names the kind of damage; `None` where all figures are right and nothing is said of damage."""
    claims: tuple[str, ...] = field(default=())
    """Of an undamaged trace: what is said of damage all the same."""


def run(*arguments: str) -> Ran:
    """Run a command of `perfdl`."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(list(arguments))
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 2
        except Exception:  # what is looked for
            return Ran(-1, None, (), traceback.format_exc())
    try:
        found = json.loads(out.getvalue()) if out.getvalue().strip() else None
    except ValueError:
        found = None
    said = tuple(line for line in err.getvalue().splitlines() if line.strip())
    if code not in ENDINGS or "Traceback" in err.getvalue():
        return Ran(code, found, said, err.getvalue() or f"exit code {code}")
    return Ran(code, found, said)


def run_trace(path: Path) -> Ran:
    """Run `perfdl trace --json`, and tell its lines on what costs time from those on the file."""
    seen: list[Any] = []

    def to_json(found: Sequence[Any], *rest: Any) -> dict[str, Any]:
        seen.extend(found)
        return written(found, *rest)

    written = trace_json.to_json
    with mock.patch.object(trace_json, "to_json", to_json):
        ran = run("trace", "--json", str(path))
    return replace(ran, notices=frozenset(notice.text for summary in seen for notice in summary.noticed))


def summaries(ran: Ran) -> list[dict[str, Any]]:
    """The traces that `perfdl trace --json` tells of: several where it found several processes."""
    if not isinstance(ran.out, dict):
        return []
    return list(ran.out.get("traces", [ran.out]))


def said_of_trace(ran: Ran) -> list[str]:
    """Lines on the file's state."""
    lines = list(ran.err)
    for trace in summaries(ran):
        lines += [line for line in trace["findings"] if line not in ran.notices]
        lines += [f"step {each['step']}: {each['reason']}" for each in trace.get("left_out") or ()]
    return lines


def said_of_diff(ran: Ran) -> list[str]:
    """Lines on either side's state."""
    found = ran.out if isinstance(ran.out, dict) else {}
    return [*ran.err, *(found.get("notes") or ()), *filter(None, [found.get("incomparable")])]


def listed(trace: Mapping[str, Any]) -> list[tuple[int | None, int]]:
    """Number and time of each step that a summary lists."""
    return [
        (int(each["name"].partition("#")[2]) if "#" in each["name"] else None, each["wall_ns"])
        for each in trace.get("steps") or ()
    ]


def off_by(found: float, true: float) -> bool:
    """Whether a figure is wrong."""
    return abs(found - true) > OFF * max(abs(true), 1)


def wrong_figures(trace: Mapping[str, Any], truth: Truth) -> Iterator[str]:
    """What a summary says that is not so."""
    steps = listed(trace)
    for number, wall in steps:
        if number not in truth.walls:
            yield f"step {number} is listed, with {wall} ns"
        elif off_by(wall, truth.walls[number]):
            yield f"step {number} takes {truth.walls[number]} ns, not {wall}"
    for number, count in Counter(number for number, _ in steps).items():
        if count > 1:
            yield f"step {number} is listed {count} times"
    known = [number for number, _ in steps if number in truth.walls]
    if not known or len(known) < len(steps):
        return
    mean = sum(wall for _, wall in steps) / len(steps)
    if off_by(mean, truth.mean(known)):
        yield f"the mean step takes {truth.mean(known):.0f} ns, not {mean:.0f}"
    time = kernel_time(trace)
    expected = sum(truth.kernel_ns[number] for number in known) / len(known)
    if time is not None and off_by(time, expected):
        yield f"the kernels of a step take {expected:.0f} ns, not {time:.0f}"


def kernel_time(trace: Mapping[str, Any]) -> float | None:
    """The total of a step's kernels; `None` where the table is withheld."""
    rows = trace.get("kernels")
    if rows is None or not listed(trace):
        return None
    return float(sum(row["per_step"]["total_ns"] for row in rows if row["kind"] != "copy"))


def shown(
    traces: Sequence[Mapping[str, Any]], truth: Truth, intact: frozenset[int], needed: frozenset[int]
) -> tuple[bool, bool | None]:
    """Whether one of the summaries has all the undamaged steps that it needs right, and the kernels of its steps."""
    for trace in traces:
        found = dict(listed(trace))
        if all(number in found and not off_by(found[number], truth.walls[number]) for number in needed):
            if not set(found) <= intact:
                return True, None
            time = kernel_time(trace)
            expected = sum(truth.kernel_ns[number] for number in found) / max(1, len(found))
            return True, time is not None and not off_by(time, expected)
    return False, None


def diff_figures(ran: Ran, truths: Sequence[Truth], steps: Sequence[int | None]) -> Iterator[str]:
    """What a diff of the undamaged trace (base) and the damaged one says that is not so."""
    if not isinstance(ran.out, dict) or ran.out["step"] is None:
        return
    found = ran.out["step"]["new_ns"]
    if len(truths) > 1:
        # Other processes do other work, so any verdict may be right; the step is that of one of them, or of all.
        means = [truth.mean() for truth in truths]
        if not (1 - OFF) * min(means) <= found <= (1 + OFF) * max(means):
            yield f"diff: the step takes {min(means):.0f} to {max(means):.0f} ns, not {found}"
        return
    verdict = ran.out["verdict"]
    if verdict in ("improved", "regressed", "suspect"):
        yield f"the verdict on equal work is {verdict}"
    # The steps of the summary are those that the diff compares; without one, the diff's step is that of all of them.
    known = [number for number in steps if number in truths[0].walls]
    expected = truths[0].mean(known or None)
    if off_by(found, expected):
        yield f"diff: the step takes {expected:.0f} ns, not {found}"


def judge_damaged(damage: Damage, made: Made, damaged: Damaged, folder: Path) -> Outcome:
    """Run both commands on a damaged trace."""
    good, bad = folder / "good.json", folder / "bad.json"
    good.write_text(made.text(), encoding="utf-8")
    bad.write_text(damaged.text, encoding="utf-8")
    one, two = run_trace(bad), run("diff", "--json", str(good), str(bad))
    broken = one.trace or two.trace
    if broken:
        return Outcome(traceback=broken)
    # That steps differ is true of the undamaged trace too, and says nothing of a damage unless that is just this.
    says = by_name(damage.words)
    traces, lines = summaries(one), [line for line in said_of_trace(one) if _counts(line, says)]
    # Where the file has several processes each summary is held against the one that it is nearest to.
    off = [figure for trace in traces for figure in min(
        (list(wrong_figures(trace, truth)) for truth in damaged.truths), key=len
    )]  # fmt: skip
    if len(damaged.truths) > 1 and len(traces) == 1:
        off.append(f"{len(damaged.truths)} processes are told as one")
    alone = [line for line in said_of_diff(two) if _counts(line, says)]
    steps = [number for trace in traces[:1] for number, _ in listed(trace)]
    between = list(diff_figures(two, damaged.truths, steps))
    wrong = [*(() if any(map(_excuses, lines)) else off), *(() if any(map(_excuses, alone)) else between)]
    named = any(says.search(_told(line)) for line in lines)
    free = {step for step in made.truth.walls if may_differ(made, step)}
    checks = [
        shown(traces, truth, steps, steps - free)
        for truth, steps in zip(damaged.truths, damaged.intact, strict=True)
        if steps and damaged.shown
    ]
    kernels = [each for _, each in checks if each is not None]
    return Outcome(
        wrong=tuple(wrong),
        off=(*off, *between),
        lines=tuple(lines),
        shown=all(each for each, _ in checks) if checks else None,
        kernels_shown=all(kernels) if kernels else None,
        named=named if off or between or lines or not all(each for each, _ in checks) else None,
    )


def _counts(line: str, says: re.Pattern[str]) -> bool:
    return not NEUTRAL.search(_told(line)) or bool(says.search(_told(line)))


def _excuses(line: str) -> bool:
    """Whether a line lets a reader expect that figures are off: not one that says how all of the file was read."""
    return not READ.search(line)


def _told(line: str) -> str:
    """A line without the command and the file before it, whose path may hold any word."""
    return line.rpartition("bad.json: ")[2]


def judge_undamaged(made: Made, folder: Path) -> Outcome:
    """Run `perfdl trace` on an undamaged trace: all figures right, and nothing said of damage."""
    good = folder / "good.json"
    good.write_text(made.text(), encoding="utf-8")
    ran = run_trace(good)
    if ran.trace:
        return Outcome(traceback=ran.trace)
    traces = summaries(ran)
    off = [figure for trace in traces for figure in wrong_figures(trace, made.truth)]
    left = [each for trace in traces for each in trace.get("left_out") or ()]
    absent = set(made.truth.walls) - {number for trace in traces for number, _ in listed(trace)}
    off += [f"step {number} is not listed" for number in sorted(absent - {each.get("step") for each in left})]
    reasons = [f"step {each['step']}: {each['reason']}" for each in left]
    claims = [line for line in said_of_trace(ran) if not NEUTRAL.search(line) and line not in reasons]
    claims += [
        f"step {each['step']} is left out: {each['reason']}"
        for each in left
        if not (may_differ(made, each["step"]) and NEUTRAL.search(str(each["reason"])))
    ]
    if not traces:
        off.append(f"exit code {ran.code}")
    return Outcome(wrong=tuple(off), off=tuple(off), lines=tuple(said_of_trace(ran)), claims=tuple(claims))


def may_differ(made: Made, step: int | None) -> bool:
    """Whether a step may be left out: the first or last, whose operators are not those on which three others agree."""
    numbers = list(made.truth.walls)
    if step not in (numbers[0], numbers[-1]):
        return False
    others = [made.signatures[each] for each in numbers if each != step]
    return any(others.count(each) >= 3 and each != made.signatures[step] for each in others)


__all__ = ["Outcome", "judge_damaged", "judge_undamaged", "run"]
