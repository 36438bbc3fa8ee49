"""What a device's memory consists of at its peak, from a snapshot of PyTorch's allocator.

A snapshot has no objects and no operators, only stacks: what an allocation is for is told from the functions on its
stack, and from when it is freed. The rules are those of `snapshot_accounts`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.account.peak import CURVE_POINTS, MOST_CALLERS
from pytest_perfdl.analysis.events.origins import is_user_code
from pytest_perfdl.model.memory import Category, MemoryAccount, MemoryRow, Phase
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.trace.memory_snapshot import Action, DeviceSnapshot, Frame, Snapshot
from pytest_perfdl.trace.model import I32, I64, Rows

ROUNDING = 512
"""Bytes of which every block is a multiple: `kMinBlockSize` of CUDACachingAllocator."""

_SLICE = 2**16
"""Events that are turned into Python's numbers at a time."""

_PHASES: tuple[Phase, ...] = ("", "setup", "input", "forward", "backward", "optimizer")
"""Codes of phases; -1 is for an event without a stack."""
_BACKWARD = _PHASES.index("backward")

_CPP_FILE = re.compile(r"^$|^\?\?|\.so(\.|$)|\.(c|cc|cpp|cxx|cu|cuh|h|hpp|inc|S)$")
_CPP_BACKWARD = ("torch::autograd::Engine::", "torch::autograd::python::PythonEngine::", "AccumulateGrad")
_CPP_TO = ("THPVariable_to(", "THPVariable_cuda(")
"""`Tensor.to` and `Tensor.cuda`, called from Python."""
_GENERATED = "/torchinductor_"
"""In the path of code that torch.compile writes."""

_OPTIMIZER = frozenset(("step", "_init_group"))
_BACKWARD_FUNCTIONS = frozenset(("backward", "_engine_run_backward"))
_RECOMPUTING = frozenset(("unpack_hook", "recompute_fn"))
_CALLING = frozenset(("_call_impl", "_wrapped_call_impl"))
_BATCH = frozenset(
    (
        *("collate_fn", "get_batch", "next_batch", "_prepare_input", "_prepare_inputs"),
        *("to_device", "move_to_device", "send_to_device", "move_data_to_device"),
    )
)
"""Functions in libraries and projects that fetch a batch or move it to the device."""
_MODULE_SETUP = frozenset(
    (
        *("__init__", "__new__", "reset_parameters", "_apply", "to", "cuda", "to_empty", "half", "float", "double"),
        *("bfloat16", "load_state_dict", "_load_from_state_dict"),
    )
)


_Group = tuple[Category, str, tuple[str, ...], Phase]
"""What the allocations of a row have in common: category, line, callers and phase."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a frame, or a whole stack, tells of what it allocated or freed."""

    python: bool = True
    phase: Phase = ""
    line: str = ""
    """As a line of the user's code; empty for code of others."""
    callers: tuple[str, ...] = ()
    """Of a stack, the lines that led to its own."""
    moves: bool = False
    """Whether it is `Tensor.to` or `Tensor.cuda`."""
    init_group: bool = False
    """Whether an optimizer made state."""
    buckets: bool = False
    """Whether DistributedDataParallel made the buckets of gradients."""


@dataclass(frozen=True, slots=True, eq=False)
class _Allocations:
    """All allocations of one device, one per row."""

    begin: I64
    """Index of the event; -1 for before the history."""
    end: I64
    """Index of the event that freed it; the number of events for none."""
    size: I64
    """Bytes, with rounding."""
    requested: I64
    stack: I32
    """Index into `Snapshot.stacks`, -1 for none."""
    exact: npt.NDArray[np.bool_]
    """Whether the file says how many bytes it has with rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """The phases that a history went through; columns have one entry per event."""

    code: npt.NDArray[np.int64]
    """Index into `_PHASES`."""
    run: npt.NDArray[np.int64]
    """Number of the run of events of one phase."""
    backward: npt.NDArray[np.int64]
    """Events with which a backward pass begins."""
    threads: bool
    """Whether an allocation without a stack was one of autograd's."""
    interrupted: bool
    """Whether memory ran out, and nothing was allocated after that."""


def snapshot_accounts(snapshot: Snapshot, *, folder: Path | None = None) -> tuple[MemoryAccount, ...]:
    """The account of the peak of every device.

    The blocks in use when the snapshot was taken are the state at the end, and going back from there through the
    history gives the bytes allocated after each event. An allocation ends when its free is requested, as in
    `torch.cuda.max_memory_allocated`. What the history does not hold, because it began later or its ring buffer is
    full, is known from the blocks in use if it is still alive, and otherwise of category `other`.

    The phase of an allocation is that of the innermost function on its stack that tells one:

    - optimizer: in `torch/optim`, or `step` or `_init_group` in another file whose name begins with "optim";
    - backward: `backward`, `torch.autograd.grad`, autograd's engine, or checkpointing that recomputes;
    - setup: making, moving or loading a module of `torch.nn`, `from_pretrained`; or if no function tells a phase and
      the innermost line of the user's code lies in an `__init__`;
    - input: in `torch/utils/data`, or one that by its name fetches or moves a batch ("to_device", "get_batch"); or if
      none tells a phase, a `Tensor.to` or `Tensor.cuda` among the frames of C++;
    - forward: a call of a module, a function named `forward`, or one of `torch.nn.functional`. Within a backward pass
      that is a recomputation and part of it.

    Where frames of Python were recorded and none of C++, an allocation without any was made by autograd's threads,
    which run no Python: it belongs to the backward pass. Categories:

    - parameters: all of phase setup, buffers among them; but gradients: the buckets of DistributedDataParallel;
    - inputs: all of phase input;
    - optimizer state: made in `_init_group`, or in an optimizer and not freed in the same run of it;
    - gradients: made in a backward pass and not freed in it;
    - activations: made in a forward pass, and alive when a later backward pass begins or when memory ran out; or made
      by a line outside of all phases and freed in a backward pass, whose phase then is forward;
    - other: without frames, or from before the history and of no phase;
    - temporaries: all else.

    Parameters
    ----------
    snapshot
        What `read_snapshot` returned.
    folder
        Paths below it are shown relative to it, others by their last two parts; by default the current directory.

    Returns
    -------
    tuple of MemoryAccount
        One per device on which anything was allocated, by index. `at_ns`, `step_ns`, the curve and the rows' times
        count nanoseconds from the first event of the history; events, where the file has no times. `lives_from` is -1
        for what was allocated before it. Rows are grouped by category, line, callers and phase; rounding is one row.
    """
    parent = Path.cwd() if folder is None else folder
    frames = [_mark(frame, parent) for frame in snapshot.frames]
    stacks = [_stack([frames[each] for each in stack]) for stack in snapshot.stacks]
    only_python = bool(snapshot.stacks) and all(mark.python for mark in frames)
    accounts = (_account(device, stacks, only_python) for device in snapshot.devices)
    return tuple(account for account in accounts if account is not None)


def _account(device: DeviceSnapshot, stacks: Sequence[_Told], only_python: bool) -> MemoryAccount | None:
    found, lost = _allocations(device)
    levels = _levels(found, len(device.actions))
    peak = int(np.argmax(levels)) - 1
    if levels[peak + 1] == 0:
        return None
    alive = np.flatnonzero((found.begin <= peak) & (found.end > peak))
    times = _times(device)
    passes = _passes(device, stacks, only_python)
    groups = _group_rows(found, alive, stacks, passes)
    sizes = {group: int(found.requested[members].sum()) for group, members in groups.items()}
    rows = {group: _row(group, sizes[group], found, np.array(members), times) for group, members in groups.items()}
    moment = next((group for group, members in groups.items() if peak >= 0 and peak in found.begin[members]), None)
    reserved = _reserved(device, peak)
    short = reserved < int(levels[peak + 1])
    return MemoryAccount(
        device=f"cuda:{device.index}",
        rows=tuple(sorted((*rows.values(), *_rounding(found, alive, times)), key=_order)),
        peak_bytes=int(levels[peak + 1]),
        at_ns=_time(times, peak),
        step_ns=_time(times, len(times) - 1),
        curve=_curve(levels, times),
        notes=tuple(_notes(device, found, alive, peak, lost, short=short)),
        reserved_bytes=None if short else reserved,
        moment=None if moment is None else rows[moment],
    )


# From events to allocations.


def _allocations(device: DeviceSnapshot) -> tuple[_Allocations, int]:
    """All allocations, by going back from the blocks in use; and of how many the history lacks one end."""
    count, lost = len(device.actions), 0
    # Some histories hold one kind of free only: `_record_memory_history(skip_actions=...)`.
    free = Action.FREE_REQUESTED if (device.actions == Action.FREE_REQUESTED).any() else Action.FREE_COMPLETED
    alive = _blocks(device, count)
    later: dict[int, int] = {}
    columns = tuple(array("q") for _ in range(6))

    def add(begin: int, *rest: int) -> None:
        for column, value in zip(columns, (begin, *rest), strict=True):
            column.append(value)

    for index, action, address, size, stack in _backwards(device):
        if action == Action.ALLOC:
            known = alive.pop(address, None)
            if known is None:
                lost += 1
                known = _unblocked(later.get(address, count), size)
            end, rounded, requested, seen, exact = known
            add(index, end, rounded, size if requested < 0 else requested, stack if stack >= 0 else seen, exact)
        elif action == free:
            if address in alive:
                lost += 1
                add(index, *alive[address])
            alive[address] = _unblocked(index, size)
        later[address] = index
    for each in alive.values():
        add(-1, *each)
    begins, ends, sizes, requests, stacks, exacts = (np.array(column, dtype=np.int64) for column in columns)
    # Some files do not say what was requested of a block, or say more than it has.
    requests = np.where(requests < 0, sizes, np.minimum(requests, sizes))
    return _Allocations(begins, ends, sizes, requests, stacks.astype(np.int32), exacts.astype(bool)), lost


_Known = tuple[int, int, int, int, int]
"""Of an allocation whose begin is still to come: end, size, requested, stack, whether the size is exact."""


def _blocks(device: DeviceSnapshot, count: int) -> dict[int, _Known]:
    """What is allocated at the end, by address."""
    columns = device.block_addresses, device.block_sizes, device.block_requested, device.block_stacks
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {address: (count, size, requested, stack, 1) for address, size, requested, stack in rows}


def _unblocked(end: int, requested: int) -> _Known:
    return end, -(-requested // ROUNDING) * ROUNDING, requested, -1, 0


def _backwards(device: DeviceSnapshot) -> Iterator[tuple[int, int, int, int, int]]:
    """Index, action, address, size and stack of the events that concern blocks, the last first."""
    rows = np.flatnonzero(np.isin(device.actions, (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)))[::-1]
    for start in range(0, len(rows), _SLICE):
        part = rows[start : start + _SLICE]
        columns = part, device.actions[part], device.addresses[part], device.sizes[part], device.stacks[part]
        yield from zip(*(column.tolist() for column in columns), strict=True)


def _levels(found: _Allocations, count: int) -> I64:
    """Bytes allocated before the history, and after each event."""
    changes = np.zeros(count + 2, dtype=np.int64)
    np.add.at(changes, found.begin + 1, found.size)
    np.subtract.at(changes, found.end + 1, found.size)
    levels: I64 = np.cumsum(changes)[: count + 1]
    return levels


def _reserved(device: DeviceSnapshot, peak: int) -> int:
    """Bytes of all segments after the event of the peak, back from the end."""
    actions, sizes = device.actions[peak + 1 :], device.sizes[peak + 1 :]
    grown = int(sizes[actions == Action.SEGMENT_ALLOC].sum())
    return device.reserved_bytes - grown + int(sizes[actions == Action.SEGMENT_FREE].sum())


def _times(device: DeviceSnapshot) -> I64:
    """Nanoseconds of each event since the first; events, where some have no time."""
    times = device.times_us
    if (times < 0).any():
        return np.arange(len(times), dtype=np.int64)
    # Threads and clocks disagree by microseconds: the order is that of the events.
    ordered: I64 = np.maximum.accumulate(times)
    return (ordered - ordered[:1]) * 1000


def _time(times: I64, index: int) -> int:
    return int(times[index]) if index >= 0 else 0


def _curve(levels: I64, times: I64) -> tuple[tuple[int, int], ...]:
    """The highest point of each of so many pieces, and the first and the last."""
    kept = {0, len(levels) - 1}
    start = 0
    for piece in np.array_split(levels, min(len(levels), CURVE_POINTS - len(kept))):
        kept.add(start + int(np.argmax(piece)))
        start += len(piece)
    return tuple((_time(times, index - 1), int(levels[index])) for index in sorted(kept))


# From stacks to phases.


def _mark(frame: Frame, folder: Path) -> _Told:
    path = frame.path.replace("\\", "/")
    if "::" in frame.function or _CPP_FILE.search(path):
        backward = any(each in frame.function for each in _CPP_BACKWARD)
        moves = any(each in frame.function for each in _CPP_TO)
        return _Told(python=False, phase="backward" if backward else "", moves=moves)
    function = frame.function.rpartition(".")[2]
    inside = f"/{path}".rpartition("/torch/")[2] if "/torch/" in f"/{path}" else ""
    return _Told(
        phase=_phase(inside, PurePosixPath(path).name, function),
        line=_user_line(frame, folder),
        init_group=function == "_init_group",
        buckets=function == "_ddp_init_helper",
    )


def _phase(inside: str, file: str, function: str) -> Phase:
    """The phase that a function of Python tells, from its path inside of torch, its file and its name."""
    if inside.startswith("optim/") or (file.startswith("optim") and function in _OPTIMIZER):
        return "optimizer"
    if (
        function in _BACKWARD_FUNCTIONS
        or (function == "grad" and inside.startswith("autograd/"))
        or (function in _RECOMPUTING and inside == "utils/checkpoint.py")
    ):
        return "backward"
    if function == "from_pretrained" or (
        inside.startswith(("nn/modules/", "nn/parallel/", "nn/parameter.py"))
        and (function in _MODULE_SETUP or function == "_ddp_init_helper")
    ):
        return "setup"
    if inside.startswith("utils/data/") or function in _BATCH:
        return "input"
    if function == "forward" or function in _CALLING or inside == "nn/functional.py":
        return "forward"
    return ""


def _stack(marks: Sequence[_Told]) -> _Told:
    """What the frames of a stack tell, the innermost first."""
    users = [mark.line for mark in marks if mark.line]
    phases = [mark.phase for mark in marks if mark.phase]
    phase: Phase = phases[0] if phases else ""
    if phase == "forward" and "backward" in phases:
        outer = next(each for each in phases if each != "forward")
        phase = "backward" if outer == "backward" else phase
    if not phase and users and re.search(r"\): (.*\.)?__init__$", users[0]):
        phase = "setup"
    if not phase and any(mark.moves for mark in marks):
        phase = "input"
    return _Told(
        phase=phase,
        line=users[0] if users else "",
        callers=tuple(users[1 : 1 + MOST_CALLERS]),
        init_group=any(mark.init_group for mark in marks),
        buckets=any(mark.buckets for mark in marks),
    )


def _user_line(frame: Frame, folder: Path) -> str:
    """A frame as lines of the user's code are shown, "train.py(12): step"; empty for code of others."""
    path = frame.path.replace("\\", "/")
    if _GENERATED in path or not is_user_code(f"{path}({frame.line}): {frame.function}"):
        return ""
    pure, parent = PurePosixPath(path), PurePosixPath(folder.as_posix())
    if pure.is_relative_to(parent):
        shown = pure.relative_to(parent)
    else:
        shown = PurePosixPath(*pure.parts[-2:]) if len(pure.parts) > 2 else pure
    return f"{shown}({frame.line}): {frame.function}"


def _passes(device: DeviceSnapshot, stacks: Sequence[_Told], only_python: bool) -> _Passes:
    """The phases of the events of a history. One that tells no stack is in the phase of the one before it."""
    codes = np.array([*(_PHASES.index(stack.phase) for stack in stacks), -1])
    code = codes[device.stacks]
    allocs = device.actions == Action.ALLOC
    threads = only_python and bool((device.stacks[allocs] >= 0).any())
    if threads:
        code = np.where(allocs & (device.stacks < 0), _BACKWARD, code)
    told = np.maximum.accumulate(np.where(code >= 0, np.arange(len(code)), -1))
    code = np.where(told >= 0, code[told], 0) if len(code) else code
    new = np.diff(code, prepend=-1) != 0
    exhausted = np.flatnonzero(device.actions == Action.OOM)
    return _Passes(
        code=code,
        run=np.cumsum(new),
        backward=np.flatnonzero(new & (code == _BACKWARD)),
        threads=threads,
        interrupted=len(exhausted) > 0 and not allocs[exhausted[-1] :].any(),
    )


# From allocations to rows.


def _group_rows(found: _Allocations, alive: Rows, stacks: Sequence[_Told], passes: _Passes) -> dict[_Group, list[int]]:
    groups: dict[_Group, list[int]] = {}
    columns = found.begin[alive], found.end[alive], found.stack[alive]
    for row, begin, end, stack in zip(alive.tolist(), *(column.tolist() for column in columns), strict=True):
        groups.setdefault(_group(begin, end, stacks[stack] if stack >= 0 else None, passes), []).append(row)
    return groups


def _group(begin: int, end: int, stack: _Told | None, passes: _Passes) -> _Group:
    if stack is None:
        if begin < 0 or not passes.threads:
            return "other", "", (), ""
        stack = _THREADS
    category = _category(begin, end, stack, passes)
    # Only a backward pass tells of a line outside of all phases that it belongs to the forward pass.
    phase = "forward" if category == "activations" else stack.phase
    return category, stack.line, stack.callers, phase


_THREADS = _Told(phase="backward")
"""Of an allocation that a thread of autograd makes, in a history of Python's frames."""


def _category(begin: int, end: int, stack: _Told, passes: _Passes) -> Category:
    """See `snapshot_accounts`."""
    if stack.phase == "setup":
        return "gradients" if stack.buckets else "parameters"
    if stack.phase == "input":
        return "inputs"
    freed = end < len(passes.run)
    if stack.phase == "backward":
        return "gradients" if not freed or _outlives(begin, end, passes) else "temporaries"
    if stack.phase == "optimizer":
        return "optimizer state" if stack.init_group or _outlives(begin, end, passes) else "temporaries"
    if stack.phase == "forward":
        saved = _meets_backward(begin, end, passes) or (passes.interrupted and not freed)
        return "activations" if saved else "temporaries"
    if freed and passes.code[end] == _BACKWARD:
        return "activations"
    return "other" if begin < 0 else "temporaries"


def _meets_backward(begin: int, end: int, passes: _Passes) -> bool:
    """Whether a backward pass begins between two events, the latter included."""
    following = int(np.searchsorted(passes.backward, begin, side="right"))
    return following < len(passes.backward) and int(passes.backward[following]) <= end


def _outlives(begin: int, end: int, passes: _Passes) -> bool:
    """Whether an allocation is alive after the run of events of one phase in which it was made."""
    if begin < 0 or len(passes.run) == 0:
        return True
    if end < len(passes.run):
        return bool(passes.run[end] != passes.run[begin])
    return not passes.interrupted or bool(passes.run[begin] != passes.run[-1])


def _rounding(found: _Allocations, alive: Rows, times: I64) -> Iterator[MemoryRow]:
    """What the allocator adds to what was requested, as one row."""
    added = found.size[alive] - found.requested[alive]
    if added.any():
        yield _row(("allocator", "", (), ""), int(added.sum()), found, alive[added > 0], times)


def _row(group: _Group, size: int, found: _Allocations, members: Rows, times: I64) -> MemoryRow:
    category, line, callers, phase = group
    first, last = int(found.begin[members].min()), int(found.end[members].max())
    return MemoryRow(
        category=category,
        module="",
        line=line,
        phase=phase,
        operator="",
        dtype="",
        shape="",
        tensors=len(members),
        bytes=size,
        lives_from=-1 if first < 0 else int(times[first]),
        lives_to=int(times[last]) if last < len(times) else None,
        callers=callers,
    )


def _order(row: MemoryRow) -> tuple[object, ...]:
    return -row.bytes, row.category, row.line, row.callers, row.phase


def _notes(
    device: DeviceSnapshot, found: _Allocations, alive: Rows, peak: int, lost: int, *, short: bool
) -> Iterator[str]:
    """What is not known of a device, and what it ran out of."""
    if not len(device.actions):
        yield (
            "No memory history was recorded, so this shows the allocations when the snapshot was taken, not the peak. "
            "To record a history, call torch.cuda.memory._record_memory_history() before the first allocation"
        )
    elif peak < 0:
        yield (
            "The highest memory use is at the start of the recorded history, so the real peak may be earlier. "
            "Record a longer history with torch.cuda.memory._record_memory_history(max_entries=...)"
        )
    yield from _exhausted(device)
    early = int((found.begin[alive[found.stack[alive] < 0]] < 0).sum())
    if early and len(device.actions):
        yield f"No source line is known for {plural(early, 'allocation')} made before the recorded history"
    estimated = int((~found.exact[alive]).sum())
    if estimated:
        yield (
            f"For {plural(estimated, 'allocation')} freed after the peak, the snapshot contains only the requested "
            f"size: it is rounded up to a multiple of {ROUNDING} bytes"
        )
    if lost:
        yield f"The recorded history does not show when {plural(lost, 'allocation')} began or ended"
    if len(device.times_us) and (device.times_us < 0).any():
        yield "The snapshot has no timestamps: times are shown as numbers of events"
    if short:
        yield "The recorded history lacks some segments of the allocator: reserved memory at the peak is unknown"


def _exhausted(device: DeviceSnapshot) -> Iterator[str]:
    exhausted = np.flatnonzero(device.actions == Action.OOM)
    if len(exhausted):
        wanted, free = (int(column[exhausted[-1]]) for column in (device.sizes, device.addresses))
        yield (
            f"The device ran out of memory: an allocation needed {format_quantity(wanted, 'B')}, "
            f"but only {format_quantity(free, 'B')} were free"
        )
