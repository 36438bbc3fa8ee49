"""Prepares the process before a test's fixtures are set up, to reduce noise."""

from __future__ import annotations

import contextlib
import warnings

from pytest_perfdl.machine.state import seed_everything
from pytest_perfdl.measure import process_group
from pytest_perfdl.model.record import MeasurementPlan


def prepare(plan: MeasurementPlan, rank_timeout: float | None = None) -> None:
    """Import torch, fix its thread counts, join the process group if the test has ranks, and seed every generator.

    Parameters
    ----------
    rank_timeout
        Timeout of collectives in seconds; `None` where no launcher started this process, which is the only rank then.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

    torch.set_num_threads(plan.threads)
    # Refused once parallel work has begun, which only happens when measuring in pytest's own process.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    if plan.ranks and rank_timeout is not None:
        process_group.join(plan, rank_timeout)
    elif plan.ranks:
        process_group.join_alone(plan.backend)
    seed_everything(plan.seed)
