"""Makes a trace of a training job as the PyTorch profiler writes it, of any size, the same bytes for the same seed.

    python benchmarks/trace_reading/synthetic.py --events 450000 out.json.gz

A language model trains on one of eight GPUs: steps with nested operators, shapes and Python frames, autograd on a
thread of its own, kernels and all-reduces on two streams, copies, memory. Times, threads, streams and memory agree
with each other (see check.py). The number of events is met about: it sets how large the six steps are.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import IO, cast

from synthesis.device import STREAM_NUMBERS
from synthesis.kineto import Spool
from synthesis.model import RANKS, Size, training_step
from synthesis.simulate import ENGINE, MAIN, OUTER_FRAMES, Job, Numbers

DEFAULT_EVENTS = 450_000
STEPS = 6
"""As many as people profile: a large trace has large steps."""
MOST_LAYERS = 24


def write(path: Path, events: int = DEFAULT_EVENTS, seed: int = 0) -> int:
    """Write a trace of about so many events, compressed where the path ends in .gz; how many it has."""
    size = size_for(events // STEPS)
    tree = training_step(size)
    one, rows = _trial(size)
    steps = max(2, round(events / rows))
    frames = len(OUTER_FRAMES)
    memory = one.operators * steps
    first = Numbers(0, memory, memory + one.memory * steps + frames)
    spool = Spool()
    job = Job(seed, spool, first, size)
    for _ in range(steps):
        job.step(tree)
    ends = job.finish(first.python - frames)
    with path.open("wb") as file:
        if path.suffix != ".gz":
            return _store(spool, file, ends)
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            return _store(spool, cast("IO[bytes]", packed), ends)


def size_for(rows: int) -> Size:
    """The job whose steps have about so many rows: up to `MOST_LAYERS` layers, more by several batches a step."""
    batches = max(1, -(-rows // _trial(Size(MOST_LAYERS, 1))[1]))
    one, two = (_trial(Size(layers, batches))[1] for layers in (1, 2))
    return Size(max(1, 1 + round((rows - one) / (two - one))), batches)


def _trial(size: Size) -> tuple[Numbers, int]:
    """Rows of a step by kind, and all of them."""
    spool = Spool()
    return Job(0, spool, Numbers(), size).step(training_step(size)), spool.rows


def _store(spool: Spool, file: IO[bytes], ends: int) -> int:
    threads = {MAIN: "python3", ENGINE: "pt_autograd_0"}
    return spool.write(file, RANKS, threads, STREAM_NUMBERS.values(), ends + 60_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, metavar="OUT.json[.gz]")
    parser.add_argument("--events", type=int, default=DEFAULT_EVENTS, help="about how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    made = write(arguments.path, arguments.events, arguments.seed)
    print(f"{arguments.path}: {made} events, {arguments.path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
