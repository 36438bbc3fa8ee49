"""What a pass over steps is: a generator that yields whenever a step is to be run.

It gets back what of that step must not count, and returns what it measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aside:
    """What of a step's time is known apart, in nanoseconds."""

    wait_ns: int = 0
    """Waiting for data: part of the step."""
    setup_ns: int = 0
    """Preparing the step: not part of it."""


NOTHING = Aside()
Steps = Generator[bool, "Aside | None", None]
"""Yields once a step; the flag says whether the step's result is still wanted afterwards."""


@contextlib.contextmanager
def annotated(name: str, wanted: bool) -> Iterator[None]:
    """A range in the profile around the block, where the profiler is on."""
    if not wanted:
        yield
        return
    from torch.profiler import record_function

    with record_function(name):
        yield
