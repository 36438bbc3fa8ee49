"""Predictions against reruns on this machine: each change measured beside the unchanged step, in turns.

    python benchmarks/whatif/run.py [--blocks 20] [--steps 10] [--only transformer fused] [--out TABLE.md]

The unchanged step is profiled (shapes, memory, our ranges around modules), its graph calibrated to the time that the
step takes without the profiler, and the transform applied. Then both steps run in turns, a block of steps each, on one
thread, with the allocator pinned as in a perf test; a step's time is the lower quartile of all blocks' means. *error*
is predicted over measured time of the changed step, less 1. Constants are measured here: the ratios of operators
(`perfdl constants`), the memory's bandwidth, gloo's. A profile whose steps differ was disturbed, and is taken again.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, schedule

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import command
from common.tables import table_text
from models import Options, build
from ranks import both_ranks

from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.measure.profiled_pass import module_ranges
from pytest_perfdl.trace import Trace, read
from pytest_perfdl.whatif import simulate, task_graph
from pytest_perfdl.whatif.measured_constants import measure_constants
from pytest_perfdl.whatif.predict import WhatIf, predict
from pytest_perfdl.whatif.transform import Context, lifetimes
from pytest_perfdl.whatif.transforms.sizes import affine, scaled_peak
from pytest_perfdl.whatif.unprofiled import unprofiled


@dataclass(frozen=True)
class Case:
    """One change of one model."""

    name: str
    transform: str
    base: Options
    changed: Options
    parameters: dict[str, Any]


def cases() -> list[Case]:
    """The fixed list."""
    found = []
    for model in ("transformer", "convnet", "mlp"):
        base = Options(model)
        dropping, clipping, loading = replace(base, dropout=True), replace(base, clip=True), replace(base, workers=0)
        sizes = ({"to": 16, "now": 8}, {"to": 6, "now": 4})
        changes: list[tuple[str, str, Options, Options, dict[str, Any]]] = [
            ("fused optimizer", "fused_optimizer", base, replace(base, optimizer="fused"), {}),
            ("foreach optimizer", "foreach", base, replace(base, optimizer="foreach"), {}),
            ("remove dropout", "remove_operator", dropping, base, {"name": "aten::dropout"}),
            ("remove clipping", "remove_clipping", clipping, base, {}),
            ("batch 8 -> 16", "batch", base, replace(base, batch=16), sizes[0]),
            ("layers 4 -> 6", "layers", base, replace(base, layers=6), sizes[1]),
            ("bf16 autocast", "amp", base, replace(base, bfloat16=True), {}),
            ("checkpointing", "checkpointing", base, replace(base, checkpoint=True), {}),
            ("workers 0 -> 1", "workers", loading, replace(base, workers=1), {"workers": 1}),
        ]
        if model == "convnet":
            inference = replace(base, optimizer="")
            changes += [
                ("fold batch norm", "fold_batch_norm", inference, replace(inference, folded=True), {}),
                ("channels_last", "channels_last", base, replace(base, channels_last=True), {}),
            ]
        found += [Case(f"{model}: {what}", *rest) for what, *rest in changes]
    return found


FORMS = {"amp": ("bfloat16",), "channels_last": ("channels_last",)}
"""Forms in which operators are replayed for a transform."""

STEADY, TRIES = 1.1, 8
"""How much longer than the shortest profiled step the longest may be, and how often a profile is taken for that."""

OTHER_BATCH = 4
"""Batch size of the second trace for the line through two."""


def profiled(options: Options, folder: Path, steps: int = 3) -> Trace:
    """A trace of some steps: the first whose steps are alike, or the one in which they are most alike."""
    found: list[Trace] = []
    while not found or (_unsteady(found[-1]) > STEADY and len(found) < TRIES):
        _profile(options, folder / "trace.json", steps)
        found.append(read(folder / "trace.json"))
    return min(found, key=_unsteady)


def _unsteady(trace: Trace) -> float:
    steps = simulate(task_graph(trace)).steps_ns
    return float(steps.max() / steps.min())


def remembered(options: Options, folder: Path, steps: int = 3) -> tuple[Trace, int]:
    """A trace whose memory can be believed, and the bytes that were held before it, of which it knows nothing.

    It is of a process of its own, since the profiler's count of the host's memory goes on from one trace to the next.
    Its times are not to be believed: a forked process copies the pages that it writes to.
    """
    path = folder / "memory.json"
    child = multiprocessing.get_context("fork").Process(target=_profile, args=(options, path, steps))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"the process that profiles {options} ended with {child.exitcode}")
    return read(path), int(path.with_suffix(".held").read_text())


def _profile(options: Options, path: Path, steps: int) -> None:
    # Models of earlier ones would count as memory in use.
    gc.collect()
    _, step = build(options)
    for _ in range(3):
        step()
    path.with_suffix(".held").write_text(str(_held()))
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with (
        module_ranges(),
        profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, schedule=plan) as profiler,
    ):
        for _ in range(steps + 1):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))


def _held() -> int:
    """Bytes of the tensors that Python can reach: parameters, the optimizer's state, the batch, no gradients.

    The profiler counts none of it: on the host it knows what is allocated while it runs.
    """
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    stored = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(stored.values())


def in_turns(steps: list[Callable[[], object]], blocks: int, count: int) -> list[float]:
    """Nanoseconds of a step of each, the lower quartile of the blocks' means."""
    times: list[list[float]] = [[] for _ in steps]
    for step in steps:
        for _ in range(3):
            step()
    for _ in range(blocks):
        gc.collect()
        for own, step in zip(times, steps, strict=True):
            begun = time.perf_counter_ns()
            for _ in range(count):
                step()
            own.append((time.perf_counter_ns() - begun) / count)
    return [float(np.quantile(own, 0.25)) for own in times]


def row(case: Case, blocks: int, count: int) -> tuple[str, ...]:
    """One line of the table."""
    before, after = in_turns([build(case.base)[1], build(case.changed)[1]], blocks, count)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = profiled(case.base, folder)
        machine = measure_constants(trace, FORMS.get(case.transform, ()))
        context = Context(unprofiled(task_graph(trace), before), machine)
        if case.transform == "batch":
            # The second trace is calibrated too: its line must be that of the step without the profiler.
            second = replace(case.base, batch=OTHER_BATCH)
            [other_ns] = in_turns([build(second)[1]], blocks, count)
            other = unprofiled(task_graph(profiled(second, folder)), other_ns)
            share = (case.parameters["to"] - case.parameters["now"]) / (OTHER_BATCH - case.parameters["now"])
            found = predict(context, WhatIf(case.name, affine(context, other, share).plan))
        else:
            found = predict(context, case.transform, **case.parameters)
        return line(case, before, after, found.predicted_ns, peak(case, machine, folder), found.reason)


def peak(case: Case, machine: Machine, folder: Path) -> str:
    """Error of the predicted peak of memory as text, empty where none is predicted; both with what was held before."""
    trace, held = remembered(case.base, folder)
    context = Context(task_graph(trace), machine)
    if case.transform == "batch":
        predicted = scaled_peak(context, case.parameters["to"] / case.parameters["now"])
    else:
        predicted = predict(context, case.transform, **case.parameters).predicted_peak_bytes
    if predicted is None:
        return ""
    changed, held_then = remembered(case.changed, folder)
    known = lifetimes(changed)
    return "" if known is None else f"{(held + predicted) / (held_then + known.peak_bytes) - 1:+.1%}"


def line(case: Case, before: float, after: float, predicted: float | None, memory: str, reason: str) -> tuple[str, ...]:
    """A case's figures as text."""
    gain = 1 - after / before
    head = (case.name, f"{before / 1e6:.2f}", f"{after / 1e6:.2f}", f"{gain:+.1%}")
    if predicted is None:
        return (*head, "", "", "", reason)
    said = 1 - predicted / before
    sign = "" if abs(gain) <= 0.02 or gain * said > 0 else "wrong sign"
    return (*head, f"{said:+.1%}", f"{predicted / after - 1:+.1%}", memory, sign)


HEAD = ("change", "before ms", "after ms", "gain", "predicted", "error", "error of the peak", "")


def main() -> None:
    given = command.options(__doc__)
    torch.set_num_threads(1)
    wanted = [case for case in cases() if all(text in case.name for text in given.only)]
    rows = []
    for case in wanted:
        rows.append(row(case, given.blocks, given.steps))
        print(" | ".join(rows[-1]), flush=True)
    for model in ("transformer", "convnet", "mlp"):
        name = f"{model}: gloo data parallel, 2 ranks"
        if all(text in name for text in given.only):
            rows.append((name, *both_ranks(Options(model), given.blocks, given.steps)))
            print(" | ".join(rows[-1]), flush=True)
    errors = sorted(abs(float(each[5].rstrip("%"))) for each in rows if each[5])
    text = table_text(HEAD, rows)
    if errors:
        middle, most = np.quantile(errors, (0.5, 0.9))
        wrong = sum(each[-1] == "wrong sign" for each in rows)
        text += f"\n\nmedian |error| {middle:.1f} %, p90 {most:.1f} %, {wrong} wrong signs of {len(errors)}"
    command.tell(text, given.out)


if __name__ == "__main__":
    command.start_pinned()
    main()
