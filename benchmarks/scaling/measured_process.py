"""One process that times some configurations of a data set, and prints a JSON line for each as soon as it is known.

python benchmarks/scaling/measured_process.py DATA_SET SECONDS [{"batch": 2, ...}, ...]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import workloads

WARMUP = 3
LEAST_STEPS = 7


def time_step(step, seconds):
    """Lower quartile of the steps' times in nanoseconds: what neighbors add, they add to some."""
    for _ in range(WARMUP):
        step()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < LEAST_STEPS or time.perf_counter() < end:
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return statistics.quantiles(times, n=4)[0]


def here(data_set, configurations, seconds):
    if data_set.needs == "torch":
        import torch

        torch.set_num_threads(1)
    for sizes in configurations:
        yield sizes, time_step(getattr(workloads, data_set.step)(**sizes), seconds)


def in_group(rank, meeting, data_set, processes, configurations, seconds, results):
    """Every member of a gloo group takes as many steps as the first, or they would wait for each other forever."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    for sizes in configurations:
        step = getattr(workloads, data_set.step)(**sizes)
        for _ in range(WARMUP):
            step()
        start = time.perf_counter()
        step()
        count = torch.tensor([max(LEAST_STEPS, int(seconds / max(time.perf_counter() - start, 1e-5)))])
        dist.broadcast(count, 0)
        times = []
        for _ in range(int(count)):
            start_ns = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - start_ns)
        if rank == 0:
            results.put((sizes, statistics.quantiles(times, n=4)[0]))
    dist.barrier()
    dist.destroy_process_group()


def groups(data_set, configurations, seconds):
    import torch.multiprocessing as multiprocessing

    for processes in sorted({sizes["processes"] for sizes in configurations}):
        mine = [sizes for sizes in configurations if sizes["processes"] == processes]
        results = multiprocessing.get_context("spawn").SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            common = (str(Path(folder) / "meeting"), data_set, processes, mine, seconds, results)
            multiprocessing.spawn(in_group, common, nprocs=processes)
        while not results.empty():
            yield results.get()


def main():
    name, seconds, configurations = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
    (data_set,) = (each for each in workloads.DATA_SETS if each.name == name)
    how = groups if data_set.grouped else here
    for sizes, ns in how(data_set, configurations, seconds):
        print(json.dumps({"data_set": name, "sizes": sizes, "ns": ns}), flush=True)


if __name__ == "__main__":
    main()
