"""How long a device memory snapshot takes to read, and how much memory the process that reads it takes.

    python benchmarks/memory/snapshot.py
    python benchmarks/memory/snapshot.py --megabytes 800

Asked: 200 MB in at most 30 s, with at most 10 times its size. The snapshot is written as
`torch.cuda.memory._dump_snapshot` does: training steps, a stack of 15 frames for each event, dictionaries of frames
that stacks share, and a list of its own for each stack.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pytest_perfdl.analysis.account.snapshot_peak import snapshot_accounts  # noqa: E402 (the path comes first)
from pytest_perfdl.trace.memory_snapshot import read_snapshot  # noqa: E402

DEPTH = 15
LAYERS = 96
BYTES_PER_EVENT = 124
"""Of what is written below."""
TORCH = "/opt/conda/lib/python3.11/site-packages/torch"


def frame(path: str, line: int, name: str) -> dict[str, Any]:
    return {"name": name, "filename": path, "line": line}


OUTER = [frame("/home/me/project/train.py", 900 - place, f"caller_{place}") for place in range(DEPTH)]


def stacks(inner: str, path: str) -> list[list[dict[str, Any]]]:
    """One for each layer, the innermost frame first."""
    made = []
    for layer in range(LAYERS):
        own = [
            frame(path, 10 + layer, inner),
            frame(f"{TORCH}/nn/modules/module.py", 1751 + layer, "_call_impl"),
            frame("/home/me/project/model.py", 30 + layer, "forward"),
        ]
        made.append(own + OUTER[: DEPTH - len(own)])
    return made


FORWARD = stacks("forward", f"{TORCH}/nn/modules/linear.py")
BACKWARD = stacks("_engine_run_backward", f"{TORCH}/autograd/graph.py")
STEP = stacks("_multi_tensor_adam", f"{TORCH}/optim/adam.py")


class Writer:
    """The history of a training loop."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.blocks: dict[int, dict[str, Any]] = {}
        self.now = 1_700_000_000_000_000
        self.next = 0x7F0000000000

    def event(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.now += 7
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self.now,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": (0, 0),
                "frames": list(frames),
            }
        )

    def allocate(self, size: int, frames: list[dict[str, Any]]) -> int:
        address, rounded = self.next, -(-size // 512) * 512
        self.next += rounded
        self.event("alloc", address, size, frames)
        self.blocks[address] = {
            "address": address,
            "size": rounded,
            "requested_size": size,
            "state": "active_allocated",
            "frames": list(frames),
        }
        return address

    def free(self, address: int, frames: list[dict[str, Any]]) -> None:
        size = self.blocks.pop(address)["requested_size"]
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)

    def steps(self, events: int) -> Iterator[None]:
        while len(self.events) < events:
            first = self.next
            saved = [self.allocate(1_000_000 + layer, FORWARD[layer]) for layer in range(LAYERS)]
            gradients = []
            for layer in reversed(range(LAYERS)):
                gradients.append(self.allocate(500_000, BACKWARD[layer]))
                self.free(saved[layer], BACKWARD[layer])
            for layer in range(LAYERS):
                self.free(self.allocate(250_000, STEP[layer]), STEP[layer])
            for layer, gradient in enumerate(gradients):
                self.free(gradient, STEP[layer])
            # Addresses are used again, step after step.
            self.next = first
            yield

    def snapshot(self) -> dict[str, Any]:
        return {
            "segments": [
                {
                    "device": 0,
                    "address": 0x7F0000000000,
                    "total_size": 2**34,
                    "stream": 0,
                    "allocated_size": 0,
                    "active_size": 0,
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": list(self.blocks.values()),
                }
            ],
            "device_traces": [self.events],
            "allocator_settings": {},
        }


def write(path: Path, megabytes: int) -> None:
    writer = Writer()
    for layer in range(LAYERS):
        writer.allocate(2_000_000, stacks("__init__", f"{TORCH}/nn/modules/linear.py")[layer])
    for _ in writer.steps(megabytes * 10**6 // BYTES_PER_EVENT):
        pass
    with path.open("wb") as file:
        pickle.dump(writer.snapshot(), file)


def read(path: Path) -> None:
    size = path.stat().st_size
    began = time.perf_counter()
    snapshot = read_snapshot(path)
    seconds = time.perf_counter() - began
    unit = 1 if sys.platform == "darwin" else 1024
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    began = time.perf_counter()
    (account,) = snapshot_accounts(snapshot)
    figures = time.perf_counter() - began
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(f"{size / 1e6:.0f} MB, {len(snapshot.devices[0].actions):,} events, {len(snapshot.stacks):,} stacks")
    print(
        f"read in {seconds:.1f} s, child at most {child / 1e6:.0f} MB, {child / size:.2f}x the file (asked: 30 s, 10x)"
    )
    print(f"account in {figures:.1f} s, this process at most {own / 1e6:.0f} MB, {own / size:.2f}x the file")
    print(f"peak {account.peak_bytes:,} bytes, {len(account.rows)} rows, residual {account.residual}")
    for category, share in account.by_category().items():
        print(f"  {category}: {share:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.write, options.megabytes)
    elif options.read:
        read(options.read)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "snapshot.pickle"))
            # Each in a process of its own: the memory of one is not the other's.
            for way in ("--write", "--read"):
                subprocess.run([sys.executable, __file__, way, path, "--megabytes", str(options.megabytes)], check=True)


if __name__ == "__main__":
    main()
