"""Is planted waste advised against first, and is what is advised worth doing? Each piece of advice is followed here.

    python benchmarks/whatif/advice.py [--blocks 20] [--steps 10] [--only mlp] [--out TABLE.md]

*Planted* steps waste what one optimization gets back: that one has to come first. Steps that are *tuned* have nothing
left that gains 2 %: nothing is to be advised. Each piece of advice for either is followed, and both steps run in turns
as in `run.py`. The advisor gets ratios of operators in bfloat16 and in channels-last format, so that it can err.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import command
from common.tables import table_text
from models import Options, build
from run import in_turns, profiled

from pytest_perfdl.whatif import task_graph
from pytest_perfdl.whatif.advice import Advice, advise
from pytest_perfdl.whatif.measured_constants import measure_constants
from pytest_perfdl.whatif.transform import Context
from pytest_perfdl.whatif.unprofiled import unprofiled

LEAST = 0.02
"""Gain from which advice is worth something."""

FOLLOWED: Mapping[str, Callable[[Options], Options]] = {
    "fused_optimizer": lambda step: replace(step, optimizer="fused"),
    "foreach": lambda step: replace(step, optimizer="foreach"),
    "amp": lambda step: replace(step, bfloat16=True),
    "channels_last": lambda step: replace(step, channels_last=True),
    "workers": lambda step: replace(step, workers=1),
    "fold_batch_norm": lambda step: replace(step, folded=True),
}
"""The step as each optimization would have it."""


@dataclass(frozen=True)
class Case:
    """A step, and what has to be advised first; nothing for one that is tuned."""

    name: str
    step: Options
    expected: str = ""


CASES = (
    Case("mlp, one parameter at a time", Options("mlp"), "fused_optimizer"),
    Case("transformer, one parameter at a time", Options("transformer"), "fused_optimizer"),
    Case("convnet in float32", Options("convnet", optimizer="fused"), "amp"),
    Case(
        "convnet, batches made in the step", Options("convnet", optimizer="fused", bfloat16=True, workers=0), "workers"
    ),
    Case(
        "convnet, batch norm at inference",
        Options("convnet", optimizer="", bfloat16=True, channels_last=True),
        "fold_batch_norm",
    ),
    Case("mlp, fused update", Options("mlp", optimizer="fused")),
    Case("transformer, fused update", Options("transformer", optimizer="fused")),
    Case("convnet in bfloat16, fused update", Options("convnet", optimizer="fused", bfloat16=True)),
    Case(
        "convnet at inference, folded, in bfloat16 and channels-last",
        Options("convnet", optimizer="", bfloat16=True, folded=True, channels_last=True),
    ),
    Case("mlp at inference", Options("mlp", optimizer="")),
)


def rows(case: Case, blocks: int, count: int) -> list[tuple[str, ...]]:
    """A line for each piece of advice, or one that says that there is none."""
    [alone] = in_turns([build(case.step)[1]], blocks, count)
    with tempfile.TemporaryDirectory() as folder:
        trace = profiled(case.step, Path(folder))
    forms = ("bfloat16", "channels_last") if case.step.model == "convnet" else ("bfloat16",)
    machine = replace(measure_constants(trace, forms), cores=os.cpu_count())
    found = advise(Context(unprofiled(task_graph(trace), alone), machine))
    if not found:
        return [(case.name, case.expected or "nothing", "nothing", "", "", "" if not case.expected else "missed")]
    return [_followed(case, place, advice, blocks, count) for place, advice in enumerate(found)]


def _followed(case: Case, place: int, advice: Advice, blocks: int, count: int) -> tuple[str, ...]:
    step = FOLLOWED[advice.transform](case.step)
    before, after = in_turns([build(case.step)[1], build(step)[1]], blocks, count)
    gain = 1 - after / before
    wrong = gain < LEAST
    missed = place == 0 and case.expected not in ("", advice.transform)
    judged = "missed" if missed else "not worth it" if wrong else ""
    predicted = "" if advice.prediction.gain is None else f"{advice.prediction.gain:+.1%}"
    head = (case.name, case.expected or "nothing") if place == 0 else ("", "")
    return (*head, advice.transform, predicted, f"{gain:+.1%}", judged)


HEAD = ("step", "expected first", "advised", "predicted gain", "measured gain", "")


def main() -> None:
    given = command.options(__doc__)
    torch.set_num_threads(1)
    found: list[tuple[str, ...]] = []
    for case in CASES:
        if all(text in case.name for text in given.only):
            for row in rows(case, given.blocks, given.steps):
                found.append(row)
                print(" | ".join(row), flush=True)
    command.tell(table_text(HEAD, found), given.out)


if __name__ == "__main__":
    command.start_pinned()
    main()
