"""Records the traces beside this file: `python tests/unit/trace/data/record.py`, with torch on a CPU.

They are committed, so that the unit tests need no torch. Nothing in them depends on the machine but times,
addresses and ids, and no test expects particular values of those.
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).parent


def record(name: str, steps: int, **options: bool) -> None:
    """Train a tiny model for `steps` recorded steps after a warm-up one, with setup, input and a named range."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = iter(DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 2)), batch_size=2))
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
        record_shapes=True,
        **options,
    ) as profiler:
        for _ in range(steps + 1):
            with record_function("perfdl.setup"):
                extra = torch.ones(2, 4)
            inputs, targets = next(loader)
            with record_function("forward"):
                loss = (model(inputs + extra) - targets).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        (HERE / f"{name}.json.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


if __name__ == "__main__":
    record("train", 3)
    record("memory", 2, profile_memory=True)
    record("stack", 1, with_stack=True)
