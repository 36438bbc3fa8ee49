"""The memory pass: every allocation with line, tensor role and lifetime; a breakdown of the peak and of what grows."""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from pytest_perfdl.analysis.account.peak import GROWING_STEPS, Allocation, Recorded, Window, peak_account
from pytest_perfdl.analysis.events.origins import is_user_code
from pytest_perfdl.measure import compiling, device, process_group
from pytest_perfdl.measure.commands import Attribute, Attributed
from pytest_perfdl.measure.environment import profiler_chatter
from pytest_perfdl.measure.profiled_pass import Refusal, module_ranges
from pytest_perfdl.model.memory import Category, Held, Phase
from pytest_perfdl.model.record import Finding
from pytest_perfdl.trace.annotations import MODULE, SETUP, WAIT

__tracebackhide__ = device.hides

if TYPE_CHECKING:
    from pytest_perfdl.measure.loops import Aside


# Records a profiler range around every executed line of the user's code, so that allocations have a source line.
#
# The profiler's stacks name functions by their first line, and record every frame of torch. Here Python's tracing
# records the executed line; frames of torch, of installed packages and of the standard library cost one callback per
# function, and their allocations belong to the line that called them.


LINE = "perfdl.line#"
"""Begins the name of a range; the number of its place follows."""
MOST_LINES = 2_000_000
"""Lines that are told of, each of which the profiler keeps: a setup may run many more of them than matter."""
NO_PLACE = 0
"""Number of the place outside of all of the user's code."""

_INSTALLED = tuple(
    {
        *(f"{Path(__file__).resolve().parents[1]}{os.sep}", "<"),
        *(f"{folder}{os.sep}" for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))),
    }
)
"""Beginnings of paths that are none of the user's, wherever they are: this package, Python's library, made-up code."""


class LineRanges:
    """Names the line of the user's code that this thread runs, from `start` to `stop`.

    A place is a line with the lines that led to it. Of a frame that Python makes up, such as a comprehension's, the
    line counts as its own.
    """

    def __init__(self) -> None:
        from torch._C._profiler import _RecordFunctionFast

        self._range: Any = _RecordFunctionFast
        self._numbers: dict[tuple[int, CodeType, int], int] = {}
        self._places: list[tuple[int, CodeType, int] | None] = [None]
        self._is_user: dict[int, tuple[bool, CodeType]] = {}
        """By id of a code object: whether the code is the user's. Kept objects have unique ids."""
        self._stack: list[tuple[int, Any]] = []
        """For each user frame of this thread, the number of its line and its open range."""
        self._before: Any = None
        self._running = False
        self._left = MOST_LINES

    def start(self) -> None:
        """Begin with frames that are entered from now on."""
        self._before = sys.gettrace()
        self._running = True
        sys.settrace(self._called)

    def stop(self) -> None:
        """End, and let others trace who did before."""
        if self._running:
            self._running = False
            sys.settrace(self._before)
            while self._stack:
                self._close(self._stack.pop()[1])

    @property
    def gave_up(self) -> bool:
        """Whether there were more lines than are told of: what runs after them has none."""
        return self._left < 0

    def lines(self, place: int) -> tuple[str, ...]:
        """The lines of a place, "model.py(41): GPT.__init__", the innermost first."""
        found = []
        while (known := self._places[place]) is not None:
            place, code, line = known
            found.append(f"{_shown(code.co_filename)}({line}): {_name(code)}")
        return tuple(found)

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Any:
        code = frame.f_code
        known = self._is_user.get(id(code))
        if known is None:
            known = self._is_user[id(code)] = _of_user(code), code
        if not known[0] or not self._running:
            return None
        self._stack.append((self._stack[-1][0] if self._stack else NO_PLACE, None))
        return self._local

    def _local(self, frame: FrameType, event: str, _arg: object) -> Any:
        if not self._running or not self._stack:
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self.stop()
                return None
            _, opened = self._stack.pop()
            self._close(opened)
            around = self._stack[-1][0] if self._stack else NO_PLACE
            key = (around, frame.f_code, frame.f_lineno)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._places)
                self._places.append(key)
            self._stack.append((number, self._opened(number)))
        elif event == "return":
            self._close(self._stack.pop()[1])
        return self._local

    def _opened(self, place: int) -> Any:
        opened = self._range(LINE + str(place))
        opened.__enter__()
        return opened

    @staticmethod
    def _close(opened: Any) -> None:
        if opened is not None:
            opened.__exit__(None, None, None)


def _of_user(code: CodeType) -> bool:
    path = code.co_filename
    return not path.startswith(_INSTALLED) and is_user_code(f"{path}({code.co_firstlineno}): f")


def _name(code: CodeType) -> str:
    """The qualified name, which Python has from 3.11 on; without the function that a local one is in."""
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]


_SHOWN: dict[str, str] = {}


def _shown(path: str) -> str:
    """A path from the entry of `sys.path` that holds it, as the profiler writes it."""
    if path not in _SHOWN:
        entries = (entry.rstrip("/\\") for entry in sys.path if entry)
        inside = [entry for entry in entries if path.startswith((f"{entry}/", f"{entry}\\"))]
        longest = max(inside, key=len, default="")
        _SHOWN[path] = path[len(longest) + 1 :] if longest else path
    return _SHOWN[path]


# The attributed pass: a breakdown of peak memory by tensor, and of memory that grows from step to step.
#
# It runs in a separate process, which records every allocation from before the import of the test module (`begin`); it
# runs few steps, which are slower.


WARM_UP = 2
"""Periods before the one whose peak is accounted for: the first makes the optimizer's state, the second is as all."""

_GAVE_UP = (
    f"source lines of later allocations are missing, because only the first {MOST_LINES:,} executed lines were recorded"
)

_recorder: MemoryRecorder | None = None


def begin() -> None:
    """Record every allocation of this process from now on."""
    import torch  # noqa: F401  (what it allocates by itself while it is imported is none of the test's)

    global _recorder
    if _recorder is None:
        _recorder = MemoryRecorder()
        _recorder.start()
        # An interpreter that ends while the profiler records may crash.
        atexit.register(end)


def end() -> None:
    """Record no longer."""
    global _recorder
    if _recorder is not None:
        _recorder.stop()
        _recorder = None


def run(command: Attribute) -> Generator[bool, Aside | None, Attributed]:
    """Run periods of steps, and account for the peak of the last one; recording ends with it.

    Where memory grows they are as many as tell what accumulates, and garbage is collected after each.
    """
    begin()
    recorder = _recorder
    assert recorder is not None
    notes: list[Finding] = []
    before = WARM_UP if not command.growth else GROWING_STEPS + 1
    for _ in range(command.steps):
        yield from _step(last=False)
    with contextlib.ExitStack() as around:
        # What is compiled is compiled in the first period, without them.
        around.enter_context(module_ranges(notes))
        if not compiling.has_compiled():
            recorder.watch()
            around.callback(recorder.unwatch)
        for _ in range(1, before):
            for _ in range(command.steps):
                yield from _step(last=False)
            if command.growth:
                gc.collect()
        held = with_roles(held_storages())
        # Gradients and tensors that the steps before made are leaves now.
        for index in range(command.steps):
            yield from _step(last=index == command.steps - 1)
        if command.growth:
            gc.collect()
        device.synchronize()
    used = device.current()
    place = device.HOST if used is None else used.name
    if used is not None and len(used.used) > 1:
        others = ", ".join(f"{used.type}:{index}" for index in used.used if index != used.index)
        notes.append(Finding("note", "other-devices", f"the breakdown is of {place}, without {others}"))
    end()
    periods = tuple(
        Window(recorder.steps[at][0], recorder.steps[at + command.steps - 1][1])
        for at in range(0, len(recorder.steps) - command.steps + 1, command.steps)
    )
    recorded = Recorded(recorder.allocations, recorder.foreign.get(place, ()), periods, recorder.lines)
    account = peak_account(recorded, held, place, growth=command.growth)
    said = [note.message for note in notes] + ([_GAVE_UP] if recorder.gave_up else [])
    return Attributed(replace(account, notes=(*account.notes, *said)))


def _step(*, last: bool) -> Generator[bool, Aside | None, None]:

    mark(BEGIN)
    yield last
    device.synchronize()
    mark(END)


# The role of every tensor that Python can reach: parameter, gradient, optimizer state or other.


def held_storages() -> dict[int, Held]:
    """The storages of all tensors that Python can reach and of the gradients of leaves, by address; each one once.

    A parameter that several modules share has the name of the first. Tensors that only C++ holds, such as those that a
    graph saved for its backward pass, are not among them.
    """
    gc.unfreeze()
    found: dict[int, Held] = {}
    for thing in _tensors_among(gc.get_objects()):
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            if tensor is not None:
                for address, held in _storages(tensor):
                    _keep(found, address, held)
    return found


def with_roles(held: Mapping[int, Held]) -> dict[int, Held]:
    """The storages with what they are for, from the modules and optimizers that there are."""
    import torch

    found = dict(held)
    names: dict[int, str] = {}
    kept = gc.get_objects()
    for name, tensor in _named(kept):
        names.setdefault(id(tensor), name)
        _assign(found, tensor, "parameters", name)
    for leaf in (tensor for tensor in _tensors_among(kept) if tensor.is_leaf):
        if type(leaf) is torch.nn.Parameter:
            _assign(found, leaf, "parameters", names.get(id(leaf), ""))
        if leaf.grad is not None:
            _assign(found, leaf.grad, "gradients", names.get(id(leaf), ""))
    for states in _states(kept):
        for parameter, state in states.items():
            for tensor in _tensors(state):
                _assign(found, tensor, "optimizer state", names.get(id(parameter), ""))
    return found


def parameter_names() -> list[tuple[Any, str]]:
    """The leaves that gradients are accumulated for, with their names; a name is empty where no module has it."""
    kept = gc.get_objects()
    names: dict[int, str] = {}
    for name, tensor in _named(kept):
        names.setdefault(id(tensor), name)
    leaves = (tensor for tensor in _tensors_among(kept) if tensor.is_leaf and tensor.requires_grad)
    return [(leaf, names.get(id(leaf), "")) for leaf in leaves]


def _tensors_among(kept: list[Any]) -> Iterator[Any]:
    """Plain tensors and parameters; by their types, since `isinstance` runs code of objects that stand for others."""
    import torch

    return (thing for thing in kept if type(thing) in (torch.Tensor, torch.nn.Parameter))


def _named(kept: list[Any]) -> Iterator[tuple[str, Any]]:
    """The parameters and buffers of all modules, one that is shared under each of its names."""
    import torch

    for root, label in _roots([thing for thing in kept if issubclass(type(thing), torch.nn.Module)]):
        for members in (root.named_parameters(remove_duplicate=False), root.named_buffers(remove_duplicate=False)):
            for name, tensor in members:
                yield f"{label}.{name}", tensor


def _states(kept: list[object]) -> Iterator[Mapping[Any, object]]:
    """What is kept for parameters: the state of torch's optimizers, and dictionaries by parameter, as others have."""
    import torch

    for thing in kept:
        if issubclass(type(thing), torch.optim.Optimizer):
            yield thing.state  # type: ignore[attr-defined]
        elif type(thing) in (dict, defaultdict) and thing and type(next(iter(thing))) is torch.nn.Parameter:  # type: ignore[call-overload]
            yield thing  # type: ignore[misc]


def _roots(modules: list[Any]) -> Iterator[tuple[Any, str]]:
    """Modules that are in no other, the largest first, with the name of their class; a second one has a number."""
    inner = {id(child) for module in modules for child in module.children()}
    roots = [module for module in modules if id(module) not in inner]
    seen: Counter[str] = Counter()
    # A model comes before what holds one of its tensors as well, such as a loss with a class's weights.
    for module in sorted(roots, key=lambda root: -sum(1 for _ in root.modules())):
        kind = type(module).__name__
        yield module, f"{kind}_{seen[kind]}" if seen[kind] else kind
        seen[kind] += 1


def _storages(tensor: Any) -> Iterator[tuple[int, Held]]:
    import torch

    if tensor.device.type == "meta":
        return
    if tensor.layout is torch.sparse_coo:
        yield from _storages(tensor._values())
        yield from _storages(tensor._indices())
    elif tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield storage.data_ptr(), Held(storage.nbytes(), str(tensor.device), dtype, tuple(tensor.shape))


def _keep(found: dict[int, Held], address: int, held: Held) -> None:
    """Of the tensors that share a storage, keep the one with most elements: views have fewer."""
    known = found.get(address)
    if known is None or math.prod(held.shape) > math.prod(known.shape):
        found[address] = held


def _assign(found: dict[int, Held], tensor: Any, category: Category, name: str) -> None:
    for address, held in _storages(tensor):
        known = found.get(address, held)
        if known.category is None:
            found[address] = replace(known, category=category, name=name)
        elif category == "parameters" and name and name not in (known.name, *known.shared):
            found[address] = replace(known, shared=(*known.shared, name))


def _tensors(value: object) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


# Records every allocation of a test from before its setup, with place, purpose and lifetime.
#
# torch keeps no history of CPU allocations. The profiler reports them with their address; ranges around every line of
# user code give the line (`LineRanges`), ranges around modules the module, and a backward operator has the line and
# module of its forward operator, by sequence number. Allocations on devices are reported in the same way.
#
# The table of allocations is made when recording ends: see `MemoryRecorder.stop`.


BEGIN, END = "perfdl.step begins", "perfdl.step ends"
"""Names of the marks at the ends of a step.

A range around it would not nest with those of lines: in a loop over `perf.steps` a step ends with another line than it
began with.
"""
GRADIENT = "perfdl.gradient#"
"""Begins the name of the range that follows the accumulation of a gradient; the parameter's number follows."""
SAVED = "perfdl.saved#"
"""Begins the name of the range that follows the saving of a tensor; the address of its storage follows."""

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_NODE = "autograd::engine::evaluate_function: "
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
_BACKWARD = 1
"""RecordScope of an operator that autograd's engine runs."""


@dataclass(frozen=True, slots=True)
class _Context:
    """Where in the program an event is."""

    place: int = NO_PLACE
    module: str = ""
    operator: str = ""
    """The outermost operator below the line or the node."""
    phase: Phase = ""
    called: int = NO_PLACE
    """Inside a node, the place that called the backward pass."""
    node: bool = False
    """Whether autograd's engine runs it directly, rather than Python that a node calls."""


class MemoryRecorder:
    """Records the allocations of this process between `start` and `stop`."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        """All allocations so far, in order of time."""
        self.foreign: dict[str, list[tuple[int, int, int]]] = {}
        """Memory that was freed but allocated before the recording, by device: time, address and bytes."""
        self.steps: list[tuple[int, int]] = []
        """Begin and end of each step, in nanoseconds of the profiler's clock."""
        self.names: list[str] = []
        """The parameters whose gradients are noted."""
        self._lines = LineRanges()
        self._open: dict[tuple[str, int], Allocation] = {}
        self._accumulated: Allocation | None = None
        self._latest = 0
        self._step: int | None = None
        """The start of the current step, if a step is running."""
        self._profiler: Any = None
        self._refusal = Refusal()
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Begin to record."""
        self._begin()
        self._lines.start()

    def stop(self) -> None:
        """End recording, for good, and make the table.

        Ranges that are open are closed before the profiler ends: one that is closed later, while another profile is
        recorded, writes to memory that was the first one's.
        """
        self._lines.stop()
        self.unwatch()
        self._end()

    def lines(self, place: int) -> tuple[str, ...]:
        """The lines of the user's code at a place, the innermost first."""
        return self._lines.lines(place)

    @property
    def gave_up(self) -> bool:
        """Whether there were more lines than are told of: see `memory_pass.MOST_LINES`."""
        return self._lines.gave_up

    def watch(self) -> None:
        """From now on note gradients and what is saved for the backward pass.

        Not where torch.compile is at work: its guards know that there were no hooks.
        """
        import torch

        number = len(self.names)
        for leaf, name in parameter_names():
            self.names.append(name)
            self._hooks.append(leaf.register_post_accumulate_grad_hook(_Mark(f"{GRADIENT}{number}")))
            number += 1
        saved = torch.autograd.graph.saved_tensors_hooks(_note_saved, _as_it_is)
        saved.__enter__()
        self._hooks.append(_Exit(saved))

    def unwatch(self) -> None:
        """Take the hooks away."""
        while self._hooks:
            self._hooks.pop().remove()

    def _begin(self) -> None:
        from torch.autograd.profiler import profile

        with profiler_chatter():
            self._profiler = profile(use_cpu=True, record_shapes=True, profile_memory=True)
            self._profiler.__enter__()
        self._refusal.begin()

    def _end(self) -> None:
        if self._profiler is None:
            return
        from torch._C._autograd import _disable_profiler
        from torch.autograd import profiler

        self._refusal.end()
        process_group.let_collectives_end()
        # What the profiler's own end makes of its events besides takes longer than recording them.
        with profiler_chatter():
            result = _disable_profiler()
            # Torch would otherwise go on as if one were running.
            getattr(profiler, "_run_on_profiler_stop", bool)()
        self._profiler = None
        events = _flat(result.experimental_event_tree())
        for _, take, event, context in sorted(events, key=lambda each: each[0]):
            take(self, event, context)

    # Events, in the order of time

    def _take_memory(self, event: Any, context: _Context) -> None:
        fields = event.extra_fields
        key, size = (str(fields.device), fields.ptr), fields.alloc_size
        # Each moment is of its own, so that an order by time is the order in which things happened.
        time = self._latest = max(self._latest + 1, event.start_time_ns)
        if size < 0:
            owner = self._open.pop(key, None)
            if owner is None:
                self.foreign.setdefault(key[0], []).append((time, fields.ptr, -size))
            else:
                owner.end = time
            return
        made = Allocation(
            address=fields.ptr,
            bytes=size,
            begin=time,
            device=str(fields.device),
            place=context.place,
            called=context.called if context.node else NO_PLACE,
            module=context.module,
            operator=context.operator,
            phase=context.phase or ("" if self._step is None else "forward"),
            by_node=context.node,
            reserved=fields.total_reserved,
        )
        self._open[key] = made
        self.allocations.append(made)
        if context.node and context.operator == _ACCUMULATE:
            # A gradient that is copied, since another tensor holds it.
            made.gradient = True
            self._accumulated = made

    def _take_operator(self, event: Any, context: _Context) -> None:
        fields = event.extra_fields
        if event.name == _ACCUMULATE:
            self._accumulated = None
        for tensor in fields.inputs:
            for each in tensor if isinstance(tensor, list) else (tensor,):
                address = getattr(each, "storage_data_ptr", None)
                owner = None if address is None else self._open.get((str(each.device), address))
                if owner is not None:
                    owner.see(str(each.dtype).removeprefix("torch."), tuple(each.sizes), by_node=context.node)
                    if event.name == _ACCUMULATE:
                        owner.gradient = True
                        self._accumulated = owner

    def _take_gradient(self, event: Any, _context: _Context) -> None:
        if self._accumulated is not None:
            self._accumulated.parameter = self.names[int(event.name[len(GRADIENT) :])]

    def _take_saved(self, event: Any, _context: _Context) -> None:
        device, _, address = event.name[len(SAVED) :].rpartition("@")
        owner = self._open.get((device, int(address)))
        if owner is not None:
            owner.saved = True

    def _take_begin(self, event: Any, _context: _Context) -> None:
        self._step = self._latest = max(self._latest + 1, event.start_time_ns)

    def _take_end(self, event: Any, _context: _Context) -> None:
        self._latest = max(self._latest + 1, event.start_time_ns)
        if self._step is not None:
            self.steps.append((self._step, self._latest))
        self._step = None


_Taken = tuple[int, Any, Any, _Context]
"""Time of an event, what takes it, the event, and where it is."""


def _flat(roots: list[Any]) -> list[_Taken]:
    """The events of a profile that matter, each with where it is in the program."""
    from torch._C._profiler import _EventType

    found: list[_Taken] = []
    forward: dict[int, _Context] = {}
    stack = [(root, _Context()) for root in sorted(roots, key=lambda root: -root.start_time_ns)]
    while stack:
        event, around = stack.pop()
        kind = event.tag
        if kind == _EventType.Allocation:
            found.append((event.start_time_ns, MemoryRecorder._take_memory, event, around))
            continue
        context = around
        if kind == _EventType.TorchOp:
            context = _entered(event, around, forward, found)
        stack += [(child, context) for child in reversed(event.children)]
    return found


def _entered(event: Any, around: _Context, forward: dict[int, _Context], found: list[_Taken]) -> _Context:
    """Where the events inside an operator or range are; notes what is to be taken of it."""
    name: str = event.name
    time = event.start_time_ns
    if name.startswith(LINE):
        # Python that a node calls runs forward operators, to recompute them, or an author's own backward pass.
        return replace(around, place=int(name[len(LINE) :]), operator="", node=False)
    if name.startswith(MODULE):
        return replace(around, module=name[len(MODULE) :], operator="", node=False)
    if name in (BEGIN, END):
        take = MemoryRecorder._take_begin if name == BEGIN else MemoryRecorder._take_end
        found.append((time, take, event, around))
        return around
    if name in (WAIT, SETUP):
        return replace(around, phase="input")
    if name.startswith(_OPTIMIZER):
        return replace(around, phase="optimizer", operator="")
    if name.startswith(GRADIENT):
        found.append((time, MemoryRecorder._take_gradient, event, around))
        return around
    if name.startswith(SAVED):
        found.append((time, MemoryRecorder._take_saved, event, around))
        return around
    fields = event.extra_fields
    number = fields.sequence_number
    if name.startswith(_NODE):
        made = forward.get(number)
        node = replace(around, phase="backward", node=True, operator=name[len(_NODE) :])
        return node if made is None else replace(node, place=made.place, module=made.module, called=around.place)
    context = around if around.operator else replace(around, operator=name)
    if number >= 0 and int(fields.scope) != _BACKWARD:
        forward[number] = context
    found.append((time, MemoryRecorder._take_operator, event, context))
    return context


class _Mark:
    """A hook that leaves an empty range in the profile."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, _tensor: object) -> None:
        mark(self._name)


class _Exit:
    """A context that was entered, as a hook that can be removed."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def remove(self) -> None:
        self._context.__exit__(None, None, None)


def mark(name: str) -> None:
    """Leave an empty range of a name in the profile."""
    from torch._C._profiler import _RecordFunctionFast

    with _RecordFunctionFast(name):
        pass


def _note_saved(tensor: Any) -> Any:
    """Mark a tensor that is saved for the backward pass; what is kept of it has no graph.

    A node that saves its own result would else hold itself alive, through Python, until garbage is collected. What is
    saved gets its node back when it is unpacked.
    """
    import torch

    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided:
        mark(f"{SAVED}{tensor.device}@{tensor.untyped_storage().data_ptr()}")
    return tensor.detach()


def _as_it_is(tensor: Any) -> Any:
    return tensor
