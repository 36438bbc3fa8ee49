"""The state of the machine around the timed passes: one reference time per process, and findings with remedies."""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_perfdl.machine.reference_load import drift
from pytest_perfdl.measure.timed_pass import lower_quartile
from pytest_perfdl.model.record import STALLED, Finding
from pytest_perfdl.model.units import format_quantity, plural

if TYPE_CHECKING:
    from pytest_perfdl.machine.state import Surroundings
    from pytest_perfdl.measure.commands import CallResult, SideResult, Timed

CHANGED = 0.10
"""Change of the reference load's time, or of the CPU clock, within a timed pass from which it is reported."""
STALL = 50
"""Multiple of the median step from which a single step is reported."""
_LEAST_STALL_NS = 1_000_000
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
        passes = [result.timed for result in results if result.info.name == name]
        yield from _of_call(passes, f"{name}: " if name else "")


def _of_call(passes: Sequence[Timed], where: str) -> Iterator[Finding]:
    around = [timed.surroundings for timed in passes]
    if (stall := max(map(_stall, passes))) > STALL:
        yield Finding(
            "note",
            STALLED,
            f"{where}a step took {stall:.0f} times as long as the median step: block_time and the upper percentiles "
            "include it, step_time does not",
        )
    changes = [change for timed in passes if (change := _speed_change(timed)) > CHANGED]
    if changes:
        yield Finding(
            "note",
            "machine-changed",
            f"{where}the machine's speed changed by {max(changes):.0%} during the measurement (reference load). Likely "
            "causes: other processes or CPU frequency changes. Run `perfdl check`",
        )
    if clocks := max(around, key=_clock_change).clocks_mhz:
        low, high = min(clocks), max(clocks)
        if high > low * (1 + CHANGED):
            yield Finding(
                "note",
                "clock-changed",
                f"{where}the CPU clock varied between {low:.0f} and {high:.0f} MHz during timing: fix the frequency "
                "(sudo cpupower frequency-set -g performance)",
            )
    if throttled := max(part.throttled or 0 for part in around):
        yield Finding(
            "note",
            "throttled",
            f"{where}a CPU was throttled {_times(throttled)} during timing because of temperature or power: let the "
            "machine cool; check the fan",
        )
    if swapped := max(part.swapped_pages or 0 for part in around):
        yield Finding(
            "note",
            "swapping",
            f"{where}{format_quantity(swapped * mmap.PAGESIZE, 'B')} were swapped during timing: free memory, or "
            "sudo swapoff -a",
        )
    if faults := max(part.major_faults for part in around):
        yield Finding(
            "note",
            "major-faults",
            f"{where}the step waited for the disk {_times(faults)} during timing (major page faults): free memory, or "
            "read mapped files before measuring",
        )
    if (stolen := max(map(_stolen_share, around))) > STOLEN:
        yield Finding(
            "note",
            "stolen-time",
            f"{where}other virtual machines on the host used {stolen:.0%} of the CPU time during timing: use a "
            "dedicated machine, or compare on one machine (pytest --perf-against REF)",
        )


def _stall(timed: Timed) -> float:
    """The longest step as a multiple of the median one, without the time in which other processes used the CPU.

    0 if it is short: interrupts stall any step for less than a millisecond.
    """
    delays = timed.delay_ns or (0,) * len(timed.step_ns)
    longest = max(taken - delay for taken, delay in zip(timed.step_ns, delays, strict=True))
    return longest / max(statistics.median(timed.step_ns), 1) if longest >= _LEAST_STALL_NS else 0.0


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
