"""Times the stages of a tool in this process and prints them as one line of JSON. Only the standard library.

A tool's script imports all it needs first, then calls `report` with its stages: time, by the clock and of the CPU, is
from the first stage's start to the end of each, memory is the highest resident size until then less what was resident
before.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Work = Callable[[], object]
_STATUS = Path("/proc/self/status")


def report(stages: Mapping[str, Work], about: Callable[[], Mapping[str, object]] = dict) -> None:
    """Run the stages in turn; `about` adds facts when all is timed."""
    # What a tool prints must not mix with the line that is read.
    line = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.collect()
    before = _reset_peak()
    found: dict[str, dict[str, float]] = {}
    failures: dict[str, str] = {}
    begins, used = time.perf_counter(), time.process_time()
    for name, work in stages.items():
        outcome = work()
        wall, cpu = time.perf_counter() - begins, time.process_time() - used
        found[name] = {"seconds": wall, "cpu_seconds": cpu, "peak_bytes": _peak() - before}
        if isinstance(outcome, Failures):
            failures |= outcome
    print(json.dumps({"stages": found, "failures": failures, **about()}), file=line, flush=True)


class Failures(dict[str, str]):
    """Names of analyses that failed, with the last line of the error."""


def attempt(analyses: Mapping[str, Work]) -> Failures:
    """Run all analyses, also after one has failed."""
    failed = Failures()
    for name, work in analyses.items():
        try:
            work()
        except Exception as error:
            failed[name] = last_line(error)
    return failed


def last_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return text.splitlines()[-1][:200]


def path_argument() -> str:
    return sys.argv[1]


def _reset_peak() -> int:
    """Bytes resident now; the highest so far is forgotten where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return _peak()


def _peak() -> int:
    if _STATUS.exists():
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(key: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
