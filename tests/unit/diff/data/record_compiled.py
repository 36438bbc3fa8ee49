"""Records the pair of traces beside this file, with torch and a C++ compiler on a CPU.

    python tests/unit/diff/data/record_compiled.py

The same training steps of the same model, eager and compiled (CPU Inductor). They are committed, so that the unit tests
need no torch; no test expects particular times of them.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

HERE = Path(__file__).parent


class Block(torch.nn.Module):
    """Two products with what a compiler can fuse before, between and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs and what the block makes of them."""
        inner = torch.nn.functional.gelu(self.up(self.norm(inputs)))
        return inputs + self.down(inner * 1.5 + 0.5)


def record(name: str, compiled: Callable[[Block], Callable[[torch.Tensor], torch.Tensor]]) -> None:
    """Train for two recorded steps after some that warm up."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    block = Block()
    model = compiled(block)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    inputs = torch.randn(256, 64)
    plan = schedule(wait=5, warmup=1, active=2, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as profiler:
        for _ in range(8):
            optimizer.zero_grad()
            model(inputs).pow(2).mean().backward()
            optimizer.step()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_bytes())
    # Where and on which machine it was recorded is nobody's business.
    text = json.dumps({key: trace[key] for key in ("schemaVersion", "baseTimeNanoseconds", "traceEvents")})
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    record("eager", lambda block: block)
    record("compiled", torch.compile)
