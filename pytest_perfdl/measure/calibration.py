"""Measures what predictions and utilization need of this machine: peak rates, and replayed operators of a trace."""

from __future__ import annotations

import ast
import contextlib
import functools
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.autograd.profiler import profile

from pytest_perfdl.machine import state
from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.measure.device import HOST, available, initialize, synchronize
from pytest_perfdl.measure.environment import describe, profiler_chatter
from pytest_perfdl.measure.flushing import cache_bytes
from pytest_perfdl.model.errors import ConstantsError
from pytest_perfdl.stats.quantiles import quantile
from pytest_perfdl.system import clocks

# Replays operators of a trace, interleaved with a changed form, and measures other constants that predictions need.
#
# This module imports torch; only measuring processes import it.


Form = Literal["bfloat16", "float16", "channels_last"]
"""What operators can be replayed in, beside what they were recorded in."""

Ratio = tuple[float, float, float]
"""Lower quartile, median and upper quartile of a time over another."""

TURNS, LEAST_NS = 15, 200_000
"""How often both forms alternate, and what the first of them takes at least each time."""

MOST_BYTES = 2**32
"""Largest arguments, and largest results, of a call that is replayed: a trace can ask for any size."""
_LARGE = 2**26

_TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
}
"""Element types as `Input type` names them."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call as a trace has it: the arguments of `record_shapes=True`."""

    operator: str
    """`aten::mm`."""
    dims: Sequence[Any]
    types: Sequence[str]
    strides: Sequence[Any]
    texts: Sequence[str]
    """`Concrete Inputs`."""


def prepare(threads: int, device: str = "cpu", key_extra: tuple[str, ...] = ()) -> str:
    """Let operators use as many threads, or a device; what tells this machine and its torch from others."""
    torch.set_num_threads(threads)
    if device != HOST:
        initialize(device)
    return f"{describe(threads, key_extra)[0].slug} torch {torch.__version__}"


def place(*, on_device: bool) -> str:
    """Where operators can run, as torch calls it: "cpu", "cuda"; empty if there is no device."""
    return available() if on_device else HOST


def ratios(calls: Mapping[str, Recorded], form: Form, device: str) -> Iterator[tuple[str, Ratio | None]]:
    """Time of each call in a form over its time as recorded, by key; `None` for what cannot be replayed.

    Both forms alternate on tensors of random numbers. In channels-last format the upper quartile is that of replays
    with one tensor in the old format, if that takes longer: a loss that knows no format hands such gradients back.
    """
    with torch.no_grad():
        for key, call in calls.items():
            args = _arguments(call, device)
            yield key, None if args is None else _ratio(call.operator, args, form, device)


def contention() -> float:
    """How much longer the host computes while another process does too; 1 at least: two CPUs may be one core."""
    matrix = torch.randn(256, 256)

    def spent() -> float:
        return float(np.quantile([_replayed_ns(torch.mm, (matrix, matrix), 40, "cpu") for _ in range(TURNS)], 0.25))

    alone = spent()
    with _neighbor():
        beside = spent()
    return max(beside / alone, 1.0)


@contextlib.contextmanager
def _neighbor() -> Iterator[None]:
    # Not forked: this process may have threads, and a device.
    spawned = multiprocessing.get_context("spawn")
    reader, writer = spawned.Pipe(duplex=False)
    process = spawned.Process(target=_compute, args=(writer,), daemon=True)
    process.start()
    try:
        reader.recv()
        yield
    finally:
        process.kill()
        process.join()


def _compute(begun: Any) -> None:
    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)
    torch.mm(matrix, matrix)
    begun.send(None)
    while True:
        torch.mm(matrix, matrix)


class _Ready(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that take no time to make."""

    def __len__(self) -> int:
        return 2**20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(256)


def hand_over_ns() -> float:
    """Host time of taking a batch that is ready from a DataLoader's worker, with computing between batches."""
    matrix = torch.randn(256, 256)
    batches = iter(torch.utils.data.DataLoader(_Ready(), 8, num_workers=1))
    found = []
    for _ in range(60):
        _replayed_ns(torch.mm, (matrix, matrix), 10, "cpu")
        found.append(_replayed_ns(next, (batches,), 1, "cpu"))
    return float(np.median(found[10:]))


def _arguments(call: Recorded, device: str) -> list[Any] | None:
    """Arguments like those of the call; `None` where they cannot be made, or are too large to."""
    try:
        if sum(_bytes(call, place, kind) for place, kind in enumerate(call.types)) > MOST_BYTES:
            return None
        return [_argument(call, place, kind, device) for place, kind in enumerate(call.types)]
    except (ValueError, SyntaxError, RuntimeError, TypeError, IndexError, OverflowError, MemoryError):
        return None


def _bytes(call: Recorded, place: int, kind: str) -> int:
    """What a tensor among the arguments takes, while it is made of random numbers too."""
    return max(8, 4 + _TYPES[kind].itemsize) * _numbers(call, place) if kind in _TYPES else 0


def _numbers(call: Recorded, place: int) -> int:
    """How many numbers lie between a tensor's first and last."""
    shape = call.dims[place]
    strides = call.strides[place] if place < len(call.strides) else []
    return max(1, 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if shape else 1)


def _argument(call: Recorded, place: int, kind: str, device: str) -> Any:
    text = call.texts[place] if place < len(call.texts) else ""
    if kind in _TYPES:
        shape, dtype = call.dims[place], _TYPES[kind]
        strides = call.strides[place] if place < len(call.strides) else []
        make = torch.randn if dtype.is_floating_point else torch.zeros
        return make(_numbers(call, place), device=device).to(dtype).as_strided(shape, strides)
    if "List" in kind and kind != "ScalarList":
        raise ValueError(kind)
    return ast.literal_eval(text) if text else None


def _in_form(form: Form, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if form == "channels_last":
        return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
    return value.to(getattr(torch, form)) if value.is_floating_point() else value


def _called(operator: str, count: int) -> tuple[Callable[..., Any] | None, set[int]]:
    """An operator that takes `count` arguments by position, and which of them stay as they are.

    The profiler records arguments in the order of the schema, whether they may be given by position or not. Statistics
    of attention stay in float32 whatever the others are.
    """
    packet = getattr(torch.ops.aten, operator.removeprefix("aten::"), None)
    if packet is None:
        return None, set()
    schemas = [getattr(packet, name)._schema.arguments for name in packet.overloads()]
    schema = next((each for each in schemas if len(each) == count), ())
    named = [each.name for each in schema if each.kwarg_only]
    first = len(schema) - len(named)

    def function(*given: Any) -> Any:
        return packet(*given[:first], **dict(zip(named, given[first:], strict=True)))

    same = {place for place, each in enumerate(schema) if each.name == "logsumexp"}
    return (function if named else packet), same


def _ratio(operator: str, args: list[Any], form: Form, device: str) -> Ratio | None:
    function, same = _called(operator, len(args))
    if function is None or not _fits(function, args):
        return None
    try:
        other = [value if place in same else _in_form(form, value) for place, value in enumerate(args)]
        _replayed_ns(function, args, 1, device)
        once = _replayed_ns(function, args, 2, device) // 2
        _replayed_ns(function, other, 2, device)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, OverflowError, MemoryError):
        return None
    loops = max(1, LEAST_NS // max(once, 1))
    low, middle, high = np.quantile(_in_turns(function, other, args, loops, device), (0.25, 0.5, 0.75)).tolist()
    images = [place for place, value in enumerate(args) if isinstance(value, torch.Tensor) and value.dim() == 4]
    if form == "channels_last" and len(images) > 1:
        mixed = [args[images[0]] if place == images[0] else value for place, value in enumerate(other)]
        high = max(high, float(np.quantile(_in_turns(function, mixed, args, loops, device), 0.75)))
    return low, middle, high


def _fits(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether what a call returns is no larger than `MOST_BYTES`; small arguments can make much of themselves.

    Tried on tensors without numbers; where that fails, no number among the arguments may be large.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    try:
        with mode:
            made = function(*(mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in args))
    except Exception:
        return not any(isinstance(each, (int, float)) and abs(each) > _LARGE for each in args)
    tensors = made if isinstance(made, (tuple, list)) else (made,)
    sizes = [each.numel() * each.element_size() for each in tensors if isinstance(each, torch.Tensor)]
    return sum(sizes) <= MOST_BYTES


def _in_turns(
    function: Callable[..., Any], other: Sequence[Any], args: Sequence[Any], loops: int, device: str
) -> list[float]:
    return [
        _replayed_ns(function, other, loops, device) / max(_replayed_ns(function, args, loops, device), 1)
        for _ in range(TURNS)
    ]


def _replayed_ns(function: Callable[..., Any], args: Sequence[Any], loops: int, device: str) -> int:
    """Nanoseconds of some calls, with what they start on the device."""
    return _called_ns(functools.partial(function, *args), loops, device)


# Measures peak rates of this machine in a few seconds: FLOP/s by element type, and bandwidth by working-set size.
#
# Utilization is relative to these rates (`machine.rates`). Every rate is the upper decile of short repeats, since
# other load makes repeats slower and never faster. The repeats of all rates are interleaved, so that each rate covers
# the whole duration.
#
# This module imports torch; only measuring processes import it.


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
        self.rates.append(self.work * self.loops * 1e9 / _called_ns(self.call, self.loops, device))

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
        What tells this machine and its torch from others (`calibration.prepare`).
    device
        As `place` gives it.
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
        cache = cache_bytes(device)
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
                once = _called_ns(figure.call, 1, device)
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
            loops = max(1, REPEAT_NS // _called_ns(call, 1, device))
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
        plain = _called_ns(many, 1, "cpu")
        with profiler_chatter():
            recorder = profile(use_cpu=True, record_shapes=True)
            recorder.__enter__()
            try:
                recorded = _called_ns(many, 1, "cpu")
            finally:
                recorder.__exit__(None, None, None)
        found.append(max(0.0, (recorded - plain) / _EVENTS))
    return quantile(found, 0.5)


def _called_ns(call: Callable[[], object], loops: int, device: str) -> int:
    """Nanoseconds of some calls, with what they start on the device; 1 at least."""
    if device != HOST:
        synchronize()
    begun = clocks.perf_counter_ns()
    for _ in range(loops):
        call()
    if device != HOST:
        synchronize()
    return max(clocks.perf_counter_ns() - begun, 1)


def main(arguments: Sequence[str]) -> int:
    """Calibrate and write a file: `THREADS DEVICE FILE SECONDS [NAME ...]`; DEVICE is "cpu" or "device".

    0 seconds stand for the usual ones; names are of the context that belongs to the key too.

    1 with the reason as the last line of standard error where that fails.
    """
    threads, device, file, seconds, *key_extra = arguments
    try:
        if not (device := place(on_device=device != HOST)):
            raise ConstantsError("torch finds no GPU")
        key = prepare(int(threads), device, tuple(key_extra))
        calibrate(key, device, seconds=float(seconds) or SECONDS).save(Path(file))
    except (ConstantsError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
