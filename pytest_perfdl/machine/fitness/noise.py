"""Noise of a fixed workload on this machine, and the smallest limit that can be enforced with it."""

from __future__ import annotations

from pytest_perfdl.machine.fitness.finding import MachineFinding
from pytest_perfdl.machine.reference_load import Noise
from pytest_perfdl.model.limits import UNPAIRED_LIMIT
from pytest_perfdl.model.units import format_percent

DEFAULT_LIMIT = 0.03
"""The limit of a timed metric unless a project sets another."""


def noise_finding(noise: Noise) -> MachineFinding:
    """The smallest limit that a machine with this noise can enforce."""
    found = f"time of a fixed workload varies by {format_percent(noise.spread, signed=False)} (standard deviation), "
    found += f"{format_percent(noise.span, signed=False)} from fastest to slowest"
    why = f"smallest limit enforceable with 10 paired rounds: {format_percent(noise.limit, signed=False)}"
    if noise.limit <= DEFAULT_LIMIT:
        return MachineFinding("ok", "noise", found, why)
    do = "stop other processes, or set larger limits; perfdl qualify measures which limits your tests can enforce"
    return MachineFinding("warn" if noise.limit <= UNPAIRED_LIMIT else "bad", "noise", found, why, do)
