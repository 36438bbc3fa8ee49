"""Measures a generated repository of 240 benchmarks: unchanged, and with 20 of them slower.

    python benchmarks/suites/run.py --unchanged 20 --slower 1 --folder suites

Prints a line of Markdown for each run. Started again with the same folder, it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE)]

import repository
from common import kept, projects
from common.tables import table

SLOWER = 1.10
MOST_NOISE = 0.10
"""Of the benchmarks that are made slower."""
PLANTED = 20
HEAD = ("run", "seconds", "tests", "slower found", "others named", "groups named", "stall said")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unchanged", type=int, default=20, help="number of runs without a change")
    parser.add_argument("--slower", type=int, default=1, help="number of runs in which 20 benchmarks take 10 %% longer")
    parser.add_argument("--folder", type=Path, help="where the repository is kept (default: a temporary folder)")
    arguments = parser.parse_args()
    folder: Path = arguments.folder or Path(tempfile.mkdtemp())
    made = _repository(folder / "repository")
    results = folder / "results.jsonl"
    wanted = [*_numbered("unchanged", arguments.unchanged), *_numbered("slower", arguments.slower)]
    done = {(each["kind"], each["number"]) for each in kept.read(results)}
    for kind, number in wanted:
        if (kind, number) not in done:
            slower = _planted(made, number) if kind == "slower" else []
            print(f"{kind} run {number}", file=sys.stderr, flush=True)
            kept.keep(results, {"kind": kind, "number": number, **_measured(folder / "repository", made, slower)})
    rows = (_row(each) for each in kept.read(results) if (each["kind"], each["number"]) in wanted)
    print("\n".join(table(HEAD, rows, numbers=True)))


def _numbered(kind: str, count: int) -> list[tuple[str, int]]:
    return [(kind, number) for number in range(1, count + 1)]


def _repository(folder: Path) -> dict[str, repository.Benchmark]:
    """The repository with its baselines, made where it is not there yet."""
    made = repository.generate(folder)
    if not (folder / ".git").exists():
        projects.commit(folder, "The benchmarks")
        began = time.monotonic()
        projects.run_pytest(folder, "--perf-update")
        print(f"Baselines recorded in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        projects.commit(folder, "Their baselines")
    return made


def _planted(made: dict[str, repository.Benchmark], number: int) -> list[str]:
    """Functions that are made slower, from all files."""
    usual = [name for name, each in made.items() if each.noise <= MOST_NOISE and not each.stalls]
    return random.Random(number).sample(usual, PLANTED)


def _measured(folder: Path, made: dict[str, repository.Benchmark], slower: Sequence[str]) -> dict[str, Any]:
    """One run: its seconds, and what it said of the functions whose tests are measured."""
    changed = {name: replace(each, slower=SLOWER if name in slower else 1.0) for name, each in made.items()}
    repository.write_times(folder, changed)
    with (folder / "times.py").open("a") as file:
        file.write("# No change.\n")
    began = time.monotonic()
    tests = projects.run_pytest(folder, "--perf")
    seconds = time.monotonic() - began
    projects.git(folder, "checkout", "--quiet", ".")
    cases = [(_function(test["id"], case["id"]), case) for test in tests for case in test["cases"]]
    named = [name for name, case in cases if case["verdict"] == "regressed"]
    return {
        "seconds": round(seconds),
        "measured": len(cases),
        "named": named,
        "groups": sum(len(test["groups"]) for test in tests),
        "slower": slower,
        "stall_said": any(map(_says_stall, tests)),
    }


def _says_stall(test: Mapping[str, Any]) -> bool:
    """Whether a note names the case that stalls."""
    file, _, case = repository.STALLED.partition("::")
    said = [each["message"] for each in test["integrity"] if each["code"] == "stalled"]
    return test["id"].startswith(f"{file}::") and any(f" {case} (" in each for each in said)


def _function(file: str, case: str) -> str:
    """`test_3.py::test_7` of the case `test_7[1]` of `test_3.py::benchmarks`."""
    return f"{file.partition('::')[0]}::{case.partition('[')[0].rpartition('::')[2]}"


def _row(result: Mapping[str, Any]) -> list[object]:
    named, slower = set(result["named"]), set(result["slower"])
    found = f"{len(named & slower)} of {len(slower)}" if slower else "-"
    run = f"{result['kind']} {result['number']}"
    said = "yes" if result["stall_said"] else "no"
    return [run, result["seconds"], result["measured"], found, len(named - slower), result["groups"], said]


if __name__ == "__main__":
    main()
