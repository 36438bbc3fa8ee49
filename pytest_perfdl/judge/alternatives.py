"""Verdicts on `perf.compare`, with the same paired rounds as for a suspect; and on bounds of a curve (`bounded`).

*Not slower within w* is the gate itself. *Faster by p* is the gate with exchanged sides: the first alternative takes
longer than the second by more than `1 / (1 - p) - 1`. A difference is shown with the false-positive rate of the run,
its size with a probability of 95 %; a refuted assertion fails, an undecided one is `inconclusive`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.judge.reasons import paired
from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.stopping_rule import Held
from pytest_perfdl.model.limits import parse_limit
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.results.verdict import MetricVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_perfdl.results.verdict import Verdict

Kind = Literal["faster", "not slower"]
_EXPECTED: dict[Kind, str] = {"faster": "at least {} faster", "not slower": "at most {} slower"}


def is_expected(metric: MetricVerdict) -> bool:
    """Whether a metric is of two alternatives of `perf.compare`, rather than of a baseline and the current code."""
    ends = tuple(text.partition("{}")[::2] for text in _EXPECTED.values())
    limit = metric.limit or ""
    return any(limit.startswith(start) and limit.endswith(end) for start, end in ends)


def demand(metric: str, kind: Kind, amount: str) -> Held:
    """The paired test that decides an assertion about a time; `amount` as in "10%"."""
    limit = parse_limit(metric, amount)
    if kind == "faster":
        assert limit.relative is not None
        limit = replace(limit, relative=1 / (1 - limit.relative) - 1)
    return Held(metric, limit)


def sides(rounds: Sequence[Round], kind: Kind) -> list[Round]:
    """The rounds in the order that `demand` requires."""
    return list(rounds) if kind == "not slower" else [_exchanged(each) for each in rounds]


def verdict(found: MetricVerdict, kind: Kind, amount: str, labels: tuple[str, str]) -> MetricVerdict:
    """The verdict on an assertion; `labels` name the first and the second alternative."""
    expected = _EXPECTED[kind].format(amount)
    found = replace(found, limit=expected, times_over=None, in_every_round=False)
    if kind == "faster":
        found = _turned(found)
    basis = paired(found.rounds or 0)
    text = f"{labels[1]} compared with {labels[0]}: {_speed(found, basis)}".rstrip(": ")
    if found.verdict == "invalid":
        return replace(found, reason=f"{text}, expected {expected}: {found.reason}")
    if found.verdict in ("suspect", "inconclusive", None):
        why = "undecided when the time budget ended (--perf-budget)"
        return replace(found, verdict="inconclusive", reason=f"{text}, expected {expected}: {why}")
    holds = (found.verdict == "regressed") == (kind == "faster")
    said: Verdict = "unchanged" if holds else "regressed"
    return replace(found, verdict=said, reason=f"{text}, expected {expected}")


def _speed(found: MetricVerdict, basis: str) -> str:
    """How fast the second alternative is as a multiple of the first, "1.35x as fast [1.31x, 1.39x] (...)"."""
    if found.effect is None or found.effect <= -1:
        return ""
    text = f"{1 / (1 + found.effect):.2f}x as fast"
    if found.ci95 is None or min(found.ci95) <= -1:
        return text
    low, high = sorted(1 / (1 + end) for end in found.ci95)
    return f"{text} [{low:.2f}x, {high:.2f}x] (95% interval, {basis})"


def bounded(name: str, unit: str, value: float, ci95: tuple[float, float], bound: float, text: str) -> MetricVerdict:
    """The verdict on a bound of a curve: regressed or unchanged if the whole interval is on one side of the bound.

    Parameters
    ----------
    name, unit
        Of the number.
    value, ci95
        The number, and the ends of its 95 % interval.
    bound, text
        The largest allowed value, and how the test's author wrote it.
    """
    low, high = ci95
    verdict: Verdict = "regressed" if low > bound else "unchanged" if high <= bound else "inconclusive"
    found = f"{_number(value, unit)} [{_number(low, unit)}, {_number(high, unit)}] (95% interval), expected <= {text}"
    return MetricVerdict(
        name=name,
        kind="timed",
        unit=unit,
        better="lower",
        base=None,
        new=value,
        limit=f"<= {text}",
        verdict=verdict,
        reason=f"{found}: the interval contains the bound; use more processes (--perf-repeats)"
        if verdict == "inconclusive"
        else found,
        times_over=value / bound if verdict == "regressed" and bound > 0 else None,
    )


def _number(value: float, unit: str) -> str:
    return f"{value:.2f}" if unit == "1" else format_quantity(value, unit)


def _exchanged(each: Round) -> Round:
    order: Literal["base first", "head first"] = "head first" if each.order == "base first" else "base first"
    return Round(order=order, base=each.head, head=each.base)


def _turned(metric: MetricVerdict) -> MetricVerdict:
    """The verdict with exchanged sides, as the change from the first alternative to the second."""

    def turned(ratio: float) -> float:
        return 1 / (1 + ratio) - 1

    return replace(
        metric,
        base=metric.new,
        new=metric.base,
        effect=None if metric.effect is None else turned(metric.effect),
        ci95=None if metric.ci95 is None else (turned(metric.ci95[1]), turned(metric.ci95[0])),
        excluded=None,
    )
