"""What-if over ranks against an independent simulator of distributed jobs (`benchmarks/ranks`), up to 1,024 ranks.

    python benchmarks/whatif/simulated_jobs.py [--only ranks] [--out TABLE.md]

The simulator writes the traces of a job of 2 to 8 ranks. Its own edited rerun, with the same noise in all else, is what
predictions are held against: the mean of its steps.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).parent.parent / "ranks"))

import chrome_files
import command
from common.tables import table_text
from job_spec import Model, Noise, Spec, Straggler
from simulated_job import simulate, step_times

from pytest_perfdl.trace import read
from pytest_perfdl.whatif.from_trace.job import job_graph
from pytest_perfdl.whatif.predict import predict
from pytest_perfdl.whatif.transform import Context


@dataclass(frozen=True)
class Case:
    """One change."""

    name: str
    spec: Spec
    changed: Spec
    transform: str
    parameters: dict[str, Any]


def speeds(count: int, seed: int, spread: float) -> tuple[float, ...]:
    """What kernels of each rank take relative to others, of which the first are the same for any number of ranks."""
    return tuple(random.Random(f"{seed} {rank}").gauss(1.0, spread) for rank in range(count))


def cases() -> Iterator[Case]:
    """The fixed list."""
    steps = 8
    usual = Spec(steps=steps, model=Model(parameter_bytes=12 << 20), noise=Noise(step=0.01))
    for seed in range(2):
        for count, n in ((2, 64), (4, 64), (8, 64)):
            spec = replace(usual, seed=seed, ranks=count)
            given = {"n": n, "algorithm": "ring"}
            yield Case(f"DDP {count} -> {n} ranks", spec, replace(spec, ranks=n), "ranks", given)
        spec = replace(usual, seed=seed, device=False, ranks=4, model=Model(parameter_bytes=1 << 20))
        spec = replace(spec, network=replace(spec.network, bytes_per_s=1e9, latency_ns=20_000), bucket_bytes=3 << 20)
        yield Case("gloo 4 -> 64 ranks", spec, replace(spec, ranks=64), "ranks", {"n": 64})
        spec = replace(usual, seed=seed, ranks=8, speeds=speeds(64, seed, 0.01))
        given = {"n": 64, "algorithm": "ring"}
        yield Case("unequal ranks, 8 -> 64", spec, replace(spec, ranks=64), "ranks", given)
        spec = replace(usual, seed=seed, ranks=8, parallel="fsdp")
        yield Case("FSDP 8 -> 64 ranks", spec, replace(spec, ranks=64), "ranks", given)
        for cause, size in (("compute", 0.3), ("input", 8.0), ("host", 4.0)):
            slow = Straggler(rank=5, since=0, cause=cause, size=size, style="all" if cause == "compute" else "pause")
            spec = replace(usual, seed=seed, straggler=slow)
            changed = replace(spec, straggler=None)
            yield Case(f"{cause} straggler removed", spec, changed, "straggler_removed", {"rank": 5})
        slow_network = replace(usual, seed=seed, network=replace(usual.network, bytes_per_s=15e9))
        for factor in (2.0, 0.5):
            network = replace(slow_network.network, bytes_per_s=factor * slow_network.network.bytes_per_s)
            changed = replace(slow_network, network=network)
            yield Case(f"bandwidth x {factor:g}", slow_network, changed, "bandwidth", {"factor": factor})
    yield Case("DDP 8 -> 256 ranks", replace(usual, ranks=8), replace(usual, ranks=256), "ranks", {**given, "n": 256})
    spec = replace(usual, steps=3)
    yield Case("DDP 8 -> 1024 ranks", spec, replace(spec, ranks=1024), "ranks", {"n": 1024, "algorithm": "ring"})


def main() -> None:
    """Simulate, predict, and write the table."""
    arguments = command.options(__doc__)
    rows, errors, signs, inside = [], [], 0, 0
    for case in cases():
        if not all(part in case.name for part in arguments.only):
            continue
        with tempfile.TemporaryDirectory() as name:
            events, truth = simulate(case.spec)
            graph = job_graph([read(path) for path in chrome_files.write(case.spec, events, Path(name))])
        found = predict(Context(graph), case.transform, **case.parameters)
        before, after = float(np.mean(truth.step_ns)), float(np.mean(step_times(case.changed)))
        row = [case.name, str(case.spec.seed), f"{before / 1e6:.2f}", f"{after / 1e6:.2f}"]
        if found.predicted_ns is None or found.interval_ns is None:
            row += ["", "", "", "", "", found.reason]
        else:
            low, high = found.interval_ns
            error = found.predicted_ns / after - 1
            sign = (found.predicted_ns - found.step_ns) * (after - before) > 0 or abs(after / before - 1) < 0.01
            errors.append(error)
            signs += sign
            inside += low <= after <= high
            row += [f"{found.predicted_ns / 1e6:.2f}", f"{low / 1e6:.1f} to {high / 1e6:.1f}", f"{error:+.1%}"]
            row += ["" if sign else "wrong", "yes" if low <= after <= high else "no", found.trust]
        rows.append(row)
        print(" | ".join(row), flush=True)
    head = ("change", "seed", "before ms", "after ms", "predicted ms", "range ms", "error", "sign", "inside", "trust")
    known = np.abs(errors)
    text = (
        f"{table_text(head, rows)}\n\nsign right in {signs} of {len(rows)}; median error "
        f"{np.median(known):.1%}, largest {known.max():.1%}; inside the range {inside} of {len(rows)}"
    )
    command.tell(text, arguments.out)


if __name__ == "__main__":
    main()
