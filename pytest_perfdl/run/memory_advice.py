"""Suggestions to lower a peak of memory that increased, with the predicted peak."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.memory import MemoryAccount, MemoryAdvice, MemoryChange, MemoryRow
from pytest_perfdl.model.record import Scalar
from pytest_perfdl.results.run import Result

LEAST_SAVED = 0.05
"""Share of the peak that advice has to save."""
_MANY = 0.25
"""Share of the peak from which activations are looked at."""
_LAYER = re.compile(r"(?P<layer>(?P<stack>.+?)\.\d+)(\.|$)")
"""A module that is one of several of the same kind: "GPT.blocks.0"."""
_STRATEGIES = "examples/strategies"


def with_memory_advice(result: Result) -> Result:
    """The result with advice for each call whose peak got higher; nothing is raised."""
    if result.new is None or not result.judgement.memory:
        return result
    traces = {each.call: each.new for each in result.exemplars}
    parts = result.new.key.parts
    memory = tuple(
        replace(change, advice=tuple(_advice(change, traces.get(change.call), parts)))
        if change.base is not None and change.new.peak_bytes > change.base.peak_bytes
        else change
        for change in result.judgement.memory
    )
    return replace(result, judgement=replace(result.judgement, memory=memory))


def _advice(change: MemoryChange, trace: Path | None, parts: Mapping[str, Scalar]) -> Iterator[MemoryAdvice]:
    account = change.new
    found = [*_kept_gradients(account), *_checkpointing(account)]
    if trace is not None and account.by_category().get("activations", 0) >= _MANY * account.peak_bytes:
        found += _simulated(trace, parts, account)
    least = LEAST_SAVED * account.peak_bytes
    ordered = sorted(found, key=lambda each: -each.saved_bytes)
    return (each for each in ordered if each.saved_bytes >= least)


def _kept_gradients(account: MemoryAccount) -> Iterator[MemoryAdvice]:
    """Gradients that are alive in the forward pass, at the peak: set to zero rather than to none."""
    moment = account.moment
    kept = sum(row.bytes for row in account.rows if row.category == "gradients" and row.lives_from < 0)
    if kept and moment is not None and moment.phase in ("forward", "input"):
        # Another moment may then be the highest: the peak is at most so much lower.
        yield MemoryAdvice(
            how="optimizer.zero_grad(set_to_none=True) before the forward pass",
            predicted_peak_bytes=account.peak_bytes - kept,
            saved_bytes=kept,
            step_change=None,
            example="",
        )


def _checkpointing(account: MemoryAccount) -> Iterator[MemoryAdvice]:
    """Activations of layers that repeat: each layer keeps its result alone, and one at a time has all again.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. A layer's result is what was allocated in it
    last of what is alive.
    """
    layers: dict[str, dict[str, list[MemoryRow]]] = {}
    for row in account.rows:
        if row.category == "activations" and not row.kept and (match := _LAYER.match(row.module)):
            layers.setdefault(match["stack"], {}).setdefault(match["layer"], []).append(row)
    sizes = {stack: sum(row.bytes for rows in found.values() for row in rows) for stack, found in layers.items()}
    stack = max(sizes, key=sizes.__getitem__, default="")
    if not stack or len(layers[stack]) < 2:
        return
    whole = [sum(row.bytes for row in rows) for rows in layers[stack].values()]
    results = [max(rows, key=lambda row: row.lives_from) for rows in layers[stack].values()]
    left = sum(row.bytes // row.tensors for row in results)
    others = account.peak_bytes - sum(whole)
    # While a layer runs again, what the loss needed is gone; without knowing how much of it, the other bytes stay.
    moment = account.moment
    again = max(whole) if moment is None or (moment.module or "").startswith(f"{stack}.") else 0
    peak = others + left + again
    yield MemoryAdvice(
        how=f"torch.utils.checkpoint.checkpoint around each block of {stack}",
        predicted_peak_bytes=peak,
        saved_bytes=account.peak_bytes - peak,
        step_change=None,
        example=f"{_STRATEGIES}/test_checkpointing.py",
    )


def _simulated(path: Path, parts: Mapping[str, Scalar], account: MemoryAccount) -> Iterator[MemoryAdvice]:
    """What the simulator predicts of activations in 16 bits, where it is known how fast the machine is with them."""
    # Imported here: runs in which no peak got higher have no use for it.
    from pytest_perfdl.trace import read
    from pytest_perfdl.trace.exemplar import is_whole
    from pytest_perfdl.whatif import Context, predict, task_graph
    from pytest_perfdl.whatif.machine import machine_of_key

    try:
        trace = read(path)
        if not is_whole(trace):
            return
        found = predict(Context(task_graph(trace), machine_of_key(parts)), "amp")
    except (InputError, OSError):
        return
    before, after = found.peak_bytes, found.predicted_peak_bytes
    if before is not None and after is not None:
        # The trace's peak and the account's are of two runs of the same step.
        saved = before - after
        yield MemoryAdvice(
            how="torch.autocast(..., dtype=torch.bfloat16)",
            predicted_peak_bytes=account.peak_bytes - saved,
            saved_bytes=saved,
            step_change=None if found.gain is None else -found.gain,
            example=f"{_STRATEGIES}/test_mixed_precision.py",
        )
