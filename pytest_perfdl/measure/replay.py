"""Replays operators of a trace, interleaved with a changed form, and measures other constants that predictions need.

This module imports torch; only measuring processes import it.
"""

from __future__ import annotations

import ast
import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from pytest_perfdl.measure.environment import describe
from pytest_perfdl.system import clocks

Form = Literal["bfloat16", "float16", "channels_last"]
"""What operators can be replayed in, beside what they were recorded in."""

Ratio = tuple[float, float, float]
"""Lower quartile, median and upper quartile of a time over another."""

REPEATS, LEAST_NS = 15, 200_000
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
    if device != "cpu":
        torch.cuda.init()
    return f"{describe(threads, key_extra)[0].slug} torch {torch.__version__}"


def has_device() -> bool:
    """Whether operators can run on a device."""
    return torch.cuda.is_available()


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
        return float(np.quantile([_timed(torch.mm, (matrix, matrix), 40, "cpu") for _ in range(REPEATS)], 0.25))

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
        _timed(torch.mm, (matrix, matrix), 10, "cpu")
        found.append(_timed(next, (batches,), 1, "cpu"))
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
        _timed(function, args, 1, device)
        once = _timed(function, args, 2, device) // 2
        _timed(function, other, 2, device)
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
        _timed(function, other, loops, device) / max(_timed(function, args, loops, device), 1) for _ in range(REPEATS)
    ]


def _timed(function: Callable[..., Any], args: Sequence[Any], loops: int, device: str) -> int:
    """Nanoseconds of some calls, with what they start on the device."""
    _synchronize(device)
    begun = clocks.perf_counter_ns()
    for _ in range(loops):
        function(*args)
    _synchronize(device)
    return clocks.perf_counter_ns() - begun


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
