"""Jobs of two ranks with one change each, and what must be named first as the cause of the slowdown.

A job is a git repository that is made from nothing: data-parallel training of a residual network, its perf test, and
one change of its source. Five kinds of changes, eight jobs each: a rank that computes more, a rank that loads slowly,
gradients in small buckets, communication that no longer overlaps with the backward pass, and a batch that is split
unevenly. Jobs of one kind differ in the rank, in the change, and in the sizes of network and batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

LINK = '''"""A network between the ranks, slower than the machine's: what is sent takes latency + bytes / bandwidth.

Ranks and their communication share the machine's cores, so more bytes would also take time from computing. This link
sleeps instead. Each process has both ends of a group of two, the far end in a thread: the near end's all-reduce, which
the profiler records as it does any other, is complete when the far end joins it, and that is after the time of the
link, and after the real all-reduce among the ranks.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future


class Link:
    """Averages tensors over the ranks, one after the other; `bandwidth` in bytes and `latency` in seconds."""

    def __init__(self, bandwidth: float, latency: float) -> None:
        self.bandwidth, self.latency = bandwidth, latency
        self.ranks = dist.new_group(backend="gloo")
        store = dist.HashStore()
        with ThreadPoolExecutor(2) as both:
            self.near, self.far = both.map(lambda end: _group(store, end), (0, 1))
        self.buffers: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.sent: SimpleQueue[tuple[Tensor, Tensor]] = SimpleQueue()
        threading.Thread(target=self._far_end, daemon=True).start()

    def average(self, tensor: Tensor) -> Future[Tensor]:
        """Start to average a tensor in place."""
        # Buffers that stay: the profiler would see memory that this thread allocates and the other one frees as kept.
        place = tensor.data_ptr(), tensor.numel()
        if place not in self.buffers:
            self.buffers[place] = torch.empty_like(tensor), torch.empty_like(tensor)
        own, total = self.buffers[place]
        own.copy_(tensor)
        self.sent.put((own, total.copy_(tensor)))
        return self.near.allreduce([tensor]).get_future().then(lambda done: done.value()[0])

    def _far_end(self) -> None:
        free = 0.0
        while True:
            own, total = self.sent.get()
            free = max(free, time.perf_counter()) + self.latency + own.nbytes / self.bandwidth
            dist.all_reduce(total, group=self.ranks)
            time.sleep(max(0.0, free - time.perf_counter()))
            self.far.allreduce([total.div_(self.ranks.size()).sub_(own)]).wait()


def _group(store: dist.Store, rank: int) -> dist.ProcessGroup:
    backend = dist.ProcessGroupGloo(dist.PrefixStore("link", store), rank, 2, timedelta(minutes=5))
    group = dist.ProcessGroup(store, rank, 2)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_default_backend(kind)
    return group
'''

NET = '''"""A residual network for tables."""

from torch import Tensor, nn


class Residual(nn.Module):
    """Two linear layers around a GELU, added to what came in: [rows, width] to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.activation = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


class Net(nn.Module):
    """Rows [rows, width] to one number each."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Residual(width) for _ in range(layers)))
        self.head = nn.Linear(width, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.layers(rows)).squeeze(-1)
'''

BATCHES = '''"""Batches, of which each rank loads its share."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from training.settings import ROWS, WIDTH

STORED = torch.randn(8, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def share(rank: int, ranks: int) -> slice:
    """Rows of a batch that a rank computes."""
    return slice(ROWS * rank // ranks, ROWS * (rank + 1) // ranks)


def load(number: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    """A rank's rows of a batch, and what the network is to answer."""
    rows = STORED[number % len(STORED), share(rank, ranks)]
    return rows, rows.mean(-1)


class Batches:
    """An epoch of batches, as often as it is asked for."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(64):
            yield load(number, self.rank, self.ranks)
'''

TRAINER = '''"""Data-parallel training: gradients are averaged over a link while the backward pass computes."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from training.link import Link
from training.net import Net
from training.settings import BANDWIDTH, BUCKET_MB, LATENCY, LAYERS, WIDTH


def send(link: Link, bucket: dist.GradBucket) -> Future[Tensor]:
    return link.average(bucket.buffer())


class Trainer:
    def __init__(self, rank: int, ranks: int) -> None:
        torch.manual_seed(0)
        self.rank, self.ranks = rank, ranks
        self.net = Net(WIDTH, LAYERS)
        self.link = Link(BANDWIDTH, LATENCY)
        self.replica = DistributedDataParallel(self.net, bucket_cap_mb=BUCKET_MB)
        self.replica.register_comm_hook(self.link, send)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-9)

    def step(self, rows: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = mse_loss(self.replica(rows), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
'''

TEST = """import pytest
from training.batches import Batches
from training.trainer import Trainer


@pytest.mark.perf(ranks=2, backend="gloo")
def test_train(perf):
    trainer = Trainer(perf.rank, perf.world_size)
    for rows, targets in perf.steps(Batches(perf.rank, perf.world_size)):
        loss = trainer.step(rows, targets)
    assert loss.isfinite()
"""

PYTEST_INI = """[pytest]
pythonpath = src
perf_warmup = 8
perf_steps = 24
perf_budget = 600
perf_limits =
    step_time:{limit}
    block_time:{limit}
    peak_memory:off
"""
"""What ranks keep in memory is not the subject."""


@dataclass(frozen=True)
class Sizes:
    """What a job's `settings.py` says, on both sides."""

    width: int = 192
    layers: int = 6
    rows: int = 160
    """Of both ranks together."""
    bucket_mb: float = 1.0
    bandwidth: float = 1e9
    """Bytes per second of the link between the ranks."""
    latency: float = 0.0002
    """Seconds until the first byte of a bucket arrives."""

    def text(self) -> str:
        """The module."""
        return "".join(f"{name.upper()} = {value!r}\n" for name, value in vars(self).items())


@dataclass(frozen=True)
class Plant:
    """A change of the source, and what a report must name first."""

    kind: str
    """One of `KINDS`, or "unchanged"."""
    variant: str
    edits: tuple[tuple[str, str, str], ...]
    """File of `src/training/`, lines that occur once in it, and what replaces them."""
    causes: tuple[str, ...]
    """Patterns of the names that are right for the first cause."""
    rank: int | None = None
    """The rank that is to blame; `None` where all ranks are."""
    sizes: Sizes = field(default_factory=Sizes)
    limit: str = "10%"
    """Of times: planted slowdowns are above it, and fewer rounds show that unchanged code is below a large one."""

    @property
    def name(self) -> str:
        """Of the job."""
        return f"{self.kind}/{self.variant}"

    def files(self, *, planted: bool) -> dict[str, str]:
        """Path -> text of the whole repository, before or after the change."""
        source = {
            "__init__.py": "",
            "settings.py": self.sizes.text(),
            "link.py": LINK,
            "net.py": NET,
            "batches.py": BATCHES,
            "trainer.py": TRAINER,
        }
        for path, old, new in self.edits if planted else ():
            if source[path].count(old) != 1:
                raise ValueError(f"{self.name}: occurs {source[path].count(old)} times in {path}: {old!r}")
            source[path] = source[path].replace(old, new)
        made = {f"src/training/{path}": text for path, text in source.items()}
        return {
            "pytest.ini": PYTEST_INI.format(limit=self.limit),
            "tests/test_speed.py": TEST,
            ".gitignore": "__pycache__/\n",
            **made,
        }

    def is_named(self, cause: dict[str, Any] | None) -> tuple[bool, bool]:
        """Whether an entry of a run file's `blame` has the right rank, and the right cause."""
        if cause is None:
            return False, False
        return cause.get("rank") == self.rank, any(fnmatchcase(cause["name"], pattern) for pattern in self.causes)


_BEHIND_THE_STEP = "        self.optimizer.step()\n"
_LOADED = "    return rows, rows.mean(-1)\n"

_MORE_WORK: dict[str, tuple[str, tuple[str, ...]]] = {
    "statistics": (
        "self.spectra = [torch.linalg.svdvals(layer.up.weight[:144, :144]) for layer in self.net.layers]",
        ("aten::linalg_svd", "aten::_linalg_svd", "aten::linalg_svdvals"),
    ),
    "check": (
        "self.checked = torch.no_grad()(self.net)(rows.repeat(4, 1))",
        ("aten::addmm", "aten::linear", "aten::gelu", "aten::native_layer_norm"),
    ),
    "sorted": (
        "self.sorted = [torch.sort(weights.grad.flatten()).values for weights in self.net.layers[:2].parameters()]",
        ("aten::sort",),
    ),
    "log": (
        "self.digits = sum(len(str(number)) for number in self.net.head.weight.flatten().tolist() * 200)",
        ("Python and host", "*trainer.py*", "*Trainer.step*"),
    ),
}
"""Work that one rank does alone behind the optimizer: a line of its own, and the names that are right."""

_SLOW_LOADING = {
    "storage": "time.sleep(0.025)",
    "storage-slower": "time.sleep(0.05)",
    "decoding": "np.sort(np.arange(40_000)[::-1].astype(str))",
    "parsing": "[float(text) for text in map(str, range(60_000))]",
}

_SPLIT = "    return slice(ROWS * rank // ranks, ROWS * (rank + 1) // ranks)\n"

_AFTER_THE_BACKWARD_PASS = """        with self.replica.no_sync():
            loss = mse_loss(self.replica(rows), targets)
            loss.backward()
        layers = [self.net.head, *reversed(self.net.layers)]
        for pair in zip(layers[::2], [*layers[1::2], torch.nn.Identity()]):
            gradients = [weights.grad for layer in pair for weights in layer.parameters()]
            average = self.link.average(torch.cat([gradient.flatten() for gradient in gradients])).wait()
            for gradient, part in zip(gradients, average.split([each.numel() for each in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
"""
_FORWARD_AND_BACKWARD = """        loss = mse_loss(self.replica(rows), targets)
        loss.backward()
"""
_SENT = "    return link.average(bucket.buffer())\n"
_WAITED_FOR = """    sent = link.average(bucket.buffer())
    sent.wait()
    return sent
"""

COMMUNICATION = ("communication", "*all_reduce*", "*allreduce*")
COMPUTING = ("aten::addmm", "aten::mm", "aten::linear", "aten::gelu*", "aten::native_layer_norm*", "compute")
SLOW = Sizes(bandwidth=6e8, latency=0.0008)
"""A link on which the backward pass hides most of what is sent."""


def _computes_more() -> list[Plant]:
    found = []
    for variant, (line, causes) in _MORE_WORK.items():
        for rank in (0, 1):
            changed = f"{_BEHIND_THE_STEP}        if self.rank == {rank}:\n            {line}\n"
            edit = ("trainer.py", _BEHIND_THE_STEP, changed)
            found.append(Plant("computes more", f"{variant}-rank{rank}", (edit,), causes, rank))
    return found


def _loads_slowly() -> list[Plant]:
    found = []
    for variant, line in _SLOW_LOADING.items():
        for rank in (0, 1):
            changed = f"    if rank == {rank}:\n        {line}\n{_LOADED}"
            edit = ("batches.py", _LOADED, changed)
            found.append(Plant("loads slowly", f"{variant}-rank{rank}", (edit,), ("input",), rank))
    return found


def _small_buckets() -> list[Plant]:
    sizes = (SLOW, Sizes(layers=8, width=160, bandwidth=6e8, latency=0.0008))
    return [
        Plant(
            "small buckets",
            f"{cap}-MB-of-{made.width}",
            (("trainer.py", "bucket_cap_mb=BUCKET_MB", f"bucket_cap_mb={cap}"),),
            COMMUNICATION,
            sizes=made,
        )
        for made in sizes
        for cap in (0.2, 0.1, 0.01, 0.001)
    ]


def _lost_overlap() -> list[Plant]:
    edits = {
        "after-backward": ("trainer.py", _FORWARD_AND_BACKWARD, _AFTER_THE_BACKWARD_PASS),
        "waiting-hook": ("trainer.py", _SENT, _WAITED_FOR),
    }
    sizes = (
        Sizes(bandwidth=3e8),
        Sizes(bandwidth=4e8, rows=224),
        Sizes(layers=8, width=160, bandwidth=3e8),
        Sizes(layers=4, width=224, bandwidth=3e8),
    )
    # Little of the communication overlaps on shared cores: what is lost is a tenth of the step in some of these jobs.
    return [
        Plant(
            "lost overlap",
            f"{variant}-{made.layers}x{made.width}-{made.rows}",
            (edit,),
            COMMUNICATION,
            sizes=made,
            limit="5%",
        )
        for variant, edit in edits.items()
        for made in sizes
    ]


def _uneven_split() -> list[Plant]:
    found = []
    for percent in (80, 90):
        for sizes in (Sizes(rows=640), Sizes(rows=640, layers=8, width=160)):
            for rank in (0, 1):
                cut = sizes.rows * (percent if rank == 0 else 100 - percent) // 100
                changed = f"    return slice(0, {cut}) if rank == 0 else slice({cut}, ROWS)\n"
                edit = ("batches.py", _SPLIT, changed)
                variant = f"{percent}%-of-{sizes.width}-rank{rank}"
                found.append(Plant("uneven split", variant, (edit,), COMPUTING, rank, sizes))
    return found


KINDS = {
    "computes more": _computes_more(),
    "loads slowly": _loads_slowly(),
    "small buckets": _small_buckets(),
    "lost overlap": _lost_overlap(),
    "uneven split": _uneven_split(),
}
"""Kind -> its jobs."""
PLANTS = [plant for plants in zip(*KINDS.values(), strict=True) for plant in plants]
"""One of each kind after the other, so that those that were run first are of all kinds."""
UNCHANGED = [
    Plant("unchanged", f"{number}", (), (), sizes=sizes)
    for number, sizes in enumerate((Sizes(), SLOW, Sizes(bandwidth=3e8), Sizes(rows=640, layers=8, width=160)) * 5)
]
"""Jobs without a change, in the sizes of the others."""
