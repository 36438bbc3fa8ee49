"""Getting batches while the step computes."""

from __future__ import annotations

import re

import numpy as np

from pytest_perfdl.model.errors import MissingConstant, NotApplicable
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.facts import input_tasks
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.transform import Change, Context, transform

HAND_OVER_NS = (50_000, 0, 300_000)
"""Host time of taking a finished batch from a worker's queue: likely, least and most, where nobody measured it."""

UNKNOWN_CONTENTION = (1.0, 1.0, 1.5)
"""How much longer the step and the workers take side by side on the host, where nobody measured it."""

_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter")


@transform("workers")
def workers(context: Context, workers: int, now: int = -1) -> Change:
    """`DataLoader(num_workers=...)`: worker processes prepare the batches.

    period = max(C, L / min(workers, cores - 1)): C is the simulated period with no time for input, L the time to make
    a batch. Without workers L is the host's time in the DataLoader; with `now` workers, if the step waits for them, L =
    `now` times the period. Taking a batch over costs `Machine.hand_over_ns`; where that is not known 50 us (0 to
    300 us in the interval).

    Where the host itself computes, it shares the processor with the workers: both take `Machine.contention` times as
    long; where that is not known, once in the likeliest case and 1.5 times in the worst, with low trust. A step that a
    device computes is not slowed down. Making a batch takes as long in a worker; `cores` comes from the machine.

    Raises
    ------
    MissingConstant, NotApplicable
        If there are workers already and `now` does not say how many; if the step waits for no input.
    """
    if workers < 1:
        raise ValueError(f"workers:workers={workers}: expected at least 1")
    graph = context.graph
    tasks = input_tasks(graph)
    spent = graph.tasks.duration[tasks].sum() / max(len(graph.steps), 1)
    period = float(_mean(simulate(graph).steps_ns))
    if not spent or not period:
        raise NotApplicable("no time passes in a DataLoader")
    idle = Plan().scale(tasks, 0.0).apply(graph)
    computing = float(_mean(simulate(idle).steps_ns))
    load = float(spent)
    if any(_WORKERS.search(name) for name in context.trace.names):
        if now < 1:
            raise MissingConstant("the DataLoader has workers, but the trace does not have their number: give now=...")
        if spent < 0.02 * period:
            raise NotApplicable("the step hardly waits for its workers")
        load = now * period
    cores, known = context.known.cores, context.known.contention
    busy = min(workers, max(cores - 1, 1)) if cores else workers
    taking = context.known.hand_over_ns
    shared = (1.0,) * 3 if graph.on_device else (known,) * 3 if known else UNKNOWN_CONTENTION
    plans = [
        Plan().scale(~tasks, slower).scale(tasks, (max(load * slower / busy - computing * slower, 0.0) + ns) / spent)
        for slower, ns in zip(shared, HAND_OVER_NS if taking is None else (taking,) * 3, strict=True)
    ]
    notes = () if cores else ("assumes as many free cores as workers",)
    if shared is UNKNOWN_CONTENTION:
        why = "how much workers slow a step that computes on the CPU is unknown: `perfdl constants` measures it"
        return Change.of(plans, trust="low", notes=(*notes, why))
    return Change.of(plans, notes=notes)


@transform("prefetch")
def prefetch(context: Context) -> Change:
    """Asynchronous loading: one worker prepares the next batch while the step computes.

    Raises
    ------
    NotApplicable
        If workers do so already, or the step waits for no input.
    """
    if any(_WORKERS.search(name) for name in context.trace.names):
        raise NotApplicable("a DataLoader has workers already: ask for more of them with workers:workers=...,now=...")
    return workers(context, 1)


def _mean(steps: np.typing.NDArray[np.int64]) -> float:
    return float(steps.mean()) if len(steps) else 0.0
