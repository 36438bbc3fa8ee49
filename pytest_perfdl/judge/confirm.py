"""The unpaired confirmation of suspects: fresh repeats, drawn after the screen, against the stored ones.

A suspect is `regressed` when the exact one-sided rank test of the fresh repeats against the baseline's
repeats, each first worsened by the whole limit, gives `UNPAIRED_ALPHA` or less. That assumes that both sets
are exchangeable, which processes of different days are not quite: with a drift of 3 to 5 % between occasions
and ten stored repeats, five fresh ones raise 0 to 0.4 % false alarms a test at a limit of 10 %, and 3 to 5 %
at a limit of 3 % (statistics.md, section 8). Hence the built-in limit of 10 %, and the word "unpaired".
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from scipy.special import ndtri

from pytest_perfdl.judge import budget, ranks, timed, wording
from pytest_perfdl.judge.screen import broken_reason, judgement, outdated, with_machine
from pytest_perfdl.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_perfdl.judge.verdict import Judgement, MetricVerdict, Verdict
    from pytest_perfdl.limits import Limit, Limits
    from pytest_perfdl.record import Finding, Record, Series

UNPAIRED_ALPHA = 0.01
SURELY_WORSE = 0.03
"""A worsening that is surely above this is worth a warning, even where the limit is wider."""


def confirm(
    screened: Judgement, base: Record | None, fresh: Record, limits: Limits, *, remaining: int = 0
) -> Judgement:
    """Settle the suspects of a screen.

    Parameters
    ----------
    screened
        What `screen` returned; verdicts on other metrics are kept.
    base
        The baseline that the screen used.
    fresh
        Only repeats that were drawn after the screen: the one that raised the suspicion is no evidence.
    limits
        As for the screen.
    remaining
        Repeats that were planned but not drawn because `settled` said so. A verdict then does not ask for
        more repeats, since more could not have made it `regressed`.

    Returns
    -------
    Judgement
        A timed suspect becomes `regressed` past its limit (`base` and `fresh` being exchangeable: see above)
        or when every fresh repeat is past its budget; `unchanged` when the interval ends within the limit and
        begins at or below `SURELY_WORSE`; stays `suspect` when it begins above that, or when so few repeats
        cannot prove anything; else it is `inconclusive`. Several metrics are tested without a correction.
    """
    if broken := broken_reason(fresh):
        findings = _joined(screened, fresh)
        return replace(screened, verdict="invalid", reason=broken, integrity=findings, suspects=(), blame=())
    metrics = tuple(
        _confirmed(metric, base, fresh, limits, remaining) if metric.name in screened.suspects else metric
        for metric in screened.metrics
    )
    standing, why = _standing(screened, base, fresh)
    settled_ = judgement(fresh, base, metrics, standing, why)
    return replace(settled_, integrity=_joined(screened, fresh))


def settled(screened: Judgement, base: Record | None, fresh: Record, remaining: int, limits: Limits) -> bool:
    """Whether nothing that `remaining` further repeats could show would make any suspect `regressed`.

    Stopping then is free: the final test would not reject whatever came, so leaving it out removes no
    rejection and adds none, and the test keeps its level. Stopping early because a test already rejects would
    be another matter (each look is another chance of a false alarm), so that is never answered with `True`.
    """
    found = fresh.metrics()
    return not any(
        _may_regress(name, found[name], base, fresh, remaining, limits) for name in screened.suspects if name in found
    )


def _may_regress(name: str, series: Series, base: Record | None, fresh: Record, remaining: int, limits: Limits) -> bool:
    bound = limits.budget_for(name)
    if bound is not None and budget.past(series, bound) == len(series.values):
        return True
    before, limit = _before(name, base, fresh), limits.for_metric(name)
    if before is None or limit is None:
        return False
    drawn, stored = len(series.values), len(before.values)
    best = _pairs_past(before, series, limit) + remaining * stored
    return ranks.p_at_least(best, drawn + remaining, stored) <= UNPAIRED_ALPHA


def _confirmed(
    metric: MetricVerdict, base: Record | None, fresh: Record, limits: Limits, remaining: int
) -> MetricVerdict:
    series = fresh.metrics().get(metric.name)
    if series is None:
        return replace(metric, reason=f"{metric.reason}; not measured again")
    before, limit = _before(metric.name, base, fresh), limits.for_metric(metric.name)
    metric = replace(
        metric, new=timed.mean(series), limit=None, verdict=None, reason="", times_over=None, evidence=None
    )
    if base is not None and before is not None and limit is not None:
        metric = _test(replace(metric, limit=limit.text), before, series, limit, remaining)
        metric = with_machine(metric, base, fresh, limit)
    return budget.hold(metric, series, limits.budget_for(metric.name), confirmed=True)


def _test(metric: MetricVerdict, base: Series, fresh: Series, limit: Limit, remaining: int) -> MetricVerdict:
    """The shifted rank test, with the Hodges-Lehmann estimate and the interval that inverts the test."""
    if not timed.positive(base, fresh):
        reason = "has values of zero or below: no ratio can be judged"
        return replace(metric, verdict="inconclusive", reason=reason)
    drawn, stored = len(fresh.values), len(base.values)
    ratios = sorted(math.log(value / other) for value in fresh.values for other in base.values)
    center = statistics.median(ratios)
    exact = ranks.shift_interval(ratios, drawn, stored)
    low, high = exact or timed.compare(base.values, fresh.values).interval()
    past = timed.log_limit(limit, timed.mean(base), base)
    sign = 1 if base.better == "lower" else -1
    metric = replace(
        metric,
        effect=timed.as_ratio(center),
        ci95=(timed.as_ratio(low), timed.as_ratio(high)),
        mde=_detectable(base.values, fresh.values, past, sign, remaining),
        evidence="unpaired",
    )
    text = wording.interval(metric, "unpaired")
    if ranks.p_at_least(_pairs_past(base, fresh, limit), drawn, stored) <= UNPAIRED_ALPHA:
        over = abs(timed.as_ratio(center)) / abs(timed.as_ratio(sign * past)) if past else None
        return replace(metric, verdict="regressed", reason=text, times_over=over)
    best, worst = sorted((sign * low, sign * high))
    surely = min(math.log1p(SURELY_WORSE), past)
    if worst <= past and best <= surely:
        return replace(metric, verdict="unchanged", reason=text)
    verdict: Verdict = "suspect" if best > surely else "inconclusive"
    if ranks.least_p(drawn + remaining, stored) > UNPAIRED_ALPHA:
        least = ranks.least_p(drawn, stored)
        needed = ranks.needed(stored, UNPAIRED_ALPHA)
        why = f"{plural(drawn, 'fresh repeat')} against {stored} stored cannot prove it (p is {least:.2g} at best)"
        return replace(metric, verdict="suspect", reason=f"{text}: {why}, {needed} are needed")
    if verdict == "suspect":
        share = wording.percent(timed.worsening(surely, sign))
        why = f"surely worse by more than {share}, not shown to be past the limit unpaired"
    else:
        why = f"smallest detectable {wording.percent(metric.mde)}"
    return replace(metric, verdict=verdict, reason=f"{text}: {why}")


def _pairs_past(base: Series, fresh: Series, limit: Limit) -> int:
    """U of the fresh values against the baseline's, each worsened by as much as the limit allows it.

    Adding the larger of both parts of a limit to every value is a monotone transformation of the baseline's
    distribution, so under any worsening within the limit the test keeps its level; rank tests need no
    logarithm.
    """
    sign = 1 if base.better == "lower" else -1
    allowed = [sign * value + limit.allowed(value, base.unit) for value in base.values]
    return ranks.pairs_above([sign * value for value in fresh.values], allowed)


def _detectable(base: Sequence[float], fresh: Sequence[float], past: float, sign: int, remaining: int) -> float | None:
    """Worsening that the rank test would have found with 80 % probability, for normal noise.

    `past + (z_(1-alpha) + z_.80) * 1.02 * sd * sqrt(1/K + 1/m)` as a log ratio; 1.02 is the square root of
    pi / 3, the inverse of the rank test's asymptotic efficiency under normal noise.
    """
    drawn = len(fresh) + remaining
    if ranks.least_p(drawn, len(base)) > UNPAIRED_ALPHA:
        return None
    spread = timed.compare(base, fresh).error / math.sqrt(1 / len(base) + 1 / len(fresh))
    reach = float(ndtri(1 - UNPAIRED_ALPHA) + ndtri(timed.POWER)) * math.sqrt(math.pi / 3)
    return timed.worsening(past + reach * spread * math.sqrt(1 / drawn + 1 / len(base)), sign)


def _before(name: str, base: Record | None, fresh: Record) -> Series | None:
    """The baseline's series, where the baseline is one of this test as it is now."""
    return None if base is None or outdated(base, fresh) else base.metrics().get(name)


def _standing(screened: Judgement, base: Record | None, fresh: Record) -> tuple[Verdict | None, str]:
    """How the test stands to its baselines, from what the screen said.

    Where a suspect hid that the test is `incomparable`, that shows again; a worse verdict on a metric that
    was no suspect stays, and with it what it hid.
    """
    if base is not None:
        why = outdated(base, fresh)
        return ("outdated", why) if why else (None, "")
    if screened.verdict == "suspect":
        return "incomparable", "baselines exist only under other keys"
    return (screened.verdict, screened.reason) if screened.verdict in ("missing", "incomparable") else (None, "")


def _joined(screened: Judgement, fresh: Record) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys((*screened.integrity, *fresh.integrity)))
