"""The closed account of a change: what the step gained or lost is the sum of what its parts did, to the nanosecond.

Everything is a mean over the profiled steps of a side, since quantiles do not add up. The means of a side's parts
are rounded so that they still add up to the rounded mean of its step (largest remainders), and every part of
either side is in exactly one group of the matching. So the changes of the groups add up to the change of the step,
and there is no residual to explain away: what nothing is known of (idle time without a cause) is a part too.

Intervals are simultaneous: with 95 % all of them hold together (Welch's t for each, or Student's of the differences
where the sides took turns; Bonferroni over the groups of at least `TESTED_SHARE` of a step, and, with the other half of
the 5 %, over the sums of all groups of one name, which show what is small in each of many places). They are over runs,
or over the steps of one run where a side has only one; which of the two is `Diff.unit`. Of two records, whose rows are
names, each interval holds by itself with 99 %, and a side of one process has the spread of the other side's.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.analysis.events.intervals import LEAST_STEPS
from pytest_perfdl.diff.matching.match import match
from pytest_perfdl.diff.matching.names import NO_RULES
from pytest_perfdl.diff.matching.stages import ONE_SIDED, Weighted
from pytest_perfdl.diff.side import Change, excludes_zero, without_figures
from pytest_perfdl.model.metrics import STEP_TIMES
from pytest_perfdl.results.verdict import MetricVerdict
from pytest_perfdl.stats.quantiles import student

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from pytest_perfdl.diff.matching.names import Rules
    from pytest_perfdl.diff.matching.stages import By, Group
    from pytest_perfdl.diff.side import Counterfactual, Key, MachineUse, Origin, Side, Status, Unit
    from pytest_perfdl.model.step_part import Part
    from pytest_perfdl.results.verdict import Verdict

    Floats = NDArray[np.float64]


# Why the time of a part changed: more calls, slower per call, different inputs, or less overlap.
#
# The time that a part costs the step is n * t * x: occurrences, mean duration of one, and the share of it that
# nothing hides. From (n0, t0, x0) to (n1, t1, x1)
#
#     count     (n1 - n0) * t0 * x0
#     duration  n1 * (t1 - t0) * x0
#     exposure  n1 * t1 * (x1 - x0)
#
# add up to the change exactly. Over parts that are summed (a kernel over all its shapes) the count effect is that
# of the sum, (N1 - N0) * T0 * X0, and what the parts' count effects have beyond it is the *mix*: more of the expensive
# ones at the cost of the cheap ones. A group whose members were exchanged for others (fused, split, another
# kernel for the same operator) has no duration of one thing to compare: its duration effect is mix too.


@dataclass(frozen=True, slots=True)
class Amount:
    """Means per step of what stands on one side."""

    count: float
    busy_ns: float
    ns: float

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.busy_ns + other.busy_ns, self.ns + other.ns)

    @property
    def each_ns(self) -> float:
        """Mean duration of one; of what is not counted (idle time) all of it."""
        return self.busy_ns / (self.count or 1.0)

    @property
    def exposure(self) -> float:
        """Share that costs the step; 1 for what has no duration."""
        return self.ns / self.busy_ns if self.busy_ns else 1.0


NOTHING = Amount(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Effects:
    """Nanoseconds per step; they add up to the change."""

    count: float = 0.0
    duration: float = 0.0
    mix: float = 0.0
    exposure: float = 0.0

    def __add__(self, other: Effects) -> Effects:
        return Effects(
            self.count + other.count,
            self.duration + other.duration,
            self.mix + other.mix,
            self.exposure + other.exposure,
        )


def effects(base: Amount, new: Amount, *, exchanged: bool = False) -> Effects:
    """Split the change of one part, or of a group whose members were `exchanged`.

    What is new or gone is all count; idle time, which is not counted, all duration.
    """
    if not base.count and not new.count:
        return Effects(duration=new.ns - base.ns)
    if not base.count or not new.count:
        return Effects(count=new.ns - base.ns)
    count = (new.count - base.count) * base.each_ns * base.exposure
    # Without a duration there is no share of it: then all that is left is exposure, and the sum still holds.
    duration = new.count * (new.each_ns - base.each_ns) * base.exposure
    exposure = new.ns - base.ns - count - duration
    if exchanged:
        return Effects(mix=count + duration, exposure=exposure)
    return Effects(count=count, duration=duration, exposure=exposure)


def sum_effects(base: Amount, new: Amount, total: Effects) -> Effects:
    """The effects of parts taken together, from sums over them: what their counts have beyond the sum's is mix."""
    if not base.count or not new.count:
        return total
    count = (new.count - base.count) * base.each_ns * base.exposure
    return Effects(count, total.duration, total.mix + total.count - count, total.exposure)


# What changes are called: groups of matched parts that have one name are one cause.


_LISTED = 3
"""Members of a group that its name lists."""


def by_name(changes: Iterable[Change]) -> dict[Key, list[Change]]:
    """The changes of each name; what came in one place and changed in another is one cause: its count changed."""
    apart: dict[Key, list[Change]] = defaultdict(list)
    for change in changes:
        apart[change.kind, _name(change), _status(change)].append(change)
    found: dict[Key, list[Change]] = {}
    for (kind, name, status), members in apart.items():
        both = status in ("new", "gone") and (
            (kind, name, "changed") in apart or {(kind, name, "new"), (kind, name, "gone")} <= apart.keys()
        )
        found.setdefault((kind, name, "changed" if both else status), []).extend(members)
    return found


def columns(groups: Sequence[Group], base: Side, new: Side) -> tuple[Floats, Floats]:
    """Time of these groups in every column of both sides, nanoseconds."""
    before = base.ns[[place for group in groups for place in group.base]].sum(axis=0)
    after = new.ns[[place for group in groups for place in group.new]].sum(axis=0)
    return np.asarray(before), np.asarray(after)


def _name(change: Change) -> str:
    """What a group is called: its part's name; of an exchange both sides'; of Python, what it ran."""
    before, after = (tuple(dict.fromkeys(map(_part_name, parts))) for parts in (change.base_parts, change.new_parts))
    if not before or not after or before == after:
        return _list_names(after or before)
    if len(before) == len(after) == 1 and change.group.by in ("exact", "name"):
        return after[0]
    return f"{_list_names(before)} -> {_list_names(after)}"


def _part_name(part: Part) -> str:
    return part.function if part.kind == "idle" and part.function else part.name


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _status(change: Change) -> Status:
    if not change.base_parts:
        return "new"
    if not change.new_parts:
        return "gone"
    if change.group.by in ("fused", "split"):
        return "fused" if change.group.by == "fused" else "split"
    return "replaced" if change.group.by in ("operator", "aligned") else "changed"


DRIFT_MAX = 0.05
"""Largest common factor of all rows that is attributed to machine drift between two recording sessions."""
ROWS_FOR_DRIFT = 5
"""Fewer matched rows say nothing about a common factor."""
PYTHON = "Python and host"
CONFIDENCE = 0.95
"""Of all intervals of a diff together."""
CONFIDENCE_RECORDED = 0.99
"""Of each interval of two records: that a test changed is known there, and what is asked is which part did."""
LIMIT = 0.03
"""How much slower or faster a step may be and still be called unchanged."""
TESTED_SHARE = 0.002
"""Groups that have less of the step on both sides have no interval of their own."""
POWER = 0.80
_FAMILY_ALPHA = (1 - CONFIDENCE) / 2
"""Of the groups, and of the names."""


@dataclass(frozen=True, slots=True)
class AccountLine:
    """What a class of the account, a module or a line of code takes on both sides. Nanoseconds per step."""

    name: str
    base_ns: int
    new_ns: int

    @property
    def delta_ns(self) -> int:
        """What the step gained."""
        return self.new_ns - self.base_ns


@dataclass(frozen=True, slots=True)
class AccountDrift:
    """The common factor of all matched kernels and operators."""

    factor: float
    """Median of the ratios of their durations, weighted by the base's time, of two records not weighted; 1 where too
    few are matched."""
    applied: bool
    """Whether it is small enough to be the machine's, and so is taken off before parts are blamed."""
    ns: float
    """What it is of the step's change; 0 when it is not applied."""


@dataclass(frozen=True, slots=True)
class Diff:
    """The change of one step (or of one call of a perf test) from a base to a new side."""

    base: Side
    new: Side
    base_ns: int
    new_ns: int
    interval: tuple[float, float] | None
    """95 % interval of the step's change, nanoseconds; `None` when a side has one column only."""
    changes: tuple[Change, ...]
    """Every part of both sides in exactly one of them; the largest change first."""
    account: tuple[AccountLine, ...]
    """In the order of the classes' time on both sides."""
    drift: AccountDrift
    detectable_ns: float | None
    """Half of the parts tested are named with 80 % probability if they change by this; `None` untested."""
    intervals: Mapping[Key, tuple[float, float]]
    """Simultaneous intervals of the sums of all changes of one name, where they were tested."""
    counterfactual: Counterfactual | None = None
    """What a simulation says of it; `None` where nobody asked for one, or the account says it all."""
    timed: MetricVerdict | None = None
    """The step time without the profiler: of a run with its verdict, of two records without one; `None` of traces."""
    use: MachineUse | None = None
    """How well both sides use the machine; `None` unless both are traces."""
    incomparable: str = ""
    """Why the sides are not comparable: then both are without figures; empty where they are."""

    @property
    def delta_ns(self) -> int:
        """What the profiled step gained."""
        return self.new_ns - self.base_ns

    @property
    def devices(self) -> str:
        """On which devices both sides ran, where these differ; else empty."""
        base, new = self.base.origin, self.new.origin
        if base is None or new is None or base.devices == new.devices:
            return ""
        return f"different devices: the baseline ran on {_devices(base)}, the current side on {_devices(new)}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with the traces of either side, one line each."""
        named = {"baseline": self.base.origin, "current": self.new.origin}
        return tuple(f"{name}: {doubt}" for name, origin in named.items() if origin for doubt in origin.doubts)

    @property
    def way(self) -> int:
        """The sign of what the profiled step gained; 0 where it may have gone either way."""
        is_certain = excludes_zero(self.interval) or (self.interval is None and not self.recorded)
        return int(np.sign(self.delta_ns)) if is_certain else 0

    @property
    def recorded(self) -> bool:
        """Whether both sides are rows of records."""
        return self.base.recorded and self.new.recorded

    @property
    def unit(self) -> Unit:
        """What the intervals are over: steps where either side has but one run."""
        return "run" if self.base.unit == self.new.unit == "run" else "step"

    @property
    def matched_by(self) -> dict[By, float]:
        """Shares of the time of both sides' kernels and operators, hidden or not, by what matched them."""
        found: dict[By, float] = {}
        for change in self.changes:
            if change.kind != "idle":
                found[change.group.by] = found.get(change.group.by, 0.0) + change.base.busy_ns + change.new.busy_ns
        total = sum(found.values()) or 1.0
        return {by: ns / total for by, ns in found.items()}

    @property
    def coverage(self) -> float:
        """Share of that time that is matched at all; 1 without any."""
        shares = self.matched_by
        alone = sum(share for by, share in shares.items() if by in ONE_SIDED)
        return 1.0 - alone if shares else 1.0

    @property
    def alone(self) -> list[Change]:
        """The parts that one side only has, the largest first."""
        found = [change for change in self.changes if change.group.by in ONE_SIDED]
        return sorted(found, key=lambda change: -(change.base_ns + change.new_ns))

    @property
    def unprofiled_ns(self) -> float | None:
        """What the step gained without the profiler beyond what it gained with it; `None` where that is not known."""
        if self.timed is None or not self.timed.base or not self.timed.new:
            return None
        return self.timed.new - self.timed.base - self.delta_ns

    def verdict(self, limit: float = LIMIT) -> Verdict:
        """What the step did, by its interval: past the limit, within it either way, or neither for sure.

        A single step on a side says nothing of how much steps differ: then it is `inconclusive`. Sides whose figures
        mean other things, or that damage has left no figures, are `incomparable`. A verdict that a run gave its step
        time is the verdict; of two records the step is the one without the profiler, where both have it.
        """
        if self.incomparable:
            return "incomparable"
        if self.timed is not None and self.timed.verdict is not None:
            return self.timed.verdict
        ends, unit = (self.interval, max(self.base_ns, 1)) if self.timed is None else (self.timed.ci95, 1)
        if ends is None:
            return "inconclusive"
        low, high = (end / unit for end in ends)
        if low > limit:
            return "regressed"
        if high < -limit:
            return "improved"
        return "unchanged" if -limit <= low and high <= limit else "inconclusive"

    @property
    def residual_ns(self) -> int:
        """What no part explains: 0, since every nanosecond of a step is some part's."""
        return self.delta_ns - sum(change.delta_ns for change in self.changes)


def diff(base: Side, new: Side, *, paired: bool = False, rules: Rules = NO_RULES) -> Diff:
    """Account for the change from one side to the other.

    Parameters
    ----------
    paired
        The sides took turns on the machine, column by column: then a common factor is the code's, no drift is taken
        off, and intervals are those of the columns' differences.
    rules
        A project's own, for the names by which parts are matched.
    """
    incomparable = _incomparable(base, new)
    if incomparable:
        base, new = without_figures(base), without_figures(new)
    amounts = [_amounts(side) for side in (base, new)]
    groups = match(_weighted(base, amounts[0]), _weighted(new, amounts[1]), rules)
    base_ns, new_ns = (round(float(side.step_ns.mean())) for side in (base, new))
    whole = [rounded(side.ns.mean(axis=1), total) for side, total in ((base, base_ns), (new, new_ns))]
    both = [(group, _sum(amounts[0], group.base), _sum(amounts[1], group.new)) for group in groups]
    spread = _Spread(paired, base.recorded and new.recorded)
    drift = _drift(both, spread)
    times = {id(group): columns([group], base, new) for group in groups}
    tested = {key: each for key, each in times.items() if _is_tested(*each, base, new)}
    level = spread.level(len(tested))
    errors = {key: spread.error(*each) for key, each in tested.items()}
    changes = []
    for group, before, after in both:
        drifts = drift.applied and (spread.recorded or _is_same_work(group, before, after))
        drift_ns = (drift.factor - 1) * before.ns if drifts else 0.0
        changes.append(
            Change(
                group=group,
                base_parts=_parts(base, group.base),
                new_parts=_parts(new, group.new),
                name_class=_class(group, base, new),
                base=before,
                new=after,
                base_ns=int(whole[0][list(group.base)].sum()),
                new_ns=int(whole[1][list(group.new)].sum()),
                effects=effects(before, after, exchanged=_is_exchange(group)),
                drift_ns=drift_ns,
                interval=_interval(errors.get(id(group)), after.ns - before.ns, level, spread.drift(drift_ns)),
            )
        )
    changes.sort(key=lambda change: (-abs(change.own_ns), change.group.base, change.group.new))
    account = sum_lines((change.name_class, change.base_ns, change.new_ns) for change in changes)
    total = sum(change.drift_ns for change in changes)
    widths = [_half_width(error, level) for error in errors.values() if error is not None]
    return Diff(
        base=base,
        new=new,
        base_ns=base_ns,
        new_ns=new_ns,
        interval=None
        if incomparable
        else _interval(
            spread.error(base.step_ns, new.step_ns),
            float(new.step_ns.mean() - base.step_ns.mean()),
            (1 - CONFIDENCE) / 2,
        ),
        changes=tuple(changes),
        account=tuple(sorted(account, key=lambda line: -(line.base_ns + line.new_ns))),
        drift=replace(drift, ns=total),
        detectable_ns=statistics.median(widths) if widths else None,
        intervals=_find_intervals(changes, base, new, spread),
        timed=None if incomparable else _timed(base, new, spread),
        incomparable=incomparable,
    )


def _timed(base: Side, new: Side, spread: _Spread) -> MetricVerdict | None:
    """The change of the step without the profiler, of geometric means; `None` where either side has no such times."""
    name = next((name for name in STEP_TIMES if name in base.timed and name in new.timed), None)
    if name is None:
        return None
    logs = np.log(base.timed[name]), np.log(new.timed[name])
    before, after = (float(side.mean()) for side in logs)
    ends = _interval(spread.error(*logs), after - before, (1 - CONFIDENCE) / 2)
    return MetricVerdict(
        name,
        "timed",
        "ns",
        "lower",
        base=math.exp(before),
        new=math.exp(after),
        effect=math.expm1(after - before),
        ci95=ends and (math.expm1(ends[0]), math.expm1(ends[1])),
    )


def _incomparable(base: Side, new: Side) -> str:
    """Why figures of two sides made of traces do not mean the same; empty where they do, or nothing is known."""
    origins = {"the baseline": base.origin, "the current side": new.origin}
    if broken := [name for name, origin in origins.items() if origin is not None and origin.damaged]:
        return f"damage leaves fewer than {LEAST_STEPS} steps of {' and of '.join(broken)}"
    if base.origin is None or new.origin is None:
        return ""
    for name, what in (("has_steps", "step annotations"), ("on_device", "device events")):
        has = {bool(getattr(origin, name)): side for side, origin in origins.items()}
        if len(has) == 2:
            return f"{has[True]} has {what} and {has[False]} has none, so their step times mean different things"
    return ""


def _devices(origin: Origin) -> str:
    counts = Counter(origin.devices)
    return " and ".join(f"{count} x {name}" for name, count in counts.items()) or "no recorded device"


def _find_intervals(
    changes: Sequence[Change], base: Side, new: Side, spread: _Spread
) -> dict[Key, tuple[float, float]]:
    """Intervals of the changes of each name that has at least `TESTED_SHARE` of a step."""
    errors: dict[Key, tuple[tuple[float, float] | None, float, float]] = {}
    for key, members in by_name(changes).items():
        before, after = columns([change.group for change in members], base, new)
        if _is_tested(before, after, base, new):
            drift = spread.drift(sum(change.drift_ns for change in members))
            errors[key] = spread.error(before, after), float(after.mean() - before.mean()), drift
    level = spread.level(len(errors))
    found = {key: _interval(error, middle, level, drift) for key, (error, middle, drift) in errors.items()}
    return {key: interval for key, interval in found.items() if interval is not None}


def _weighted(side: Side, amounts: Sequence[Amount]) -> list[Weighted]:
    return [Weighted(part, each.count, each.ns) for part, each in zip(side.parts, amounts, strict=True)]


def rounded(values: Floats, total: int) -> NDArray[np.int64]:
    """Values rounded to integers that add up to `total`: those with the largest remainders are rounded up."""
    whole = np.floor(values).astype(np.int64)
    missing = total - int(whole.sum())
    if len(whole):
        # The sum of means and the mean of sums differ by float rounding: a unit more or less than there are parts.
        order = np.argsort(whole - values, kind="stable")
        np.add.at(whole, order[np.arange(abs(missing)) % len(order)], int(np.sign(missing)))
    return whole


def _amounts(side: Side) -> list[Amount]:
    columns = (matrix.mean(axis=1).tolist() for matrix in (side.count, side.busy_ns, side.ns))
    return [Amount(*each) for each in zip(*columns, strict=True)]


def _sum(amounts: Sequence[Amount], members: Sequence[int]) -> Amount:
    return sum((amounts[index] for index in members), NOTHING)


def _parts(side: Side, members: Sequence[int]) -> tuple[Part, ...]:
    """The parts of a group, what takes most time first."""
    if len(members) > 1:
        members = sorted(members, key=lambda index: (-float(side.ns[index].sum()), index))
    return tuple(side.parts[index] for index in members)


def _is_tested(before: Floats, after: Floats, base: Side, new: Side) -> bool:
    """Whether these times have at least `TESTED_SHARE` of a side's step."""
    shares = (ns.mean() / (side.step_ns.mean() or 1.0) for ns, side in ((before, base), (after, new)))
    return bool(max(shares) >= TESTED_SHARE)


def _is_exchange(group: Group) -> bool:
    return group.by in ("fused", "split", "operator", "aligned") or len(group.base) > 1 or len(group.new) > 1


def _is_same_work(group: Group, base: Amount, new: Amount) -> bool:
    """Whether nothing but the duration of the same thing can have changed."""
    return not _is_exchange(group) and base.count > 0 and new.count > 0 and math.isclose(base.count, new.count)


def _drift(both: Iterable[tuple[Group, Amount, Amount]], spread: _Spread) -> AccountDrift:
    ratios = []
    for group, before, after in both:
        if _is_same_work(group, before, after) and before.busy_ns > 0:
            # One name of a record may hold most of its step, and would be the median of its own.
            ratios.append((after.busy_ns / before.busy_ns, 1.0 if spread.recorded else before.busy_ns))
    if len(ratios) < ROWS_FOR_DRIFT:
        return AccountDrift(1.0, False, 0.0)
    ratios.sort()
    reached, half = 0.0, sum(weight for _, weight in ratios) / 2
    factor = ratios[-1][0]
    for ratio, weight in ratios:
        reached += weight
        if reached >= half:
            factor = ratio
            break
    return AccountDrift(factor, not spread.paired and abs(factor - 1) <= DRIFT_MAX, 0.0)


def _class(group: Group, base: Side, new: Side) -> str:
    """The class of the group's time: where the sides differ in it, that of the larger member."""
    members = [(float(base.ns[i].mean()), base.classes[i]) for i in group.base]
    members += [(float(new.ns[i].mean()), new.classes[i]) for i in group.new]
    return max(members)[1]


def sum_lines(entries: Iterable[tuple[str, int, int]]) -> list[AccountLine]:
    """Both sides' times added up by name, in the order in which names first occur."""
    totals: dict[str, tuple[int, int]] = {}
    for name, base_ns, new_ns in entries:
        base, new = totals.get(name, (0, 0))
        totals[name] = base + base_ns, new + new_ns
    return [AccountLine(name, *total) for name, total in totals.items()]


@dataclass(frozen=True, slots=True)
class _Spread:
    """How the spread over columns is told from a change."""

    paired: bool
    """Whether the columns of both sides took turns."""
    recorded: bool
    """Whether both sides are rows of records."""

    def level(self, tests: int) -> float:
        """What so many intervals each leave out on either side."""
        return (1 - CONFIDENCE_RECORDED) / 2 if self.recorded else _FAMILY_ALPHA / 2 / max(1, tests)

    def drift(self, ns: float) -> float:
        """What of the machine's drift an interval allows for: that of records, which were made at different times."""
        return ns if self.recorded else 0.0

    def error(self, base: Floats, new: Floats) -> tuple[float, float] | None:
        """Standard error of the difference of means and its degrees of freedom; `None` where no spread is known.

        Of pairs that of the mean difference, else Welch's (1947).
        """
        if min(len(base), len(new)) < 2:
            longer = max(base, new, key=len)
            if not self.recorded or len(longer) < 2:
                return None
            return float(longer.std(ddof=1)) * math.sqrt(1 / len(base) + 1 / len(new)), len(longer) - 1
        if self.paired and len(base) == len(new):
            return float((new - base).std(ddof=1)) / math.sqrt(len(base)), len(base) - 1
        parts = [float(side.var(ddof=1)) / len(side) for side in (base, new)]
        total = sum(parts)
        if total == 0:
            return 0.0, math.inf
        freedom = total**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (base, new), strict=True))
        return math.sqrt(total), freedom


def _interval(
    error: tuple[float, float] | None, middle: float, level: float, drift_ns: float = 0.0
) -> tuple[float, float] | None:
    """Two-sided interval around a difference of means, `level` on each side, with or without so much drift."""
    if error is None:
        return None
    half = student(1 - level, error[1]) * error[0] if error[0] else 0.0
    return middle - half - max(drift_ns, 0.0), middle + half - min(drift_ns, 0.0)


def _half_width(error: tuple[float, float], level: float) -> float:
    """Change that is found with probability `POWER` at this level."""
    return error[0] * (student(1 - level, error[1]) + student(POWER, math.inf)) if error[0] else 0.0
