"""A pass over steps: a generator that yields whenever a step is to be run.

It receives the time to exclude from that step, and returns its measurement.
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
