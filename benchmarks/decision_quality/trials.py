"""Live trials, end to end: pytest on a scratch repository whose code is unchanged, or slower by a known amount.

Every trial is one run of pytest on one perf test. Kinds come in turns, so that the machine's drift meets all
alike. Each trial is appended to a JSON-lines file as soon as it ends; started again, on any day, the script does
only what is missing. At the end, or with `--table` at once, it prints how the counts stand to what is demanded.

    python benchmarks/decision_quality/trials.py --count 40                    # hours; shows the time left
    python benchmarks/decision_quality/trials.py --kind gate-aa ab-aa --count 150
    python benchmarks/decision_quality/trials.py --count 10 --load 0.3         # beside another load
    python benchmarks/decision_quality/trials.py --table

The scratch repository with its baselines is made anew each time in a temporary folder, so that each start is an
occasion of its own; `--project DIR` keeps one, and `--append N` adds repeats of this occasion to its baselines. Kinds
"examples" (unchanged, half of them behind a commit of whitespace) and "forward" (README's step with one forward pass
more) have a repository of the examples.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE)]

from acceptance import OPERATOR, tables
from common import kept
from common.projects import ProjectError, run_pytest
from scratch_project import ExamplesProject, ScratchProject
from side_load import side_load

TRIALS = ROOT / "perf-report" / "decision-quality-trials.jsonl"
TRAINING = "tests/test_speed.py::test_train_step"
LOADER = "tests/test_speed.py::test_fed_by_loader"
AGAINST = ("--perf-against=HEAD",)
LIMITS_2 = ("--perf-limit=step_time:2%", "--perf-limit=block_time:2%")
"""What a slowdown of 3 % is held to: at the usual limit of 3 % it would not be past it."""


@dataclass(frozen=True)
class Kind:
    """A sort of trial."""

    options: tuple[str, ...] = ()
    """Of pytest, beside `--perf`."""
    inject: float = 0.0
    """Percent for `--perf-inject`."""
    plant: Mapping[str, float] = field(default_factory=dict)
    every_second: Mapping[str, float] = field(default_factory=dict)
    """Planted in every second trial beside."""
    tests: tuple[str, ...] = (TRAINING,)
    """In turns."""
    of_examples: bool = False
    """Whether the scratch repository is that of the examples."""


KINDS: Mapping[str, Kind] = {
    "gate-aa": Kind(),
    "ab-aa": Kind(AGAINST),
    "ab+3": Kind((*AGAINST, *LIMITS_2), inject=3),
    "gate+5": Kind(inject=5),
    "gate+10": Kind(inject=10),
    "every-2nd": Kind(plant={"EVERY": 2, "EXTRA": 0.5}),
    "every-3rd": Kind(plant={"EVERY": 3, "EXTRA": 1.0}),
    "loader": Kind(plant={"TRANSFORM": 0.2}, tests=(LOADER,)),
    "operator": Kind(AGAINST, plant={"scanned": 240_000}),
    "examples": Kind(every_second={"commit": 1}, tests=ExamplesProject.examples, of_examples=True),
    "forward": Kind(plant={"forward": 1}, tests=(ExamplesProject.readme,), of_examples=True),
}


@dataclass(frozen=True)
class Trial:
    """What one run said."""

    kind: str
    number: int
    """From 0, among those of the kind under the same load."""
    load: float
    verdict: str
    basis: str
    """`paired` or `unpaired`: what the deciding metric rests on; empty for neither."""
    rounds: int
    metric: str
    """The deciding one: the worst of those held to a limit on time."""
    effect: float | None
    ci95: tuple[float, float] | None
    excluded: float | None
    """A slowdown by more than this share is excluded."""
    injected: float
    """Percent."""
    named: tuple[str, ...]
    """Operators and kernels that are regressed themselves, the largest change first, then what is blamed."""
    operator_share: float | None
    """Of the profiled step, on the baseline's side."""
    reason: str
    seconds: float
    """Of pytest, from start to end."""
    date: str
    occasion: str
    """When this start of the script began: what shares a baseline."""


def plan(kinds: Sequence[str], count: int, load: float) -> list[tuple[str, int, float]]:
    """All trials wanted, in turns."""
    return [(kind, number, load) for number in range(count) for kind in kinds]


def run(
    project: ScratchProject,
    name: str,
    number: int,
    load: float,
    occasion: str,
    extra: Sequence[str] = (),
) -> Trial:
    """Make one trial, with `extra` options of pytest.

    Raises
    ------
    ProjectError
    """
    kind = KINDS[name]
    options = [*kind.options, *([f"--perf-inject={kind.inject:g}"] if kind.inject else [])]
    started = time.monotonic()
    project.plant({**kind.plant, **(kind.every_second if number % 2 else {})})
    try:
        with side_load(load, zlib.crc32(f"{name} {number}".encode())):
            (found,) = run_pytest(project.folder, "--perf", *options, *extra, kind.tests[number % len(kind.tests)])
    finally:
        project.restore()
    seconds = time.monotonic() - started
    return outcome(found, name, number, load, kind.inject, seconds, occasion)


def outcome(
    found: Mapping[str, Any], kind: str, number: int, load: float, injected: float, seconds: float, occasion: str
) -> Trial:
    """Keep of the run file's entry what the tables need."""
    name, metric = deciding(found)
    slower = {each: held for each, held in found["metrics"].items() if held["verdict"] == "regressed" and is_row(each)}
    return Trial(
        kind=kind,
        number=number,
        load=load,
        verdict=found["verdict"],
        basis=(metric["evidence"] if metric else None) or "",
        rounds=(metric["rounds"] if metric else None) or 0,
        metric=name,
        effect=metric["effect"] if metric else None,
        ci95=tuple(metric["ci95"]) if metric and metric["ci95"] else None,
        excluded=metric["excluded"] if metric else None,
        injected=injected,
        named=(*sorted(slower, key=lambda each: -slower[each]["effect"]), *(each["name"] for each in found["blame"])),
        operator_share=operator_share(found),
        reason=found["reason"],
        seconds=seconds,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        occasion=occasion,
    )


def deciding(found: Mapping[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    """The metric of time that the verdict rests on, one of the whole step where there is one.

    Of several the one with the largest effect; where none has the test's verdict, of all.
    """
    held = {
        name: metric
        for name, metric in found["metrics"].items()
        if metric["kind"] == "timed" and metric["limit"] and metric["effect"] is not None
    }
    if not held:
        return "", None
    telling = [name for name, metric in held.items() if metric["verdict"] == found["verdict"]] or list(held)
    name = min(telling, key=lambda each: (is_row(each), -abs(held[each]["effect"])))
    return name, held[name]


def is_row(metric: str) -> bool:
    """Whether a metric is that of one operator or kernel (`model.record.row_name`)."""
    return " " in metric


def operator_share(found: Mapping[str, Any]) -> float | None:
    """Share of the profiled step that the operator to be slowed has in this run."""
    for call in (found["record"] or {"calls": []})["calls"]:
        for row in call["rows"]:
            if row["name"] == OPERATOR and row["ns"]:
                return float(sum(row["ns"]) / sum(call["profiled_ns"]))
    return None


def read(path: Path) -> list[Trial]:
    """Trials kept so far."""
    found = []
    for data in kept.read(path):
        ends = data["ci95"]
        found.append(Trial(**{**data, "ci95": ends and tuple(ends), "named": tuple(data["named"])}))
    return found


def left(todo: Iterable[tuple[str, int, float]], done: Iterable[Trial]) -> str:
    """The time that the rest will take, from trials of the same kind."""
    return kept.time_left((kind for kind, _, _ in todo), ((each.kind, each.seconds) for each in done))


def main() -> int:
    """Do what is missing, print the tables."""
    options = arguments()
    done = read(options.out)
    known = {(each.kind, each.number, each.load) for each in done}
    todo = [each for each in plan(options.kind, options.count, options.load) if each not in known]
    if todo and not options.table:
        with tempfile.TemporaryDirectory(prefix="perfdl-trials-") as temporary:
            try:
                folder = options.project or Path(temporary)
                for of_examples in (False, True):
                    mine = [each for each in todo if KINDS[each[0]].of_examples == of_examples]
                    sort, name = (ExamplesProject, "examples") if of_examples else (ScratchProject, "project")
                    if mine:
                        make(sort(folder / name), mine, done, options)
            except ProjectError as error:
                print(error, file=sys.stderr)
                return 1
    print(tables(done))
    return 0


def make(
    project: ScratchProject, todo: Sequence[tuple[str, int, float]], done: list[Trial], options: argparse.Namespace
) -> None:
    """Record baselines where they are missing, then make the trials.

    Raises
    ------
    ProjectError
    """
    occasion = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    repeats = options.append if project.recorded else options.repeats
    if repeats:
        print(f"recording {repeats} repeats of each test's baseline", flush=True)
        project.record(repeats)
    extra = () if options.budget is None else (f"--perf-budget={options.budget:g}",)
    for position, (name, number, load) in enumerate(todo):
        where = f"[{position + 1}/{len(todo)}] {name} #{number + 1}"
        trial = run(project, name, number, load, occasion, extra)
        kept.keep(options.out, asdict(trial))
        done.append(trial)
        rest = left(todo[position + 1 :], done)
        print(f"{where}: {trial.verdict}, {trial.basis} ({trial.seconds:.0f} s), {rest}", flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5, metavar="N", help="trials of each kind (5)")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS), help="only these kinds")
    parser.add_argument("--load", type=float, default=0.0, metavar="SHARE", help="of a processor, used beside (0)")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="repeats of a new baseline (20)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for confirming, instead of the plugin's own")
    parser.add_argument("--project", type=Path, metavar="DIR", help="keep the scratch repositories here")
    parser.add_argument("--append", type=int, default=0, metavar="N", help="repeats to add to kept baselines (0)")
    parser.add_argument("--table", action="store_true", help="only print what was found so far")
    parser.add_argument("--out", type=Path, default=TRIALS, metavar="FILE", help="where trials are kept")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; started again, it goes on from here")
