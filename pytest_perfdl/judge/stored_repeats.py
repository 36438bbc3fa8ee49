"""Verdicts on times without paired rounds: fresh repeats against the recorded ones.

A time is `regressed` if the exact one-sided rank test of the fresh repeats against the baseline's, worsened by the
whole limit, gives `UNPAIRED_ALPHA` or less. That assumes that both sets are exchangeable, which processes of different
days are not quite: with a drift of 3 to 5 % between recordings and ten recorded repeats, five fresh ones have a
false-positive rate of 0 to 0.4 % per test at a limit of 10 %, and 3 to 5 % at a limit of 3 % (statistics.md, section
8). So the built-in limit is 10 %, and the result is labeled "unpaired".
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.judge import budget, log_ratios, reasons
from pytest_perfdl.judge.untimed import baseline_verdict, broken_reason, judgement, open_times, outdated, with_modes
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.units import plural
from pytest_perfdl.results.run import Sensitivity
from pytest_perfdl.stats import quantiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_perfdl.judge.round_data import Round
    from pytest_perfdl.model.limits import Limit, Limits
    from pytest_perfdl.model.record import Finding, Record, Series
    from pytest_perfdl.results.verdict import Judgement, MetricVerdict, Verdict


# Machine drift: the speed of the machine now and when the baseline was recorded, from the reference load.
#
# The reference load (`machine.reference_load`) is a fixed workload that is timed around every repeat, so a change of
# its time is a change of the machine. It is reported when current times are compared with recorded ones, but decides
# nothing: a step that waits for memory depends less on the CPU clock than the reference load, one that waits for a
# device not at all.


LEAST = 0.05
"""Minimum change of the reference load's time that is reported."""
ALPHA = 0.01
"""Significance level of a change, given the spread of the baseline's reference times."""
_ON_DEVICES = frozenset({"kernel_time"})
"""Metrics that do not depend on CPU speed."""
_TIMES = frozenset({"ns", "us", "µs", "ms", "s", "min"})
"""Units of built-in and custom times."""


def find_drift(base: Record, new: Record) -> float | None:
    """Log ratio of the reference load's time, now to then: above 0 the machine is slower now.

    `None` where it is as fast as it was, and without a reference on a side.

    The reference times are compared like a metric (`log_ratios.compare`): the mean of their logarithms must have moved
    by more than `LEAST`, and with a one-sided p below `ALPHA` in the direction in which it did.
    """
    before, now = _known(base.reference_ns), _known(new.reference_ns)
    if not before or not now:
        return None
    found = log_ratios.compare(before, now)
    if math.expm1(abs(found.log_ratio)) <= LEAST or found.p_above(1 if found.log_ratio > 0 else -1) >= ALPHA:
        return None
    return found.log_ratio


def follows(metric: MetricVerdict) -> int:
    """How a metric follows the reference load's time: 1 with it (a time), -1 against it (a rate), 0 not at all."""
    if metric.kind != "timed" or general(metric.name) in _ON_DEVICES:
        return 0
    return 1 if metric.unit in _TIMES else -1 if metric.unit.endswith("/s") else 0


def _known(times: Iterable[int | None]) -> list[int]:
    return [ns for ns in times if ns is not None]


UNPAIRED_ALPHA = 0.01
MOST_REPEATS = 5
"""Fresh repeats that are drawn at most."""
SURELY_WORSE = 0.03
"""A worsening that is surely above this, and perhaps past the limit, is worth a warning."""


def confirm(
    found: Judgement,
    base: Record | None,
    fresh: Record,
    limits: Limits,
    *,
    others: Sequence[Record] = (),
    remaining: int = 0,
) -> Judgement:
    """Judge the times that are open, all of them.

    Parameters
    ----------
    found
        What `standing` returned of the first of the fresh repeats; verdicts on other metrics are kept.
    base, others
        The baseline that it used, and those under other keys.
    fresh
        All repeats of now.
    limits
        As for `standing`.
    remaining
        Repeats that were planned but not drawn because `is_settled` said so: they could not have changed the verdict.

    Returns
    -------
    Judgement
        A time becomes `regressed` past its limit (base and fresh being exchangeable: see above) or when every fresh
        repeat is past its budget; `improved` when the same test with the sides exchanged says so; `unchanged` when the
        interval ends within the limit; `suspect` when it begins above `SURELY_WORSE`; else `inconclusive`. Several
        metrics are tested without a correction.
    """
    if broken := broken_reason(fresh):
        return replace(found, verdict="invalid", reason=broken, integrity=_join_findings(found, fresh), blame=())
    times = open_times(found, limits)
    metrics = tuple(
        _confirm_metric(metric, base, fresh, limits, remaining)
        if metric.name in times
        else _count_again(metric, base, fresh, limits)
        for metric in found.metrics
    )
    settled_ = judgement(fresh, base, metrics, *baseline_verdict(fresh, base, others))
    return replace(settled_, integrity=_join_findings(found, fresh))


def is_settled(found: Judgement, base: Record | None, fresh: Record, remaining: int, limits: Limits) -> bool:
    """Whether nothing that `remaining` further repeats could show would make any time `regressed` or `improved`.

    Stopping then is free: the final test would not reject whatever came, so leaving it out removes no rejection and
    adds none, and the test keeps its level. Stopping early because a test already rejects would be another matter (each
    look is another chance of a false alarm), so that is never answered with `True`.
    """
    measured = fresh.metrics()
    return not any(
        _may_decide(name, measured[name], base, fresh, remaining, limits)
        for name in open_times(found, limits)
        if name in measured
    )


def judge_environment(base: Record, rounds: Sequence[Round], limits: Limits) -> tuple[MetricVerdict, ...]:
    """What the environment does to the times of the same code: those of the base's side now against the stored ones.

    `base` is the baseline, of this machine and another environment, and its code the base of the `rounds`; `limits` are
    those of unpaired times.
    """
    found = []
    for name, before in base.metrics().items():
        limit = limits.for_metric(name)
        if before.kind != "timed" or limit is None or any(name not in each.base for each in rounds):
            continue
        now = replace(before, values=tuple(each.base[name] for each in rounds))
        shown = replace(log_ratios.make_metric(name, before, now), limit=limit)
        found.append(_test_with_waiver(shown, before, now, limit, 0, limits))
    return tuple(found)


def sensitivity(base: Record, limits: Limits) -> Sensitivity | None:
    """What the baseline's times can show later without paired rounds; of the call that shows least.

    The smallest slowdown for which the rank test of `MOST_REPEATS` fresh repeats gives `UNPAIRED_ALPHA` or less, if
    they vary as the stored ones do: they are drawn from these, again and again, and the slowdown is what four of five
    draws need. `None` where no time of a step has a limit.
    """
    found = []
    for name, series in base.metrics().items():
        limit, unpaired = limits.for_metric(name), limits.unpaired().for_metric(name)
        steps = general(name) == "step_time" or (
            general(name) == "block_time" and name.replace("block_time", "step_time") not in base.metrics()
        )
        if steps and limit and unpaired and limit.relative is not None and log_ratios.are_positive(series, series):
            found.append(_sensitivity(name, series, unpaired, limit.relative))
    return max(found, key=lambda each: math.inf if each.detectable is None else each.detectable, default=None)


_DRAWS = 200
_POWER = 0.8


def _sensitivity(name: str, base: Series, limit: Limit, paired: float) -> Sensitivity:
    stored = len(base.values)
    all_pairs = range(MOST_REPEATS * stored + 1)
    needed = next((pairs for pairs in all_pairs if _rejects(pairs, MOST_REPEATS, stored)), None)
    detectable = None
    if needed is not None:
        allowed = [value + limit.allowed(value, base.unit) for value in base.values]
        draw = random.Random(name)
        slowdowns = []
        for _ in range(_DRAWS):
            fresh = draw.choices(base.values, k=MOST_REPEATS)
            # A pair is past the limit from this slowdown on; the test needs so many of them.
            past = sorted(bound / value - 1 for value in fresh for bound in allowed)
            slowdowns.append(past[needed - 1])
        detectable = sorted(slowdowns)[int(_POWER * _DRAWS)]
    return Sensitivity(
        metric=name,
        spread=statistics.stdev(base.values) / statistics.fmean(base.values) if stored > 1 else 0.0,
        detectable=detectable,
        processes=stored,
        needed=quantiles.needed(MOST_REPEATS, UNPAIRED_ALPHA),
        limit=paired,
    )


def _rejects(pairs: int, drawn: int, stored: int) -> bool:
    return quantiles.p_at_least(pairs, drawn, stored) <= UNPAIRED_ALPHA


def _may_decide(name: str, series: Series, base: Record | None, fresh: Record, remaining: int, limits: Limits) -> bool:
    bound = limits.budget_for(name)
    if bound is not None and budget.count_past(series, bound) == len(series.values):
        return True
    before, limit = _before(name, base, fresh), limits.for_metric(name)
    if before is None or limit is None or not log_ratios.comparable(before, series, limit):
        return False
    drawn, stored = len(series.values), len(before.values)
    best = max(_pairs_past(before, series, limit), _pairs_past(series, before, limit)) + remaining * stored
    return _rejects(best, drawn + remaining, stored)


def _confirm_metric(
    metric: MetricVerdict, base: Record | None, fresh: Record, limits: Limits, remaining: int
) -> MetricVerdict:
    series = fresh.metrics().get(metric.name)
    if series is None:
        return replace(metric, reason="not measured again")
    before, limit = _before(metric.name, base, fresh), limits.for_metric(metric.name)
    metric = replace(metric, new=log_ratios.middle(series))
    if base is not None and before is not None and limit is not None and metric.verdict is None:
        found = _test_with_waiver(replace(metric, limit=limit), before, series, limit, remaining, limits)
        metric = with_modes(_with_machine(found, base, fresh), base, fresh)
    return budget.hold(metric, series, limits)


def _count_again(metric: MetricVerdict, base: Record | None, fresh: Record, limits: Limits) -> MetricVerdict:
    """A count with what all repeats counted: the first one alone has decided until now."""
    before, series = _before(metric.name, base, fresh), fresh.metrics().get(metric.name)
    if metric.kind != "counted" or before is None or series is None:
        return metric
    return reasons.judge_again(metric, before.values, series.values[1:], limits.for_metric(metric.name))


def _with_machine(metric: MetricVerdict, base: Record, new: Record) -> MetricVerdict:
    """Add a remark on machine drift to a time that is not unchanged."""
    if metric.verdict == "unchanged" or not follows(metric):
        return metric
    moved = find_drift(base, new)
    return metric if moved is None else reasons.with_remark(metric, reasons.machine(moved))


def _test(metric: MetricVerdict, base: Series, fresh: Series, limit: Limit, remaining: int) -> MetricVerdict:
    """The shifted rank test, with the Hodges-Lehmann estimate and the interval that inverts the test."""
    if not log_ratios.comparable(base, fresh, limit):
        return replace(metric, verdict="inconclusive", reason=log_ratios.NO_RATIO)
    if not log_ratios.are_positive(base, fresh):
        return _test_differences(metric, base, fresh, limit, remaining)
    drawn, stored = len(fresh.values), len(base.values)
    ratios = sorted(math.log(value / other) for value in fresh.values for other in base.values)
    center = statistics.median(ratios)
    exact = quantiles.shift_interval(ratios, drawn, stored)
    low, high = exact or log_ratios.compare(base.values, fresh.values).interval()
    past = log_ratios.log_limit(limit, log_ratios.middle(base), base)
    sign = 1 if base.better == "lower" else -1
    metric = log_ratios.with_change(metric, log_ratios.middle(fresh), center, (low, high))
    metric = replace(metric, evidence="unpaired")
    text = reasons.interval(metric, f"unpaired, {plural(drawn, 'process', 'processes')} vs. {stored} recorded")
    if _rejects(_pairs_past(base, fresh, limit), drawn, stored):
        over = abs(log_ratios.as_ratio(center)) / abs(log_ratios.as_ratio(sign * past)) if past else None
        return reasons.with_reason(replace(metric, verdict="regressed", times_over=over), text)
    if _rejects(_pairs_past(fresh, base, limit), drawn, stored):
        return reasons.with_reason(replace(metric, verdict="improved"), text)
    best, worst = sorted((sign * low, sign * high))
    surely = min(math.log1p(SURELY_WORSE), past)
    if worst <= past:
        return reasons.with_reason(replace(metric, verdict="unchanged"), text)
    verdict: Verdict = "suspect" if best > surely else "inconclusive"
    share = reasons.percent(log_ratios.worsening(surely, sign))
    why = (
        [f"worse than the baseline by more than {share}, but possibly within the limit"] if verdict == "suspect" else []
    )
    if few := _too_few(drawn + remaining, stored):
        why.append(few)
    elif verdict == "inconclusive":
        why.append(f"a slowdown of up to {reasons.percent(log_ratios.worsening(worst, sign))} cannot be excluded")
    return reasons.with_reason(replace(metric, verdict=verdict), text, "; ".join(why))


def _test_differences(
    metric: MetricVerdict, base: Series, fresh: Series, limit: Limit, remaining: int
) -> MetricVerdict:
    """The shifted rank test of values that have no ratio: an estimate and an interval are absent."""
    drawn, stored = len(fresh.values), len(base.values)
    past, pairs = _pairs_past(base, fresh, limit), drawn * stored
    verdict: Verdict = "unchanged" if past == 0 else "suspect" if past == pairs else "inconclusive"
    if _rejects(past, drawn, stored):
        verdict = "regressed"
    elif _rejects(_pairs_past(fresh, base, limit), drawn, stored):
        verdict = "improved"
    metric = replace(metric, base=log_ratios.middle(base), verdict=verdict, evidence="unpaired")
    text = reasons.without_ratio(metric, f"unpaired, {plural(drawn, 'process', 'processes')} vs. {stored} recorded")
    if verdict not in ("suspect", "inconclusive"):
        return reasons.with_reason(metric, text)
    some = f"past the limit in {past} of {pairs} pairs of processes" if past < pairs else ""
    return reasons.with_reason(metric, text, "; ".join(filter(None, (some, _too_few(drawn + remaining, stored)))))


def _too_few(drawn: int, stored: int) -> str:
    """That so many fresh repeats prove nothing against so few stored ones; empty if they can."""
    if quantiles.least_p(drawn, stored) <= UNPAIRED_ALPHA:
        return ""
    enough = quantiles.needed(drawn, UNPAIRED_ALPHA)
    return f"at least {enough} recorded processes are needed, but the baseline has {stored}"


def _test_with_waiver(
    metric: MetricVerdict, base: Series, fresh: Series, limit: Limit, remaining: int, limits: Limits
) -> MetricVerdict:
    """The test under the metric's limit, with the waiver that covers it."""

    def under(held: Limit) -> MetricVerdict:
        return _test(metric, base, fresh, held, remaining)

    return budget.apply_waiver(under(limit), limits, under)


def _pairs_past(base: Series, fresh: Series, limit: Limit) -> int:
    """U of the fresh values against the baseline's, each worsened by as much as the limit allows it.

    Adding the larger of both parts of a limit to every value is a monotone transformation of the baseline's
    distribution, so under any worsening within the limit the test keeps its level; rank tests need no
    logarithm.
    """
    sign = 1 if base.better == "lower" else -1
    allowed = [sign * value + limit.allowed(value, base.unit) for value in base.values]
    return quantiles.pairs_above([sign * value for value in fresh.values], allowed)


def _before(name: str, base: Record | None, fresh: Record) -> Series | None:
    """The baseline's series, unless the baseline is outdated."""
    before = None if base is None or outdated(base, fresh) else base.metrics().get(name)
    if before is not None and general(name) == "compile_time" and before.stable:
        # All repeats have what the first process measured.
        return replace(before, values=before.values[:1])
    return before


def _join_findings(found: Judgement, fresh: Record) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys((*found.integrity, *fresh.integrity)))
