"""Does `pytest --perf` hold its peace on unchanged code, and does it name what was planted?

Runs the examples unchanged and with each plant of examples/plants.py, in turns, so that the machine's drift
meets all of them alike. Every run is appended to a JSON-lines file as soon as it ends; started again, the
script does only what is missing there. At the end, or with `--table` at once, it prints two Markdown tables.

    python benchmarks/first_slice/run.py --record            # baselines, where there are none
    python benchmarks/first_slice/run.py --unchanged 20 --planted 5
    python benchmarks/first_slice/run.py --table
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from plants import PLANTS, Plant  # noqa: E402 (the examples are no package)

EXAMPLES = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("test_*.py")))
"""Those with baselines: examples/strategies/ compares alternatives."""
UNCHANGED = ""
"""Stands for no plant where the name of a plant is wanted."""
FALSE_ALARMS = ("regressed", "suspect")
VERDICTS = ("regressed", "suspect", "changed", "unchanged", "improved", "inconclusive", "invalid")


@dataclass(frozen=True)
class Outcome:
    """What one run said about one test."""

    plant: str
    """`UNCHANGED`, or the plant that was switched on."""
    number: int
    """Of the run, from 0, among those with this plant."""
    test: str
    verdict: str
    caught_by: tuple[str, ...]
    metrics: Mapping[str, str]
    """Verdicts of the metrics that told."""
    cause: str
    """The first one named, or nothing."""
    reason: str
    date: str


@dataclass(frozen=True)
class Run:
    """One call of pytest: a plant, or none, and its number."""

    plant: str
    number: int

    @property
    def title(self) -> str:
        """How progress lines call it."""
        return f"{self.plant or 'unchanged'} #{self.number + 1}"

    @property
    def tests(self) -> tuple[str, ...]:
        """What to select."""
        return PLANTS[self.plant].tests if self.plant else EXAMPLES


class PytestError(RuntimeError):
    """pytest did not measure; the message holds what it said."""


def plan(unchanged: int, planted: int, plants: Sequence[str]) -> list[Run]:
    """All runs wanted, in turns: each round holds one of every kind that still wants one."""
    wanted = {UNCHANGED: unchanged, **dict.fromkeys(plants, planted)}
    rounds = range(max(wanted.values(), default=0))
    return [Run(plant, number) for number in rounds for plant, count in wanted.items() if number < count]


def measure(run: Run, options: argparse.Namespace) -> list[Outcome]:
    """Run pytest once and read what it found.

    Raises
    ------
    PytestError
        When pytest ended with anything but passed or failed tests, or wrote no run file.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "run.json"
        pytest(run.plant, "--perf", "--perf-traces=none", f"--perf-json={found}", *run.tests, options=options)
        tests = json.loads(found.read_text())["tests"]
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return [outcome(run, test, date) for test in tests]


def pytest(plant: str, *arguments: str, options: argparse.Namespace) -> None:
    """Run pytest on the examples with a plant switched on in this checkout only; see `measure` for errors."""
    environment = {**os.environ, "PERFDL_PLANT": plant, "PERFDL_PLANT_IN": str(ROOT)}
    with tempfile.TemporaryDirectory() as report:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--perf-dir={options.perf_dir}"]
        command += [f"--perf-report={report}", "--perf-github=off", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise PytestError(f"{' '.join(command)}\nended with exit status {done.returncode}:\n{tail}")


def outcome(run: Run, test: Mapping[str, Any], date: str) -> Outcome:
    """Keep of the run file's entry what the tables need."""
    blame = test["blame"]
    return Outcome(
        plant=run.plant,
        number=run.number,
        test=test["id"],
        verdict=test["verdict"],
        caught_by=tuple(test["caught_by"]),
        metrics={
            name: metric["verdict"]
            for name, metric in test["metrics"].items()
            if metric["verdict"] in ("regressed", "suspect", "changed", "improved")
        },
        cause=blame[0]["name"] if blame else "",
        reason=test["reason"],
        date=date,
    )


def read(path: Path) -> list[Outcome]:
    """Outcomes kept so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Outcome(**{**data, "caught_by": tuple(data["caught_by"])}) for data in map(json.loads, filter(None, lines))]


def keep(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Append a run's outcomes in one write, so that an interrupted run leaves nothing behind."""
    text = "".join(json.dumps(asdict(each)) + "\n" for each in outcomes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def caught(plant: Plant, outcome: Outcome) -> bool:
    """Whether the metrics that must tell have told; for a change of time alone, no others."""
    if plant.caught_by == "time":
        return outcome.caught_by == ("time",)
    wanted = {"both": {"time", "counts"}, "counts": {"counts"}}[plant.caught_by]
    return wanted <= set(outcome.caught_by)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def share(hits: Iterable[bool]) -> str:
    """How many of them are true, such as `4/5`."""
    found = list(hits)
    return f"{sum(found)}/{len(found)}"


def verdicts(outcomes: Sequence[Outcome]) -> str:
    """How often each verdict was given, such as `regressed 4, suspect 1`."""
    counts = Counter(each.verdict for each in outcomes)
    known = [verdict for verdict in VERDICTS if verdict in counts]
    return ", ".join(f"{verdict} {counts[verdict]}" for verdict in (*known, *sorted(counts.keys() - {*VERDICTS})))


def tables(outcomes: Sequence[Outcome]) -> str:
    """Both tables as Markdown; a table without runs is left out."""
    lines: list[str] = []
    still = [each for each in outcomes if each.plant == UNCHANGED]
    if still:
        lines += ["## Unchanged code", "", *table(*_unchanged(still)), ""]
        alarms = sum(each.verdict == "regressed" for each in still)
        suspects = sum(each.verdict == "suspect" for each in still)
        lines += [f"{len(still)} tests run: {alarms} falsely regressed, {suspects} falsely suspect.", ""]
    planted = [each for each in outcomes if each.plant in PLANTS]
    if planted:
        lines += ["## Planted regressions", "", *table(*_planted(planted)), ""]
    return "\n".join(lines)


def _unchanged(outcomes: Sequence[Outcome]) -> tuple[Sequence[str], list[Sequence[object]]]:
    rows: list[Sequence[object]] = []
    for test in dict.fromkeys(each.test for each in outcomes):
        mine = [each for each in outcomes if each.test == test]
        metrics = Counter(name for each in mine for name in each.metrics)
        blamed = ", ".join(f"{name} {count}" for name, count in metrics.most_common(4))
        alarms = (sum(each.verdict == verdict for each in mine) for verdict in FALSE_ALARMS)
        rows.append((f"`{test}`", len(mine), *alarms, verdicts(mine), blamed or "-"))
    return ("test", "runs", "false regressed", "false suspect", "verdicts", "metrics that told"), rows


def _planted(outcomes: Sequence[Outcome]) -> tuple[Sequence[str], list[Sequence[object]]]:
    rows: list[Sequence[object]] = []
    for name, plant in PLANTS.items():
        for test in plant.tests:
            mine = [each for each in outcomes if each.plant == name and each.test == test]
            if not mine:
                continue
            causes = Counter(each.cause or "-" for each in mine)
            rows.append(
                (
                    f"`{name}`",
                    f"`{test.removeprefix('examples/')}`",
                    verdicts(mine),
                    share("time" in each.caught_by for each in mine),
                    share("counts" in each.caught_by for each in mine),
                    plant.caught_by,
                    share(caught(plant, each) for each in mine),
                    ", ".join(f"`{cause}` {count}" for cause, count in causes.most_common(2)),
                    share(plant.explains(each.cause) for each in mine),
                )
            )
    heads = ("plant", "test", "verdicts", "by time", "by counts", "must be caught by", "so caught")
    return (*heads, "first cause named", "cause expected"), rows


def main() -> int:
    """Do what is missing, print the tables; 0 when all runs were made."""
    options = arguments()
    if options.record:
        print("recording baselines", flush=True)
        try:
            pytest(UNCHANGED, "--perf-update=new", *EXAMPLES, options=options)
        except PytestError as error:
            print(error, file=sys.stderr)
            return 1
    kept = read(options.out)
    if not options.table:
        done = {Run(each.plant, each.number) for each in kept}
        todo = [run for run in plan(options.unchanged, options.planted, options.plant) if run not in done]
        for position, run in enumerate(todo, 1):
            started = time.monotonic()
            try:
                found = measure(run, options)
            except PytestError as error:
                print(error, file=sys.stderr)
                return 1
            keep(options.out, found)
            kept += found
            took = time.monotonic() - started
            print(f"[{position}/{len(todo)}] {run.title}: {verdicts(found)} ({took:.0f} s)", flush=True)
    print(tables(kept))
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unchanged", type=int, default=10, metavar="N", help="runs of unchanged code (10)")
    parser.add_argument("--planted", type=int, default=3, metavar="N", help="runs of each plant (3)")
    parser.add_argument("--plant", nargs="+", choices=PLANTS, default=list(PLANTS), help="only these plants")
    parser.add_argument("--perf-dir", default="baselines", metavar="DIR", help="folder of the baselines (baselines)")
    parser.add_argument("--record", action="store_true", help="first write the baselines that are missing")
    parser.add_argument("--table", action="store_true", help="only print what was found so far")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "perf-report" / "first-slice.jsonl", metavar="FILE", help="results"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
