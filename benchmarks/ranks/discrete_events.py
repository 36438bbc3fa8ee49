"""Discrete events: processes that take time, wait for signals, and serve queues; and collectives that join them.

A process is a generator. It yields a duration (integer nanoseconds), or a `Signal` that it waits for. All times are
true ones, of one clock; what the clocks of hosts make of them is in `chrome_trace.py`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

Process = Generator["int | Signal", None, None]


class Signal:
    """A moment that processes wait for."""

    __slots__ = ("fired", "waiting")

    def __init__(self) -> None:
        self.fired = False
        self.waiting: list[Process] = []


class Clock:
    """Lets processes run in the order of their times."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Process]] = []
        self._count = 0

    def start(self, process: Process, delay: int = 0) -> None:
        """Let a process run, now or later. Processes of the same time run in the order in which they asked."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, process))

    def fire(self, signal: Signal) -> None:
        """Let all run that wait for a signal."""
        signal.fired = True
        for process in signal.waiting:
            self.start(process)
        signal.waiting.clear()

    def run(self) -> None:
        """Until no process has anything left to do, or all wait."""
        heap = self._heap
        while heap:
            self.now, _, process = heapq.heappop(heap)
            for wanted in process:
                if isinstance(wanted, int):
                    if wanted <= 0:
                        continue
                    self.start(process, wanted)
                elif wanted.fired:
                    continue
                else:
                    wanted.waiting.append(process)
                break


class Queue:
    """Work in order of arrival, for one or several servers: a stream of a device, the threads of gloo."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._work: deque[Callable[[int], Process]] = deque()
        self._filled = Signal()

    def put(self, work: Callable[[int], Process]) -> None:
        """Add work: a function that takes the number of its server and returns a process."""
        self._work.append(work)
        filled, self._filled = self._filled, Signal()
        self._clock.fire(filled)

    def serve(self, server: int) -> Process:
        """One server, for ever."""
        while True:
            while not self._work:
                yield self._filled
            yield from self._work.popleft()(server)


@dataclass(frozen=True, slots=True)
class Ring:
    """What a collective sends over each link of its ring."""

    rounds: int
    """How often every rank sends to its neighbor, one after another."""
    chunk_bytes: int
    """What it sends then."""


def ring(kind: str, members: int, size: int) -> Ring:
    """The rounds of a ring algorithm, for `size` bytes of the whole tensor.

    An all-reduce is a reduce-scatter, and an all-gather of the results: 2 (n - 1) rounds of 1 / n of the bytes each
    (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). A point-to-point transfer is one round.
    """
    if kind in ("send", "recv"):
        return Ring(1, size)
    rounds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}[kind] * (members - 1)
    return Ring(rounds, -(-size // members))


@lru_cache(maxsize=4096)
def ends(plan: Ring, into: tuple[float, ...], latency_ns: int) -> tuple[float, ...]:
    """When each member has received everything, in nanoseconds after all members have come.

    `into[m]` is the bandwidth of the link into member m from the member before it, in bytes a second. In a round, each
    link sends the chunk that its sender received in the round before, once it has sent its own last one. A slow link
    thus slows all members; and the member behind it ends last, because the others have what they need of the last
    rounds from elsewhere.
    """
    spent = [latency_ns + plan.chunk_bytes / rate * 1e9 for rate in into]
    done = [0.0] * len(into)
    for _ in range(plan.rounds):
        done = [max(done[m], done[m - 1]) + spent[m] for m in range(len(into))]
    return tuple(done)


@dataclass(slots=True)
class Collective:
    """One call of a collective by all of its members: transfers begin once the last of them has come."""

    clock: Clock
    members: tuple[int, ...]
    """Ranks."""
    lasting: Sequence[int]
    """Nanoseconds from the last arrival to the end, by member."""
    arrivals: dict[int, int] = field(default_factory=dict)
    """When each rank came."""
    ended: dict[int, Signal] = field(default_factory=dict)

    def join(self, rank: int) -> Process:
        """Come, wait for the others, and transfer."""
        self.arrivals[rank] = self.clock.now
        self.ended[rank] = Signal()
        if len(self.arrivals) == len(self.members):
            for member, lasting in zip(self.members, self.lasting, strict=True):
                self.clock.start(self._end(member), lasting)
        yield self.ended[rank]

    def _end(self, member: int) -> Process:
        self.clock.fire(self.ended[member])
        yield from ()

    @property
    def begun(self) -> int:
        """When the last member came."""
        return max(self.arrivals.values())
