"""Known problems of the software that recorded a trace, as far as they concern what the trace holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from pytest_perfdl.analysis.events.communication import communication_kernels
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.machine.known_problems import Use, known_problems, recorded_versions
from pytest_perfdl.trace.model import Category, Trace

_GRAPH_LAUNCH = re.compile(r"graphlaunch", re.IGNORECASE)


def software_problems(trace: Trace, installed: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """One line for each known problem of the software that recorded a trace.

    Parameters
    ----------
    trace
        The trace.
    installed
        Versions of what recorded it, where the caller knows them (`machine.known_problems.installed_versions`): they go
        before those that the trace names, which has no updates.
    """
    versions = {**recorded_versions(trace.metadata), **(installed or {})}
    if not versions:
        return ()
    found = known_problems(versions, frozenset(_uses(trace)))
    return tuple(f"{known.software} {versions[known.software]}: {known.why}" for known in found)


def _uses(trace: Trace) -> Iterator[Use]:
    """What a trace holds that a known problem can concern.

    Not `modes`, which `doubled_operators` recognizes, and not `latency`: early starts are counted.
    """
    yield "profiles"
    operators = trace.rows(Category.CPU_OP)
    if np.count_nonzero((trace.start[operators] == 0) & (trace.duration[operators] == 0)) > 1:
        yield "zero times"
    joined = launches(trace)
    if len(joined.device) == 0:
        return
    yield "kernels"
    if len(trace.matching(_GRAPH_LAUNCH.search, trace.launch_rows())):
        yield "graphs"
    if communication_kernels(trace)[joined.device[~joined.linked]].any():
        yield "collectives"
    devices = trace.metadata.get("deviceProperties")
    named = devices if isinstance(devices, list) else ()
    if any("MI300X" in str(each.get("name")) for each in named if isinstance(each, dict)):
        yield "MI300X"
