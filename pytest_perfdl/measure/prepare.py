"""Prepares the process before a test's fixtures are set up, to reduce noise."""

from __future__ import annotations

import contextlib
import warnings

from pytest_perfdl.machine.state import seed_everything
from pytest_perfdl.model.record import MeasurementPlan


def prepare(plan: MeasurementPlan) -> None:
    """Import torch, fix its thread counts and seed every generator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

    torch.set_num_threads(plan.threads)
    # Refused once parallel work has begun, which only happens when measuring in pytest's own process.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    seed_everything(plan.seed)
