"""The sets of traces that `run.py` evaluates: a hundred of each cause, and a hundred without a straggler.

Every set has its own draws, from its name. The size of a straggler is solved for, such that it costs a share of the
step that is drawn between 3 % and 50 %, evenly in its logarithm.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean
from typing import get_args

from job_spec import Cause, Clocks, Hiccup, Model, Network, Noise, Spec, Straggler
from simulated_job import step_times

CAUSES: tuple[Cause, ...] = get_args(Cause)
FORMS = (
    ("ddp", (0,), True),
    ("fsdp", (0, 4), True),
    ("pipeline", (0, 4), True),
    ("tensor", (8, 4, 2), True),
    ("ddp", (0,), False),
    ("fsdp", (0, 4), False),
    ("pipeline", (0, 4), False),
    ("tensor", (8, 4, 2), False),
)
"""The way to train, sizes of groups, and whether there are devices."""
HARMLESS = ("noise", "hiccups", "one percent", "nanoseconds", "clocks")
"""What is notable about the sets without a straggler."""
RANKS = 8
LEAST, MOST = 0.03, 0.5
"""Shares of the step that stragglers cost."""


def names(count: int = 100, first: int = 0) -> list[str]:
    """Of `count` sets of each kind, one of each after another. Sets from another `first` on are other draws."""
    return [f"{kind}-{number:03d}" for number in range(first, first + count) for kind in (*CAUSES, "none")]


def made(name: str) -> Spec:
    """The specification of a set."""
    kind, _, number = name.partition("-")
    draws = random.Random(f"set {name}")
    cause = next((known for known in CAUSES if known == kind), None)
    spec = _job(name, int(number), draws, cause)
    if cause is None:
        return _harmless(spec, HARMLESS[int(number) // len(FORMS) % len(HARMLESS)], draws)
    return _with_straggler(spec, cause, draws)


def _job(name: str, number: int, draws: random.Random, cause: Cause | None) -> Spec:
    """All but what is wrong."""
    parallel, groups, device = FORMS[number % len(FORMS)]
    group = groups[number // len(FORMS) % len(groups)]
    steps = draws.choice((3, 4, 5, 6, 6, 7, 8, 8, 10, 12, 20))
    pipeline = parallel == "pipeline"
    layers = draws.randint(1, 2) if pipeline else draws.randint(4, 8)
    scale = math.exp(draws.uniform(-0.5, 0.5))
    if device:
        python = draws.choice((8_000, 12_000, 20_000, 40_000))
        model = Model(
            layers=layers,
            forward_ns=round(600_000 * scale),
            optimizer_ns=draws.randrange(200_000, 800_000),
            input_ns=draws.randrange(100_000, 600_000),
            python_ns=python,
            parameter_bytes=draws.choice((8, 16, 32)) << 20,
            activation_bytes=draws.choice((4, 8, 16)) << 20,
        )
        rate = draws.choice((20e9, 50e9, 100e9))
        network = Network(rate, draws.randrange(4_000, 15_000), draws.choice((500, 2_000, 5_000)))
    else:
        model = Model(
            layers=layers,
            forward_ns=round(1_500_000 * scale),
            optimizer_ns=draws.randrange(1_000_000, 3_000_000),
            input_ns=draws.randrange(300_000, 1_500_000),
            python_ns=draws.choice((12_000, 20_000, 40_000)),
            parameter_bytes=draws.choice((2, 4, 8)) << 20,
            activation_bytes=draws.choice((1, 2, 4)) << 18,
        )
        network = Network(draws.choice((1.5e9, 3e9)), draws.randrange(20_000, 60_000), draws.choice((5_000, 20_000)))
    noise = Noise(
        kernel=draws.uniform(0.01, 0.06),
        step=draws.uniform(0.0005, 0.003),
        host=draws.uniform(0.1, 0.3),
        input=draws.uniform(0.05, 0.2),
        network=draws.uniform(0.01, 0.06),
    )
    waiting = not device or cause in ("host", "input") or draws.random() < 0.75
    old = device and parallel in ("ddp", "fsdp") and not group and draws.random() < 0.4
    return Spec(
        name=name,
        seed=draws.randrange(1 << 30),
        ranks=RANKS,
        parallel=parallel,
        group=group,
        device=device,
        steps=steps,
        first_step=draws.choice((1, 2, 3, 5, 11, 551)),
        synchronize=waiting,
        microbatches=draws.randint(4, 6),
        bucket_bytes=model.parameter_bytes * draws.choice((1, 2)) // draws.choice((1, 2)),
        model=model,
        network=network,
        noise=noise,
        clocks=_clocks(draws),
        speeds=tuple(draws.uniform(0.996, 1.004) for _ in range(RANKS)),
        format="microseconds" if old else "nanoseconds",
    )


def _clocks(draws: random.Random) -> Clocks:
    """One host, or several whose clocks differ by milliseconds, and drift apart by up to 40 microseconds a second."""
    per_host = draws.choice((8, 8, 4, 2, 1))
    hosts = RANKS // per_host
    offsets = tuple(draws.randrange(-5_000_000, 5_000_000) if hosts > 1 else 0 for _ in range(hosts))
    drifting = draws.random() < 0.5
    return Clocks(per_host, offsets, tuple(draws.uniform(-2e-5, 2e-5) if drifting else 0.0 for _ in range(hosts)))


def _with_straggler(spec: Spec, cause: Cause, draws: random.Random) -> Spec:
    rank = draws.randrange(spec.ranks)
    if cause == "input" and spec.parallel == "pipeline":
        rank -= rank % spec.members  # only first stages load
    since = draws.randint(1, spec.steps - 3) if spec.steps >= 5 and draws.random() < 0.5 else 0
    style = {"compute": draws.choice(("all", "layers")), "host": draws.choice(("gaps", "pause"))}.get(cause, "")
    share = LEAST * (MOST / LEAST) ** draws.random()
    spec = solved(replace(spec, straggler=Straggler(rank, since, cause, 1.0, style)), share)
    # Its own hiccups come only while it is slow anyway: a step that was slow by chance just before would be its first.
    hiccups = [
        hiccup
        for hiccup in _hiccups(spec, draws, draws.choice((0, 0, 1)))
        if hiccup.rank != rank or hiccup.step >= since
    ]
    return replace(spec, hiccups=tuple(hiccups))


def _harmless(spec: Spec, what: str, draws: random.Random) -> Spec:
    rank = draws.randrange(spec.ranks)
    if what == "hiccups":
        spec = replace(spec, steps=max(spec.steps, 5))
        return replace(spec, hiccups=tuple(_hiccups(spec, draws, draws.randint(1, 3))))
    if what == "one percent":
        speeds = (*spec.speeds[:rank], 1.01, *spec.speeds[rank + 1 :])
        return replace(spec, speeds=speeds)
    if what == "nanoseconds":
        # Kernels of all ranks take the same time, to a few nanoseconds, and one rank is the last of them.
        speeds = tuple(1 + 1e-5 * (other == rank) for other in range(spec.ranks))
        return replace(spec, speeds=speeds, noise=replace(spec.noise, kernel=1e-6, step=1e-6))
    if what == "clocks":
        offsets = tuple(draws.randrange(-50_000_000, 50_000_000) for _ in range(spec.ranks))
        return replace(spec, clocks=Clocks(1, offsets, tuple(draws.uniform(-5e-5, 5e-5) for _ in offsets)))
    return spec


def _hiccups(spec: Spec, draws: random.Random, count: int) -> list[Hiccup]:
    """Each in a step and on a rank of its own; none in traces of less than five steps."""
    if spec.steps < 5:
        return []
    usual = fmean(step_times(replace(spec, steps=2, straggler=None)))
    places = zip(draws.sample(range(spec.ranks), count), draws.sample(range(spec.steps), count), strict=True)
    found = []
    for rank, step in places:
        cause = draws.choice(("compute", "input", "host"))
        found.append(Hiccup(rank, step, cause, round(usual * draws.uniform(0.2, 1.0))))
    return found


def solved(spec: Spec, share: float) -> Spec:
    """The same with the size of its straggler such that it costs this share of the step, to a tenth of it.

    Solved on two steps, by bisection of the logarithm of the size.
    """
    short = replace(spec, steps=2, hiccups=())
    bad = spec.straggler
    if bad is None:
        raise ValueError("there is no straggler to solve for")
    usual = fmean(step_times(replace(short, straggler=None)))
    least, most = math.log(1e-3), math.log(1e3)
    for _ in range(14):
        size = math.exp((least + most) / 2)
        trial = replace(short, straggler=replace(bad, since=0, size=size))
        costs = fmean(step_times(trial)) / usual - 1
        if abs(costs / share - 1) < 0.1:
            break
        least, most = (least, math.log(size)) if costs > share else (math.log(size), most)
    return replace(spec, straggler=replace(bad, size=size))
