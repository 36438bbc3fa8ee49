"""A fixed workload: if its time changes, the machine changed, not the code under test.

`reference_ns` is short enough to run around every test; `drift` compares its times before and after, and the record has
one value per process, so that later runs know the speed of the machine (`judge.stored_repeats.find_drift`).
`machine_noise` runs a longer workload in blocks, to find the smallest difference that this machine can detect.
"""

from __future__ import annotations

import functools
import math
import mmap
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_perfdl.system.clocks import perf_counter_ns

_BYTES = 4 * 2**20
"""More than a core's own caches hold, so that memory that others keep busy is felt."""
_COPIES = 4
_ROUNDS = 40_000


@functools.cache
def _buffers() -> tuple[memoryview, memoryview]:
    """Source and target of the copies, every page of them touched.

    Mapped apart from the heap: what the measured step finds there, and with it its page faults, must stay as it was.
    """
    page = bytes(range(256)) * (mmap.PAGESIZE // 256)
    source, target = memoryview(mmap.mmap(-1, _BYTES)), memoryview(mmap.mmap(-1, _BYTES))
    for start in range(0, _BYTES, mmap.PAGESIZE):
        source[start : start + mmap.PAGESIZE] = target[start : start + mmap.PAGESIZE] = page
    return source, target


def _work() -> int:
    """Integer arithmetic and copying, about 5 ms; the same work and the same result every time."""
    source, target = _buffers()
    value = 1
    for _ in range(_ROUNDS):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    for _ in range(_COPIES):
        target[:] = source
    return value


def _no_delay() -> int:
    return 0


def reference_ns(repeats: int = 3, run_delay_ns: Callable[[], int] = _no_delay) -> tuple[int, ...]:
    """Time the reference workload.

    One run before them warms up and is not counted. Neither torch nor numpy is used, nothing is allocated from the
    heap and no thread is started, so that it may be called beside a measurement.

    Parameters
    ----------
    repeats
        Runs to time, each about 5 ms.
    run_delay_ns
        The scheduler's account of how long this thread waited for a CPU that other processes used
        (`machine.run_delay_reader`): that is not the machine's speed, and is taken off.

    Returns
    -------
    tuple[int, ...]
        Nanoseconds of each run.
    """
    _work()
    times = []
    for _ in range(repeats):
        delayed = run_delay_ns()
        taken = _time(_work)
        times.append(max(1, taken - (run_delay_ns() - delayed)))
    return tuple(times)


def _time(function: Callable[[], object]) -> int:
    start = perf_counter_ns()
    function()
    return perf_counter_ns() - start


@dataclass(frozen=True, slots=True)
class SpeedDrift:
    """How the machine's speed changed between two moments."""

    ratio: float
    """Median time after, over median time before: above 1 the machine became slower."""
    spread: float
    """The larger of both sides' (slowest - fastest) / median: what one moment's runs differ by anyway."""

    def beyond(self, least: float) -> bool:
        """Whether the change is larger than `least`, a ratio, and than the runs differ by anyway."""
        return max(self.ratio, 1 / self.ratio) - 1 > max(least, self.spread)


def drift(before: Sequence[int], after: Sequence[int]) -> SpeedDrift:
    """Compare what `reference_ns` gave at two moments.

    Raises
    ------
    ValueError
        When a side is empty or holds a time that is not positive.
    """
    if not before or not after or min(*before, *after) <= 0:
        raise ValueError("both sides need at least one positive time")
    middle = [statistics.median(side) for side in (before, after)]
    spreads = [(max(side) - min(side)) / center for side, center in zip((before, after), middle, strict=True)]
    return SpeedDrift(middle[1] / middle[0], max(spreads))


@dataclass(frozen=True, slots=True)
class Noise:
    """How much one and the same work differs on this machine, as ratios."""

    spread: float
    """Standard deviation of the logarithms of the blocks' medians."""
    span: float
    """(slowest - fastest) / median of the blocks' medians."""

    @property
    def limit(self) -> float:
        """Smallest difference that ten paired rounds find with 95 % certainty at alpha .005, not below 2 %.

        (z_.995 + z_.95) * SD * sqrt(2 / 10), the usual formula for two means; real tests differ between processes
        too, so this is the best case.
        """
        return max(_LEAST_EFFECT, (_Z_ALPHA + _Z_POWER) * self.spread * math.sqrt(2 / _ROUNDS_OF_A_LOOK))


_Z_ALPHA = 2.576
_Z_POWER = 1.645
_ROUNDS_OF_A_LOOK = 10
_LEAST_EFFECT = 0.02
"""What counts as noise in a step's time however well it is measured."""


def noise(blocks: Sequence[Sequence[int]]) -> Noise:
    """Spread of blocks of timed runs, at least two blocks of positive times.

    The median of a block leaves single interruptions out; what differs between blocks is what remains in a
    measurement, however many steps it has.
    """
    medians = [statistics.median(block) for block in blocks]
    spread = statistics.stdev(map(math.log, medians))
    return Noise(spread, (max(medians) - min(medians)) / statistics.median(medians))


def machine_noise(seconds: float = 1.0, blocks: int = 20) -> Noise:
    """Time a workload of Python and numpy in blocks, for about so many seconds in all."""
    work = _mixed_work()
    work()
    one = max(1, _time(work))
    runs = max(3, round(seconds * 1e9 / one / blocks))
    return noise([[_time(work) for _ in range(runs)] for _ in range(blocks)])


def _mixed_work() -> Callable[[], object]:
    """Python, memory and vector arithmetic on one thread, into arrays that stay: about 7 ms."""
    import numpy as np

    values = np.random.default_rng(0).standard_normal(100_000)
    target = np.empty_like(values)

    def work() -> None:
        _work()
        np.copyto(target, values)
        target.partition(50_000)
        np.tanh(values, out=target)

    return work
