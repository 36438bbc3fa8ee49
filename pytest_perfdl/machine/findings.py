"""The result of a check of the machine, and the noise of a fixed workload on it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_perfdl.machine.reference_load import Noise
from pytest_perfdl.model.limits import UNPAIRED_LIMIT
from pytest_perfdl.model.units import format_percent

# The result of a check, and helpers with which checks read the system.


Level = Literal["bad", "warn", "note", "ok"]
LEVELS: tuple[Level, ...] = ("bad", "warn", "note", "ok")
"""Worst first. *bad*: times measured here mean little; *warn*: they are noisier than need be; *note*: worth knowing."""

ANSWER_SECONDS = 5.0
"""Time limit for other programs, in seconds; a hanging driver must not hang the check."""


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """The result of one check, its effect on measurements, and the remedy."""

    level: Level
    topic: str
    found: str
    """The observed state, with numbers and units."""
    why: str = ""
    """Its effect on a measurement, one short sentence; empty if there is no problem."""
    do: str = ""
    """A command or an instruction; empty if nothing needs to be done."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Output of another program."""

    code: int | None
    """Exit code; `None` after a timeout."""
    text: str


Runner = Callable[[Sequence[str]], "Answer | None"]
"""Runs a program; `None` if it is not installed."""


def run(command: Sequence[str]) -> Answer | None:
    """Run a program for at most `ANSWER_SECONDS`; returns its output, or its errors if it prints nothing."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer(None, "")
    except OSError:
        return None
    return Answer(done.returncode, (done.stdout.strip() or done.stderr.strip()).decode(errors="replace"))


def listed(text: str) -> frozenset[int]:
    """Numbers of a kernel list.

    >>> sorted(listed("0-2,8"))
    [0, 1, 2, 8]
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def as_list(numbers: Sequence[int]) -> str:
    """The kernel's, and `taskset`'s, way of writing ascending numbers.

    >>> as_list([0, 1, 2, 8])
    '0-2,8'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


# Noise of a fixed workload on this machine, and the smallest limit that can be enforced with it.


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
