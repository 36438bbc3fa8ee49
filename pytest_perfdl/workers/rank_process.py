"""One rank of a job, seen from the orchestrating process: its messages, its steps, and where it stands."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from pytest_perfdl.model.errors import ChannelClosed
from pytest_perfdl.system import clocks, processes
from pytest_perfdl.workers.channel import Channel
from pytest_perfdl.workers.messages import Broken, PhaseReport, Stopped
from pytest_perfdl.workers.rank_place import progress_path, stacks_path, steps_done
from pytest_perfdl.workers.stacks import user_stack

_STACK_SECONDS = 1.5
"""How long a rank may take to write its stacks."""
_WAITS_FOR_OTHERS = re.compile(r'File "[^"]*torch/(distributed/|autograd/graph\.py|nn/parallel/distributed\.py)')
"""The innermost frame of a rank in a collective, or in a backward pass that has collectives."""


@dataclass(slots=True)
class RankProcess:
    """A rank, as far as it is known."""

    number: int
    size: int
    """Number of ranks."""
    channel: Channel
    pid: int
    is_local: bool
    """Whether it runs on this machine; of others only their messages are known."""
    folder: Path
    """With its counter of steps and its stacks."""
    root: str
    """Folder that places in the user's code are relative to."""
    inbox: deque[object] = field(default_factory=deque)
    """Messages that are not handled yet."""
    ended: bool = False
    """Whether it closed its connection."""
    complete: bool = False
    """Whether it came to the end of its test."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"rank {self.number} of {self.size}"

    @property
    def steps(self) -> int:
        """Number of steps that it finished; 0 on another machine."""
        return steps_done(progress_path(self.folder, self.number))

    def send(self, message: object) -> None:
        """Send a message; a rank that is gone is noticed by `take`."""
        with contextlib.suppress(ChannelClosed):
            self.channel.send(message)

    def take(self) -> bool:
        """Take what it has sent; true if there was something."""
        before = len(self.inbox)
        try:
            while (message := self.channel.received()) is not None:
                self.inbox.append(message)
                teardown = isinstance(message, PhaseReport) and message.phase == "teardown"
                self.complete |= teardown or isinstance(message, (Broken, Stopped))
        except ChannelClosed:
            self.ended = True
        return len(self.inbox) > before

    def interrupt(self) -> None:
        """Send it SIGINT, so that its fixtures tear down."""
        if self.is_local and not self.ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it and everything in its process group, and close its channel."""
        if self.is_local:
            processes.end(self.pid)
        self.channel.close()
        self.ended = True

    def stack(self) -> str:
        """Stacks of its threads; empty if it does not answer or runs on another machine."""
        if not self.is_local or self.ended:
            return ""
        path = stacks_path(self.folder, self.number)
        before = path.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        size, deadline = before, clocks.monotonic() + _STACK_SECONDS
        while clocks.monotonic() < deadline:
            clocks.sleep(0.05)
            last, size = size, path.stat().st_size
            if last == size > before:
                break
        return path.read_bytes()[before:].decode(errors="replace").strip()

    def stands(self, stack: str) -> str:
        """Where it stands, in words, given its stacks."""
        if self.inbox:
            return "waits for the other ranks"
        place, _ = user_stack(_main_thread(stack), self.root)
        waits = waits_for_others(stack)
        if place:
            return f"waits in a collective at {place}" if waits else f"is at {place}"
        return "waits for the other ranks between blocks of steps" if waits else "does not say where it is"


def waits_for_others(stack: str) -> bool:
    """Whether the main thread of these stacks is in a collective, or in a backward pass."""
    innermost = next((line for line in _main_thread(stack).splitlines() if line.strip().startswith("File ")), "")
    return _WAITS_FOR_OTHERS.search(innermost) is not None


def _main_thread(stack: str) -> str:
    """The stack of the main thread, which `faulthandler` writes last."""
    return re.split(r"\n\s*\n", stack)[-1]
