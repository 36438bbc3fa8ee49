"""One rank of a job that torchrun starts for `jobs.py`: the steps of all settings in turns, then traces of them.

    torchrun --nproc-per-node 2 benchmarks/whatif/gloo_rank.py SETTINGS.json FOLDER

The network is a communication hook. A thread exchanges a bucket by gloo, and holds it until
(n - 1) alpha + 2 (n - 1) / n bytes / rate have passed since the last of n ranks came, asleep: so a transfer takes no
core, and takes what it is told to. Its annotation is named and has the sizes as gloo's own, which are not recorded.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True)
class Setting:
    """One way to run the step."""

    name: str
    model: str = "mlp"
    batch: int = 384
    alone: bool = False
    """Without DistributedDataParallel, each rank for itself."""
    cap_mb: float = 0.125
    rate: float = 20e6
    """Bytes a second."""
    latency: float = 0.0003
    """Seconds."""
    slow: str = ""
    """What the slow rank does more: "compute", "input", "host"."""
    slow_rank: int = 1
    slow_by: float = 0.005
    """Seconds; of "compute" a number of extra layers of the MLP, or seconds of each layer that waits."""


class Waiting(torch.nn.Module):
    """A layer that waits, as a host does for an accelerator, and twice as long in its backward pass."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(x, self.seconds)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Network:
    """All buckets of a rank, one after the other."""

    def __init__(self, arrivals: Path) -> None:
        """With the file in which ranks tell each other when they came to their nth bucket."""
        self.rate, self.latency, self._count = 1e9, 0.0, 0
        shape = (dist.get_world_size(), 2**17)
        if dist.get_rank() == 0:
            np.memmap(arrivals, np.float64, "w+", shape=shape)
        dist.barrier()
        self._arrivals = np.memmap(arrivals, np.float64, "r+", shape=shape)
        self._waiting: queue.Queue[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def reduced(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """A future of the sum over all ranks."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._waiting.put((buffer, future))
        return future

    def _run(self) -> None:
        while True:
            buffer, future = self._waiting.get()
            record = torch.autograd._record_function_with_args_enter("gloo:all_reduce", buffer)
            torch.autograd._enable_record_function(False)
            self._arrivals[dist.get_rank(), self._count] = time.monotonic()
            dist.all_reduce(buffer)
            last = float(self._arrivals[:, self._count].max())
            self._count += 1
            torch.autograd._enable_record_function(True)
            messages = dist.get_world_size() - 1
            share = 2 * messages / dist.get_world_size()
            left = last + messages * self.latency + share * buffer.nbytes / self.rate - time.monotonic()
            if left > 0:
                time.sleep(left)
            torch.autograd._record_function_with_args_exit(record)
            future.set_result(buffer)


def built(setting: Setting) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model whose layers have gradients of several sizes, and a batch."""
    torch.manual_seed(1)
    if setting.model == "mlp":
        widths = (128, 128, 192, 64, 192, 128, 96, 160, 128)
        layers = [
            part
            for before, after in itertools.pairwise(widths)
            for part in (torch.nn.Linear(before, after), torch.nn.ReLU())
        ]
        return torch.nn.Sequential(*layers), torch.randn(setting.batch, widths[0])
    widths = (32, 64, 64, 192, 96, 64, 160, 64)
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), Waiting(0.001)]
    return torch.nn.Sequential(*layers), torch.randn(8, widths[0])


def step_of(setting: Setting, network: Network) -> Callable[[], None]:
    """The step of a setting on this rank."""
    net, batch = built(setting)
    computing = setting.model == "mlp"
    slow = setting.slow if dist.get_rank() == setting.slow_rank else ""
    if slow == "compute" and not computing:
        for layer in net.modules():
            if isinstance(layer, Waiting):
                layer.seconds += setting.slow_by
    extra = torch.nn.Linear(256, 256)
    more = torch.randn(192, 256)
    parallel = net
    if not setting.alone:
        parallel = DistributedDataParallel(net, bucket_cap_mb=setting.cap_mb)

        # Without annotations: torch compares them with its types, and they are texts here.
        def hook(_state, bucket):
            return network.reduced(bucket.buffer().div_(dist.get_world_size()))

        parallel.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        network.rate, network.latency = setting.rate, setting.latency
        if slow == "input":
            with record_function(LOADING):
                time.sleep(setting.slow_by)
        if slow == "host":
            until = time.perf_counter() + setting.slow_by
            while time.perf_counter() < until:
                pass
        if slow == "compute" and computing:
            with torch.no_grad():
                for _ in range(round(setting.slow_by)):
                    extra(more)
        optimizer.zero_grad()
        parallel(batch).square().mean().backward()
        optimizer.step()

    return step


def measured(step: Callable[[], None], count: int) -> float:
    """Nanoseconds of a step of the slowest rank: the mean of a block."""
    dist.barrier()
    begun = time.perf_counter_ns()
    for _ in range(count):
        step()
    took = torch.tensor([(time.perf_counter_ns() - begun) / count])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def traced(step: Callable[[], None], steps: int, path: Path) -> None:
    """The trace of some steps, as perf tests record it, with the network's thread."""
    dist.barrier()
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    config = _ExperimentalConfig(profile_all_threads=True)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan, experimental_config=config
    ) as profiler:
        for _ in range(steps + 1):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    dist.barrier()


def network_points(network: Network, setting: Setting) -> list[tuple[int, float]]:
    """Bytes and nanoseconds of all-reduces over the network, for a prediction from one rank alone."""
    network.rate, network.latency = setting.rate, setting.latency
    points = []
    for elements in (2**14, 2**16, 2**17, 2**18):
        buffer, took = torch.zeros(elements), []
        for _ in range(9):
            dist.barrier()
            begun = time.perf_counter_ns()
            network.reduced(buffer).wait()
            took.append(time.perf_counter_ns() - begun)
        points.append((buffer.nbytes, sorted(took)[4]))
    return points


def let_the_network_go_first() -> None:
    """Raise the priority of all threads but the steps' own: a network works beside a processor that computes.

    Without the right to (`CAP_SYS_NICE`), transfers wait for a core beside other load.
    """
    for thread in (int(path.name) for path in Path("/proc/self/task").iterdir()):
        if thread != os.getpid():
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, -15)


def main() -> None:
    """Run all settings in turns."""
    told: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    network, rank = Network(folder / "arrivals"), dist.get_rank()
    settings = [Setting(**each) for each in told["settings"]]
    steps = {setting.name: step_of(setting, network) for setting in settings}
    for step in steps.values():
        measured(step, 4)
    let_the_network_go_first()
    blocks: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(told["blocks"]):
        for name, step in steps.items():
            blocks[name].append(measured(step, told["steps"]))
        if number % (told["blocks"] // told["traces"]) == 0:
            for name in told["traced"]:
                traced(steps[name], told["traced_steps"], folder / f"{name}_{len(blocks[name])}_rank{rank}.json")
    points = {each.name: network_points(network, each) for each in settings if each.name in told["points"]}
    if rank == 0:
        (folder / "times.json").write_text(json.dumps({"blocks": blocks, "points": points}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
