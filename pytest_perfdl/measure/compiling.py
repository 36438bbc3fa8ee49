"""What torch.compile did in this process, from Dynamo's counters, without importing Dynamo.

The counters are not public interface of torch: if a version stores them differently, these metrics are absent. They are
of the whole process: what belongs to a call or a pass is the difference of two moments.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_perfdl.measure.optional import Optional
from pytest_perfdl.model.record import Finding

_LONGEST_REASON = 120
"""Characters of a guard that are shown."""
_WHOLE = ("entire_frame_compile", "entire_backward_compile")
"""What Dynamo adds up to the time of all compilations (`torch._dynamo.utils.calculate_time_spent`)."""


def events() -> int:
    """A number that grows whenever a graph is compiled."""
    utils = _utils()
    if utils is None:
        return 0
    with contextlib.suppress(Exception):
        return len(_metrics(utils)) + int(sum(utils.counters["frames"].values()))
    return len(_metrics(utils))


def has_compiled() -> bool:
    """Whether anything was compiled in this process."""
    utils = _utils()
    return utils is not None and bool(_metrics(utils))


@dataclass(frozen=True, slots=True)
class Totals:
    """What was compiled in this process until a moment."""

    ns: int = 0
    graph_breaks: int = 0

    @classmethod
    def now(cls, notes: list[Finding]) -> Totals:
        """Read the counters; `notes` takes up why that is not possible."""
        utils = _utils()
        if utils is None or not _metrics(utils):
            return cls()
        with Optional("no-compile-counts", "compilations by torch.compile", notes):
            return cls(_spent_ns(utils), int(sum(utils.counters["graph_break"].values())))
        return cls()

    def since(self, before: Totals) -> Totals:
        """What was compiled between two moments; a test that resets the counters has less to show."""
        return Totals(max(0, self.ns - before.ns), max(0, self.graph_breaks - before.graph_breaks))


class Watch:
    """Which compilations happen in which step.

    Looking takes 0.3 µs. Of the compilations of one step the last 64 are seen, as many as Dynamo keeps.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        """Every compilation so far, such as "step 3: f (tensor 'x' size mismatch at index 0. expected 4, actual 5)"."""
        self._last = _newest()

    def look(self, where: str) -> None:
        """Name the compilations since the last look, which happened at `where`, such as "step 3"."""
        newest = _newest()
        if newest is self._last:
            return
        metrics = _metrics(_utils())
        known = next((at + 1 for at in reversed(range(len(metrics))) if metrics[at] is self._last), 0)
        self.seen += [f"{where}: {_described(metric)}" for metric in metrics[known:]]
        self._last = newest


def told(compilations: Sequence[str], steps: str = "timed", most: int = 3) -> str:
    """What was compiled inside measured steps, and what to do about it, in one line."""
    shown = "; ".join(compilations[:most])
    more = f"; and {len(compilations) - most} more" if len(compilations) > most else ""
    ways = "warm up with all shapes (--perf-warmup)"
    if any("size mismatch" in each or "stride mismatch" in each or "rank mismatch" in each for each in compilations):
        ways = (
            "mark sizes that vary with torch._dynamo.mark_dynamic, use torch.compile(dynamic=True), pad inputs to one "
            f"size, or {ways}"
        )
    elif any(" (" in each for each in compilations):
        ways = f"keep what the guard checks constant, pass it as a tensor, use torch.compile(dynamic=True), or {ways}"
    return f"torch.compile compiled inside {steps} steps, which count the compiler's work: {shown}{more}. Do: {ways}"


def _described(metric: Any) -> str:
    """The function, and the guard that failed where it was compiled before."""
    function = getattr(metric, "co_name", None)
    reason = str(getattr(metric, "recompile_reason", None) or "").partition("\n")[0].partition("  #")[0].strip()
    # It begins with the id of the compilation whose guard it is.
    before, _, guard = reason.partition(": ")
    guard = guard if before.replace("/", "").isdigit() else reason
    if len(guard) > _LONGEST_REASON:
        guard = f"{guard[:_LONGEST_REASON]}..."
    if "recompile limit" in str(getattr(metric, "fail_reason", None) or "").partition("\n")[0]:
        function = "gave up at the recompile limit, so the function runs uncompiled"
    return f"{function or 'backward'} ({guard})" if guard else str(function or "backward")


def _spent_ns(utils: Any) -> int:
    spent = getattr(utils, "cumulative_time_spent_ns", None)
    if spent is not None:
        return int(sum(spent.get(name, 0) for name in _WHOLE))
    # PyTorch before 2.6
    return sum(int((metric.entire_frame_compile_time_s or 0.0) * 1e9) for metric in _metrics(utils))


def _newest() -> Any:
    utils = _utils()
    metrics = _metrics(utils) if utils is not None else ()
    return metrics[-1] if metrics else None


def _metrics(utils: Any) -> list[Any]:
    with contextlib.suppress(Exception):
        return list(utils.get_compilation_metrics())
    return []


def _utils() -> Any:
    return sys.modules.get("torch._dynamo.utils")
