"""Writes a trace of a few training steps to the path given: torch's own export, as users have it."""

import gzip
import sys
from pathlib import Path

import torch


def main(path):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 64)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=6, repeat=1)
    plain = path.with_suffix(".plain")
    with torch.profiler.profile(
        schedule=schedule,
        record_shapes=True,
        with_stack=True,
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(plain)),
    ) as profile:
        for _ in range(7):
            loss = model(torch.randn(256, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profile.step()
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
