"""Load batches while the step computes."""

from __future__ import annotations

import re

import numpy as np

from pytest_perfdl.model.errors import MissingConstant, NotApplicable
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.facts import input_tasks
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.transform import Change, Context, transform

HAND_OVER_NS = (50_000, 0, 300_000)
"""Host time to receive a batch from a worker's queue, if it was not measured: likely, least, most."""

UNKNOWN_CONTENTION = (1.0, 1.0, 1.5)
"""How much longer step and workers take when they share the CPU, if it was not measured: likely, least, most."""

_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter")


@transform("workers")
def workers(context: Context, workers: int, now: int = -1) -> Change:
    """Use `DataLoader(num_workers=...)`, whose worker processes prepare the batches.

    With workers, the step time is `period = max(C, L / min(workers, cores - 1))`, plus the time to receive a batch from
    a worker:

    - C is the simulated step time without input loading.
    - L is the time to prepare a batch. If the trace has no workers, L is the host's time in the DataLoader. If the step
      in the trace waits for `now` workers, L is `now` times the step time.
    - Receiving a batch takes `hand_over_ns`, by default 50 us. The range of the prediction covers 0 to 300 us for
      receiving a batch.

    If the step computes on the CPU, the step shares the CPU with the workers, and both take `contention` times as long.
    If `contention` is unknown, the factor is 1, the range of the prediction covers factors of 1 to 1.5, and the
    confidence is low. A step that computes on a device is not slowed down.

    The simulation assumes that a worker needs as long for a batch as the main process. The constants `hand_over_ns`,
    `contention` and `cores` come from the machine. If `cores` is unknown, the simulation assumes as many free cores as
    workers.

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
        raise NotApplicable("the step spends no time in a DataLoader")
    idle = Plan().scale(tasks, 0.0).apply(graph)
    computing = float(_mean(simulate(idle).steps_ns))
    load = float(spent)
    if any(_WORKERS.search(name) for name in context.trace.names):
        if now < 1:
            raise MissingConstant(
                "the DataLoader has workers, but the trace does not contain the number of workers: set now=..."
            )
        if spent < 0.02 * period:
            raise NotApplicable("the step hardly waits for the workers of the DataLoader")
        load = now * period
    cores, known = context.known.cores, context.known.contention
    busy = min(workers, max(cores - 1, 1)) if cores else workers
    taking = context.known.hand_over_ns
    shared = (1.0,) * 3 if graph.on_device else (known,) * 3 if known else UNKNOWN_CONTENTION
    plans = [
        Plan().scale(~tasks, slower).scale(tasks, (max(load * slower / busy - computing * slower, 0.0) + ns) / spent)
        for slower, ns in zip(shared, HAND_OVER_NS if taking is None else (taking,) * 3, strict=True)
    ]
    notes = () if cores else ("the prediction assumes as many free cores as workers",)
    if shared is UNKNOWN_CONTENTION:
        why = (
            "the effect of workers on a step that computes on the CPU is unknown: run `perfdl constants` to measure it"
        )
        return Change.of(plans, trust="low", notes=(*notes, why))
    return Change.of(plans, notes=notes)


@transform("prefetch")
def prefetch(context: Context) -> Change:
    """Use one DataLoader worker, which prepares the next batch while the step computes.

    `prefetch` is the same as `workers` with `workers=1`.

    Raises
    ------
    NotApplicable
        If workers do so already, or the step waits for no input.
    """
    if any(_WORKERS.search(name) for name in context.trace.names):
        raise NotApplicable(
            "the DataLoader already has workers: use workers:workers=...,now=... to predict more workers"
        )
    return workers(context, 1)


def _mean(steps: np.typing.NDArray[np.int64]) -> float:
    return float(steps.mean()) if len(steps) else 0.0
