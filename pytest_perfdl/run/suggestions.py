"""Suggestions for a step that got slower: advice about its causes, from the trace of the current side.

The trace is of one profiled step, which the report stores anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.model.record import Scalar
from pytest_perfdl.results.run import Result, Suggestion
from pytest_perfdl.results.verdict import Cause, Verdict

SUGGESTED: frozenset[Verdict] = frozenset({"regressed", "changed"})
"""Verdicts on steps that do more than before, or the same more slowly."""


def with_suggestions(result: Result) -> Result:
    """The result with advice on the parts of its steps that are blamed, the largest predicted gain first.

    Predicted are shares of the profiled step. Nothing is suggested where the trace is missing, damaged, not whole, or
    cannot be simulated, nor where advice is about other parts of the step. Nothing is raised.
    """
    if result.judgement.verdict not in SUGGESTED or result.new is None:
        return result
    found: list[Suggestion] = []
    for each in result.exemplars:
        causes = [cause for cause in result.judgement.blame if cause.call == each.call]
        if each.new is not None and causes:
            try:
                found += _suggestions(each.new, causes, result.new.key.parts, each.call)
            except Exception:
                # Advice is optional: an error of the simulator must not change the verdict.
                continue
    return replace(result, suggestions=tuple(sorted(found, key=lambda each: -each.gain)))


def _suggestions(path: Path, causes: Sequence[Cause], parts: Mapping[str, Scalar], call: str) -> list[Suggestion]:
    # Imported here: runs in which nothing got slower have no use for it.
    from pytest_perfdl.run.blamed_advice import blamed
    from pytest_perfdl.trace import read
    from pytest_perfdl.trace.exemplar import is_whole
    from pytest_perfdl.whatif import Context, task_graph
    from pytest_perfdl.whatif.advice import advise
    from pytest_perfdl.whatif.machine import machine_of_key

    trace = read(path)
    if not is_whole(trace):
        return []
    found = []
    for each in advise(Context(task_graph(trace), machine_of_key(parts)), within=blamed(causes)):
        gain, ends, step = each.prediction.gain, each.prediction.interval_ns, each.prediction.step_ns
        if gain is not None and ends is not None:
            text = f"{call}: {each.text}" if call else each.text
            doubt = "" if each.prediction.trust == "ok" else each.prediction.reason
            found.append(
                Suggestion(text, each.how, gain, (1 - ends[1] / step, 1 - ends[0] / step), doubt, each.example)
            )
    return found
