"""Data parallel training over two processes with gloo, in turns with the same training without it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from models import Options, build
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.trace import read
from pytest_perfdl.whatif import task_graph
from pytest_perfdl.whatif.predict import predict
from pytest_perfdl.whatif.transform import Context
from pytest_perfdl.whatif.unprofiled import unprofiled

SIZES = (2**12, 2**16, 2**20, 2**22)
"""Elements of the all-reduces that gloo's bandwidth and latency are fitted to."""


def both_ranks(options: Options, blocks: int, count: int) -> tuple[str, ...]:
    """Before, after, gain, predicted gain, error, nothing, and whether the sign is wrong, as text."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        queue: Any = context.Queue()
        args = (folder, options, blocks, count, queue)
        workers = [context.Process(target=_rank, args=(rank, *args), daemon=True) for rank in (0, 1)]
        for worker in workers:
            worker.start()
        before, after, rate, latency = queue.get(timeout=600)
        for worker in workers:
            worker.join(60)
        graph = unprofiled(task_graph(read(Path(folder) / "trace.json")), before)
    machine = Machine(network_bytes_per_s=rate, network_latency_ns=latency, memory_bytes_per_s=10e9)
    # Two processes on two cores: what gloo takes beside computing is in the measured rate already.
    found = predict(Context(graph, machine), "data_parallel", ranks=2, contention=1.0)
    gain = 1 - after / before
    head = (f"{before / 1e6:.2f}", f"{after / 1e6:.2f}", f"{gain:+.1%}")
    if found.predicted_ns is None or found.gain is None:
        return (*head, "", "", "", found.reason)
    sign = "" if abs(gain) <= 0.02 or gain * found.gain > 0 else "wrong sign"
    return (*head, f"{found.gain:+.1%}", f"{found.predicted_ns / after - 1:+.1%}", "", sign)


def _rank(rank: int, folder: str, options: Options, blocks: int, count: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    rate, latency = _network()
    net, alone = build(options)
    parallel = DistributedDataParallel(build(options)[0])
    optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-5, foreach=False, fused=False)
    batch = _batch(options)

    def together() -> None:
        optimizer.zero_grad()
        parallel(batch).float().square().mean().backward()
        optimizer.step()

    times: dict[Any, list[float]] = {alone: [], together: []}
    for _ in range(blocks + 1):
        for step, own in times.items():
            dist.barrier()
            begun = time.perf_counter_ns()
            for _ in range(count):
                step()
            own.append((time.perf_counter_ns() - begun) / count)
    plan = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as profiler:
        for _ in range(4):
            alone()
            profiler.step()
    dist.barrier()
    if rank == 0:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        before, after = (float(np.quantile(own[1:], 0.25)) for own in times.values())
        queue.put((before, after, rate, latency))
    dist.barrier()
    dist.destroy_process_group()
    del net


def _batch(options: Options) -> torch.Tensor:
    from models import SHAPES

    torch.manual_seed(1)
    return torch.randn(options.batch, *SHAPES[options.model])


def _network() -> tuple[float, float]:
    """Bytes a second and nanoseconds of a message, fitted to 2 (n - 1) / n S / B + 2 (n - 1) alpha for n = 2."""
    points = []
    for size in SIZES:
        tensor = torch.zeros(size)
        dist.all_reduce(tensor)
        found = []
        for _ in range(7):
            dist.barrier()
            begun = time.perf_counter_ns()
            dist.all_reduce(tensor)
            found.append(time.perf_counter_ns() - begun)
        points.append((4 * size, float(np.quantile(found, 0.25))))
    slope, start = np.polyfit(*np.array(points).T, 1)
    return 1e9 / max(slope, 1e-3), max(start / 2, 0.0)
