"""Peak memory: from the allocations of a test or a trace to an account in which every byte alive belongs to one row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_perfdl.analysis.events.intervals import Steps
from pytest_perfdl.analysis.events.nesting import Mask, innermost
from pytest_perfdl.analysis.events.operators import operator_at
from pytest_perfdl.analysis.events.origins import module_paths, source_lines
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import backward_rows, input_rows, optimizer_rows
from pytest_perfdl.analysis.overview.memory_timeline import device_name
from pytest_perfdl.model.memory import Category, Held, MemoryAccount, MemoryRow, Phase
from pytest_perfdl.trace.model import Rows, Trace

# From the allocations of a test to the account of a step's peak: every byte alive then belongs to one row.


MOST_PASSED = 200
"""Rows of what was not alive at the peak."""
CURVE_POINTS = 400
"""Of the curve of allocated bytes, the peak among them."""
GROWING_STEPS = 5
"""Steps at the end of each of which more must be allocated than at the end of the one before."""
MOST_NAMES = 8
"""Names of parameters that a row has."""
MOST_CALLERS = 6
"""Lines that led to a row's own."""


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation of one device, and what is known of it; times are nanoseconds of one clock, each of its own."""

    address: int
    bytes: int
    begin: int
    device: str
    end: int | None = None
    """When it was freed; `None` for not yet."""
    place: int = 0
    """Number of the place in the user's code; of what a node of autograd's graph allocates, of its forward operator."""
    called: int = 0
    """Of what a node allocates, number of the place that called the backward pass; else 0."""
    module: str = ""
    operator: str = ""
    phase: Phase = ""
    by_node: bool = False
    """Whether a node of autograd's graph allocated it, rather than Python or an operator of the forward pass."""
    reserved: int = 0
    """Bytes that the device's allocator held then."""
    saved: bool = False
    """Whether it was saved for the backward pass."""
    read_by_node: bool = False
    """Whether a node of autograd's graph read it."""
    gradient: bool = False
    """Whether it was accumulated as the gradient of a leaf."""
    parameter: str = ""
    """Name of the parameter that it is the gradient of."""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    """Of the first operand of an operator that lay in it, of those that fill it if one does."""
    _fills: bool = field(default=False, repr=False)

    def see(self, dtype: str, shape: tuple[int, ...], *, by_node: bool) -> None:
        """Note that an operator read or wrote a tensor in it."""
        self.read_by_node |= by_node
        if self._fills:
            return
        fills = _filled(dtype, shape) == self.bytes
        if self.shape is None or fills:
            self.dtype, self.shape, self._fills = dtype, shape, fills


_ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}


def _filled(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor without gaps; 0 for a type that is not known."""
    return math.prod(shape) * _ITEM_BYTES.get(dtype, 0)


@dataclass(frozen=True, slots=True)
class Window:
    """A step, or a period of steps, on the recorder's clock."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recorder knows of a test."""

    allocations: Sequence[Allocation]
    """In the order of time."""
    foreign: Sequence[tuple[int, int, int]]
    """What was freed of the device and had been allocated before it began: time, address and bytes."""
    steps: Sequence[Window]
    """Each step, or period of steps."""
    lines: Callable[[int], tuple[str, ...]]
    """The lines of the user's code at a place, the innermost first."""


def peak_account(
    recorded: Recorded, held: Mapping[int, Held], device: str = "cpu", *, growth: bool = False, before: int = 0
) -> MemoryAccount:
    """The account of the peak of the last step on one device.

    What is alive when the step begins is what the recorder saw allocated and not freed, and the storages that Python
    can reach then, whoever allocated them. The peak is the most that is alive at once from there to the step's end.

    Each allocation has the category of the first of these that holds:

    - a parameter or buffer of a module, a gradient of a leaf, or state of an optimizer, of what is alive when the step
      begins: by the object that holds it;
    - inputs: allocated before the first step, or while a batch is fetched or a step is set up;
    - gradients: accumulated into a leaf;
    - activations: saved for the backward pass, allocated by Python and read by a node of autograd's graph, or what a
      module's forward pass made in an earlier step and somebody keeps;
    - temporaries: all else; those of an earlier step are `kept`;
    - other: freed in the step though nobody saw it allocated.

    Parameters
    ----------
    held
        Storages that Python could reach when the step began, by address; of all devices.
    growth
        Whether the steps before are to be searched for what accumulates; garbage was collected after each.
    before
        Bytes that were allocated before the recorder began, and stay so.
    """
    begin, end = recorded.steps[-1].begin, recorded.steps[-1].end
    known = [each for each in recorded.allocations if each.device == device and each.begin < end]
    alive = [each for each in known if each.begin < begin and (each.end is None or each.end > begin)]
    addresses = {each.address for each in alive}
    static = {address: each for address, each in held.items() if each.device == device}
    unseen = {address: each for address, each in static.items() if address not in addresses and each.bytes}
    freed = [each for each in recorded.foreign if begin < each[0] < end]
    # Of an address that Python reaches, the first is what it held when the step began.
    first_of = {address: time for time, address, _ in reversed(freed) if address in unseen}
    lost = [(time, size) for time, address, size in freed if first_of.get(address) != time]
    gone_at = [(time, unseen[address].bytes) for address, time in first_of.items()]
    reached = sum(each.bytes for each in unseen.values())
    before_step = before + sum(each.bytes for each in alive) + reached + sum(size for _, size in lost)
    moments, totals = _totals(known, [*gone_at, *lost], begin, end, before_step)
    top = max(range(len(totals)), key=totals.__getitem__)
    at = moments[top]

    def there(each: Allocation) -> bool:
        return each.begin <= at and (each.end is None or each.end > at)

    describe = _Rows(recorded, begin, end, static, recorded.steps[0].begin, _modules(known))
    rows = describe.rows(filter(there, known))
    gone = {address for address, time in first_of.items() if time <= at}
    rows += [_make_storage(each) for address, each in unseen.items() if address not in gone]
    rows += _make_lost([*(size for time, size in lost if time > at), *([before] if before else [])])
    passed = describe.rows(each for each in known if each.begin >= begin and not there(each))
    highest = next((each for each in known if each.begin == at), None)
    unreached = sum(each.bytes for each in alive if each.address not in static)
    return MemoryAccount(
        device=device,
        rows=tuple(sorted(rows, key=_order)),
        peak_bytes=totals[top],
        at_ns=at - begin,
        step_ns=end - begin,
        curve=_thin_curve(moments, totals, top, begin),
        notes=(_UNREACHED.format(unreached),) if unreached else (),
        reserved_bytes=highest.reserved if highest is not None and device != "cpu" else None,
        moment=None if highest is None else next(iter(describe.rows([highest]))),
        passed=tuple(sorted(passed, key=_order)[:MOST_PASSED]),
        step_ends=step_ends(recorded, device),
        growing=growing(recorded, device) if growth else (),
    )


_UNREACHED = "{} bytes are still allocated between steps, although no Python object refers to them"


def step_ends(recorded: Recorded, device: str = "cpu") -> tuple[int, ...]:
    """Bytes alive at the end of each step, before the next one begins, of those that the recorder saw allocated."""
    own = [each for each in recorded.allocations if each.device == device]
    after = [*(step.begin for step in recorded.steps[1:]), None]
    return tuple(
        sum(each.bytes for each in own if _outlives(each, step.end, begin))
        for step, begin in zip(recorded.steps, after, strict=True)
    )


def growing(recorded: Recorded, device: str = "cpu") -> tuple[MemoryRow, ...]:
    """What accumulates: allocated in each of the last `GROWING_STEPS` steps, and not freed by the end of the last one.

    Rows are the last step's. What the last step alone keeps until the next one frees it does not accumulate, so that a
    row must be alive from all of these steps.
    """
    steps = recorded.steps[-GROWING_STEPS:]
    if len(steps) < GROWING_STEPS:
        return ()
    begin, end = steps[0].begin, steps[-1].end
    left = [
        each for each in recorded.allocations if each.device == device and begin <= each.begin and _outlives(each, end)
    ]
    describe = _Rows(recorded, steps[-1].begin, end, {}, recorded.steps[0].begin)
    by_line: dict[tuple[object, ...], list[Allocation]] = {}
    for each in left:
        by_line.setdefault((each.place, each.module, each.operator, each.phase), []).append(each)
    found: list[MemoryRow] = []
    for allocations in by_line.values():
        of_step = [[each for each in allocations if step.begin <= each.begin < step.end] for step in steps]
        if all(of_step):
            found += describe.rows(of_step[-1])
    return tuple(sorted(found, key=_order))


def _outlives(each: Allocation, end: int, after: int | None = None) -> bool:
    """Whether an allocation of a step or before it is alive once that has ended, and garbage is collected."""
    return each.begin < end and (each.end is None or (after is not None and each.end > after))


def _totals(
    known: Iterable[Allocation], freed: Iterable[tuple[int, int]], begin: int, end: int, total: int
) -> tuple[list[int], list[int]]:
    """Moments of the step, the first of them its beginning, and the bytes alive after each.

    `freed` are time and bytes of what is freed and has no allocation, and `total` is what is alive at the beginning.
    """
    changes = [(each.begin, each.bytes) for each in known if begin <= each.begin < end]
    changes += [(each.end, -each.bytes) for each in known if each.end is not None and begin < each.end < end]
    changes += [(time, -size) for time, size in freed]
    changes.sort()
    moments, totals = [begin], [total]
    for time, change in changes:
        total += change
        moments.append(time)
        totals.append(total)
    return moments, totals


def _thin_curve(moments: Sequence[int], totals: Sequence[int], top: int, begin: int) -> tuple[tuple[int, int], ...]:
    """The curve in at most `CURVE_POINTS` pieces, of each of which the highest point is kept."""
    piece = max(1, -(-len(moments) // CURVE_POINTS))
    kept = {max(range(at, min(at + piece, len(totals))), key=totals.__getitem__) for at in range(0, len(totals), piece)}
    kept |= {top, len(totals) - 1}
    return tuple((moments[index] - begin, totals[index]) for index in sorted(kept))


def _order(row: MemoryRow) -> tuple[object, ...]:
    return -row.bytes, row.category, row.module, row.line, row.operator, row.shape


def _make_lost(sizes: Sequence[int]) -> list[MemoryRow]:
    if not sizes:
        return []
    return [MemoryRow("other", "", "", "", "", "", "", len(sizes), sum(sizes), -1, None)]


def _make_storage(each: Held) -> MemoryRow:
    """The row of a storage that nobody saw allocated: made when a module was imported, or by numpy."""
    return MemoryRow(
        category=each.category or "inputs",
        module=each.module,
        line="",
        phase="setup",
        operator="",
        dtype=each.dtype,
        shape=_text(each.shape),
        tensors=1,
        bytes=each.bytes,
        lives_from=-1,
        lives_to=None,
        parameters=(each.name, *each.shared) if each.name else (),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Makes rows of allocations that are alike."""

    recorded: Recorded
    begin: int
    end: int
    static: Mapping[int, Held]
    first: int
    """When the first step began."""
    modules: Mapping[tuple[int, str], str] = field(default_factory=dict)
    """By place and operator, the module of steps whose modules are known, for those whose are not: the first one's."""

    def rows(self, allocations: Iterable[Allocation]) -> list[MemoryRow]:
        """One for all that agree in everything but address, size in bytes of the same shape, and lifetime."""
        groups: dict[tuple[object, ...], list[tuple[Allocation, Category, Held | None]]] = {}
        for each in allocations:
            owner = self.static.get(each.address) if each.begin < self.begin else None
            category = self._category(each, owner)
            shape = self._shape(each, owner)
            module = self._module(each, owner)
            place, kept = _place(each, category), self._kept(each, category)
            key = (category, module, place, each.phase, each.operator, *shape, kept)
            groups.setdefault(key, []).append((each, category, owner))
        return [self._row(members) for members in groups.values()]

    def _category(self, each: Allocation, owner: Held | None) -> Category:
        if owner is not None and owner.category is not None:
            return owner.category
        if each.begin < self.first or each.phase == "input":
            return "inputs"
        if each.gradient:
            return "gradients"
        if each.saved or (each.read_by_node and not each.by_node):
            return "activations"
        if each.begin < self.begin and not each.by_node and self._module(each, owner):
            return "activations"
        return "temporaries"

    def _module(self, each: Allocation, owner: Held | None) -> str:
        if owner is not None and owner.name:
            return owner.module
        return each.module or self.modules.get((each.place, each.operator), "")

    def _kept(self, each: Allocation, category: Category) -> bool:
        made = category in ("activations", "temporaries", "gradients") or each.phase == "input"
        return made and self.first <= each.begin < self.begin

    def _shape(self, each: Allocation, owner: Held | None) -> tuple[str, str]:
        # What Python holds may be a view of a part: the bytes are of what fills them.
        views = [(owner.dtype, owner.shape)] if owner is not None else []
        views += [(each.dtype, each.shape)] if each.shape is not None else []
        for dtype, shape in views:
            if _filled(dtype, shape) == each.bytes:
                return dtype, _text(shape)
        return views[0][0] if views else "", ""

    def _row(self, members: Sequence[tuple[Allocation, Category, Held | None]]) -> MemoryRow:
        each, category, owner = members[0]
        dtype, shape = self._shape(each, owner)
        place = _place(each, category)
        lines = self.recorded.lines(place)
        if place != each.place:
            lines = (*lines[:1], *self.recorded.lines(each.place), *lines[1:])
        names = [name for one, _, held in members for name in _names(one, held)]
        ends = [one.end for one, _, _ in members]
        inside = [end for end in ends if end is not None and end < self.end]
        return MemoryRow(
            category=category,
            module=self._module(each, owner),
            line=lines[0] if lines else "",
            phase="setup" if each.begin < self.first and not each.phase else each.phase,
            operator=each.operator,
            dtype=dtype,
            shape=shape,
            tensors=len(members),
            bytes=sum(one.bytes for one, _, _ in members),
            lives_from=min(one.begin for one, _, _ in members) - self.begin,
            lives_to=max(inside) - self.begin if len(inside) == len(ends) else None,
            parameters=tuple(dict.fromkeys(filter(None, names)))[:MOST_NAMES],
            callers=lines[1 : 1 + MOST_CALLERS],
            kept=self._kept(each, category),
        )


def _names(each: Allocation, owner: Held | None) -> tuple[str, ...]:
    return (each.parameter,) if owner is None else (owner.name, *owner.shared)


def _place(each: Allocation, category: Category) -> int:
    """The place that a row names: a gradient is of the line that called the backward pass."""
    return each.called if category == "gradients" and each.called else each.place


def _modules(allocations: Iterable[Allocation]) -> dict[tuple[int, str], str]:
    """By place and operator, the one module that it allocates in; without those that allocate in several."""
    found: dict[tuple[int, str], set[str]] = {}
    for each in allocations:
        if each.module:
            found.setdefault((each.place, each.operator), set()).add(each.module)
    return {key: next(iter(modules)) for key, modules in found.items() if len(modules) == 1}


def _text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


# The account of a step's peak from a trace that recorded memory: operators, modules and, with stacks, lines.


def trace_accounts(trace: Trace) -> tuple[MemoryAccount, ...]:
    """For each device the account of the step with the highest peak, devices with most allocated first.

    A trace has no objects, so that categories are told from times: what the forward pass allocates and an operator of
    the backward pass frees is an activation, what the backward pass allocates and leaves a gradient; what was there
    before the first memory event is `other`. Empty for a trace without memory events, or without addresses (2021).
    """
    memory = trace.memory
    if not len(memory) or (memory.address == -1).any() or (memory.allocated < 0).any():
        return ()
    kinds = sorted(set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True)))
    found = [_account(trace, *kind) for kind in kinds]
    return tuple(sorted(found, key=lambda account: -account.peak_bytes))


def _account(trace: Trace, device_type: int, device_id: int) -> MemoryAccount:
    memory = trace.memory
    own = np.flatnonzero((memory.device_type == device_type) & (memory.device_id == device_id))
    name = device_name(device_type, device_id)
    windows = [Window(each.host_start, each.host_end) for each in steps_of(trace).windows]
    # Nothing says of what is before the first event that is freed later when it was allocated: it is there all along.
    base = int(memory.allocated[own[0]] - memory.bytes[own[0]])
    allocations, foreign, lines = _allocations(trace, own, name)
    windows = windows or [Window(int(memory.time[own[0]]), int(memory.time[own[-1]]) + 1)]
    base -= sum(size for _, _, size in foreign)

    def at_most(window: Window) -> int:
        inside = own[(memory.time[own] >= window.begin) & (memory.time[own] < window.end)]
        return int(memory.allocated[inside].max(initial=0))

    highest = max(range(len(windows)), key=lambda index: at_most(windows[index]))
    recorded = Recorded(allocations, foreign, windows[: highest + 1], lambda place: lines[place])
    return peak_account(recorded, {}, name, before=max(0, base))


def _allocations(
    trace: Trace, own: Rows, device: str
) -> tuple[list[Allocation], list[tuple[int, int, int]], list[tuple[str, ...]]]:
    """The allocations of a device, what was freed that was there before, and the lines of each place."""
    memory = trace.memory
    modules, paths = module_paths(trace)
    lines, texts = source_lines(trace)
    nodes = backward_rows(trace)
    moments = memory.time[own], memory.pid[own], memory.tid[own]
    backward, optimizer, fetching = (
        innermost(trace, rows, *moments) >= 0 for rows in (nodes, optimizer_rows(trace), input_rows(trace))
    )
    operators = operator_at(trace, *moments)
    last_backward = int(trace.end[nodes].max(initial=-1))
    known: list[tuple[str, ...]] = [(), *((text,) for text in texts)]
    allocations: list[Allocation] = []
    foreign: list[tuple[int, int, int]] = []
    open_at: dict[int, Allocation] = {}
    latest = 0
    columns = (own, memory.time[own], memory.address[own], memory.bytes[own], operators)
    for index, (event, time, address, size, row) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        time = latest = max(latest + 1, time)
        in_backward = bool(backward[index])
        if size < 0:
            each = open_at.pop(address, None)
            if each is None:
                foreign.append((time, address, -size))
                continue
            each.end = time
            each.saved |= in_backward and not each.by_node
            continue
        outside: Phase = "optimizer" if optimizer[index] else "input" if fetching[index] else "forward"
        each = Allocation(
            address=address,
            bytes=size,
            begin=time,
            device=device,
            place=int(lines[row]) + 1 if row >= 0 else 0,
            module=paths[modules[row]] if row >= 0 and modules[row] >= 0 else "",
            operator=trace.name_of(row) if row >= 0 else "",
            phase="backward" if in_backward else outside,
            by_node=in_backward,
            reserved=int(memory.reserved[event]),
        )
        open_at[address] = each
        allocations.append(each)
    for each in allocations:
        each.gradient = each.by_node and (each.end is None or each.end > last_backward)
    return allocations, foreign, known


# Allocations of each step, from the profiler's `[memory]` events.


CPU = 0
"""c10::DeviceType of the host."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory of each step, in the order of the steps. Without an event of the host its figures are empty."""

    allocations: tuple[int, ...]
    """Number of the host's allocations."""
    alloc_bytes: tuple[int, ...]
    """Bytes that it allocated; what is freed again counts in full."""
    peak_bytes: tuple[int, ...]
    """Most bytes that the host held at once above what it held when the step began; at least 0."""
    kept_bytes: tuple[int, ...]
    """Bytes of the host that the step allocated and did not free, less what it freed of earlier ones."""
    highest_bytes: tuple[int, ...] = ()
    """The highest of the peaks of the host and of all devices."""


def memory_figures(trace: Trace) -> MemoryFigures | None:
    """Allocations, allocated bytes and peak of each step; `None` without memory events or without steps.

    An event belongs to the step whose annotation [start, end) holds it, whichever thread it is on; what a
    `perfdl.setup` annotation holds is not counted, but what it leaves behind is part of the peak. The running sum of
    `Bytes` starts at 0 when a step begins, so memory from before the step that it frees makes room.
    """
    steps = steps_of(trace)
    memory = trace.memory
    if len(memory) == 0 or not steps.windows:
        return None
    devices = sorted(set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True)))
    found = [
        (kind, _of_device(trace, steps, (memory.device_type == kind) & (memory.device_id == number)))
        for kind, number in devices
    ]
    host = next((figures for kind, figures in found if kind == CPU), MemoryFigures((), (), (), ()))
    peaks = (figures.peak_bytes for _, figures in found)
    return replace(host, highest_bytes=tuple(map(max, zip(*peaks, strict=True))))


def _of_device(trace: Trace, steps: Steps, own: Mask) -> MemoryFigures:
    """The figures of these events."""
    time, sizes = trace.memory.time[own], trace.memory.bytes[own]
    found = []
    for window in steps.windows:
        first, last = np.searchsorted(time, (window.host_start, window.host_end))
        inside = sizes[first:last]
        grown = inside[(inside > 0) & ~steps.setup.contains(time[first:last])]
        peak = max(0, int(np.cumsum(inside).max())) if len(inside) else 0
        found.append((len(grown), int(grown.sum()), peak, int(inside.sum())))
    return MemoryFigures(*zip(*found, strict=True))
