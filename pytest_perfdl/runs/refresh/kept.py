"""What a refreshed baseline keeps of the recordings before it: the best values, which bound the sum of small changes.

Rounds compare with the code of the stored baseline alone. What they do not compare, namely bytes, and times of one
environment with times of another, could get worse by less than a limit at every update. So each update is compared with
the best values since somebody last recorded the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean

from pytest_perfdl.judge.log_ratios import mean
from pytest_perfdl.model.limits import BUILT_IN
from pytest_perfdl.model.record import Record, Refreshed, Series
from pytest_perfdl.model.units import format_percent, format_quantity


def best(stored: Record) -> Mapping[str, float]:
    """The best values of all metrics that have a limit by default: of a stored baseline, and of those before it."""
    own = {name: mean(series) for name, series in _limited(stored).items()}
    return {**own, **stored.refreshed.best} if stored.refreshed is not None else own


def kept(stored: Record, new: Record, times: Mapping[str, float]) -> Refreshed:
    """What a new baseline keeps of the stored one; `times` are its times, from more processes than its record has."""
    first = stored.occasions[0]
    before = stored.refreshed or Refreshed(first.date, first.commit, {})
    found = dict(best(stored))
    for name, series in _limited(new).items():
        value = times.get(name, mean(series))
        found[name] = min(value, found.get(name, value))
    return Refreshed(before.date, before.commit, found)


def more_bytes(stored: Record, new: Record) -> tuple[str, float] | None:
    """The number of bytes of a new record that is over its default limit, with why and by how much; `None` if none is.

    The limit is the default one, whatever the project allows: updates by hand may use the whole of that.
    """
    before = best(stored)
    for name, series in _limited(new).items():
        least, worst = before.get(name), max(series.values)
        limit = BUILT_IN.for_metric(name)
        if series.unit != "B" or not least or limit is None or worst - least <= limit.allowed(least, "B"):
            continue
        change = worst / least - 1
        shown = f"{format_quantity(least, 'B')} -> {format_quantity(worst, 'B')}, {format_percent(change)}"
        return f"{name} is over its limit ({shown} from the best baseline since the last recording)", change
    return None


def slower_environment(stored: Record, times: Mapping[str, tuple[float, ...]]) -> tuple[str, float] | None:
    """The time of the baseline's code that the environments since the last recording made slower; `None` if none.

    Parameters
    ----------
    times
        Values of the baseline's code now, by metric.
    """
    before, limits = best(stored), BUILT_IN.unpaired()
    for name, values in times.items():
        least, limit = before.get(name), limits.for_metric(name)
        if not least or limit is None or not values:
            continue
        now = geometric_mean(values)
        if now - least > limit.allowed(least, "ns"):
            change = now / least - 1
            # The limit is that of unpaired times: the two were measured on different days.
            return (
                f"{name} of the baseline's code got slower by {format_percent(change)} since its last recording",
                change,
            )
    return None


def _limited(record: Record) -> dict[str, Series]:
    return {
        name: series
        for name, series in record.metrics().items()
        if series.unit in ("ns", "B") and series.better == "lower" and BUILT_IN.for_metric(name) is not None
    }
