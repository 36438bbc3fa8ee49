"""Joins the results of several workers to one `Record`."""

from __future__ import annotations

import math
import mmap
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.judge.ranks import traffic
from pytest_perfdl.machine.reference_load import drift
from pytest_perfdl.machine.utilization import NO_RATES, Utilization, host_overhead, mfu, mix_of, utilization
from pytest_perfdl.measure import compiling
from pytest_perfdl.measure.commands import (
    NOT_REACHED,
    CallResult,
    CaseResult,
    Compiled,
    Counted,
    Profiled,
    SideResult,
    Timed,
)
from pytest_perfdl.measure.timed_pass import lower_quartile
from pytest_perfdl.model.metrics import CASES, GROWTH, METRICS, better
from pytest_perfdl.model.record import (
    CASE_ERROR,
    CASE_REPEATED,
    CASES_LATE,
    RECOMPILED,
    Better,
    Call,
    Case,
    Finding,
    Kind,
    MeasurementPlan,
    Occasion,
    Record,
    Row,
    RowKind,
    Series,
    metric_name,
    row_name,
)
from pytest_perfdl.model.units import format_quantity, plural, some
from pytest_perfdl.run.joined_ranks import metrics as rank_metrics
from pytest_perfdl.stats.quantiles import quantile

if TYPE_CHECKING:
    from pytest_perfdl.analysis.account.parts import StepParts
    from pytest_perfdl.machine.rates import Machine, Peaks
    from pytest_perfdl.machine.state import Surroundings


# Utilization of one process: work of the profiled operators, relative to the time of the timed steps.


def step_utilization(
    result: CallResult | SideResult,
    machine: Machine | None,
    step_ns: float,
    mix: Mapping[str, float] | None = None,
) -> Utilization:
    """The metrics of one process, shares in percent; empty but for the CPU's where it profiled nothing.

    Parameters
    ----------
    machine
        Peak rates of the machine; `None` if unknown.
    step_ns
        What a timed step takes.
    mix
        Share of each element type in the FLOPs of the base side; by default in those of this one.
    """
    values: dict[str, float] = {}
    threads = result.info.key.parts.get("threads")
    if isinstance(threads, int) and (wall_ns := result.timed.per_step("wall_ns")) > 0:
        values["cpu_utilization"] = 100 * result.timed.per_step("cpu_ns") / (wall_ns * threads)
    profiled = result.profiled
    if profiled is None or not profiled.step_ns:
        return Utilization(values)
    peaks = None if machine is None else machine.peaks
    known = utilization(profiled.work, len(profiled.step_ns), step_ns, peaks, mix)
    absent = dict(known.absent)
    values |= {name: value if name == "achieved_flops" else 100 * value for name, value in known.values.items()}
    values |= {name: 100 * share for name, share in profiled.device.items()}
    if result.info.model_flops is not None:
        _add("mfu", _mfu(result.info.model_flops, step_ns, peaks, mix or mix_of(profiled.work)), values, absent)
    if profiled.device_busy_ns is None:
        _add("host_overhead", _host_overhead(profiled, machine, step_ns), values, absent)
    return Utilization(values, absent, known.coverage)


def _add(name: str, found: float | str, values: dict[str, float], absent: dict[str, str]) -> None:
    """A share from 0 to 1, or why there is none."""
    if isinstance(found, str):
        absent[name] = found
    else:
        values[name] = 100 * found


def _mfu(model_flops: float, step_ns: float, peaks: Peaks | None, mix: Mapping[str, float]) -> float | str:
    share = mfu(model_flops, step_ns, peaks, mix)
    if share is not None:
        return share
    return NO_RATES if peaks is None else "the peak rate of the most used element type is unknown"


def _host_overhead(profiled: Profiled, machine: Machine | None, step_ns: float) -> float | str:
    if machine is None or machine.event_ns is None:
        return NO_RATES
    steps = len(profiled.step_ns)
    gap = sum(row.ns for row in profiled.rows if row.kind == "idle") / steps
    events, profiled_ns = sum(profiled.counts["ops"]) / len(profiled.counts["ops"]), sum(profiled.step_ns) / steps
    share = host_overhead(gap, events, machine.event_ns, profiled_ns, step_ns)
    return "profiler overhead is above 15 % of the step" if share is None else share


# The state of the machine around the timed passes: one reference time per process, and findings with remedies.


CHANGED = 0.10
"""Change of the reference load's time, or of the CPU clock, within a timed pass from which it is reported."""
STALL = 50
"""Multiple of the median step from which a single step is reported."""
_LEAST_STALL_NS, _LEAST_CASE_STALL_NS = 1_000_000, 10_000_000
"""Of a step, and of that of a case, from which turns of other processes (some milliseconds each) are not subtracted."""
STOLEN = 0.05
"""Share of the CPU busy time that a hypervisor may give away before a word about it."""
_LEAST_BUSY_TICKS = 20
"""Fewer ticks than these make no share."""


def reference_ns(repeats: Sequence[Sequence[CallResult]]) -> tuple[int, ...]:
    """One time of the reference load a repeat, the lower quartile of all its runs, as for steps.

    Parameters
    ----------
    repeats
        The calls of each repeat.

    Returns
    -------
    tuple[int, ...]
        Nanoseconds; empty when a repeat has no time.
    """
    runs = [tuple(ns for call in calls for ns in _runs(call.timed)) for calls in repeats]
    return tuple(map(lower_quartile, runs)) if all(runs) else ()


def findings(results: Sequence[CallResult | SideResult]) -> Iterator[Finding]:
    """Disturbances of the timed passes of every call, one finding per kind, from its worst pass.

    Parameters
    ----------
    results
        Of the calls in all repeats, or on both sides of all rounds, in any order.
    """
    for name in dict.fromkeys(result.info.name for result in results):
        of_call = [result for result in results if result.info.name == name]
        said = (*_disturbances([result.timed for result in of_call]), *_stalled_cases(of_call))
        yield from _notes(f"{name}: " if name else "", said)


def _notes(where: str, said: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    return (Finding("note", code, where + text) for code, text in said)


def _disturbances(passes: Sequence[Timed]) -> Iterator[tuple[str, str]]:
    """Codes and texts."""
    around = [timed.surroundings for timed in passes]
    if (stall := max(_stall(timed.step_ns, timed.delay_ns) for timed in passes)) > STALL:
        which = "block_time and the upper percentiles include it, step_time does not"
        yield "stalled", f"a step took {stall:.0f} times as long as the median step: {which}"
    changes = [change for timed in passes if (change := _speed_change(timed)) > CHANGED]
    if changes:
        changed = f"the machine's speed changed by {max(changes):.0%} during the measurement (reference load)"
        why = "Likely causes: other processes or CPU frequency changes. Run `perfdl check`"
        yield "machine-changed", f"{changed}. {why}"
    clocks = max(around, key=_clock_change).clocks_mhz
    if clocks and max(clocks) > min(clocks) * (1 + CHANGED):
        varied = f"the CPU clock varied between {min(clocks):.0f} and {max(clocks):.0f} MHz during timing"
        yield "clock-changed", f"{varied}: fix the frequency (sudo cpupower frequency-set -g performance)"
    if throttled := max(part.throttled or 0 for part in around):
        why = "of temperature or power: let the machine cool; check the fan"
        yield "throttled", f"a CPU was throttled {_times(throttled)} during timing because {why}"
    if swapped := max(part.swapped_pages or 0 for part in around):
        size = format_quantity(swapped * mmap.PAGESIZE, "B")
        yield "swapping", f"{size} were swapped during timing: free memory, or sudo swapoff -a"
    if faults := max(part.major_faults for part in around):
        do = "free memory, or read mapped files before measuring"
        yield "major-faults", f"the step waited for the disk {_times(faults)} during timing (major page faults): {do}"
    if (stolen := max(map(_stolen_share, around))) > STOLEN:
        do = "use a dedicated machine, or compare on one machine (pytest --perf-against REF)"
        yield "stolen-time", f"other virtual machines on the host used {stolen:.0%} of the CPU time during timing: {do}"


def _stalled_cases(results: Sequence[CallResult | SideResult]) -> Iterator[tuple[str, str]]:
    """Codes and texts."""
    stalls: dict[str, float] = {}
    for case in (case for result in results for case in result.cases if case.step_ns):
        if (stall := _stall(case.step_ns, least_ns=_LEAST_CASE_STALL_NS)) > STALL:
            stalls[case.id] = max(stall, stalls.get(case.id, 0.0))
    if stalls:
        worst = sorted(stalls, key=lambda case: -stalls[case])
        told = some([f"{case} ({stalls[case]:.0f} times)" for case in worst])
        took = f"a step took more than {STALL} times as long as the median step of its case in {told}"
        yield "stalled", f"{took}: the time of a case, the lower quartile of its steps, does not include it"


def _stall(step_ns: Sequence[int], delay_ns: Sequence[int] = (), *, least_ns: int = _LEAST_STALL_NS) -> float:
    """The longest step as a multiple of the median one, without the time in which other processes used the CPU.

    0 if it is shorter than `least_ns`: interrupts stall any step for less than a millisecond. 0 without steps.
    """
    delays = delay_ns or (0,) * len(step_ns)
    longest = max((taken - delay for taken, delay in zip(step_ns, delays, strict=True)), default=0)
    return longest / max(statistics.median(step_ns), 1) if longest >= least_ns else 0.0


def _runs(timed: Timed) -> tuple[int, ...]:
    return timed.reference_before + timed.reference_after


def _speed_change(timed: Timed) -> float:
    """Change of machine speed from start to end; 0 if runs at the same moment differ by as much."""
    if not timed.reference_before or not timed.reference_after:
        return 0.0
    found = drift(timed.reference_before, timed.reference_after)
    return max(found.ratio, 1 / found.ratio) - 1 if found.beyond(CHANGED) else 0.0


def _clock_change(part: Surroundings) -> float:
    return max(part.clocks_mhz) / min(part.clocks_mhz) if part.clocks_mhz and min(part.clocks_mhz) > 0 else 0.0


def _stolen_share(part: Surroundings) -> float:
    if part.stolen_ticks is None or part.busy_ticks is None or part.busy_ticks < _LEAST_BUSY_TICKS:
        return 0.0
    return part.stolen_ticks / part.busy_ticks


def _times(number: int) -> str:
    return "once" if number == 1 else plural(number, "time")


CONTENDED = 0.05
"""Share of the timed steps for which other processes may use the CPU before that time is taken off."""
SYSTEM_SHARE = 0.3
"""Share of CPU time in the OS kernel that is reported above this value."""
PASSES_FACTOR = 5.0
"""Ratio of a step's times in two passes above which a difference is reported."""
TRACING_NS, TRACING_OP_NS = 10_000_000, 200_000
"""What tracing and counting may add to a step, and to each of its operators: ten times what they usually do."""
_CROWDED = 0.5
"""CPUs that others keep busy above which times of steps with several threads are not compared."""


@dataclass(frozen=True, slots=True)
class UserValue:
    """A `perf.metric(...)` of one repeat; `call` is the name of the call it followed."""

    call: str
    name: str
    value: float
    unit: str
    better: Better


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one worker process found out."""

    calls: tuple[CallResult, ...]
    values: tuple[UserValue, ...] = ()
    seconds: float = 0.0
    """From the worker's start to its end."""


def assemble(
    test: str,
    test_hash: str,
    plan: MeasurementPlan,
    repeats: Sequence[Repeat],
    *,
    date: str,
    commit: str | None,
    machine: Machine | None = None,
) -> Record:
    """Join repeats, at least one with at least one call, into a record of one recording.

    `machine` has the peak rates for utilization; without it, metrics that need them are absent.
    """
    first = repeats[0].calls[0].info
    calls, findings = [], []
    names = [result.info.name for result in repeats[0].calls]
    for number, repeat in enumerate(repeats[1:], start=2):
        if [result.info.name for result in repeat.calls] != names:
            do = "a test must make the same calls in every process"
            text = f"process {number} and process 1 made different perf(...) calls: {do}"
            findings.append(Finding("invalid", "calls-differ", text))
            repeats = repeats[:1]
            break
    for index, name in enumerate(names):
        results = [repeat.calls[index] for repeat in repeats]
        values = [[value for value in repeat.values if value.call == name] for repeat in repeats]
        call, found = _call(results, values, machine)
        calls.append(call)
        findings += found
    return Record(
        test=test,
        key=first.key,
        context=first.context,
        test_hash=test_hash,
        plan=plan,
        calls=tuple(calls),
        occasions=(
            Occasion(
                repeats=len(repeats),
                date=date,
                commit=commit,
                tree=None,
                reference_ns=reference_ns([repeat.calls for repeat in repeats]),
                seconds=round(_mean([repeat.seconds for repeat in repeats]), 1) or None,
            ),
        ),
        modes=_modes([result for repeat in repeats for result in repeat.calls if not result.info.cases]),
        integrity=_unique(findings),
    )


def absent_figures(first: Repeat, machine: Machine | None) -> list[Finding]:
    """Which utilization metrics are absent, and why: one finding per reason."""
    by_reason: dict[str, list[str]] = {}
    for result in (each for each in first.calls if not each.info.cases):
        times = _step_times(result)
        found = step_utilization(result, machine, times.get("step_time", times["block_time"]))
        for name, reason in found.absent.items():
            by_reason.setdefault(reason, []).append(metric_name(result.info.name, name))
    hints = {NO_RATES: f"{NO_RATES}: run perfdl constants to measure peak rates"}
    return [
        Finding("note", "absent", f"{', '.join(names)} cannot be computed: {hints.get(reason, reason)}")
        for reason, names in by_reason.items()
    ]


def contended(repeat: Repeat) -> bool:
    """Whether other processes used the CPU for so much of the timed steps that they are measured again."""
    return any(_taken_by_others(result) or _waited_for_somebody(result) for result in repeat.calls)


_GRAPH_HASH = re.compile(r"(CompiledFxGraph) \w+")
"""The name of a compiled graph has a hash of its content, so every change would be a new operator."""


def sharing_first(first: Repeat, later: Repeat) -> Repeat:
    """The later repeat with what only the first one measured.

    These are the FLOPs and the growth, see `commands.one_repeat`, and the time of compiling with empty caches.
    """
    known = {result.info.name: result for result in first.calls}
    return replace(
        later,
        calls=tuple(
            replace(
                result,
                counted=_with_first(result.counted, known[result.info.name].counted),
                compiled=_with_cold(result.compiled, known[result.info.name].compiled.cold_ns),
            )
            if result.info.name in known
            else result
            for result in later.calls
        ),
    )


def _with_first(later: Counted, first: Counted) -> Counted:
    counts = {name: first.counts[name] for name in ("flops", GROWTH) if name in first.counts}
    return replace(later, counts={**later.counts, **counts}, uncounted=first.uncounted)


def _with_cold(compiled: Compiled, cold_ns: int | None) -> Compiled:
    return compiled if compiled.cold_ns is not None else replace(compiled, cold_ns=cold_ns)


def exemplars(repeats: Sequence[Repeat]) -> dict[str, str]:
    """Call name -> path of the trace of a representative step: from the repeat with the median step."""
    return {call: each.exemplar for call, each in _representative(repeats) if each.exemplar is not None}


def rank_exemplars(repeats: Sequence[Repeat]) -> dict[str, tuple[str, ...]]:
    """Call name -> paths of the traces of all ranks, in their order, of the step and repeat that `exemplars` chooses.

    Without a call that was not measured on several ranks, or of which a rank has no trace here: a rank on another
    machine may have written its own there.
    """
    found = {call: [rank.exemplar for rank in each.ranks] for call, each in _representative(repeats)}
    here = {call: tuple(path for path in paths if path and Path(path).is_file()) for call, paths in found.items()}
    return {call: paths for call, paths in here.items() if len(paths) == len(found[call]) > 1}


def _representative(repeats: Sequence[Repeat]) -> Iterator[tuple[str, Profiled]]:
    """Call name and profiled pass of the repeat with the median step."""
    for index, result in enumerate(repeats[0].calls):
        candidates = [repeat.calls[index] for repeat in repeats if len(repeat.calls) > index]
        candidates.sort(key=lambda candidate: sum(candidate.profiled.step_ns))
        yield result.info.name, candidates[(len(candidates) - 1) // 2].profiled


def _call(
    results: Sequence[CallResult], values: Sequence[Sequence[UserValue]], machine: Machine | None
) -> tuple[Call, list[Finding]]:
    first = results[0]
    if first.info.cases:
        return table_call(results)
    series = _timed_series(results, machine) | _counted_series(results) | _user_series(values)
    call = Call(
        name=first.info.name,
        series=series,
        rows=_rows([result.profiled for result in results]),
        profiled_ns=tuple(
            round(_mean(result.profiled.step_ns)) if result.profiled.step_ns else 0 for result in results
        ),
        op_counts=first.profiled.counts.get("ops", ()),
        uncounted=tuple(sorted({name for result in results for name in result.counted.uncounted})),
    )
    return call, list(_findings(results))


def table_call(results: Sequence[CallResult]) -> tuple[Call, list[Finding]]:
    """A table, with the cases that all processes measured, and what is wrong with the others."""
    first = results[0]
    times = [case_times(result.cases) for result in results]
    known = [case for case in first.cases if all(case.id in each for each in times)]
    cases = tuple(
        Case(
            case.id,
            tuple(each[case.id] for each in times),
            case.loops,
            sum(case.operators.values()),
            case.kernels,
            tuple(case.operators),
            case.work,
            case.definition,
            case.allocations,
        )
        for case in sorted(known, key=lambda case: case.id)
    )
    counts = Series("counted", METRICS[CASES].unit, "lower", (float(len(first.info.cases)),) * len(results))
    call = Call(first.info.name, {CASES: counts}, (), (0,) * len(results), cases=cases)
    found = [finding for result in results for finding in result.compiled.findings]
    found += [
        Finding("note", CASE_ERROR, f"the case {case.id} was not measured: {case.problem}")
        for result in results
        for case in result.cases
        if case.problem and case.problem != NOT_REACHED
    ]
    if late := [case.id for result in results for case in result.cases if case.problem == NOT_REACHED]:
        count = f"{len(late)} of {plural(len(first.cases), 'case')}"
        do = "choose cases with --perf-case, or set a larger --perf-budget"
        found.append(Finding("note", CASES_LATE, f"{count} were not reached in the time budget: {some(late)}; {do}"))
    found += [
        Finding("note", CASE_REPEATED, f"the case {case} is listed twice: only the first one is measured")
        for case in first.info.repeated
    ]
    return call, list(dict.fromkeys((*found, *findings(results))))


def case_times(cases: Sequence[CaseResult]) -> dict[str, float]:
    """Nanoseconds of a call of each case that was measured: the lower quartile of its steps."""
    return {case.id: max(quantile(case.step_ns, 0.25), 1.0) / case.loops for case in cases if case.step_ns}


def side_values(
    results: Sequence[SideResult],
    values: Sequence[UserValue] = (),
    machine: Machine | None = None,
    mixes: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, float]:
    """Timed metrics and counts of one of two processes that took turns, named as in a record (`Record.metrics`).

    Times are 1 ns at least, so that there is a ratio; what the author gave in `values` is left as it is. `mixes` has
    the base side's shares of element types (`side_mixes`).
    """
    mixes = mixes or {}
    found = {
        metric_name(result.info.name, name): max(value, 1.0) if METRICS[name].unit == "ns" else value
        for result in results
        if not result.info.cases
        for name, value in _timed_values(result, machine, mixes.get(result.info.name)).items()
    }
    found |= {
        metric_name(result.info.name, name): value
        for result in results
        if result.profiled is not None
        for name, value in _per_step(result.profiled).items()
    }
    return found | {metric_name(each.call, each.name): each.value for each in values}


def side_mixes(results: Sequence[SideResult]) -> dict[str, Mapping[str, float]]:
    """Share of each element type in the FLOPs of each call, of one of two processes; without calls not profiled."""
    return {result.info.name: mix_of(result.profiled.work) for result in results if result.profiled is not None}


def side_rows(results: Sequence[SideResult]) -> dict[str, float]:
    """Nanoseconds a step of every row of one of two processes that took turns, by full name (`row_name`).

    Empty when its steps were not profiled.
    """
    return {
        row_name(result.info.name, row.kind, row.name): float(row.ns[0])
        for result in results
        if result.profiled is not None
        for row in _rows([result.profiled])
    }


def side_parts(results: Sequence[SideResult]) -> dict[str, StepParts]:
    """The parts of the steps of one of two processes that took turns, by call; empty when they were not profiled."""
    return {
        result.info.name: result.profiled.parts
        for result in results
        if result.profiled is not None and result.profiled.parts is not None
    }


def _timed_series(results: Sequence[CallResult], machine: Machine | None) -> dict[str, Series]:
    values = [_timed_values(result, machine) for result in results]
    if any("compile_time" in each for each in values):
        values = [{"compile_time": 0.0, **each} for each in values]
    return {
        name: Series("timed", METRICS[name].unit, better(name), tuple(each[name] for each in values))
        for name in values[0]
        if all(name in each for each in values)
    }


def _timed_values(
    result: CallResult | SideResult, machine: Machine | None, mix: Mapping[str, float] | None = None
) -> dict[str, float]:
    """What is judged with statistics: one number a metric."""
    found = _step_times(result)
    if result.profiled is not None and result.profiled.device_busy_ns:
        found["kernel_time"] = _mean(result.profiled.device_busy_ns)
    if result.compiled.used and result.compiled.cold_ns is not None:
        found["compile_time"] = float(result.compiled.cold_ns)
    if result.info.items is not None:
        found["throughput"] = result.info.items * 1e9 / max(_block_time(result), 1.0)
    used = step_utilization(result, machine, found.get("step_time", found["block_time"]), mix)
    compared = {} if result.profiled is None else rank_metrics(result.profiled)
    return {**found, **used.values, **compared}


def _step_times(result: CallResult | SideResult) -> dict[str, float]:
    """Nanoseconds a step, by metric."""
    cycles = _cycles(result)
    loops = result.timed.loops

    def of_call(share: float) -> float:
        """A quantile over cycles, of one call: whole nanoseconds where a step is one call."""
        return round(quantile(cycles, share)) if loops == 1 else quantile(cycles, share) / loops

    found = {"block_time": _block_time(result)}
    found |= {f"step_p{q}": of_call(q / 100) for q in (50, 95, 99)}
    if result.info.kind == "iterable":
        # Single steps of a loop fed by others alternate between waiting and not: only their mean says anything.
        found["step_p25"] = of_call(0.25)
        found["data_wait"] = _mean(result.timed.wait_ns)
    else:
        found["step_time"] = of_call(0.25)
    if result.info.key.parts.get("threads") == 1:
        # With more threads CPU time counts spinning.
        found["cpu_time"] = result.timed.per_step("cpu_ns")
    return found


def _per_step(profiled: Profiled) -> dict[str, float]:
    """Means of what the profiled steps count, by metric, all ranks together; without what a rank does not count."""
    ranks = profiled.ranks or (profiled,)
    return {
        name: sum(_mean(each.counts[name]) for each in ranks)
        for name in ranks[0].counts
        if all(name in each.counts for each in ranks)
    }


def _counted_series(results: Sequence[CallResult]) -> dict[str, Series]:
    """Every metric that all repeats counted."""
    repeats = [_counts(result) for result in results]
    if not any(result.compiled.used for result in results):
        repeats = [{name: repeat[name] for name in repeat if name not in _OF_COMPILER} for repeat in repeats]
    return {
        name: Series("counted", METRICS[name].unit, "lower", tuple(repeat[name] for repeat in repeats))
        for name in repeats[0]
        if all(name in repeat for repeat in repeats)
    }


_OF_COMPILER = ("recompiles", "graph_breaks")


def _counts(result: CallResult) -> dict[str, float]:
    """What was counted of a call in one repeat, by metric."""
    compiled = {name: getattr(result.compiled, name) for name in _OF_COMPILER}
    return {**_per_step(result.profiled), **traffic(result.profiled), **result.counted.counts, **compiled}


def _user_series(values: Sequence[Sequence[UserValue]]) -> dict[str, Series]:
    found = {}
    for value in values[0]:
        same = [[other.value for other in repeat if other.name == value.name] for repeat in values]
        if all(len(repeat) == 1 for repeat in same):
            kind: Kind = "timed"
            numbers = tuple(repeat[0] for repeat in same)
            found[value.name] = Series(kind, value.unit, value.better, numbers)
    return found


def _rows(profiles: Sequence[Profiled]) -> tuple[Row, ...]:
    """Rows of all repeats joined; one that a repeat did not see has zero time there."""
    totals: list[Mapping[tuple[RowKind, str], tuple[float, int]]] = []
    if not all(profile.step_ns for profile in profiles):
        # The profile of a process is incomplete: there are no rows that all have.
        return ()
    for profile in profiles:
        steps = len(profile.step_ns)
        sums: dict[tuple[RowKind, str], tuple[int, int]] = {}
        for row in profile.rows:
            key = row.kind, _GRAPH_HASH.sub(r"\1", row.name)
            count, ns = sums.get(key, (0, 0))
            sums[key] = count + row.count, ns + row.ns
        totals.append({key: (count / steps, round(ns / steps)) for key, (count, ns) in sums.items()})
    keys = sorted({key for repeat in totals for key in repeat})
    return tuple(
        Row(
            kind,
            name,
            count=_mean([repeat.get((kind, name), (0.0, 0))[0] for repeat in totals]),
            ns=tuple(repeat.get((kind, name), (0.0, 0))[1] for repeat in totals),
        )
        for kind, name in keys
    )


def _findings(results: Sequence[CallResult]) -> Iterable[Finding]:
    where = f"{results[0].info.name}: " if results[0].info.name else ""
    for result in results:
        if tracer := result.timed.tracer:
            text = f"{where}{tracer} is active in the measured process and slows down Python"
            yield Finding("invalid", "tracer", text)
        yield from _notes(where, _notes_on_process(result))
        for part in (result.timed, result.profiled, result.counted, result.compiled):
            yield from (Finding(f.level, f.code, where + f.message) for f in part.findings)
    yield from findings(results)
    if odd := _passes_differ(results):
        yield Finding("note", "passes-differ", f"{where}{odd}")
    if len({frozenset(result.profiled.signatures) for result in results if result.profiled.step_ns}) > 1:
        text = "the processes ran different sequences of operators, so counts that differ are not compared"
        yield Finding("note", "steps-differ", f"{where}{text}")


def _notes_on_process(result: CallResult) -> Iterator[tuple[str, str]]:
    """Codes and texts."""
    timed = result.timed
    if not result.settled.settled:
        spread, steps = abs(result.settled.spread), plural(result.settled.steps, "warm-up step")
        changed = f"step time changed by {spread:.0%} between blocks of steps after {steps}"
        unknown = f"{steps} cannot show whether step time still changes"
        said = changed if math.isfinite(spread) else unknown
        yield "unsettled", f"{said}: use more warm-up steps (--perf-warmup)"
    if timed.compiles:
        yield RECOMPILED, compiling.told(timed.compiles)
    if taken := _taken_by_others(result):
        yield "contended", f"other processes used the CPU during {taken:.0%} of the measurement; that time is excluded"
    if _waited_for_somebody(result):
        short = "the measurement is too short to find the cause, so no time is excluded. Use more steps (--perf-steps)"
        yield "waiting", f"the step waited for a CPU during {_waiting(result):.0%} of the measurement; {short}"
    cpu, system = (sum(getattr(block, name) for block in timed.blocks) for name in ("cpu_ns", "system_ns"))
    if cpu and system / cpu > SYSTEM_SHARE:
        yield "system-time", f"{system / cpu:.0%} of CPU time was spent in the OS kernel"


def _passes_differ(results: Sequence[CallResult]) -> str:
    """What is wrong if all processes' steps take other times when they are traced, in one line; empty if nothing is.

    Costs that a step has in some of its passes only are in no breakdown, or in no verdict. Not asked of steps that wait
    for others: for data, which are read ahead between passes, for other ranks, or with several threads for a CPU.
    """
    for result in results:
        load, threads = result.timed.load, result.info.key.parts.get("threads")
        crowded = threads != 1 and load is not None and load.others > _CROWDED
        if crowded or result.info.kind != "function" or result.profiled.ranks:
            return ""
    for name in ("profiled", "counted"):
        pairs = [pair for result in results if (pair := _timed_and(result, name)) is not None]
        if len(pairs) < len(results):
            continue
        operators = max((count for result in results for count in result.profiled.counts.get("ops", ())), default=0)
        traced_ns = TRACING_NS + TRACING_OP_NS * operators
        longer = all(other > PASSES_FACTOR * own + traced_ns for own, other in pairs)
        shorter = all(own > PASSES_FACTOR * other + TRACING_NS for own, other in pairs)
        if longer or shorter:
            own, other = (format_quantity(statistics.median(each), "ns") for each in zip(*pairs, strict=True))
            return (
                f"a timed step takes {own}, but a {name} step {other}, which tracing does not explain: look for "
                "work that depends on the profiler, or that only some steps do (period=)"
            )
    return ""


def _timed_and(result: CallResult, name: str) -> tuple[float, float] | None:
    """Median times of a timed step, and of a step of another pass; `None` where the other is not known."""
    own = _undelayed(result.timed.step_ns, result.timed.delay_ns)
    if name == "profiled":
        other = _undelayed(result.profiled.step_ns, result.profiled.delay_ns)
    else:
        # The host runs ahead of a device in these steps.
        other = () if result.info.key.parts.get("accelerators") else result.counted.step_ns
    return (statistics.median(own) / result.timed.loops, statistics.median(other)) if own and other else None


def _undelayed(steps: Sequence[int], delays: Sequence[int]) -> Sequence[int]:
    """Times of steps without the waiting for a CPU; as they are where that is not known of each."""
    known = len(steps) == len(delays)
    return [ns - delay for ns, delay in zip(steps, delays, strict=True)] if known else steps


def _cycles(result: CallResult | SideResult) -> tuple[int, ...]:
    """Step times as means over whole periods: with a period of 1, the steps themselves.

    What others took is taken off step by step: most steps of a busy machine lose nothing, some lose much.
    """
    period = result.info.period
    steps = result.timed.step_ns
    if result.timed.delay_ns and (taken := _taken_by_others(result)):
        part = min(1.0, taken / _waiting(result))
        steps = tuple(max(0, round(ns - part * delay)) for ns, delay in zip(steps, result.timed.delay_ns, strict=True))
    return tuple(round(sum(steps[start : start + period]) / period) for start in range(0, len(steps), period))


def _block_time(result: CallResult | SideResult) -> float:
    return (1 - _taken_by_others(result)) * result.timed.per_step("wall_ns")


def _taken_by_others(result: CallResult | SideResult) -> float:
    """Fraction of the timed steps in which the step's thread was ready to run and other processes used the CPU.

    From the scheduler's statistics, independent of the measured code, so that excluding this time favors neither side.
    The scheduler does not report which process ran instead: waiting time is divided between other processes and the
    step's own helpers (loader workers, more threads than CPUs) by their CPU time, and limited to the former's. 0 if the
    fraction is small, or the time too short to know.
    """
    load, waiting = result.timed.load, _waiting(result)
    if load is None or not load.is_telling or waiting <= CONTENDED or not load.others:
        return 0.0
    share = min(waiting * load.others / (load.others + load.helpers), load.others, 1.0)
    return share if share > CONTENDED else 0.0


def _waited_for_somebody(result: CallResult | SideResult) -> bool:
    """Whether the step's thread waited for a CPU for an unknown reason."""
    load = result.timed.load
    return _waiting(result) > CONTENDED and (load is None or not load.is_telling)


def _waiting(result: CallResult | SideResult) -> float:
    """Fraction of the timed steps in which the step's thread was ready to run and did not, at most 1.

    What it waited for between two steps counts, too, and may be longer than the steps.
    """
    return min(result.timed.per_step("run_delay_ns") / max(result.timed.per_step("wall_ns"), 1.0), 1.0)


def _modes(results: Sequence[CallResult]) -> dict[str, tuple[str, ...]]:
    return {"page_faults": tuple(sorted(set(map(_fault_mode, results))))} if results else {}


def _fault_mode(result: CallResult) -> str:
    """Minor page faults per step, coarsely: glibc's allocator fixes the mode for the life of a process."""
    faults = result.timed.per_step("minor_faults")
    return "none" if faults < 1 else "few" if faults < 100 else "many"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each kind of finding once per message's first occurrence, in order."""
    seen: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        seen.setdefault((finding.code, finding.message.split(":")[0]), finding)
    return tuple(seen.values())
