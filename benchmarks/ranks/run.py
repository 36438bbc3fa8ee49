"""Evaluate `perfdl trace RANK... --json` on generated traces of many ranks, whose straggler and its cause are known."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "ranks")]

import chrome_files
import generated_sets
from common import kept
from common.processes import perfdl
from common.tables import table
from simulated_job import simulate


@dataclass(frozen=True, slots=True)
class Result:
    """What was true of a set, and what the tool said."""

    name: str
    form: str
    """The way to train, and with what: "ddp, nccl"."""
    share: float
    """Cost of the straggler as a share of the step without it."""
    truth: dict[str, Any] | None
    found: dict[str, Any] | None
    error: str = ""

    @property
    def kind(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def rank_right(self) -> bool:
        return (self.found or {}).get("rank") == (self.truth or {}).get("rank")

    @property
    def cause_right(self) -> bool:
        return (self.found or {}).get("cause") == (self.truth or {}).get("cause")

    @property
    def since_right(self) -> bool:
        """Within one step."""
        if not (self.found and self.truth):
            return self.found == self.truth
        return abs(self.found["since_step"] - self.truth["since_step"]) <= 1

    @property
    def right(self) -> bool:
        return not self.error and self.rank_right and self.cause_right and self.since_right

    @property
    def cost_error(self) -> float | None:
        """Relative; None if there is nothing to compare."""
        if not (self.found and self.truth):
            return None
        return self.found["cost_ns"] / self.truth["cost_ns"] - 1


def evaluate(name: str, spot: bool, keep: str | None) -> Result:
    """Generate a set, and ask; the command, too, if `spot`. A set that was kept is not generated again."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(keep) / name if keep else Path(temporary)
        about = folder / "truth.json"
        if not about.exists():
            generate(name, folder)
        known = json.loads(about.read_text())
        files = sorted(folder.glob("rank*.json"))
        error, found = "", None
        try:
            found = ask(files)
            if spot and (told := ask_command(files)) != found:
                error = f"the command says {told}, its functions {found}"
        except Exception as problem:  # a failure on one set is a result
            error = f"{type(problem).__name__}: {problem}"
    return Result(name, known["form"], known["share"], known["straggler"], found, error)


def generate(name: str, folder: Path) -> None:
    """Write the traces of a set, and its truth beside them."""
    spec = generated_sets.made(name)
    traces, truth = simulate(spec)
    folder.mkdir(parents=True, exist_ok=True)
    chrome_files.write(spec, traces, folder)
    cost = truth.straggler["cost_ns"] if truth.straggler else 0
    slow = truth.step_ns[spec.straggler.since if spec.straggler else 0 :]
    form = f"{spec.parallel}, {'nccl' if spec.device else 'gloo'}"
    about = {"form": form, "share": cost / (sum(slow) / len(slow) - cost), **truth.as_json()}
    (folder / "truth.json").write_text(json.dumps(about))


def ask(files: list[Path]) -> dict[str, Any] | None:
    """The straggler that the analysis finds, from the functions that the command calls."""
    from pytest_perfdl.analysis.ranks import activity, compare
    from pytest_perfdl.trace import read

    found = compare([activity(read(path)) for path in files]).straggler
    if found is None:
        return None
    return {key: getattr(found, key) for key in ("rank", "since_step", "cause", "cost_ns")}


def ask_command(files: list[Path]) -> dict[str, Any] | None:
    """The same from the command, in a process of its own."""
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(perfdl("trace", *files, "--json"), env=own, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)["ranks"]["straggler"]
    return told and {key: told[key] for key in ("rank", "since_step", "cause", "cost_ns")}


def summary(results: list[Result]) -> str:
    """Tables by cause, by form and by size, and the wrong sets by name."""
    guilty = [result for result in results if result.truth]
    innocent = [result for result in results if not result.truth]
    header = ("", "sets", "all right", "rank", "cause", "since", "named", "median error of cost", "90 % of them within")

    def rows(key: Callable[[Result], str]) -> Iterator[list[object]]:
        groups: dict[str, list[Result]] = {}
        for result in guilty:
            groups.setdefault(key(result), []).append(result)
        for group in sorted(groups):
            yield _row(group, groups[group])

    by = (lambda result: result.form, lambda result: _size(result.share))
    groups = [[*rows(lambda result: result.kind), _row("**all**", guilty)], *map(rows, by)] if guilty else []
    parts = ["\n".join(table(header, group, numbers=True)) for group in groups]
    if innocent:
        false = [result for result in innocent if result.found or result.error]
        parts.append(f"Without a straggler: {len(false)} of {len(innocent)} named.")
    wrong = [result for result in results if not result.right]
    return "\n\n".join(parts) + "\n\n" + "\n".join(f"- {_said(result)}" for result in wrong)


def _size(share: float) -> str:
    bounds = (0.05, 0.1, 0.2)
    return next((f"cost below {bound:3.0%} of the step" for bound in bounds if share < bound), "cost of 20% and more")


def _row(name: str, results: list[Result]) -> list[object]:
    errors = sorted(abs(error) for result in results if result.rank_right and (error := result.cost_error) is not None)
    return [
        name,
        len(results),
        sum(result.right for result in results),
        sum(result.rank_right for result in results),
        sum(result.cause_right for result in results),
        sum(result.since_right for result in results),
        sum(result.found is not None for result in results),
        f"{median(errors):.1%}" if errors else "-",
        f"{errors[-(-9 * len(errors) // 10) - 1]:.0%}" if errors else "-",
    ]


def _said(result: Result) -> str:
    def one(what: dict[str, Any] | None) -> str:
        if what is None:
            return "none"
        return f"rank {what['rank']}, {what['cause']}, since {what['since_step']}, {what['cost_ns'] / 1e6:.2f} ms"

    said = result.error or one(result.found)
    return f"{result.name} ({result.form}, {result.share:.1%}): {one(result.truth)}; said: {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--count", type=int, default=100, help="sets of each kind (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="number of the first set of each kind (default: 0)")
    parser.add_argument("--spot", type=int, default=25, help="also ask the command about one in so many (default: 25)")
    parser.add_argument("--only", default="", help="only sets whose names contain this text")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the traces there (4 GB), and use those that are there")
    parser.add_argument(
        "--results", metavar="FILE", help="a line of JSON for each set; sets that it has are not evaluated again"
    )
    arguments = parser.parse_args()
    chosen = [name for name in generated_sets.names(arguments.count, arguments.first) if arguments.only in name]
    results = [Result(**each) for each in kept.read(Path(arguments.results))] if arguments.results else []
    todo = [name for name in chosen if name not in {result.name for result in results}]
    begun = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        spots = [arguments.spot > 0 and number % arguments.spot == 0 for number in range(len(todo))]
        for result in pool.map(evaluate, todo, spots, [arguments.keep] * len(todo)):
            results.append(result)
            if not result.right:
                print(f"{len(results)}/{len(chosen)} {_said(result)}", file=sys.stderr, flush=True)
            if arguments.results:
                kept.keep(Path(arguments.results), asdict(result))
    print(summary(results))
    print(f"\n{len(todo)} sets in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
