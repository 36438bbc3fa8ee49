"""How much a fixed workload's times spread on this machine, and which limits can be held to in that."""

from __future__ import annotations

from pytest_perfdl.machine.fitness.finding import MachineFinding
from pytest_perfdl.machine.reference_load import Noise
from pytest_perfdl.model.limits import UNPAIRED_LIMIT
from pytest_perfdl.model.units import format_percent

DEFAULT_LIMIT = 0.03
"""The limit of a timed metric unless a project sets another."""


def noise_finding(noise: Noise) -> MachineFinding:
    """What limits a machine with this noise can hold, at best."""
    found = f"blocks of one fixed workload spread by {format_percent(noise.spread, signed=False)} (SD), "
    found += f"{format_percent(noise.span, signed=False)} from fastest to slowest"
    why = f"ten paired rounds can hold a test to a limit of {format_percent(noise.limit, signed=False)}, at best"
    if noise.limit <= DEFAULT_LIMIT:
        return MachineFinding("ok", "noise", found, why)
    do = "free the machine, or set wider limits; perfdl qualify measures what your tests can be held to"
    return MachineFinding("warn" if noise.limit <= UNPAIRED_LIMIT else "bad", "noise", found, why, do)
