"""Whether a file is a trace, and whether there is anything in a trace that can be analyzed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.model.units import plural
from pytest_perfdl.trace.formats import listed
from pytest_perfdl.trace.model import Category, Trace
from pytest_perfdl.trace.slices import Slices
from pytest_perfdl.trace.source import Source

_PROBED = 2**14
"""Bytes of text that are decoded at a time until the first event is found."""
_ANY_SIZE = 2**62
_LEGACY = ("CPU functions", "CUDA functions")
"""Process ids of `torch.autograd.profiler_util.EventList.export_chrome_trace`, whose events have no category."""
_XLA = ("/host:", "/device:")
"""Beginnings of process names in traces of XLA (JAX, TensorFlow)."""


def refusal_of(path: Path) -> TraceError | None:
    """Why a file is no trace, or none of its events can be reached; `None` for a trace, damaged or not.

    Only the beginning is read: up to the first events. What only the end of a file can tell is not looked for, such as
    events without phases. It is a `NotATrace` where the file is something else, which it names.
    """
    try:
        with path.open("rb") as file:
            source = Source(file, 0, str(path), limit_bytes=_ANY_SIZE, chunk=_PROBED)
            next(iter(Slices(source.chunks(), str(path), _PROBED)), None)
    except TraceError as error:
        return error
    except OSError as error:
        return TraceError(f"{path} cannot be read: {error.strerror or error}")
    return None


def nothing_in(trace: Trace, *, memory: bool = False) -> str:
    """Why nothing of a trace can be analyzed, as the rest of a sentence that begins with its name; empty if not so.

    Parameters
    ----------
    memory
        Whether memory events are enough.
    """
    if not len(trace):
        if not len(trace.memory):
            return "has no complete events: there is nothing to analyze"
        many = plural(len(trace.memory), "memory event")
        return "" if memory else f"has only {many}: compare its memory with `perfdl diff --memory`"
    codes, counts = np.unique(trace.category, return_counts=True)
    if ((codes < len(Category)) & (codes != Category.NONE)).any():
        return ""
    order = np.argsort(-counts, kind="stable")
    found = [name for code in codes[order].tolist() if (name := trace.categories[code])]
    said = f"has no PyTorch categories among {plural(len(trace), 'event')}"
    said += f" (categories: {listed(found)})" if found else " (no event has a category)"
    if not found and any(trace.label(int(pid)) in _LEGACY for pid in np.unique(trace.pid)):
        return f"{said}: an old export of autograd's profiler; use export_chrome_trace of torch.profiler.profile"
    if any(name.startswith(_XLA) for name in trace.process_names.values()):
        return f"{said}: a trace of XLA (JAX or TensorFlow), not of PyTorch"
    return f"{said}: record it with torch.profiler"
