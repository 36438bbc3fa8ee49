"""What-if over ranks against reruns: jobs of two gloo ranks of one thread each, whose settings run in turns.

    python benchmarks/whatif/jobs.py [--blocks 12] [--steps 6] [--only bucket mlp] [--out TABLE.md]

A job runs its steps as they are and changed, a block of steps each, in turns, untraced; in the middle the steps as
they are get traced. The trace of both ranks, and the untraced time of the steps as they are, predict the time of the
changed steps. *error* is predicted over measured time, less 1; *inside* says whether the range that is stated as 90 %
holds the measured time: the lower quartile of the blocks' means, of the slowest rank.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import command
from common.tables import table_text
from gloo_rank import Setting

from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.trace import Trace, read
from pytest_perfdl.whatif import simulate, task_graph
from pytest_perfdl.whatif.from_trace.job import job_graph
from pytest_perfdl.whatif.predict import Prediction, predict
from pytest_perfdl.whatif.transform import Context
from pytest_perfdl.whatif.unprofiled import unprofiled
from pytest_perfdl.workers.process import environment

TRACED_STEPS, TRACES = 12, 3
"""Steps of a trace, and traces of each setting: of these the one whose steps take nearest to the untraced ones' time.
Load beside the job disturbs some."""


@dataclass(frozen=True)
class Case:
    """One change."""

    name: str
    base: str
    changed: str
    transform: str
    parameters: dict[str, Any]
    slow_rank: int = -1


@dataclass(frozen=True)
class Job:
    """Settings that run in turns in one job, and the changes from one to another."""

    name: str
    settings: tuple[Setting, ...]
    cases: tuple[Case, ...]


def jobs() -> list[Job]:
    """The fixed list: ten changes of each of two models."""
    found = []
    for model in ("mlp", "waiting"):
        base = Setting("base", model, rate=20e6 if model == "mlp" else 12e6)
        faster = replace(base, name="faster", rate=1.5 * base.rate)
        found.append(
            Job(
                f"{model} network",
                (
                    base,
                    replace(base, name="alone", alone=True),
                    faster,
                    replace(base, name="fast", rate=2 * base.rate),
                    replace(base, name="slower", rate=base.rate / 2),
                ),
                (
                    Case("1 -> 2 ranks", "alone", "base", "data_parallel", {"ranks": 2}),
                    Case("1 -> 2 ranks, fast network", "alone", "fast", "data_parallel", {"ranks": 2}),
                    Case("bandwidth x 1.5", "base", "faster", "bandwidth", {"factor": 1.5}),
                    Case("bandwidth x 2", "base", "fast", "bandwidth", {"factor": 2.0}),
                    Case("bandwidth / 2", "base", "slower", "bandwidth", {"factor": 0.5}),
                ),
            )
        )
        latent = replace(base, latency=0.004 if model == "mlp" else 0.007)
        small, large = replace(latent, name="small", cap_mb=0.03125), replace(latent, name="large", cap_mb=25)
        slow = replace(base, name="computes more", slow="compute", slow_by=24 if model == "mlp" else 0.001)
        found.append(
            Job(
                f"{model} buckets and stragglers",
                (
                    small,
                    replace(latent, name="middle"),
                    large,
                    base,
                    slow,
                    replace(base, name="loads longer", slow="input", slow_by=0.015, slow_rank=0),
                ),
                (
                    Case("buckets 32 -> 128 KiB", "small", "middle", "bucket_size", {"cap_mb": 0.125}),
                    Case("buckets 128 -> 32 KiB", "middle", "small", "bucket_size", {"cap_mb": 0.03125}),
                    Case("buckets 32 KiB -> 25 MiB", "small", "large", "bucket_size", {"cap_mb": 25.0}),
                    Case("computing straggler", "computes more", "base", "straggler_removed", {}, 1),
                    Case("loading straggler", "loads longer", "base", "straggler_removed", {}, 0),
                ),
            )
        )
    return found


def run(job: Job, blocks: int, steps: int, folder: Path, ranks: int = 2) -> dict[str, Any]:
    """Run a job; its times, and its traces in the folder."""
    bases = sorted({case.base for case in job.cases})
    points = sorted({case.changed for case in job.cases if case.transform == "data_parallel"})
    told = {
        "settings": [asdict(each) for each in job.settings],
        "blocks": blocks,
        "steps": steps,
        "traced": bases,
        "traced_steps": TRACED_STEPS,
        "traces": TRACES,
        "points": points,
    }
    (folder / "settings.json").write_text(json.dumps(told))
    script = Path(__file__).parent / "gloo_rank.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command_line = [*torchrun, str(script), str(folder / "settings.json"), str(folder)]
    done = subprocess.run(command_line, env=environment(1), timeout=900, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    found: dict[str, Any] = json.loads((folder / "times.json").read_text())
    return found


def step_ns(blocks: Sequence[float]) -> float:
    """The time of a step, of which load beside the job is not a part."""
    return float(np.quantile(blocks, 0.25))


def least_disturbed(folder: Path, name: str, untraced_ns: float, ranks: int) -> list[Trace]:
    """The traces of all ranks at the moment at which the steps took nearest to their untraced time."""
    moments = sorted(folder.glob(f"{name}_*_rank0.json"))
    found = [[read(Path(str(path).replace("_rank0", f"_rank{rank}"))) for rank in range(ranks)] for path in moments]
    return min(found, key=lambda traces: abs(float(simulate(task_graph(traces[0])).steps_ns.mean()) - untraced_ns))


def predicted(case: Case, folder: Path, times: dict[str, Any], ranks: int = 2) -> Prediction:
    """What the traces of the unchanged steps, and their untraced time, say of the changed steps."""
    before = step_ns(times["blocks"][case.base])
    traces = least_disturbed(folder, case.base, before, ranks)
    machine = Machine(cores=2)
    if case.transform == "data_parallel":
        size, took = np.array(times["points"][case.changed]).T
        slope, start = np.polyfit(size, took, 1)
        machine = replace(machine, network_bytes_per_s=1e9 / slope, network_latency_ns=max(float(start) / 2, 0.0))
        graph = unprofiled(task_graph(traces[0]), before)
        bucket = {"bucket": 0.125 * 2**20, "contention": 1.0}
        return predict(Context(graph, machine), case.transform, **case.parameters, **bucket)
    graph = unprofiled(job_graph(traces), before)
    found = predict(Context(graph, machine), case.transform, **case.parameters)
    if case.transform == "straggler_removed" and found.reason.startswith("no rank is slower"):
        # Load beside the job hides it from the analysis: the rank is named.
        return replace(predict(Context(graph, machine), case.transform, rank=case.slow_rank), name="rank named")
    return found


def main() -> None:
    """Run the jobs and write the table."""
    arguments = command.options(__doc__)
    rows, errors, signs, inside = [], [], 0, 0
    for job in jobs():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            wanted = [case for case in job.cases if all(part in f"{job.name} {case.name}" for part in arguments.only)]
            if not wanted:
                continue
            times = run(job, arguments.blocks, arguments.steps, folder)
            for case in wanted:
                found = predicted(case, folder, times)
                row, error, sign, holds = judged(job, case, found, times)
                print(" | ".join(row), flush=True)
                rows.append(row)
                errors.append(error)
                signs += sign
                inside += holds
    head = ("model", "change", "before ms", "after ms", "predicted ms", "range ms", "error", "sign", "inside", "trust")
    known = np.abs([error for error in errors if error is not None])
    text = (
        f"{table_text(head, rows)}\n\nsign right in {signs} of {len(rows)}; median error "
        f"{np.median(known):.1%}, largest {known.max():.1%}; inside the range {inside} of {len(rows)}"
    )
    more = [twice_as_many(model, arguments.blocks, arguments.steps) for model in ("mlp", "waiting")]
    text += f"\n\nOversubscribed, one job after the other:\n\n{table_text(head, more)}"
    command.tell(text, arguments.out)


def twice_as_many(model: str, blocks: int, steps: int) -> tuple[str, ...]:
    """2 ranks on two cores, and 4."""
    case = Case("2 -> 4 ranks", "base", "base", "ranks", {"n": 4})
    job = Job(model, (Setting("base", model),), (case,))
    with tempfile.TemporaryDirectory() as few, tempfile.TemporaryDirectory() as many:
        before = run(job, blocks, steps, Path(few))
        after = run(job, blocks, steps, Path(many), ranks=4)
        found = predicted(case, Path(few), before)
    times = {"blocks": {"base": before["blocks"]["base"], "more": after["blocks"]["base"]}}
    return judged(job, replace(case, changed="more"), found, times)[0]


def judged(
    job: Job, case: Case, found: Prediction, times: dict[str, Any]
) -> tuple[tuple[str, ...], float | None, bool, bool]:
    """A row of the table, the error, whether the sign is right, and whether the range holds what was measured."""
    before, after = (step_ns(times["blocks"][name]) for name in (case.base, case.changed))
    start = (job.name.split()[0], case.name, f"{before / 1e6:.2f}", f"{after / 1e6:.2f}")
    if found.predicted_ns is None or found.interval_ns is None:
        return (*start, "", "", "", "", "", found.reason), None, False, False
    low, high = found.interval_ns
    error = found.predicted_ns / after - 1
    # The unchanged steps' time is what the prediction starts from.
    sign = (found.predicted_ns - before) * (after - before) > 0
    holds = low <= after <= high
    more = (
        f"{found.predicted_ns / 1e6:.2f}",
        f"{low / 1e6:.1f} to {high / 1e6:.1f}",
        f"{error:+.1%}",
        "" if sign else "wrong",
        "yes" if holds else "no",
        found.trust + (", rank named" if found.name == "rank named" else ""),
    )
    return (*start, *more), error, sign, holds


if __name__ == "__main__":
    main()
