"""Records every allocation of a test from before its setup, with place, purpose and lifetime.

torch keeps no history of CPU allocations. The profiler reports them with their address; ranges around every line of
user code give the line (`memory_lines`), ranges around modules the module, and a backward operator has the line and
module of its forward operator, by sequence number. Allocations on devices are reported in the same way.

The table of allocations is made when recording ends: see `MemoryRecorder.stop`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pytest_perfdl.analysis.account.peak import Allocation
from pytest_perfdl.measure import process_group
from pytest_perfdl.measure.memory_lines import LINE, NO_PLACE, LineRanges
from pytest_perfdl.measure.quiet import profiler_chatter
from pytest_perfdl.measure.second_profiler import Refusal
from pytest_perfdl.measure.tensor_roles import parameter_names
from pytest_perfdl.model.memory import Phase
from pytest_perfdl.trace.annotations import MODULE, SETUP, WAIT

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
        """Whether there were more lines than are told of: see `memory_lines.MOST_LINES`."""
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
