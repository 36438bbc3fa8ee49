"""What a rank and the orchestrating process share besides messages: an address, and a counter of finished steps."""

from __future__ import annotations

import hashlib
import hmac
import json
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_perfdl.workers.messages import WorkerJob

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
