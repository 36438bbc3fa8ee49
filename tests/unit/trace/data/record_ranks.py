"""Records the traces of two gloo ranks beside this file: `torchrun --nproc-per-node 2 record_ranks.py`.

They are committed, so that the unit tests need no torch. A tiny model is trained with DistributedDataParallel and small
buckets on a CPU: two all-reduces a step, which the back end's threads run. Nothing in the traces depends on the machine
but times and ids, and no test expects particular values of those.
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

HERE = Path(__file__).parent
STEPS = 4


def record() -> None:
    """Train for some recorded steps after warm-up ones, and write this rank's trace."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(128, 128) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.14)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=1, active=STEPS, repeat=1),
        record_shapes=True,
    ) as profiler:
        for _ in range(STEPS + 3):
            optimizer.zero_grad()
            model(torch.randn(32, 128)).pow(2).mean().backward()
            optimizer.step()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        packed = gzip.compress(path.read_bytes(), mtime=0)
    (HERE / f"gloo_rank{dist.get_rank()}.json.gz").write_bytes(packed)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    record()
    dist.destroy_process_group()
