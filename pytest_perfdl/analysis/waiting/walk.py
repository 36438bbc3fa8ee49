"""The way back through a trace, from constraint to constraint: which events, delays and host work it passes."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.waiting.device_order import Bindings, DeviceOrder, Wait
from pytest_perfdl.analysis.waiting.waits import HostWaits
from pytest_perfdl.trace.model import I64


class Walk:
    """The way back, as plain lists: one entry for each device event, delay and run of host work passed."""

    def __init__(
        self,
        order: DeviceOrder,
        bound: Bindings,
        waiting: HostWaits,
        span: tuple[int, int],
    ) -> None:
        self.begin, self.end = span
        self.order, self.bound, self.waiting = order, bound, waiting
        self.events: list[int] = []
        self.event_start: list[int] = []
        self.event_end: list[int] = []
        self.delays: list[int] = []
        self.delay_start: list[int] = []
        self.delay_end: list[int] = []
        self.runs: list[tuple[int, int, int]] = []
        self.guessed: list[tuple[int, int]] = []
        self.launcher = np.maximum(waiting.thread_of_row[order.call], 0).tolist()

    def run(self, event: int, thread: int) -> None:
        """Walk from a device event or a thread at the end to the beginning.

        No wait of a thread is passed twice, and between two waits no event of a stream after an earlier one, so that
        events without a duration cannot lead in a circle.
        """
        order, bound, begin, now = self.order, self.bound, self.begin, self.end
        starts, streams = order.start.tolist(), order.stream.tolist()
        kinds, sources = bound.kind.tolist(), bound.source.tolist()
        releases, known = bound.release.tolist(), bound.known.tolist()
        waits = self.waiting.by_thread
        moments = [wait.release.tolist() for wait in waits]
        left = [len(wait.release) for wait in waits]
        passed = [len(order)] * len(order.sequence)
        while now > begin:
            if event >= 0:
                passed[streams[event]] = event
                start = max(starts[event], begin)
                if start < now:
                    self.events.append(event)
                    self.event_start.append(start)
                    self.event_end.append(now)
                    now = start
                if now <= begin:
                    break
                kind, source, release = kinds[event], sources[event], min(releases[event], now)
                if source >= 0 and source >= passed[streams[source]]:
                    event, thread = -1, self.launcher[event]
                    continue
                if kind >= Wait.OTHER_STREAM:
                    self.guessed.append((known[event], now))
                release = max(release, begin)
                if release < now:
                    self.delays.append(event)
                    self.delay_start.append(release)
                    self.delay_end.append(now)
                    now = release
                thread = self.launcher[event]
                event = source if kind != Wait.LAUNCH else -1
                continue
            left[thread] = min(left[thread], bisect_right(moments[thread], now))
            left[thread] -= 1
            at = left[thread]
            if at < 0:
                self.runs.append((thread, begin, now))
                break
            wait = waits[thread]
            release = max(moments[thread][at], begin)
            if release < now:
                self.runs.append((thread, release, now))
                now = release
            if wait.inferred[at]:
                self.guessed.append((int(wait.since[at]), now))
            source = int(wait.event[at])
            event, thread = source, int(wait.thread[at]) if source < 0 else thread

    def host_runs(self, thread: int) -> Intervals:
        """The host's share on one thread."""
        own = np.array([run[1:] for run in self.runs if run[0] == thread], dtype=np.int64).reshape(-1, 2)
        return Intervals.union_of(own[:, 0], own[:, 1])

    def guesses(self) -> tuple[I64, I64]:
        """Starts and ends of the waits on the path that were inferred."""
        both = np.array(self.guessed, dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]
