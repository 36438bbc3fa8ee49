"""Autograd's engine: plays the tape backwards on a thread of its own and reduces gradients by the bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from synthesis import kernels, kineto, operators
from synthesis.kineto import HOST
from synthesis.model import RANKS
from synthesis.nodes import Backward, Launch, Op, Stream, Tag, Tensor

if TYPE_CHECKING:
    from synthesis.simulate import Job

_BUCKET = 25 << 20
"""Bytes of gradients that are reduced together, as `DistributedDataParallel` does."""
_EVALUATE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass
class Thread:
    """A host thread: its clock and what is open on it."""

    tid: int
    now: int
    operator: int = 0
    """External id of the innermost operator or annotation."""
    frame: str = "null"
    ranges: list[dict[Stream, tuple[int, int]]] = field(default_factory=list)
    """For each open annotation, from when to when its work is on each stream."""


class Autograd:
    """The engine of one job."""

    def __init__(self, job: Job, thread: Thread) -> None:
        self.job = job
        self.thread = thread
        self.tape: list[tuple[int, int, Backward]] = []
        """Sequence number, link to the forward operator, and what to do."""
        self.made: list[tuple[int, int]] = []
        """Address and size of the gradients that the node at work has made for the next."""
        self.again: dict[Tag, tuple[int, int]] = {}
        """Address and size of gradients that are to be added to those which are there."""
        self._bucket = 0

    def run(self, now: int, reduces: bool) -> int:
        """Play the whole tape from a time on, and reduce what it leaves; when it is done."""
        self.thread.now = now
        flowing: list[tuple[int, int]] = []
        while self.tape:
            sequence, link, backward = self.tape.pop()
            self._node(sequence, link, backward)
            for tag, parameter in backward.parameters:
                self._accumulate(tag, parameter, reduces)
            if self.made:
                self._free(flowing)
                flowing, self.made = self.made, []
        self._free(flowing)
        if self._bucket:
            self._reduce()
        return self.thread.now

    def _free(self, gradients: list[tuple[int, int]]) -> None:
        for address, size in gradients:
            self.job.give_back(address, size, False, self.thread)

    def _node(self, sequence: int, link: int, backward: Backward) -> None:
        shown = f'"Sequence number": {sequence}, "Fwd thread id": 1, '

        def inner() -> None:
            self._row(backward.name, shown, lambda: self.job.children(backward.children, self.thread), link)

        self._row(_EVALUATE + backward.name, shown, inner)

    def _accumulate(self, tag: Tag, parameter: Tensor, reduces: bool) -> None:
        """Keep a parameter's gradient, or add it to the one that is there."""
        self._bucket += parameter.bytes if reduces else 0

        def store() -> None:
            block = self.again.pop(tag, None)
            if block is None:
                self.job.operator(Op("aten::detach", (parameter,), (Op("detach", (parameter,)),)), self.thread)
            else:
                inputs, add = (parameter, parameter, "1"), kernels.add(parameter)
                self.job.operator(Op("aten::add_", inputs, (Launch(add),)), self.thread)
                self._free([block])
            if self._bucket >= _BUCKET:
                self._reduce()

        self._row(_EVALUATE + _ACCUMULATE, "", lambda: self._row(_ACCUMULATE, "", store))

    def _reduce(self) -> None:
        self.job.operator(operators.all_reduce(self._bucket // 2, RANKS), self.thread)
        self._bucket = 0

    def _row(self, name: str, sequence: str, inside: Callable[[], None], link: int = 0) -> None:
        """An operator of the engine around what it does; a link is drawn from the forward operator."""
        job, thread = self.job, self.thread
        thread.now += job.some(700)
        start = thread.now
        slot, index = job.reserve("operators")
        job.external += 1
        number, outer = job.external, thread.operator
        thread.operator = number
        thread.now += job.some(1100)
        inside()
        thread.now += job.some(400)
        thread.operator = outer
        args = f'"External id": {number},{sequence}"Record function id": 0, "Ev Idx": {index}'
        row = kineto.complete("cpu_op", name, HOST, thread.tid, start, thread.now - start, args)
        end = kineto.flow("f", "fwdbwd", link, HOST, thread.tid, start) if link else ""
        job.rows["operators"][slot] = row + end
