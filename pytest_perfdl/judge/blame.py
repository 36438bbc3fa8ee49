"""Finds what changed inside the step: the diff of both sides' profiled steps, of paired rounds or else of records."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pytest_perfdl.diff import causes, diff, likeliest, remainder, side_of_call, side_of_traces
from pytest_perfdl.diff.account import PYTHON, columns
from pytest_perfdl.diff.causes import LEAST_SHARE as LEAST_EFFECT
from pytest_perfdl.diff.matching.names import NO_RULES
from pytest_perfdl.judge.ranks import parts_of_ranks
from pytest_perfdl.judge.reasons import same
from pytest_perfdl.model.step_part import common_module, is_inside
from pytest_perfdl.results.verdict import BreakdownRow, Cause, StepBreakdown

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from pytest_perfdl.analysis.account.parts import StepParts
    from pytest_perfdl.diff import Diff
    from pytest_perfdl.diff.matching.names import Rules
    from pytest_perfdl.diff.side import DiffCause
    from pytest_perfdl.judge.round_data import Round
    from pytest_perfdl.model.record import Call, Record

LEAST_SHARE = 0.005
"""Of a step that changed by less than this part no cause has a share: a ratio to next to nothing says nothing."""
EXPLAINING = 0.25
"""Part of what Python between operators gained that more of these operators must hold to be the cause of both. A call
of a small operator costs more in Python than in itself, and what the profiler does for it is in Python's time, too."""
ELSEWHERE = " (elsewhere)"
"""What the rest of a cause's operators, kernels or idle time is called, of which no change is certain."""
OUTSIDE = 0.25
"""Part of what Python gained outside of modules that a function there must have gained to be it: recording frames makes
functions slower, never faster."""

OF_THE_DEVICE = frozenset(
    ("input", "communication", "launch latency", "synchronization", "operator overhead", "device wait", "unattributed")
)
"""Idle time that has a cause of its own, which no function of Python is."""


def blame(
    new: Record, base: Record, *, leaning: Mapping[str, float] | None = None, counts_first: bool = False
) -> tuple[Cause, ...]:
    """The causes of what changed between two records, for the calls that both have, in the order of `find_causes`."""
    before = {call.name: call for call in base.calls}
    both = [(before[call.name], call) for call in new.calls if call.name in before]
    diffs = {sides[1].name: diff_records(*sides) for sides in both}
    found = find_causes(diffs, leaning=leaning, counts_first=counts_first)
    launching = (cause for sides in both for cause in _launching(*sides))
    return tuple(sorted((*found, *launching), key=lambda cause: counts_first and not _is_recounted(cause)))


def _launching(base: Call, new: Call) -> Iterator[Cause]:
    """Operators that occur more or less often, of a step on a device: of its time they are no part."""
    rows = [{row.name: row.count for row in call.rows if row.kind == "operator"} for call in (base, new)]
    if any(row.kind == "kernel" for call in (base, new) for row in call.rows):
        for name in sorted({*rows[0], *rows[1]}):
            counts = rows[0].get(name, 0.0), rows[1].get(name, 0.0)
            cause = Cause("operator", name, new.name, counts[0], counts[1], 0, 0, None)
            if _is_recounted(cause):
                yield cause


def _is_recounted(cause: Cause) -> bool:
    """Whether it occurs more or less often; idle time is in pieces whose number means nothing."""
    return cause.kind != "idle" and not same(cause.base_count, cause.new_count)


def diff_records(base: Call, new: Call) -> Diff:
    """What changed in a call, from the rows of both records."""
    return diff(side_of_call("baseline", base), side_of_call("current", new))


def diff_rounds(
    rounds: Sequence[Round], rules: Rules = NO_RULES, ranks: Mapping[str, int] | None = None
) -> dict[str, Diff]:
    """What changed in each call, from the profiled steps of rounds, or by call of one of their ranks.

    Empty where a round has none.
    """
    if not rounds or not all(each.parts_base and each.parts_head for each in rounds):
        return {}
    base, head = (parts_of_ranks(rounds, side, ranks or {}) for side in ("base", "head"))
    return {
        call: diff(
            side_of_traces("base", [each[call] for each in base]),
            side_of_traces("head", [each[call] for each in head]),
            paired=True,
            rules=rules,
        )
        for call in head[0]
        if all(call in each for each in (*base, *head))
    }


def find_causes(
    diffs: Mapping[str, Diff],
    timed: Mapping[str, float] | None = None,
    *,
    leaning: Mapping[str, float] | None = None,
    counts_first: bool = False,
) -> tuple[Cause, ...]:
    """The causes of all calls' changes: those with the sign of the step's change first, then the largest.

    Parameters
    ----------
    diffs
        Of the profiled steps, by call.
    timed
        By how much each call's timed step changed, where that is known for certain: its sign is the step's way, else
        that of the profiled steps where it is certain. Of profiled steps that went the other way, or either way, no
        part has a share; of the former what changed in number comes first. Where no cause goes the timed step's way
        for certain, the likeliest is given, and says so.
    leaning
        By how much each call's timed step seems to have changed: where no way is certain, its sign puts first what is
        likelier to matter.
    counts_first
        Put what changed in number before what only changed in time: for a verdict that counts alone decided.
    """
    way = dict(timed or {})
    lost = {call for call, each in diffs.items() if contradicts(each, way.get(call))}
    found = [
        _make_cause(call, each, cause, told=call not in lost and bool(way.get(call) or each.way))
        for call, each in diffs.items()
        for cause in causes(each)
    ]
    for call, change in way.items():
        if call in diffs and not any(cause.call == call and cause.delta_ns * change > 0 for cause in found):
            cause = likeliest(diffs[call], change * diffs[call].base_ns)
            found += [replace(_make_cause(call, diffs[call], cause, told=False), certain=False)] if cause else []

    def order(cause: Cause) -> tuple[bool, bool, float, float, str]:
        recounted = _is_recounted(cause)
        towards = way.get(cause.call) or diffs[cause.call].way or (leaning or {}).get(cause.call, 0)
        against = cause.delta_ns * towards < 0
        more = abs(cause.new_count - cause.base_count)
        not_first = (counts_first or cause.call in lost) and not recounted
        weight = min(abs(cause.delta_ns), _explained_by(cause, found))
        return not_first, against and not (counts_first and recounted), -weight, -more, cause.name

    return tuple(sorted(found, key=order))


def step_breakdown(call: str, of: Diff, *, rounds: bool = False) -> StepBreakdown:
    """Both sides of a call's mean profiled step, in rows by name: what causes are chosen from, with the same numbers.

    Where the columns of the sides are paired `rounds`, the time in each is kept.
    """
    named = causes(of)
    known = {(cause.kind, cause.name, cause.status) for cause in named}
    others = (cause for cause in causes(of, everything=True) if (cause.kind, cause.name, cause.status) not in known)
    # What of a cause's name did not change for certain is a row of its own, so that the cause's numbers are a row's.
    elsewhere = (
        replace(rest, name=f"{rest.name}{ELSEWHERE}") for cause in named if (rest := remainder(of, cause)) is not None
    )
    rows = []
    for cause in (*named, *elsewhere, *others):
        base, new = cause.base_ns, cause.new_ns
        # Idle time is in pieces whose number means nothing: there it is the time that says whether there is any.
        there = [bool(count) or bool(ns) for count, ns in ((cause.base.count, base), (cause.new.count, new))]
        matched = all(there) and cause.kind != "idle"
        changed = abs(cause.delta_ns) >= LEAST_EFFECT * max(of.base_ns, of.new_ns)
        of_rounds = columns([change.group for change in cause.changes], of.base, of.new) if rounds else ((), ())
        rows.append(
            BreakdownRow(
                kind=cause.kind,
                name=cause.name,
                base_count=cause.base.count if there[0] else None,
                new_count=cause.new.count if there[1] else None,
                base_ns=base if there[0] else None,
                new_ns=new if there[1] else None,
                matched_by=cause.changes[0].group.by if matched else "",
                confidence=cause.confidence if matched else None,
                effects=cause.effects_ns if changed else {},
                members=cause.members,
                base_rounds=tuple(round(float(ns)) for ns in of_rounds[0]),
                new_rounds=tuple(round(float(ns)) for ns in of_rounds[1]),
            )
        )
    rows.sort(key=lambda row: (-max(row.base_ns or 0, row.new_ns or 0), row.kind, row.name))
    return StepBreakdown(
        call=call,
        base_ns=of.base_ns,
        new_ns=of.new_ns,
        rows=tuple(rows),
        base_rounds=tuple(round(float(ns)) for ns in of.base.step_ns) if rounds else (),
        new_rounds=tuple(round(float(ns)) for ns in of.new.step_ns) if rounds else (),
    )


def _explained_by(cause: Cause, found: Sequence[Cause]) -> float:
    """Below what cause's time an interval of Python comes, nanoseconds; infinite where nothing explains it.

    More operators in a module mean more Python between them there: where they hold `EXPLAINING` of the time that Python
    gained, they are the cause, and Python's time follows from it.
    """
    if cause.kind != "idle" or not cause.module:
        return math.inf
    operators = [
        each.delta_ns
        for each in found
        if each.kind != "idle"
        and each.call == cause.call
        and is_inside(each.module, cause.module)
        and (each.new_count - each.base_count) * cause.delta_ns > 0
        and each.delta_ns * cause.delta_ns > 0
    ]
    if abs(sum(operators)) < EXPLAINING * abs(cause.delta_ns):
        return math.inf
    return max(map(abs, operators)) - 1


def contradicts(profiled: Diff, timed: float | None) -> bool:
    """Whether profiled steps went the other way than the timed ones: then they say what is there, not what it costs."""
    return timed is not None and timed * profiled.delta_ns < 0


def locate_causes(
    blame: Sequence[Cause],
    base: Mapping[str, StepParts],
    new: Mapping[str, StepParts],
    rules: Rules = NO_RULES,
) -> tuple[Cause, ...]:
    """The causes with the modules and lines that a stack pass on each side found, by call.

    Recording Python's frames distorts times, so of these steps only names are taken: what has a module or a line
    already keeps it. Slower Python is called by the function that gained most where it is: in the annotation that it
    was called by, or outside of all that were, and if it can be in its module. Each function is named once.
    """
    found: dict[tuple[str, str, str], DiffCause] = {}
    python: dict[str, list[_Function]] = {}
    for call in base.keys() & new.keys():
        whole = diff(side_of_traces("base", [base[call]]), side_of_traces("head", [new[call]]), rules=rules)
        for each in causes(whole, everything=True):
            found.setdefault((call, each.kind, each.name), each)
        python[call] = _functions(whole)
    named = {(cause.call, cause.name) for cause in blame}
    located = []
    for cause in blame:
        function = None
        if _is_slower_python(cause):
            function = _function_of(cause, python.get(cause.call, []), named)
        same_name = found.get((cause.call, cause.kind, cause.name))
        if function is not None:
            python[cause.call].remove(function)
            module = cause.module or function.module
            cause = replace(cause, name=function.name, module=module, line=function.line)
        elif same_name is not None and (cause.kind != "idle" or same_name.own_ns * cause.delta_ns > 0):
            cause = replace(cause, module=cause.module or same_name.module, line=cause.line or same_name.line)
        located.append(cause)
    return tuple(located)


def rename_rows(
    breakdowns: Sequence[StepBreakdown], before: Sequence[Cause], after: Sequence[Cause]
) -> tuple[StepBreakdown, ...]:
    """The breakdowns with the rows of causes under the names that these have since they were located."""
    names = {
        (old.call, old.kind, old.name): new.name for old, new in zip(before, after, strict=True) if old.name != new.name
    }
    return tuple(
        replace(
            each,
            rows=tuple(replace(row, name=names.get((each.call, row.kind, row.name), row.name)) for row in each.rows),
        )
        for each in breakdowns
    )


def _is_slower_python(cause: Cause) -> bool:
    return cause.kind == "idle" and cause.delta_ns > 0 and not cause.line and cause.name not in OF_THE_DEVICE


class _Function(NamedTuple):
    """A function whose own time grew in one place."""

    name: str
    line: str
    annotation: str
    module: str
    """What all modules that it grew in are in; empty outside of modules, and where they have nothing in common."""
    grown_ns: float = 0.0


def _functions(whole: Diff) -> list[_Function]:
    """Python that became slower, what gained most first."""
    grown: dict[_Function, float] = defaultdict(float)
    modules: dict[_Function, list[str]] = defaultdict(list)
    for change in whole.changes:
        part = next(iter(change.new_parts), None)
        if part is not None and part.kind == "idle" and part.line and part.name not in OF_THE_DEVICE:
            place = _Function(part.function or part.name, part.line, "".join(part.path), "")
            grown[place] += change.own_ns
            modules[place].append(part.module)
    order = sorted((place for place, ns in grown.items() if ns > 0), key=lambda place: (-grown[place], place))
    return [place._replace(module=common_module(modules[place]), grown_ns=grown[place]) for place in order]


def _function_of(cause: Cause, python: Sequence[_Function], named: Container[tuple[str, str]]) -> _Function | None:
    """The function that a cause of Python's time is: of those in the same place the first, in its module if one is.

    Of a cause in no module it is the first outside of all that gained `OUTSIDE` of its time, if there is one.
    """
    if cause.name == PYTHON:
        mine = [each for each in python if (cause.call, each.annotation) not in named]
    else:
        mine = [each for each in python if each.annotation == cause.name]
    if cause.module:
        inside = [each for each in mine if is_inside(each.module, cause.module)]
    else:
        inside = [each for each in mine if not each.module and each.grown_ns >= OUTSIDE * cause.delta_ns]
    return next(iter(inside or mine), None)


def _make_cause(call: str, each: Diff, cause: DiffCause, *, told: bool) -> Cause:
    told &= abs(each.delta_ns) >= max(1.0, LEAST_SHARE * each.base_ns)
    return Cause(
        kind=cause.kind,
        name=cause.name,
        call=call,
        base_count=cause.base.count,
        new_count=cause.new.count,
        base_ns=cause.base_ns,
        new_ns=cause.new_ns,
        share=cause.delta_ns / each.delta_ns if told else None,
        module=cause.module,
        line=cause.line,
        effects=cause.effects_ns,
        bound=cause.bound,
        members=cause.members,
    )
