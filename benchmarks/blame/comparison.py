"""What the plugin says of measured rounds: its own account in pairs, causes in their order, modules and lines."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from scipy.special import stdtrit
from scoring import SHOWN, Change, Comparison, Named

from pytest_perfdl.judge.blame import diff_rounds, find_causes, locate_causes
from pytest_perfdl.judge.round_data import Round, log_ratios, values

if TYPE_CHECKING:
    from measuring import Measured

    from pytest_perfdl.diff import Diff
    from pytest_perfdl.results.verdict import Cause

METRIC = "step_p50"
"""What the effect without the profiler is measured by: single interruptions do not move it."""


def judged(measured: Measured) -> Comparison:
    """Ask what changed."""
    diffs = diff_rounds(measured.rounds)
    timed = _timed(measured.rounds)
    # As the plugin, which asks only once the timed step has changed for certain.
    certain = timed.ci95 is not None and timed.ci95[0] * timed.ci95[1] > 0
    leaning = dict.fromkeys(diffs, timed.effect)
    blame = find_causes(diffs, leaning if certain else None, leaning=leaning)
    if blame:
        # Without a part that changed the plugin looks for no lines either.
        blame = locate_causes(blame, measured.stacks["base"], measured.stacks["head"])
    (diff,) = diffs.values()
    return Comparison(
        task=measured.task,
        rounds=len(measured.rounds),
        timed=timed,
        profiled=_profiled(diff),
        verdict=diff.verdict(),
        causes=tuple(map(_named, blame[:SHOWN])),
        named=len(blame),
        certain=sum(change.certain for change in diff.changes),
        coverage=diff.coverage,
        residual_ns=diff.residual_ns,
        detectable=None if diff.detectable_ns is None else diff.detectable_ns / max(diff.base_ns, 1),
        wanted_line=measured.wanted_line,
        seconds=measured.seconds,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _timed(rounds: Sequence[Round]) -> Change:
    """The effect without the profiler, with Student's interval over rounds."""
    base, new = (float(each.mean()) for each in values(rounds, METRIC))
    logs = log_ratios(rounds, METRIC).tolist()
    middle = statistics.fmean(logs)
    half = float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Change(base, new, math.expm1(middle), (math.expm1(middle - half), math.expm1(middle + half)))


def _profiled(diff: Diff) -> Change:
    step = max(diff.base_ns, 1)
    ends = None if diff.interval is None else (diff.interval[0] / step, diff.interval[1] / step)
    return Change(diff.base_ns, diff.new_ns, diff.delta_ns / step, ends)


def _named(cause: Cause) -> Named:
    return Named(
        kind=cause.kind,
        name=cause.name,
        module=cause.module,
        line=cause.line,
        delta_ns=cause.delta_ns,
        share=cause.share,
        effects=dict(cause.effects),
    )
