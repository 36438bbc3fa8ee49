"""One thing that is wrong with a trace of known steps, and what then is still true of it.

A damage takes the rows of a made trace and returns those of the file, or the text of it, with the steps that it leaves
alone: their figures are still the true ones, and the file still shows them.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from unit.trace.data.synthetic_steps import (
    CALLS,
    DEVICE,
    SHAPES,
    Made,
    Row,
    Truth,
    drawn,
    is_step,
    make,
    number_of,
    truth_of,
)

from pytest_perfdl import cli

HOUR = 3.6e9
SAME = 0.005
"""A window whose length is off by less is that of an undamaged step."""


@dataclass(frozen=True)
class Damaged:
    """The text of a damaged trace, and what is still true."""

    text: str
    truths: tuple[Truth, ...]
    """Of each process in the file: of all steps as they were, under the numbers that the file has for them."""
    intact: tuple[frozenset[int], ...]
    """Of each process, the steps that the damage leaves alone."""
    shown: bool = True
    """Whether the file still tells the figures of the intact steps: not where its processes cannot be told apart."""


@dataclass(frozen=True)
class Damage:
    """A kind of damage."""

    kind: str
    words: str
    """Pattern of what a line says that names it."""
    apply: Callable[[Made, random.Random], Damaged | None]
    """`None` where the trace has nothing that could be damaged so."""


KINDS: list[Damage] = []


def kind(name: str, words: str) -> Callable[[Callable[[Made, random.Random], Damaged | None]], Callable]:
    """Enter a function in `KINDS`."""

    def entered(function: Callable[[Made, random.Random], Damaged | None]) -> Callable:
        KINDS.append(Damage(name, words, function))
        return function

    return entered


# What all of them need.


def copied(made: Made) -> list[Row]:
    """Rows that may be changed."""
    return [{**row, "args": dict(row["args"])} for row in made.rows]


def of_rows(made: Made, rows: Sequence[Row], intact: Collection[int], *, shown: bool = True) -> Damaged:
    """A damaged trace of these rows."""
    return Damaged(made.text(rows), (made.truth,), (frozenset(intact),), shown)


def untouched(made: Made, lost: Collection[int]) -> frozenset[int]:
    """Steps that are as they were without these rows (by id): they lost nothing, and their windows stay.

    Behind a step that lost its last device event the begin of a window is not known, even if it is the same.
    """
    left = truth_of([row for row in made.rows if id(row) not in lost])
    hurt = {row["_step"] for row in made.rows if id(row) in lost}
    last: dict[int, Row] = {}
    for row in device_of(made):
        if row["_step"] not in last or later(row) > later(last[row["_step"]]):
            last[row["_step"]] = row
    unknown = {number + 1 for number, row in last.items() if id(row) in lost}
    return frozenset(
        number
        for number, wall in made.truth.walls.items()
        if number not in hurt | unknown and number in left.walls and abs(left.walls[number] / wall - 1) < SAME
    )


def without(made: Made, lost: Sequence[Row]) -> Damaged:
    """The trace without these rows."""
    gone = {id(row) for row in lost}
    return of_rows(made, [row for row in made.rows if id(row) not in gone], untouched(made, gone))


def changed(made: Made, rows: Sequence[Row], change: Callable[[Row], Row]) -> Damaged:
    """The trace with these rows changed: a step that has one is no longer as it was."""
    touched = {id(row) for row in rows}
    out = [change({**row, "args": dict(row["args"])}) if id(row) in touched else row for row in made.rows]
    return of_rows(made, out, untouched(made, touched))


def with_args(**args: object) -> Callable[[Row], Row]:
    """A change of arguments."""
    return lambda row: {**row, "args": {**row["args"], **args}}


def steps_of(made: Made) -> list[Row]:
    """The annotations in order."""
    return sorted(filter(is_step, made.rows), key=lambda row: row["ts"])


def device_of(made: Made, category: str = "") -> list[Row]:
    """Device events that a listed step launched."""
    return [row for row in made.rows if row["cat"] in DEVICE and (not category or row["cat"] == category)
            and row["_step"] is not None]  # fmt: skip


def some(rows: Sequence[Row], share: float, draw: random.Random) -> list[Row]:
    """At least one of these rows."""
    return draw.sample(list(rows), min(len(rows), max(1, round(share * len(rows)))))


def later(row: Row) -> float:
    """When a row ends."""
    return round(row["ts"] + row["dur"], 3)


def inner(made: Made, draw: random.Random) -> Row | None:
    """A step with one before it and one after it, of the same session."""
    steps = steps_of(made)
    numbers = {number_of(row) for row in steps}
    between = [row for row in steps if {number_of(row) - 1, number_of(row) + 1} <= numbers]
    return draw.choice(between) if between else None


def middle(made: Made, step: Row, draw: random.Random) -> float:
    """A moment in a step at which some of its operators have begun, and others have not."""
    begun = sorted(row["ts"] for row in made.rows if row["cat"] == "cpu_op" and row["_step"] == step["_step"])
    return round(begun[round(draw.uniform(0.3, 0.8) * (len(begun) - 1))] + 0.5, 3)


def everything(made: Made) -> frozenset[int]:
    return frozenset(made.truth.walls)


# The list of steps.


@kind("steps annotated twice", r"twice|doubl|duplicat|annotated|overlap|nest|same (number|step)|more than once")
def _doubled(made: Made, draw: random.Random) -> Damaged:
    shift = draw.choice((0.0, 0.0, 0.4))
    again = [{**row, "ts": round(row["ts"] + shift, 3), "dur": round(row["dur"] - 2 * shift, 3)}
             for row in steps_of(made)]  # fmt: skip
    return of_rows(made, [*made.rows, *again], everything(made))


@kind("nested steps of a second profiler", r"nest|inside|overlap|twice|second|two (series|lists|sets)|annotated")
def _nested(made: Made, draw: random.Random) -> Damaged:
    parts, offset = draw.choice((1, 1, 2, 3)), draw.choice((0, 50, 500))
    inside: list[Row] = []
    for row in steps_of(made):
        length = row["dur"] * 0.97 / parts
        for part in range(parts):
            begin = round(row["ts"] + 0.01 * row["dur"] + part * length, 3)
            number = offset + len(inside)
            inside.append({**row, "name": f"ProfilerStep#{number}", "ts": begin, "dur": round(0.99 * length, 3)})
    return of_rows(made, [*made.rows, *inside], everything(made))


@kind("overlapping annotations", r"overlap|begins before|ends after|nest|inside")
def _overlapping(made: Made, draw: random.Random) -> Damaged | None:
    steps = steps_of(made)
    place = draw.randrange(len(steps) - 1)
    step, after = steps[place : place + 2]
    if number_of(after) != number_of(step) + 1:
        return None
    longer = round(step["dur"] + draw.uniform(0.06, 0.5) * after["dur"], 3)
    intact = everything(made) - {number_of(step), number_of(after)}
    return of_rows(made, [{**row, "dur": longer} if row is step else row for row in made.rows], intact)


@kind("a step of duration 0", r"duration|no length|empty|zero|lasts 0|0 ns|0 us")
def _no_duration(made: Made, draw: random.Random) -> Damaged:
    step = draw.choice(steps_of(made))
    intact = everything(made) - {number_of(step)}
    return of_rows(made, [{**row, "dur": 0} if row is step else row for row in made.rows], intact)


@kind("an annotation lost", r"missing|lost|gap|no annotation|absent|not consecutive|not annotated")
def _annotation_lost(made: Made, draw: random.Random) -> Damaged | None:
    step = inner(made, draw)
    if step is None:
        return None
    projected = draw.random() < 0.5
    out = [row for row in made.rows if row is not step
           and not (projected and row["cat"] == "gpu_user_annotation" and row["name"] == step["name"])]  # fmt: skip
    return of_rows(made, out, everything(made) - {number_of(step)})


@kind("last step stopped half-way", r"operator|half|incomplete|stopp|other (work|operators)|cut|unfinished|differ")
def _stopped(made: Made, draw: random.Random) -> Damaged | None:
    step = steps_of(made)[-1]
    if made.shape.log_every or made.shape.accumulate > 1 or made.shape.varied:
        return None
    at = middle(made, step, draw)
    launched = {row["args"].get("correlation") for row in made.rows if row["cat"] in CALLS and row["ts"] < at}
    out = []
    for row in made.rows:
        device = row["cat"] in (*DEVICE, "gpu_user_annotation")
        if device and row["_step"] == step["_step"] and row["args"].get("correlation") not in launched:
            continue
        if device:
            out.append(row)
        elif row["ts"] < at:
            out.append(row if later(row) <= at else {**row, "dur": round(at - row["ts"], 3)})
    return of_rows(made, out, everything(made) - {number_of(step)})


@kind("first step begun half-way", r"operator|half|incomplete|begun|began|other (work|operators)|cut|differ")
def _begun(made: Made, draw: random.Random) -> Damaged | None:
    step = steps_of(made)[0]
    if made.shape.log_every or made.shape.accumulate > 1 or made.shape.varied or made.shape.captures:
        return None
    at = middle(made, step, draw)
    out = []
    for row in made.rows:
        if row is step:
            out.append({**row, "ts": at, "dur": round(later(row) - at, 3)})
        elif later(row) > at if row["cat"] in (*DEVICE, "gpu_user_annotation") else row["ts"] >= at:
            out.append(row)
    return of_rows(made, out, everything(made) - {number_of(step)})


@kind("steps also on a thread without work", r"thread|without work|no work|twice|overlap|annotated|second")
def _second_thread(made: Made, draw: random.Random) -> Damaged:
    steps = steps_of(made)
    begin, end = steps[0]["ts"], later(steps[-1])
    count = len(steps) + draw.randrange(1, 5)
    length = (end - begin) / count
    idle = [{**steps[0], "tid": 4999, "name": f"ProfilerStep#{place}", "ts": round(begin + place * length, 3),
             "dur": round(length - 0.3, 3)} for place in range(count)]  # fmt: skip
    rows = [*made.rows, *idle] if draw.random() < 0.5 else [*idle, *made.rows]
    return of_rows(made, rows, everything(made))


@kind("step numbers shuffled", r"order|number|shuffl|not consecutive|descend|gap|ascend|sequence")
def _shuffled(made: Made, draw: random.Random) -> Damaged | None:
    steps = steps_of(made)
    numbers = [number_of(row) for row in steps]
    new = draw.sample(numbers, len(numbers))
    if new == numbers:
        return None
    other = dict(zip(numbers, new, strict=True))
    named = {id(row): f"ProfilerStep#{other[number_of(row)]}" for row in steps}
    out = [{**row, "name": named[id(row)]} if id(row) in named else row for row in made.rows]
    truth = renumbered(made.truth, other)
    return Damaged(made.text(out), (truth,), (frozenset(truth.walls),))


def renumbered(truth: Truth, other: Mapping[int, int]) -> Truth:
    """The same steps under other numbers."""
    names = ("walls", "kernel_ns", "kernels", "operators", "launches")
    return replace(
        truth, **{name: {other[key]: value for key, value in getattr(truth, name).items()} for name in names}
    )


# Device work that is missing.

MISSING = (
    r"(without|no|miss|lost|lack|have no|has no|left no).*(device|kernel|event|launch|row)|(launch|call|graph|cop)\w*.*"
    r"(without|no |miss|lost)|not in the (trace|file)|dropped"
)


def _kernels_lost(share: float) -> Callable[[Made, random.Random], Damaged | None]:
    def apply(made: Made, draw: random.Random) -> Damaged | None:
        rows = [row for row in device_of(made, "kernel") if "graph id" not in row["args"]]
        return without(made, some(rows, share, draw)) if rows else None

    return apply


kind("2 % of the kernels lost", MISSING)(_kernels_lost(0.02))
kind("20 % of the kernels lost", MISSING)(_kernels_lost(0.2))


@kind("the kernels of one step lost", MISSING)
def _step_lost(made: Made, draw: random.Random) -> Damaged | None:
    number = draw.choice(sorted(made.truth.walls))
    rows = [row for row in device_of(made) if row["_step"] == number]
    return without(made, rows) if rows else None


@kind("the kernels of the session's start lost", MISSING)
def _start_lost(made: Made, draw: random.Random) -> Damaged | None:
    rows = sorted((row for row in made.rows if row["cat"] in DEVICE), key=lambda row: row["ts"])
    if not rows:
        return None
    end = rows[0]["ts"] + draw.uniform(0.1, 0.45) * (later(rows[-1]) - rows[0]["ts"])
    if made.shape.sessions > 1:
        first = [row for row in steps_of(made) if number_of(row) < made.shape.first + made.shape.steps]
        end = later(first[0])
    lost = [row for row in rows if row["ts"] < end]
    return without(made, lost) if any(row["_step"] is not None for row in lost) else None


@kind("all kernels lost", MISSING)
def _all_lost(made: Made, draw: random.Random) -> Damaged | None:
    rows = [row for row in made.rows if row["cat"] in (*DEVICE, "gpu_user_annotation")]
    if not rows:
        return None
    if draw.random() < 0.3:
        # The calls too: only the device's name is left of it.
        rows += [row for row in made.rows if row["cat"] in CALLS]
    return replace(without(made, rows), intact=(frozenset(),))


@kind("nodes of graph replays lost", MISSING + r"|node|replay")
def _nodes_lost(made: Made, draw: random.Random) -> Damaged | None:
    replays: dict[int, list[Row]] = {}
    for row in device_of(made, "kernel"):
        if "graph id" in row["args"]:
            replays.setdefault(row["args"]["correlation"], []).append(row)
    if len(replays) < 2:
        return None
    hit = draw.sample(sorted(replays), draw.randrange(1, max(2, len(replays) // 2)))
    return without(made, [row for number in hit for row in some(replays[number], draw.uniform(0.2, 0.6), draw)])


@kind("copies lost", MISSING)
def _copies_lost(made: Made, draw: random.Random) -> Damaged | None:
    rows = device_of(made, "gpu_memcpy")
    if not rows:
        return None
    lost = {id(row) for row in some(rows, draw.uniform(0.2, 1.0), draw)}
    left = truth_of([row for row in made.rows if id(row) not in lost])
    intact = [number for number, wall in made.truth.walls.items() if abs(left.walls[number] / wall - 1) < SAME]
    return of_rows(made, [row for row in made.rows if id(row) not in lost], intact)


@kind("launch calls lost", r"launch|call|link|correlation|belongs? to no")
def _launches_lost(made: Made, draw: random.Random) -> Damaged | None:
    calls = [row for row in made.rows if row["cat"] in CALLS and row["_step"] is not None
             and ("Launch" in row["name"] or "Memcpy" in row["name"])]  # fmt: skip
    if not calls or not device_of(made):
        return None
    if draw.random() < 0.3:
        number = draw.choice(calls)["_step"]
        chosen = [row for row in calls if row["_step"] == number]
    else:
        chosen = some(calls, draw.choice((0.05, 0.2, 0.5)), draw)
    return unlinked(made, {row["args"]["correlation"] for row in chosen}, calls)


@kind("runtime and driver rows lost", r"launch|call|link|runtime|correlation|belongs? to no")
def _runtime_lost(made: Made, _: random.Random) -> Damaged | None:
    calls = [row for row in made.rows if row["cat"] in CALLS]
    if not device_of(made):
        return None
    return unlinked(made, {row["args"]["correlation"] for row in calls}, calls)


def unlinked(made: Made, correlations: Collection[int], calls: Sequence[Row]) -> Damaged:
    """The trace without these calls: what they launched belongs to no step that the file tells."""
    gone = {id(row) for row in calls if row["args"]["correlation"] in correlations}
    lost = {id(row) for row in device_of(made) if row["args"]["correlation"] in correlations}
    return of_rows(made, [row for row in made.rows if id(row) not in gone], untouched(made, lost))


@kind("the rows of one of two devices lost", MISSING)
def _device_lost(made: Made, _: random.Random) -> Damaged | None:
    rows = [row for row in made.rows if row["cat"] in DEVICE and row["pid"] == 1]
    return without(made, rows) if rows else None


# Correlations.


@kind("kernels without a correlation", r"correlation|link|launch|belongs? to no")
def _no_correlation(made: Made, draw: random.Random) -> Damaged | None:
    rows = [row for row in device_of(made, "kernel") if "graph id" not in row["args"]]
    collectives = [row for row in rows if "nccl" in row["name"]]
    if not rows:
        return None
    chosen = collectives or some(rows, draw.choice((0.03, 0.1, 0.3)), draw)
    value = draw.choice((0, 2**32 - 1, -1, None))

    def change(row: Row) -> Row:
        row["args"].pop("correlation")
        return row if value is None else with_args(correlation=value)(row)

    done = changed(made, chosen, change)
    # A call that makes the claim true at first sight, as calls without a number have.
    if value == 0 and draw.random() < 0.5:
        calls = [row for row in made.rows if row["cat"] == "cuda_runtime" and "Launch" not in row["name"]]
        unnumbered = {id(row) for row in calls}
        lost = {id(row) for row in chosen}
        out = [change({**row, "args": dict(row["args"])}) if id(row) in lost else
               with_args(correlation=0)(row) if id(row) in unnumbered and "Memcpy" not in row["name"] else row
               for row in made.rows]  # fmt: skip
        return of_rows(made, out, done.intact[0])
    return done


@kind("correlations of two kernels swapped", r"correlation|link|launch|before its call|early|clock")
def _swapped(made: Made, draw: random.Random) -> Damaged | None:
    rows = [row for row in device_of(made, "kernel") if "graph id" not in row["args"]]
    apart = [(one, two) for one, two in (draw.sample(rows, 2) for _ in range(20 if len(rows) > 1 else 0))
             if one["_step"] != two["_step"]]  # fmt: skip
    if not apart:
        return None
    one, two = apart[0]
    other = {id(one): two["args"]["correlation"], id(two): one["args"]["correlation"]}
    return _given(made, other)


@kind("correlations of an earlier step used again", r"correlation|link|launch|several kernels")
def _reused(made: Made, draw: random.Random) -> Damaged | None:
    rows = [row for row in device_of(made, "kernel") if "graph id" not in row["args"]]
    numbers = sorted({row["_step"] for row in rows})
    if len(numbers) < 2:
        return None
    place = draw.randrange(1, len(numbers))
    late = [row for row in rows if row["_step"] == numbers[place]]
    early = [row for row in rows if row["_step"] == numbers[place - 1]]
    chosen = some(late, draw.uniform(0.1, 1), draw)
    return _given(made, {id(row): draw.choice(early)["args"]["correlation"] for row in chosen})


@kind("several kernels on one plain launch", r"correlation|link|launch|several kernels|own")
def _several(made: Made, draw: random.Random) -> Damaged | None:
    rows = [row for row in device_of(made, "kernel") if "graph id" not in row["args"]]
    number = draw.choice(sorted(made.truth.walls))
    mine = [row for row in rows if row["_step"] == number]
    if len(mine) < 3:
        return None
    owner, *others = draw.sample(mine, 3)
    return _given(made, {id(row): owner["args"]["correlation"] for row in others})


def _given(made: Made, other: Mapping[int, int]) -> Damaged:
    """The trace with other correlations on these rows (by id)."""
    touched = [row for row in made.rows if id(row) in other]
    intact = untouched(made, {id(row) for row in touched})
    # Steps that are given what is not theirs are not as they were either.
    owners = {row["args"]["correlation"]: row["_step"] for row in device_of(made)}
    intact -= {owners.get(number) for number in other.values()}
    out = [with_args(correlation=other[id(row)])(row) if id(row) in other else row for row in made.rows]
    return of_rows(made, out, intact)


# Times.


@kind("rows at time 0", r"time (of )?0|zero|timestamp|ts 0|no time|epoch|far|hours|apart")
def _at_zero(made: Made, draw: random.Random) -> Damaged | None:
    host = [row for row in made.rows if row["cat"] in ("cpu_op", *CALLS) and row["_step"] is not None]
    device = device_of(made, "kernel")
    rows = device if device and draw.random() < 0.7 else host
    chosen = some(rows, draw.choice((0.01, 0.05, 0.2)), draw)
    touched = {id(row) for row in chosen}
    correlations = {row["args"]["correlation"] for row in chosen if row["cat"] in CALLS}
    lost = touched | {id(row) for row in device_of(made) if row["args"]["correlation"] in correlations}
    out = [{**row, "ts": 0, "dur": 0} if id(row) in touched else row for row in made.rows]
    return of_rows(made, out, untouched(made, lost))


@kind("rows open at the end", r"open|end|negative|duration|-1|unfinished|no end")
def _open(made: Made, _: random.Random) -> Damaged | None:
    step = steps_of(made)[-1]
    of = [row for row in made.rows if row["_step"] == step["_step"] and row["cat"] in ("cpu_op", "user_annotation")
          and row["tid"] == step["tid"]]  # fmt: skip
    last = max((row for row in of if row["cat"] == "cpu_op"), key=lambda row: row["ts"])
    opened = {id(row) for row in of if row["ts"] <= last["ts"] and later(row) >= later(last)}
    out = [{**row, "dur": -1} if id(row) in opened else row for row in made.rows]
    return of_rows(made, out, everything(made) - {number_of(step)})


@kind("strays hours away", r"far|hour|apart|stray|outside|away|out of|clock|long before|long after")
def _strays(made: Made, draw: random.Random) -> Damaged:
    pool = [row for row in made.rows if row["_step"] is not None and row["cat"] in ("cpu_op", "kernel", "cuda_runtime")]
    strays = []
    for row in draw.sample(pool, draw.randrange(1, 4)):
        away = draw.choice((-1, 1)) * draw.uniform(1, 5) * HOUR
        args = {key: value for key, value in row["args"].items() if key != "correlation"}
        strays.append({**row, "ts": round(row["ts"] + away, 3), "dur": 0.5, "args": args, "_step": None})
    if draw.random() < 0.5:
        return of_rows(made, [*made.rows, *strays], everything(made))
    return of_rows(made, [*strays, *made.rows], everything(made))


@kind("a kernel that lasts 1.6 s", r"outlast|longer|lasts|overlap|1\.6|same stream|beyond|clipped|too long")
def _endless(made: Made, draw: random.Random) -> Damaged | None:
    rows = device_of(made, "kernel")
    if not rows:
        return None
    row = draw.choice(rows)
    if not any(each["tid"] == row["tid"] and each["pid"] == row["pid"] and each["ts"] > row["ts"] for each in rows):
        return None
    out = [{**each, "dur": 1.6e6} if each is row else each for each in made.rows]
    return of_rows(made, out, everything(made) - {number_of(each) for each in steps_of(made)
                                                 if each["_step"] == row["_step"]})  # fmt: skip


@kind("clocks apart", r"clock|apart|before (it|they|its|the)|early|skew|far|hours|offset|shift")
def _clocks(made: Made, draw: random.Random) -> Damaged | None:
    if not device_of(made):
        return None
    shift = draw.choice((-5000.0, 5000.0, -HOUR, HOUR))
    moved = (*DEVICE, "gpu_user_annotation")
    out = [{**row, "ts": round(row["ts"] + shift, 3)} if row["cat"] in moved else row for row in made.rows]
    return of_rows(made, out, (), shown=False)


# Several recordings in one file, and files that are not whole.

MERGED = r"process|merged|two|several|rank|recording|pid|document|host|ended|after the end|more than one"


def _other(made: Made, draw: random.Random) -> Made:
    shape = replace(made.shape, work=made.shape.work * draw.uniform(1.05, 1.6), name="another rank")
    return make(shape, draw.randrange(2**30))


def _merged(pids: Sequence[tuple[object, object]], *, told_apart: bool) -> Callable:
    """Two processes with these (host, device) numbers, of which the second has another offset of its clock."""

    def apply(made: Made, draw: random.Random) -> Damaged:
        both = made, _other(made, draw)
        out = []
        for each, (host, device) in zip(both, pids, strict=True):
            for row in each.rows:
                on_device = row["cat"] in (*DEVICE, "gpu_user_annotation")
                if row["cat"] == "overhead":
                    out.append(row)
                    continue
                pid = row["pid"] if on_device and device is None else device if on_device else host
                out.append({**row, "pid": pid})
        if draw.random() < 0.5:
            out.sort(key=lambda row: row["ts"])
        intact = tuple(everything(each) for each in both)
        return Damaged(made.text(out), tuple(each.truth for each in both), intact, told_apart)

    return apply


kind("two processes, numbers for pids", MERGED)(_merged(((4000, 0), (4001, 1)), told_apart=True))
kind("two processes on device 0", MERGED)(_merged(((4000, None), (4001, None)), told_apart=False))
kind("two processes, text for pids", MERGED)(
    _merged((("rank 0 CPU", "rank 0 GPU"), ("rank 1 CPU", "rank 1 GPU")), told_apart=True)
)
kind("two processes with one pid", MERGED)(_merged(((1, None), (1, None)), told_apart=False))


@kind("ranks that perfdl wrote as one trace", MERGED)
def _written(made: Made, draw: random.Random) -> Damaged:
    both = made, _other(made, draw)
    with tempfile.TemporaryDirectory() as name:
        for rank, each in enumerate(both):
            shape = replace(each.shape, rank=rank)
            Path(name, f"{rank}.json").write_text(replace(each, shape=shape).text(), encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cli.main(["trace", f"{name}/0.json", f"{name}/1.json", "--trace", f"{name}/all.json"])
        text = Path(name, "all.json").read_text(encoding="utf-8")
    return Damaged(text, tuple(each.truth for each in both), tuple(everything(each) for each in both))


@kind("two JSON documents in one file", MERGED + r"|JSON")
def _two_documents(made: Made, draw: random.Random) -> Damaged:
    other = _other(made, draw)
    text = made.text() + draw.choice(("\n", "", "\n\n")) + other.text()
    return Damaged(text, (made.truth, other.truth), (everything(made), everything(other)), shown=False)


@kind("truncated file", r"truncat|incomplete|cut|ends|closing|damaged|stopp")
def _truncated(made: Made, draw: random.Random) -> Damaged | None:
    text = made.text()
    # By category: the device's rows are the last ones.
    begin = text.index('"cat": "kernel"' if made.shape.device and made.shape.grouped else '"cat"')
    at = begin + round(draw.uniform(0.3, 0.97) * (len(text) - begin))
    place = text.index('"traceEvents": [') + len('"traceEvents": [')
    whole = text.rfind("}, {", 0, at)
    kept = len([row for row in json.loads(f"[{text[place : whole + 1]}]") if row["ph"] == "X"])
    lost = {id(row) for row in made.rows[kept:]}
    starts = {row["_step"] for row in made.rows[kept:]}
    return Damaged(text[:at], (made.truth,), (untouched(made, lost) - starts,))


@kind("rows without a category", r"categor|unknown|not recognized|uncategor|no cat")
def _no_category(made: Made, draw: random.Random) -> Damaged | None:
    rows = device_of(made)
    if not rows:
        return None
    chosen = rows if draw.random() < 0.5 else some(rows, 0.3, draw)
    touched = {id(row) for row in chosen}
    out = [{key: value for key, value in row.items() if key != "cat"} if id(row) in touched else row
           for row in made.rows]  # fmt: skip
    if draw.random() < 0.5:
        # As vendors name them that write no categories; kineto only labels the process as GPU 0.
        for pid in sorted({row["pid"] for row in rows}):
            named = {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0}
            out.append({**named, "args": {"name": f"GPU {pid}"}})
    return of_rows(made, out, untouched(made, touched))


@kind("all rows twice", r"twice|duplicat|doubl|repeat|same event|overlap|annotated")
def _all_twice(made: Made, draw: random.Random) -> Damaged:
    if draw.random() < 0.5:
        return of_rows(made, [*made.rows, *made.rows], everything(made))
    return of_rows(made, [row for row in made.rows for _ in range(2)], everything(made))


def case(seed: int) -> tuple[Damage, Made, Damaged]:
    """A damaged trace of this seed: the kinds take turns, and the job is drawn until it can be damaged so."""
    damage = KINDS[seed % len(KINDS)]
    draw = random.Random(seed)
    for _ in range(200):
        made = undamaged(draw)
        done = damage.apply(made, draw)
        if done is not None:
            return damage, made, done
    raise ValueError(f"no job can be damaged so: {damage.kind}")


def undamaged(draw: random.Random) -> Made:
    """A job of any kind."""
    return make(drawn(draw.choice(SHAPES), draw), draw.randrange(2**30))


def by_name(words: str) -> re.Pattern[str]:
    """The pattern of a damage's words."""
    return re.compile(words, re.IGNORECASE)


def undamaged_case(seed: int) -> Made:
    """The undamaged trace of this seed: the kinds of jobs take turns."""
    draw = random.Random(seed)
    return make(drawn(SHAPES[seed % len(SHAPES)], draw), draw.randrange(2**30))


__all__ = ["KINDS", "Damage", "Damaged", "Made", "Truth", "by_name", "case", "undamaged_case"]
