"""Measures peak rates of this machine in a few seconds: FLOP/s by element type, and bandwidth by working-set size.

Utilization is relative to these rates (`machine.constants`). Every rate is the upper decile of short repeats, since
other load makes repeats slower and never faster. The repeats of all rates are interleaved, so that each rate covers the
whole duration.

This module imports torch; only measuring processes import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.autograd.profiler import profile

from pytest_perfdl.machine import state
from pytest_perfdl.machine.constants import Machine
from pytest_perfdl.machine.fitness import processors
from pytest_perfdl.measure.quiet import profiler_chatter
from pytest_perfdl.measure.replay import prepare
from pytest_perfdl.model.errors import ConstantsError
from pytest_perfdl.stats.quantiles import quantile
from pytest_perfdl.system import clocks

TYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Element types whose products are timed."""
SECONDS = 10.0
"""For the repeats of all figures; choosing sizes comes to some more."""
REPEATS = 40
"""Of a figure at most."""
UPPER = 0.9
REPEAT_NS = 4_000_000
"""What a repeat takes at least."""
SIDES = (256, 512, 1024, 2048)
"""Of square matrices; on a device up to eight times as many."""
_LONGEST_NS = 80_000_000
"""Of one product: types that a CPU only emulates are timed at a small size."""
SMALLEST_SET, LARGEST_SET = 2**18, 2**30
"""Bytes of the working sets."""
CACHES = 4
"""The largest working set over the last-level cache."""
_UNKNOWN_CACHE = 2**25
DISTURBED = 0.1
"""Maximum CPU use of other processes during the measurement."""
_EVENTS = 2000
"""Operators whose profiling is timed."""

Say = Callable[[int, int, str], None]


@dataclass(slots=True)
class _Figure:
    """Something that can be done again and again, and how much of it is done at a time."""

    name: str
    work: float
    """FLOPs or bytes of one call."""
    call: Callable[[], object]
    loops: int = 1
    rates: list[float] = field(default_factory=list)
    """Work a second of each repeat."""

    def repeat(self, device: str) -> None:
        """Do it once more."""
        self.rates.append(self.work * self.loops * 1e9 / _timed(self.call, self.loops, device))

    @property
    def rate(self) -> float:
        return quantile(self.rates, UPPER)

    @property
    def spread(self) -> float:
        return (quantile(self.rates, 0.75) - quantile(self.rates, 0.25)) / 2 / quantile(self.rates, 0.5)


def calibrate(key: str, device: str = "cpu", *, seconds: float = SECONDS, say: Say | None = None) -> Machine:
    """Peak rates of this process's threads, or of the current device.

    FLOP/s are those of a product of square matrices, of the size that is fastest. Bandwidth is that of the fastest of a
    copy, a sum of two arrays and a reduction whose arguments and results together are as large as the working set, each
    byte counted once; from 256 KiB to four times the last-level cache. `event_ns` is what recording one operator with
    its shapes adds to its time.

    Parameters
    ----------
    key
        What tells this machine and its torch from others (`replay.prepare`).
    device
        `"cpu"` or `"cuda"`.
    seconds
        For the repeats.
    say
        Called with the number of finished sweeps and their total.

    Raises
    ------
    ConstantsError
        Other processes used the CPUs during the measurement; the message is one line.
    """
    busy = state.Busy.now()
    with torch.no_grad():
        cache = _cache_bytes(device)
        figures = [*_products(device), *_transfers(cache, device)]
        first = clocks.monotonic()
        _sweep(figures, device)
        sweeps = max(3, min(REPEATS, int(seconds / (clocks.monotonic() - first))))
        for number in range(1, sweeps):
            if say:
                say(number, sweeps, "peak rates")
            _sweep(figures, device)
    load = state.Busy.now()
    others = None if load is None else load.since(busy)
    if others is not None and others.is_telling and others.others > DISTURBED:
        raise ConstantsError(
            f"other processes used {others.others:.2f} CPUs during the measurement: stop other processes and measure "
            "again"
        )
    arithmetic = {figure.name: figure for figure in figures if figure.name in TYPES}
    sets: dict[int, _Figure] = {}
    for figure in figures:
        if figure.name not in TYPES:
            known = sets.setdefault(int(figure.name), figure)
            sets[int(figure.name)] = max(known, figure, key=lambda each: each.rate)
    best: dict[str, _Figure] = {**arithmetic, **{str(size): figure for size, figure in sets.items()}}
    return Machine(
        memory_bytes_per_s=sets[max(sets)].rate,
        flops_per_s={name: figure.rate for name, figure in arithmetic.items()},
        bandwidths=tuple((size, sets[size].rate) for size in sorted(sets)),
        cache_bytes=cache,
        event_ns=_event_ns(),
        spread={name: figure.spread for name, figure in best.items()},
        source=dict.fromkeys(("memory_bytes_per_s", "flops_per_s", "bandwidths", "event_ns"), "measured"),
        key=key,
        date=clocks.today().isoformat(),
    )


def _sweep(figures: Sequence[_Figure], device: str) -> None:
    for figure in figures:
        figure.repeat(device)


def _products(device: str) -> Iterator[_Figure]:
    """The fastest product of each type that the device multiplies at all."""
    sides = SIDES if device == "cpu" else (*SIDES, 4096, 8192, 16384)
    for name, dtype in TYPES.items():
        found: list[_Figure] = []
        for side in sides:
            try:
                figure = _product(name, dtype, side, device)
                once = _timed(figure.call, 1, device)
            except RuntimeError:  # not a type of this device, or no memory left
                break
            figure.loops = max(1, REPEAT_NS // once)
            figure.repeat(device)
            found.append(figure)
            if 8 * once > _LONGEST_NS:
                break
        if found:
            fastest = max(found, key=lambda figure: figure.rates[0])
            fastest.rates.clear()
            yield fastest


def _product(name: str, dtype: torch.dtype, side: int, device: str) -> _Figure:
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(left)

    def call() -> object:
        return torch.mm(left, right, out=result)

    call()  # chooses and sets up what multiplies
    return _Figure(name, 2.0 * side**3, call)


def _transfers(cache: int, device: str) -> Iterator[_Figure]:
    """A copy, a sum and a reduction of each working set, largest last; they share one block of memory."""
    largest = min(LARGEST_SET, max(CACHES * cache, SMALLEST_SET))
    sizes = [SMALLEST_SET]
    while sizes[-1] * 4 < largest:
        sizes.append(sizes[-1] * 4)
    if largest > sizes[-1]:
        sizes.append(largest)
    block = torch.ones(sizes[-1] // 4, device=device)
    for size in sizes:
        for call in _of_size(block[: size // 4]):
            call()
            loops = max(1, REPEAT_NS // _timed(call, 1, device))
            yield _Figure(str(size), float(size), call, loops)


def _of_size(block: torch.Tensor) -> Sequence[Callable[[], object]]:
    half, third = len(block) // 2, len(block) // 3
    left, right, result = block[:third], block[third : 2 * third], block[2 * third : 3 * third]
    return (
        lambda: block[:half].copy_(block[half : 2 * half]),
        lambda: torch.add(left, right, out=result),
        lambda: block.sum(),
    )


def _event_ns() -> float:
    """What recording an operator adds to it, shapes included: the median of windows that alternate with and without."""
    number = torch.zeros(1)

    def many() -> None:
        for _ in range(_EVENTS):
            number.add_(1)

    found = []
    for _ in range(5):
        plain = _timed(many, 1, "cpu")
        with profiler_chatter():
            recorder = profile(use_cpu=True, record_shapes=True)
            recorder.__enter__()
            try:
                recorded = _timed(many, 1, "cpu")
            finally:
                recorder.__exit__(None, None, None)
        found.append(max(0.0, (recorded - plain) / _EVENTS))
    return quantile(found, 0.5)


def _cache_bytes(device: str) -> int:
    """Size of the last-level cache: as the system says (Linux), or the device; 32 MiB where neither does."""
    if device != "cpu":
        return int(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0)) or (
            _UNKNOWN_CACHE
        )
    return processors.last_cache_bytes(Path("/")) or _UNKNOWN_CACHE


def _timed(call: Callable[[], object], loops: int, device: str) -> int:
    """Nanoseconds of some calls, with what they start on the device; 1 at least."""
    if device != "cpu":
        torch.cuda.synchronize()
    begun = clocks.perf_counter_ns()
    for _ in range(loops):
        call()
    if device != "cpu":
        torch.cuda.synchronize()
    return max(clocks.perf_counter_ns() - begun, 1)


def main(arguments: Sequence[str]) -> int:
    """Calibrate and write a file: `THREADS DEVICE FILE SECONDS [NAME ...]`.

    0 seconds stand for the usual ones; names are of the context that belongs to the key too.

    1 with the reason as the last line of standard error where that fails.
    """
    threads, device, file, seconds, *key_extra = arguments
    try:
        key = prepare(int(threads), device, tuple(key_extra))
        calibrate(key, device, seconds=float(seconds) or SECONDS).save(Path(file))
    except (ConstantsError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
