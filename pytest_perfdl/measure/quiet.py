"""Suppresses the profiler's messages, which it writes directly to descriptor 2."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import warnings
from collections.abc import Iterator

_CHATTER = re.compile(rb"USDT:|STAGE:|\[W[^]]*CPUAllocator\.cpp:\d+\] Memory block of unknown size")
"""Lines of the profiler itself; the last says of every block freed that was allocated before it started."""


@contextlib.contextmanager
def profiler_chatter() -> Iterator[None]:
    """Keep the profiler quiet while it starts, stops or exports.

    Python warnings from the profiler are ignored too: under `-W error` they would fail a test that did nothing
    wrong.
    """
    with profiled_steps(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def profiled_steps() -> Iterator[None]:
    """Hold back what is written to descriptor 2, drop the profiler's lines, and pass on the rest afterwards."""
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        try:
            os.dup2(held.fileno(), 2)
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not _CHATTER.match(line):
                    os.write(2, line)
