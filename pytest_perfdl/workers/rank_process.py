"""One rank of a job, seen from the orchestrating process, and what both share besides messages."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import mmap
import os
import re
import signal
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_perfdl.model.errors import ChannelClosed
from pytest_perfdl.system import clocks, processes
from pytest_perfdl.workers.channel import Broken, Channel, PhaseReport, Stopped, WorkerJob
from pytest_perfdl.workers.process import user_stack

# What a rank and the orchestrating process share besides messages: an address, and a counter of finished steps.


ADDRESS = "PYTEST_PERFDL_RANKS"
"""Environment variable that tells a rank where the orchestrating process waits for it, as JSON (`RankAddress`)."""
NONCE_BYTES = 32
"""Of the random numbers that both sides choose."""
_COUNT = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class RankAddress:
    """Where ranks find the orchestrating process."""

    address: str | tuple[str, int]
    """Path of a Unix socket, or host and port."""
    secret: str
    """Key that both sides prove to know (`proof`), in hexadecimal digits."""
    folder: str
    """For the ranks' stacks and counters; other machines cannot reach it, and do without."""

    @classmethod
    def told(cls) -> RankAddress:
        """Take it out of the environment, which the test sees."""
        found = json.loads(os.environ.pop(ADDRESS))
        where = found["address"]
        return cls(
            where if isinstance(where, str) else (where[0], where[1]),
            found["secret"],
            found["folder"],
        )


def proof(secret: bytes, who: str, nonce: bytes) -> bytes:
    """What shows that somebody knows the secret, to whoever chose the nonce: HMAC-SHA256 (RFC 2104).

    The name of the side keeps either from sending back what it was sent.
    """
    return hmac.digest(secret, who.encode() + nonce, hashlib.sha256)


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank's first message."""

    rank: int
    world_size: int
    pid: int
    host: str


class Progress:
    """Number of steps that a rank finished, in a mapped file, so that counting a step costs no system call."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(_COUNT.pack(0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _COUNT.size)
        self._steps = 0

    def advance(self) -> None:
        """Count one more step."""
        self._steps += 1
        _COUNT.pack_into(self._map, 0, self._steps)


def steps_done(path: Path) -> int:
    """Number of steps that a rank has counted in a file; 0 if it has not begun."""
    try:
        return int(_COUNT.unpack(path.read_bytes())[0])
    except (OSError, struct.error):
        return 0


def progress_path(folder: Path, rank: int) -> Path:
    """The counter of a rank."""
    return folder / f"steps-{rank}"


def stacks_path(folder: Path, rank: int) -> Path:
    """The file for a rank's stacks."""
    return folder / f"stacks-{rank}"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which of several processes a worker is."""

    rank: int
    progress: Progress

    def own(self, job: WorkerJob) -> WorkerJob:
        """The job with folders of its own: pytest removes what is in a `basetemp` when it makes it."""
        options: Mapping[str, Any] = job.options
        places = {name: f"{options[name]}-rank{self.rank}" for name in ("basetemp", "xmlpath") if options.get(name)}
        return replace(job, options={**options, **places})


# One rank of a job, seen from the orchestrating process: its messages, its steps, and where it stands.


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
