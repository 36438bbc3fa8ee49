"""Empties caches before steps that are to be timed without what the step before left in them: `cache="cold"`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_perfdl.machine import processors
from pytest_perfdl.measure import device

_UNKNOWN_CACHE = 2**25
TIMES = 2
"""So many times the bytes of the caches are read: a cache that replaces lines at random keeps some after one time."""


def cache_bytes(place: str) -> int:
    """Size of the last-level cache: as the system says (Linux), or the device; 32 MiB where neither does."""
    used = None if place == device.HOST else device.current()
    found = processors.last_cache_bytes(Path("/")) if used is None else used.properties().cache_bytes
    return found or _UNKNOWN_CACHE


class Flush:
    """Reads through more memory than the caches hold, on the device if one is used, which is not waited for.

    It reads, as the step would have to write back what was written. On the host all caches for data are emptied that
    belong to the threads that torch uses, of a device the last-level cache; a device's other ones do not outlive a
    kernel. The memory is kept until `free`.
    """

    def __init__(self) -> None:
        self._read: Callable[[], object] | None = None

    def __call__(self) -> None:
        """Empty them now."""
        if self._read is None:
            self._read = _reader()
        self._read()

    def free(self) -> None:
        """Give the memory back, so that it is not counted with that of the steps."""
        self._read = None


def _reader() -> Callable[[], object]:
    used, torch = device.current(), sys.modules.get("torch")
    if used is not None:
        size = TIMES * cache_bytes(used.type)
    else:
        threads = 1 if torch is None else torch.get_num_threads()
        size = TIMES * cache_bytes(device.HOST) * min(threads, processors.last_caches(Path("/")))
    # Memory that was never written has no pages of its own to be read.
    if torch is None:
        return functools.partial((b"\1" * size).count, b"\0")
    place = device.HOST if used is None else used.name
    held: Callable[[], object] = torch.ones(size // 4, dtype=torch.float32, device=place).sum
    return held
