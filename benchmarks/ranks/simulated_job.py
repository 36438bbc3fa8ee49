"""Simulate a job: the events that each rank's profiler sees, and the truth about its straggler.

    traces, truth = simulate(spec)

The truth comes from the specification and from simulating the same draws without the straggler; no analysis of traces
takes part in it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import job_steps
from device_rank import DeviceRank
from discrete_events import Clock, Collective, ends, ring
from host_rank import HostRank
from job_rank import Event
from job_spec import Spec


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of a job."""

    straggler: dict[str, Any] | None
    """As `perfdl trace RANK... --json` names it: "rank", "since_step", "cause" and "cost_ns" a step."""
    step_ns: tuple[int, ...]
    """From the end of a step to the end of the next one, on the rank that ends last."""
    waits_ns: tuple[tuple[int, ...], ...]
    """By rank and step: time in collectives before the last member came, added up over the collectives."""

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {"straggler": self.straggler, "step_ns": self.step_ns, "waits_ns": self.waits_ns}


class Job:
    """One simulation."""

    def __init__(self, spec: Spec, *, recording: bool = True) -> None:
        self.spec, self.recording, self.clock = spec, recording, Clock()
        self.calls: dict[tuple[str, tuple[int, ...], int], tuple[int, Collective]] = {}
        self.ends: dict[int, int] = {}
        groups = dict.fromkeys([tuple(range(spec.ranks))])
        if spec.parallel != "ddp":
            groups |= dict.fromkeys(spec.inner(rank) for rank in range(spec.ranks))
            groups |= dict.fromkeys(spec.replicas(rank) for rank in range(spec.ranks))
        self.groups = {members: str(number) for number, members in enumerate(groups)}
        kind = DeviceRank if spec.device else HostRank
        self.ranks = [kind(self, number) for number in range(spec.ranks)]

    def run(self) -> None:
        """Simulate all steps."""
        for rank in self.ranks:
            self.clock.start(job_steps.run(rank), random.Random(f"{self.spec.seed}/{rank.number}").randrange(50_000))
        self.clock.run()
        if len(self.ends) != self.spec.steps + 1:
            raise RuntimeError(f"{self.spec.name}: the ranks wait for each other for ever")

    def collective(self, kind: str, members: tuple[int, ...], size: int, number: int, step: int) -> Collective:
        pair = kind in ("send", "recv")
        key = ("p2p" if pair else "", members, number)
        if key not in self.calls:
            spec, draws = self.spec, random.Random(f"{self.spec.seed}/{members}/{number}/{pair}")
            bad = spec.straggler
            slow = bad.rank if bad and bad.cause == "communication" and (step >= bad.since or not bad.since) else -1
            usual = spec.network.bytes_per_s
            into = tuple(usual / (1 + bad.size) if bad and member == slow else usual for member in members)
            into = (into[1], into[1]) if pair else into
            noise = math.exp(spec.noise.network * draws.gauss(0, 1))
            spent = ends(ring(kind, len(members), size), into, spec.network.latency_ns)
            lasting = [round(taken * noise) + draws.randrange(spec.network.jitter_ns + 1) for taken in spent]
            self.calls[key] = (step, Collective(self.clock, members, lasting))
        return self.calls[key][1]

    def completed(self, step: int) -> None:
        self.ends[step] = max(self.clock.now, self.ends.get(step, 0))

    def group_name(self, members: tuple[int, ...]) -> str:
        return self.groups[members]

    def waits(self) -> tuple[tuple[int, ...], ...]:
        """By rank and step."""
        found = [[0] * self.spec.steps for _ in self.ranks]
        for step, call in self.calls.values():
            if step >= 0:
                for rank, came in call.arrivals.items():
                    found[rank][step] += call.begun - came
        return tuple(map(tuple, found))


def step_times(spec: Spec) -> tuple[int, ...]:
    """Nanoseconds of each step, without recording it."""
    job = Job(spec, recording=False)
    job.run()
    return _steps(job)


def _steps(job: Job) -> tuple[int, ...]:
    return tuple(job.ends[step] - job.ends[step - 1] for step in range(job.spec.steps))


def cost_ns(spec: Spec, with_it: tuple[int, ...] | None = None) -> int:
    """What the straggler costs a step: the mean of the steps from its first slow one on, with it minus without it."""
    if spec.straggler is None:
        return 0
    first = spec.straggler.since
    slow = (with_it or step_times(spec))[first:]
    usual = step_times(replace(spec, straggler=None))[first:]
    return round((sum(slow) - sum(usual)) / len(slow))


def simulate(spec: Spec) -> tuple[list[list[Event]], Truth]:
    """The events of each rank, in true nanoseconds, and the truth. `chrome_files.write` makes files of them."""
    job = Job(spec)
    job.run()
    times, bad = _steps(job), spec.straggler
    straggler = None
    if bad:
        number = spec.first_step + bad.since
        straggler = {"rank": bad.rank, "since_step": number, "cause": bad.cause, "cost_ns": cost_ns(spec, times)}
    return [rank.events for rank in job.ranks], Truth(straggler, times, job.waits())
