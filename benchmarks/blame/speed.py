"""How long `perfdl diff` takes: for 20 repeats a side of a step with 100 kernels, and for two large traces.

    python benchmarks/blame/speed.py                  # about a minute, most of it to make the traces
    python benchmarks/blame/speed.py --small          # only the repeats, from baselines and from traces of each
    python benchmarks/blame/speed.py --large A B      # these two large traces

Each command is a process of its own, timed from outside: the fastest and the median of `--times`, held against what was
demanded beforehand.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE.parent / "trace_reading")]

from common.processes import checked, perfdl
from synthetic import write

from pytest_perfdl.model.record import Call, Key, MeasurementPlan, Occasion, Record, Row, Series
from pytest_perfdl.model.record_json import to_json

KERNELS, RUNS, STEPS = 100, 20, 3
STREAM = 7
SMALL_SECONDS, LARGE_SECONDS = 1.0, 6.0
"""Demanded at most."""
LARGE_EVENTS = 302_000
"""Of a trace of 90 MB."""
GROWN = 0.05
"""How much slower every tenth kernel is on the new side."""


def event(category: str, name: str, start: float, duration: float, thread: int, **args: Any) -> dict[str, Any]:
    """One event of the trace; threads from 7 on are streams of the device."""
    process = int(thread < STREAM)
    place = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread}
    return {**place, "ts": round(start, 3), "dur": round(duration, 3), "args": args}


def step_events(number: int, chance: random.Random, slower: float) -> Iterator[dict[str, Any]]:
    """One step of `KERNELS` operators, each of which launches a kernel; a kernel takes 8 to 40 microseconds."""
    begin = host = device = number * 6_000.0
    for index in range(KERNELS):
        long = (8 + index % 33) * chance.gauss(1, 0.01) * (1 + slower * (index % 10 == 0))
        device = max(device, host + 12)
        of_kernel = {"correlation": number * KERNELS + index + 1}
        dims = {"Input Dims": [[64, 8 * index + 8], [8 * index + 8, 64]]}
        yield event("cpu_op", f"aten::op{index % 25}", host, 18, 1, **dims)
        yield event("cuda_runtime", "cudaLaunchKernel", host + 5, 6, 1, **of_kernel)
        name = f"void kernel_{index}<float, {index}>(float*)"
        yield event("kernel", name, device, long, STREAM, device=0, stream=STREAM, **of_kernel)
        device += long + 1
        host += 20
    yield event("user_annotation", f"ProfilerStep#{number}", begin, host - begin, 1)


def make_runs(folder: Path, slower: float, seed: int) -> None:
    """Write the traces of one side's runs."""
    folder.mkdir()
    for run in range(RUNS):
        chance = random.Random(f"{seed} {run}")
        events = [each for number in range(STEPS) for each in step_events(number, chance, slower)]
        text = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
        (folder / f"run{run:02}.json.gz").write_bytes(gzip.compress(text, 6, mtime=0))


def make_baseline(path: Path, slower: float, seed: int) -> None:
    """Write a record with as many repeats of as many kernels."""
    chance = random.Random(seed)
    rows = tuple(
        Row(
            "kernel",
            f"void kernel_{index}<float, {index}>(float*)",
            1,
            tuple(
                round(1e3 * (8 + index % 33) * chance.gauss(1, 0.01) * (1 + slower * (index % 10 == 0)))
                for _ in range(RUNS)
            ),
        )
        for index in range(KERNELS)
    )
    whole = tuple(sum(row.ns[run] for row in rows) for run in range(RUNS))
    record = Record(
        test="tests/perf/test_step.py::test_step",
        key=Key("h100", {}),
        context={},
        test_hash="",
        plan=MeasurementPlan(warmup=15, steps=40),
        calls=(Call("", {"block_time": Series("timed", "ns", "lower", tuple(map(float, whole)))}, rows, whole),),
        occasions=(Occasion(RUNS, "2026-05-01T10:00:00Z", f"{1:040x}", None),),
    )
    path.write_text(json.dumps(to_json(record)))


def seconds_of(base: Path, new: Path, times: int) -> list[float]:
    """Seconds that each of some `perfdl diff` took."""
    return [checked(perfdl("diff", base, new, "--json"), cwd=ROOT).seconds for _ in range(times)]


def said(what: str, seconds: Sequence[float], demanded: float) -> str:
    """One line of the figures; the median decides."""
    middle = statistics.median(seconds)
    met = "met" if middle <= demanded else "MISSED"
    return (
        f"{what}: fastest {min(seconds):.2f} s, median {middle:.2f} s of {len(seconds)}; at most {demanded:g} s: {met}"
    )


def main() -> int:
    """Measure and print; 1 when a demand is missed."""
    options = arguments()
    missed = False
    with tempfile.TemporaryDirectory(prefix="perfdl-speed-") as temporary:
        folder = Path(temporary)
        for seed, slower in enumerate((0.0, GROWN)):
            make_baseline(folder / f"{seed}.json", slower, seed)
            make_runs(folder / str(seed), slower, seed)
        for of, ending in (("baselines", ".json"), ("folders of traces", "")):
            seconds = seconds_of(folder / f"0{ending}", folder / f"1{ending}", options.times)
            print(said(f"{KERNELS} kernels x {RUNS} repeats on each side, {of}", seconds, SMALL_SECONDS), flush=True)
            missed |= statistics.median(seconds) > SMALL_SECONDS
        if not options.small:
            large = options.large or [folder / "large0.json", folder / "large1.json"]
            if not options.large:
                for seed, path in enumerate(large):
                    write(path, LARGE_EVENTS, seed)
            sizes = " and ".join(f"{path.stat().st_size / 1e6:.0f} MB" for path in large)
            seconds = seconds_of(*large, options.times)
            print(said(f"two traces of {sizes}", seconds, LARGE_SECONDS), flush=True)
            missed |= statistics.median(seconds) > LARGE_SECONDS
    return int(missed)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, metavar="N", help="processes timed (5)")
    parser.add_argument("--small", action="store_true", help="only the runs")
    parser.add_argument(
        "--large", type=Path, nargs=2, metavar=("A", "B"), help="two large traces, instead of made ones"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
