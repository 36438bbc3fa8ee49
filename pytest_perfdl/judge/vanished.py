"""Whether a step that got faster still does its work: a result that is kept from the first step is no speed-up.

The first step of a process builds what later steps use (tables, states of optimizers, compiled code, tuned kernels), so
it may always do more. Its work vanished only if nearly all that the baseline's steps do is missing in the later steps,
most of it was done by the first step, and nothing came in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_perfdl.model.units import format_percent, some

DONE = 0.5
"""Part of the baseline's work that the first step must have done, and the later ones not."""
KEPT_TIME, KEPT_CALLS, KEPT_FLOPS = 0.25, 0.1, 0.25
"""Parts of it that the later steps may still do, of its time, its calls and its FLOPs. A step that only keeps a table,
however large, still runs the operators that its input goes through; one that makes a single large call of many small
ones still does the arithmetic. Calls and FLOPs are exact, where times of profiled steps are not."""
REPLACED = 0.5
"""Part of the later steps' time in operators that the baseline does not have, from which on these replaced its work."""
LEAST_REPLACED = 0.05
"""Part of the baseline's time that these operators must take."""
_COMPILED = re.compile(r"Compiled|inductor|triton|_cpp_fused|TensorExpr|prim::|Graph", re.IGNORECASE)
"""Operators and kernels of compiled code."""
_KEEPING = re.compile(
    r"(?:aten::)?_?(?:clone|copy_?|to_copy|to|detach_?|alias|view|as_strided|empty\w*|resize\w*|fill_|zero_|equal|eq|ne|"
    r"all|any|allclose|isclose|is_nonzero|item|local_scalar_dense|lift_fresh|set_data)"
)
"""Operators that compare an input with the last one, or hand out a copy of a result: they replace no work."""

Rows = Mapping[str, tuple[float, float]]
"""By name of an operator or kernel, how often a step runs it and how long that takes, in nanoseconds."""


def vanished(base: Rows, first: Rows, later: Rows, flops: float | None = None) -> str:
    """What the first step did and the later ones do not, in words; empty if the later steps do their work.

    Parameters
    ----------
    base
        The baseline's steps, without their first ones.
    first, later
        The current code's first step of a process, and later steps. All three of kernels where a step has some, else of
        operators.
    flops
        Counted FLOPs of the later steps over those of the baseline's; `None` where these have none.
    """
    whole = sum(ns for _, ns in base.values())
    if not whole:
        return ""
    done: dict[str, float] = {}
    working = {name: count for name, (count, _) in base.items() if not _KEEPING.fullmatch(name)}
    kept = calls = 0.0
    for name, (count, ns) in base.items():
        left = min(later.get(name, (0.0, 0.0))[0], count)
        kept += ns * left / count
        calls += left if name in working else 0
        done[name] = ns * max(0.0, min(first.get(name, (0.0, 0.0))[0], count) - left) / count
    share = sum(done.values()) / whole
    is_kept = kept > KEPT_TIME * whole or calls > KEPT_CALLS * sum(working.values())
    is_kept = is_kept or (flops is not None and flops > KEPT_FLOPS)
    if share < DONE or is_kept or _is_replaced(base, later):
        return ""
    names = some([name for name in sorted(done, key=lambda each: -done[each]) if done[name] > 0])
    return (
        f"only the first step does {format_percent(share, signed=False)} of the baseline's work ({names}), so later "
        "steps may return a kept result: give each step a new input, or measure what a first call takes"
    )


def _is_replaced(base: Rows, later: Rows) -> bool:
    """Whether other operators do the work."""
    if any(_COMPILED.search(name) for name in later):
        return True
    new = sum(ns for name, (_, ns) in later.items() if name not in base and not _KEEPING.fullmatch(name))
    least = LEAST_REPLACED * sum(ns for _, ns in base.values())
    return new > max(least, REPLACED * sum(ns for _, ns in later.values()))
