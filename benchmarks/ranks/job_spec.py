"""What a simulated job is: its ranks, model, network, noise and clocks, and what is wrong with one of its ranks.

Durations are integer nanoseconds, sizes bytes, rates bytes a second, shares fractions of 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Cause = Literal["compute", "input", "host", "communication"]
Parallel = Literal["ddp", "fsdp", "pipeline", "tensor"]
Format = Literal["nanoseconds", "microseconds"]


@dataclass(frozen=True, slots=True)
class Model:
    """Layers that all take the same time, on the device or, of a job without devices, on the host's step thread."""

    layers: int = 8
    forward_ns: int = 600_000
    """Forward of one layer; its backward takes twice as long."""
    optimizer_ns: int = 400_000
    """All kernels of the optimizer."""
    input_ns: int = 300_000
    """`__next__` of the loader."""
    python_ns: int = 12_000
    """Between two operators of the forward; of the backward, whose engine is C++, a third."""
    batch: int = 32
    width: int = 1024
    parameter_bytes: int = 16 << 20
    """Of one layer, and of its gradients."""
    activation_bytes: int = 4 << 20
    """What one layer gives to the next."""


@dataclass(frozen=True, slots=True)
class Network:
    """The links into the ranks."""

    bytes_per_s: float = 100e9
    latency_ns: int = 8_000
    """Of one round of a ring."""
    jitter_ns: int = 2_000
    """How far apart the members of a collective end by chance, at most."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Deviations of the logarithms of durations."""

    kernel: float = 0.03
    """Of one kernel, or one operator without a device."""
    step: float = 0.002
    """Common to all kernels of one step of one rank."""
    host: float = 0.2
    """Of one span of Python or of the runtime."""
    input: float = 0.1
    network: float = 0.03
    """Of one collective, common to its members."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """What is wrong with one rank, in every step from `since` on."""

    rank: int
    since: int
    """Number of the first slow step of the trace, from 0. Of 0, it was slow before the trace began."""
    cause: Cause
    size: float
    """Of compute: kernels take 1 + size as long. Of input: `__next__` takes 1 + size as long. Of host, style "gaps":
    all gaps of Python and the runtime take 1 + size as long; style "pause": size ms more in one gap of the forward. Of
    communication: the link into the rank has 1 / (1 + size) of its bandwidth."""
    style: str = ""
    """Of compute: "all" kernels, or those of every third of the "layers" (more work in some). Of host: see `size`."""


@dataclass(frozen=True, slots=True)
class Hiccup:
    """Time that one rank loses once: no straggler."""

    rank: int
    step: int
    cause: Literal["compute", "input", "host"]
    lost_ns: int


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the clocks of hosts show."""

    ranks_per_host: int = 8
    offsets_ns: tuple[int, ...] = (0,)
    """By host."""
    drifts: tuple[float, ...] = (0.0,)
    """By host: seconds gained in a second."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A job, and how its profiler writes. Edit it with `dataclasses.replace`, and simulate it again.

    All draws are those of a rank, its step and its kind of work. So two specs that differ in one thing have the same
    noise in all else.
    """

    name: str = "job"
    seed: int = 0
    ranks: int = 8
    parallel: Parallel = "ddp"
    group: int = 0
    """Ranks next to each other that share a model: the stages of a pipeline, the members of a tensor-parallel group,
    those among which FSDP shards. Replicas of them reduce their gradients. 0: all ranks. DDP has no such groups."""
    device: bool = True
    """Kernels on a device and NCCL; else operators on the host and gloo."""
    steps: int = 6
    first_step: int = 2
    """N of the first `ProfilerStep#N`."""
    synchronize: bool = True
    """The host waits for the device at the end of each step, in `loss.item()`."""
    microbatches: int = 8
    """Of a pipeline."""
    bucket_bytes: int = 25 << 20
    """Of DDP, and of the gradients that replicas reduce."""
    model: Model = field(default_factory=Model)
    network: Network = field(default_factory=Network)
    noise: Noise = field(default_factory=Noise)
    clocks: Clocks = field(default_factory=Clocks)
    speeds: tuple[float, ...] = ()
    """What kernels of each rank take, relative to the others, always. Missing ones are 1."""
    straggler: Straggler | None = None
    hiccups: tuple[Hiccup, ...] = ()
    format: Format = "nanoseconds"
    """"microseconds": integers since 1970, without arguments of collectives, as until torch 2.1."""

    @property
    def members(self) -> int:
        """Ranks that share a model."""
        return self.group or self.ranks

    def inner(self, rank: int) -> tuple[int, ...]:
        """The ranks that share a model with this one."""
        first = rank - rank % self.members
        return tuple(range(first, first + self.members))

    def replicas(self, rank: int) -> tuple[int, ...]:
        """The ranks that have the same part of the model as this one."""
        return tuple(range(rank % self.members, self.ranks, self.members))
