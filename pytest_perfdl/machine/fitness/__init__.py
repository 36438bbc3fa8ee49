"""Checks whether this machine is fit to measure: one file per subject, pure functions over files and commands.

`examine` returns all findings about a `Place`, worst first. Checks take the root of the file system, so that tests can
pass a made-up one. What a system does not expose is listed as unknown; no check raises because of missing hardware or
files.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytest_perfdl.machine.fitness import device, load, memory, processors, software
from pytest_perfdl.machine.fitness.finding import LEVELS, Level, MachineFinding, Runner, run
from pytest_perfdl.machine.fitness.noise import noise_finding
from pytest_perfdl.machine.reference_load import machine_noise
from pytest_perfdl.machine.state import active_tracer
from pytest_perfdl.system import clocks

__all__ = ["LEVELS", "Level", "MachineFinding", "Place", "examine", "noise_finding"]

_WINDOW_SECONDS = 0.5
"""How long other processes are observed: fifty ticks of the kernel."""


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, read from its metadata without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """The machine and project to check."""

    environment: Mapping[str, str]
    worker_environment: Mapping[str, str]
    """Environment variables of a worker process."""
    project: Path
    root: Path = Path("/")
    allowed: frozenset[int] = frozenset()
    """CPUs that this process may use; empty to ask the system."""
    run: Runner = run
    installed: Callable[[str], str | None] = installed_version


def examine(place: Place, *, timed: bool = True, window_s: float = _WINDOW_SECONDS) -> tuple[MachineFinding, ...]:
    """All findings about a place, worst first.

    Parameters
    ----------
    timed
        Whether to time the reference workload too, for about a second.
    window_s
        How long to observe other processes, in seconds.
    """
    before = load.Sample.take(place.root)
    clocks.sleep(window_s)
    after = load.Sample.take(place.root)
    checks = [*_machine(place), *(_now(place, before, after) if before and after else _unsampled())]
    found: list[MachineFinding] = []
    unknown = []
    for topic, check in checks:
        try:
            findings = check()
        except (ValueError, LookupError, ArithmeticError, OSError):
            # A file in an unknown format is treated as missing.
            findings = ()
        found += findings
        unknown += [] if findings else [topic]
    found += software.versions(place.installed, device.present(found))
    if timed:
        found.append(noise_finding(machine_noise()))
    if unknown:
        found.append(MachineFinding("note", "unknown", ", ".join(unknown), "not exposed by this system"))
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level)))


_Check = tuple[str, Callable[[], Sequence[MachineFinding]]]


def _machine(place: Place) -> Iterator[_Check]:
    root, here, worker = place.root, place.environment, place.worker_environment
    allowed = place.allowed or processors.allowed()
    yield "CPU quota", lambda: processors.quota(root, len(allowed))
    yield "load average", lambda: load.average(root, processors.online(root, allowed))
    yield "frequency", lambda: processors.frequency(root)
    yield "turbo", lambda: processors.turbo(root)
    yield "power", lambda: processors.power(root)
    yield "affinity", lambda: processors.affinity(root, allowed)
    yield "SMT", lambda: processors.siblings(root, allowed)
    yield "clock", lambda: processors.clock(root, *processors.clock_figures())
    yield "memory", lambda: memory.memory(root)
    yield "huge pages", lambda: memory.huge_pages(root)
    yield "page faults", lambda: memory.allocator(here, worker, platform.libc_ver()[0])
    yield "GPU", lambda: device.nvidia(root, place.run)
    yield "AMD GPU", lambda: device.rocm(place.run)
    yield "threads", lambda: software.threads(here, worker)
    yield "environment", lambda: software.variables(here)
    yield "tracer", lambda: software.tracer(root, active_tracer())
    yield "Python", lambda: software.python_build(platform.python_version(), sysconfig.get_config_vars())
    yield "git", lambda: software.history(place.project)


def _now(place: Place, before: load.Sample, after: load.Sample) -> Iterator[_Check]:
    allowed = place.allowed or processors.allowed()
    yield "load now", lambda: load.others(before, after, allowed, os.getpgrp())
    yield "stolen time", lambda: load.stolen(place.root, before, after)
    yield "throttling", lambda: load.throttling(before, after)
    yield "swapping", lambda: load.swapping(before, after, os.sysconf("SC_PAGE_SIZE"))


def _unsampled() -> Iterator[_Check]:
    for topic in ("load now", "stolen time", "throttling", "swapping"):
        yield topic, tuple
