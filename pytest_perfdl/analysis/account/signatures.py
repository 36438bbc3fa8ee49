"""Whether the steps of a trace do equal work."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np

from pytest_perfdl.analysis.events.communication import waits_for_input
from pytest_perfdl.analysis.events.intervals import Steps
from pytest_perfdl.analysis.events.operators import operator_args, operator_time
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import Thread, operator_threads
from pytest_perfdl.trace.model import Trace


def step_signatures(trace: Trace) -> tuple[str, ...]:
    """Digest of each step's ordered (operator, shapes): equal steps do equal work.

    Operators are those of the step's and the autograd engine's threads. Those in input annotations are left out: what
    a DataLoader with workers runs depends on their timing.
    """
    steps = steps_of(trace)
    threads = operator_threads(trace, steps.thread) if steps.windows else []
    by_step = zip(*(_digests(trace, steps, thread) for thread in threads), strict=True)
    # Of the engine's threads any may be the first.
    return tuple(_digest("".join((own, *sorted(engine))).encode()) for own, *engine in by_step)


def _digests(trace: Trace, steps: Steps, thread: Thread) -> Iterator[str]:
    """Digest of each step's sequence of (name, shapes) on one thread."""
    found = operator_time(trace).get(thread)
    rows = np.zeros(0, dtype=np.intp) if found is None else found[0]
    start = trace.start[rows]
    step = steps.of_host_time(start)
    works = (step >= 0) & ~waits_for_input(trace, thread).contains(start)
    args = operator_args(trace)
    calls = args.call[rows[works]]
    texts = dict.fromkeys(calls.tolist(), b"")
    for call in texts:
        name, dims = args.calls[call]
        texts[call] = b"%b\0%b\n" % (trace.names[name].encode(), b"".join(dims.split()))
    bounds = np.searchsorted(step[works], np.arange(len(steps.windows) + 1)).tolist()
    for first, last in itertools.pairwise(bounds):
        yield _digest(b"".join(map(texts.__getitem__, calls[first:last].tolist())))


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=8).hexdigest()
