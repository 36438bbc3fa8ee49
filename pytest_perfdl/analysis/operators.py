"""Operators of each step: how many, which in which order, and their self time on the host."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from pytest_perfdl.analysis.communication import covered
from pytest_perfdl.analysis.nesting import ownership
from pytest_perfdl.analysis.steps import Steps
from pytest_perfdl.analysis.threads import Thread, input_rows, on_thread
from pytest_perfdl.trace.model import Category, Trace


class _Shapes(msgspec.Struct, gc=False):
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))


@dataclass(frozen=True, slots=True, eq=False)
class ThreadOperators:
    """The operators of one thread that start inside a step, and the self time of its operators.

    Time inside an input annotation of the thread belongs to the input, not to the operators that run in it.
    """

    names: tuple[Mapping[str, int], ...]
    """How often each operator starts in each step."""
    digests: tuple[str, ...]
    """Digest of the sequence of (name, shapes) of each step, outside the input."""
    self_ns: Mapping[str, int]
    """Self time by operator, clipped to the steps and summed over them."""
    step_self_ns: tuple[int, ...]
    """Self time of all operators in each step."""
    overlapping: int
    """Operators of the thread that began inside another and ended after it."""


def thread_operators(trace: Trace, steps: Steps, thread: Thread) -> ThreadOperators:
    """Count and time the operators of one thread inside the steps' time on the host.

    Annotations (ProfilerStep, record_function ranges, `Optimizer.step#...`) are not operators and take no time.
    Where operators overlap without nesting, a moment belongs to the one that started last (see `ownership`).
    """
    rows = on_thread(trace, trace.rows(Category.CPU_OP), thread)
    names: list[Counter[str]] = [Counter() for _ in steps.windows]
    sequences = [hashlib.blake2b(digest_size=8) for _ in steps.windows]
    waiting = covered(trace, on_thread(trace, input_rows(trace), thread))
    step = steps.of_host_time(trace.start[rows]).tolist()
    in_input = waiting.contains(trace.start[rows]).tolist()
    shapes = trace.decode_args(rows, _Shapes)
    for row, index, fetches, shape in zip(rows.tolist(), step, in_input, shapes, strict=True):
        if index >= 0:
            name = trace.name_of(row)
            names[index][name] += 1
            if not fetches:
                sequences[index].update(b"%b\0%b\n" % (name.encode(), b"".join(bytes(shape.dims).split())))
    owned = ownership(trace.start[rows], trace.end[rows])
    per_piece = np.zeros(len(owned.owner), dtype=np.int64)
    per_step = []
    for index in range(len(steps.windows)):
        inside = steps.host_time(index).difference(waiting).within(owned.start, owned.end)
        per_piece += inside
        per_step.append(int(inside.sum()))
    by_name: Counter[str] = Counter()
    for owner, ns in zip(owned.owner.tolist(), per_piece.tolist(), strict=True):
        by_name[trace.name_of(rows[owner])] += ns
    return ThreadOperators(
        names=tuple(names),
        digests=tuple(sequence.hexdigest() for sequence in sequences),
        self_ns=by_name,
        step_self_ns=tuple(per_step),
        overlapping=owned.overlapping,
    )
