"""How far task graphs explain public traces: constant-lag replay errors, held-out steps, and times.

    python benchmarks/whatif/replay.py [FOLDER] [--out TABLE.md]
    python benchmarks/whatif/replay.py --linear          # graphs of up to a million tasks, from synthetic traces
    python benchmarks/whatif/replay.py --ranks RANK0 RANK1  # several ranks as one graph

*const* is the error of the span with every launch lag, kernel gap and return of a call replaced by one constant; times
of the host stay. *held out*: for each step in turn, the durations of its kernels, collectives and copies are replaced
by the median of the same kernel, at the same place in the sequence of its step, in the other steps; host times are
kept. The error is that of the step's period; largest of all steps, and of the mean step. *what-ifs*: the durations of
a tenth of the tasks halved. *structural what-ifs*: one kernel and its launch removed, or another one with a launch of
its own inserted behind it, in turns, each time elsewhere.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.tables import table_text

from pytest_perfdl.trace import read
from pytest_perfdl.whatif import Plan, simulate, task_graph
from pytest_perfdl.whatif.editing.surgery import NewTask
from pytest_perfdl.whatif.from_trace.job import job_graph
from pytest_perfdl.whatif.model import TaskGraph, TaskKind
from pytest_perfdl.whatif.simulation.quality import quality

WHATIFS = 100


def held_out(graph: TaskGraph) -> tuple[float, float] | None:
    """Largest error of a held-out step's window, and the error of the mean of them; `None` for fewer than 3 steps."""
    tasks, measured = graph.tasks, simulate(graph).steps_ns
    if len(graph.steps) < 3:
        return None
    device = np.flatnonzero(graph.is_device & (tasks.step >= 0))
    device = device[np.lexsort((tasks.submitted[device], tasks.step[device]))]
    places: dict[tuple[int, int], int] = defaultdict(int)
    known: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    key_of = {}
    for task in device.tolist():
        step, name = int(tasks.step[task]), int(tasks.name[task])
        place = places[step, name]
        places[step, name] += 1
        known[name, place][step] = int(tasks.duration[task])
        key_of[task] = name, place
    predicted = []
    for step in range(len(graph.steps)):
        duration = tasks.duration.copy()
        for task in device[tasks.step[device] == step].tolist():
            others = [ns for other, ns in known[key_of[task]].items() if other != step]
            if others:
                duration[task] = int(np.median(others))
        predicted.append(int(simulate(graph, duration).steps_ns[step]))
    errors = np.array(predicted) / measured - 1
    return float(errors[np.argmax(np.abs(errors))]), float(np.sum(predicted) / measured.sum() - 1)


def row(path: Path) -> tuple[str, ...]:
    """One line of the table."""
    trace = read(path)
    begun = time.perf_counter()
    graph = task_graph(trace)
    built = time.perf_counter() - begun
    return *measured(path.name.split(".")[0], graph, built), *timed(graph)


def measured(name: str, graph: TaskGraph, built: float) -> tuple[str, ...]:
    """One line of the table, of a graph and the seconds that it took to make it."""
    found = quality(graph)
    held = held_out(graph)
    return (
        name,
        f"{len(graph):,}",
        f"{(graph.span[1] - graph.span[0]) / 1e6:.3f}",
        f"{found.constant_error:+.3%}",
        f"{found.replay_error:+.3%}",
        f"{found.unexplained_share:.1%}",
        f"{found.inferred_share:.1%}",
        found.trust,
        "" if held is None else f"{held[0]:+.3%}",
        "" if held is None else f"{held[1]:+.3%}",
        f"{built:.3f}",
    )


def timed(graph: TaskGraph) -> tuple[str, str]:
    """Seconds of what-ifs about durations, and of structural ones."""
    rng = np.random.default_rng(0)
    halved = [Plan().scale(rng.random(len(graph)) < 0.1, 0.5) for _ in range(WHATIFS)]
    found = []
    for plans in (halved, local_edits(graph)):
        begun = time.perf_counter()
        for plan in plans:
            simulate(plan.apply(graph))
        found.append(f"{time.perf_counter() - begun:.3f}")
    return found[0], found[1]


def local_edits(graph: TaskGraph) -> list[Plan]:
    """Plans that change a few tasks each."""
    device = np.flatnonzero(graph.is_device)
    own = device if len(device) else np.arange(len(graph))
    new = NewTask("new", 10_000, launch_ns=5_000) if len(device) else NewTask("new", 10_000, TaskKind.OPERATOR)
    found = []
    for number, task in enumerate(own[np.linspace(0, len(own) - 1, WHATIFS).astype(np.intp)].tolist()):
        chosen = np.zeros(len(graph), dtype=bool)
        chosen[task] = True
        found.append(Plan().insert(new, chosen) if number % 2 else Plan().remove(chosen))
    return found


def linear() -> list[tuple[str, ...]]:
    """Times by size, of synthetic traces."""
    lines = [("events", "tasks", "graph s", "us a task", f"{WHATIFS} what-ifs s", "ns a task and what-if")]
    synthetic = Path(__file__).parents[1] / "trace_reading" / "synthetic.py"
    with tempfile.TemporaryDirectory() as folder:
        for events in (62_500, 125_000, 250_000, 500_000, 1_000_000):
            path = Path(folder) / "trace.json"
            subprocess.run([sys.executable, synthetic, "--events", str(events), path], check=True, capture_output=True)
            trace = read(path)
            begun = time.perf_counter()
            graph = task_graph(trace)
            built = time.perf_counter() - begun
            simulate(graph)
            begun = time.perf_counter()
            for _ in range(WHATIFS):
                simulate(graph, graph.tasks.duration // 2)
            simulated = time.perf_counter() - begun
            each = simulated / WHATIFS / len(graph) * 1e9
            per_task = built / len(graph) * 1e6
            lines.append(
                (
                    f"{len(trace):,}",
                    f"{len(graph):,}",
                    f"{built:.2f}",
                    f"{per_task:.2f}",
                    f"{simulated:.2f}",
                    f"{each:.0f}",
                )
            )
    return lines


def ranks(paths: list[Path]) -> tuple[str, ...]:
    """One line of the table, of all ranks together."""
    traces = [read(path) for path in paths]
    begun = time.perf_counter()
    graph = job_graph(traces)
    return measured(" + ".join(path.name.split(".")[0] for path in paths), graph, time.perf_counter() - begun)


HEAD = (
    *("trace", "tasks", "span ms", "const", "pinned", "unexplained", "inferred", "confidence"),
    *("held out, worst step", "held out, period", "graph s", f"{WHATIFS} what-ifs s"),
    f"{WHATIFS} structural what-ifs s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = os.environ.get("PERFDL_TRACE_CORPUS", str(Path(__file__).parents[3] / "shared" / "traces"))
    parser.add_argument("folder", nargs="?", type=Path, default=Path(default))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--linear", action="store_true", help="times by size instead")
    parser.add_argument("--ranks", nargs="+", type=Path, metavar="TRACE", help="these as the ranks of one job instead")
    arguments = parser.parse_args()
    files = sorted(path for path in arguments.folder.glob("*.json*") if ".expected" not in path.name)
    if arguments.ranks:
        head, *rows = [HEAD[:-2], ranks(arguments.ranks)]
    else:
        head, *rows = linear() if arguments.linear else [HEAD, *(row(path) for path in files)]
    text = table_text(head, rows)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
