"""The counted pass: allocations, bytes, peak memory and FLOPs, which need no clock."""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import sys
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pytest_perfdl.analysis.account.peak import GROWING_STEPS
from pytest_perfdl.measure import device, process_group, profiled_pass
from pytest_perfdl.measure.commands import Count, Counted
from pytest_perfdl.measure.memory_pass import held_storages
from pytest_perfdl.measure.optional import Optional, unmeasured
from pytest_perfdl.model.metrics import GROWTH
from pytest_perfdl.model.record import Finding
from pytest_perfdl.system.folders import delete_file

__tracebackhide__ = device.hides

if TYPE_CHECKING:
    from pytest_perfdl.analysis import MemoryFigures
    from pytest_perfdl.measure.device import Device
    from pytest_perfdl.measure.loops import Aside


# FLOPs of a step from torch.utils.flop_counter (1 FMA = 2 FLOP), with formulas for operators that it lacks.
#
# On the CPU it returns 0 for scaled_dot_product_attention, for an LSTM under no_grad and for int8 linear, and anywhere
# for products with vectors. Formulas are registered here for all but int8; other operators without a formula are listed
# by name.


_ARITHMETIC = re.compile(
    r"(^|_)((add|b|badd|addb)?mm|(add)?mv|matmul|(tri)?linear|conv\w*|attention|lstm|gru|rnn\w*|einsum|v?dot)(_|$)"
)
"""Operators whose name says that most of their work is multiplying and adding."""
_WRAPPED = "__dynamo_disable"
"""Where torch keeps the form of a function that Dynamo does not trace."""


class Counter:
    """Counts the FLOPs of what runs inside the `with` block."""

    def __init__(self) -> None:
        self._unknown: set[str] = set()
        self._mode: Any = None
        self._undisturbed: Any = None
        self.total = 0

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Operators that look like arithmetic and were not counted, sorted."""
        return tuple(sorted(self._unknown))

    def __enter__(self) -> Counter:
        self._mode, dispatching = _listing_mode(self._unknown)
        self._undisturbed = _without_dynamo(dispatching)
        self._undisturbed.__enter__()
        self._mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        self._undisturbed.__exit__(kind, error, trace)
        self.total = int(self._mode.get_total_flops())


class _NoModules:
    """In place of torch's follower of modules, which says in which of them FLOPs were spent.

    Its hooks fail on a module that is given a view of a parameter under `no_grad`, and torch.compile warns of them.
    """

    parents = ("Global",)

    def __enter__(self) -> _NoModules:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _listing_mode(unknown: set[str]) -> tuple[Any, tuple[type, ...]]:
    """A FLOP counter that notes the arithmetic it does not know and fails on nothing; the classes that dispatch for it.

    Torch's own takes operators apart where it has no formula, which nested tensors, having no sizes, do not bear.
    """
    import torch
    from torch.utils import flop_counter

    # Older versions of torch have one class for both.
    dispatching: Any = getattr(flop_counter, "_FlopCounterMode", flop_counter.FlopCounterMode)
    is_older = dispatching is flop_counter.FlopCounterMode
    plain = (torch.Tensor, torch.nn.Parameter)

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in plain for kind in types):
            # A subclass knows what it is made of: the operators on that come here next.
            return NotImplemented
        counter = getattr(self, "counter", self)
        counts = counter.flop_counts["Global"]
        before = dict(counts)
        try:
            if is_older and (out := _taken_apart(self, counter, func, args, kwargs or {})) is not NotImplemented:
                return out
            out = dispatching.__torch_dispatch__(self, func, types, args, kwargs)
        except Exception:
            # Run as a whole, it works, or fails as it does without a counter.
            counts.clear()
            counts.update(before)
            out = NotImplemented
        if out is not NotImplemented:
            return out
        out = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", None)
        return out if packet is None else counter._count_flops(packet, out, args, kwargs or {})

    class Counting(flop_counter.FlopCounterMode):
        def __init__(self) -> None:
            super().__init__(display=False, custom_mapping=_formulas())
            self.mod_tracker: Any = _NoModules()

        def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
            formula = self.flop_registry.get(func_packet)
            if formula is None:
                if _ARITHMETIC.search(func_packet.__name__):
                    unknown.add(str(func_packet))
                return out
            try:
                int(formula(*args, **kwargs, out_val=out))
            except Exception:
                # It does not fit these arguments, or the number depends on their values.
                unknown.add(str(func_packet))
                return out
            return super()._count_flops(func_packet, out, args, kwargs)

    if is_older:
        one: Any = type("Counting", (Counting,), {"__torch_dispatch__": dispatch})
        return one(), (dispatching, one)
    own: Any = type("Dispatching", (dispatching,), {"__torch_dispatch__": dispatch})

    class Entering(Counting):
        def __enter__(self) -> Any:
            self.flop_counts.clear()
            self.mode = own(self)
            self.mode.__enter__()
            return self

    return Entering(), (dispatching, own)


def _taken_apart(mode: Any, counter: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """What a composite operator without a formula gives, run as its parts; `NotImplemented` for others.

    Under `inference_mode` a convolution comes as a whole. Newer counters of torch take it apart themselves, that of
    2.4 counts nothing.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    packet = getattr(func, "_overloadpacket", None)
    if packet is None or packet in counter.flop_registry or not hasattr(func, "decompose"):
        return NotImplemented
    # The counter's own `__enter__` would begin a new count.
    TorchDispatchMode.__enter__(mode)
    try:
        return func.decompose(*args, **kwargs)
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)


@contextlib.contextmanager
def _without_dynamo(dispatching: Sequence[Any]) -> Iterator[None]:
    """Keep the counter from importing Dynamo, which takes a second, in a process that has not imported it.

    torch wraps dispatching classes so that Dynamo never traces them, and the wrapper imports Dynamo to say so. Where
    Dynamo is not loaded nothing traces: they are then marked as already wrapped.
    """
    found = [getattr(kind.__torch_dispatch__, "__wrapped__", None) for kind in dispatching]
    inner = [] if "torch._dynamo" in sys.modules else [each for each in found if each is not None]
    for each in inner:
        setattr(each, _WRAPPED, each)
    try:
        yield
    finally:
        for each in inner:
            delattr(each, _WRAPPED)


def _formulas() -> dict[Any, Callable[..., int]]:
    """FLOP formulas for operators that torch leaves out, where this torch has them."""
    import torch
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    def attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_backward_flop_count(grad, query, key, value))

    def rnn_layer(inputs: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> int:
        # One layer over [time, batch, features]: two products a time step, 2 FLOP a multiply-add.
        time, batch, features = inputs
        return int(2 * time * batch * (w_ih[0] * features + w_hh[0] * w_hh[1]))

    def dot(left: Any, *_: Any, **__: Any) -> int:
        return int(2 * left[0])

    def mv(matrix: Any, *_: Any, **__: Any) -> int:
        return int(2 * matrix[0] * matrix[1])

    def addmv(_: Any, matrix: Any, *__: Any, **___: Any) -> int:
        return mv(matrix)

    def addbmm(_: Any, left: Any, right: Any, *__: Any, **___: Any) -> int:
        return int(2 * left[0] * left[1] * left[2] * right[2])

    wanted: dict[str, Callable[..., int]] = {
        "addbmm": addbmm,
        "addmv": addmv,
        "dot": dot,
        "mv": mv,
        "vdot": dot,
        "_scaled_dot_product_flash_attention_for_cpu": attention,
        "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
        "mkldnn_rnn_layer": rnn_layer,
    }
    return {getattr(torch.ops.aten, name): formula for name, formula in wanted.items() if hasattr(torch.ops.aten, name)}


def run(command: Count) -> Generator[bool, Aside | None, Counted]:
    """Count memory over the second of two windows (the first one's peak varies), then FLOPs over another."""
    notes: list[Finding] = []
    static: float | None = None
    with Optional("no-static-memory", "static memory", notes):
        static = _static_bytes()
    memory = _NOTHING
    growth: float | None = None
    complete = False
    with Optional("no-memory", "memory", notes):
        used = device.current()
        memory = yield from (
            _host_memory(command, static or 0.0, notes) if used is None else _device_memory(command, used, notes)
        )
        complete = not command.flops
    # Ranks that take other steps than each other would wait forever: where one has to look closer, all do.
    counted, keeps = process_group.current().agree(every=memory.kept is not None, some=(memory.kept or 0) > 0)
    if command.flops and counted:
        growth = 0.0
        if keeps:
            with Optional("no-growth", "memory growth", notes):
                growth = yield from _growth(command, notes)
    total: float | None = None
    uncounted: tuple[str, ...] = ()
    if command.flops:
        with Optional("no-flops", "FLOPs", notes):
            with Counter() as counter:
                yield from _window(command, last=True)
                complete = True
            total = counter.total / command.steps
            uncounted = counter.uncounted
    if not complete:
        # The call's result is that of a last step, whatever came of counting.
        yield from _window(command, last=True)
    counts = {
        "flops": total,
        "allocations": memory.allocations,
        "alloc_bytes": memory.alloc_bytes,
        "peak_memory": None if memory.peak is None or static is None else static + memory.peak,
        "static_memory": static,
        # Steps that keep nothing have no growth, as they have no recompilations.
        GROWTH: growth or None,
    }
    known = {name: count for name, count in counts.items() if count is not None}
    return Counted(known, uncounted, findings=tuple(notes))


@dataclass(frozen=True, slots=True)
class _Memory:
    """Of a window of steps; `None` where it could not be counted."""

    allocations: float | None
    """Per step."""
    alloc_bytes: float | None
    """Per step."""
    peak: float | None
    """Bytes above the static ones."""
    kept: float | None
    """Bytes that are allocated at its end and were not at its beginning, garbage included."""


_NOTHING = _Memory(None, None, None, None)


def _host_memory(command: Count, static: float, notes: list[Finding]) -> Generator[bool, Aside | None, _Memory]:
    figures = yield from _recorded(command, static, notes, last=not command.flops)
    if figures is None:
        return _NOTHING
    steps = command.steps
    kept = figures.kept_bytes[-steps:]
    # A step of a period begins with what those before it have left.
    peaks = (sum(kept[:index]) + peak for index, peak in enumerate(figures.peak_bytes[-steps:]))
    return _Memory(
        allocations=sum(figures.allocations[-steps:]) / steps,
        alloc_bytes=sum(figures.alloc_bytes[-steps:]) / steps,
        peak=max(peaks),
        kept=sum(kept),
    )


def _growth(command: Count, notes: list[Finding]) -> Generator[bool, Aside | None, float]:
    """Bytes that each period of further steps keeps once garbage is collected, a step; 0 unless all of them do."""
    count = GROWING_STEPS + 1
    if (used := device.current()) is not None:
        held = []
        for _ in range(count):
            yield from _window(command, last=False)
            gc.collect()
            used.synchronize()
            held.append(used.memory().allocated)
        kept = [after - before for before, after in itertools.pairwise(held)]
    else:
        figures = yield from _recorded(command, 0, notes, last=False, periods=count)
        steps = () if figures is None else figures.kept_bytes
        kept = [sum(steps[at : at + command.steps]) for at in range(0, len(steps), command.steps)]
    last = kept[-GROWING_STEPS:]
    grows = len(last) == GROWING_STEPS and all(each > 0 for each in last)
    return sum(last) / GROWING_STEPS / command.steps if grows else 0.0


def _recorded(
    command: Count, held: float, notes: list[Finding], *, last: bool, periods: int = 0
) -> Generator[bool, Aside | None, MemoryFigures | None]:
    """Run two windows under the profiler; figures of both, the memory of the second is added to the exemplar.

    The profiler does not tell of the end of what was allocated before it began: what a step keeps for the next one to
    free is known in the second window alone. The host held `held` bytes when it began. If `periods` is positive, run so
    many windows instead, collect garbage after each of their steps, and add nothing to the exemplar.
    """
    from pytest_perfdl.analysis import memory_figures
    from pytest_perfdl.trace import with_memory

    path = Path(command.scratch) / f"memory-{uuid.uuid4().hex}.json"
    steps = (periods or 2) * command.steps
    yield from profiled_pass.record(
        path, 0, steps, memory=True, keep_last_result=last, after_step=gc.collect if periods else None
    )
    try:
        trace = profiled_pass.read_written(path)
    finally:
        delete_file(path, Path(command.scratch))
    figures = memory_figures(trace)
    # All ranks take the same steps and get the same path, but the exemplar is of the first one.
    own = process_group.current().rank == 0
    if figures is not None and command.exemplar is not None and not periods and own:
        with Optional("no-memory-picture", "the memory timeline", notes):
            highest = max(range(command.steps, len(figures.highest_bytes)), key=figures.highest_bytes.__getitem__)
            stored = Path(command.exemplar)
            picture = with_memory(stored.read_bytes(), trace, highest, round(held))
            if picture is not None:
                stored.write_bytes(picture)
    return figures


def _device_memory(command: Count, used: Device, notes: list[Finding]) -> Generator[bool, Aside | None, _Memory]:
    if command.exemplar is None:
        yield from _window(command, last=False)
    else:
        with Optional("no-memory-picture", "the memory timeline", notes):
            yield from _recorded(command, 0, notes, last=False)
    used.synchronize()
    before = used.memory()
    used.forget_peak()
    yield from _window(command, last=not command.flops)
    used.synchronize()
    after = used.memory()

    def per_step(first: int | None, last: int | None) -> float | None:
        return None if first is None or last is None else (last - first) / command.steps

    found = _Memory(
        allocations=per_step(before.allocations, after.allocations),
        alloc_bytes=per_step(before.allocated_bytes, after.allocated_bytes),
        peak=None if after.peak is None else float(after.peak - before.allocated),
        kept=float(after.allocated - before.allocated),
    )
    absent = {"the number and bytes of allocations": found.allocations, "peak memory": found.peak}
    if lacking := [name for name, value in absent.items() if value is None]:
        why = f"the allocator of {used.name} does not count them"
        notes.append(unmeasured("no-memory", " and ".join(lacking), why))
    return found


def _window(command: Count, *, last: bool) -> Generator[bool, Aside | None, None]:
    """One window of steps; of the last one that there is, the last step's result is the call's."""
    for index in range(command.steps):
        yield last and index == command.steps - 1


def _static_bytes() -> float:
    """Bytes alive between steps: parameters, gradients, optimizer state, inputs.

    The device's allocator knows; on the host the tensors that Python can reach are added up, each storage once.
    """
    if (used := device.current()) is not None:
        used.synchronize()
        return float(used.memory().allocated)
    return float(sum(held.bytes for held in held_storages().values()))
