"""Steps of which everything is known: does each figure come out as worked out by hand?

    python benchmarks/utilization/known_steps.py               # two minutes, prints Markdown

FLOPs and bytes are written down here. Times are those of the run file: of a step, and of its operators for the
roofline; and of a process without the plugin. Rates are those of `machine.json`. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from plants import PlantsError, prepare, run  # noqa: E402

from pytest_perfdl.workers.process import environment  # noqa: E402

MIB = 2**20
PRODUCT = 2 * 1024**3
CONVOLUTION = 2 * 8 * 64 * 64 * 56 * 56 * 9
MOVED = {"copy": [(2 * 64 * MIB, 2 * 64 * MIB)], "elementwise": [(2 * 16 * MIB, 16 * MIB)] * 4}
"""Bytes that each call reads and writes, and those that it takes room for."""
FLOPS = {"product": PRODUCT, "convolution": CONVOLUTION, "sleep": 2 * 512**3, "two_threads": PRODUCT}
ALONE = """
import statistics, sys, time, torch
from torch.nn import functional
torch.set_num_threads(int(sys.argv[2]))
MIB = 2**20
square = lambda size: torch.randn(size, size)
a, b, out = square(1024), square(1024), square(1024)
c, d = torch.ones(16 * MIB), torch.empty(16 * MIB)
images, weight = torch.randn(8, 64, 56, 56), torch.randn(64, 64, 3, 3)
e, f, g = torch.ones(4 * MIB), square(512), square(512)
STEPS = {
    "product": lambda: torch.mm(a, b, out=out),
    "two_threads": lambda: torch.mm(a, b),
    "copy": lambda: d.copy_(c),
    "convolution": lambda: functional.conv2d(images, weight, padding=1),
    "elementwise": lambda: [e.mul_(1.0) for _ in range(4)],
    "sleep": lambda: (torch.mm(f, g), time.sleep(0.02)),
}
step, times = STEPS[sys.argv[1]], []
with torch.no_grad():
    for _ in range(60):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
print(statistics.quantiles(times[20:], n=4)[0])
"""


def main() -> int:
    """Measure and print."""
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(folder, threads=(1, 2))
            run(folder, sys.executable, "-m", "pytest", "-q", "--perf-update", "tests/test_known.py", shown=True)
            tests = json.loads((folder / "perf-report" / "run.json").read_text())["tests"]
            machines = {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("machine.json")}
    except PlantsError as error:
        print(error, file=sys.stderr)
        return 1
    for line in table(tests, machines):
        print(line)
    return 0


def table(tests: list[dict[str, Any]], machines: Mapping[str, Any]) -> Iterator[str]:
    """Each figure beside both of what was worked out."""
    yield "| step | metric | found | by hand, the same times | off | by hand, a process alone | off |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    worst = [0.0, 0.0]
    for test in tests:
        name = test["id"].rpartition("::test_")[2]
        slug = test["record"]["key"]["slug"]
        machine = machines[slug]
        metrics = {key: each["new"] for key, each in test["metrics"].items()}
        alone = 1e9 * statistics.median(_alone(name) for _ in range(5))
        for metric, expected in figures(name, machine):
            found = metrics.get(metric)
            if found is None:
                yield f"| {name} | {metric} | absent | | | | |"
                continue
            operators = sum(each["new"]["time_ns"] for each in test["operators"] if each["dtype"])
            times = [expected(operators if metric == "roofline" else metrics["step_time"]), expected(alone)]
            off = [found / each - 1 for each in times]
            worst = [max(before, abs(now)) for before, now in zip(worst, off, strict=True)]
            cells = [
                name,
                metric,
                f"{found:.4g}",
                *(f"{each:.4g} | {by:+.1%}" for each, by in zip(times, off, strict=True)),
            ]
            yield f"| {' | '.join(cells)} |"
    yield ""
    yield f"at most {worst[0]:.1%} off the same times, {worst[1]:.1%} off a process alone"


def figures(name: str, machine: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Metrics of a step, each as a function of its nanoseconds."""
    peak = machine["flops_per_s"]["float32"]
    if name in FLOPS:
        flops = FLOPS[name]
        yield "achieved_flops", lambda ns: flops / ns * 1e9
        yield "flops_utilization", lambda ns: 100 * flops / ns * 1e9 / peak
    if name in ("product", "two_threads"):
        yield "mfu", lambda ns: 100 * flops / ns * 1e9 / peak
        # All of the step is one operator, bound by its arithmetic.
        yield "roofline", lambda ns: 100 * flops / ns * 1e9 / peak
    if name in MOVED:
        least = sum(moved / bandwidth(machine, room) for moved, room in MOVED[name])
        if max(room for _, room in MOVED[name]) > machine["cache_bytes"]:
            yield "bandwidth_utilization", lambda ns: 100 * least * 1e9 / ns
        yield "roofline", lambda ns: 100 * least * 1e9 / ns
    if name == "sleep":
        product = 2 * 512**3 / peak * 1e9
        yield "host_overhead", lambda ns: 100 * (ns - product) / ns


def bandwidth(machine: Mapping[str, Any], size: float) -> float:
    """Bytes a second of a working set, by the nearest one that was measured."""
    sizes = machine["bandwidths"]
    if size >= sizes[-1][0]:
        return float(sizes[-1][1])
    after = next(number for number, (known, _) in enumerate(sizes) if known >= size)
    (low, slow), (high, fast) = sizes[after - 1], sizes[after]
    return float(slow + (fast - slow) * math.log(size / low) / math.log(high / low))


def _alone(name: str) -> float:
    threads = "2" if name == "two_threads" else "1"
    command = [sys.executable, "-c", ALONE, name, threads]
    # The same allocator: where fresh pages are cleared for every result, a convolution takes twice as long.
    where = environment(int(threads))
    done = subprocess.run(command, env=where, capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
