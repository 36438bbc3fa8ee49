"""`perfdl diff` of two halves of one pipelined job: equal work must not be judged, 10 % more must be.

A job runs on, and the profiler looks at it twice. Each half is a file of its own that begins in mid-stream: the device
is still busy with steps before it. What is planted makes all kernels of the second half longer.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from damages import drawn, make
from oracle import run
from unit.trace.data.synthetic_steps import SHAPES, Made, Row, is_step, number_of

JOBS = 20
PLANTED = 1.10
ENOUGH = 18
"""Of the planted changes, so many must be found."""


def job(seed: int, later_work: float) -> Made:
    """A pipelined job that is profiled twice, for 4 to 12 steps."""
    draw = random.Random(seed)
    base = draw.choice([shape for shape in SHAPES if shape.device and shape.sessions == 1 and not shape.captures])
    shape = drawn(replace(base, ahead=1.0), draw)
    steps = draw.choice((4, 6, 8, 12))
    if shape.accumulate > 1 or shape.log_every:
        # Whole periods, as one compares like with like.
        period = shape.accumulate if shape.accumulate > 1 else shape.log_every
        steps = period * max(2, steps // period)
    shape = replace(shape, ahead=draw.choice((0.5, 1.0, 2.0, 3.0)), work=draw.uniform(2.5, 4), sessions=2, first=1)
    return make(replace(shape, steps=steps, later_work=later_work), seed)


def halves(made: Made) -> Iterator[list[Row]]:
    """The rows of either session, what was carried over into it included."""
    steps = sorted(filter(is_step, made.rows), key=lambda row: row["ts"])
    gap = next(after["ts"] for before, after in pairwise(steps) if number_of(after) != number_of(before) + 1)
    # Sessions lie seconds apart: what was carried over lies right before the second one.
    border = gap - 5e5
    yield [row for row in made.rows if row["ts"] < border]
    yield [row for row in made.rows if row["ts"] >= border]


def compared(seed: int, later_work: float, folder: Path) -> tuple[str, float | None, float]:
    """Verdict, width of the interval as a share of the step, and the change that is found."""
    made = job(seed, later_work)
    files = [folder / f"half{number}.json" for number in (1, 2)]
    for file, rows in zip(files, halves(made), strict=True):
        file.write_text(made.text(rows), encoding="utf-8")
    ran = run("diff", "--json", *map(str, files))
    if ran.trace or not isinstance(ran.out, dict):
        return (ran.trace or f"exit code {ran.code}").strip().splitlines()[-1], None, 0.0
    step: dict[str, Any] = ran.out["step"]
    width = None if step["ci95_ns"] is None else (step["ci95_ns"][1] - step["ci95_ns"][0]) / step["base_ns"]
    return str(ran.out["verdict"]), width, step["delta_ns"] / step["base_ns"]


HEAD = ("second half", "jobs", "verdicts", "median width of the interval", "widest", "median change found")


def rows(folder: Path, failed: list[str]) -> Iterator[list[str]]:
    """Verdicts and widths with and without a change; what must not be goes to `failed`."""
    for name, later_work in (("the same work", 1.0), (f"{PLANTED - 1:+.0%}", PLANTED)):
        found = [compared(seed, later_work, folder) for seed in range(JOBS)]
        verdicts = Counter(verdict for verdict, *_ in found)
        widths = [width for _, width, _ in found if width is not None]
        said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        middle = statistics.median(widths) if widths else float("nan")
        change = statistics.median(each for *_, each in found)
        yield [name, str(len(found)), said, f"{middle:.2%}", f"{max(widths, default=0):.2%}", f"{change:+.2%}"]
        if later_work == 1.0 and not verdicts.keys() <= {"unchanged", "inconclusive"}:
            failed.append(f"halves of equal work: {said}")
        if later_work != 1.0 and verdicts["regressed"] < ENOUGH:
            failed.append(f"halves with {name}: {said}")
