"""Kernels and operators held against the baseline one by one, however little of the step each is.

A kernel may be half as slow again and move the step by no more than its noise. So besides the step every row of
it is held to the limit `per_kernel`: the screen's rows say which are suspected (`suspected`), rounds of paired
processes confirm them, all of a test's at once (`signflip`), and what they find becomes a verdict of its own
beside those of the metrics (`verdicts`). A row whose count changed is no matter of time: that is `changed`.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr

from pytest_perfdl.judge import wording
from pytest_perfdl.judge.counted import same
from pytest_perfdl.judge.sequential import holm
from pytest_perfdl.judge.signflip import LEAST_SHARE, KernelTest, family
from pytest_perfdl.judge.timed import SD_FLOOR
from pytest_perfdl.judge.verdict import MetricVerdict
from pytest_perfdl.limits import PER_KERNEL
from pytest_perfdl.record import metric_name, row_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_perfdl.judge.signflip import SlowKernel
    from pytest_perfdl.limits import Limit, Limits
    from pytest_perfdl.record import Call, Record, Row

SCREEN_SHARE = 0.002
"""Rows with a smaller part of the step are not even suspected."""
SCREEN_ALPHA = 0.01
"""Chance that any row of an unchanged test is suspected, for normal noise: sets cost and power only. Tails are
heavier than normal ones, and a suspect costs rounds: statistics.md, section 3, measured 0 to 5 % for this rule."""
SCREEN_LIMIT = 0.10
"""A row must be slower by this much, whatever its limit, before one repeat makes it suspect."""
REPEATS_FOR_SCREEN = 5
"""Fewer stored repeats say too little about how much a row differs from process to process."""


@dataclass(frozen=True, slots=True)
class Family:
    """The rows of a test that rounds can judge, each with the limit that it is held to."""

    limits: Mapping[str, Limit]
    """By the row's full name (`record.row_name`)."""

    def test(self, alpha: float) -> KernelTest | None:
        """The sequential test of them all; `None` when there are none."""
        if not self.limits:
            return None
        return KernelTest(
            tuple(self.limits), alpha, delta=tuple(limit.relative or 0.0 for limit in self.limits.values())
        )


def tested(new: Record, base: Record, limits: Limits) -> Family:
    """The kernels and operators on both sides, as often, with at least `LEAST_SHARE` of the step on the mean of both.

    The mean of both sides does not depend on which of them is which, as `signflip.family` demands.
    """
    found: dict[str, Limit] = {}
    for call, limit in _calls(new, limits):
        pairs = _pairs(call, _call_of(base, call.name))
        shares = {name: (_share(old, before) + _share(now, call)) / 2 for name, (old, now, before) in pairs.items()}
        found |= dict.fromkeys(family(shares), limit)
    return Family(found)


def suspected(new: Record, base: Record, limits: Limits) -> tuple[str, ...]:
    """Full names of the rows that are slower than the baseline's by what its repeats differ by, largest first.

    Statistics.md, section 5, stage 1: each process' common factor, the median over its rows of the log ratio to
    the baseline's mean, is taken off; then the one-sided t of the new repeats against the K stored ones, with the
    spread of the stored ones (at least `timed.SD_FLOOR`) and K - 1 degrees of freedom, and Holm's procedure over all
    rows at `SCREEN_ALPHA`. What is left must be past its limit and `SCREEN_LIMIT`, and its change at least
    `signflip.LEAST_SHARE` of the step.
    """
    if base.repeats < REPEATS_FOR_SCREEN:
        return ()
    candidates: list[tuple[float, str, bool, float]] = []
    for call, limit in _calls(new, limits):
        before = _call_of(base, call.name)
        if before is None:
            continue
        pairs = {
            name: (old, now)
            for name, (old, now, _) in _pairs(call, before).items()
            if _share(old, before) >= SCREEN_SHARE and min(*old.ns, *now.ns) > 0
        }
        if not pairs:
            continue
        step = statistics.fmean(before.profiled_ns)
        means = {name: statistics.fmean(map(math.log, old.ns)) for name, (old, _) in pairs.items()}
        stored = _without_common([[math.log(ns) - means[name] for ns in old.ns] for name, (old, _) in pairs.items()])
        fresh = _without_common([[math.log(ns) - means[name] for ns in now.ns] for name, (_, now) in pairs.items()])
        for (name, (old, _)), spread, moved in zip(pairs.items(), stored, fresh, strict=True):
            error = max(statistics.stdev(spread), SD_FLOOR) * math.sqrt(1 / len(spread) + 1 / len(moved))
            effect = statistics.fmean(moved)
            past = effect > math.log1p(max(limit.relative or 0.0, SCREEN_LIMIT))
            cost = math.expm1(effect) * statistics.fmean(old.ns) / step
            p = float(stdtr(len(spread) - 1, -effect / error))
            candidates.append((p, name, past and cost >= LEAST_SHARE, cost))
    chosen = holm(np.array([candidate[0] for candidate in candidates]), SCREEN_ALPHA).tolist()
    found = [(-cost, name) for (_, name, told, cost), kept in zip(candidates, chosen, strict=True) if kept and told]
    return tuple(name for _, name in sorted(found))


def regressed(kernel: SlowKernel, limit: Limit) -> MetricVerdict:
    """The verdict on a row that rounds found slower."""
    shown = MetricVerdict(
        name=kernel.name,
        kind="timed",
        unit="ns",
        better="lower",
        base=kernel.base_ns,
        new=kernel.head_ns,
        effect=kernel.effect,
        ci95=kernel.ci95,
        limit=limit.text,
        verdict="regressed",
        times_over=kernel.effect / limit.relative if limit.relative else None,
        evidence="paired",
        rounds=kernel.rounds,
        of_step=False,
    )
    return replace(shown, reason=wording.interval(shown, wording.paired(kernel.rounds)))


def undecided(name: str, limit: Limit, rounds: int) -> MetricVerdict:
    """The verdict on a row that the screen suspected and that so many rounds neither confirmed nor cleared."""
    return MetricVerdict(
        name=name,
        kind="timed",
        unit="ns",
        better="lower",
        base=None,
        new=None,
        limit=limit.text,
        verdict="inconclusive",
        reason=f"suspected by the screen, neither confirmed nor cleared by {wording.paired(rounds)}",
        evidence="paired",
        rounds=rounds,
        of_step=False,
    )


def _calls(new: Record, limits: Limits) -> list[tuple[Call, Limit]]:
    """The calls whose rows are held to a limit."""
    found = [(call, limits.for_metric(metric_name(call.name, PER_KERNEL))) for call in new.calls]
    return [(call, limit) for call, limit in found if limit is not None]


def _call_of(record: Record, name: str) -> Call | None:
    return next((call for call in record.calls if call.name == name), None)


def _pairs(new: Call, base: Call | None) -> dict[str, tuple[Row, Row, Call]]:
    """Base's and new's row and base's call by full name, for kernels and operators that both have as often."""
    if base is None:
        return {}
    before = {(row.kind, row.name): row for row in base.rows}
    return {
        row_name(new.name, row.kind, row.name): (old, row, base)
        for row in new.rows
        if row.kind != "idle" and (old := before.get((row.kind, row.name))) and same(old.count, row.count)
    }


def _share(row: Row, call: Call) -> float:
    return statistics.fmean(row.ns) / statistics.fmean(call.profiled_ns)


def _without_common(logs: Sequence[Sequence[float]]) -> list[list[float]]:
    """Log ratios, one list a row, with each process' median over the rows taken off."""
    common = [statistics.median(process) for process in zip(*logs, strict=True)]
    return [[value - factor for value, factor in zip(row, common, strict=True)] for row in logs]
