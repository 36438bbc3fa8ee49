"""Memory formats of images."""

from __future__ import annotations

import re

import numpy as np

from pytest_perfdl.analysis.account.parts.labels import PHASES, labels
from pytest_perfdl.model.errors import MissingMachineConstant, NotApplicable
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.editing.select import of_rows
from pytest_perfdl.whatif.facts import computing, operator_costs
from pytest_perfdl.whatif.model import Mask, TaskGraph
from pytest_perfdl.whatif.transform import Change, Context, transform

TRANSPOSING = re.compile(
    r"nchwTo(nhwc|NHWC)|nhwcTo(nchw|NCHW)|(nchw|nhwc)_to_|batched_transpose_\d+x\d+", re.IGNORECASE
)
"""Kernels of cuDNN and MIOpen that convert the format around a convolution."""

_FORM = "channels_last"


@transform("channels_last")
def channels_last(context: Context) -> Change:
    """Use channels-last memory format for weights and images.

    - Kernels that transpose around convolutions (nchwToNhwc, nhwcToNchw, batched_transpose) take no time, but the host
      still launches them. Removing transposing kernels needs no constant of the machine. Without measured ratios, the
      simulation changes nothing else, and the confidence is low.
    - With measured ratios r (`Machine.ratios`, from `perfdl constants`), each measured operator also takes `t' = t r`,
      forward and backward. `perfdl constants` replays the operators in both memory formats, interleaved.

    The simulation does not add the time to convert the batch to channels-last format. The conversion is one
    transposition per step, and counts as input time. The conversion takes twice the bytes of the batch, divided by the
    memory bandwidth.

    The simulation assumes that gradients are in channels-last format, too. The slow end of the predicted range comes
    from replays with one tensor in the old format.

    Raises
    ------
    MissingMachineConstant, NotApplicable
        If there is no transposing kernel and no ratio; if nothing works on images.
    """
    graph = context.graph
    ratios = context.known.ratios.get(_FORM, {})
    transposing = _transposing(graph)
    costs = operator_costs(context.trace)
    convolves = [number for number, key in enumerate(costs.keys) if "conv" in key.partition(" ")[0]]
    if not convolves and not transposing.any():
        raise NotApplicable("the trace has no convolution")
    if not ratios and not transposing.any():
        raise MissingMachineConstant(
            "no kernel converts the memory format around convolutions, and the speed of convolutions in "
            "channels-last is unknown",
            "measured ratios",
        )
    call = np.where(computing(graph), costs.of_tasks(graph), -1)
    call[of_rows(graph, labels(context.trace).phase == PHASES.index("optimizer"))] = -1
    some = np.flatnonzero(call >= 0)
    plans = []
    for which in (1, 0, 2):
        factor = np.ones(len(graph))
        factor[some] = [ratios.get(costs.keys[number], (1.0, 1.0, 1.0))[which] for number in costs.number[call[some]]]
        factor[transposing] = 0.0
        plans.append(Plan().timed(np.rint(graph.tasks.duration * factor).astype(np.int64)))
    if not ratios:
        note = "the prediction only removes conversion kernels; the convolutions may also become faster or slower"
        return Change(plans[0], trust="low", notes=(note,))
    return Change.of(plans)


def _transposing(graph: TaskGraph) -> Mask:
    named = np.array([bool(TRANSPOSING.search(name)) for name in graph.names], dtype=bool)
    return named[graph.tasks.name] & graph.is_device
