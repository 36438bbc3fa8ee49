"""What torch.compile did in this process, from Dynamo's counters, without importing Dynamo.

The counters are not public interface of torch: if a version stores them differently, these metrics are absent.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from pytest_perfdl.measure.commands import Compiled
from pytest_perfdl.measure.optional import Optional
from pytest_perfdl.model.record import Finding


def events() -> int:
    """A number that grows whenever a graph is compiled."""
    utils = _utils()
    if utils is None:
        return 0
    with contextlib.suppress(Exception):
        return len(_metrics(utils)) + int(sum(utils.counters["frames"].values()))
    return len(_metrics(utils))


def names_since(count: int) -> tuple[str, ...]:
    """Functions compiled since `count = compilations()`."""
    utils = _utils()
    if utils is None:
        return ()
    return tuple(
        f"{getattr(metric, 'co_name', None) or 'backward'} ({getattr(metric, 'compile_id', '?')})"
        for metric in _metrics(utils)[count:]
    )


def compilations() -> int:
    """How many compilations Dynamo has recorded."""
    utils = _utils()
    return 0 if utils is None else len(_metrics(utils))


def summary() -> Compiled:
    """Totals since the process began.

    A compile id is "frame/n": n counts compilations of the same frame, so n > 0 is a recompilation. Dynamo
    keeps the last 64 compilations.
    """
    utils = _utils()
    metrics = [] if utils is None else _metrics(utils)
    notes: list[Finding] = []
    if utils is not None and metrics:
        with Optional("no-compile-counts", "compilations by torch.compile", notes):
            forward = [metric for metric in metrics if getattr(metric, "co_name", None)]
            return Compiled(
                used=True,
                compile_ns=sum(_duration_ns(metric) for metric in metrics),
                recompiles=sum(str(metric.compile_id).rsplit("/", 1)[-1] not in ("0", "None") for metric in forward),
                graph_breaks=int(sum(utils.counters["graph_break"].values())),
            )
    return Compiled(used=False, compile_ns=0, recompiles=0, graph_breaks=0, findings=tuple(notes))


def _duration_ns(metric: Any) -> int:
    microseconds = getattr(metric, "duration_us", None)
    if microseconds is not None:
        return int(microseconds) * 1000
    return int((getattr(metric, "entire_frame_compile_time_s", None) or 0.0) * 1e9)


def _metrics(utils: Any) -> list[Any]:
    with contextlib.suppress(Exception):
        return list(utils.get_compilation_metrics())
    return []


def _utils() -> Any:
    return sys.modules.get("torch._dynamo.utils")
