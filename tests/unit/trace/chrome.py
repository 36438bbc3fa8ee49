"""Hand-written Chrome traces for tests: events in microseconds, as kineto writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_perfdl.trace import Trace, loads

DATA = Path(__file__).parent / "data"
MAIN = 100
"""Process id and thread id of the step's thread."""


def x(name, ts, dur, cat="cpu_op", pid=MAIN, tid=MAIN, **args):
    """A complete event."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def step(number, ts, dur, **more):
    """A step's annotation."""
    return x(f"ProfilerStep#{number}", ts, dur, "user_annotation", **more)


def launch(ts, dur, correlation, name="cudaLaunchKernel", tid=MAIN):
    """A runtime call."""
    return x(name, ts, dur, "cuda_runtime", tid=tid, correlation=correlation)


def kernel(name, ts, dur, correlation, stream=7, cat="kernel", **args):
    """A device event."""
    return x(name, ts, dur, cat, pid=0, tid=stream, correlation=correlation, stream=stream, device=0, **args)


def memory(ts, size, device_type=0, device_id=-1, **args):
    """A `[memory]` instant."""
    return {
        "ph": "i",
        "s": "t",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": MAIN,
        "tid": MAIN,
        "ts": ts,
        "args": {"Bytes": size, "Device Type": device_type, "Device Id": device_id, **args},
    }


def text(events, **top) -> bytes:
    """The file that holds these events."""
    return json.dumps({"schemaVersion": 1, **top, "traceEvents": list(events)}).encode()


def trace(*events, **top) -> Trace:
    """These events, read."""
    return loads(text(events, **top))


def corpus() -> list[Path]:
    """The public traces that come beside the project, or nothing where they are absent."""
    default = Path(__file__).parents[3].parent / "shared" / "traces"
    folder = Path(os.environ.get("PERFDL_TRACE_CORPUS", default))
    return sorted(path for path in folder.glob("*.json*") if ".expected" not in path.name)


def corpus_file(name: str) -> Path:
    """One of the public traces, for tests that are marked `corpus`."""
    return next(path for path in corpus() if path.name.startswith(name))


def trace_files() -> list[Path]:
    """Traces of devices: those that `data/generate.py` made, and the public ones where they are."""
    return [*sorted(DATA.glob("device_*.json.gz")), *corpus()]


def name_of(path: Path) -> str:
    """Of a trace, as a test's parameter."""
    return path.name.split(".")[0]


each_trace_file = pytest.mark.parametrize("path", trace_files(), ids=name_of)
recordings = sorted(path for path in DATA.glob("*.json.gz") if not path.name.startswith("device_"))
each_recording = pytest.mark.parametrize("path", recordings, ids=name_of)
