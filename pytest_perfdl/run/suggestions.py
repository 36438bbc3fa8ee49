"""Suggestions for a step that got slower: advice about its causes, from the trace of the current side.

The trace is of one profiled step, which the report stores anyway.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.model.record import Record, metric_name
from pytest_perfdl.results.run import Result, Suggestion
from pytest_perfdl.results.verdict import Cause, Verdict
from pytest_perfdl.run.assemble import CONTENDED_CODES

AGREES = 0.1
"""How far the profiled step may be from the timed one, as a share, for advice that is predicted from its trace."""
SUGGESTED: frozenset[Verdict] = frozenset({"regressed", "changed"})
"""Verdicts on steps that do more than before, or the same more slowly."""


def with_suggestions(result: Result) -> Result:
    """The result with advice on the parts of its steps that are blamed, the largest predicted gain first.

    Predicted are shares of the profiled step. Nothing is suggested where the trace is missing, damaged, not whole, or
    cannot be simulated, where other processes used the CPU, or where the profiled step is not what the timed one is
    (`AGREES`); nor where advice is about other parts of the step, or may gain nothing. Nothing is raised.
    """
    if result.judgement.verdict not in SUGGESTED or result.new is None or _contended(result):
        return result
    found: list[Suggestion] = []
    for each in result.exemplars:
        causes = [cause for cause in result.judgement.blame if cause.call == each.call]
        if each.new is not None and causes:
            try:
                found += _suggestions(each.new, causes, result.new, each.call)
            except Exception:
                # Advice is optional: an error of the simulator must not change the verdict.
                continue
    return replace(result, suggestions=tuple(sorted(found, key=lambda each: -each.gain)))


def _contended(result: Result) -> bool:
    """Whether other processes used the CPU, so that a trace may show them rather than the step."""
    own = result.new.integrity if result.new is not None else ()
    return any(finding.code in CONTENDED_CODES for finding in (*own, *result.judgement.integrity))


def _agrees(profiled_ns: float, record: Record, call: str) -> bool:
    """Whether the profiled step takes as long as the timed steps do."""
    times = record.metrics()
    series = times.get(metric_name(call, "step_time")) or times.get(metric_name(call, "block_time"))
    return series is not None and abs(profiled_ns / statistics.median(series.values) - 1) <= AGREES


def _suggestions(path: Path, causes: Sequence[Cause], record: Record, call: str) -> list[Suggestion]:
    # Imported here: runs in which nothing got slower have no use for it.
    from pytest_perfdl.run.blamed_advice import blamed
    from pytest_perfdl.trace import read
    from pytest_perfdl.trace.exemplar import is_complete
    from pytest_perfdl.whatif import Context, task_graph
    from pytest_perfdl.whatif.advice import advise
    from pytest_perfdl.whatif.machine import machine_of_key

    trace = read(path)
    if not is_complete(trace):
        return []
    found = []
    for each in advise(Context(task_graph(trace), machine_of_key(record.key.parts)), within=blamed(causes)):
        gain, ends, step = each.prediction.gain, each.prediction.interval_ns, each.prediction.step_ns
        if gain is None or ends is None or not _agrees(step, record, call):
            continue
        low, high = 1 - ends[1] / step, 1 - ends[0] / step
        if low > 0:
            text = f"{call}: {each.text}" if call else each.text
            doubt = "" if each.prediction.trust == "ok" else each.prediction.reason
            found.append(Suggestion(text, each.how, gain, (low, high), doubt, each.example))
    return found
