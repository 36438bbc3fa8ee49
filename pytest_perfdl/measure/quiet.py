"""Keeps the profiler's own chatter from users: it writes to descriptor 2 directly, past Python."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator

_CHATTER = (b"USDT:", b"STAGE:")


@contextlib.contextmanager
def profiler_chatter() -> Iterator[None]:
    """Hold back what is written to stderr, drop the profiler's lines, and pass on the rest.

    Python warnings from the profiler are ignored too: under `-W error` they would fail a test that did nothing
    wrong.
    """
    with tempfile.TemporaryFile() as held, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stderr = os.dup(2)
        try:
            os.dup2(held.fileno(), 2)
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not line.startswith(_CHATTER):
                    os.write(2, line)
