"""A rank without a device: operators on the step thread, and collectives on threads of gloo.

An operator takes its time on the step thread, and `wait` blocks it.
"""

from __future__ import annotations

from typing import Any

from discrete_events import Process, Queue, Signal
from job_rank import ELEMENT_BYTES, NCCL, Event, Job, Rank, lasting, operator_args

GLOO_THREADS = 2
"""Of each process group, as torch starts them."""


class HostRank(Rank):
    """A rank without a device."""

    def __init__(self, job: Job, number: int) -> None:
        super().__init__(job, number)
        self.queues: dict[tuple[int, ...], tuple[int, Queue]] = {}
        self.open: dict[Signal, tuple[str, int, dict[str, Any]]] = {}
        """Transfers that nobody has waited for."""

    def _queue(self, members: tuple[int, ...]) -> tuple[int, Queue]:
        if members not in self.queues:
            first = GLOO_THREADS * len(self.queues)
            self.queues[members] = (first, Queue(self.clock))
            for server in range(GLOO_THREADS):
                self.clock.start(self.queues[members][1].serve(first + server))
        return self.queues[members]

    def compute(self, kernel: str, taken: int) -> Process:
        del kernel  # the operator is all there is
        yield taken

    def collective(
        self, kind: str, members: tuple[int, ...], size: int, into: list[Signal], *, blocking: bool = False
    ) -> Process:
        # Gloo's reduce-scatter is an all-reduce in torch 2.13, of which each rank keeps its part.
        done, moved = Signal(), "all_reduce" if kind == "reduce_scatter" else kind
        into.append(done)
        call, _ = self.joined(moved, members, size)
        count, part = size // ELEMENT_BYTES, size // ELEMENT_BYTES // len(members)
        given = part if kind == "all_gather" else count
        dims = {"Input Dims": [[given]], "Input type": ["float"]}
        step = self.step

        def served(server: int) -> Process:
            yield self.host_ns(30_000, "collective")
            begin = self.clock.now
            yield from call.join(self.number)
            if kind not in ("send", "recv") and self.job.recording and step >= 0:
                name = f"gloo:{moved}"
                self.events.append(Event("user_annotation", name, f"gloo {server}", begin, self.clock.now, dims))
            self.clock.fire(done)

        def enqueue() -> Process:
            yield self.host_ns(25_000, "collective")
            if kind in ("send", "recv"):
                self.open[done] = (f"gloo:{kind}", self.clock.now, dims)
            self._queue(members)[1].put(served)
            if blocking:
                yield done

        called = operator_args(kind, members, given, part if kind == "reduce_scatter" else count)
        yield from self.within("cpu_op", f"c10d::{NCCL[kind].operator}", enqueue(), **called)

    def wait(self, signal: Signal) -> Process:
        yield signal
        yield self.host_ns(8_000, "collective")
        if signal in self.open:
            # Torch ends the annotation of a transfer when its caller has waited for it, on the caller's thread.
            name, begin, dims = self.open.pop(signal)
            self.note("user_annotation", name, self.thread, begin, **dims)

    def copy_input(self) -> Process:
        yield from ()

    def finish(self, backward: Process) -> Process:
        yield from backward

    def item(self) -> Process:
        inside = self.within("cpu_op", "aten::_local_scalar_dense", lasting(self.host_ns(1_000)))
        yield from self.within("cpu_op", "aten::item", inside)
